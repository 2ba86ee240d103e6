// What requests say of tools. Internal to src/server and its tests.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <variant>

#include "model/templates/chat_template.h"
#include "server/api_error.h"
#include "server/api_request.h"
#include "server/json_fields.h"

namespace kvasir {

inline constexpr size_t kMaxTools = 128;
inline constexpr size_t kMaxToolsBytes = 1024 * 1024;    // of the JSON of all of them
inline constexpr size_t kMaxVariablesBytes = 64 * 1024;  // of chat_template_kwargs
inline constexpr size_t kMaxToolNameBytes = 128;

// A function: {"name", "description", "parameters", "strict"}, where `schema` is the name of the third. An
// error names its member behind `where`, such as tools[2].function.
std::variant<ApiTool, ApiError> read_function(const TemplateValue& function, const std::string& where,
                                              const char* schema = "parameters");

// The field `tools`, whose members keep their order; nothing: the error is set.
std::optional<TemplateValue::List> read_tool_list(const nlohmann::json& tools, JsonFields& errors);
// The same of schemas in which a tool is {"type", …} and what read_function() reads: those of /v1/responses
// and /v1/messages. `otherwise`: the type of a tool that has none.
void set_flat_tools(ApiRequest& request, const nlohmann::json& tools, JsonFields& errors,
                    const std::string& type, const std::string& otherwise, const char* schema);

// Setters of the table of fields.
void set_tools(ApiRequest& request, const nlohmann::json& tools, JsonFields& errors);
void set_tool_choice(ApiRequest& request, const nlohmann::json& choice, JsonFields& errors);
void set_template_variables(ApiRequest& request, const nlohmann::json& variables, JsonFields& errors);

// 400: two tools of one name, a tool that is chosen and not there.
std::optional<ApiError> check_tools(const ApiRequest& request);

}  // namespace kvasir
