// A plan in words, for people who look on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "contract/step_plan.h"
#include "contract/view.h"
#include "engine/cache_map.h"

namespace kvasir {

// What the plan decides: the reasons that the policy gives, and, where it gives none, what is done to which
// sequence. What each step does anyway (the next token of each, the next chunk of a prompt, what is staged)
// is left out. Sequences are named by their ids. `view`: the one that the plan was made for. At the most
// `most` notes; `unsaid`: how many more there would be.
std::vector<MapNote> plan_words(const View& view, const StepPlan& plan, size_t most, uint64_t& unsaid);

}  // namespace kvasir
