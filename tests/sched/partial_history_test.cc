#include "sched/mechanisms/partial_history.h"

#include <gtest/gtest.h>

#include "fakes/views.h"
#include "plan/plan_checker.h"

namespace kvasir::test {
namespace {

// Of 6 blocks, `dropped` and then `staged` are not on the device.
SeqView partial_seq(uint32_t dropped, uint32_t staged) {
  SeqView s = decoding_seq(1, 60, 93);
  s.dropped = {0, dropped * kViewBlock};
  s.dropped_end_group = dropped > 0 ? kViewGroups : 0;
  s.dropped_cells = dropped * kViewGroups;
  s.resident_blocks = s.blocks - dropped - staged;
  if (dropped + staged > 0) s.device_groups = {};
  set_cells(s, Tier::kDevice, s.resident_blocks * kViewGroups);
  set_cells(s, Tier::kHost, staged * kViewGroups);
  return s;
}

View view_of(const SeqView& seq, uint32_t free_host) {
  View view = make_view(20, 10);
  set_host(view, 20, free_host);
  set_ring(view, 30);
  view.running = {seq};
  return view;
}

std::string less(const View& view, PartialHistory wanted, uint32_t groups, uint32_t* more) {
  PlanBuilder builder(view);
  *more = keep_less(view, view.running[0], wanted, groups, builder);
  EXPECT_TRUE(builder.decode(view.running[0]));
  const StepPlan plan = builder.take();
  EXPECT_TRUE(check_plan(view, plan).ok()) << check_plan(view, plan).message();
  StepPlan copies;
  for (const CopyChange& c : plan.copies) {
    if (c.verb != Verb::kStage) copies.copies.push_back(c);
  }
  return to_string(copies);
}

TEST(PartialHistory, IsReadFromTheView) {
  EXPECT_EQ(partial_history(partial_seq(0, 0), {kViewBlock, 4, 2, 8}), (PartialHistory{0, 0}));
  EXPECT_EQ(partial_history(partial_seq(2, 1), {kViewBlock, 4, 2, 8}), (PartialHistory{2, 1}));
}

TEST(PartialHistory, TheOldestGoFirstAndNeverTheBlockThatIsNotFull) {
  uint32_t more = 0;
  const View view = view_of(partial_seq(0, 0), 20);
  EXPECT_EQ(less(view, {1, 1}, 0, &more),
            "add 1 [16, 32) kv host x2 now\ndrop 1 [16, 32) kv device x2 when_ready\ndrop 1 [0, 16) kv "
            "device x2 now\n");
  EXPECT_EQ(more, 2u);
  EXPECT_EQ(less(view, {9, 0}, 0, &more), "drop 1 [0, 80) kv device x2 now\n");
  EXPECT_EQ(more, 5u);
}

TEST(PartialHistory, WhatIsStagedIsDroppedAsTheShareGrows) {
  uint32_t more = 0;
  EXPECT_EQ(less(view_of(partial_seq(1, 1), 20), {2, 2}, 0, &more),
            "add 1 [32, 64) kv host x2 now\ndrop 1 [32, 64) kv device x2 when_ready\n"
            "drop 1 [16, 32) kv device x2 now\ndrop 1 [16, 32) kv host x2 now\n");
  EXPECT_EQ(more, 2u);
  EXPECT_EQ(less(view_of(partial_seq(2, 1), 20), {3, 0}, 0, &more), "") << "no more than now";
  EXPECT_EQ(more, 0u);
}

TEST(PartialHistory, AFullHostTakesNothing) {
  uint32_t more = 0;
  EXPECT_EQ(less(view_of(partial_seq(0, 0), 0), {1, 2}, 0, &more), "drop 1 [0, 16) kv device x2 now\n");
  EXPECT_EQ(more, 1u);
  EXPECT_EQ(less(view_of(partial_seq(0, 0), 0), {1, 2}, 1, &more), "");
  EXPECT_EQ(more, 0u);
}

TEST(PartialHistory, ComesBackTheNewestFirstAndThenWhatIsComputedAgain) {
  Writes restore;
  const View view = view_of(partial_seq(2, 2), 20);
  PlanBuilder builder(view);
  EXPECT_EQ(keep_more(view, view.running[0], 1, builder, &restore), 1u);
  EXPECT_TRUE(builder.decode(view.running[0]));
  const StepPlan plan = builder.take();
  EXPECT_TRUE(check_plan(view, plan).ok()) << check_plan(view, plan).message();
  EXPECT_EQ(plan.copies[0], (CopyChange{Verb::kAdd,
                                        SeqId{1},
                                        {48, 64},
                                        LayerSet::all(kViewGroups),
                                        Form::kKv,
                                        Tier::kDevice,
                                        Trigger::kNow}));
  EXPECT_TRUE(restore.kv.empty());

  const View dropped = view_of(partial_seq(2, 0), 20);
  PlanBuilder again(dropped);
  EXPECT_EQ(keep_more(dropped, dropped.running[0], 1, again, &restore), 0u) << "all of it, or nothing";
  EXPECT_EQ(keep_more(dropped, dropped.running[0], 2, again, &restore), 2u);
  EXPECT_EQ(restore.kv, LayerSet::all(kViewGroups));
  EXPECT_TRUE(again.decode(dropped.running[0], {.restore = restore}));
  EXPECT_TRUE(check_plan(dropped, again.take()).ok());
}

TEST(PartialHistory, NotOfOneOfWhichSomethingIsOnItsWay) {
  for (int i = 0; i < 5; ++i) {
    SeqView seq = partial_seq(0, 1);
    if (i == 1) seq.transfers = 1;
    if (i == 2) seq.leaving_cells = 2;
    if (i == 3) seq.stalled = true;
    if (i == 4) seq.max_total_tokens = 21 * kViewBlock;  // it streams: the device has 20
    const View view = view_of(seq, 20);
    EXPECT_EQ(may_be_partial(view.running[0], PlanBuilder(view)), i == 0) << i;
  }
}

}  // namespace
}  // namespace kvasir::test
