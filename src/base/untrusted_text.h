// Text that anyone may have written: how to show it in a message, and whether a parser may read it.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvasir {

// `text` as a message can hold it: one line of printable ASCII. Other bytes, quotes (') and backslashes are
// written \xNN; after the first `most` bytes of the text it ends in "...".
std::string one_line(std::string_view text, size_t most);

// The bytes of the UTF-8 character with which the text begins; 0: it is empty, or begins with something else.
size_t utf8_bytes(std::string_view text);

// Whether arrays and objects of a JSON text lie within more than `most` others, counted with themselves. It
// builds nothing: a few bytes of brackets must not become a tower of values, whose copies and destructors
// recurse. Of text that is not JSON it says something or other.
bool nests_deeper(std::string_view json, int most);

}  // namespace kvasir
