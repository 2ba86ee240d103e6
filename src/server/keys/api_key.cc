#include "server/keys/api_key.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <openssl/sha.h>

#include <utility>

namespace kvasir {

KeyDigest key_digest(std::string_view key) {
  KeyDigest digest;
  static_assert(std::tuple_size_v<KeyDigest> == SHA256_DIGEST_LENGTH);
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(), digest.data());
  return digest;
}

std::string hex_of(const KeyDigest& digest) {
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

std::string numbered_key_name(size_t number) {
  return fmt::format("{}{}", kNumberedKey, number);
}

ApiKey plain_key(std::string name, std::string_view key) {
  ApiKey out;
  out.name = std::move(name);
  out.digest = key_digest(key);
  out.identity = "key:" + hex_of(out.digest);
  out.may_set_priority = out.may_set_slo = out.may_hint_output = out.may_see_cache = true;
  return out;
}

}  // namespace kvasir
