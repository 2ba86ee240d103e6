// Formats and choice of tools, put together.
#include "server/outputs/output_plan.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

#include "server/outputs/tool_grammar.h"

namespace kvasir {
namespace {

bool demands_call(const ApiRequest& request) {
  return offers_tools(request) &&
         (request.tool_choice == ToolChoice::kRequired || request.tool_choice == ToolChoice::kNamed);
}

}  // namespace

bool offers_tools(const ApiRequest& request) {
  return !request.tools.empty() && request.tool_choice != ToolChoice::kNone;
}

std::optional<ApiError> check_outputs(const OutputFormats& formats, const ApiRequest& request) {
  if (!offers_tools(request)) return std::nullopt;
  if (formats.tools_variable.empty()) {
    return bad_field("tools",
                     "the chat template of this model has no tools; leave 'tools' out, or serve with a "
                     "--chat-template that has them");
  }
  if (formats.tools == ToolFormat::kNone) {
    return bad_field("tools",
                     "how this model writes calls of tools is not known; serve with --tool-call-parser, or "
                     "send 'tool_choice': \"none\"");
  }
  if (demands_call(request) && request.grammar.kind != OutputGrammar::Kind::kNone) {
    return bad_field("tool_choice",
                     "'tool_choice' demands a call, and another field constrains the output; leave one of "
                     "them out");
  }
  return std::nullopt;
}

OutputPlan plan_output(const OutputFormats& formats, std::string_view prompt, ApiRequest& request) {
  OutputPlan plan;
  plan.reasoning = formats.reasoning;
  plan.thinking = thinking_behind(prompt, formats.reasoning);
  // The client's grammar holds from the first token on, so that there is no room for reasoning. Harmony
  // frames all that it says, and reasoning, too.
  const bool harmony = formats.reasoning == ReasoningFormat::kOpenAi || formats.tools == ToolFormat::kOpenAi;
  if (request.grammar.kind != OutputGrammar::Kind::kNone && !harmony) plan.thinking = Thinking::kNo;
  if (!offers_tools(request)) return plan;
  plan.tools = formats.tools;
  if (demands_call(request)) {
    const bool named = request.tool_choice == ToolChoice::kNamed;
    std::vector<ApiTool> allowed;
    std::copy_if(request.tools.begin(), request.tools.end(), std::back_inserter(allowed),
                 [&](const ApiTool& tool) { return !named || tool.name == request.named_tool; });
    request.grammar = tool_grammar(plan, allowed, request.parallel_tool_calls && !named);
    request.grammar_field = "tools";
  } else if (request.grammar.kind == OutputGrammar::Kind::kNone) {
    request.grammar = strict_grammar(plan, request.tools);
    request.grammar_field = "tools";
  }
  return plan;
}

}  // namespace kvasir
