// Bounds before parsing; checks after it.
#include "server/json_fields.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvasir {
namespace {

using nlohmann::json;

ApiError bad_body(std::string message) {
  ApiError e;
  e.message = std::move(message);
  e.code = "invalid_json";
  return e;
}

// Checks the bounds before the parser builds anything, since a body of brackets makes far more values than
// bytes.
std::optional<ApiError> check_shape(std::string_view body) {
  size_t depth = 0, values = 0;
  bool in_string = false;
  for (size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    switch (c) {
      case '"':
        in_string = true;
        break;
      case '{':
      case '[':
        ++values;
        if (++depth > kMaxJsonDepth) {
          return bad_body(fmt::format("the body is nested deeper than {} levels", kMaxJsonDepth));
        }
        break;
      case '}':
      case ']':
        if (depth > 0) --depth;
        break;
      case ',':
        ++values;
        break;
      default:
        break;
    }
    if (values > kMaxJsonValues) {
      return bad_body(fmt::format("the body has more than {} values", kMaxJsonValues));
    }
  }
  return std::nullopt;
}

// Where the string that begins at `at` ends: behind its quotation mark.
size_t string_end(std::string_view text, size_t at) {
  for (++at; at < text.size() && text[at] != '"'; ++at) {
    if (text[at] == '\\') ++at;
  }
  return std::min(at + 1, text.size());
}

// Where the value at `at` ends. That of a number may have spaces behind it.
size_t value_end(std::string_view text, size_t at) {
  size_t depth = 0;
  while (at < text.size()) {
    const char c = text[at];
    if (c == '"') {
      at = string_end(text, at);
      if (depth == 0) return at;
      continue;
    }
    if (depth == 0 && (c == ',' || c == '}' || c == ']')) return at;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return at + 1;
    ++at;
  }
  return at;
}

template <typename Json>
void clear_tree(Json& value) noexcept {
  if (auto* const array = value.template get_ptr<typename Json::array_t*>()) {
    for (Json& item : *array) clear_tree(item);
    array->clear();
  } else if (auto* const object = value.template get_ptr<typename Json::object_t*>()) {
    for (auto& [name, item] : *object) clear_tree(item);
    object->clear();
  }
}

}  // namespace

std::optional<std::string_view> member_text(std::string_view text, std::string_view name) {
  constexpr std::string_view kBetween = " \t\r\n,:";
  std::optional<std::string_view> found;
  size_t at = std::min(text.find('{'), text.size() - 1) + 1;
  while ((at = text.find_first_not_of(kBetween, at)) != std::string_view::npos && text[at] == '"') {
    const size_t key_end = string_end(text, at);
    const std::string_view key = text.substr(at + 1, key_end - at - 2);
    at = text.find_first_not_of(kBetween, key_end);
    if (at == std::string_view::npos) return found;
    const size_t end = value_end(text, at);
    if (key == name) found = text.substr(at, end - at);
    at = end;
  }
  return found;
}

std::string dump_json(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::optional<int64_t> whole_number(const json& value) {
  if (value.is_number_unsigned()) {
    const uint64_t u = value.get<uint64_t>();
    if (u > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
    return static_cast<int64_t>(u);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double d = value.get<double>();
    if (d == std::floor(d) && std::abs(d) <= 9007199254740992.0) return static_cast<int64_t>(d);
  }
  return std::nullopt;
}

void clear_json(json& value) noexcept {
  clear_tree(value);
}
void clear_json(nlohmann::ordered_json& value) noexcept {
  clear_tree(value);
}

JsonTree::JsonTree(json root) : root_(std::make_unique<json>(std::move(root))) {}
JsonTree::~JsonTree() {
  if (root_) clear_json(*root_);
}
JsonTree::JsonTree(JsonTree&& other) noexcept = default;

std::variant<JsonTree, ApiError> parse_json_object(std::string_view body) {
  if (auto e = check_shape(body)) return *std::move(e);
  try {
    JsonTree tree(json::parse(body.begin(), body.end()));
    if (!(*tree).is_object()) return bad_body("the body must be a JSON object");
    return std::variant<JsonTree, ApiError>(std::move(tree));
  } catch (const json::parse_error& e) {
    // The text of the exception may quote the whole body, so the answer has only the position.
    return bad_body(fmt::format("the body is not valid JSON in UTF-8 (near byte {})", e.byte));
  } catch (const json::exception&) {
    return bad_body("the body has a number that is out of range");
  }
}

const json* JsonFields::find(const char* field) const {
  const auto it = object_.find(field);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

bool JsonFields::boolean(const char* field, bool otherwise) {
  const json* value = find(field);
  if (value == nullptr) return otherwise;
  if (!value->is_boolean()) {
    fail(field, fmt::format("'{}' must be true or false", field));
    return otherwise;
  }
  return value->get<bool>();
}

std::optional<double> JsonFields::number(const char* field, double low, double high, bool open_low) {
  const json* value = find(field);
  if (value == nullptr) return std::nullopt;
  const double d = value->is_number() ? value->get<double>() : std::nan("");
  const bool above = open_low ? d > low : d >= low;
  if (!above || !(d <= high)) {
    fail(field, open_low ? fmt::format("'{}' must be a number above {} and at most {}", field, low, high)
                         : fmt::format("'{}' must be a number from {} to {}", field, low, high));
    return std::nullopt;
  }
  return d;
}

std::optional<int64_t> JsonFields::integer(const char* field, int64_t low, int64_t high) {
  const json* value = find(field);
  if (value == nullptr) return std::nullopt;
  const std::optional<int64_t> whole = whole_number(*value);
  if (!whole || *whole < low || *whole > high) {
    fail(field, fmt::format("'{}' must be a whole number from {} to {}", field, low, high));
    return std::nullopt;
  }
  return whole;
}

std::optional<std::string> JsonFields::string(const char* field) {
  const json* value = find(field);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) {
    fail(field, fmt::format("'{}' must be a string", field));
    return std::nullopt;
  }
  return value->get<std::string>();
}

std::string JsonFields::json_text(const char* field) const {
  const std::optional<std::string_view> text = text_.empty() ? std::nullopt : member_text(text_, field);
  return text ? std::string(*text) : dump_json(object_.at(field));
}

void JsonFields::fail(const char* field, std::string message) {
  fail(bad_field(field, std::move(message)));
}

void JsonFields::fail(ApiError error) {
  if (!error_) error_ = std::move(error);
}

}  // namespace kvasir
