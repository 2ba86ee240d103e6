// What the policy `auto` remembers, set for a test by the parts of its saved state.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "contract/policy.h"
#include "sched/registry.h"

namespace kvasir::test {

// In the order of AutoState::save().
enum class AutoPart {
  kGap,
  kMargins,
  kArriving,
  kShortages,
  kCredit,
  kStretch,
  kNews,
  kTurns,
  kReturns,
  kScale
};

// Its text becomes `text`, in the form of the part's own save().
inline void set_part(Policy& policy, AutoPart part, const std::string& text) {
  const std::string state = policy.save_state();
  size_t begin = 0;
  for (int i = 0; i < static_cast<int>(part); ++i) begin = state.find(';', begin) + 1;
  const size_t end = std::min(state.find(';', begin), state.size());
  const Status status = policy.restore_state(state.substr(0, begin) + " " + text + state.substr(end));
  ASSERT_TRUE(status.ok()) << status.message();
}

// A new policy with that part.
inline std::unique_ptr<Policy> auto_with(AutoPart part, const std::string& text) {
  auto policy = make_policy("auto").value();
  set_part(*policy, part, text);
  return policy;
}

// As the credit's part: 5 s, which cover the cost of each late request in tests, a second before the present
// of sched/auto_views.h.
constexpr const char* kAmpleCredit = "99000000000 5 0 0";

}  // namespace kvasir::test
