// Plans of CacheOpt, worked by hand. Blocks have 16 tokens, two cells each; the unit of allocation is 8
// tokens.
#include <gtest/gtest.h>

#include <string>

#include "fakes/views.h"
#include "sched/mechanisms/embed.h"
#include "sched/mechanisms/longest_step.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

constexpr Nanos kCacheOptNow = 100 * kNanosPerSecond;

// Without a reserve unless it is what the test is about, and with the prediction as it is.
std::string cacheopt_plan(const View& view, const std::string& settings = ":reserve=0") {
  return plan_of(("cacheopt:padding=share:share=0" + settings).c_str(), view);
}

View cacheopt_view(uint32_t free_blocks) {
  View view = view_with_budget(512, free_blocks);
  view.now = kCacheOptNow;
  return view;
}

SeqView arrived(SeqView s, double seconds_ago, uint32_t output, uint32_t ttft_ms = 0) {
  s.arrival = kCacheOptNow - from_seconds(seconds_ago);
  s.predicted.output_tokens = output;
  s.max_total_tokens = s.prompt_tokens + 1000;
  s.slo.ttft_ms = ttft_ms;
  return s;
}

// Decodes; its last token is so old.
SeqView decoding_since(SeqView s, double seconds_ago, uint32_t output, uint32_t tbt_ms = 0) {
  s = arrived(s, 50 + 1.0 / static_cast<double>(raw(s.id)), output);
  s.first_token_time = kCacheOptNow - from_seconds(40);
  s.last_token_time = kCacheOptNow - from_seconds(seconds_ago);
  s.slo.tbt_ms = tbt_ms;
  return s;
}

void promise_blocks(View& view, SeqView& s, uint32_t blocks) {
  s.promised_cells[0] = blocks * kViewGroups;
  view.device.promised[0] += blocks * kViewGroups;
}

TEST(CacheOptPolicy, EachGetsItsDemandWhereThereIsRoom) {
  View view = cacheopt_view(50);
  view.waiting = {arrived(waiting_seq(1, 20), 2, 40), arrived(waiting_seq(2, 20), 1, 100)};
  EXPECT_EQ(cacheopt_plan(view),
            "promise 1 8 cells on device\npromise 2 16 cells on device\n"
            "prefill 1 [0, 20) samples\nprefill 2 [0, 20) samples\n");
}

TEST(CacheOptPolicy, TheLeastTimeLeftGoesFirst) {
  View view = cacheopt_view(8);
  view.waiting = {arrived(waiting_seq(1, 100), 2, 20), arrived(waiting_seq(2, 100), 1, 20, 1500)};
  EXPECT_EQ(cacheopt_plan(view), "promise 2 16 cells on device\nprefill 2 [0, 100) samples\n");
  // First come, first served.
  EXPECT_EQ(cacheopt_plan(view, ":reserve=0:select=fcfs"),
            "promise 1 16 cells on device\nprefill 1 [0, 100) samples\n");
}

TEST(CacheOptPolicy, ALateRequestGoesLastOrFirst) {
  View view = cacheopt_view(8);
  view.waiting = {arrived(waiting_seq(1, 100), 2, 20, 1500), arrived(waiting_seq(2, 100), 1, 20, 1500)};
  EXPECT_EQ(cacheopt_plan(view, ":reserve=0:late=last"),
            "promise 2 16 cells on device\nprefill 2 [0, 100) samples\n");
  EXPECT_EQ(cacheopt_plan(view, ":reserve=0:late=first"),
            "promise 1 16 cells on device\nprefill 1 [0, 100) samples\n");
  // A critical one gets its basic need, 108 tokens, and then shares what is left.
  EXPECT_EQ(cacheopt_plan(view),
            "promise 1 14 cells on device\npromise 1 2 cells on device\nprefill 1 [0, 100) samples\n");
}

