// The aligned binary tree over leaf indices by which partial results of attention merge.
//
//   leaf     0   1   2   3   4   5   6
//             \ /     \ /     \ /    |
//              +-------+       |     |      peaks of 7 leaves: [0,4) [4,6) [6,7),
//                  |           |     |      folded left to right by finish()
// The shape depends on the leaf indices alone, so threads, blocks and peers may each own a range of leaves
// and hand over its peaks (at most about 2 log2 of its length); pushing them in order gives the same
// bits.
#pragma once

#include <array>
#include <cstdint>

#include "ops/cpu/kernels.h"

namespace kvasir::ops {

// Merges partial records as they arrive. Owned by one thread; keeps no memory of its own.
class AttentionTree {
 public:
  // A subtree of 2^level leaves that begins at first_leaf, a multiple of 2^level.
  struct Peak {
    int level = 0;
    int64_t first_leaf = 0;
    const float* partial = nullptr;
  };
  static constexpr int kMaxPeaks = 64;

  // Floats of storage that a range of at most max_leaves leaves needs.
  static int64_t storage_floats(int64_t max_leaves, int64_t heads, int64_t head_dim);

  // storage lives as long as the tree. first_leaf: where the range begins; 0 for a whole sequence.
  AttentionTree(const Kernels& kernels, int64_t heads, int64_t head_dim, float* storage, int64_t max_leaves,
                int64_t first_leaf = 0);

  // Where the next partial may be written in place, so that push(next_slot()) copies nothing.
  // Valid until the next call that changes the tree.
  float* next_slot();
  // Adds the next leaf, or the next subtree of 2^level leaves. partial is copied unless it is next_slot().
  // REQUIRES: next_leaf() is a multiple of 2^level.
  void push(const float* partial, int level = 0);
  // The leaf that comes next.
  int64_t next_leaf() const { return next_leaf_; }

  // The subtrees now held, left to right. Pointers are into storage.
  int peak_count() const { return count_; }
  Peak peak(int i) const;

  // Folds the peaks left to right and returns the record, in storage; the tree is then empty and starts again
  // where its range begins. REQUIRES: at least one push, and the range begins at the first leaf that the row
  // attends to: 0, or where its window begins.
  const float* finish();

 private:
  struct Entry {
    int level;
    int64_t first_leaf;
  };
  float* slot(int i) { return storage_ + i * stride_; }

  const Kernels& kernels_;
  const int64_t heads_;
  const int64_t head_dim_;
  const int64_t stride_;
  float* const storage_;
  const int capacity_;
  int64_t range_begin_;
  int64_t next_leaf_;
  int count_ = 0;
  std::array<Entry, kMaxPeaks> entries_{};
};

}  // namespace kvasir::ops
