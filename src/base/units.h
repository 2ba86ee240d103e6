// Bytes and counts as people write them.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvasir {

constexpr uint64_t kKiB = 1024;
constexpr uint64_t kMiB = 1024 * kKiB;
constexpr uint64_t kGiB = 1024 * kMiB;

template <typename T>
constexpr T ceil_div(T a, T b) {
  return (a + b - 1) / b;
}
template <typename T>
constexpr T round_up(T a, T multiple) {
  return ceil_div(a, multiple) * multiple;
}

// "1536", "64KiB", "1.5GiB", "2GB" (decimal). kInvalidArgument says what was expected.
Result<uint64_t> parse_bytes(std::string_view text);

// "1.50 GiB"; exact bytes below 1 KiB.
std::string format_bytes(uint64_t bytes);

// "1 thread", "2 threads"; `many` for nouns that take more than an s.
std::string count_of(uint64_t count, std::string_view one, std::string_view many = {});

}  // namespace kvasir
