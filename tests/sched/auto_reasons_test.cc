// Reasons of plans of the policy `auto`, worked by hand; and those of any policy. Costs: sched/auto_views.h.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "plan/plan_checker.h"
#include "sched/auto_state_parts.h"
#include "sched/auto_views.h"

namespace kvasir::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Lines = std::vector<std::string>;

Lines reasons_of(Policy& policy, const View& view) {
  const StepPlan plan = policy.plan(view);
  EXPECT_TRUE(check_plan(view, plan).ok());
  Lines out;
  for (const Reason& reason : plan.reasons) out.push_back(to_string(reason));
  return out;
}

Lines reasons_of(const View& view, const char* policy = "auto") {
  return reasons_of(*make_policy(policy).value(), view);
}

TEST(AutoReasons, WhatGoesOnNeedsNone) {
  View view = auto_view(50, 40);
  view.running = {auto_decoding(1, 20, 30, 0.01, {.tbt_ms = 1000})};
  EXPECT_THAT(reasons_of(view), IsEmpty());
}

TEST(AutoReasons, WhatIsPreempted) {
  // 1 needs a third block.
  View view = auto_view(50, 0);
  view.running = {auto_decoding(1, 20, 33, 0.01, {.tbt_ms = 500}),
                  auto_decoding(2, 20, 30, 0.01, {.ttft_ms = 50, .tbt_ms = 1000}, 500)};
  // Its first token came after 100 ms.
  EXPECT_EQ(reasons_of(view).back(), "preempted 2: 1 needs 1 block, and 2 is late");
  view.running[1].slo = {.e2el_ms = 60'000};
  // One second has passed, and 490 steps of 22.06 ms are to come.
  EXPECT_THAT(reasons_of(view), ElementsAre("preempted 2: 1 needs 1 block, and 2 has 48.2 s left"));
  view.running[1].slo = {.tbt_ms = 500};
  // 490 rows of 1 ms, and (30 * 490 + 490^2 / 2) of a microsecond.
  EXPECT_THAT(reasons_of(view),
              ElementsAre("preempted 2: 1 needs 1 block, and 2 costs most to finish, 625 ms"));
  EXPECT_THAT(reasons_of(view, "auto:victims=off"),
              ElementsAre("preempted 2: 1 needs 1 block, and 2 arrived last"));
  EXPECT_THAT(reasons_of(view, "sarathi"), ElementsAre("preempted 2: 1 needs 1 block, and 2 arrived last"));
}

TEST(AutoReasons, WhatMakesWay) {
  View view = auto_view(50, 0);
  view.running = {auto_decoding(1, 20, 30, 0.01, {.ttft_ms = 50}, 400)};
  view.waiting = {auto_waiting(2, 16, 0.01, {.ttft_ms = 1000}, 20)};
  // Two blocks for 17 tokens.
  EXPECT_EQ(reasons_of(view)[1],
            "preempted 1: late, it makes way for the queue from 2 on, which lacks 2 blocks and 0 places");
}

TEST(AutoReasons, WhatIsAdmitted) {
  // 16 rows and 20 decodes of 1 ms, and (16 * 20 + 20^2 / 2) of a microsecond.
  View view = auto_view(50, 40);
  view.waiting = {auto_waiting(1, 16, 0.1, {.ttft_ms = 500}, 20)};
  EXPECT_THAT(reasons_of(view),
              ElementsAre("admitted 1: it costs 36.5 ms to finish, its next token is due in 400 ms"));
  view.waiting = {auto_waiting(2, 16, 0, {}, 20)};
  EXPECT_THAT(reasons_of(view), ElementsAre("admitted 2: it has no bounds and costs 36.5 ms to finish"));
  view.waiting = {auto_waiting(3, 16, 1, {.ttft_ms = 500}, 20)};
  EXPECT_EQ(reasons_of(view).back(), "admitted 3, late: no other needs the room; it costs 36.5 ms");
}

TEST(AutoReasons, CostsAreThoseThatAreCorrected) {
  View view = auto_view(50, 40);
  view.waiting = {auto_waiting(2, 16, 0, {}, 20)};
  // Steps have taken ten times as long as believed: ten times 36.5 ms.
  const auto policy = auto_with(AutoPart::kScale, "0 0 0 0 0 10 0");
  EXPECT_THAT(reasons_of(*policy, view),
              ElementsAre("admitted 2: it has no bounds and costs 365 ms to finish"));
}

TEST(AutoReasons, WhatStaysOutForMemoryOrPlaces) {
  View view = auto_view(50, 4);
  view.running = {auto_decoding(1, 20, 30, 0.01, {.tbt_ms = 1000})};
  view.waiting = {auto_waiting(2, 160, 0.01, {.ttft_ms = 9000})};
  EXPECT_THAT(reasons_of(view), ElementsAre("not admitted 2: it needs 10 blocks, 4 can be had"));
  view.limits.max_num_seqs = 1;
  EXPECT_THAT(reasons_of(view), ElementsAre("not admitted 2: 1 requests run, and no more may"));
}

TEST(AutoReasons, WhatStaysOutForTime) {
  View view = auto_view(500, 100);
  for (uint64_t id = 1; id <= 20; ++id) view.running.push_back(auto_decoding(id, 20, 30, 0, {.tbt_ms = 46}));
  view.running[4].slo.tbt_ms = 45;
  view.waiting = {auto_waiting(30, 16, 0.01, {.ttft_ms = 1000, .tbt_ms = 50})};
  EXPECT_THAT(reasons_of(view), ElementsAre("not admitted 30: the batch would exceed the gap of 45 ms of 5"));
  for (SeqView& s : view.running) s.slo.tbt_ms = 90;
  view.running[6].last_token_time = view.now - from_seconds(0.049);
  // Of 41 ms by 1.104 decodes take 40.6: no row of a prompt fits.
  EXPECT_THAT(reasons_of(view), ElementsAre("not admitted 30: the step has no time left for its prompt"));
  view.running.clear();
  for (uint64_t id = 101; id <= 270; ++id) view.running.push_back(auto_decoding(id, 20, 30, 0, {}));
  EXPECT_EQ(reasons_of(view).back(), "not admitted 30: the batch would exceed the gap of 50 ms of 30");
  view.waiting[0].slo = {};
  EXPECT_EQ(reasons_of(view).back(),
            "not admitted 30: the batch would exceed the gap of 200 ms of requests without bounds");
}

TEST(AutoReasons, WhatSitsOut) {
  // AutoPolicy.LateOnesSitOutWhereOthersWouldBecomeLate: of 21 decodes one is too many.
  View view = auto_view(100, 50);
  for (uint64_t id = 1; id <= 20; ++id) {
    view.running.push_back(auto_decoding(id, 20, 30, 0, {.ttft_ms = 50, .tbt_ms = 45}));
  }
  view.waiting = {auto_waiting(30, 16, 0.01, {.ttft_ms = 1000, .tbt_ms = 45})};
  Lines lines = reasons_of(view);
  std::erase_if(lines, [](const std::string& line) { return line.find("has no row") == std::string::npos; });
  EXPECT_THAT(lines,
              ElementsAre("20 is late and has no row: with it the batch would exceed the gap of another"));
}

TEST(AutoReasons, WhyAChunkIsShort) {
  View view = auto_view(50, 40);
  view.running = {auto_decoding(1, 20, 30, 0.02, {.tbt_ms = 100}), running_seq(2, 200, 200, 16)};
  view.running[1].arrival = kAutoNow - 1;
  EXPECT_THAT(reasons_of(view), ElementsAre("cut 2 to 32 rows: the next token of 1 is due in 80 ms"));
  view.running[0].slo = {};
  view.running[1] = running_seq(2, 300, 300, 16);
  view.running[1].arrival = kAutoNow - 1;
  EXPECT_THAT(reasons_of(view),
              ElementsAre("cut 2 to 160 rows: requests without bounds are to have gaps below 200 ms"));
  view.running[0].slo = {.tbt_ms = 5000};
  view.limits.long_prefill_token_threshold = 32;
  EXPECT_THAT(reasons_of(view), IsEmpty()) << "time is not what cuts it";
}

TEST(AutoReasons, TheFirstOfTheLateWaitsOnCredit) {
  View view = auto_view(50, 2);
  view.running = {auto_decoding(9, 20, 30, 0.01, {})};
  const Slo slo{.ttft_ms = 500};
  view.waiting = {auto_waiting(1, 48, 3, slo, 20), auto_waiting(2, 48, 2, slo, 20)};
  const auto policy = make_policy("auto").value();
  set_part(*policy, AutoPart::kCredit, fmt::format("{} 0.01 0 0", kAutoNow));
  set_part(*policy, AutoPart::kNews, fmt::format("{}", kAutoNow - 1));
  // What 1 costs where memory is short in each step: 48 rows and 20 decodes of 1 ms, (48 * 20 + 20^2 / 2) of
  // a microsecond, and as many of 20 ms for 800 tokens of room.
  EXPECT_THAT(reasons_of(*policy, view), ElementsAre("1 is late and waits on credit: 10 ms of 98.2 ms",
                                                     "not admitted 1: it needs 3 blocks, 2 can be had"));
  set_part(*policy, AutoPart::kCredit, fmt::format("{} 1 0 0", kAutoNow));
  view.device.spare_slabs = 2 * 5;
  EXPECT_EQ(reasons_of(*policy, view)[0], "served 1, late: its credit pays its cost of 98.2 ms");
}

TEST(AutoReasons, WhatBecomesLateIsToldOnce) {
  View view = auto_view(50, 0);
  view.running = {auto_decoding(9, 20, 30, 0.01, {.tbt_ms = 1000})};
  view.waiting = {auto_waiting(1, 48, 0.45, {.ttft_ms = 500}, 20)};
  const auto policy = make_policy("auto").value();
  const auto told = [&] {
    Lines out = reasons_of(*policy, view);
    std::erase_if(out, [](const std::string& line) { return line.find("late ") != 0; });
    return out;
  };
  EXPECT_THAT(told(), IsEmpty());
  view.now += from_seconds(0.06);
  view.running[0].last_token_time = view.now;
  EXPECT_THAT(told(), ElementsAre("late 1: missed ttft of 500 ms by 10 ms"));
  const auto other = make_policy("auto").value();
  ASSERT_TRUE(other->restore_state(policy->save_state()).ok());
  view.now += from_seconds(1.1);
  EXPECT_THAT(told(), ElementsAre("late 9: a gap was longer than 1 s"));
  EXPECT_EQ(reasons_of(*other, view)[0], "late 9: a gap was longer than 1 s") << "by the state alone";
  view.now += from_seconds(0.1);
  EXPECT_THAT(told(), IsEmpty());
}

TEST(AutoReasons, WhatWillBeLate) {
  // 990 tokens to come, the most that there may be, of 21.03 ms each: 20.8 s, of which there are 9.
  View view = auto_view(50, 40);
  view.running = {auto_decoding(1, 20, 30, 0.01, {.e2el_ms = 10'000}, 1010)};
  EXPECT_THAT(reasons_of(view), ElementsAre("late 1: by 11.8 s it will exceed e2el"));
  // 900 ms for the nine tokens after the first so far; in 5 % of all cases one more is to come.
  view.running[0].slo = {.tpot_ms = 10};
  view.running[0].predicted.output_tokens = 11;
  EXPECT_THAT(reasons_of(view), ElementsAre("late 1: by 811 ms its mean gap will exceed tpot"));
  view.running = {auto_decoding(2, 20, 30, 0.01, {}, 11)};
  view.running[0].arrival = kAutoNow - 20 * kNanosPerSecond;
  // Beside what decodes now 41.03 ms for the prompt, and 11 steps of 21.03 ms.
  EXPECT_THAT(reasons_of(view), ElementsAre("late 2: without bounds, it took 73.43 times as long as alone"));
}

TEST(AutoReasons, GapsThatAreGivenUp) {
  // No step takes less than 21 ms.
  View view = auto_view(50, 40);
  view.waiting = {auto_waiting(1, 16, 0.1, {.tbt_ms = 10}, 20),
                  auto_waiting(2, 16, 0.1, {.tbt_ms = 500}, 20)};
  const Lines lines = reasons_of(view);
  ASSERT_GE(lines.size(), 2u);
  EXPECT_EQ(lines[0], "gaps below 500 ms are given up: they would cost others more");
  EXPECT_EQ(lines[1], "late 1: its gap of 10 ms is given up, as all below 500 ms are");
  view.waiting.pop_back();
  EXPECT_EQ(reasons_of(view)[0], "all gaps are given up: none can be kept");
}

TEST(AutoReasons, TheStretchDoubles) {
  View view = auto_view(40, 2);
  view.running = {auto_decoding(9, 20, 30, 0.01, {})};
  for (uint64_t id = 1; id <= 3; ++id) view.waiting.push_back(auto_waiting(id, 200, 0.1, {}, 400));
  const auto policy = auto_with(AutoPart::kShortages, "1 0");
  EXPECT_EQ(reasons_of(*policy, view)[0], "requests without bounds may take 2 times as long as alone");
}

TEST(AutoReasons, APromptRunsAwayFromTheDevice) {
  View view = auto_view(40, 2);
  set_host(view, 100, 100);
  set_ring(view, 20);
  view.costs.links[index_of(Tier::kHost)][index_of(Tier::kDevice)].seconds_per_byte = 1e-9;
  view.running = {auto_decoding(9, 20, 30, 0.01, {.tbt_ms = 1000})};
  view.waiting = {auto_waiting(1, 64, 0.6, {.ttft_ms = 1000, .tbt_ms = 1000}, 20)};
  view.waiting[0].max_total_tokens = 100;
  EXPECT_THAT(reasons_of(view, "auto:growth=off"),
              ElementsAre("admitted 1 away: first token due in 400 ms, no room on the device"));
}

TEST(Reasons, AloneAndAtAStandstill) {
  View view = make_view(50, 40);
  view.running = {decoding_seq(1, 20, 30)};
  view.running[0].deferrals = 4;
  EXPECT_THAT(reasons_of(view, "sarathi"),
              ElementsAre("1 has the step alone: its transfers came too late 4 times in a row"));
  view = make_view(4, 0);
  view.running = {running_seq(1, 100, 100, 32), running_seq(2, 100, 100, 32)};
  EXPECT_THAT(reasons_of(view, "sarathi"),
              ElementsAre("preempted 2: nothing could go on, and 2 is the last to be served"));
}

}  // namespace
}  // namespace kvasir::test