TEST(CacheOptPolicy, IfThereIsTooLittleARequestWithTimeAndMuchToComeIsCut) {
  View view = cacheopt_view(10);
  // Basic needs of 28 tokens, 2 blocks each; demands of 4 and 12 blocks: 6 too many. Slack 1 s and 5 s,
  // output 40 and 160: the second is cut by 20/21 of 12 cells, to 12 of its 24, and a block is what is given.
  view.waiting = {arrived(waiting_seq(1, 20), 1, 40, 2000), arrived(waiting_seq(2, 20), 1, 160, 6000)};
  EXPECT_EQ(cacheopt_plan(view),
            "promise 1 6 cells on device\npromise 2 12 cells on device\n"
            "prefill 1 [0, 20) samples\nprefill 2 [0, 20) samples\n");
}

TEST(CacheOptPolicy, AGuestHasTheEndOfWhatItsHostHasNotComeTo) {
  View view = cacheopt_view(0);
  SeqView host = decoding_since(decoding_seq(1, 20, 30), 0, 300);
  promise_blocks(view, host, 18);
  view.device.spare_slabs = 18 * kViewGroups;
  view.running = {host};
  // 20 + 40 tokens: 4 blocks. What is left to the host ends at (2 + 14) * 16.
  view.waiting = {arrived(waiting_seq(2, 20), 1, 40)};
  EXPECT_EQ(cacheopt_plan(view),
            "lend 2 8 cells on device of 1, due at 256\ndecode 1 [29, 30) samples\n"
            "prefill 2 [0, 20) samples\n");
  EXPECT_EQ(cacheopt_plan(view, ":reserve=0:embed=off"), "decode 1 [29, 30) samples\n");
}

TEST(Embed, TheTightestHostInWhichItFits) {
  View view = cacheopt_view(0);
  SeqView small = decoding_since(decoding_seq(1, 20, 30), 0, 300);
  SeqView large = decoding_since(decoding_seq(2, 20, 30), 0, 300);
  promise_blocks(view, small, 6);
  promise_blocks(view, large, 9);
  view.device.spare_slabs = 15 * kViewGroups;
  view.running = {large, small};
  const SeqView guest = arrived(waiting_seq(3, 20), 1, 40);
  PlanBuilder builder(view);
  // a - (u + s + b) >= cells: 4 blocks of 6 leave 64 tokens, and 30 + s + 8 is to be within them.
  const Hosts hosts(view, builder);
  EXPECT_EQ(hosts.find(guest, 8, 26, 8).seq, &view.running[1]);
  EXPECT_EQ(hosts.find(guest, 8, 26, 8).due_tokens, 64u);
  EXPECT_EQ(hosts.find(guest, 8, 27, 8).seq, &view.running[0]);
  EXPECT_EQ(hosts.find(guest, 8, 27, 8).due_tokens, 112u);
  EXPECT_EQ(hosts.find(guest, 8, 75, 8).seq, nullptr);
  EXPECT_EQ(hosts.find(guest, 20, 1, 8).seq, nullptr) << "more than either has";
}

TEST(CacheOptPolicy, ARequestThatHasUsedUpItsRoomDrawsOnTheReserve) {
  View view = cacheopt_view(4);
  view.reserved_cells[0] = 8;
  view.device.promised[0] = 8;
  view.running = {decoding_since(decoding_seq(1, 20, 33), 0, 100)};  // two blocks, and needs a third
  EXPECT_EQ(cacheopt_plan(view, ""),
            "promise 1 2 cells on device of the reserve\ndecode 1 [32, 33) samples\n");
}

TEST(CacheOptPolicy, AReserveOfSixtyFourTokensIsKept) {
  View view = cacheopt_view(20);
  view.running = {decoding_since(decoding_seq(1, 20, 24), 0, 10)};
  EXPECT_EQ(cacheopt_plan(view, ""), "reserve 8 cells on device\ndecode 1 [23, 24) samples\n");
  EXPECT_EQ(cacheopt_plan(view, ":reserve=0:reserve-share=0.1"),
            "reserve 10 cells on device\ndecode 1 [23, 24) samples\n");
  EXPECT_EQ(cacheopt_plan(view, ":reserve=0"), "decode 1 [23, 24) samples\n");
}

