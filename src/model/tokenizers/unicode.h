// What tokenizers need of Unicode's tables beside the splitter's classes.
#pragma once

#include <string>
#include <string_view>

namespace kvasir {

// The property White_Space.
bool is_white_space(char32_t code_point);

// Brings `text` into normal form C. False, with *out unchanged, if it is in that form already. REQUIRES:
// valid UTF-8.
bool compose_utf8(std::string_view text, std::string* out);

}  // namespace kvasir
