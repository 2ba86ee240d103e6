// Memory that an instance has borrowed from its peers. Its addresses follow the host tier's own memory, but
// its bytes are at the peers. The engine copies bytes there and back, and peers compute the attention over K
// and V that they hold.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

// Attention of some rows of one sequence over a run of leaves of its history (ops/attention_tree.h), in one
// layer, all KV heads. Every row sees all of every leaf.
struct RemoteQuery {
  uint32_t first_leaf = 0;
  uint32_t end_leaf = 0;
  uint32_t rows = 0;
  // Queries, rotated and scaled: [rows][q_dim], q_stride floats apart. Read before attend() returns.
  const float* q = nullptr;
  int64_t q_stride = 0;
  // Where the layer's K and V of each block of the leaves begin: V right behind K. The blocks may lie at
  // several peers, even those of one leaf. Read before attend() returns.
  std::span<const uint64_t> pieces;
  // What one thread of the caller attends to itself before it waits for the answer: leaves times rows.
  double own_leaf_rows = 0;
};

// Thread-safe. An operation may outlive the thread that began it, never the PeerMemory.
class PeerMemory {
 public:
  virtual ~PeerMemory() = default;

  // Called once when the operation has ended, on any thread, possibly before the call that began it returns.
  // Not ok: kUnavailable if the peer is dead, does not answer within its deadline, or has taken the memory
  // back; a failed read delivers nothing.
  using Done = std::function<void(Status)>;

  // Copies bytes to byte `at`, or from there, within one cell. The caller keeps the memory until `done` is
  // called.
  virtual void write(uint64_t at, std::span<const std::byte> from, Done done) = 0;
  virtual void read(uint64_t at, std::span<std::byte> to, Done done) = 0;

  // Partial results, one for each maximal aligned subtree of [first_leaf, end_leaf), left to right:
  // partials[(row * kv_heads + kv head) * peaks + peak][ops::partial_floats()]. `partials` stays until
  // `done`.
  virtual void attend(const RemoteQuery& query, std::span<float> partials, Done done) = 0;
};

}  // namespace kvasir
