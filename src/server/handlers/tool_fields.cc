// The fields `tools`, `tool_choice` and `chat_template_kwargs`.
#include "server/handlers/tool_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "server/json_values.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Names stand between quotation marks, angle brackets or other marks in outputs.
bool is_tool_name(std::string_view name) {
  return !name.empty() && name.size() <= kMaxToolNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
                  c == '-' || c == '.' || c == ':' || c == '/';
         });
}

bool is_none(const TemplateValue* value) {
  return value == nullptr || std::holds_alternative<std::monostate>(value->data);
}

template <typename T>
const T* get_if(const TemplateValue* value) {
  return value == nullptr ? nullptr : std::get_if<T>(&value->data);
}

}  // namespace

std::variant<ApiTool, ApiError> read_function(const TemplateValue& function, const std::string& where,
                                              const char* schema) {
  const auto wrong = [&](const char* member, const std::string& what) {
    return bad_field(where + "." + member, fmt::format("'{}.{}' {}", where, member, what));
  };
  ApiTool tool;
  const auto* name = get_if<std::string>(member_of(function, "name"));
  if (name == nullptr || !is_tool_name(*name)) {
    return wrong("name", fmt::format("must be a string of 1 to {} letters, digits, and any of _-.:/",
                                     kMaxToolNameBytes));
  }
  tool.name = *name;
  const TemplateValue* description = member_of(function, "description");
  if (const auto* text = get_if<std::string>(description)) {
    tool.description = *text;
  } else if (!is_none(description)) {
    return wrong("description", "must be a string");
  }
  const TemplateValue* parameters = member_of(function, schema);
  if (get_if<TemplateValue::Dict>(parameters) != nullptr) {
    tool.parameters = json_of(*parameters);
  } else if (!is_none(parameters)) {
    return wrong(schema, "must be an object: a JSON schema of the arguments");
  }
  const TemplateValue* strict = member_of(function, "strict");
  if (const auto* yes = get_if<bool>(strict)) {
    tool.strict = *yes;
  } else if (!is_none(strict)) {
    return wrong("strict", "must be true or false");
  }
  return tool;
}

std::optional<TemplateValue::List> read_tool_list(const json& tools, JsonFields& errors) {
  const auto no_list = [&] {
    errors.fail("tools", fmt::format("'tools' must be a list of at most {} tools", kMaxTools));
    return std::nullopt;
  };
  if (!tools.is_array() || tools.size() > kMaxTools) return no_list();
  const std::string text = errors.json_text("tools");
  size_t budget = kMaxJsonValues;
  auto list = text.size() <= kMaxToolsBytes ? template_value_of(text, budget) : std::nullopt;
  if (!list) {
    errors.fail("tools", fmt::format("'tools' must have at most {} bytes of JSON", kMaxToolsBytes));
    return std::nullopt;
  }
  // The text may be another member's than the value: one that is named again, with escapes.
  auto* items = std::get_if<TemplateValue::List>(&list->data);
  if (items == nullptr || items->size() > kMaxTools) return no_list();
  return std::move(*items);
}

void set_flat_tools(ApiRequest& request, const json& tools, JsonFields& errors, const std::string& type,
                    const std::string& otherwise, const char* schema) {
  const auto list = read_tool_list(tools, errors);
  if (!list) return;
  for (const TemplateValue& item : *list) {
    const std::string where = fmt::format("tools[{}]", request.tools.size());
    const TemplateValue* given = member_of(item, "type");
    const auto* text = get_if<std::string>(given);
    std::string is = is_none(given) ? otherwise : std::string();
    if (text != nullptr) is = *text;
    if (is != type) {
      return errors.fail(
          bad_field(where + ".type",
                    fmt::format("'{}.type' is '{}': this server runs no tools; only those of type '{}' "
                                "are supported",
                                where, is.substr(0, kMaxToolNameBytes), type)));
    }
    auto tool = read_function(item, where, schema);
    if (auto* e = std::get_if<ApiError>(&tool)) return errors.fail(std::move(*e));
    const std::string& name = std::get<ApiTool>(tool).name;
    for (const ApiTool& other : request.tools) {
      if (other.name != name) continue;
      const std::string field = where + ".name";
      return errors.fail(bad_field(field, fmt::format("'{}' is '{}', as that of another tool", field, name)));
    }
    request.tools.push_back(std::get<ApiTool>(std::move(tool)));
  }
}

