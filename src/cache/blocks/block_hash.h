// The identity of a full block: 128 bits over its tokens, all tokens before it, the salt and the numerics id.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

#include "contract/ids.h"

namespace kvasir {

struct BlockHash {
  std::array<uint64_t, 2> words{};
  friend bool operator==(const BlockHash&, const BlockHash&) = default;
};

// All bits of a hash are spread well; those of tests are small numbers.
struct BlockHashHasher {
  uint64_t operator()(const BlockHash& h) const { return h.words[0] * 0x9e3779b97f4a7c15u; }
};

// Where a chain begins: two requests share blocks only if both arguments agree.
BlockHash root_hash(std::string_view numerics_id, std::string_view salt);

// The first 128 bits of SHA-256 over the parent's hash and the tokens: a client that chooses the tokens of a
// request cannot make them collide with another's.
BlockHash block_hash(const BlockHash& parent, std::span<const Token> tokens);

}  // namespace kvasir
