// The fields of a JSON object of a configuration: typed, with one clear line for what is wrong.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvasir {

// The JSON object in `text`, of the file `origin`. kCorrupt: it is none, or nested deeper than
// kMostJsonDepth. kInvalidArgument: larger than most_bytes, by default more than any configuration has.
Result<nlohmann::json> parse_config(std::string_view text, const std::string& origin,
                                    size_t most_bytes = size_t{2} << 20);

// Keeps the first error; later reads then give nothing. A field that is null counts as absent, but for
// is_null(). Not thread-safe. REQUIRES: the object outlives this.
class ConfigFields {
 public:
  // `origin` begins every message: "FOLDER/config.json".
  ConfigFields(const nlohmann::json& object, std::string origin);

  // nullptr: absent or null.
  const nlohmann::json* find(std::string_view field);
  bool has(std::string_view field) { return find(field) != nullptr; }
  bool is_null(std::string_view field);

  // A whole number from low to high.
  std::optional<int64_t> integer(std::string_view field, int64_t low, int64_t high);
  // A finite number.
  std::optional<double> number(std::string_view field);
  bool flag(std::string_view field, bool otherwise);
  std::optional<std::string> text(std::string_view field);
  std::optional<std::vector<std::string>> texts(std::string_view field);
  std::optional<std::vector<int64_t>> integers(std::string_view field);
  std::optional<std::vector<float>> numbers(std::string_view field);
  // An empty one where there is none.
  const nlohmann::json& object(std::string_view field);

  // Refuses a field that is true, or any other value than null, false, 0 and what is empty.
  void refuse(std::string_view field);
  // kUnsupported: "ORIGIN: 'FIELD' is VALUE, WHY".
  void unsupported(std::string_view field, std::string_view why);
  void fail(Status status);

  // Fields that nothing has read and whose value is none of null, false, 0 and empty.
  std::vector<std::string> unread() const;
  void ignore(std::initializer_list<std::string_view> fields);

  const Status& status() const { return status_; }
  const std::string& origin() const { return origin_; }

 private:
  void wrong(std::string_view field, const nlohmann::json& value, std::string_view wanted);

  const nlohmann::json& object_;
  const std::string origin_;
  std::vector<std::string> read_;
  Status status_;
};

}  // namespace kvasir
