// An index over a list whose entries have keys, such as layers: it finds the entries of a key.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "contract/interval.h"

namespace kvasir {

// Keys are small numbers: the index has one word for each, up to the largest in the list.
class ListIndex {
 public:
  // Sorts the list by key (stable) and indexes it, in time linear in entries and keys. The index is valid
  // until the list changes.
  template <typename Entry, typename KeyOf>
  void sort(std::vector<Entry>& list, KeyOf key_of) {
    begins_.clear();
    bool sorted = true;
    uint32_t before = 0;
    for (const Entry& entry : list) {
      const uint32_t key = key_of(entry);
      if (begins_.size() < size_t{key} + 2) begins_.resize(size_t{key} + 2);
      ++begins_[key + 1];
      sorted = sorted && before <= key;
      before = key;
    }
    for (size_t i = 1; i < begins_.size(); ++i) begins_[i] += begins_[i - 1];
    if (!sorted) put_in_order(list, key_of);
  }

  // The range of the entries with this key.
  Interval of(uint32_t key) const {
    return size_t{key} + 1 < begins_.size() ? Interval{begins_[key], begins_[key + 1]} : Interval{};
  }
  // How many entries have this key or a smaller one.
  uint32_t count_until(uint32_t key) const {
    if (begins_.empty()) return 0;
    return size_t{key} + 1 < begins_.size() ? begins_[key + 1] : begins_.back();
  }
  // The number of entries in the index.
  size_t size() const { return begins_.empty() ? 0 : begins_.back(); }

 private:
  template <typename Entry, typename KeyOf>
  void put_in_order(std::vector<Entry>& list, KeyOf key_of) const {
    std::vector<uint32_t> next = begins_;
    std::vector<Entry> out(list.size());
    for (Entry& entry : list) out[next[key_of(entry)]++] = std::move(entry);
    list = std::move(out);
  }

  std::vector<uint32_t> begins_;  // by key, and where the last one ends
};

}  // namespace kvasir
