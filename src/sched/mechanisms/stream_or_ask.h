// How many rows of a long prompt, of those whose K and V go to peers, run in one step: all of them, which
// then attend to each other here while their K and V stream out, or fewer, which ask peers about the rows
// before them.
//
// Source: Infinite-LLM (Lin et al., arXiv 2401.02669v1), section 4.6 and Fig. 6a, which streams, on every
// network. Asking lets a peer attend while this device does, and costs the bytes of queries and of partial
// results, or of K and V that are fetched where that is less. The seconds of A rows in chunks of c:
//
//   symbol  unit   what
//   p       s      attention of one row to one position
//   k       B      K and V of one token
//   q       B      query of one row; a partial result has as many, one for each peak
//   B       B/s    the network
//   H       -      rows before the chunk, all at peers; n: peaks of the tree over their leaves
//
//   here  = p c (c + 1) / 2
//   ask   = max(here, (1 + n) q c / B + p c H)
//   fetch = max(here, k H / B) + p c H
//   chunk = max(k c / B, H == 0 ? here : min(ask, fetch))
//
// The chunk with the smallest sum is taken, of A, A / 2, A / 4, ..., or of what a step can take at the most
// where that is less than A; linear layers take the same time in all.
#pragma once

#include <cstdint>

namespace kvasir {

struct StreamOrAsk {
  double pair_s = 0;                // p
  double kv_bytes = 0;              // k
  double query_bytes = 0;           // q
  double bytes_per_s = 0;           // B
  uint32_t step_rows = 4096;        // fewer rows than these do not fill the device
  uint32_t most_rows = UINT32_MAX;  // of a step: its limit, and what passes the stage ring

  // REQUIRES: 0 < chunk <= rows, bytes_per_s > 0
  double seconds(uint32_t rows, uint32_t chunk) const;
  // Whole leaves of attention, or as many rows as there can be. REQUIRES: most_rows > 0
  uint32_t chunk(uint32_t rows) const;
};

}  // namespace kvasir
