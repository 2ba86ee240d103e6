// A counter-based random generator: the value at a counter does not depend on what was drawn before.
#pragma once

#include <cstdint>

namespace kvasir {

// 64 well mixed bits of (key, stream, counter): two rounds of the SplitMix64 finaliser per word.
uint64_t random_bits(uint64_t key, uint64_t stream, uint64_t counter);

// Uniform in [0, 1), 53 bits.
double random_unit(uint64_t key, uint64_t stream, uint64_t counter);

// A small generator over random_bits for tests, load and policies; copyable, and its state is two words.
class Random {
 public:
  explicit Random(uint64_t seed, uint64_t counter = 0) : seed_(seed), counter_(counter) {}
  uint64_t bits() { return random_bits(seed_, 0, counter_++); }
  double unit() { return random_unit(seed_, 0, counter_++); }
  // Uniform in [0, n). REQUIRES: n > 0. The bias is below n / 2^64.
  uint64_t below(uint64_t n) { return bits() % n; }
  // Uniform in [low, high].
  int64_t between(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(below(static_cast<uint64_t>(high - low + 1)));
  }
  uint64_t seed() const { return seed_; }
  uint64_t counter() const { return counter_; }

 private:
  uint64_t seed_;
  uint64_t counter_;
};

}  // namespace kvasir
