// LayerKV (Xiong et al., 2024): prompts are prefilled as soon as the bounds of those that decode allow, and
// the layers of their keys and values for which the device has no room go to the host while they are
// computed.
#pragma once

#include <cstdint>
#include <memory>

#include "contract/policy.h"
#include "sched/mechanisms/prefill_time.h"
#include "sched/policy_settings.h"

namespace kvasir {

// docs/policies/layerkv.md has them by the names that users give them.
struct LayerKvOptions {
  // Equation 2 bounds prefills; without it they wait for memory only: the paper's ablation.
  bool slo = true;
  // Prompts are prefilled beside the decodes of a step; without it a step is prefills or decodes, as in vLLM
  // 0.5.
  bool mixed = true;
  double threshold = 0.01;    // share of the device's cells below which layers are offloaded
  uint32_t stages = 1;        // of a block's tokens: how far Equation 5 looks ahead
  double link_share = 1;      // of the time that a step computes, for what the link brings meanwhile
  double urgent_share = 0.3;  // of its bounds: who has no more left has layers staged for its next token
  double beta = 1;            // Equation 4
  PublishedPrefillTime published{};  // Equation 3 to the letter
};

// Needs a tier behind the device; without one it admits as the device has room.
std::unique_ptr<Policy> make_layerkv_policy(const LayerKvOptions& options);
std::unique_ptr<Policy> make_layerkv_policy(PolicySettings& settings);

}  // namespace kvasir
