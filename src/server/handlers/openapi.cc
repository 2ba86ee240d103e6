// The endpoints, their fields and their answers for programs: OpenAPI 3.1. It says what holds, so that a
// client made of it needs nothing else: a field that may be left out may be null.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <span>

#include "server/handlers/request_fields.h"
#include "server/server_context.h"

namespace kvasir {
namespace {

using nlohmann::json;
using Use = RequestField::Use;

template <typename T>
bool takes(const RequestField& f) {
  return std::holds_alternative<T>(f.set);
}

// As the reader of fields takes it: null is as good as nothing.
void allow_null(json& schema) {
  if (schema.contains("anyOf")) {
    schema["anyOf"].push_back({{"type", "null"}});
  } else if (schema.contains("type")) {
    schema["type"] = json::array({schema["type"], "null"});
  }
  if (schema.contains("enum")) schema["enum"].push_back(nullptr);
}

json schema_of(const RequestField& f) {
  json schema = json::object();
  if (takes<RequestField::SetBoolean>(f)) schema["type"] = "boolean";
  if (takes<RequestField::SetString>(f)) {
    schema["type"] = "string";
    if (f.range.high < INT32_MAX) schema["maxLength"] = static_cast<int64_t>(f.range.high);
  }
  if (takes<RequestField::SetAny>(f)) schema = json::parse(f.shape);
  const bool whole = takes<RequestField::SetInteger>(f);
  if (whole || takes<RequestField::SetNumber>(f)) {
    schema["type"] = whole ? "integer" : "number";
    const auto as_json = [&](double v) { return whole ? json(static_cast<int64_t>(v)) : json(v); };
    schema[f.range.open_low ? "exclusiveMinimum" : "minimum"] = as_json(f.range.low);
    schema["maximum"] = as_json(f.range.high);
  }
  if (f.otherwise != "required") allow_null(schema);
  schema["description"] = fmt::format("{} (default: {})", f.text, f.otherwise);
  return schema;
}

json request_of(ApiKind kind) {
  json properties = json::object(), required = json::array();
  for (const RequestField& f : request_fields()) {
    if (f.use != Use::kRead || !f.is_of(kind)) continue;
    properties[std::string(f.name)] = schema_of(f);
    if (f.otherwise == "required") required.push_back(f.name);
  }
  return {{"type", "object"}, {"properties", properties}, {"required", required}};
}

// ---------------------------------------------------------------- answers

// An object that has these members, of these schemas; it may have others.
json object_of(const json& members) {
  json required = json::array();
  for (const auto& [name, schema] : members.items()) required.push_back(name);
  return {{"type", "object"}, {"properties", members}, {"required", required}};
}
json of_type(const char* type) {
  return {{"type", type}};
}
json text_or_null() {
  return {{"type", {"string", "null"}}};
}
json list_of(const json& items) {
  return {{"type", "array"}, {"items", items}};
}
json one_of(const json& values) {
  return {{"enum", values}};
}
json usage_of(std::initializer_list<const char*> counts) {
  json members = json::object();
  for (const char* name : counts) members[name] = {{"type", "integer"}, {"minimum", 0}};
  return object_of(members);
}

json openai_answer(const char* object, const char* content, const json& of_content) {
  const json choice = object_of({{"index", of_type("integer")},
                                 {content, of_content},
                                 {"logprobs", {{"type", {"object", "null"}}}},
                                 {"finish_reason", one_of({"stop", "length", "tool_calls"})}});
  return object_of({{"id", of_type("string")},
                    {"object", one_of({object})},
                    {"created", of_type("integer")},
                    {"model", of_type("string")},
                    {"choices", list_of(choice)},
                    {"usage", usage_of({"prompt_tokens", "completion_tokens", "total_tokens"})}});
}

json answer_of(ApiKind kind) {
  switch (kind) {
    case ApiKind::kChat:
      return openai_answer("chat.completion", "message",
                           object_of({{"role", one_of({"assistant"})}, {"content", text_or_null()}}));
    case ApiKind::kCompletion:
      return openai_answer("text_completion", "text", of_type("string"));
    case ApiKind::kMessages:
      return object_of({{"id", of_type("string")},
                        {"type", one_of({"message"})},
                        {"role", one_of({"assistant"})},
                        {"model", of_type("string")},
                        {"content", list_of(object_of({{"type", of_type("string")}}))},
                        {"stop_reason", of_type("string")},
                        {"usage", usage_of({"input_tokens", "output_tokens"})}});
    case ApiKind::kCountTokens:
      return usage_of({"input_tokens"});
    case ApiKind::kResponses:
      return object_of({{"id", of_type("string")},
                        {"object", one_of({"response"})},
                        {"status", one_of({"completed", "incomplete"})},
                        {"model", of_type("string")},
                        {"output", list_of(object_of({{"type", of_type("string")}}))},
                        {"usage", usage_of({"input_tokens", "output_tokens", "total_tokens"})}});
    case ApiKind::kTokenize:
      return object_of({{"count", of_type("integer")},
                        {"max_model_len", of_type("integer")},
                        {"tokens", list_of(of_type("integer"))},
                        {"token_strs", {{"type", {"array", "null"}}, {"items", of_type("string")}}}});
    case ApiKind::kDetokenize:
      return object_of({{"prompt", of_type("string")}});
    case ApiKind::kEmbeddings:
      return object_of({{"object", one_of({"list"})},
                        {"data", list_of(object_of({{"object", one_of({"embedding"})},
                                                    {"index", of_type("integer")},
                                                    {"embedding", {{"type", {"array", "string"}}}}}))},
                        {"model", of_type("string")},
                        {"usage", usage_of({"prompt_tokens", "total_tokens"})}});
  }
  return {};
}

json content_of(const char* type, const json& schema) {
  return {{"content", {{type, {{"schema", schema}}}}}};
}

// What any endpoint may answer beside its answer.
constexpr std::pair<const char*, const char*> kErrors[] = {
    {"400", "what was sent is wrong; error.param names the field"},
    {"401", "a key is missing or wrong"},
    {"403", "the key may not claim this, or the page or name is foreign (browsers)"},
    {"404", "there is no such model, answer or path"},
    {"408", "the request did not arrive in time"},
    {"413", "the body is too large"},
    {"414", "the target is too long"},
    {"429", "a limit of the key, or too many connections from this address"},
    {"431", "the head is too large"},
    {"500", "the server failed; its log says why"},
    {"503", "try again after Retry-After seconds"}};

json responses_of(json answer, const char* error_schema) {
  json out = {{"200", std::move(answer)}};
  for (const auto& [status, words] : kErrors) {
    json error =
        content_of("application/json", {{"$ref", std::string("#/components/schemas/") + error_schema}});
    error["description"] = words;
    out[status] = std::move(error);
  }
  return out;
}

bool is_anthropic(ApiKind kind) {
  return kind == ApiKind::kMessages || kind == ApiKind::kCountTokens;
}

json operation_of(const ApiKindInfo& info) {
  json answer = content_of("application/json", answer_of(info.kind));
  answer["description"] = "the answer, or server-sent events with stream";
  const bool streams = info.kind == ApiKind::kChat || info.kind == ApiKind::kCompletion ||
                       info.kind == ApiKind::kMessages || info.kind == ApiKind::kResponses;
  if (streams) answer["content"]["text/event-stream"] = json::object();
  json body = content_of("application/json", {{"$ref", "#/components/schemas/" + std::string(info.schema)}});
  body["required"] = true;
  return {
      {"summary", info.summary},
      {"requestBody", std::move(body)},
      {"responses", responses_of(std::move(answer), is_anthropic(info.kind) ? "AnthropicError" : "Error")}};
}

// An endpoint without a body. Its answer is JSON, but for pages and metrics.
json plain_operation(std::string_view path, bool has_parameter) {
  json answer = path.starts_with("/docs") ? json{{"content", {{"text/html", json::object()}}}}
                : path == "/metrics"      ? content_of("text/plain", of_type("string"))
                                          : content_of("application/json", of_type("object"));
  if (path == "/docs/*") {
    answer["content"] = {{"text/css", json::object()}, {"text/javascript", json::object()}};
  }
  answer["description"] = "the answer";
  json out = {{"responses", responses_of(std::move(answer), "Error")}};
  if (has_parameter) {
    out["parameters"] =
        json::array({{{"name", "name"}, {"in", "path"}, {"required", true}, {"schema", of_type("string")}}});
  }
  return out;
}

}  // namespace

std::string openapi_text(std::string_view version, std::span<const Endpoint> endpoints) {
  json paths = json::object();
  for (const Endpoint& e : endpoints) {
    if (e.page) continue;              // for people
    if (e.method == "POST") continue;  // these have fields
    std::string path(e.path);
    const bool has_parameter = path.ends_with('*');
    if (has_parameter) path.replace(path.size() - 1, 1, "{name}");
    paths[path][e.method == "GET" ? "get" : "delete"] = plain_operation(e.path, has_parameter);
  }
  const json words = {{"type", of_type("string")}, {"message", of_type("string")}};
  json openai_error = words;
  openai_error.update({{"param", text_or_null()}, {"code", text_or_null()}});
  json schemas = {{"Error", object_of({{"error", object_of(openai_error)}})},
                  {"AnthropicError", object_of({{"type", one_of({"error"})}, {"error", object_of(words)}})}};
  for (const ApiKindInfo& info : api_kinds()) {
    const bool there = std::any_of(endpoints.begin(), endpoints.end(), [&](const Endpoint& e) {
      return e.method == "POST" && e.path == info.path;
    });
    if (!there) continue;
    paths[std::string(info.path)]["post"] = operation_of(info);
    schemas[std::string(info.schema)] = request_of(info.kind);
  }
  json root = {{"openapi", "3.1.0"}, {"info", {{"title", "Kvasir"}, {"version", version}}}};
  root["paths"] = std::move(paths);
  root["components"] = {{"schemas", std::move(schemas)},
                        {"securitySchemes", {{"key", {{"type", "http"}, {"scheme", "bearer"}}}}}};
  return dump_json(root);
}

void handle_openapi(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  if (server.openapi.empty()) server.openapi = openapi_text(server.options.version, server.endpoints);
  exchange.respond(json_response(server.openapi));
}

}  // namespace kvasir
