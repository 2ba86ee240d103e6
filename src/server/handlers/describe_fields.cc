// The table of fields for people, and by OpenAPI for programs.
#include <fmt/format.h>

#include <climits>
#include <iterator>
#include <nlohmann/json.hpp>

#include "server/handlers/request_fields.h"
#include "server/server_context.h"

namespace kvasir {
namespace {

using nlohmann::json;
using Use = RequestField::Use;

// The most that is no bound for people.
constexpr double kUnbounded = INT32_MAX;

template <typename T>
bool takes(const RequestField& f) {
  return std::holds_alternative<T>(f.set);
}

json schema_of(const RequestField& f) {
  json schema = json::object();
  if (takes<RequestField::SetBoolean>(f)) schema["type"] = "boolean";
  if (takes<RequestField::SetString>(f)) {
    schema["type"] = "string";
    if (f.range.high < kUnbounded) schema["maxLength"] = static_cast<int64_t>(f.range.high);
  }
  if (takes<RequestField::SetAny>(f)) schema = json::parse(f.shape);
  const bool whole = takes<RequestField::SetInteger>(f);
  if (whole || takes<RequestField::SetNumber>(f)) {
    schema["type"] = whole ? "integer" : "number";
    const auto as_json = [&](double v) { return whole ? json(static_cast<int64_t>(v)) : json(v); };
    schema[f.range.open_low ? "exclusiveMinimum" : "minimum"] = as_json(f.range.low);
    schema["maximum"] = as_json(f.range.high);
  }
  schema["description"] = fmt::format("{} (default: {})", f.text, f.otherwise);
  return schema;
}

std::string endpoints_text(const RequestField& f) {
  if (f.where == RequestField::Where::kBoth) return "both";
  return f.where == RequestField::Where::kChat ? "chat" : "completions";
}

std::string range_text(const RequestField& f) {
  const auto& [low, high, open_low] = f.range;
  if (high == 0 && low == 0) return {};
  if (takes<RequestField::SetString>(f))
    return high < kUnbounded ? fmt::format(", at most {} bytes", high) : "";
  if (high >= kUnbounded) return low <= INT32_MIN ? "" : fmt::format(", at least {}", low);
  if (open_low) return fmt::format(", above {}, at most {}", low, high);
  return fmt::format(", {} to {}", low, high);
}

}  // namespace

std::string type_text(const RequestField& f) {
  const char* type = "";
  if (takes<RequestField::SetBoolean>(f)) type = "boolean";
  if (takes<RequestField::SetInteger>(f)) type = "integer";
  if (takes<RequestField::SetNumber>(f)) type = "number";
  if (takes<RequestField::SetString>(f)) type = "string";
  if (!takes<RequestField::SetAny>(f)) return type + range_text(f);
  const json shape = json::parse(f.shape);
  if (!shape.contains("anyOf")) return shape["type"] == "array" ? "list" : shape["type"].get<std::string>();
  const auto second = shape["anyOf"][1]["type"].get<std::string>();
  return "string or " + (second == "array" ? "list" : second);
}

std::string request_fields_markdown() {
  std::string out = "| field | endpoints | type | default | |\n|---|---|---|---|---|\n";
  for (const RequestField& f : request_fields()) {
    if (f.use != Use::kRead) continue;
    fmt::format_to(std::back_inserter(out), "| `{}` | {} | {} | {} | {} |\n", f.name, endpoints_text(f),
                   type_text(f), f.otherwise, f.text);
  }
  out += "\nThese are read by others, and change nothing here:\n\n| field | why |\n|---|---|\n";
  for (const RequestField& f : request_fields()) {
    if (f.use != Use::kIgnored) continue;
    fmt::format_to(std::back_inserter(out), "| `{}` | {} |\n", f.name, f.text);
  }
  out += "\nThese are refused with 400, unless they have the value that changes nothing:\n\n";
  out += "| field | endpoints | value that passes | why it is refused |\n|---|---|---|---|\n";
  for (const RequestField& f : request_fields()) {
    if (f.use != Use::kRefused) continue;
    fmt::format_to(std::back_inserter(out), "| `{}` | {} | {} | {} |\n", f.name, endpoints_text(f),
                   f.otherwise.empty() ? "none" : fmt::format("`{}`", f.otherwise), f.text);
  }
  return out;
}

std::string openapi_text(std::string_view version) {
  const auto request_of = [](ApiKind kind) {
    json properties = json::object(), required = json::array();
    for (const RequestField& f : request_fields()) {
      if (f.use != Use::kRead || !f.is_of(kind)) continue;
      properties[std::string(f.name)] = schema_of(f);
      if (f.otherwise == "required") required.push_back(f.name);
    }
    return json{{"type", "object"}, {"properties", properties}, {"required", required}};
  };
  const auto operation = [](const char* summary, const char* schema) {
    const json body = {{"schema", {{"$ref", std::string("#/components/schemas/") + schema}}}};
    return json{{"post",
                 {{"summary", summary},
                  {"requestBody", {{"required", true}, {"content", {{"application/json", body}}}}},
                  {"responses",
                   {{"200", {{"description", "the answer, or server-sent events with stream"}}},
                    {"400", {{"description", "a field is wrong; error.param names it"}}},
                    {"503", {{"description", "try again after Retry-After seconds"}}}}}}}};
  };
  json paths = json::object();
  for (const Endpoint& e : all_endpoints()) {
    if (e.method != "GET") continue;
    std::string path(e.path);
    json get = {{"responses", {{"200", {{"description", "the answer"}}}}}};
    if (path.ends_with('*')) {
      path.replace(path.size() - 1, 1, "{name}");
      get["parameters"] = json::array(
          {{{"name", "name"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
    }
    paths[path]["get"] = get;
  }
  paths["/v1/chat/completions"] = operation("Messages through the chat template", "ChatCompletionRequest");
  paths["/v1/completions"] = operation("Text that continues a prompt", "CompletionRequest");
  const json root = {{"openapi", "3.1.0"},
                     {"info", {{"title", "Kvasir"}, {"version", version}}},
                     {"paths", paths},
                     {"components",
                      {{"schemas",
                        {{"ChatCompletionRequest", request_of(ApiKind::kChat)},
                         {"CompletionRequest", request_of(ApiKind::kCompletion)}}}}}};
  return dump_json(root);
}

void handle_openapi(Exchange& exchange) {
  static const std::string text = openapi_text(exchange.server().options.version);  // one in a process
  exchange.respond(json_response(text));
}

}  // namespace kvasir
