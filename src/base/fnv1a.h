// The 64-bit FNV-1a hash: for names and for distinguishing values. It does not resist deliberate collisions.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvasir {

class Fnv1a {
 public:
  constexpr void add(uint8_t byte) { value_ = (value_ ^ byte) * 0x100000001B3u; }
  constexpr void add(std::string_view bytes) {
    for (const char c : bytes) add(static_cast<uint8_t>(c));
  }
  constexpr uint64_t value() const { return value_; }

 private:
  uint64_t value_ = 0xCBF29CE484222325u;
};

}  // namespace kvasir
