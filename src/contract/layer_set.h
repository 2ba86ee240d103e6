// A set of layer groups; it need not be an interval.
#pragma once

#include <bit>
#include <cstdint>

#include "base/check.h"

namespace kvasir {

constexpr uint32_t kMaxLayerGroups = 128;

class LayerSet {
 public:
  constexpr LayerSet() = default;

  // The groups [0, groups). REQUIRES: groups <= kMaxLayerGroups
  static LayerSet all(uint32_t groups) {
    LayerSet s;
    for (uint32_t g = 0; g < groups; ++g) s.add(g);
    return s;
  }
  // That group alone. REQUIRES: group < kMaxLayerGroups
  static LayerSet one(uint32_t group) {
    LayerSet s;
    s.add(group);
    return s;
  }

  void add(uint32_t group) {
    KV_CHECK(group < kMaxLayerGroups, "group={}", group);
    words_[group / 64] |= uint64_t{1} << (group % 64);
  }
  void remove(uint32_t group) {
    if (group < kMaxLayerGroups) words_[group / 64] &= ~(uint64_t{1} << (group % 64));
  }
  bool contains(uint32_t group) const {
    return group < kMaxLayerGroups && (words_[group / 64] >> (group % 64) & 1) != 0;
  }
  bool empty() const { return (words_[0] | words_[1]) == 0; }
  uint32_t count() const {
    return static_cast<uint32_t>(std::popcount(words_[0]) + std::popcount(words_[1]));
  }
  // The bits of groups [64 * i, 64 * i + 64); for printing and saving.
  uint64_t word(int i) const { return words_[i]; }
  void set_word(int i, uint64_t w) { words_[i] = w; }
  // Calls f(group) for each, in ascending order.
  template <typename F>
  void for_each(F&& f) const {
    for (uint32_t i = 0; i < 2; ++i) {
      for (uint64_t w = words_[i]; w != 0; w &= w - 1) {
        f(64 * i + static_cast<uint32_t>(std::countr_zero(w)));
      }
    }
  }

  LayerSet& operator|=(const LayerSet& o) {
    words_[0] |= o.words_[0];
    words_[1] |= o.words_[1];
    return *this;
  }
  friend LayerSet operator|(LayerSet a, const LayerSet& b) { return a |= b; }
  friend LayerSet operator&(LayerSet a, const LayerSet& b) {
    a.words_[0] &= b.words_[0];
    a.words_[1] &= b.words_[1];
    return a;
  }
  // The groups of a that are not in b.
  friend LayerSet operator-(LayerSet a, const LayerSet& b) {
    a.words_[0] &= ~b.words_[0];
    a.words_[1] &= ~b.words_[1];
    return a;
  }
  friend bool operator==(const LayerSet&, const LayerSet&) = default;

 private:
  uint64_t words_[2] = {0, 0};
};

}  // namespace kvasir
