// Apt-Serve by the rules of its Section 5 alone: `rules=paper` (docs/policies/apt-serve.md).
#pragma once

#include <memory>

#include "sched/batch_policy.h"

namespace kvasir {

struct PaperRules {
  bool hidden = true;  // X is used; without it K and V only (the paper's Table 4)
  double decay = 0;    // as AptServeOptions::decay
};

std::unique_ptr<BatchPolicy> make_apt_serve_by_section5(const PaperRules& rules);

}  // namespace kvasir
