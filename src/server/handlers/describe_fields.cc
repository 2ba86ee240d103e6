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
  using Where = RequestField::Where;
  if (f.where == Where::kAll) return "all";
  std::string out = (f.where | Where::kAnswers) == f.where ? "generating" : "";
  for (const ApiKindInfo& info : api_kinds()) {
    const bool said = !out.empty() && out.starts_with("generating") &&
                      (Where::kAnswers | where_of(info.kind)) == Where::kAnswers;
    if (f.is_of(info.kind) && !said) out += fmt::format("{}{}", out.empty() ? "" : ", ", info.name);
  }
  return out;
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

std::span<const ApiKindInfo> api_kinds() {
  static constexpr ApiKindInfo kKinds[] = {
      {ApiKind::kChat, "chat", "/v1/chat/completions", "ChatCompletionRequest",
       "Messages through the chat template"},
      {ApiKind::kCompletion, "completions", "/v1/completions", "CompletionRequest",
       "Text that continues a prompt"},
      {ApiKind::kMessages, "messages", "/v1/messages", "MessagesRequest",
       "Messages through the chat template, as Anthropic's API has them"},
      {ApiKind::kCountTokens, "count_tokens", "/v1/messages/count_tokens", "CountTokensRequest",
       "The tokens of the prompt that such messages make"},
      {ApiKind::kResponses, "responses", "/v1/responses", "ResponsesRequest",
       "Items through the chat template, as OpenAI's newer API has them"},
      {ApiKind::kTokenize, "tokenize", "/tokenize", "TokenizeRequest", "The tokens of a text or of messages"},
      {ApiKind::kDetokenize, "detokenize", "/detokenize", "DetokenizeRequest", "The text of tokens"},
  };
  return kKinds;
}

std::string type_text(const RequestField& f) {
  const char* type = "";
  if (takes<RequestField::SetBoolean>(f)) type = "boolean";
  if (takes<RequestField::SetInteger>(f)) type = "integer";
  if (takes<RequestField::SetNumber>(f)) type = "number";
  if (takes<RequestField::SetString>(f)) type = "string";
  if (!takes<RequestField::SetAny>(f)) return type + range_text(f);
  const json shape = json::parse(f.shape);
  const auto type_of = [](const json& one) {
    return one["type"] == "array" ? std::string("list") : one["type"].get<std::string>();
  };
  if (!shape.contains("anyOf")) return type_of(shape);
  std::string types;
  for (const json& one : shape["anyOf"]) types += (types.empty() ? "" : " or ") + type_of(one);
  return types;
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
  const auto operation = [](const ApiKindInfo& info) {
    const json body = {{"schema", {{"$ref", "#/components/schemas/" + std::string(info.schema)}}}};
    return json{{"summary", info.summary},
                {"requestBody", {{"required", true}, {"content", {{"application/json", body}}}}},
                {"responses",
                 {{"200", {{"description", "the answer, or server-sent events with stream"}}},
                  {"400", {{"description", "a field is wrong; error.param names it"}}},
                  {"503", {{"description", "try again after Retry-After seconds"}}}}}};
  };
  json paths = json::object();
  for (const Endpoint& e : all_endpoints()) {
    if (e.method == "POST") continue;  // these have fields
    std::string path(e.path);
    json plain = {{"responses", {{"200", {{"description", "the answer"}}}}}};
    if (path.ends_with('*')) {
      path.replace(path.size() - 1, 1, "{name}");
      plain["parameters"] = json::array(
          {{{"name", "name"}, {"in", "path"}, {"required", true}, {"schema", {{"type", "string"}}}}});
    }
    paths[path][e.method == "GET" ? "get" : "delete"] = plain;
  }
  json schemas = json::object();
  for (const ApiKindInfo& info : api_kinds()) {
    paths[std::string(info.path)]["post"] = operation(info);
    schemas[std::string(info.schema)] = request_of(info.kind);
  }
  const json root = {{"openapi", "3.1.0"},
                     {"info", {{"title", "Kvasir"}, {"version", version}}},
                     {"paths", paths},
                     {"components", {{"schemas", schemas}}}};
  return dump_json(root);
}

void handle_openapi(Exchange& exchange) {
  static const std::string text = openapi_text(exchange.server().options.version);  // one in a process
  exchange.respond(json_response(text));
}

}  // namespace kvasir
