#include "model/grammar/schema_hold.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

namespace kvasir {
namespace {

using nlohmann::json;

constexpr uint32_t kNull = 1, kBoolean = 2, kObject = 4, kArray = 8, kString = 16, kInteger = 32,
                   kFraction = 64, kNumber = kInteger | kFraction, kAll = 127;
constexpr int kMostReferences = 16;  // one after the other
// Schemas may refer to each other so that there are more ways through them than can be gone.
// Schemas, values of an enum, and pairs of them that are compared.
constexpr size_t kMostLookedAt = 1'000'000;
constexpr size_t kMostAlternatives = 128;  // of a oneOf: each is compared with each

constexpr std::pair<std::string_view, uint32_t> kTypes[] = {
    {"null", kNull},     {"boolean", kBoolean}, {"object", kObject}, {"array", kArray},
    {"string", kString}, {"integer", kInteger}, {"number", kNumber}};

// Keywords that restrict values, and of which types. A "format" is a description.
constexpr std::pair<std::string_view, uint32_t> kKeywords[] = {{"$ref", kAll},
                                                               {"const", kAll},
                                                               {"enum", kAll},
                                                               {"anyOf", kAll},
                                                               {"oneOf", kAll},
                                                               {"allOf", kAll},
                                                               {"type", kAll},
                                                               {"minLength", kString},
                                                               {"maxLength", kString},
                                                               {"pattern", kString},
                                                               {"minimum", kNumber},
                                                               {"maximum", kNumber},
                                                               {"exclusiveMinimum", kNumber},
                                                               {"exclusiveMaximum", kNumber},
                                                               {"multipleOf", kNumber},
                                                               {"items", kArray},
                                                               {"prefixItems", kArray},
                                                               {"unevaluatedItems", kArray},
                                                               {"minItems", kArray},
                                                               {"maxItems", kArray},
                                                               {"required", kObject},
                                                               {"properties", kObject},
                                                               {"patternProperties", kObject},
                                                               {"additionalProperties", kObject},
                                                               {"unevaluatedProperties", kObject},
                                                               {"propertyNames", kObject},
                                                               {"minProperties", kObject},
                                                               {"maxProperties", kObject}};
// The first six, of which the library follows the first that is there.
constexpr size_t kFollowedAlone = 6;
// Without a type, the first of these that is there says whether values are objects or arrays.
constexpr std::array<std::string_view, 3> kOfObjects = {"properties", "additionalProperties",
                                                        "unevaluatedProperties"};
constexpr std::array<std::string_view, 3> kOfArrays = {"items", "prefixItems", "unevaluatedItems"};

uint32_t types_named(const json& type) {
  uint32_t types = 0;
  for (const json& name : type.is_array() ? type : json::array({type})) {
    for (const auto& [known, bits] : kTypes) types |= name == known ? bits : 0;
  }
  return types;
}

uint32_t type_of_value(const json& value) {
  if (value.is_null()) return kNull;
  if (value.is_boolean()) return kBoolean;
  if (value.is_object()) return kObject;
  if (value.is_array()) return kArray;
  if (value.is_string()) return kString;
  const auto number = value.get<double>();
  return value.is_number_integer() || number == std::floor(number) ? kInteger : kFraction;
}

bool has_any(const json& schema, const auto& keywords) {
  return std::any_of(keywords.begin(), keywords.end(), [&](auto k) { return schema.contains(k); });
}

const json& member(const json& object, const char* key) {
  static const json kNone = json::object();
  const auto found = object.find(key);
  return found == object.end() || !found->is_structured() ? kNone : *found;
}

template <typename... Args>
Status left_out(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

}  // namespace

Status SchemaHold::check(const json& schema, std::string_view implied_type) const {
  for (size_t i = 0; i < kFollowedAlone; ++i) {
    if (!schema.contains(kKeywords[i].first)) continue;
    KV_RETURN_IF_ERROR(check_beside(schema, kKeywords[i].first));
    return kKeywords[i].first == "oneOf" ? check_disjoint(schema["oneOf"]) : Status();
  }
  uint32_t types = 0;
  if (schema.contains("type")) {
    types = types_named(schema["type"]);
  } else if (!implied_type.empty()) {
    types = types_named(json(implied_type));
  } else if (has_any(schema, kOfObjects)) {
    types = kObject;
  } else if (has_any(schema, kOfArrays)) {
    types = kArray;
  } else {
    for (const auto& [keyword, of] : kKeywords) {
      if (schema.contains(keyword)) {
        return left_out("the schema's keyword '{}' needs a 'type' beside it", keyword);
      }
    }
  }
  return (types & kObject) != 0 ? check_object(schema) : Status();
}

// What stands beside a keyword that is followed alone changes nothing only where its values have other types.
Status SchemaHold::check_beside(const json& schema, std::string_view followed) const {
  json alone = json::object();
  alone[std::string(followed)] = schema[std::string(followed)];
  const Types types = types_of(alone);
  for (const auto& [keyword, of] : kKeywords) {
    if (keyword == followed || !schema.contains(keyword)) continue;
    if (keyword == "type" ? (types & ~types_named(schema["type"])) == 0 : (types & of) == 0) continue;
    return left_out(
        "the schema's keyword '{}' is not supported beside '{}'; put what it says into that, or leave it out",
        keyword, followed);
  }
  return {};
}

Status SchemaHold::check_object(const json& schema) const {
  const json& properties = member(schema, "properties");
  const json& patterns = member(schema, "patternProperties");
  const json& required = member(schema, "required");
  const bool names = schema.contains("propertyNames");
  const auto allows = [&](const char* keyword) { return schema.value(keyword, json()) != false; };
  const bool closed = schema.contains("additionalProperties") ? !allows("additionalProperties")
                                                              : !allows("unevaluatedProperties");
  for (const json& name : required) {
    if (name.is_string() && !properties.contains(name.get_ref<const std::string&>())) {
      return left_out("the schema's 'required' has a name that its 'properties' have not");
    }
  }
  const auto beside = [](const char* a, const char* b) {
    return left_out("the schema's keyword '{}' is not supported beside '{}'; leave one of them out", a, b);
  };
  if (!patterns.empty() && !properties.empty()) return beside("patternProperties", "properties");
  if (!patterns.empty() && names) return beside("patternProperties", "propertyNames");
  if (patterns.size() > 1) return left_out("the schema's 'patternProperties' must be one pattern");
  if (names && !properties.empty()) return beside("propertyNames", "properties");
  if (names && closed)
    return left_out("the schema's 'propertyNames' is not supported without further values");
  const bool free_names =
      !patterns.empty() || names ||
      (!closed && has_any(schema, std::array{"additionalProperties", "unevaluatedProperties"}));
  // A name may come again, and then counts once.
  const json least = schema.value("minProperties", json(0));
  if (free_names && least.is_number() &&
      least.get<double>() > static_cast<double>(std::max<size_t>(1, required.size()))) {
    return left_out(
        "the schema's 'minProperties' must be at most 1, or the number of its 'required', where names are "
        "free");
  }
  return {};
}

Status SchemaHold::check_disjoint(const json& alternatives) const {
  if (!alternatives.is_array()) return {};
  if (alternatives.size() > kMostAlternatives) {
    return left_out("the schema's 'oneOf' has more than {} alternatives; use 'anyOf'", kMostAlternatives);
  }
  for (size_t i = 0; i < alternatives.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (disjoint(alternatives[i], alternatives[j])) continue;
      return left_out(
          "a value may be of two of the schema's 'oneOf': use 'anyOf', or let all of them be of different "
          "types or have a required property with a 'const' of its own");
    }
  }
  return {};
}

bool SchemaHold::disjoint(const json& left, const json& right) const {
  const json &a = resolved(left), &b = resolved(right);
  const Types both = types_of(a) & types_of(b);
  if (both == 0) return true;
  if (share_no_value(a, b)) return true;
  if (both != kObject) return false;
  const json &of_a = member(a, "properties"), &of_b = member(b, "properties");
  const json& in_b = member(b, "required");
  return std::any_of(member(a, "required").begin(), member(a, "required").end(), [&](const json& name) {
    if (!name.is_string() || std::find(in_b.begin(), in_b.end(), name) == in_b.end()) return false;
    const auto& key = name.get_ref<const std::string&>();
    return of_a.contains(key) && of_b.contains(key) &&
           share_no_value(resolved(of_a[key]), resolved(of_b[key]));
  });
}

bool SchemaHold::share_no_value(const json& x, const json& y) const {
  const std::span<const json> of_x = finite(x), of_y = finite(y);
  if (of_x.empty() || of_y.empty() || !may_look_at(of_x.size() * of_y.size())) return false;
  return std::none_of(of_x.begin(), of_x.end(), [&](const json& value) {
    return std::find(of_y.begin(), of_y.end(), value) != of_y.end();
  });
}

bool SchemaHold::may_look_at(size_t more) const {
  looked_at_ += std::min(more, kMostLookedAt + 1);
  return looked_at_ <= kMostLookedAt;
}

SchemaHold::Types SchemaHold::types_of(const json& schema, int depth) const {
  if (!schema.is_object() || depth > kMostReferences || !may_look_at(1)) return kAll;
  if (const json& target = resolved(schema); &target != &schema) return types_of(target, depth + 1);
  Types types = kAll;
  if (const std::span<const json> values = finite(schema); !values.empty()) {
    if (!may_look_at(values.size())) return kAll;
    types = 0;
    for (const json& value : values) types |= type_of_value(value);
  } else if (schema.contains("type")) {
    types = types_named(schema["type"]);
  } else if (!has_any(schema, std::array{"anyOf", "oneOf", "allOf"}) && has_any(schema, kOfObjects)) {
    types = kObject;
  }
  for (const char* keyword : {"anyOf", "oneOf"}) {
    Types of_any = member(schema, keyword).empty() ? kAll : 0;
    for (const json& alternative : member(schema, keyword)) of_any |= types_of(alternative, depth + 1);
    types &= of_any;
  }
  for (const json& part : member(schema, "allOf")) types &= types_of(part, depth + 1);
  return types;
}

const json& SchemaHold::resolved(const json& schema) const {
  const json* at = &schema;
  for (int i = 0; i < kMostReferences && at->is_object() && at->contains("$ref"); ++i) {
    const json& ref = (*at)["$ref"];
    if (!ref.is_string()) break;
    const auto& to = ref.get_ref<const std::string&>();
    const json* target = to == "#" ? &root_ : nullptr;
    for (const char* place : {"$defs", "definitions"}) {
      const std::string prefix = std::string("#/") + place + "/";
      if (!to.starts_with(prefix)) continue;
      const auto found = member(root_, place).find(to.substr(prefix.size()));
      if (found != member(root_, place).end()) target = &*found;
    }
    if (target == nullptr) break;
    at = target;
  }
  return *at;
}

std::span<const json> SchemaHold::finite(const json& schema) {
  if (!schema.is_object()) return {};
  if (const auto value = schema.find("const"); value != schema.end()) return {&*value, 1};
  const auto values = schema.find("enum");
  if (values == schema.end() || !values->is_array()) return {};
  return values->get_ref<const json::array_t&>();
}

}  // namespace kvasir
