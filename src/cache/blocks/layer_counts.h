// A count for each layer group, raised and lowered for a whole set of groups at once.
#pragma once

#include <cstdint>
#include <vector>

#include "base/check.h"
#include "contract/layer_set.h"

namespace kvasir {

// The counts are binary numbers, and each digit is stored as the set of groups that have it. So a change
// touches a few words, whatever the number of groups.
class LayerCounts {
 public:
  // One more of each.
  void add(LayerSet groups) {
    for (LayerSet& digit : digits_) {
      if (groups.empty()) return;
      const LayerSet carry = digit & groups;
      digit = (digit | groups) - carry;
      groups = carry;
    }
    if (!groups.empty()) digits_.push_back(groups);
  }
  // One less of each. REQUIRES: each is counted.
  void remove(LayerSet groups) {
    for (LayerSet& digit : digits_) {
      if (groups.empty()) return;
      const LayerSet borrow = groups - digit;
      digit = (digit | groups) - (groups - borrow);
      groups = borrow;
    }
    KV_CHECK(groups.empty(), "{} groups are not counted", groups.count());
  }
  // The groups that are counted at least once.
  LayerSet counted() const {
    LayerSet sum;
    for (const LayerSet& digit : digits_) sum |= digit;
    return sum;
  }
  // The sum over all groups.
  uint64_t total() const {
    uint64_t sum = 0;
    for (size_t i = 0; i < digits_.size(); ++i) sum += uint64_t{digits_[i].count()} << i;
    return sum;
  }
  // Sets all counts to zero, and keeps the memory.
  void clear() { digits_.clear(); }

 private:
  std::vector<LayerSet> digits_;  // the lowest first
};

}  // namespace kvasir
