// Apt-Serve (Gao et al., SIGMOD 2025): who has been waiting for its next token for the longest by the byte
// that it takes goes first, and where memory is short a request's history is kept as X, which is smaller than
// K and V and is projected again in each step.
#pragma once

#include <memory>

#include "contract/policy.h"
#include "sched/policy_settings.h"

namespace kvasir {

// docs/policies/apt-serve.md has them by the names that users give them.
struct AptServeOptions {
  // Chunks of prompts beside the decodes of a step, within a budget of tokens (Section 6.7: Apt-Serve-S);
  // without it a step is prefills or decodes.
  bool coalesce = false;
  bool hidden = true;  // X is used; without it K and V only
  // The largest share of the device that the K and V of all requests kept as X would take.
  double hidden_share = 0.2;
  bool adaptive = true;  // by value; without it first come, first served, and nobody is put last
  // What is left of the value of a request that pends beyond its bound (Section 6.6); 0: next to nothing.
  double decay = 0;
};

std::unique_ptr<Policy> make_apt_serve_policy(const AptServeOptions& options);
std::unique_ptr<Policy> make_apt_serve_policy(PolicySettings& settings);
// With `coalesce`.
std::unique_ptr<Policy> make_apt_serve_s_policy(PolicySettings& settings);

}  // namespace kvasir
