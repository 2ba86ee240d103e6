// JSON in and out: the fields of an object, checked for type and range. Internal to src/server.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/api_error.h"

namespace kvasir {

// JSON text in one line. Bytes that are not UTF-8 are replaced.
std::string dump_json(const nlohmann::json& value);

// A whole number, written as 5 or 5.0. Nothing for anything else, or beyond int64.
std::optional<int64_t> whole_number(const nlohmann::json& value);

// Bounds on what the parser builds for a body: depth of nesting, and number of values.
inline constexpr size_t kMaxJsonDepth = 64;
inline constexpr size_t kMaxJsonValues = 1'000'000;

// Makes arrays and objects empty, and allocates nothing, as the library's destructor does: as much as the
// tree is wide, and where that fails the process ends. Recurses by the depth of the tree.
void clear_json(nlohmann::json& value) noexcept;
void clear_json(nlohmann::ordered_json& value) noexcept;

// A tree that a client has sent, and which may be large.
class JsonTree {
 public:
  explicit JsonTree(nlohmann::json root);
  ~JsonTree();
  JsonTree(JsonTree&& other) noexcept;
  JsonTree& operator=(JsonTree&&) = delete;

  const nlohmann::json& operator*() const { return *root_; }

 private:
  std::unique_ptr<nlohmann::json> root_;
};

// The object in `body`. 400: not JSON, not UTF-8, not an object, or beyond the bounds above.
std::variant<JsonTree, ApiError> parse_json_object(std::string_view body);

// The text of a member of the object that `text` is; of equal names the last. Nothing if there is none, or if
// its name is written with escapes. REQUIRES: `text` is JSON.
std::optional<std::string_view> member_text(std::string_view text, std::string_view name);

// Keeps the first error. A field that is absent or null counts as not given. Not thread-safe. REQUIRES: the
// object, and the text that it was parsed from, if that is given, outlive this.
class JsonFields {
 public:
  explicit JsonFields(const nlohmann::json& object, std::string_view text = {})
      : object_(object), text_(text) {}

  // Null: not given.
  const nlohmann::json* find(const char* field) const;

  bool boolean(const char* field, bool otherwise);
  // In [low, high], or (low, high] with `open_low`.
  std::optional<double> number(const char* field, double low, double high, bool open_low = false);
  std::optional<int64_t> integer(const char* field, int64_t low, int64_t high);
  std::optional<std::string> string(const char* field);
  // The JSON of a field, the members of objects in the client's order if the text is known. REQUIRES: it is
  // given.
  std::string json_text(const char* field) const;

  void fail(const char* field, std::string message);
  void fail(ApiError error);
  const std::optional<ApiError>& error() const { return error_; }

 private:
  const nlohmann::json& object_;
  const std::string_view text_;
  std::optional<ApiError> error_;
};

}  // namespace kvasir
