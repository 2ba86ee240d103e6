// A half-open range of token positions: [begin, end).
#pragma once

#include <algorithm>
#include <cstdint>

namespace kvasir {

struct Interval {
  uint32_t begin = 0;
  uint32_t end = 0;

  constexpr uint32_t size() const { return end - begin; }
  constexpr bool empty() const { return begin >= end; }
  constexpr bool valid() const { return begin <= end; }
  constexpr bool contains(uint32_t position) const { return begin <= position && position < end; }
  friend constexpr bool operator==(const Interval&, const Interval&) = default;
};

constexpr Interval intersect(Interval a, Interval b) {
  const uint32_t begin = std::max(a.begin, b.begin);
  return {begin, std::max(begin, std::min(a.end, b.end))};
}

}  // namespace kvasir
