// What a request for a chat asks of the model's outputs, and whether the model can do it.
#pragma once

#include <optional>
#include <string_view>

#include "server/api_error.h"
#include "server/api_request.h"
#include "server/outputs/output_format.h"

namespace kvasir {

// The request has tools, and the model is told of them.
bool offers_tools(const ApiRequest& request);

// 400: tools, and a model that takes none or whose form of calls is not known; a call that is demanded beside
// another grammar.
std::optional<ApiError> check_outputs(const OutputFormats& formats, const ApiRequest& request);

// `prompt`: the rendered one. Sets the request's grammar where a call is demanded, or a tool is strict.
// REQUIRES: check_outputs() has no objection.
OutputPlan plan_output(const OutputFormats& formats, std::string_view prompt, ApiRequest& request);

}  // namespace kvasir
