// The streaming merger: a stack of subtrees, like the digits of a binary counter.
#include "ops/attention_tree.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir::ops {
namespace {

// A range of n leaves that begins anywhere holds at most this many subtrees, one being pushed included.
int peaks_of(int64_t max_leaves) {
  int bits = 1;
  while ((int64_t{1} << bits) <= max_leaves) ++bits;
  return std::min(2 * bits + 1, AttentionTree::kMaxPeaks);
}

}  // namespace

int64_t AttentionTree::storage_floats(int64_t max_leaves, int64_t heads, int64_t head_dim) {
  return peaks_of(max_leaves) * partial_floats(heads, head_dim);
}

AttentionTree::AttentionTree(const Kernels& kernels, int64_t heads, int64_t head_dim, float* storage,
                             int64_t max_leaves, int64_t first_leaf)
    : kernels_(kernels),
      heads_(heads),
      head_dim_(head_dim),
      stride_(partial_floats(heads, head_dim)),
      storage_(storage),
      capacity_(peaks_of(max_leaves)),
      range_begin_(first_leaf),
      next_leaf_(first_leaf) {
  KV_CHECK(heads > 0 && head_dim > 0 && max_leaves > 0 && first_leaf >= 0,
           "heads={} head_dim={} max_leaves={} first_leaf={}", heads, head_dim, max_leaves, first_leaf);
}

float* AttentionTree::next_slot() {
  KV_CHECK(count_ < capacity_, "peaks={} capacity={}", count_, capacity_);
  return slot(count_);
}

void AttentionTree::push(const float* partial, int level) {
  KV_CHECK(level >= 0 && level < 48 && next_leaf_ % (int64_t{1} << level) == 0, "level={} next_leaf={}",
           level, next_leaf_);
  float* top = next_slot();
  if (partial != top) std::memcpy(top, partial, static_cast<size_t>(stride_) * sizeof(float));
  entries_[static_cast<size_t>(count_)] = {level, next_leaf_};
  ++count_;
  next_leaf_ += int64_t{1} << level;
  while (count_ >= 2) {
    Entry& left = entries_[static_cast<size_t>(count_ - 2)];
    const Entry& right = entries_[static_cast<size_t>(count_ - 1)];
    const bool siblings = left.level == right.level && left.first_leaf % (int64_t{2} << left.level) == 0;
    if (!siblings && !mutant(Mutant::kMergeOrder)) break;
    kernels_.merge(slot(count_ - 2), slot(count_ - 1), heads_, head_dim_, slot(count_ - 2));
    if (siblings) ++left.level;
    --count_;
  }
}

AttentionTree::Peak AttentionTree::peak(int i) const {
  KV_CHECK(i >= 0 && i < count_, "peak {} of {}", i, count_);
  const Entry& entry = entries_[static_cast<size_t>(i)];
  return {entry.level, entry.first_leaf, storage_ + i * stride_};
}

const float* AttentionTree::finish() {
  KV_CHECK(count_ > 0, "no leaf of a range from {} on", range_begin_);
  for (int i = 1; i < count_; ++i) kernels_.merge(slot(0), slot(i), heads_, head_dim_, slot(0));
  count_ = 0;
  next_leaf_ = range_begin_;
  return slot(0);
}

}  // namespace kvasir::ops
