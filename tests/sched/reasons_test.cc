// What each of the published policies says of its plans: which request needs how much, and by which rule the
// one that gives it up was chosen. Worked by hand; blocks have 16 tokens, two cells each.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fakes/views.h"
#include "plan/plan_builder.h"
#include "plan/plan_checker.h"
#include "sched/mechanisms/recall_loans.h"
#include "sched/mechanisms/spill_to_peers.h"
#include "sched/registry.h"

namespace kvasir::test {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

using Lines = std::vector<std::string>;

Lines lines_of(const View& view, const StepPlan& plan) {
  EXPECT_TRUE(check_plan(view, plan).ok());
  Lines out;
  for (const Reason& reason : plan.reasons) out.push_back(to_string(reason));
  return out;
}

Lines reasons_of(const char* policy, const View& view) {
  return lines_of(view, make_policy(policy).value()->plan(view));
}

SeqView with_prediction(SeqView s, uint32_t output) {
  s.predicted.output_tokens = output;
  s.max_total_tokens = s.prompt_tokens + 400;
  return s;
}

// 1 needs a third block, and none is free; 3 came last, and holds two.
View full_view() {
  View view = make_view(20, 0);
  view.now = 100 * kNanosPerSecond;
  view.running = {decoding_seq(3, 20, 30), decoding_seq(1, 20, 33), decoding_seq(2, 20, 30)};
  return view;
}

TEST(Reasons, WhatGoesOnNeedsNone) {
  View view = make_view(20, 10);
  view.running = {decoding_seq(1, 20, 30), decoding_seq(2, 20, 31)};
  for (const std::string& policy : policy_names()) {
    EXPECT_THAT(reasons_of(policy.c_str(), view), IsEmpty()) << policy;
  }
}

TEST(Reasons, TheLatestArrivalGivesWay) {
  for (const char* policy : {"vllm", "vllm-swap", "vllm-random", "sarathi", "distkv", "layerkv", "ellm",
                             "hcache", "auto:victims=off"}) {
    EXPECT_THAT(reasons_of(policy, full_view()),
                ElementsAre("preempted 3: 1 needs 1 block, and 3 arrived last"))
        << policy;
  }
}

TEST(Reasons, TheLastByPriorityGivesWay) {
  View view = full_view();
  view.running[2].priority = 1;
  EXPECT_THAT(reasons_of("priority", view),
              ElementsAre("preempted 2: 1 needs 1 block, and 2 is the last by priority"));
  // 4 needs 70 tokens' blocks: five, and 2 and 3 have four together.
  view = make_view(20, 1);
  view.running = {decoding_seq(1, 20, 30), decoding_seq(2, 20, 30), decoding_seq(3, 20, 30)};
  view.running[1].priority = view.running[2].priority = 1;
  view.waiting = {waiting_seq(4, 70)};
  EXPECT_THAT(reasons_of("priority", view),
              ElementsAre("preempted 3: 4 needs 5 blocks, and 3 is the last by priority",
                          "preempted 2: 4 needs 5 blocks, and 2 is the last by priority"));
  // There is memory, and no place.
  view.device.spare_slabs = 10 * kViewGroups;
  view.limits.max_num_seqs = 3;
  EXPECT_THAT(reasons_of("priority", view),
              ElementsAre("preempted 3: 4 needs a place, and 3 is the last by priority"));
}

TEST(Reasons, ALateOneGivesWayWhereTheLateAreDemoted) {
  View view = full_view();
  // 2 has missed its bound of 1 ms on each token.
  for (SeqView& s : view.running) {
    s.arrival = view.now - kNanosPerSecond + s.arrival;
    s.first_token_time = s.last_token_time = view.now - kNanosPerSecond / 2;
  }
  view.running[2].slo.tbt_ms = 1;
  EXPECT_THAT(reasons_of("vllm:demote=on", view), ElementsAre("preempted 2: 1 needs 1 block, and 2 is late"));
}

TEST(Reasons, WhatOutgrewItsRoom) {
  View view = view_with_budget(512, 4);
  view.running = {with_prediction(decoding_seq(1, 20, 33), 10)};
  const Lines outgrew = {
      "preempted 1: it outgrew its room of 2 blocks for the predicted output, and needs 1 block more"};
  EXPECT_EQ(reasons_of("rlp", view), outgrew);
  EXPECT_EQ(reasons_of("s3", view), outgrew);
}

TEST(Reasons, OrdersOfRlp) {
  // As in rlp_s3_test.cc: 1 asks for 33 + 10 tokens, three blocks, and has two.
  View view = view_with_budget(512, 0);
  view.running = {with_prediction(decoding_seq(1, 20, 33), 10), with_prediction(decoding_seq(2, 20, 24), 100),
                  with_prediction(decoding_seq(3, 100, 120), 300),
                  with_prediction(decoding_seq(4, 40, 50), 20)};
  EXPECT_THAT(reasons_of("rlp:padding=10:victim=fcfs", view),
              ElementsAre("preempted 4: 1 needs 1 block, and 4 arrived last"));
  EXPECT_THAT(reasons_of("rlp:padding=10:victim=srtf", view),
              ElementsAre("preempted 3: 1 needs 1 block, and 3 has most output left, 280 tokens"));
  EXPECT_THAT(reasons_of("rlp:padding=10:victim=lkvo", view),
              ElementsAre("preempted 2: 1 needs 1 block, and 2 has the least memory, of 23 tokens"));
}

TEST(Reasons, OrderOfCacheOpt) {
  // As in cacheopt_test.cc: 1 has 20 ms for its block; 2 has a loose bound, and 390 tokens to come.
  View view = view_with_budget(512, 0);
  view.now = 100 * kNanosPerSecond;
  view.running = {with_prediction(decoding_seq(1, 20, 33), 100),
                  with_prediction(decoding_seq(2, 20, 30), 400)};
  for (SeqView& s : view.running) {
    s.arrival = view.now - 50 * kNanosPerSecond + s.arrival;
    s.max_total_tokens = s.prompt_tokens + 1000;
    s.first_token_time = view.now - 40 * kNanosPerSecond;
    s.last_token_time = view.now - from_seconds(0.01);
  }
  view.running[0].last_token_time = view.now - from_seconds(0.18);
  view.running[0].slo.tbt_ms = 200;
  view.running[1].slo.tbt_ms = 1000;
  const auto reasons = [&](const char* settings) {
    const auto policy =
        make_policy(std::string("cacheopt:padding=share:share=0:reserve=0") + settings).value();
    EXPECT_TRUE(policy->restore_state("0 0 0 0 0 0; 0 50000000 0 1").ok());
    return lines_of(view, policy->plan(view));
  };
  EXPECT_THAT(reasons(""),
              ElementsAre("preempted 2: 1 needs 1 block, and 2 comes first by loose bound, output "
                          "left (390 tokens) and little memory"));
  EXPECT_THAT(reasons(":victim=fcfs"), ElementsAre("preempted 2: 1 needs 1 block, and 2 arrived last"));
}

TEST(Reasons, ALoanThatIsDue) {
  View view = view_with_budget(512, 10);
  view.running = {decoding_seq(1, 20, 40), decoding_seq(2, 20, 30)};
  view.claims = {{.debtor = SeqId{2}, .creditor = SeqId{1}, .cells = 6, .due_tokens = 40}};
  PlanBuilder builder(view);
  EXPECT_EQ(recall_loans(view, builder), 1u);
  const StepPlan plan = builder.take();
  ASSERT_EQ(plan.reasons.size(), 1u);
  EXPECT_EQ(to_string(plan.reasons[0]),
            "preempted 2: 1 has come to 40 tokens and takes back the 6 cells that it lent");
}

TEST(Reasons, CopiedAwayOrComputedAgain) {
  View view = full_view();
  set_host(view, 20, 20);
  // Two blocks of two cells: there and back at 1 ms a cell is 8 ms; 29 rows of 1 ms are 29 ms.
  for (auto& row : view.costs.links) {
    for (LinkCost& link : row) link = {0, 1e-3 / static_cast<double>(view.geometry.kv_cell_bytes())};
  }
  view.costs.prefill_row_s = 1e-3;
  EXPECT_THAT(reasons_of("auto:victims=off:away=off", view),
              Contains("3 is copied away: that and back takes 8 ms, to compute it again 29 ms"));
  view.costs.prefill_row_s = 1e-4;
  EXPECT_THAT(reasons_of("auto:victims=off:away=off", view),
              Contains("3 is to be computed again in 2.9 ms: to copy it away and back takes 8 ms"));
}

TEST(Reasons, LayersOfTheNewestMakeRoom) {
  // As in layerkv_test.cc: ten cells will be missing; 3 gives eight, and 2 one of its two layers.
  View view = make_view(20, 0);
  set_host(view, 20, 20);
  set_ring(view, 20);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 49), decoding_seq(3, 20, 80)};
  EXPECT_THAT(
      reasons_of("layerkv", view),
      ElementsAre(
          "3 keeps 0 layer groups of its full blocks on the device: 10 cells will be missing, and 3 is the "
          "newest that has some",
          "2 keeps 1 layer group of its full blocks on the device: 2 cells will be missing, and 2 is the "
          "newest that has some",
          "1 has no row: it needs 1 block, none can be had, and 5 will be free when steps and transfers end",
          "2 has no row: it needs 1 block, none can be had, and 5 will be free when steps and transfers "
          "end"));
}