TEST(CacheOptPolicy, RoomIsGivenBeforeItRunsOut) {
  View view = cacheopt_view(20);
  view.running = {decoding_since(decoding_seq(1, 20, 29), 0, 100)};
  EXPECT_EQ(cacheopt_plan(view), "decode 1 [28, 29) samples\n") << "it has room for three more";
  view.running = {decoding_since(decoding_seq(1, 20, 30), 0, 100)};
  EXPECT_EQ(cacheopt_plan(view), "promise 1 12 cells on device\ndecode 1 [29, 30) samples\n");
  EXPECT_EQ(cacheopt_plan(view, ":reserve=0:proactive=0"), "decode 1 [29, 30) samples\n");
}

// A policy that has seen steps of 50 ms.
std::string critical_plan(const View& view, const std::string& settings = "") {
  const auto policy = make_policy("cacheopt:padding=share:share=0:reserve=0" + settings).value();
  EXPECT_TRUE(policy->restore_state("0 0 0 0 0 0; 0 50000000 0 1").ok());
  return plan_of(*policy, view);
}

TEST(CacheOptPolicy, ARequestWithTimeMakesRoomForACriticalOne) {
  View view = cacheopt_view(0);
  // The first needs a block, and has 20 ms for it. Of the others the second has a tight bound, the third a
  // loose one, and the fourth as loose a one and more to come.
  view.running = {decoding_since(decoding_seq(1, 20, 33), 0.18, 100, 200),
                  decoding_since(decoding_seq(2, 20, 30), 0.01, 10, 150),
                  decoding_since(decoding_seq(3, 20, 30), 0.01, 10, 1000),
                  decoding_since(decoding_seq(4, 20, 30), 0.01, 400, 1000)};
  EXPECT_EQ(critical_plan(view),
            "preempt 4\ndrop_all 4 kv device\npromise 1 2 cells on device\npromise 1 2 cells on device\n"
            "decode 1 [32, 33) samples\ndecode 2 [29, 30) samples\ndecode 3 [29, 30) samples\n");
  EXPECT_EQ(critical_plan(view, ":victim=fcfs"), critical_plan(view)) << "it is the latest, too";
  // It has time: it sits out.
  view.running[0].last_token_time = kCacheOptNow - from_seconds(0.05);
  EXPECT_EQ(critical_plan(view),
            "decode 2 [29, 30) samples\ndecode 3 [29, 30) samples\ndecode 4 [29, 30) samples\n");
  // It is late: none is preempted for it, if late requests go last.
  view.running[0].last_token_time = kCacheOptNow - from_seconds(0.3);
  EXPECT_EQ(critical_plan(view, ":late=last"),
            "decode 2 [29, 30) samples\ndecode 3 [29, 30) samples\ndecode 4 [29, 30) samples\n");
}

TEST(CacheOptPolicy, OtherCriticalRequestsAreNotPreempted) {
  View view = cacheopt_view(0);
  view.running = {decoding_since(decoding_seq(1, 20, 33), 0.18, 100, 200),
                  decoding_since(decoding_seq(2, 20, 30), 0.98, 400, 1000)};
  EXPECT_EQ(critical_plan(view), "decode 2 [29, 30) samples\n");
}

TEST(CacheOptPolicy, ForAWaitingRequestOthersArePreemptedUnlessOnlyRunningOnesCount) {
  View view = cacheopt_view(0);
  view.running = {decoding_since(decoding_seq(1, 20, 30), 0.01, 400, 1000)};
  view.waiting = {arrived(waiting_seq(2, 20), 0.98, 10, 1000)};
  EXPECT_EQ(critical_plan(view, ":preempt-for=running"), "decode 1 [29, 30) samples\n");
  for (const char* settings : {"", ":preempt-for=all"}) {
    EXPECT_EQ(critical_plan(view, settings),
              "preempt 1\ndrop_all 1 kv device\npromise 2 4 cells on device\nprefill 2 [0, 20) samples\n");
  }
}

