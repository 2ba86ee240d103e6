// What the base of the policies does around each of them. Blocks have 16 tokens.
#include "sched/batch_policy.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/turn_alone.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

using Plans = std::function<void(const View&, PlanBuilder&)>;

// Plans nothing, unless it is told what to plan, and counts.
class IdlePolicy final : public BatchPolicy {
 public:
  explicit IdlePolicy(Plans batch = {}, Plans begin = {})
      : batch_(std::move(batch)), begin_(std::move(begin)) {}
  int begun = 0, planned = 0;
  bool latest_first = false;

 private:
  void begin_step(const View& view, PlanBuilder& builder) override {
    ++begun;
    if (begin_) begin_(view, builder);
  }
  void plan_batch(const View& view, PlanBuilder& builder) override {
    ++planned;
    if (batch_) batch_(view, builder);
  }
  std::vector<const SeqView*> in_order(const View& view) const override {
    std::vector<const SeqView*> order = by_arrival(view.running);
    if (latest_first) std::reverse(order.begin(), order.end());
    return order;
  }

  const Plans batch_, begin_;
};

// ---------------------------------------------------------------- a step for one sequence

TEST(BatchPolicy, OneThatWasDeferredTooOftenHasAStepToItself) {
  View view = make_view(20, 20);
  set_ring(view, 20);
  view.running = {streaming_seq(1, 100, 121, 120), decoding_seq(2, 20, 30)};
  const auto decode_all = [](const View& v, PlanBuilder& b) {
    for (const SeqView& seq : v.running) b.decode(seq);
  };
  IdlePolicy policy(decode_all);
  EXPECT_EQ(policy.plan(view).rows.size(), 2u);
  view.running[0].deferrals = kDeferralsBeforeTurn;
  const StepPlan alone = policy.plan(view);
  ASSERT_EQ(alone.rows.size(), 1u);
  EXPECT_EQ(alone.rows[0].seq, SeqId{1});
  EXPECT_EQ(policy.begun, 2);
  EXPECT_EQ(policy.planned, 1);
}

TEST(BatchPolicy, RowsOfTheBeginningAreTheStep) {
  View view = make_view(20, 20);
  view.running = {decoding_seq(1, 20, 30), decoding_seq(2, 20, 30)};
  IdlePolicy policy({}, [](const View& v, PlanBuilder& b) { b.decode(v.running[1]); });
  EXPECT_EQ(plan_of(policy, view), "decode 2 [29, 30) samples\n");
  EXPECT_EQ(policy.planned, 0);
}

// ---------------------------------------------------------------- standing still

TEST(BatchPolicy, TheLastArrivalGivesWayWhereNothingElseCanHappen) {
  View view = make_view(8, 0);
  view.running = {running_seq(2, 100, 100, 64), running_seq(1, 100, 100, 64)};
  IdlePolicy policy;
  EXPECT_EQ(plan_of(policy, view), "preempt 2\ndrop_all 2 kv device\n");
  policy.latest_first = true;
  EXPECT_EQ(plan_of(policy, view), "preempt 1\ndrop_all 1 kv device\n") << "as the policy says";
}

TEST(BatchPolicy, WhereNoneRunsOneThatWaitsGivesUpItsCells) {
  View view = make_view(8, 0);
  view.waiting = {swapped_seq(1, 20, 40, 39), swapped_seq(2, 20, 40, 39), waiting_seq(3, 10)};
  set_host(view, 8, 2);
  IdlePolicy policy;
  EXPECT_EQ(plan_of(policy, view).substr(0, 10), "drop_all 2");
}

// A plan forgets an admission without rows, and forgot with it that the sequence gives up its cells.
TEST(BatchPolicy, OneThatWasAdmittedInVainGivesUpItsCells) {
  View view = make_view(8, 8);
  view.waiting = {swapped_seq(1, 20, 40, 39), waiting_seq(2, 10)};
  set_host(view, 8, 2);
  view.peers.peers_refuse = true;
  IdlePolicy policy([](const View& v, PlanBuilder& b) {
    EXPECT_TRUE(b.admit(v.waiting[0]));
    b.borrow(3);
    b.give_back(2);
    b.set_hints({.overlap = false, .fuse = false});
  });
  const StepPlan plan = policy.plan(view);
  EXPECT_EQ(to_string(plan).substr(0, 10), "drop_all 1");
  EXPECT_TRUE(plan.promises.empty() && plan.adoptions.empty());
  EXPECT_EQ(plan.borrow_cells, 3u);
  EXPECT_EQ(plan.return_cells, 2u);
  EXPECT_FALSE(plan.hints.overlap || plan.hints.fuse);
}

TEST(BatchPolicy, AStandstillEndsTheReserveFirst) {
  View view = make_view(20, 1);
  view.reserved_cells[0] = 2;
  set_promised(view, 1);
  view.waiting = {waiting_seq(1, 10)};
  IdlePolicy policy([](const View& v, PlanBuilder& b) { EXPECT_FALSE(b.admit(v.waiting[0])); });
  EXPECT_EQ(plan_of(policy, view), "reserve 0 cells on device\n");
}

TEST(BatchPolicy, NoneGivesWayWhereSomethingHappens) {
  for (int what = 0; what < 5; ++what) {
    View view = make_view(8, 1);
    view.running = {running_seq(1, 100, 100, 64), running_seq(2, 100, 100, 60)};
    if (what == 0) view.steps_in_flight = 1;
    if (what == 1) view.transfers_in_flight = 1;
    if (what == 2) view.running.clear();
    IdlePolicy policy([&](const View& v, PlanBuilder& b) {
      if (what == 3) b.prefill(v.running[0], 10);
      if (what == 4) b.preempt_and_keep(v.running[0]);
    });
    const StepPlan plan = policy.plan(view);
    EXPECT_EQ(plan.preemptions.size(), what == 4 ? 1u : 0u) << what;
    EXPECT_TRUE(plan.copies.empty()) << what;
  }
}

}  // namespace
}  // namespace kvasir::test
