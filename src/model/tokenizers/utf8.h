// UTF-8 one code point at a time. What is not UTF-8 is cut as Unicode recommends (one U+FFFD for each
// maximal part of a well-formed sequence), which is also what Python and Rust do when they replace.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace kvasir {

constexpr char32_t kReplacementCharacter = 0xFFFD;

enum class Utf8State {
  kComplete,    // a whole code point
  kInvalid,     // bytes that no continuation can mend
  kIncomplete,  // the text ends inside a sequence that is well formed so far
};

struct Utf8Step {
  char32_t code_point;  // U+FFFD unless complete
  size_t length;        // bytes that belong to this step, at least 1
  Utf8State state;
};

// The code point, or the ill-formed part, that begins at `position`. REQUIRES: position < text.size()
Utf8Step decode_utf8(std::string_view text, size_t position);

// REQUIRES: code_point is a Unicode scalar value (no surrogate, at most U+10FFFF).
void append_utf8(char32_t code_point, std::string* out);

bool is_valid_utf8(std::string_view text);

// A copy of `text` with every ill-formed part replaced by U+FFFD.
std::string replace_invalid_utf8(std::string_view text);

}  // namespace kvasir
