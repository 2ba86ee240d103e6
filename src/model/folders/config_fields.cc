#include "model/folders/config_fields.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/units.h"
#include "base/untrusted_text.h"
#include "model/files/json_text.h"

namespace kvasir {
namespace {

using nlohmann::json;

bool says_nothing(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_number()) return value.get<double>() == 0;
  return value.is_null() || (!value.is_number() && value.empty()) || value == "";
}

std::optional<int64_t> whole(const json& value) {
  if (value.is_number_unsigned() && value.get<uint64_t>() > std::numeric_limits<int64_t>::max()) return {};
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return {};
  const auto number = value.get<double>();
  constexpr double kExact = 9007199254740992.0;  // 2^53
  if (!(std::fabs(number) <= kExact) || std::floor(number) != number) return {};
  return static_cast<int64_t>(number);
}

std::optional<float> as_float(const json& value) {
  if (!value.is_number()) return {};
  const auto number = value.get<double>();
  if (!(std::fabs(number) <= std::numeric_limits<float>::max())) return {};
  return static_cast<float>(number);
}

// A list, each of whose values `convert` takes; nothing if it is none.
template <typename T, typename Convert>
std::optional<std::vector<T>> list_of(const json& value, const Convert& convert) {
  if (!value.is_array()) return {};
  std::vector<T> out;
  for (const json& item : value) {
    const std::optional<T> converted = convert(item);
    if (!converted) return {};
    out.push_back(*converted);
  }
  return out;
}

}  // namespace

Result<json> parse_config(std::string_view text, const std::string& origin, size_t most_bytes) {
  if (text.size() > most_bytes) {
    return error(ErrorCode::kInvalidArgument,
                 "{}: it has {}, more than any file of this kind; fetch it again", origin,
                 format_bytes(text.size()));
  }
  if (!nests_deeper(text, kMostJsonDepth)) {
    json out = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (out.is_object()) return out;
  }
  return error(ErrorCode::kCorrupt, "{}: this is not a JSON object; the file is damaged; fetch it again",
               origin);
}

ConfigFields::ConfigFields(const json& object, std::string origin)
    : object_(object), origin_(std::move(origin)) {}

const json* ConfigFields::find(std::string_view field) {
  read_.emplace_back(field);
  const auto found = object_.find(field);
  return found == object_.end() || found->is_null() || !status_.ok() ? nullptr : &*found;
}

bool ConfigFields::is_null(std::string_view field) {
  const auto found = object_.find(field);
  return found != object_.end() && found->is_null();
}

std::optional<int64_t> ConfigFields::integer(std::string_view field, int64_t low, int64_t high) {
  const json* value = find(field);
  if (value == nullptr) return {};
  const auto number = whole(*value);
  if (number && *number >= low && *number <= high) return number;
  wrong(field, *value, fmt::format("a whole number from {} to {}", low, high));
  return {};
}

std::optional<double> ConfigFields::number(std::string_view field) {
  const json* value = find(field);
  if (value == nullptr) return {};
  if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
  wrong(field, *value, "a finite number");
  return {};
}

bool ConfigFields::flag(std::string_view field, bool otherwise) {
  const json* value = find(field);
  if (value == nullptr) return otherwise;
  if (value->is_boolean()) return value->get<bool>();
  wrong(field, *value, "true or false");
  return otherwise;
}

std::optional<std::string> ConfigFields::text(std::string_view field) {
  const json* value = find(field);
  if (value == nullptr) return {};
  if (value->is_string()) return value->get<std::string>();
  wrong(field, *value, "a string");
  return {};
}

std::optional<std::vector<std::string>> ConfigFields::texts(std::string_view field) {
  const json* value = find(field);
  if (value == nullptr) return {};
  auto out = list_of<std::string>(*value, [](const json& item) {
    return item.is_string() ? std::optional(item.get<std::string>()) : std::nullopt;
  });
  if (!out) wrong(field, *value, "a list of strings");
  return out;
}

std::optional<std::vector<int64_t>> ConfigFields::integers(std::string_view field) {
  const json* value = find(field);
  if (value == nullptr) return {};
  auto out = list_of<int64_t>(*value, whole);
  if (!out) wrong(field, *value, "a list of whole numbers");
  return out;
}

std::optional<std::vector<float>> ConfigFields::numbers(std::string_view field) {
  const json* value = find(field);
  if (value == nullptr) return {};
  auto out = list_of<float>(*value, as_float);
  if (!out) wrong(field, *value, "a list of numbers");
  return out;
}

const json& ConfigFields::object(std::string_view field) {
  static const json kNone = json::object();
  const json* value = find(field);
  if (value == nullptr) return kNone;
  if (value->is_object()) return *value;
  unsupported(field, "where an object is needed");
  return kNone;
}

void ConfigFields::refuse(std::string_view field) {
  const json* value = find(field);
  if (value != nullptr && !says_nothing(*value))
    unsupported(field, "which is not supported; use another model");
}

void ConfigFields::unsupported(std::string_view field, std::string_view why) {
  const auto found = object_.find(field);
  fail(error(ErrorCode::kUnsupported, "{}: '{}' is {}, {}", origin_, field,
             found == object_.end() ? "not given" : shown_json(*found), why));
}

void ConfigFields::wrong(std::string_view field, const json& value, std::string_view wanted) {
  fail(error(ErrorCode::kInvalidArgument, "{}: '{}' is {}, where {} is needed; fetch the file again", origin_,
             field, shown_json(value), wanted));
}

void ConfigFields::fail(Status status) {
  if (status_.ok()) status_ = std::move(status);
}

std::vector<std::string> ConfigFields::unread() const {
  std::vector<std::string> out;
  for (const auto& [field, value] : object_.items()) {
    const bool read = std::find(read_.begin(), read_.end(), field) != read_.end();
    if (!read && !says_nothing(value)) out.push_back(field);
  }
  return out;
}

void ConfigFields::ignore(std::initializer_list<std::string_view> fields) {
  read_.insert(read_.end(), fields.begin(), fields.end());
}

}  // namespace kvasir
