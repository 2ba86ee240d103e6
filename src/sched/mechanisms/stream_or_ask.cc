#include "sched/mechanisms/stream_or_ask.h"

#include <algorithm>
#include <bit>

#include "base/leaf_tokens.h"
#include "base/units.h"

namespace kvasir {

double StreamOrAsk::seconds(uint32_t rows, uint32_t chunk) const {
  double sum = 0;
  for (uint32_t before = 0; before < rows; before += chunk) {
    const double c = std::min(chunk, rows - before);
    const double here = pair_s * c * (c + 1) / 2;
    const double there = pair_s * c * before;
    const double peaks = std::popcount(ceil_div(before, uint32_t{kLeafTokens}));
    const double ask = std::max(here, (1 + peaks) * query_bytes * c / bytes_per_s + there);
    const double fetch = std::max(here, kv_bytes * before / bytes_per_s) + there;
    sum += std::max(kv_bytes * c / bytes_per_s, before == 0 ? here : std::min(ask, fetch));
  }
  return sum;
}

uint32_t StreamOrAsk::chunk(uint32_t rows) const {
  uint32_t best = std::min(rows, most_rows);
  for (uint32_t parts = 2; rows / parts >= step_rows; parts *= 2) {
    const uint32_t chunk = round_up(ceil_div(rows, parts), uint32_t{kLeafTokens});
    if (chunk < best && seconds(rows, chunk) < seconds(rows, best)) best = chunk;
  }
  return best;
}

}  // namespace kvasir
