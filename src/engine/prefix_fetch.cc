#include "engine/prefix_fetch.h"

#include <algorithm>

#include "cache/blocks/place.h"

namespace kvasir {
bool worth_fetching(const View& view, const PrefixIndex::Match& found, uint32_t at_peers) {
  if (!view.costs.known()) return true;
  const CacheGeometry& g = view.geometry;
  double fetch_s = 0;  // the tiers have links of their own
  uint32_t cells = 0;
  for (Tier tier : {Tier::kHost, Tier::kDisk}) {
    double bytes = 0;
    for (Form form : {Form::kKv, Form::kX}) {
      uint32_t there = found.what.cells[index_of(Place{form, tier})];
      if (form == Form::kKv && tier == Tier::kHost) there -= std::min(there, at_peers);
      cells += there;
      bytes += static_cast<double>(there) * static_cast<double>(g.cell_bytes(form));
    }
    if (bytes > 0) fetch_s = std::max(fetch_s, view.costs.transfer_seconds(tier, Tier::kDevice, bytes));
  }
  if (cells == 0) return true;
  const uint32_t blocks = (cells + g.groups() - 1) / g.groups();
  const double rows = blocks * g.block_tokens;
  const double history = (found.matched - std::min(blocks, found.matched)) * g.block_tokens;
  return fetch_s <= view.costs.rows_seconds(rows, history) + kSlackS;
}

}  // namespace kvasir
