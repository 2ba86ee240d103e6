// Python's operations on strings, over UTF-8. Positions and lengths count code points, as Python's do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizers/marked_text.h"

namespace kvasir::jinja {

// str.isspace: Unicode's white space and the four separators U+001C to U+001F.
bool is_python_space(char32_t c);

size_t length_of(std::string_view text);

// str.strip, lstrip and rstrip; the second form strips the code points of `characters`.
std::string_view strip(std::string_view text, bool left, bool right);
std::string_view strip_characters(std::string_view text, std::string_view characters, bool left, bool right);

// Full case mapping, independent of any locale.
std::string to_upper(std::string_view text);
std::string to_lower(std::string_view text);
// The first character in title case, the others in lower case: str.capitalize.
std::string capitalize(std::string_view text);
// str.title: capitalises every run of letters.
std::string title(std::string_view text);
// The filter `title`: capitalises what follows white space, -, (, [, { or <.
std::string title_words(std::string_view text);

// str.split: at white space, or at a separator that is not empty; at most `limit` cuts (negative: no limit),
// counted from the right if `from_right`.
std::vector<std::string_view> split_space(std::string_view text, int64_t limit, bool from_right);
std::vector<std::string_view> split(std::string_view text, std::string_view separator, int64_t limit,
                                    bool from_right);
std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends);

// Replaces the first `limit` occurrences (negative: all). The rest of the text keeps its marks, and the
// replacement has its own.
MarkedText replace(const MarkedText& text, std::string_view from, const MarkedText& to, int64_t limit);

// Occurrences that do not overlap; one more than the length for an empty `what`.
int64_t count_of(std::string_view text, std::string_view what);

// Byte offsets of the code points, and of the end: length_of(text) + 1 entries.
std::vector<size_t> offsets_of(std::string_view text);

}  // namespace kvasir::jinja
