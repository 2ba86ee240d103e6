// Parts that several schemas read and write. Internal to src/server/handlers.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_request.h"
#include "server/choice_stream.h"

namespace kvasir {

// A member of an object that is a string; nothing if it is not, or if `object` is no object.
std::optional<std::string> text_member(const nlohmann::json& object, const char* name);
// A member of an object; null if it has none, or is none.
const nlohmann::json& member(const nlohmann::json& object, const char* name);

// Adds a piece to a text, in a line of its own.
void add_line(std::string& text, std::string_view piece);

// The calls that the pieces make, in the order of their first pieces.
std::vector<ApiToolCall> joined_calls(const std::vector<ToolCallDelta>& pieces);

// Gives results of tools the names of the tools, by the ids of their calls.
void name_results(std::vector<ApiMessage>& messages);

// The tool of this name; null: there is none.
const ApiTool* find_tool(const ApiRequest& request, std::string_view name);

}  // namespace kvasir