// The paper's forms. Section 3.3.2: RT - T < epsilon holds for a request that is late already.

TEST(CacheOptPolicy, ALateRequestIsCritical) {
  View view = cacheopt_view(0);
  // The first is late by 100 ms, and needs a block.
  view.running = {decoding_since(decoding_seq(1, 20, 33), 0.3, 100, 200),
                  decoding_since(decoding_seq(2, 20, 30), 0.01, 10, 150),
                  decoding_since(decoding_seq(4, 20, 30), 0.01, 400, 1000)};
  const std::string others = "decode 2 [29, 30) samples\ndecode 4 [29, 30) samples\n";
  EXPECT_EQ(critical_plan(view, ":late=last"), others);
  EXPECT_EQ(critical_plan(view, ":late=first"), others);
  EXPECT_EQ(critical_plan(view),
            "preempt 4\ndrop_all 4 kv device\npromise 1 2 cells on device\npromise 1 2 cells on device\n"
            "decode 1 [32, 33) samples\ndecode 2 [29, 30) samples\n");
  // RT - T < epsilon: 60 ms are left and a step takes 50, so that an epsilon of 11 ms makes it critical.
  SeqView& first = view.running[0];
  first.last_token_time = kCacheOptNow - from_seconds(0.14);
  EXPECT_EQ(critical_plan(view, ":epsilon=10"), others);
  EXPECT_NE(critical_plan(view, ":epsilon=11"), others);
  first.last_token_time = kCacheOptNow - from_seconds(0.3);
  // Nor does a late one make way. Neither late one has slack: cut by 29 cells each, the first of the 10 that
  // it lacks keeps none, and the other what is left.
  view.running[2].last_token_time = kCacheOptNow - from_seconds(1.5);
  EXPECT_EQ(critical_plan(view),
            "preempt 2\ndrop_all 2 kv device\npromise 1 2 cells on device\npromise 4 2 cells on device\n"
            "decode 1 [32, 33) samples\ndecode 4 [29, 30) samples\n");
}

TEST(CacheOptPolicy, OthersMakeWayForAFirstTokenButNotForOneThatWasPreempted) {
  View view = cacheopt_view(0);
  view.running = {decoding_since(decoding_seq(1, 20, 30), 0.01, 400, 1000)};
  view.waiting = {arrived(waiting_seq(2, 20), 2, 10, 1000)};
  const std::string decode = "decode 1 [29, 30) samples\n";
  EXPECT_EQ(critical_plan(view, ":late=last"), decode);
  const std::string makes_way =
      "preempt 1\ndrop_all 1 kv device\npromise 2 4 cells on device\nprefill 2 [0, 20) samples\n";
  EXPECT_EQ(critical_plan(view), makes_way);
  EXPECT_EQ(critical_plan(view, ":preempt-for=all"), makes_way);
  // It has had its first token, and was preempted: N_w has only RT_ttft.
  view.waiting[0].first_token_time = view.waiting[0].last_token_time = kCacheOptNow - from_seconds(3);
  EXPECT_EQ(critical_plan(view), decode);
  EXPECT_EQ(critical_plan(view, ":preempt-for=all"), makes_way);
}

TEST(CacheOptPolicy, SharesAsPrintedGiveMostToTheRequestWithTime) {
  View view = cacheopt_view(10);
  // M of 8 and 24 cells, A' = 20. w = RT x prompt: 1 s x 20 and 5 s x 20. A = 20 / 6 = 3.3 and 16.7: the
  // first keeps its basic need of 4, and 16 are left.
  view.waiting = {arrived(waiting_seq(1, 20), 1, 40, 2000), arrived(waiting_seq(2, 20), 1, 160, 6000)};
  EXPECT_EQ(cacheopt_plan(view, ":reserve=0:excess=weight"),
            "promise 1 4 cells on device\npromise 2 16 cells on device\n"
            "prefill 1 [0, 20) samples\nprefill 2 [0, 20) samples\n");
}

