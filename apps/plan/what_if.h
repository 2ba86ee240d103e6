// What would help: the highest rate of systems that differ in one thing.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/plan/plan.h"

namespace kvasir {

// A change that is tried.
struct Change {
  WhatIf::Of of;
  std::string what;
  SimulateOptions options;  // with the policies to try
};

// Those that make sense for this system. `policy` is the best one for it, `usage` what it used there.
std::vector<Change> changes_of(const SimulateOptions& options, const std::string& policy,
                               const RunUsage& usage, const Study& study);

// Of each change the gain over the same policy in the unchanged system, under runs of the same kind. The
// changes that help most come first. `say` may be null.
Result<std::vector<WhatIf>> try_changes(const std::vector<Change>& changes, const SimulateOptions& options,
                                        const std::string& policy, const SearchSettings& settings,
                                        double rate, double effort,
                                        const std::function<void(const std::string&)>& say);

}  // namespace kvasir
