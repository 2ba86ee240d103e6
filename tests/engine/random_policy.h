// A policy that makes valid plans at random, for tests: what no sensible policy does, some day one will.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "base/status.h"
#include "contract/policy.h"

namespace kvasir::test {

// What random plans are made of, beside copies of KV on the device and the host.
enum class RandomPlans { kCopies, kForms, kPromises };

// Admits, preempts (dropping, keeping or offloading cells), drops, cuts chunks, and moves copies at random.
// Its state is the state of its generator.
std::unique_ptr<Policy> make_random_policy(uint64_t seed = 1, RandomPlans what = RandomPlans::kCopies);

// As make_policy(), and knows "random", "random-forms", "random-promises" and "belief" too.
Result<std::unique_ptr<Policy>> make_test_policy(std::string_view policy_name);

}  // namespace kvasir::test