TEST(CacheOptPolicy, ARequestWithoutRoomPreemptsTheFirstInTheOrderWhichMayBeItself) {
  View view = cacheopt_view(0);
  // The first has time, but no room.
  view.running = {decoding_since(decoding_seq(1, 20, 33), 0.05, 100, 200),
                  decoding_since(decoding_seq(2, 20, 30), 0.01, 10, 150),
                  decoding_since(decoding_seq(4, 20, 30), 0.01, 400, 1000)};
  EXPECT_EQ(critical_plan(view), "decode 2 [29, 30) samples\ndecode 4 [29, 30) samples\n") << "it sits out";
  // Of the two cells beyond, the shares are less than a block.
  EXPECT_EQ(critical_plan(view, ":short=preempt"),
            "preempt 4\ndrop_all 4 kv device\npromise 1 2 cells on device\n"
            "decode 1 [32, 33) samples\ndecode 2 [29, 30) samples\n");
  // It has the loosest bound and the most to come itself.
  view.running[0] = decoding_since(decoding_seq(1, 20, 33), 0.05, 600, 1000);
  EXPECT_EQ(critical_plan(view, ":short=preempt"),
            "preempt 1\ndrop_all 1 kv device\npromise 4 2 cells on device\ndecode 2 [29, 30) samples\n"
            "decode 4 [29, 30) samples\n");
}

// The first preempts itself, and its two cells come free when they lie on the host. It waits for none of them
// any more, so they are room for the second, and the third is not preempted.
TEST(CacheOptPolicy, WhatARequestThatPreemptsItselfGivesUpIsRoomForTheNext) {
  View view = cacheopt_view(0);
  set_host(view, 50, 50);
  view.running = {decoding_since(decoding_seq(1, 8, 17), 0.06, 600, 1000),
                  decoding_since(decoding_seq(2, 8, 17), 0.05, 100, 1000),
                  decoding_since(decoding_seq(3, 20, 30), 0.01, 400, 1000)};
  EXPECT_EQ(critical_plan(view, ":short=preempt:preempt=swap"),
            "preempt 1\nadd 1 [0, 16) kv host x2 now\ndrop 1 [0, 16) kv device x2 when_ready\n"
            "decode 3 [29, 30) samples\n");
}

