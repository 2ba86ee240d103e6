// What parsing does with the table of fields.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/handlers/grammar_fields.h"
#include "server/handlers/request_fields.h"
#include "server/handlers/tool_fields.h"

namespace kvasir {
namespace {

using nlohmann::json;
using Use = RequestField::Use;

ApiError refusal(const RequestField& field, const json& value) {
  constexpr size_t kShown = 40;  // bytes of the value
  const std::string shown = dump_json(value);
  ApiError e =
      bad_field(std::string(field.name),
                fmt::format("'{}' with the value {}{} is not supported: {}; leave it out", field.name,
                            shown.substr(0, kShown), shown.size() > kShown ? "..." : "", field.text));
  e.code = "unsupported_parameter";
  return e;
}

// Checks type and range, and sets.
void read_field(const RequestField& f, JsonFields& fields, ApiRequest& request) {
  const char* name = f.name.data();
  const json* value = fields.find(name);
  if (value == nullptr && f.otherwise != "required") return;
  const auto* set_any = std::get_if<RequestField::SetAny>(&f.set);
  if (set_any != nullptr) return (*set_any)(request, value ? *value : json(), fields);
  if (value == nullptr) {
    return fields.fail(name, fmt::format("'{}' is required: {}", name, type_text(f)));
  }
  if (const auto* set_boolean = std::get_if<RequestField::SetBoolean>(&f.set)) {
    const bool v = fields.boolean(name, false);
    if (!fields.error()) (*set_boolean)(request, v);
  } else if (const auto* set_integer = std::get_if<RequestField::SetInteger>(&f.set)) {
    const auto v =
        fields.integer(name, static_cast<int64_t>(f.range.low), static_cast<int64_t>(f.range.high));
    if (v) (*set_integer)(request, *v);
  } else if (const auto* set_number = std::get_if<RequestField::SetNumber>(&f.set)) {
    const auto v = fields.number(name, f.range.low, f.range.high, f.range.open_low);
    if (v) (*set_number)(request, *v);
  } else if (const auto* set_string = std::get_if<RequestField::SetString>(&f.set)) {
    auto v = fields.string(name);
    if (v && static_cast<double>(v->size()) > f.range.high) {
      return fields.fail(name, fmt::format("'{}' must be at most {} bytes long", name, f.range.high));
    }
    if (v) (*set_string)(request, *std::move(v));
  }
}

// Fields that exclude or need each other.
void check_together(JsonFields& fields, ApiRequest& r) {
  if (fields.find("stream_options") != nullptr && !r.stream) {
    fields.fail("stream_options", "'stream_options' is only allowed when 'stream' is true");
  }
  const json* top = fields.find("top_logprobs");
  if (!r.messages.empty() && top != nullptr && whole_number(*top).value_or(0) > 0 &&
      r.sampling.logprobs < 0) {
    fields.fail("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true");
  }
  if (r.prompt_logprobs >= 0 && r.stream) {
    fields.fail("prompt_logprobs", "'prompt_logprobs' is not allowed when 'stream' is true");
  }
  if (r.max_tokens == 0U && !r.echo) {
    fields.fail("max_tokens", "'max_tokens' must be at least 1 unless 'echo' is true");
  }
  if (auto e = check_tools(r)) fields.fail(*std::move(e));
  if (r.best_of > 0 && r.best_of < r.choices) {
    fields.fail("best_of", "'best_of' must be at least 'n'");
  }
  if (r.best_of > r.choices && r.stream) {
    fields.fail("best_of", "'best_of' above 'n' is not allowed when 'stream' is true");
  }
  r.sampling.prompt_logprobs = std::max(r.prompt_logprobs, r.echo ? r.sampling.logprobs : -1);
}

// Names of fields that the endpoint does not know, some of them: a client may have mistyped them.
std::vector<std::string> unknown_names(const json& object, ApiKind kind) {
  constexpr size_t kMost = 8, kLongestName = 64;
  std::vector<std::string> unknown;
  for (auto it = object.begin(); it != object.end() && unknown.size() < kMost; ++it) {
    const auto has_name = [&](const RequestField& f) { return f.is_of(kind) && f.name == it.key(); };
    const std::span<const RequestField> all = request_fields();
    if (std::none_of(all.begin(), all.end(), has_name)) unknown.push_back(it.key().substr(0, kLongestName));
  }
  return unknown;
}

}  // namespace

void read_request_fields(JsonFields& fields, const json& object, ApiKind kind, ApiRequest& request) {
  for (const RequestField& f : request_fields()) {
    if (f.use != Use::kRefused || !f.is_of(kind)) continue;
    const json* value = fields.find(f.name.data());
    if (value != nullptr && !f.neutral(*value)) return fields.fail(refusal(f, *value));
  }
  for (const RequestField& f : request_fields()) {
    if (f.use == Use::kRead && f.is_of(kind) && !fields.error()) read_field(f, fields, request);
  }
  if (!fields.error()) check_together(fields, request);
  if (!fields.error()) request.unknown_fields = unknown_names(object, kind);
}

std::optional<ApiError> read_default_fields(std::string_view object, ApiRequest& defaults) {
  auto parsed = parse_json_object(object);
  if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
  const json& values = *std::get<JsonTree>(parsed);
  const std::span<const RequestField> all = request_fields();
  for (const auto& [name, value] : values.items()) {
    const auto f = std::find_if(all.begin(), all.end(), [&, &key = name](const RequestField& field) {
      return field.of_model && field.name == key;
    });
    if (f == all.end()) {
      std::string known;
      for (const RequestField& field : all) {
        if (field.of_model) known += fmt::format("{}{}", known.empty() ? "" : ", ", field.name);
      }
      return bad_field(name, fmt::format("'{}' is not known: there are {}", name.substr(0, 64), known));
    }
    JsonFields fields(values);
    read_field(*f, fields, defaults);
    if (fields.error()) return *fields.error();
  }
  return std::nullopt;
}

std::variant<ApiRequest, ApiError> read_request(std::string_view body, ApiKind kind, ApiRequest defaults) {
  auto parsed = parse_json_object(body);
  if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
  const json& object = *std::get<JsonTree>(parsed);
  ApiRequest request = std::move(defaults);
  JsonFields fields(object, body);
  read_request_fields(fields, object, kind, request);
  if (fields.error()) return *fields.error();
  keep_schema_order(body, request);
  return request;
}

}  // namespace kvasir
