// An API key of the server, as configured: whom it names, and what its holder may do.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace kvasir {

using KeyDigest = std::array<unsigned char, 32>;

// SHA-256 of the key as it is sent. A key is random and long, so that its digest needs no salt and no
// stretching.
KeyDigest key_digest(std::string_view key);
std::string hex_of(const KeyDigest& digest);

struct ApiKey {
  std::string name;  // for logs and metrics; differs from key to key
  KeyDigest digest{};
  // Whose the answers and prefixes are that the server keeps for its holder. It stays when the key changes
  // under the same name.
  std::string identity;

  uint32_t concurrent_requests = 0;  // prompts and choices that are in progress at once; 0: no bound
  uint64_t requests_per_minute = 0;  // 0: no bound
  uint64_t tokens_per_minute = 0;    // of prompts and outputs; 0: no bound
  std::optional<float> queue_share;  // Tenant::queue_share; none: a half where there are other keys
  float weight = 1;                  // Tenant::weight
  int32_t priority = 0;              // of requests that name none
  // What requests may say of themselves: it decides who of several waits.
  bool may_set_priority = false;
  bool may_set_slo = false;
  bool may_hint_output = false;  // output_tokens_hint
  // It may watch the cache map, which shows lengths and times of the requests of all keys.
  bool may_see_cache = false;
};

// A key that is known by itself, as of --api-key: it has no bounds and may say anything. `name` is for
// people.
ApiKey plain_key(std::string name, std::string_view key);
// The name of such a key that has none: "api-key-1" and so on.
inline constexpr std::string_view kNumberedKey = "api-key-";
std::string numbered_key_name(size_t number);

}  // namespace kvasir
