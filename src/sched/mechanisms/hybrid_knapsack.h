// Chooses the requests of a batch and the form of each history, for the greatest value that fits in memory.
//
// Source: Apt-Serve, Definition 1 (Equations 7 to 9) and the greedy solution behind it, for any sizes of the
// two forms in place of m and m / 2.
//
//   symbol          here                    unit
//   p_i             HybridCandidate::value      s: its value if it is taken as K and V
//   U * rho * m_i   HybridCandidate::penalty    s, at least 0: the loss of value if it is taken as X
//   m_i             HybridCandidate::kv_bytes   bytes
//   m_i / 2         HybridCandidate::x_bytes    bytes; 0: it cannot be kept as X
//   M               `room`                      bytes
//
// Each candidate is a chain of additions of falling density (value per byte): X with (p - penalty) / x and
// then the upgrade to K and V with penalty / (kv - x); or, if X is no better per byte than K and V, K and V
// at once with p / kv. With x = h kv the first case holds if penalty <= (1 - h) p. Additions are taken by
// falling density while there is room; one that does not fit is skipped. If the first misfit belongs to a
// candidate that alone is worth more than everything that was taken, that candidate is taken first instead,
// and then the others as they fit.
//
// The result has at least half of the best value, because candidates that do not fit into `room` by
// themselves are left out beforehand. Up to the first misfit the additions of the greatest density were
// taken, so the best value is at most the sum of their value and the misfit's, and the result is at least the
// greater of the two. Without that rule there is no such bound ((value, bytes) = (1.1, 1), (1000, 1000),
// (8.9, 9) and room 10: 1.1 against 8.9).
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
  // The taken candidates, the greatest value per byte first; among equals the earlier one.
  std::vector<uint32_t> order;
  double value = 0;
};

// Deterministic. O(n log n).
HybridChoice choose_batch(std::span<const HybridCandidate> candidates, uint64_t room);

}  // namespace kvasir
