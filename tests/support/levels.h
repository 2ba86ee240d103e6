// How much a test does: ./dev test, ./dev test --full (KVASIR_FULL=1) or --long (KVASIR_LONG=1, which is
// full, too).
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "base/random.h"

namespace kvasir::test {

inline bool is_set(const char* variable) {
  const char* value = std::getenv(variable);
  return value != nullptr && std::string_view(value) == "1";
}
inline bool at_long_level() {
  return is_set("KVASIR_LONG");
}
inline bool at_full_level() {
  return is_set("KVASIR_FULL") || at_long_level();
}

// The settings that a parameterised test runs with. At the full level all combinations of the values.
// Otherwise as many as the longest list has values: each value of each list comes up, the first list's in its
// order, the others' at a place drawn from `seed`.
template <typename... T>
std::vector<std::tuple<T...>> shapes(uint64_t seed, std::vector<T>... values) {
  if (at_full_level()) {
    std::vector<std::tuple<T...>> all = {{}};
    const auto cross = [&]<size_t k>(const auto& list) {
      std::vector<std::tuple<T...>> longer;
      for (const auto& shape : all) {
        for (const auto& value : list) {
          longer.push_back(shape);
          std::get<k>(longer.back()) = value;
        }
      }
      all = std::move(longer);
    };
    [&]<size_t... k>(std::index_sequence<k...>) {
      (cross.template operator()<k>(values), ...);
    }
    (std::index_sequence_for<T...>{});
    return all;
  }
  std::vector<std::tuple<T...>> some(std::max({values.size()...}));
  Random random(seed);
  const auto deal = [&]<size_t k>(const auto& list) {
    std::vector<size_t> at(some.size());
    for (size_t i = 0; i < at.size(); ++i) at[i] = i % list.size();
    for (size_t i = at.size(); k > 0 && i > 1; --i) std::swap(at[i - 1], at[random.below(i)]);
    for (size_t i = 0; i < at.size(); ++i) std::get<k>(some[i]) = list[at[i]];
  };
  [&]<size_t... k>(std::index_sequence<k...>) {
    (deal.template operator()<k>(values), ...);
  }
  (std::index_sequence_for<T...>{});
  return some;
}

}  // namespace kvasir::test
