// Source: Chen, Lu, Xu, Ye, Xu, "High Throughput and Low Latency LLM Serving via Adaptive KV Caching" (eLLM),
// EuroSys 2026. Where the rules differ and why: docs/policies/ellm.md.
#pragma once

#include <cstdint>
#include <memory>

#include "contract/policy.h"
#include "sched/mechanisms/batch_cost.h"
#include "sched/policy_settings.h"

namespace kvasir {

struct EllmOptions {
  // What a step is believed to take: by the fitted belief, by the paper's volumes as corrected, or to the
  // letter.
  enum class Cost : uint8_t { kBelief, kCorrected, kLetter };
  Cost cost = Cost::kBelief;
  PublishedShape shape;  // for the latter two
  // What divides the rest between computing again and the link: the least time of eight ways, or the least
  // bubble of the published six.
  bool least_bubble = false;
  bool slsqp = false;  // the paper's solver in place of the closed form
  bool by_layers =
      false;  // of what is not kept the first layers are computed again, in place of the oldest tokens
  bool measured = true;  // times are corrected by measured steps
  // The paper's ablations: what is staged comes in its own layer only; rows that compute again pass the
  // weights on their own (hints: executors that know no better ignore them).
  bool overlap = true;
  bool fuse = true;
  // For experiments: r, and the share of it that is computed again, whatever memory has room for. Negative:
  // chosen.
  double ratio = -1;
  double again = -1;
};

std::unique_ptr<Policy> make_ellm_policy(const EllmOptions& options = {});
std::unique_ptr<Policy> make_ellm_policy(PolicySettings& settings);

}  // namespace kvasir
