// What a plan takes and gives, and what rows need: worked by hand.
#include "plan/cell_ledger.h"

#include <gtest/gtest.h>

#include "fakes/views.h"

namespace kvasir::test {
namespace {

TEST(CellLedger, TakesKeepsAndGivesBack) {
  View view = make_view(10, 4);  // 8 cells are free
  set_pinned(view, 1);
  CellLedger ledger(view, Tier::kDevice);
  EXPECT_EQ(ledger.available(), 8);
  EXPECT_EQ(ledger.coming(), 2);
  ledger.take(3);
  EXPECT_EQ(ledger.available(), 5);
  ledger.end_promise(1);
  EXPECT_EQ(ledger.available(), 6);
  ledger.give_up(4);
  EXPECT_EQ(ledger.available(), 10);
  ledger.give_up_later(5);
  EXPECT_EQ(ledger.available(), 10);
  EXPECT_EQ(ledger.coming(), 7);
}

TEST(CellLedger, WhatIsGivenUpMayBeWhatAnotherAdopts) {
  CellLedger ledger(make_view(10, 4), Tier::kDevice);
  ledger.adopt(4, 1);  // one of the four was idle, three are in use
  EXPECT_EQ(ledger.available(), 7);
  ledger.give_up(2);
  EXPECT_EQ(ledger.available(), 7) << "they may be two of those three";
  ledger.give_up(2);
  EXPECT_EQ(ledger.available(), 8);
}

TEST(CellLedger, TheOrderOfTheCallsDoesNotMatter) {
  CellLedger a(make_view(10, 4), Tier::kDevice);
  CellLedger b = a;
  a.give_up(4);
  a.take(7);
  a.adopt(6, 2);
  b.adopt(6, 2);
  b.take(7);
  EXPECT_LT(b.available(), 0);
  b.give_up(4);
  EXPECT_EQ(a.available(), b.available());
}

TEST(CellLedger, WithAStepInFlightWhatIsGivenUpComesLater) {
  View view = make_view(10, 4);
  view.steps_in_flight = 1;
  CellLedger ledger(view, Tier::kDevice);
  ledger.give_up(3);
  EXPECT_EQ(ledger.available(), 8);
  EXPECT_EQ(ledger.coming(), 3);
}

TEST(CellLedger, EachTierHasItsOwn) {
  View view = make_view(10, 4);
  EXPECT_EQ(CellLedger(view, Tier::kHost).available(), 0);
  set_host(view, 7, 5);
  EXPECT_EQ(CellLedger(view, Tier::kHost).available(), 10);
  EXPECT_EQ(view.total_cells(Tier::kHost), 14u);
}

LayerSet groups(std::initializer_list<uint32_t> list) {
  LayerSet set;
  for (uint32_t g : list) set.add(g);
  return set;
}

void expect_needs(const RowNeeds& n, uint32_t fresh, uint32_t full, uint32_t device, uint32_t slow,
                  uint32_t stage) {
  EXPECT_EQ(n.new_blocks, fresh);
  EXPECT_EQ(n.full_blocks, full);
  EXPECT_EQ(n.device_cells, device);
  EXPECT_EQ(n.slow_cells, slow);
  EXPECT_EQ(n.stage_blocks, stage);
}

// Of three groups; what is not kept goes to a slower tier.
RowNeeds needs(uint32_t blocks, uint32_t resident, uint32_t end, const LayerSet& kept) {
  const CacheGeometry g{16, 6, 2, 8};
  return RowNeeds(g, blocks, resident, end, {kept, {}}, LayerSet::all(3) - kept);
}

TEST(RowNeeds, WhereAllStaysOnTheDevice) {
  const LayerSet all = LayerSet::all(3);
  expect_needs(needs(0, 0, 1, all), 1, 0, 3, 0, 0);
  expect_needs(needs(0, 0, 48, all), 3, 3, 9, 0, 0);
  expect_needs(needs(2, 2, 30, all), 0, 0, 0, 0, 0);
  expect_needs(needs(2, 2, 50, all), 2, 1, 6, 0, 0);
  expect_needs(needs(4, 1, 60, all), 0, 0, 0, 0, 3);
}

TEST(RowNeeds, WhatIsKeptNowhereOnTheDevicePassesThroughTheRing) {
  // Blocks 1 to 3 are new; 1 and 2 are filled, the last one is on the device in every group.
  expect_needs(needs(1, 1, 50, {}), 3, 2, 3, 6, 2);
  expect_needs(needs(1, 1, 50, groups({0, 2})), 3, 2, 2 * 2 + 3, 2, 2);
  // A block that was there before is not filled from its first token on: it stays where it is.
  expect_needs(needs(3, 1, 48, {}), 0, 0, 0, 0, 2);
  expect_needs(needs(3, 1, 64, {}), 1, 1, 0, 3, 3);
  expect_needs(needs(3, 1, 65, {}), 2, 1, 3, 3, 3);
}

}  // namespace
}  // namespace kvasir::test
