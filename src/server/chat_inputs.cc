// Members that a message does not have are undefined for the template.
#include "server/chat_inputs.h"

#include <string>
#include <utility>

#include "server/json_fields.h"
#include "server/json_values.h"

namespace kvasir {
namespace {

TemplateValue arguments_of(const ApiToolCall& call, size_t& budget) {
  if (call.arguments.empty()) return TemplateValue::Dict();
  std::optional<TemplateValue> value = template_value_of(call.arguments, budget);
  if (value && std::holds_alternative<TemplateValue::Dict>(value->data)) return *std::move(value);
  return call.arguments;
}

ChatMessage message_of(const ApiMessage& m, size_t& budget) {
  ChatMessage out{m.role, m.content};
  if (!m.reasoning.empty()) {
    out.more.emplace_back("reasoning_content", m.reasoning);
    out.more.emplace_back("reasoning", m.reasoning);
    // For gpt-oss, whose template refuses it beside the content of a message with calls.
    if (m.content.empty() || m.tool_calls.empty()) out.more.emplace_back("thinking", m.reasoning);
  }
  if (!m.tool_calls.empty()) {
    TemplateValue::List calls;
    for (const ApiToolCall& call : m.tool_calls) {
      TemplateValue::Dict function = {{"name", call.name}, {"arguments", arguments_of(call, budget)}};
      calls.push_back(
          TemplateValue::Dict{{"id", call.id}, {"type", "function"}, {"function", std::move(function)}});
    }
    out.more.emplace_back("tool_calls", std::move(calls));
  }
  if (!m.tool_call_id.empty()) out.more.emplace_back("tool_call_id", m.tool_call_id);
  if (!m.name.empty()) out.more.emplace_back("name", m.name);
  return out;
}

TemplateValue tool_of(const ApiTool& tool, size_t& budget) {
  TemplateValue::Dict function = {{"name", tool.name}};
  if (!tool.description.empty()) function.emplace_back("description", tool.description);
  std::optional<TemplateValue> parameters = template_value_of(tool.parameters, budget);
  // Templates go through the properties without a question.
  if (!parameters) {
    parameters = TemplateValue::Dict{{"type", "object"}, {"properties", TemplateValue::Dict()}};
  }
  function.emplace_back("parameters", *std::move(parameters));
  return TemplateValue::Dict{{"type", "function"}, {"function", std::move(function)}};
}

}  // namespace

ChatInputs chat_inputs(const ApiRequest& request) {
  ChatInputs out;
  size_t budget = kMaxJsonValues;
  out.messages.reserve(request.messages.size());
  for (const ApiMessage& m : request.messages) out.messages.push_back(message_of(m, budget));
  if (request.tool_choice != ToolChoice::kNone) {
    size_t tool_budget = kMaxJsonValues;
    for (const ApiTool& tool : request.tools) out.tools.push_back(tool_of(tool, tool_budget));
  }
  out.variables = request.template_variables;
  return out;
}

}  // namespace kvasir
