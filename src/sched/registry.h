// The policies by name. To add one, write policies/NAME.cc and add a line to the list in registry.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/policy.h"

namespace kvasir {

// What the parts around a policy have to know of it: they size tiers and rings, set defaults and warn by
// these. All are false of a name that there is not.
struct PolicyTraits {
  // SeqView::priority changes what it plans.
  bool reads_priority = false;
  // It prefills a prompt in one step: with a token budget below a usual prompt each prompt goes alone.
  bool whole_prompts = false;
  // It moves KV to the tier behind the device: without one it is not what its name says.
  bool offloads = false;
  // It reads history through the stage ring even where the device could hold it: it needs a ring.
  bool stages = false;
  // It keeps parts of many histories off the device, and in each step they pass the stage ring: it needs a
  // ring for all of them, also without a tier behind the device.
  bool drops = false;
  // It asks peers for memory: it gains where there are any.
  bool borrows = false;
  // It keeps copies in form X: it needs frames for them, and a ring through which they are read. Depends on
  // its settings, and is false where they are refused.
  bool keeps_x = false;
};

// `policy_name` may have settings behind it: "layerkv:slo=off" (sched/policy_settings.h). kNotFound names the
// policies that there are, kInvalidArgument the settings.
Result<std::unique_ptr<Policy>> make_policy(std::string_view policy_name);

PolicyTraits policy_traits(std::string_view policy_name);

// With their aliases, in alphabetical order.
std::vector<std::string> policy_names();

}  // namespace kvasir