TEST(CacheOptPolicy, PromptsAreCutToTheTightestGapOrToTheBudget) {
  View view = cacheopt_view(50);
  view.costs.prefill_row_s = 1e-3;
  // It has 60 ms, and a row of a prompt takes one.
  view.running = {decoding_since(decoding_seq(1, 20, 30), 0.04, 12, 100)};
  view.waiting = {arrived(waiting_seq(2, 400), 1, 10, 60'000)};
  EXPECT_NE(cacheopt_plan(view, ":reserve=0").find("prefill 2 [0, 60)"), std::string::npos);
  EXPECT_NE(cacheopt_plan(view, ":reserve=0:chunks=budget").find("prefill 2 [0, 400)"), std::string::npos);
}

TEST(CacheOptPolicy, ProactivelyByTheStepsUntilItEndsOrUntilItsRoomIsUsedUp) {
  View view = cacheopt_view(20);
  // Room for two more, and 90 to come.
  view.running = {decoding_since(decoding_seq(1, 20, 30), 0, 100)};
  EXPECT_EQ(cacheopt_plan(view, ":reserve=0:within=end"), "decode 1 [29, 30) samples\n");
  // Room for four more and two to come: 20 + 14 tokens are three blocks.
  view.running = {decoding_since(decoding_seq(1, 24, 28), 0, 10)};
  EXPECT_EQ(cacheopt_plan(view, ":reserve=0:within=room"), "decode 1 [27, 28) samples\n");
  EXPECT_EQ(cacheopt_plan(view, ":reserve=0:within=end:proactive=6"),
            "promise 1 2 cells on device\ndecode 1 [27, 28) samples\n");
}

TEST(LongestStep, OfTheLastFewHundredOrOfAll) {
  for (bool of_all : {false, true}) {
    LongestStep steps(of_all);
    Nanos now = kNanosPerSecond;
    const auto step = [&](Nanos takes) {
      steps.begin(now, /*any_run=*/true);
      steps.end(now, /*rows=*/true);
      now += takes;
    };
    step(kNanosPerSecond);
    for (int i = 0; i < 600; ++i) step(10 * kNanosPerMilli);
    EXPECT_EQ(steps.longest(), of_all ? kNanosPerSecond : 10 * kNanosPerMilli);
  }
}

TEST(CacheOptPolicy, TheLetterIsWhatThePaperHasOfEachSetting) {
  const std::string all =
      "cacheopt:padding=hoeffding:confidence=0.9:embed=always:preempt-for=first:late=critical:excess=weight:"
      "short=preempt:chunks=budget:longest=ever:within=end";
  const auto letter = make_policy("cacheopt:letter=on").value();
  const auto listed = make_policy(all).value();
  const auto milder = make_policy("cacheopt:letter=on:late=last").value();
  for (const auto* policy : {&letter, &listed, &milder}) {
    EXPECT_TRUE((*policy)->restore_state("0 0 0 0 0 0; 0 50000000 0 1").ok());
  }
  View view = cacheopt_view(0);
  view.running = {decoding_since(decoding_seq(1, 20, 33), 0.05, 100, 200),
                  decoding_since(decoding_seq(2, 20, 30), 0.01, 400, 1000),
                  decoding_since(decoding_seq(3, 20, 30), 0.01, 500, 1000)};
  view.waiting = {arrived(waiting_seq(4, 20), 2, 10, 1000), arrived(waiting_seq(5, 20), 1, 90, 9000)};
  const std::string plan = plan_of(*letter, view);
  EXPECT_EQ(plan, plan_of(*listed, view));
  EXPECT_NE(plan, plan_of(*milder, view)) << "what is named counts";
}

TEST(CacheOptPolicy, MissingCellsAreClaimedOfARequestThatEndsInTime) {
  View view = cacheopt_view(1);
  // One block for the first, which wants four more; the others end in 4 and in 12 steps, and 15 are left to
  // it.
  view.running = {
      decoding_since(decoding_seq(1, 20, 33), 0, 80), decoding_since(decoding_seq(2, 90, 100), 0, 14),
      decoding_since(decoding_seq(3, 90, 100), 0, 22), decoding_since(decoding_seq(4, 90, 100), 0, 90)};
  EXPECT_EQ(cacheopt_plan(view, ":reserve=0:proactive=0"),
            "promise 1 2 cells on device\npromise 1 8 cells on device when 3 releases them\n"
            "decode 2 [99, 100) samples\ndecode 3 [99, 100) samples\ndecode 4 [99, 100) samples\n"
            "decode 1 [32, 33) samples\n");
}

TEST(CacheOptPolicy, ItsStateComesBack) {
  const auto policy = make_policy("cacheopt").value();
  View view = cacheopt_view(20);
  view.waiting = {arrived(waiting_seq(7, 20), 0.5, 10, 1000)};
  policy->plan(view);
  const std::string state = policy->save_state();
  const auto other = make_policy("cacheopt").value();
  EXPECT_NE(other->save_state(), state);
  ASSERT_TRUE(other->restore_state(state).ok());
  EXPECT_EQ(other->save_state(), state);
  EXPECT_FALSE(other->restore_state("1 2 3").ok());
  EXPECT_FALSE(other->restore_state("1 2 3; 4").ok());
}

}  // namespace
}  // namespace kvasir::test
