// The builder and the checker where cells were dropped: they are recomputed.
#include "plan/forms_views.h"

namespace kvasir::test {
namespace {

// ---------------------------------------------------------------- what was dropped

TEST(PlanForms, WhatWasDroppedIsComputedAgainBesideTheRowsThatReadIt) {
  View view = forms_view(10, 6, 2);
  view.running = {dropped_seq(1)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.can_run(view.running[0]));
  ASSERT_TRUE(b.decode(view.running[0]));
  EXPECT_EQ(b.available_blocks(), 6) << "it passes through the ring, and is dropped again";
  EXPECT_EQ(b.planned_tokens(), 1u);
  EXPECT_EQ(checked(view, b),
            "stage 1 [0, 39) kv device x2 before_layer\n"
            "restore 1 [0, 32) x2 keeps kv x0 x x0\n"
            "decode 1 [39, 40) samples\n");
}

TEST(PlanForms, ItPassesTheRingOnceWhereNothingElseDoes) {
  View view = forms_view(10, 6, 1);
  view.running = {dropped_seq(1)};
  EXPECT_FALSE(PlanBuilder(view).can_run(view.running[0]));
  PlanBuilder b(view);
  EXPECT_FALSE(b.decode(view.running[0]));
  EXPECT_TRUE(b.take().rows.empty());
  // One cell of the rectangle is there after all: block 0 has it, but also passes again.
  set_ring(view, 3);
  view.running[0].dropped_cells = 3;
  EXPECT_FALSE(PlanBuilder(view).can_run(view.running[0]));
  set_ring(view, 4);
  EXPECT_TRUE(PlanBuilder(view).can_run(view.running[0]));
}

TEST(PlanForms, ThereIsMemoryForTheActivationsOfSoManyRows) {
  View view = forms_view(10, 6, 8);
  view.scratch_tokens = 32;
  view.running = {dropped_seq(1), decoding_seq(2, 20, 40)};
  EXPECT_FALSE(PlanBuilder(view).can_run(view.running[0]));
  PlanBuilder b(view);
  EXPECT_FALSE(b.decode(view.running[0]));
  view.scratch_tokens = 33;
  PlanBuilder c(view);
  ASSERT_TRUE(c.decode(view.running[0]));
  EXPECT_FALSE(c.decode(view.running[1]));
  const StepPlan plan = c.take();
  EXPECT_TRUE(check_plan(view, plan).ok());
  view.scratch_tokens = 32;
  expect_broken(view, plan, "has 33 rows, there is memory for the activations of 32");
}

TEST(PlanForms, APrefillEndsWhereThatMemoryEnds) {
  View view = forms_view(20, 20, 8);
  view.scratch_tokens = 50;
  view.running = {running_seq(1, 100, 100, 20)};
  view.waiting = {waiting_seq(2, 100)};
  PlanBuilder b(view);
  EXPECT_EQ(b.prefill(view.running[0], 30), 30u);
  ASSERT_TRUE(b.admit(view.waiting[0]));
  EXPECT_EQ(b.prefill(view.waiting[0], 1000), 20u);
  EXPECT_TRUE(check_plan(view, b.take()).ok());
}

TEST(PlanForms, WhatIsComputedAgainCanBeKept) {
  View view = forms_view(10, 6, 2);
  view.running = {dropped_seq(1)};
  PlanBuilder b(view);
  RowOptions o;
  o.restore = {group(0), group(1)};
  ASSERT_TRUE(b.decode(view.running[0], o));
  // Two cells of KV, and one slab for two of X.
  EXPECT_EQ(b.available_blocks(), (12 - 2 - 1) / 2);
  EXPECT_EQ(checked(view, b),
            "stage 1 [0, 39) kv device x2 before_layer\n"
            "restore 1 [0, 32) x2 keeps kv x1 x x1\n"
            "decode 1 [39, 40) samples\n");
  view.device.spare_slabs = 2;
  PlanBuilder c(view);
  EXPECT_FALSE(c.decode(view.running[0], o)) << "one slab too few";
  EXPECT_EQ(c.available_blocks(), 1);
  view.device.loose[index_of(Form::kX)] = 2;
  PlanBuilder d(view);
  EXPECT_TRUE(d.decode(view.running[0], o));
  EXPECT_TRUE(check_plan(view, d.take()).ok());
}

TEST(PlanForms, TheCheckerKnowsWhatRecomputingRowsAre) {
  View view = forms_view(10, 6, 8);
  view.running = {dropped_seq(1, 1)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0]));
  const StepPlan good = b.take();
  ASSERT_TRUE(check_plan(view, good).ok());
  StepPlan plan = good;
  plan.rows.erase(plan.rows.begin());
  expect_broken(view, plan, "sequence 1: of its history [0, 32) is dropped, and not recomputed");
  plan = good;
  plan.rows.pop_back();
  expect_broken(view, plan, "sequence 1: recomputes what no row reads");
  plan = good;
  plan.rows[0].tokens = {0, 16};
  expect_broken(view, plan, "of its history [0, 32) is dropped");
  plan = good;
  plan.rows[0].layers = LayerSet::all(1);
  expect_broken(view, plan, "of its history [0, 32) is dropped");
  plan = good;
  plan.rows[0].tokens = {0, 20};
  expect_broken(view, plan, "recomputes [0, 20) of 39, not whole blocks");
  plan = good;
  plan.rows[0].layers = group(1);
  expect_broken(view, plan, "recomputes 1 layer groups, which are not the first ones");
  plan = good;
  plan.rows.insert(plan.rows.begin(), plan.rows[0]);
  expect_broken(view, plan, "recomputes twice");
  plan = good;
  plan.rows[0].layers = LayerSet::all(2);
  plan.rows[0].writes.x = LayerSet::all(3);
  expect_broken(view, plan, "rows keep layer groups that there are not");
  plan = good;
  plan.rows[0].layers = group(0);
  plan.rows[0].writes.kv = group(1);
  expect_broken(view, plan, "keeps layer groups that are not recomputed");
}

// The end of its rows tells whether they recompute (KvCache::computes_again): a sequence has at most one
// run of rows that go on, and it comes last.
TEST(PlanForms, RowsThatGoOnAreOneRunAndTheLast) {
  View view = forms_view(10, 6, 8);
  view.running = {dropped_seq(1)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.decode(view.running[0]));
  StepPlan plan = b.take();
  std::swap(plan.rows[0], plan.rows[1]);
  EXPECT_FALSE(check_plan(view, plan).ok()) << "the history is not there yet";

  // Of a prefill nothing was dropped; its first part would end within the history that the second one leaves.
  view.running = {running_seq(1, 100, 100, 16)};
  PlanBuilder whole(view);
  ASSERT_EQ(whole.prefill(view.running[0], 32), 32u);
  const StepPlan good = whole.take();
  ASSERT_EQ(good.rows.size(), 1u);
  plan = good;
  plan.rows.push_back(plan.rows[0]);
  plan.rows[0].tokens.end = plan.rows[1].tokens.begin = 32;
  expect_broken(view, plan, "sequence 1: rows in two parts");
  // What these rows have only just computed.
  plan = good;
  plan.rows.push_back(plan.rows[0]);
  plan.rows[1].kind = RowKind::kRestore;
  plan.rows[1].tokens = {16, 48};
  expect_broken(view, plan, "sequence 1: recomputes behind the rows that go on");
  plan.rows[1].tokens = {0, 16};
  expect_broken(view, plan, "sequence 1: recomputes behind the rows that go on");
}

}  // namespace
}  // namespace kvasir::test
