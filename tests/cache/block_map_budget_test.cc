// What the arithmetic of plans says fits is there: whatever is idle, in whatever order it is taken.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <vector>

#include "base/random.h"
#include "cache/blocks/block_map.h"
#include "plan/cell_ledger.h"

namespace kvasir {
namespace {

constexpr uint32_t kBlock = 16;

CacheGeometry random_geometry(Random& random) {
  constexpr std::array<uint64_t, 6> kX = {0, 4, 8, 12, 20, 40};
  CacheGeometry g;
  g.block_tokens = kBlock;
  g.layers = 4;
  g.layers_per_group = random.below(2) == 0 ? 1 : 2;
  g.kv_plane_bytes_per_token_layer = 8;
  g.x_bytes_per_token_layer = kX[random.below(kX.size())];
  return g;
}

// A map whose blocks are owned, partly idle or idle at random, on the device and the host.
class RandomMap {
 public:
  explicit RandomMap(uint64_t seed)
      : random_(seed),
        geometry_(random_geometry(random_)),
        map_(geometry_, {bytes(Tier::kDevice), bytes(Tier::kHost), 0}, index_) {}

  void fill() {
    for (int tries = static_cast<int>(random_.below(60)); tries > 0; --tries) {
      add_block();
      if (chance(0.5)) release_some();
    }
    for (uint64_t n = random_.below(30); n > 0; --n) release_some();
    check();
  }

  // Adopts, then takes all that is left, or some of it.
  void use_up() {
    View view;
    view.geometry = geometry_;
    view.device = map_.budget(Tier::kDevice);
    view.host = map_.budget(Tier::kHost);
    std::array<CellLedger, 2> ledgers = {CellLedger(view, Tier::kDevice), CellLedger(view, Tier::kHost)};
    const std::array<CellLedger, 2> before = ledgers;
    const std::vector<BlockId> adopted = some_published();
    const Adoptable what = match(adopted);
    for (size_t p = 0; p < kPlaces; ++p) {
      const Place place = place_at(p);
      if (place.tier != Tier::kDisk)
        ledgers[index_of(place.tier)].adopt(what.cells[p], what.idle[p], place.form);
    }
    // Also where nothing is taken adoption alone may be too much for the arithmetic, which knows less.
    const bool fits = ledgers[0].fits() && ledgers[1].fits();
    if (!fits) ledgers = before;
    if (fits && !adopted.empty()) {
      Holdings& holder = holdings_.emplace_back();
      for (BlockId id : adopted) map_.add_owner(id, holder);
      for (size_t p = 0; p < kPlaces; ++p) ASSERT_EQ(holder.cells[p], what.cells[p]);
      ASSERT_EQ(holder.dropped, 0u);
      ++adoptions;
    }
    const std::vector<Found> found = find_some(ledgers);
    const std::vector<Place> wanted = choose(ledgers);
    for (const Found& f : found) {
      map_.want(f.block, *owned_.at(f.block), f.place, f.groups);
      f.groups.for_each([&](uint32_t g) {
        if (map_.block(f.block).at(f.place).ready.contains(g)) return;
        map_.add_filler(f.block, f.place, LayerSet::one(g), TransferId{2});
        map_.filler_ended(f.block, f.place, LayerSet::one(g), TransferId{2}, true);
      });
      ++wants;
    }
    for (const Place& place : wanted) {
      taken_.push_back({place, map_.take_frame(place)});
      ++loose_[index_of(place)];
      ++allocations;
    }
    check();
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      for (Form form : kAllForms) ASSERT_GE(map_.budget(tier).available_cells(form), 0);
    }
  }

  void give_back() {
    for (const auto& [place, at] : taken_) {
      map_.give_back_frame(place, at);
      --loose_[index_of(place)];
    }
    taken_.clear();
    check();
  }

  uint64_t allocations = 0;
  uint64_t adoptions = 0;
  uint64_t wants = 0;

 private:
  bool chance(double p) { return random_.unit() < p; }
  bool exists(Place place) const {
    return map_.budget(place.tier).slabs > 0 && map_.shape(place.tier).cell_bytes[index_of(place.form)] > 0;
  }
  uint64_t bytes(Tier tier) {
    if (tier == Tier::kHost && chance(0.3)) return 0;
    return geometry_.kv_block_bytes() * (4 + random_.below(14)) + random_.below(1000);
  }
  void check() { ASSERT_EQ(map_.check_integrity(loose_).message(), ""); }

  LayerSet some_groups() {
    LayerSet set;
    for (uint32_t g = 0; g < geometry_.groups(); ++g) {
      if (chance(0.5)) set.add(g);
    }
    return set;
  }
  bool fits(Tier tier, const std::array<int64_t, kForms>& needs) const {
    const FrameBudget budget = map_.budget(tier);
    return std::all_of(kAllForms.begin(), kAllForms.end(),
                       [&](Form form) { return budget.available_beside(needs, form) >= 0; });
  }

