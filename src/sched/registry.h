// The policies by name. To add one, write policies/NAME.cc and add a line to the list in registry.cc.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/policy.h"

namespace kvasir {

// The properties of a policy by which other parts size tiers and rings, set defaults and warn. All are false
// for an unknown name.
struct PolicyTraits {
  // SeqView::priority changes what it plans.
  bool reads_priority = false;
  // Without priorities it plans what another policy plans.
  bool needs_priority = false;
  // It prefills a prompt in one step: if the token budget is below a usual prompt, each prompt runs alone.
  bool whole_prompts = false;
  // It moves KV to a tier behind the device: without one it loses its purpose.
  bool offloads = false;
  // It reads history through the stage ring even if the device could hold it: it needs a ring.
  bool stages = false;
  // It keeps parts of many histories off the device, and these pass through the stage ring in each step: it
  // needs a ring for all of them, even without a tier behind the device.
  bool drops = false;
  // It asks peers for memory: it gains if there are any.
  bool borrows = false;
  // It is another name of a policy that is in the list, too.
  bool alias = false;
  // It keeps copies in form X: it needs frames for them, and a ring through which they are read. Depends on
  // its settings; false if they are invalid.
  bool keeps_x = false;
};

// `policy_name` may end with settings: "layerkv:slo=off" (sched/policy_settings.h). kNotFound lists the
// policies, kInvalidArgument the settings.
Result<std::unique_ptr<Policy>> make_policy(std::string_view policy_name);

PolicyTraits policy_traits(std::string_view policy_name);

// With their aliases, in alphabetical order.
std::vector<std::string> policy_names();

}  // namespace kvasir
