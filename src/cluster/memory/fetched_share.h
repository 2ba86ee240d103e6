// Leaves that lie at peers and are attended to here: K and V of one window of them are fetched and
// attended to, and then make room for those of the next window.
//
//   leaves          4 5 6 7   9 10 11     runs [4, 8) and [9, 12)
//   windows of 3    0 0 0 1   1  1  2
//
// A window's subtrees merge with those of earlier windows in the tree of their run.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "cluster/memory/memory_shape.h"
#include "ops/attention_tree.h"

namespace kvasir {

// Not thread-safe.
class FetchedShare {
 public:
  // q: [rows][q_dim]. out: [rows][kv heads][subtrees of the runs] records. All but the runs outlive it.
  FetchedShare(const MemoryShape& shape, const ops::Kernels& kernels, std::span<const LeafRun> runs,
               uint32_t window_leaves, uint32_t rows, const float* q, float* out);

  size_t windows() const { return windows_.size(); }
  // The leaves of a window.
  std::span<const LeafRun> runs(size_t window) const { return windows_[window]; }
  uint32_t rows() const { return rows_; }

  // Attends to a window; `out` is complete after the last one. kv: of the window's leaves, block by
  // block, V behind K. False: go_on, which is called between any two leaves, returned false.
  // REQUIRES: called once for each window, in order.
  bool attend(size_t window, std::span<const std::byte> kv, const std::function<bool()>& go_on);

 private:
  struct Part {
    LeafRun run;
    uint32_t first_peak;  // of those of a row and KV head
    uint32_t peaks;
  };

  void push(const Part& part);
  void plant(LeafRun run);
  void take_peaks();

  const MemoryShape& shape_;
  const ops::Kernels& kernels_;
  const uint32_t rows_;
  const float* const q_;
  float* const out_;
  const std::vector<LeafRun> runs_;
  std::vector<std::vector<LeafRun>> windows_;

  size_t run_ = 0;                         // the current run
  uint32_t peaks_done_ = 0;                // of the runs before it
  std::vector<ops::AttentionTree> trees_;  // of the current run, [rows][kv heads]
  std::vector<float> storage_;
  std::vector<float> records_;  // of the window
};

}  // namespace kvasir
