// DeepSpeed-FastGen's Dynamic SplitFuse: steps of a fixed number of tokens; nobody is preempted to decode.
#pragma once

#include <memory>

#include "contract/policy.h"

namespace kvasir {
std::unique_ptr<Policy> make_fastgen_policy();
}