void set_tools(ApiRequest& request, const json& tools, JsonFields& errors) {
  const auto list = read_tool_list(tools, errors);
  if (!list) return;
  for (const TemplateValue& item : *list) {
    const std::string where = fmt::format("tools[{}]", request.tools.size());
    const auto* type = get_if<std::string>(member_of(item, "type"));
    if (type == nullptr || *type != "function") {
      const std::string field = where + ".type";
      return errors.fail(field.c_str(),
                         fmt::format("'{}' must be 'function'; there are no other tools", field));
    }
    const TemplateValue* function = member_of(item, "function");
    if (get_if<TemplateValue::Dict>(function) == nullptr) {
      const std::string field = where + ".function";
      return errors.fail(field.c_str(), fmt::format("'{}' must be an object", field));
    }
    auto tool = read_function(*function, where + ".function");
    if (auto* e = std::get_if<ApiError>(&tool)) return errors.fail(std::move(*e));
    request.tools.push_back(std::get<ApiTool>(std::move(tool)));
  }
}

void set_tool_choice(ApiRequest& request, const json& choice, JsonFields& errors) {
  if (choice == "none") {
    request.tool_choice = ToolChoice::kNone;
  } else if (choice == "auto") {
    request.tool_choice = ToolChoice::kAuto;
  } else if (choice == "required") {
    request.tool_choice = ToolChoice::kRequired;
  } else if (choice.is_object() && choice.value("type", json()) == "function") {
    const json function = choice.value("function", json());
    const json name = function.is_object() ? function.value("name", json()) : json();
    if (!name.is_string()) {
      return errors.fail("tool_choice.function.name",
                         "'tool_choice.function.name' must be the name of a tool");
    }
    request.tool_choice = ToolChoice::kNamed;
    request.named_tool = name.get<std::string>();
  } else {
    errors.fail("tool_choice",
                "'tool_choice' must be \"none\", \"auto\", \"required\", or an object "
                "{\"type\":\"function\",\"function\":{\"name\":...}}");
  }
}

void set_template_variables(ApiRequest& request, const json& variables, JsonFields& errors) {
  constexpr const char* kField = "chat_template_kwargs";
  const std::string text = variables.is_object() ? errors.json_text(kField) : std::string();
  size_t budget = kMaxVariablesBytes;
  auto value = text.size() <= kMaxVariablesBytes ? template_value_of(text, budget) : std::nullopt;
  auto* dict = value ? std::get_if<TemplateValue::Dict>(&value->data) : nullptr;
  if (dict == nullptr) {
    return errors.fail(kField, fmt::format("'{}' must be an object of at most {} bytes of JSON", kField,
                                           kMaxVariablesBytes));
  }
  for (const char* taken : {"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"}) {
    if (member_of(*value, taken) == nullptr) continue;
    const std::string field = fmt::format("{}.{}", kField, taken);
    return errors.fail(field.c_str(), fmt::format("'{}' is set by the server; leave it out", field));
  }
  request.template_variables = std::move(*dict);
}

std::optional<ApiError> check_tools(const ApiRequest& request) {
  std::unordered_set<std::string_view> names;
  for (const ApiTool& tool : request.tools) {
    if (names.insert(tool.name).second) continue;
    const std::string field = fmt::format("tools[{}].function.name", names.size());
    return bad_field(field, fmt::format("'{}' is '{}', as that of another tool", field, tool.name));
  }
  if (request.tool_choice == ToolChoice::kRequired && request.tools.empty()) {
    return bad_field("tool_choice", "'tool_choice' is \"required\", and there are no 'tools'");
  }
  if (request.tool_choice == ToolChoice::kNamed && names.count(request.named_tool) == 0) {
    return bad_field("tool_choice.function.name",
                     fmt::format("'tool_choice.function.name' is '{}', which none of the 'tools' is",
                                 request.named_tool.substr(0, kMaxToolNameBytes)));
  }
  return std::nullopt;
}

}  // namespace kvasir
