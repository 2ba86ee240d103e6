// What a sequence takes as X, and how it becomes one of K and V. Blocks have 16 tokens and two cells; one of
// K and V takes 1,024 bytes, one of X half of that.
#include "sched/mechanisms/hidden_cache.h"

#include <gtest/gtest.h>

#include "plan/forms_views.h"

namespace kvasir::test {
namespace {

// Decodes, with X of all its blocks and K and V of the last one, if that is not full.
SeqView hidden_seq(uint64_t id, uint32_t known) {
  SeqView s = decoding_seq(id, 10, known);
  const uint32_t tail = s.ready_tokens % kViewBlock == 0 ? 0 : 1;
  set_cells(s, Tier::kDevice, tail * kViewGroups);
  hold(s, Form::kX, Tier::kDevice, s.blocks * kViewGroups);
  s.resident_blocks = tail;
  if (s.blocks > tail) s.device_groups = {};
  return s;
}

TEST(HiddenCache, BytesOfTheTwoForms) {
  const View view = forms_view(10, 10, 4);
  SeqView s = waiting_seq(1, 40);
  EXPECT_EQ(bytes_as_kv(view.geometry, s), 3 * 1024u);
  EXPECT_EQ(bytes_as_x(view.geometry, s), 3 * 512u + 1024) << "the last block has both";
  s.known_tokens = 48;
  EXPECT_EQ(bytes_as_x(view.geometry, s), 3 * 512u);
}

TEST(HiddenCache, WhatIsCachedStaysInItsForm) {
  const View view = forms_view(10, 10, 4);
  const SeqView s = waiting_seq(1, 100, 64, 1);  // four of seven blocks; one of them is used by no other
  EXPECT_EQ(bytes_as_kv(view.geometry, s), (7 - 3) * 1024u);
  EXPECT_EQ(bytes_as_x(view.geometry, s), 3 * 512u + 1024 + 1024) << "the last block, and the idle one";
}

TEST(HiddenCache, FreeBytesAreThatOfKv) {
  View view = forms_view(10, 3, 4);
  EXPECT_EQ(free_bytes(view, PlanBuilder(view)), 6 * 512u);
  view.device.loose = {1, 3};  // of the other form they are of no use to it
  EXPECT_EQ(free_bytes(view, PlanBuilder(view)), 7 * 512u);
  view.device.promised[0] = 100;
  EXPECT_EQ(free_bytes(view, PlanBuilder(view)), 0u);
}

TEST(HiddenCache, WhatAProjectionTakes) {
  View view = forms_view(10, 3, 4);
  const SeqView s = waiting_seq(1, 40);
  EXPECT_EQ(projection_seconds(view, s), 0) << "nothing is believed";
  view.costs.prefill_row_s = 0.6;
  EXPECT_DOUBLE_EQ(projection_seconds(view, s), 4);
  view.costs.projected_token_s = 0.01;
  EXPECT_DOUBLE_EQ(projection_seconds(view, s), 0.01 * 4 * 40) << "four layers";
  EXPECT_DOUBLE_EQ(projection_seconds(view, waiting_seq(1, 100, 64)), 0.01 * 4 * 36) << "adopted K and V";
  EXPECT_DOUBLE_EQ(projection_seconds(view, hidden_seq(1, 40)), 0.01 * 4 * 24)
      << "and those of its last block";
}

// Three blocks that decodes have filled, the last one in part: 40 tokens, 32 of them in full blocks.
TEST(HiddenCache, WhatAChangeToXCostsAndFrees) {
  View view = forms_view(10, 3, 4);
  SeqView s = decoding_seq(1, 10, 40);
  view.costs.prefill_row_s = 0.6;
  EXPECT_DOUBLE_EQ(projection_seconds_as_x(view, s), 0.1 * 32);
  view.costs.projected_token_s = 0.01;
  EXPECT_DOUBLE_EQ(projection_seconds_as_x(view, s), 0.01 * 4 * 32);
  EXPECT_EQ(bytes_freed_as_x(view.geometry, s), 3 * 1024u - (3 * 512 + 1024));
  s = decoding_seq(1, 10, 65);  // four full blocks, and the one that its next row begins
  EXPECT_EQ(bytes_freed_as_x(view.geometry, s), 4 * 1024u - (5 * 512 + 1024));
  s.own_cells[index_of(Form::kKv)][index_of(Tier::kDevice)] = 4;  // others hold the first block, too
  EXPECT_EQ(bytes_freed_as_x(view.geometry, s), 0u);
}

TEST(HiddenCache, APromptKeptAsXLeavesItsLastBlockAsKv) {
  View view = forms_view(10, 4, 4);
  view.waiting = {waiting_seq(1, 40)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0], admission_as_x(view, 0)));
  EXPECT_EQ(b.prefill(view.waiting[0], 1000, rows_as_x(view)), 40u);
  EXPECT_EQ(b.available_cells(Tier::kDevice, Form::kX), 4 * 4 - 4 - 6) << "two cells of KV and six of X";
  EXPECT_EQ(checked(view, b), "promise 1 2 cells on device\nprefill 1 [0, 40) samples x2 keeps kv x0 x x2\n");
}

