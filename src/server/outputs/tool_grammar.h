// The grammar that makes a model call a tool.
#pragma once

#include <span>

#include "server/api_request.h"
#include "server/outputs/output_format.h"

namespace kvasir {

// Calls in the model's form and nothing else, behind reasoning: of any of the tools, one or more if
// `parallel`, with arguments as their schemas say. The result is a structural tag as of XGrammar (kind
// kStructuralTag): the documentation of its version 0.1.28 has the types. Kind kNone for the format kNone.
// REQUIRES: there is a tool; the parameters of tools are JSON or empty.
OutputGrammar tool_grammar(const OutputPlan& plan, std::span<const ApiTool> tools, bool parallel);

// For free text in which calls of strict tools, once begun, are as their schemas say. Kind kNone where no
// tool is strict, or where the form has no mark by which a call is seen to begin.
OutputGrammar strict_grammar(const OutputPlan& plan, std::span<const ApiTool> tools);

}  // namespace kvasir
