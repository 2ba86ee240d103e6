// Divides the bytes of a text by those of the longest token.
#include "server/prompt_bound.h"

#include <algorithm>
#include <array>
#include <cstdint>

namespace kvasir {

size_t least_tokens(const Tokenizer& tokenizer, std::string_view text) {
  if (!tokenizer.keeps_length()) return 0;
  // encode() may drop a byte that has no token of its own, so only the other bytes are counted.
  std::array<uint8_t, 256> counts{};
  size_t longest = 1;
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const Result<std::string_view> bytes = tokenizer.token_bytes(id);
    if (!bytes.ok()) continue;
    longest = std::max(longest, bytes->size());
    if (bytes->size() == 1 && !tokenizer.is_special(id)) counts[static_cast<uint8_t>(bytes->front())] = 1;
  }
  size_t covered = 0;
  for (const char c : text) covered += counts[static_cast<uint8_t>(c)];
  return (covered + longest - 1) / longest;
}

}  // namespace kvasir
