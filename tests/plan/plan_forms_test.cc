// The builder and the checker where cells are held as X as well, are given up, or adopted.
#include "plan/forms_views.h"

namespace kvasir::test {
namespace {

// ---------------------------------------------------------------- X

TEST(PlanForms, XOfNewBlocksTakesRoomOfItsOwn) {
  View view = forms_view(10, 5, 0);
  view.waiting = {waiting_seq(1, 40)};
  PlanBuilder b(view);
  RowOptions o;
  o.x = LayerSet::all(2);
  EXPECT_EQ(b.prefill(view.waiting[0], 1000, o), 40u);
  // Of ten slabs six hold KV, and three hold six cells of X.
  EXPECT_EQ(b.available_blocks(), 0);
  const StepPlan plan = b.take();
  EXPECT_EQ(to_string(plan), "prefill 1 [0, 40) samples x2 keeps kv x2 x x2\n");
  EXPECT_TRUE(check_plan(view, plan).ok());
  view.device.spare_slabs = 8;
  expect_broken(view, plan, "cells of");
  PlanBuilder c(view);
  EXPECT_EQ(c.prefill(view.waiting[0], 1000, o), 0u);
  EXPECT_EQ(c.prefill(view.waiting[0], 1000), 40u) << "without it there is room";
}

TEST(PlanForms, XStandsForTheKvOfItsGroups) {
  View view = forms_view(10, 10, 3);
  with_host(view, 10, 10);
  view.waiting = {waiting_seq(1, 40)};
  PlanBuilder b(view);
  RowOptions o;
  o.kv = LayerSet();
  o.x = group(1);
  EXPECT_EQ(b.prefill(view.waiting[0], 1000, o), 40u);
  EXPECT_EQ(checked(view, b),
            "add 1 [0, 32) kv host x1 after_layer_writes\n"
            "prefill 1 [0, 40) samples x2 keeps kv x0 x x1\n");
}

TEST(PlanForms, WhatIsKeptNowhereIsDropped) {
  View view = forms_view(10, 10, 3);
  view.waiting = {waiting_seq(1, 40)};
  PlanBuilder b(view);
  RowOptions o;
  o.kv = LayerSet();
  o.slower = LayerSet();
  EXPECT_EQ(b.prefill(view.waiting[0], 1000, o), 40u);
  EXPECT_EQ(b.available_blocks(), 9) << "the block that is not full";
  EXPECT_EQ(checked(view, b), "prefill 1 [0, 40) samples x2 keeps kv x0 x x0\n");
}

TEST(PlanForms, XThatComesOverALinkTakesASlotBesideTheKvMadeOfIt) {
  View view = forms_view(10, 6, 3);
  with_host(view, 10, 5);
  SeqView s = decoding_seq(1, 20, 40);
  set_cells(s, Tier::kDevice, 2);
  s.resident_blocks = 1;
  s.device_groups = {};
  hold(s, Form::kX, Tier::kDevice, 4);
  view.running = {s};
  EXPECT_TRUE(PlanBuilder(view).can_run(view.running[0])) << "X on the device is projected into two slots";
  hold(view.running[0], Form::kX, Tier::kDevice, 0);
  hold(view.running[0], Form::kX, Tier::kHost, 4);
  EXPECT_FALSE(PlanBuilder(view).can_run(view.running[0]));
  set_ring(view, 4);
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0]));
  const StepPlan plan = b.take();
  EXPECT_TRUE(check_plan(view, plan).ok());
  set_ring(view, 3);
  expect_broken(view, plan, "stages 4 blocks of a layer, the ring has room for 3");
}

