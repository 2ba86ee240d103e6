// Runs of the world: at random with a seed, or all there are up to a depth.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>

#include "cluster/protocol/world.h"

namespace kvasir::cluster::test {

struct Exploration {
  std::string violation;  // the first; empty: none
  std::string where;      // the seed, or the choices
  uint64_t steps = 0;
  uint64_t states = 0;  // different ones, as far as they were told apart
  uint64_t runs = 0;    // that came to rest and were checked
  World::Counts counts;
};

// `runs` runs of so many choices each, from seed on. Each ends with World::settle_down(). Stops at a
// violation. States are told apart in every eighth run.
Exploration wander(const WorldConfig& config, uint64_t seed, uint64_t runs, uint64_t choices);

// Every order of choices up to `depth`, without what leads to a state that was seen at that depth or before,
// until there are so many states. One in `rests` is brought to rest and checked there.
Exploration exhaust(const WorldConfig& config, size_t depth, uint64_t states, uint64_t rests);

// n, or with KVASIR_LONG=1 thirty times that.
uint64_t scaled(uint64_t n);

}  // namespace kvasir::cluster::test