TEST(Reasons, TheBeginOfHistoriesMakesRoom) {
  // As in ellm_test.cc.
  View view = make_view(10, 0);
  view.now = kNanosPerSecond;
  view.costs.step_s = 10e-3;
  view.costs.decode_row_s = view.costs.prefill_row_s = 1e-5;
  set_ring(view, 20);
  view.running = {decoding_seq(1, 60, 75), decoding_seq(2, 60, 75)};
  view.waiting = {waiting_seq(3, 20)};
  EXPECT_THAT(
      reasons_of("ellm", view),
      AllOf(Contains("1 keeps 1 block less of the begin of its history on the device, 1 less in all, so "
                     "that more requests can run"),
            Contains("2 keeps 1 block less of the begin of its history on the device, 1 less in all, so "
                     "that more requests can run"),
            Contains("not admitted 3: it needs 2 blocks, 0 can be had")));
}

TEST(Reasons, WhatStaysIsNotSaidToGo) {
  // Half of four full blocks each is to go to the host.
  View view = make_view(10, 0);
  view.now = kNanosPerSecond;
  set_host(view, 20, 20);
  set_ring(view, 20);
  view.running = {decoding_seq(1, 60, 75), decoding_seq(2, 60, 75)};
  const char* policy = "ellm:ratio=0.5:again=0";
  EXPECT_THAT(reasons_of(policy, view),
              Contains("1 keeps 2 blocks less of the begin of its history on the device, 2 less in all, so "
                       "that more requests can run"));
  // The host is full.
  set_host(view, 20, 0);
  EXPECT_THAT(reasons_of(policy, view), Each(Not(HasSubstr(" keeps "))));
}

