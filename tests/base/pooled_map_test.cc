#include "base/pooled_map.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/random.h"

namespace kvasir {
namespace {

enum class Id : uint64_t {};

// All ids have the same home in the table, of whatever size.
struct Crowded {
  uint64_t operator()(Id id) const { return static_cast<uint64_t>(id) % 3; }
};

// Random calls, compared with a map of the standard library; where each entry lies never changes.
template <typename Hash>
void compare(uint64_t ids, int calls) {
  PooledMap<Id, std::string, Hash> map;
  std::unordered_map<uint64_t, std::string> model;
  std::unordered_map<uint64_t, const std::string*> places;
  Random random(3);
  for (int i = 0; i < calls; ++i) {
    const uint64_t n = random.below(ids);
    const Id id{n};
    switch (random.below(5)) {
      case 0:
      case 1: {
        const auto [value, fresh] = map.try_emplace(id, 20 + n % 20, 'x');
        EXPECT_EQ(fresh, model.try_emplace(n, 20 + n % 20, 'x').second);
        if (fresh) places[n] = value;
        break;
      }
      case 2:
        if (!model.contains(n)) places[n] = &map[id];
        map[id] = model[n] = std::to_string(i);
        break;
      default:
        EXPECT_EQ(map.erase(id), model.erase(n) > 0) << n;
        places.erase(n);
    }
    ASSERT_EQ(map.size(), model.size());
    if (random.below(200) == 0 && random.below(4) == 0) {
      map.clear();
      model.clear();
      places.clear();
    }
    if (random.below(50) != 0) continue;
    for (const auto& [key, value] : model) {
      const std::string* found = map.find(Id{key});
      ASSERT_NE(found, nullptr) << key;
      EXPECT_EQ(*found, value);
      EXPECT_EQ(found, places.at(key)) << "it has moved";
    }
    std::map<uint64_t, std::string> walked;
    for (const auto& [key, value] : std::as_const(map)) walked[static_cast<uint64_t>(key)] = value;
    EXPECT_EQ(walked, (std::map<uint64_t, std::string>(model.begin(), model.end())));
    EXPECT_EQ(map.contains(Id{ids}), false);
  }
}

TEST(PooledMap, IsAMap) {
  compare<IdHash<Id>>(40, 4000);
  compare<IdHash<Id>>(3000, 20'000);
}

TEST(PooledMap, IsAMapWhereAllHashesCollide) {
  compare<Crowded>(40, 4000);
}

TEST(PooledMap, KeepsItsPlacesWhereItIsToldHowManyComeAndUsesThemAgain) {
  PooledMap<Id, uint64_t> map;
  map.reserve(100);
  std::vector<const uint64_t*> first;
  for (uint64_t i = 0; i < 100; ++i) first.push_back(map.try_emplace(Id{i}, i).first);
  for (uint64_t i = 0; i < 100; ++i)
    EXPECT_EQ(first[i] - first[0], (first[1] - first[0]) * static_cast<ptrdiff_t>(i));
  map.clear();
  EXPECT_TRUE(map.empty());
  EXPECT_EQ(map.find(Id{1}), nullptr);
  std::vector<const uint64_t*> again;
  for (uint64_t i = 0; i < 100; ++i) again.push_back(map.try_emplace(Id{1000 + i}, i).first);
  std::sort(first.begin(), first.end());
  std::sort(again.begin(), again.end());
  EXPECT_EQ(first, again);
}

}  // namespace
}  // namespace kvasir
