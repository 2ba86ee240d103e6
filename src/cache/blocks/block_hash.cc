#include "cache/blocks/block_hash.h"

#include <openssl/sha.h>

#include <string>
#include <vector>

namespace kvasir {
namespace {

BlockHash digest(const void* data, size_t bytes) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> full{};
  SHA256(static_cast<const unsigned char*>(data), bytes, full.data());
  BlockHash h;
  std::memcpy(h.words.data(), full.data(), sizeof(h.words));
  return h;
}

}  // namespace

BlockHash root_hash(std::string_view numerics_id, std::string_view salt) {
  // The length keeps (id, salt) apart from any other pair that reads the same when joined.
  const std::string text =
      std::to_string(numerics_id.size()) + ":" + std::string(numerics_id) + std::string(salt);
  return digest(text.data(), text.size());
}

BlockHash block_hash(const BlockHash& parent, std::span<const Token> tokens) {
  std::vector<unsigned char> buffer(sizeof(parent.words) + tokens.size_bytes());
  std::memcpy(buffer.data(), parent.words.data(), sizeof(parent.words));
  std::memcpy(buffer.data() + sizeof(parent.words), tokens.data(), tokens.size_bytes());
  return digest(buffer.data(), buffer.size());
}

}  // namespace kvasir
