#include "server/handlers/json_parts.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

namespace kvasir {

using nlohmann::json;

const json& member(const json& object, const char* name) {
  static const json none;
  if (!object.is_object()) return none;
  const auto it = object.find(name);
  return it == object.end() ? none : *it;
}

std::optional<std::string> text_member(const json& object, const char* name) {
  const json& value = member(object, name);
  return value.is_string() ? std::optional(value.get<std::string>()) : std::nullopt;
}

void add_line(std::string& text, std::string_view piece) {
  if (!text.empty()) text += '\n';
  text += piece;
}

std::vector<ApiToolCall> joined_calls(const std::vector<ToolCallDelta>& pieces) {
  std::vector<ApiToolCall> calls;
  std::vector<uint32_t> indices;
  for (const ToolCallDelta& piece : pieces) {
    auto at = static_cast<size_t>(std::find(indices.begin(), indices.end(), piece.index) - indices.begin());
    if (at == indices.size()) {
      indices.push_back(piece.index);
      calls.emplace_back();
    }
    calls[at].id += piece.id;
    calls[at].name += piece.name;
    calls[at].arguments += piece.arguments;
  }
  return calls;
}

void name_results(std::vector<ApiMessage>& messages) {
  std::map<std::string, std::string> names;
  for (ApiMessage& m : messages) {
    for (const ApiToolCall& call : m.tool_calls) names[call.id] = call.name;
    const auto called = names.find(m.tool_call_id);
    if (m.role == "tool" && m.name.empty() && called != names.end()) m.name = called->second;
  }
}

const ApiTool* find_tool(const ApiRequest& request, std::string_view name) {
  const auto it = std::find_if(request.tools.begin(), request.tools.end(),
                               [&](const ApiTool& tool) { return tool.name == name; });
  return it == request.tools.end() ? nullptr : &*it;
}

}  // namespace kvasir
