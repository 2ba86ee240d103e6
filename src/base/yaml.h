// Files of settings in YAML, read strictly: what is unlikely to be meant is an error that says where it is.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace kvasir {

// In a file; both count from 1, columns in bytes.
struct TextPlace {
  int line = 1;
  int column = 1;
};

// A value of a YAML document. It keeps the texts as they are written: what they mean, such as whether `on` is
// a word or a switch, depends on the setting that they are read for.
struct YamlNode {
  enum class Kind { kNone, kText, kList, kMap };  // kNone: null, or nothing

  // Of a map, the entry of that name; null: there is none.
  const YamlNode* find(std::string_view entry_name) const;

  Kind kind = Kind::kNone;
  TextPlace at;
  std::string text;     // of a text
  bool quoted = false;  // of a text: it is in quotes, or a block of lines
  std::string name;     // of an entry of a map
  TextPlace name_at;
  std::vector<YamlNode> items;  // of a list, or the entries of a map in their order; names differ
};

inline constexpr size_t kMaxYamlBytes = 1 << 20;
inline constexpr size_t kMaxYamlDepth = 16;  // of lists and maps in each other

// kInvalidArgument, of one line with "PATH:LINE:COLUMN: ": the text is not YAML, not UTF-8, longer or deeper
// than the bounds, more than one document, or has a name twice, tabs in an indentation, or the features by
// which a short text becomes a large or strange value: anchors, aliases, tags, names that are no text.
Result<YamlNode> parse_yaml(const std::string& text, std::string_view path);

// As parse_yaml(). kNotFound: the file cannot be read.
Result<YamlNode> read_yaml(const std::string& path);

// kInvalidArgument, of what is wrong at a place of a file.
template <typename... Args>
Status error_at(std::string_view path, TextPlace at, fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorCode::kInvalidArgument, "{}:{}:{}: {}", path, at.line, at.column,
               fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace kvasir