  void add_block() {
    Writes writes;
    writes.kv = chance(0.5) ? map_.all_groups() : some_groups();
    if (exists({Form::kX, Tier::kDevice})) writes.x = some_groups();
    if (!fits(Tier::kDevice, {writes.kv.count(), writes.x.count()})) return;
    Holdings& holder = holdings_.emplace_back();
    const BlockId id = map_.create(holder, writes);
    map_.set_written(id, kBlock, writes, StepId{1});
    owned_[id] = &holder;
    const BlockHash hash = {{++next_, ~next_}};
    for (Form form : kAllForms) {
      const Place to = {form, Tier::kHost};
      const LayerSet groups = some_groups();
      if (chance(0.5) || !exists(to)) continue;
      std::array<int64_t, kForms> needs{};
      needs[index_of(form)] = groups.count();
      if (!fits(Tier::kHost, needs)) continue;
      map_.want(id, holder, to, groups);
      groups.for_each([&](uint32_t g) {
        map_.add_filler(id, to, LayerSet::one(g), TransferId{1});
        map_.filler_ended(id, to, LayerSet::one(g), TransferId{1}, true);
      });
    }
    map_.seal(id, &hash);
    hashes_[id] = hash;
  }

  // A sequence gives up a block, or some of its copies.
  void release_some() {
    if (owned_.empty()) return;
    auto it = std::next(owned_.begin(), static_cast<ptrdiff_t>(random_.below(owned_.size())));
    if (chance(0.5)) {
      map_.remove_owner(it->first, *it->second);
      owned_.erase(it);
      return;
    }
    map_.unwant(it->first, *it->second, place_at(random_.below(kPlaces)), some_groups());
  }

  std::vector<BlockId> some_published() {
    std::vector<BlockId> out;
    for (const auto& [id, hash] : hashes_) {
      if (index_.find(hash) == id && (!owned_.contains(id) || chance(0.3)) && chance(0.4)) out.push_back(id);
    }
    return out;
  }
  Adoptable match(const std::vector<BlockId>& blocks) {
    std::vector<BlockHash> chain;
    for (BlockId id : blocks) chain.push_back(hashes_.at(id));
    index_.watch(SeqId{1}, chain);
    const PrefixIndex::Match m = index_.match(SeqId{1});
    index_.unwatch(SeqId{1});
    EXPECT_EQ(m.matched, blocks.size());
    return m.what;
  }

  // Copies that owners of blocks take an interest in: some are there already, idle.
  struct Found {
    BlockId block;
    Place place;
    LayerSet groups;
  };
  std::vector<Found> find_some(std::array<CellLedger, 2>& ledgers) {
    std::vector<Found> out;
    for (const auto& [id, holder] : owned_) {
      const Place place = {kAllForms[random_.below(kForms)],
                           random_.below(2) == 0 ? Tier::kDevice : Tier::kHost};
      if (!exists(place) || chance(0.5)) continue;
      const LayerSet groups = some_groups() - map_.owner(id, *holder).at(place);
      std::array<CellLedger, 2> after = ledgers;
      after[index_of(place.tier)].take(groups.count(), place.form);
      after[index_of(place.tier)].find(groups.count(), place.form);
      if (groups.empty() || !after[index_of(place.tier)].fits()) continue;
      ledgers = after;
      out.push_back({id, place, groups});
    }
    return out;
  }

  // What to take, in the order in which it is taken.
  std::vector<Place> choose(std::array<CellLedger, 2>& ledgers) {
    std::vector<Place> wanted;
    for (int tries = 0; tries < 12; ++tries) {
      const Place place = {kAllForms[random_.below(kForms)],
                           random_.below(2) == 0 ? Tier::kDevice : Tier::kHost};
      if (!exists(place)) continue;
      CellLedger& ledger = ledgers[index_of(place.tier)];
      const int64_t room = ledger.available(place.form);
      if (room <= 0) continue;
      const auto n =
          chance(0.3) ? room : 1 + static_cast<int64_t>(random_.below(static_cast<uint64_t>(room)));
      ledger.take(static_cast<uint32_t>(n), place.form);
      EXPECT_TRUE(ledger.fits());
      wanted.insert(wanted.end(), static_cast<size_t>(n), place);
    }
    for (size_t i = wanted.size(); i > 1; --i) std::swap(wanted[i - 1], wanted[random_.below(i)]);
    return wanted;
  }

  Random random_;
  const CacheGeometry geometry_;
  PrefixIndex index_;
  BlockMap map_;
  std::deque<Holdings> holdings_;
  std::map<BlockId, Holdings*> owned_;
  std::map<BlockId, BlockHash> hashes_;
  std::vector<std::pair<Place, uint64_t>> taken_;
  std::array<uint32_t, kPlaces> loose_{};
  uint64_t next_ = 0;
};

TEST(BlockMapBudget, WhatTheArithmeticSaysFitsIsThere) {
  uint64_t allocations = 0, adoptions = 0, wants = 0;
  for (uint64_t seed = 1; seed <= 3000; ++seed) {
    RandomMap map(seed);
    ASSERT_NO_FATAL_FAILURE(map.fill()) << "seed " << seed;
    for (int round = 0; round < 2; ++round) {
      ASSERT_NO_FATAL_FAILURE(map.use_up()) << "seed " << seed;
      if (round == 0) map.give_back();
    }
    allocations += map.allocations;
    adoptions += map.adoptions;
    wants += map.wants;
    ASSERT_FALSE(testing::Test::HasFailure()) << "seed " << seed;
  }
  EXPECT_GT(allocations, 100'000u);
  EXPECT_GT(adoptions, 1000u);
  EXPECT_GT(wants, 1000u);
}

}  // namespace
}  // namespace kvasir
