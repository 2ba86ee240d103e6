// Messages, tools and variables of templates as tests write them: in JSON.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "model/templates/chat_template.h"

namespace kvasir::test {

// Keeps the order of members.
using Json = nlohmann::ordered_json;

inline TemplateValue template_value(const Json& json) {
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_number_integer()) return json.get<int64_t>();
  if (json.is_number()) return json.get<double>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_array()) {
    TemplateValue::List list;
    for (const Json& item : json) list.push_back(template_value(item));
    return list;
  }
  if (json.is_object()) {
    TemplateValue::Dict dict;
    for (const auto& [key, item] : json.items()) dict.emplace_back(key, template_value(item));
    return dict;
  }
  return {};
}

inline std::vector<ChatMessage> template_messages(const Json& conversation) {
  std::vector<ChatMessage> out;
  for (const Json& message : conversation) {
    ChatMessage made;
    for (const auto& [key, item] : message.items()) {
      if (key == "role") {
        made.role = item.get<std::string>();
      } else if (key == "content" && item.is_string()) {
        made.content = item.get<std::string>();
      } else {
        made.more.emplace_back(key, template_value(item));
      }
    }
    out.push_back(std::move(made));
  }
  return out;
}

}  // namespace kvasir::test
