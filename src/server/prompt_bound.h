// How few tokens a text can possibly have: refuses what is far too long without tokenising it.
#pragma once

#include <cstddef>
#include <string_view>

#include "model/tokenizer.h"

namespace kvasir {

// At most the number of tokens that encode() makes of `text`, special ones parsed or not. Linear in the text
// and the vocabulary, and about a hundred times as fast as encode(). Thread-safe.
size_t least_tokens(const Tokenizer& tokenizer, std::string_view text);

}  // namespace kvasir
