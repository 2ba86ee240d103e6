// The policies by name.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/policy.h"

namespace kvasir {

// By its name, with settings of its own behind it if need be: "layerkv:slo=off" (sched/policy_settings.h).
// kNotFound names the policies that there are, kInvalidArgument the settings.
Result<std::unique_ptr<Policy>> make_policy(std::string_view policy_name);

// Whether SeqView::priority changes what it plans.
bool policy_reads_priority(std::string_view policy_name);

// Whether it takes prompts whole: then a budget of tokens below a usual prompt makes each go alone.
bool policy_takes_whole_prompts(std::string_view policy_name);

// Whether it is nothing of its own without a tier behind the device.
bool policy_offloads(std::string_view policy_name);

// Whether it reads history through the stage ring though the device could hold it: then there is to be a
// ring.
bool policy_stages(std::string_view policy_name);

// Whether it keeps parts of many histories nowhere on the device, and has them pass the stage ring in each
// step: then there is to be one for all of them, also without a tier behind the device.
bool policy_drops(std::string_view policy_name);

// Whether it asks peers for memory: of use where there are any.
bool policy_borrows(std::string_view policy_name);

// Whether it keeps copies in form X (Policy::keeps()): its settings may say that it does not.
bool policy_keeps_x(std::string_view policy_name);

// With their aliases, in alphabetical order.
std::vector<std::string> policy_names();

}  // namespace kvasir