TEST(PlanForms, CopiesOfXAndHTakeRoomOfTheirForm) {
  View view = forms_view(10, 4, 0);
  with_host(view, 1, 1);  // two slabs
  SeqView s = decoding_seq(1, 20, 40);
  hold(s, Form::kX, Tier::kDevice, 4);
  view.running = {s};
  PlanBuilder b(view);
  const LayerSet all = LayerSet::all(2);
  EXPECT_TRUE(b.add_copies(view.running[0], {0, 39}, all, Tier::kHost, Trigger::kBackground, Form::kX));
  EXPECT_FALSE(b.add_copies(view.running[0], {0, 16}, group(0), Tier::kHost, Trigger::kNow));
  b.release(view.running[0], {0, 32}, all, Tier::kDevice, Form::kX);
  EXPECT_EQ(b.coming_blocks(), 0) << "what comes free is of X";
  ASSERT_TRUE(b.decode(view.running[0]));
  const StepPlan plan = b.take();
  EXPECT_EQ(to_string(plan),
            "add 1 [0, 32) x host x2 background\n"
            "drop 1 [0, 32) x device x2 when_ready\n"
            "decode 1 [39, 40) samples\n");
  EXPECT_TRUE(check_plan(view, plan).ok());
  view.host.spare_slabs = 1;
  expect_broken(view, plan, "more than are free, idle or given up on the host tier");
}

// ---------------------------------------------------------------- giving up

TEST(PlanForms, OneThatStopsCanKeepItsX) {
  View view = forms_view(10, 2, 0);
  with_host(view, 10, 5);
  SeqView s = decoding_seq(1, 20, 40);
  hold(s, Form::kX, Tier::kDevice, 4);
  hold(s, Form::kKv, Tier::kHost, 2);
  view.running = {s};
  view.waiting = {waiting_seq(2, 80)};
  PlanBuilder b(view);
  b.preempt_and_keep_x(view.running[0]);
  EXPECT_EQ(b.available_blocks(), 5);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  EXPECT_EQ(b.prefill(view.waiting[0], 1000), 80u);
  const StepPlan plan = b.take();
  EXPECT_EQ(to_string(plan),
            "preempt 1\n"
            "drop_all 1 kv device\n"
            "drop_all 1 kv host\n"
            "promise 2 10 cells on device\n"
            "prefill 2 [0, 80) samples\n");
  EXPECT_TRUE(check_plan(view, plan).ok());
}

TEST(PlanForms, ARunningSequenceDropsWhatItsRowsHaveRead) {
  View view = forms_view(10, 2, 0);
  view.running = {decoding_seq(1, 20, 40)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0]));
  b.drop(view.running[0], {0, 39}, group(1), Tier::kDevice);
  EXPECT_EQ(b.available_blocks(), 2);
  EXPECT_EQ(b.coming_blocks(), 1);
  const StepPlan plan = b.take();
  EXPECT_EQ(to_string(plan),
            "drop 1 [0, 32) kv device x1 now\n"
            "decode 1 [39, 40) samples\n");
  EXPECT_TRUE(check_plan(view, plan).ok());
  b.drop(view.running[0], {32, 39}, group(1), Tier::kDevice);
  EXPECT_TRUE(b.take().copies.empty()) << "a block that is not full is not dropped";
}

TEST(PlanForms, OneThatDoesNotRunDropsSomeAndDoesNotRunInThatPlan) {
  View view = forms_view(10, 4, 8);
  SeqView s = decoding_seq(1, 20, 40);
  view.waiting = {s};
  PlanBuilder b(view);
  b.drop(view.waiting[0], {16, 32}, LayerSet::all(2), Tier::kDevice);
  StepPlan plan = b.take();
  EXPECT_EQ(to_string(plan), "drop 1 [16, 32) kv device x2 now\n");
  EXPECT_TRUE(check_plan(view, plan).ok());
  PlanBuilder c(view);
  ASSERT_TRUE(c.admit(view.waiting[0]));
  ASSERT_TRUE(c.decode(view.waiting[0]));
  StepPlan runs = c.take();
  EXPECT_TRUE(check_plan(view, runs).ok());
  runs.copies = plan.copies;
  expect_broken(view, runs, "drops cells of sequence 1 and runs it");
}

