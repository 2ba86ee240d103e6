// JSON text as variables of a template, and back, with the members of objects in their order.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

#include "model/templates/chat_template.h"

namespace kvasir {

// The value of a JSON text; of members with equal names the last one's. Nothing: it is no JSON in UTF-8, is
// nested deeper than kMaxJsonDepth, or has more values than `budget`, which is lowered by as many as it has.
// A whole number beyond int64 becomes a real one.
std::optional<TemplateValue> template_value_of(std::string_view json, size_t& budget);

// The JSON of a value, in one line. Ill-formed UTF-8 becomes U+FFFD.
std::string json_of(const TemplateValue& value);

// The member of that name; null: the value is no object, or has none.
const TemplateValue* member_of(const TemplateValue& value, std::string_view name);

}  // namespace kvasir
