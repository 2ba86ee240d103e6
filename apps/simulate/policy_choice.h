// Which policies a command simulates, and which have what they need.
#pragma once

#include <string>
#include <vector>

#include "apps/simulate/simulate.h"

namespace kvasir {

struct LeftOutPolicy {
  std::string policy;
  std::string why;  // and what to give so that it counts
};

// Of a policy that was named and runs all the same.
std::string runs_without(const LeftOutPolicy& lacking);

struct PolicyChoice {
  std::vector<std::string> policies;
  std::vector<LeftOutPolicy> left_out;
};

// What a policy lacks in this system, without which it plans what another policy plans; "": nothing.
std::string what_policy_lacks(const SimulateOptions& options, const std::string& policy);

// Of "all": every policy by its own name, without those that lack something. Other names as they are given.
PolicyChoice choose_policies(const SimulateOptions& options);

}  // namespace kvasir