TEST(PlanForms, WhatIsHeldInSeveralFormsGoesWhenTheLastIsDropped) {
  View view = forms_view(10, 0, 0);
  SeqView s = decoding_seq(1, 20, 40);
  hold(s, Form::kX, Tier::kDevice, 4);
  hold(s, Form::kX, Tier::kHost, 4);
  view.waiting = {s, waiting_seq(2, 10)};
  PlanBuilder b(view);
  b.drop_waiting(view.waiting[0]);
  ASSERT_TRUE(b.admit(view.waiting[1]));
  EXPECT_EQ(b.prefill(view.waiting[1], 10), 10u);
  StepPlan plan = b.take();
  EXPECT_EQ(plan.copies.size(), 3u);
  EXPECT_TRUE(check_plan(view, plan).ok());
  // It may begin anew in the same plan only if it holds nothing any more.
  plan.rows[0] = {SeqId{1}, {0, 16}, LayerSet::all(2), RowKind::kPrefill, {LayerSet::all(2), {}}, false};
  plan.promises.clear();
  EXPECT_TRUE(check_plan(view, plan).ok());
  plan.copies.pop_back();
  expect_broken(view, plan, "drops cells of sequence 1 and runs it");
  plan.copies.push_back(plan.copies[0]);
  expect_broken(view, plan, "drops cells of sequence 1, which has none");
}

// ---------------------------------------------------------------- adoption

TEST(PlanForms, WhatIsCachedElsewhereIsAdoptedAndBroughtToTheDevice) {
  View view = forms_view(10, 10, 2);
  with_host(view, 10, 3);
  view.host.loose[index_of(Form::kX)] = 2;
  SeqView s = waiting_seq(1, 50, 32);
  s.cached_resident_cells = 1;
  s.cached_idle[0] = {1, 1, 0};
  s.cached_idle[1] = {0, 2, 0};
  view.waiting = {s};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  // Four blocks, of which a cell is there already, idle until now.
  EXPECT_EQ(b.available_blocks(), 6);
  EXPECT_EQ(b.prefill(view.waiting[0], 1000), 18u);
  EXPECT_EQ(checked(view, b),
            "adopt 1 [0, 32)\n"
            "add 1 [0, 32) kv device x2 before_layer\n"
            "promise 1 7 cells on device\n"
            "prefill 1 [32, 50) samples\n");
  // X has to pass the ring: without it the sequence begins anew.
  set_ring(view, 1);
  PlanBuilder c(view);
  ASSERT_TRUE(c.admit(view.waiting[0]));
  EXPECT_EQ(c.prefill(view.waiting[0], 1000), 50u);
  EXPECT_EQ(checked(view, c),
            "promise 1 8 cells on device\n"
            "prefill 1 [0, 50) samples\n");
}

TEST(PlanForms, WhatIsAdoptedElsewhereAndNotBroughtCannotBeRead) {
  View view = forms_view(10, 10, 2);
  with_host(view, 10, 10);
  SeqView s = waiting_seq(1, 50, 32);
  s.cached_resident_cells = 1;
  view.waiting = {s};
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  ASSERT_EQ(b.prefill(view.waiting[0], 1000), 18u);
  StepPlan plan = b.take();
  plan.copies.clear();
  expect_broken(view, plan, "2 of 2 layer groups are neither on the device nor staged");
  plan.copies = {
      {Verb::kStage, SeqId{1}, {0, 32}, LayerSet::all(2), Form::kKv, Tier::kDevice, Trigger::kBeforeLayer}};
  set_ring(view, 4);  // KV, and X before it
  EXPECT_TRUE(check_plan(view, plan).ok());
  set_ring(view, 3);
  expect_broken(view, plan, "stages 4 blocks of a layer, the ring has room for 3");
}

// In group 0 with a window of 16: of its five blocks three are dead there. X of none has left yet: one cell
// of each of the three, two of the others.
TEST(PlanBuilderForms, XOfBlocksBehindAWindowLeavesAsWell) {
  View view = forms_view(20, 10, 20);
  with_host(view, 20, 20);
  view.geometry.set_windows(std::vector<uint32_t>{16, 16, 0, 0});
  SeqView s = decoding_seq(1, 20, 71);
  s.dead_blocks = view.geometry.dead_blocks(70);
  ASSERT_EQ(s.dead_blocks, 3u);
  set_cells(s, Tier::kDevice, 10 - 3);
  hold(s, Form::kX, Tier::kDevice, 5 + 2);
  view.running = {s};
  PlanBuilder b(view);
  ASSERT_TRUE(b.preempt_and_offload(view.running[0], LayerSet::all(kViewGroups)));
  const std::string plan = checked(view, b);
  EXPECT_NE(plan.find("add 1 [0, 64) x host x2"), std::string::npos) << plan;
}

}  // namespace
}  // namespace kvasir::test