TEST(HiddenCache, TwoBlocksAreNotPromisedThatXWillTake) {
  View view = forms_view(10, 1, 4);
  view.device.loose[index_of(Form::kX)] = 6;
  view.waiting = {waiting_seq(1, 40)};
  PlanBuilder b(view);
  EXPECT_FALSE(b.admit(view.waiting[0]));
  ASSERT_TRUE(b.admit(view.waiting[0], admission_as_x(view, 0)));
  EXPECT_EQ(b.prefill(view.waiting[0], 1000, rows_as_x(view)), 40u);
  checked(view, b);
}

TEST(HiddenCache, UpgradedByTheRowsThatProjectItAnyway) {
  View view = forms_view(10, 4, 4);
  view.running = {hidden_seq(1, 40)};
  ASSERT_TRUE(held_as_x(view.running[0]));
  for (uint32_t spare : {0u, 1u, 2u}) {
    PlanBuilder b(view);
    // Two blocks of the four, and one more that its rows may begin.
    ASSERT_EQ(upgrade_to_kv(view, view.running[0], spare, b), spare < 2) << spare;
    if (spare == 2) {
      EXPECT_TRUE(b.idle());
      continue;
    }
    ASSERT_TRUE(b.decode(view.running[0]));
    EXPECT_EQ(checked(view, b), "add 1 [0, 32) kv device x2 before_layer\ndecode 1 [39, 40) samples\n");
  }
}

// What a step makes is there when it has ended: only then X can be given up for it.
TEST(HiddenCache, XGoesWhenItsKvIsThere) {
  View view = forms_view(10, 4, 4);
  view.running = {hidden_seq(1, 40)};
  PlanBuilder before(view);
  give_up_needless_x(view, view.running[0], before);
  EXPECT_TRUE(before.take().copies.empty());
  set_cells(view.running[0], Tier::kDevice, 6);
  view.running[0].resident_blocks = 3;
  view.running[0].device_groups = LayerSet::all(2);
  EXPECT_FALSE(held_as_x(view.running[0]));
  PlanBuilder after(view);
  ASSERT_TRUE(after.decode(view.running[0]));
  give_up_needless_x(view, view.running[0], after);
  EXPECT_EQ(checked(view, after), "drop 1 [0, 39) x device x2 when_ready\ndecode 1 [39, 40) samples\n");
}

TEST(HiddenCache, OneThatWaitsForATransferIsNotUpgraded) {
  View view = forms_view(10, 4, 4);
  view.running = {hidden_seq(1, 40)};
  view.running[0].stalled = true;
  {
    PlanBuilder b(view);
    EXPECT_FALSE(upgrade_to_kv(view, view.running[0], 0, b));
  }
  view.running[0].stalled = false;
  view.running[0].in_flight = 1;  // a step may be making them
  {
    PlanBuilder b(view);
    EXPECT_FALSE(upgrade_to_kv(view, view.running[0], 0, b));
  }
}

TEST(HiddenCache, ABlockThatDecodesHaveFilledGivesUpItsKv) {
  View view = forms_view(10, 4, 4);
  SeqView s = hidden_seq(1, 49);  // three full blocks
  set_cells(s, Tier::kDevice, kViewGroups);
  s.resident_blocks = 1;
  view.running = {s};
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0], rows_as_x(view)));
  give_up_kv_beside_x(view, view.running[0], b);
  EXPECT_EQ(checked(view, b),
            "stage 1 [0, 48) kv device x2 before_layer\ndrop 1 [0, 48) kv device x2 when_ready\n"
            "decode 1 [48, 49) samples x2 keeps kv x0 x x2\n");
  // On its way already; nothing but the last block; another's block of which there is no X.
  view.running[0].leaving_cells = kViewGroups;
  PlanBuilder leaving(view);
  give_up_kv_beside_x(view, view.running[0], leaving);
  EXPECT_TRUE(leaving.take().copies.empty());
  view.running = {hidden_seq(2, 40)};
  PlanBuilder tail(view);
  give_up_kv_beside_x(view, view.running[0], tail);
  EXPECT_TRUE(tail.take().copies.empty());
  set_cells(view.running[0], Tier::kDevice, 2 * kViewGroups);
  hold(view.running[0], Form::kX, Tier::kDevice, 2 * kViewGroups);
  PlanBuilder adopted(view);
  give_up_kv_beside_x(view, view.running[0], adopted);
  EXPECT_TRUE(adopted.take().copies.empty());
}

}  // namespace
}  // namespace kvasir::test
