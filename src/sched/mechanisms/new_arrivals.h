// The requests that have arrived since the last plan, for what watches the load.
#pragma once

#include <algorithm>
#include <cstdint>

#include "contract/view.h"

namespace kvasir {

// Calls visit(seq) for each waiting request whose id is above `newest`, the last one to arrive first, and
// sets `newest` to the greatest id. New requests are at the end of the queue; preempted ones keep their
// places.
template <typename Visit>
void for_each_new_arrival(const View& view, uint64_t& newest, const Visit& visit) {
  const uint64_t seen = newest;
  for (size_t i = view.waiting.size(); i-- > 0;) {
    const SeqView& seq = view.waiting[i];
    if (raw(seq.id) <= seen) break;
    newest = std::max(newest, raw(seq.id));
    visit(seq);
  }
}

}  // namespace kvasir
