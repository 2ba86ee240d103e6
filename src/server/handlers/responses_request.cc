// Reads what a request of /v1/responses has beside its items, and puts the conversation together.
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/handlers/grammar_fields.h"
#include "server/handlers/json_parts.h"
#include "server/handlers/request_fields.h"
#include "server/handlers/responses.h"
#include "server/handlers/tool_fields.h"

namespace kvasir {
namespace {

using nlohmann::json;

// The shortest decimal that is this float.
json number_of(float value) {
  return json::parse(fmt::format("{}", value));
}

json value_or(const json& object, const char* name, json otherwise) {
  const json& value = member(object, name);
  if (value.is_null()) return otherwise;
  return value;
}

// A string of at most 512 bytes; null for anything else.
json short_text(const json& value) {
  constexpr size_t kMostBytes = 512;
  const bool fits = value.is_string() && value.get_ref<const std::string&>().size() <= kMostBytes;
  return fits ? value : json();
}

// What set_text() has read.
json format_echo(const json& format) {
  const std::string type = text_member(format, "type").value_or("text");
  json out = {{"type", type}};
  if (type != "json_schema") return out;
  out["schema"] = member(format, "schema");
  if (json name = short_text(member(format, "name")); !name.is_null()) out["name"] = std::move(name);
  if (const json& strict = member(format, "strict"); strict.is_boolean()) out["strict"] = strict;
  return out;
}

// What set_responses_tool_choice() has read.
json choice_echo(const ApiRequest& request) {
  switch (request.tool_choice) {
    case ToolChoice::kNone:
      return "none";
    case ToolChoice::kAuto:
      return "auto";
    case ToolChoice::kRequired:
      return "required";
    case ToolChoice::kNamed:
      break;
  }
  return {{"type", "function"}, {"name", request.named_tool}};
}

// The members of a response that say what was asked for: of the client's only those that were checked, so
// that an answer repeats nothing of any shape and size.
json echo_of(const json& object, const ApiRequest& request, bool keep) {
  const json& reasoning = member(object, "reasoning");
  return {{"background", false},
          {"instructions", member(object, "instructions")},
          {"max_output_tokens", member(object, "max_output_tokens")},
          {"metadata", value_or(object, "metadata", json::object())},
          {"parallel_tool_calls", request.parallel_tool_calls},
          {"previous_response_id", member(object, "previous_response_id")},
          {"reasoning",
           {{"effort", member(reasoning, "effort")}, {"summary", short_text(member(reasoning, "summary"))}}},
          {"service_tier", "default"},
          {"store", keep},
          {"temperature", number_of(request.sampling.temperature)},
          {"text", {{"format", format_echo(member(member(object, "text"), "format"))}}},
          {"tool_choice", choice_echo(request)},
          {"tools", value_or(object, "tools", json::array())},
          {"top_p", number_of(request.sampling.top_p)},
          {"truncation", "disabled"},
          {"user", short_text(member(object, "user"))}};
}

}  // namespace

std::variant<ApiRequest, ApiError> parse_responses_request(std::string_view body, const ApiRequest& defaults,
                                                           ResponseContext& context) {
  auto parsed = parse_json_object(body);
  if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
  const json& object = *std::get<JsonTree>(parsed);
  ApiRequest request = defaults;
  request.max_tokens_field = "max_output_tokens";
  request.messages_field = "input";
  JsonFields fields(object, body);
  read_request_fields(fields, object, ApiKind::kResponses, request);
  if (fields.error()) return *fields.error();
  keep_schema_order(body, request);
  // Instructions hold for one answer: they are not part of the conversation that is kept.
  const ptrdiff_t instructions = fields.find("instructions") == nullptr ? 0 : 1;
  if (const auto id = fields.string("previous_response_id")) {
    const auto before = context.store->find(*id, context.owner);
    if (!before) {
      ApiError e =
          bad_field("previous_response_id",
                    fmt::format("Previous response with id '{}' not found: it was not stored, or has "
                                "made room for others",
                                clipped(*id)));
      e.code = "previous_response_not_found";
      return e;
    }
    request.messages.insert(request.messages.begin() + instructions, before->messages.begin(),
                            before->messages.end());
  }
  name_results(request.messages);
  context.keep = fields.boolean("store", true) && context.store->on();
  context.echo = echo_of(object, request, context.keep);
  if (context.keep) context.messages.assign(request.messages.begin() + instructions, request.messages.end());
  return request;
}

void set_instructions(ApiRequest& r, std::string instructions) {
  r.messages.push_back({"system", std::move(instructions)});
}

void set_responses_tools(ApiRequest& r, const json& tools, JsonFields& errors) {
  set_flat_tools(r, tools, errors, "function", "", "parameters");
}

void set_responses_tool_choice(ApiRequest& r, const json& choice, JsonFields& errors) {
  if (choice == "none") {
    r.tool_choice = ToolChoice::kNone;
  } else if (choice == "auto") {
    r.tool_choice = ToolChoice::kAuto;
  } else if (choice == "required") {
    r.tool_choice = ToolChoice::kRequired;
  } else if (text_member(choice, "type") == "function") {
    r.tool_choice = ToolChoice::kNamed;
    r.named_tool = text_member(choice, "name").value_or("");
    if (find_tool(r, r.named_tool) == nullptr) {
      return errors.fail("tool_choice.name", "'tool_choice.name' must be the name of one of 'tools'");
    }
  } else {
    return errors.fail("tool_choice",
                       "'tool_choice' must be none, auto, required, or {\"type\":\"function\",\"name\":...}");
  }
  if (r.tools.empty() && r.tool_choice == ToolChoice::kRequired) {
    errors.fail("tool_choice", "'tool_choice' asks for a call, but there are no 'tools'");
  }
}

void set_text(ApiRequest& r, const json& text, JsonFields& errors) {
  if (!text.is_object()) return errors.fail("text", "'text' must be an object");
  const json& format = member(text, "format");
  if (format.is_null()) return;
  const std::string type = text_member(format, "type").value_or("");
  if (type == "json_schema") {
    const json& schema = member(format, "schema");
    if (!schema.is_object()) {
      return errors.fail("text.format.schema", "'text.format.schema' must be an object");
    }
    r.grammar = {OutputGrammar::Kind::kJsonSchema, dump_json(schema)};
    r.grammar_field = "text.format.schema";
  } else if (type == "json_object") {
    r.grammar = {OutputGrammar::Kind::kJson};
    r.grammar_field = "text.format";
  } else if (type != "text") {
    errors.fail("text.format",
                "'text.format' must be an object whose 'type' is text, json_object or "
                "json_schema");
  }
}

void set_reasoning(ApiRequest& r, const json& reasoning, JsonFields& errors) {
  if (!reasoning.is_object()) return errors.fail("reasoning", "'reasoning' must be an object");
  const json& effort = member(reasoning, "effort");
  if (effort.is_null()) return;
  constexpr std::string_view kEfforts[] = {"none", "minimal", "low", "medium", "high", "xhigh"};
  if (!effort.is_string() || std::find(std::begin(kEfforts), std::end(kEfforts),
                                       effort.get_ref<const std::string&>()) == std::end(kEfforts)) {
    return errors.fail("reasoning.effort",
                       "'reasoning.effort' must be none, minimal, low, medium, high or xhigh");
  }
  r.template_variables.emplace_back("reasoning_effort", effort.get<std::string>());
  r.template_variables.emplace_back("enable_thinking", effort != "none");
}

void check_metadata(ApiRequest&, const json& metadata, JsonFields& errors) {
  constexpr size_t kMost = 16, kMostKeyBytes = 64, kMostValueBytes = 512;
  bool fits = metadata.is_object() && metadata.size() <= kMost;
  if (fits) {
    for (const auto& [key, value] : metadata.items()) {
      fits = fits && key.size() <= kMostKeyBytes && value.is_string() &&
             value.get_ref<const std::string&>().size() <= kMostValueBytes;
    }
  }
  if (fits) return;
  errors.fail("metadata", fmt::format("'metadata' must be an object of at most {} members, from names of at "
                                      "most {} bytes to texts of at most {} bytes",
                                      kMost, kMostKeyBytes, kMostValueBytes));
}

}  // namespace kvasir
