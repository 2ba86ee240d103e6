// The policies by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/policy.h"

namespace kvasir {

// kNotFound names the policies that there are.
Result<std::unique_ptr<Policy>> make_policy(std::string_view policy_name);

// Whether SeqView::priority changes what it plans.
bool policy_reads_priority(std::string_view policy_name);

// Whether it takes prompts whole: then a budget of tokens below a usual prompt makes each go alone.
bool policy_takes_whole_prompts(std::string_view policy_name);

// With their aliases, in alphabetical order.
std::vector<std::string> policy_names();

}  // namespace kvasir
