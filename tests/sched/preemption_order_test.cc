// Which sequence is preempted first, and how.
#include "sched/mechanisms/preemption_order.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "fakes/views.h"
#include "sched/mechanisms/swap_or_recompute.h"

namespace kvasir::test {
namespace {

std::vector<uint64_t> ids(const std::vector<const SeqView*>& order) {
  std::vector<uint64_t> out;
  for (const SeqView* s : order) out.push_back(raw(s->id));
  return out;
}

SeqView bounded(SeqView s, uint32_t tbt_ms) {
  s.slo.tbt_ms = tbt_ms;
  return s;
}

TEST(PreemptionOrder, Classes) {
  EXPECT_EQ(tbt_class({.tbt_ms = 50}), 0u);
  EXPECT_EQ(tbt_class({.tbt_ms = 200}), 0u);
  EXPECT_EQ(tbt_class({.tbt_ms = 201}), 1u);
  EXPECT_EQ(tbt_class({.tbt_ms = 500}), 1u);
  EXPECT_EQ(tbt_class({.tbt_ms = 2000}), 2u);
  EXPECT_EQ(tbt_class({.tbt_ms = 2001}), 3u);
  EXPECT_EQ(tbt_class({}), 3u);
  EXPECT_EQ(length_class_of(127), 0u);
  EXPECT_EQ(length_class_of(128), 1u);
}

TEST(PreemptionOrder, BoundThenRestThenMemoryThenArrival) {
  View view = make_view(200, 0);
  view.running = {
      bounded(decoding_seq(1, 20, 300), 100),   // tight
      bounded(decoding_seq(2, 20, 300), 1000),  // loose, much memory
      bounded(decoding_seq(3, 20, 30), 1000),   // loose, little memory
      bounded(decoding_seq(4, 20, 40), 1000),   // the same, later
      bounded(decoding_seq(5, 20, 30), 1000),   // loose, much to come
  };
  const auto rest = [](const SeqView& s) { return raw(s.id) == 5 ? 200u : 20u; };
  EXPECT_EQ(ids(preemption_order(view, rest)), (std::vector<uint64_t>{5, 4, 3, 2, 1}));
}

// The paper's figure 8 has its sweet spot where the curves cross; with a fast link they do not.
TEST(SwapOrRecompute, TheCheaperOfTwoCurves) {
  View view = make_view(400, 0);
  set_host(view, 400, 400);
  view.costs.step_s = 0.01;
  view.costs.prefill_row_s = 1e-3;
  view.costs.pair_s = 1e-5;
  const SeqView shorter = decoding_seq(1, 20, 65), longer = decoding_seq(2, 20, 1025);
  EXPECT_TRUE(std::isinf(swap_seconds(view, shorter))) << "nothing is known of the link";
  const auto cell_s = [&](double seconds) {
    for (const auto& [from, to] : {std::pair{Tier::kDevice, Tier::kHost}, {Tier::kHost, Tier::kDevice}}) {
      view.costs.links[index_of(from)][index_of(to)].seconds_per_byte =
          seconds / static_cast<double>(view.geometry.kv_cell_bytes());
    }
  };
  // 64 tokens are 8 cells, 1,024 are 128: there and back 0.16 s and 2.56 s.
  cell_s(0.01);
  EXPECT_NEAR(swap_seconds(view, shorter), 0.16, 1e-9);
  EXPECT_NEAR(swap_seconds(view, longer), 2.56, 1e-9);
  EXPECT_NEAR(recompute_seconds(view, shorter), 0.01 + 0.064 + 1e-5 * 64 * 65 / 2, 1e-9);
  EXPECT_NEAR(recompute_seconds(view, longer), 0.01 + 1.024 + 1e-5 * 1024 * 1025 / 2, 1e-9);
  view.running = {shorter, longer};
  const auto kept = [&](PreemptionStrategy strategy, const SeqView& seq) {
    PlanBuilder builder(view);
    preempt_by(strategy, view, seq, builder);
    EXPECT_TRUE(builder.preempted(seq.id));
    const StepPlan plan = builder.take();
    return std::any_of(plan.copies.begin(), plan.copies.end(),
                       [](const CopyChange& c) { return c.verb == Verb::kAdd && c.tier == Tier::kHost; });
  };
  EXPECT_FALSE(kept(PreemptionStrategy::kCheaper, view.running[0]));
  EXPECT_TRUE(kept(PreemptionStrategy::kCheaper, view.running[1]));
  EXPECT_TRUE(kept(PreemptionStrategy::kSwap, view.running[0]));
  EXPECT_FALSE(kept(PreemptionStrategy::kRecompute, view.running[1]));
  cell_s(0.0001);
  EXPECT_TRUE(kept(PreemptionStrategy::kCheaper, view.running[0]))
      << "no crossing: swapping is always cheaper";
  set_host(view, 4, 2);
  EXPECT_FALSE(kept(PreemptionStrategy::kSwap, view.running[1])) << "no room there";
}

}  // namespace
}  // namespace kvasir::test