TEST(Reasons, TheLongestGoesToPeers) {
  View view = make_view(100, 10);
  set_host(view, 100, 100);
  set_ring(view, 100);
  view.running = {decoding_seq(1, 600, 601)};
  view.running[0].first_device_block = 0;
  PlanBuilder builder(view);
  EXPECT_EQ(spill_to_peers(view, 1, builder), 32u);
  const StepPlan plan = builder.take();
  ASSERT_EQ(plan.reasons.size(), 1u);
  EXPECT_EQ(
      to_string(plan.reasons[0]),
      "256 tokens of 1 go to peers: 1 cell will be missing, and 1 is the longest that has some to give");
}

TEST(Reasons, WhatHasGoneToPeersIsSaidWhereNoMoreCanGo) {
  // The host has room for one leaf of 256 tokens: 16 blocks of two cells.
  View view = make_view(100, 10);
  set_host(view, 100, 20);
  set_ring(view, 100);
  view.running = {decoding_seq(1, 900, 901)};
  view.running[0].first_device_block = 0;
  PlanBuilder builder(view);
  EXPECT_EQ(spill_to_peers(view, 64, builder), 32u) << "of two leaves that it could give";
  const StepPlan plan = builder.take();
  ASSERT_EQ(plan.reasons.size(), 1u);
  EXPECT_EQ(
      to_string(plan.reasons[0]),
      "256 tokens of 1 go to peers: 64 cells will be missing, and 1 is the longest that has some to give");
}

TEST(Reasons, WhichIsNotAdmitted) {
  // Four blocks are free, of which none is kept; 2 needs ten.
  View view = view_with_budget(512, 4);
  view.running = {decoding_seq(1, 20, 30)};
  view.waiting = {with_prediction(waiting_seq(2, 150), 0)};
  view.limits.max_num_seqs = 8;
  for (const char* policy : {"vllm", "vllm-swap", "vllm-random", "sarathi", "fastgen", "distkv", "layerkv",
                             "ellm", "hcache", "priority", "rlp:padding=0"}) {
    EXPECT_THAT(reasons_of(policy, view), Contains("not admitted 2: it needs 10 blocks, 4 can be had"))
        << policy;
  }
  // To their ends: 550 tokens; and 200 as it is predicted.
  EXPECT_THAT(reasons_of("orca", view), Contains("not admitted 2: it needs 35 blocks, 4 can be had"));
  EXPECT_THAT(reasons_of("s3", view), Contains("not admitted 2: it needs 13 blocks, 4 can be had"));
  // By value, 2 is not chosen: it does not fit. In order of arrival it is asked for.
  EXPECT_THAT(reasons_of("apt-serve", view), IsEmpty());
  EXPECT_THAT(reasons_of("apt-serve:order=fcfs", view),
              Contains("not admitted 2: it needs 10 blocks, 4 can be had"));
  // Within its bounds, 2 shares what others leave, and is passed over. In order of arrival it is asked for.
  const std::string cacheopt = "cacheopt:padding=tokens:tokens=0:reserve=0";
  EXPECT_THAT(reasons_of(cacheopt.c_str(), view), IsEmpty());
  EXPECT_THAT(reasons_of((cacheopt + ":select=fcfs").c_str(), view),
              Contains("not admitted 2: it needs 10 blocks, 4 can be had"));
  view.limits.max_num_seqs = 1;
  EXPECT_THAT(reasons_of("vllm", view), Contains("not admitted 2: 1 requests run, and no more may"));
}

TEST(Reasons, WhichSitsOut) {
  // Two blocks come when a transfer ends.
  View view = full_view();
  set_pinned(view, 2);
  const char* waits =
      "1 has no row: it needs 1 block, none can be had, and 2 will be free when steps and transfers end";
  for (const char* policy : {"vllm", "sarathi", "ellm", "layerkv", "fastgen"}) {
    EXPECT_THAT(reasons_of(policy, view), ElementsAre(waits)) << policy;
  }
  // Nothing is on its way.
  view.device.coming[0] = 0;
  EXPECT_THAT(reasons_of("fastgen", view), Contains("1 has no row: it needs 1 block, and none can be had"));
}

}  // namespace
}  // namespace kvasir::test
