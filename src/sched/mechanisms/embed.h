// Who lends what it was promised and has not come to yet.
//
// Source: CacheOpt, Section 3.3.1 (embedding). The guest has the end of the host's region for as long as it
// is believed to take, one step for each token of its output; by then the host has come so far as well:
//
//   symbol       here                                   unit
//   a_j          blocks held and promised               tokens
//   u_j          SeqView::known_tokens                  tokens
//   s_p + s_o    `cells`                                cells of KV, of whole blocks
//   s_o          `rest_tokens`                          tokens, and steps
//   b            `buffer_tokens`                        tokens
//
// It fits if a_j - (u_j + s_o + b) >= s_p + s_o. In a paged pool this is a loan of promised cells that is due
// when the host has used up what is left to it; a guest may lend in its turn what it has not come to, for as
// long as its own loan lasts.
#pragma once

#include <cstdint>

#include "contract/plan_builder.h"
#include "contract/view.h"

namespace kvasir {

struct Host {
  const SeqView* seq = nullptr;  // null: nobody
  uint32_t due_tokens = 0;       // its own length when it needs them back
};

// Of the running sequences in whose promise the guest fits, the one that has least of it left.
Host find_host(const View& view, const PlanBuilder& builder, const SeqView& guest, uint32_t cells,
               uint32_t rest_tokens, uint32_t buffer_tokens);

}  // namespace kvasir
