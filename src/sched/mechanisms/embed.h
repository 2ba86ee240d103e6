// Embedding: one request uses the end of another's promised memory until that one needs it.
//
// Source: CacheOpt, Section 3.3.1 (embedding). The guest has the end of the host's region for its expected
// lifetime, one step per output token. Meanwhile the host grows by as many tokens:
//
//   symbol       here                                   unit
//   a_j          blocks held and promised               tokens
//   u_j          SeqView::known_tokens                  tokens
//   s_p + s_o    `cells`                                cells of KV, of whole blocks
//   s_o          `rest_tokens`                          tokens, and steps
//   b            `buffer_tokens`                        tokens
//
// It fits if a_j - (u_j + s_o + b) >= s_p + s_o. In a paged pool this is a loan of promised cells, due when
// the host has used up the rest of its promise. A guest may itself lend cells that it has not used yet, for
// as long as its own loan lasts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "contract/view.h"
#include "plan/plan_builder.h"

namespace kvasir {

struct Host {
  const SeqView* seq = nullptr;  // null: none
  uint32_t due_tokens = 0;       // the host's length at which it needs the cells back
};

// The running sequences that may lend, ordered by the rest of their promises.
class Hosts {
 public:
  // Both must outlive it.
  Hosts(const View& view, const PlanBuilder& builder);

  // The tightest fit: of the running sequences in whose promise the guest fits, the one with the least left.
  // REQUIRES: cells > 0, and update() was called for all sequences that the plan has changed
  Host find(const SeqView& guest, uint32_t cells, uint32_t rest_tokens, uint32_t buffer_tokens) const;
  // To be called when the plan has given a sequence rows, has preempted it, or has changed its promises.
  // REQUIRES: it is one of View::running
  void update(const SeqView& seq);

 private:
  struct Region {
    uint32_t promised = 0;     // cells that are left
    int64_t spare_tokens = 0;  // room of its blocks beyond the known tokens; below 0: these need more
    int64_t loan_steps = 0;    // until a loan of its own may be due
  };
  using Place = std::pair<uint32_t, size_t>;  // cells left, and the index into View::running

  // True if the number of cells left has changed.
  bool read(size_t index);

  const View& view_;
  const PlanBuilder& builder_;
  std::vector<Region> regions_;  // as View::running
  std::vector<Place> order_;     // ascending; of those that were promised something before this plan
  int64_t most_spare_ = 0;       // no region has more
};

}  // namespace kvasir
