// Priorities: the lower value goes first, and may preempt; who waits ages.
#pragma once

#include <memory>

#include "base/clock.h"
#include "contract/policy.h"

namespace kvasir {

// A level of priority is a head start of so much time.
constexpr Nanos kAgeingPerLevel = 10 * kNanosPerSecond;

// per_level: 0 switches the ageing off; then the order is strict, and who has a high value may starve.
// REQUIRES: 0 <= per_level <= an hour
std::unique_ptr<Policy> make_priority_policy(Nanos per_level = kAgeingPerLevel);

}  // namespace kvasir
