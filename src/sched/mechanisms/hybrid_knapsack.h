// Which requests form a batch, and in which form the history of each is kept: the greatest value that fits in
// memory.
//
// Source: Apt-Serve, Definition 1 (Equations 7 to 9) and the greedy solution behind it, for any sizes of the
// two forms in place of m and m / 2.
//
//   symbol          here                    unit
//   p_i             HybridCandidate::value      s: what it adds if it is taken, as K and V
//   U * rho * m_i   HybridCandidate::penalty    s, at least 0: so much less if it is taken as X
//   m_i             HybridCandidate::kv_bytes   bytes
//   m_i / 2         HybridCandidate::x_bytes    bytes; 0: it cannot be kept as X
//   M               `room`                      bytes
//
// Each candidate is a chain of additions of falling density (value a byte): X with (p - penalty) / x and then
// the upgrade to K and V with penalty / (kv - x); or, where X is no better than K and V by the byte, K and V
// at once with p / kv. With x = h kv the first is so where penalty <= (1 - h) p. Additions are taken by
// falling density while there is room, also behind one that does not fit. If the first misfit belongs to a
// candidate that alone is worth more than everything that was taken, that candidate is taken first instead,
// and the others as they fit beside it.
//
// The result has at least half of the best value, because what does not fit into all of `room` by itself is
// left out beforehand: up to the first misfit the additions of the greatest density were taken, so the best
// is at most the sum of their value and the misfit's, and the greater of the two is had. Without that rule
// there is no such bound
// ((value, bytes) = (1.1, 1), (1000, 1000), (8.9, 9) and room 10: 1.1 against 8.9).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvasir {

struct HybridCandidate {
  double value = 0;  // above 0, or it is not taken
  double penalty = 0;
  uint64_t kv_bytes = 0;
  uint64_t x_bytes = 0;
};

enum class HybridForm : uint8_t { kNone, kX, kKv };

struct HybridChoice {
  std::vector<HybridForm> forms;  // of each candidate
  // Those that are taken, the greatest value by the byte first; among equals the earlier one.
  std::vector<uint32_t> order;
  double value = 0;
};

// Deterministic. O(n log n).
HybridChoice choose_batch(std::span<const HybridCandidate> candidates, uint64_t room);

}  // namespace kvasir
