// Plans of the Apt-Serve policy, worked by hand. Blocks have 16 tokens and two cells; one of K and V takes
// 1,024 bytes, one of X half of that.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "sched/apt_serve_views.h"

namespace kvasir::test {
namespace {

std::string apt_serve_plan(const View& view, const std::string& policy = "apt-serve") {
  return plan_of(policy.c_str(), view);
}

// By pending seconds a block: 6 / 3, 1 / 1, 2 / 1.
TEST(AptServePolicy, TheLongestWaitPerByteIsFirst) {
  View view = apt_view(50, 50);
  view.waiting = {waits(1, 48, 5.9), waits(2, 16, 1), waits(3, 16, 2)};
  EXPECT_EQ(apt_serve_plan(view),
            "promise 3 2 cells on device\npromise 1 6 cells on device\npromise 2 2 cells on device\n"
            "prefill 3 [0, 16) samples\nprefill 1 [0, 48) samples\nprefill 2 [0, 16) samples\n");
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:order=fcfs"),
            "promise 1 6 cells on device\npromise 2 2 cells on device\npromise 3 2 cells on device\n"
            "prefill 1 [0, 48) samples\nprefill 2 [0, 16) samples\nprefill 3 [0, 16) samples\n");
}

TEST(AptServePolicy, ARequestBeyondItsBoundComesAfterAllOthers) {
  View view = apt_view(50, 50);
  view.waiting = {waits(1, 16, 9, {.ttft_ms = 8999}), waits(2, 16, 1, {.ttft_ms = 2000}),
                  waits(3, 48, 9, {.ttft_ms = 8999})};
  const std::string order =
      "prefill 2 [0, 16) samples\nprefill 1 [0, 16) samples\nprefill 3 [0, 48) samples\n";
  const std::string promises =
      "promise 2 2 cells on device\npromise 1 2 cells on device\npromise 3 6 cells on device\n";
  EXPECT_EQ(apt_serve_plan(view), promises + order);
  // With four tenths of their value, 3.6 against 1 and 1.2 a block against 1.
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:decay=0.4"),
            "promise 1 2 cells on device\npromise 3 6 cells on device\npromise 2 2 cells on device\n"
            "prefill 1 [0, 16) samples\nprefill 3 [0, 48) samples\nprefill 2 [0, 16) samples\n");
  EXPECT_EQ(apt_serve_plan(view, "vllm:demote=on"), promises + order);
  EXPECT_EQ(apt_serve_plan(view, "vllm").substr(0, 28), "promise 1 2 cells on device\n");
}

TEST(AptServePolicy, TheGreaterSumOfPendingTimesDecidesWhatAStepIs) {
  View view = apt_view(50, 40);
  view.running = {timed(decoding_seq(1, 20, 30), 2)};
  view.waiting = {waits(2, 16, 1.5)};
  EXPECT_EQ(apt_serve_plan(view), "decode 1 [29, 30) samples\n");
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:order=fcfs"),
            "promise 2 2 cells on device\nprefill 2 [0, 16) samples\n");
  view.waiting[0].arrival -= kNanosPerSecond;
  EXPECT_EQ(apt_serve_plan(view), "promise 2 2 cells on device\nprefill 2 [0, 16) samples\n");
  // Nothing can be prefilled.
  view.waiting[0].prompt_tokens = view.waiting[0].known_tokens = 16 * 41;
  EXPECT_EQ(apt_serve_plan(view), "decode 1 [29, 30) samples\n");
  view.waiting[0].prompt_tokens = view.waiting[0].known_tokens = 16;
  EXPECT_EQ(apt_serve_plan(view, "apt-serve-s"),
            "promise 2 2 cells on device\ndecode 1 [29, 30) samples\nprefill 2 [0, 16) samples\n");
}

// Three blocks of K and V, or two of X and one of both, for which there is room beside what decodes.
TEST(AptServePolicy, WhereMemoryIsShortAPromptIsKeptAsX) {
  View view = apt_view(50, 3, 10);
  view.waiting = {waits(1, 48, 4)};
  view.running = {timed(decoding_seq(2, 20, 30), 0.1)};
  EXPECT_EQ(apt_serve_plan(view), "promise 1 6 cells on device\nprefill 1 [0, 48) samples\n");
  view.device.spare_slabs = 5;
  EXPECT_EQ(apt_serve_plan(view), "prefill 1 [0, 48) samples x2 keeps kv x0 x x2\n");
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:hidden=off"), "decode 2 [29, 30) samples\n");
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:hidden-share=0"), "decode 2 [29, 30) samples\n");
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:hidden-share=0.05"), "decode 2 [29, 30) samples\n")
      << "2.5 blocks";
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:hidden-share=0.06"),
            "prefill 1 [0, 48) samples x2 keeps kv x0 x x2\n");
  // Two requests, a step of 48 tokens and four layers: 2 x 192 x rho against four seconds.
  view.costs.projected_token_s = 4.0 / (2 * 192);
  EXPECT_EQ(apt_serve_plan(view), "decode 2 [29, 30) samples\n") << "worth nothing as X";
  view.costs.projected_token_s *= 0.99;
  EXPECT_EQ(apt_serve_plan(view), "prefill 1 [0, 48) samples x2 keeps kv x0 x x2\n");
}

TEST(AptServePolicy, NoneIsKeptAsXWithoutGain) {
  View view = apt_view(50, 0, 10);
  view.device.spare_slabs = 5;
  view.running = {timed(decoding_seq(2, 20, 30), 0.1)};
  const auto expect_waits = [&](const SeqView& s) {
    view.waiting = {s};
    EXPECT_EQ(apt_serve_plan(view), "decode 2 [29, 30) samples\n");
  };
  view.waiting = {waits(1, 48, 4)};
  ASSERT_NE(apt_serve_plan(view), "decode 2 [29, 30) samples\n");
  expect_waits(waits(1, 48, 4, {.ttft_ms = 3999}));  // its bound is missed
  SeqView preempted = waits(1, 48, 4);
  preempted.known_tokens = 50;
  preempted.first_token_time = preempted.last_token_time = kAptNow - from_seconds(4);
  expect_waits(preempted);
  view.stage_blocks = 9;
  expect_waits(waits(1, 48, 4));  // it may become 148 tokens
  view.stage_blocks = 10;
  // A step projects 0.26 s, and half of half of a second is allowed.
  view.costs.projected_token_s = 0.26 / 192;
  expect_waits(waits(1, 48, 4, {.ttft_ms = 9000, .tbt_ms = 1000}));
  EXPECT_THAT(apt_serve_plan(view, "apt-serve:all-share=0.27"), testing::HasSubstr("keeps kv x0 x x"));
  view.geometry.x_bytes_per_token_layer = 0;
  view.device.per_slab[index_of(Form::kX)] = 0;
  expect_waits(waits(1, 48, 4));
}

// With 50 tokens it takes four blocks as K and V; as X four of X, which are half of that, and the last one as
// K and V: the room of three.
TEST(AptServePolicy, OneThatComesBackMayBeKeptAsX) {
  View view = apt_view(50, 0, 10);
  view.running = {timed(decoding_seq(2, 20, 30), 0.1)};
  SeqView back = timed(waiting_seq(1, 48), 4);
  back.known_tokens = 50;
  view.waiting = {back};
  view.device.spare_slabs = 2 * 4 - 1;
  EXPECT_EQ(apt_serve_plan(view), "decode 2 [29, 30) samples\n");
  for (const char* policy : {"apt-serve:to-x=returning", "apt-serve:to-x=running", "apt-serve:to-x=queue"}) {
    EXPECT_EQ(apt_serve_plan(view, policy),
              "promise 1 2 cells on device\nprefill 1 [0, 50) samples x2 keeps kv x0 x x2\n")
        << policy;
  }
}

// As K and V it is refused, as X there is room for it in the same plan; without X it waits.
TEST(AptServePolicy, InOrderOfArrivalOnlyOneThatIsNotAdmittedInEitherFormIsRefused) {
  View view = apt_view(50, 3, 10);
  view.waiting = {waits(1, 48, 4)};
  view.running = {timed(decoding_seq(2, 20, 30), 0.1)};
  view.device.spare_slabs = 5;
  const char* fcfs = "apt-serve:order=fcfs";
  EXPECT_EQ(apt_serve_plan(view, fcfs), "prefill 1 [0, 48) samples x2 keeps kv x0 x x2\n");
  EXPECT_EQ(first_reason(fcfs, view), "");
  EXPECT_EQ(first_reason("apt-serve:order=fcfs:hidden=off", view), "wait_memory");
}

// Nothing is free, 1 and 3 begin a block, and twelve blocks have room for what follows, in blocks of 1,024
// bytes: 1 and 3 need two each, also as X; 2 needs eight, or five as X; 4 needs two, also as X. Each of four
// requests would wait for 112 tokens of 2 in four layers: 4 x 112 x 4 rho = 0.1344 s. The values in
// microseconds by the byte:
//
// clang-format off
//   1, 3     0.4 / 2,048 = 195
//   2 as X   (0.4 - 0.1344) / 5,120 = 51.9; then K and V 0.1344 / 3,072 = 43.8; at once 0.4 / 8,192 = 48.8
//   4        0.095 / 2,048 = 46.4
// clang-format on
//
// So 1, 3, 2 as X and 4 are taken, and one block is left, which is too little for the K and V of 2.
View view_of_a_switch() {
  View view = apt_view(20, 0, 20);
  view.running = {timed(decoding_seq(1, 10, 17), 0.4), timed(decoding_seq(2, 10, 124), 0.4),
                  timed(decoding_seq(3, 10, 17), 0.4), timed(decoding_seq(4, 10, 30), 0.095)};
  view.costs.projected_token_s = 3e-4 / 4;
  return view;
}

TEST(AptServePolicy, TheChoiceForADecodeStepMayGiveXToOneWithKv) {
  View view = view_of_a_switch();
  const char* by_equation_8 = "apt-serve:to-x=running:switch-cost=off:hidden-share=1";
  const std::string becomes_x =
      "preempt 2\ndrop_all 2 kv device\ndecode 1 [16, 17) samples\ndecode 3 [16, 17) samples\n"
      "decode 4 [29, 30) samples\n";
  EXPECT_EQ(apt_serve_plan(view, by_equation_8), becomes_x);
  EXPECT_EQ(first_reason(by_equation_8, view), "preempt_become_x");
  // Without X the least by the byte goes, which is 4.
  for (const char* policy : {"apt-serve:hidden-share=1", "apt-serve:to-x=returning:hidden-share=1",
                             "apt-serve:to-x=running:switch-cost=off:hidden-share=0.39"}) {
    EXPECT_EQ(apt_serve_plan(view, policy).substr(0, 10), "preempt 4\n") << policy << ": eight of twenty";
    EXPECT_EQ(first_reason(policy, view), "preempt_least_value") << policy;
  }
  EXPECT_EQ(apt_serve_plan(view, "apt-serve-s:to-x=running:switch-cost=off:hidden-share=1"), becomes_x);
  // All of 0.0336 s that projecting 2 takes, in a quarter of the bound, or in a half of it.
  view.running[0].slo.tbt_ms = 130;
  view.running[0].last_token_time = view.running[2].last_token_time = kAptNow - from_seconds(0.1);
  EXPECT_EQ(apt_serve_plan(view, by_equation_8).substr(0, 10), "preempt 4\n");
  EXPECT_EQ(apt_serve_plan(view, (std::string(by_equation_8) + ":all-share=0.5")).substr(0, 10),
            "preempt 2\n");
}

// Nine blocks are free: its K and V take eight.
TEST(AptServePolicy, OneThatBecomesXIsPrefilledNextAndAsX) {
  const char* name = "apt-serve:to-x=running:switch-cost=off:hidden-share=1";
  View view = view_of_a_switch();
  const std::unique_ptr<Policy> policy = make_policy(name).value();
  plan_of(*policy, view);
  EXPECT_EQ(policy->save_state(), "2");
  SeqView again = timed(waiting_seq(2, 10), 0.4);
  again.known_tokens = 124;
  view.running.erase(view.running.begin() + 1);
  view.waiting = {again};
  view.device.spare_slabs = 2 * 9;
  EXPECT_EQ(plan_of(name, view),
            "decode 1 [16, 17) samples\ndecode 3 [16, 17) samples\ndecode 4 [29, 30) samples\n")
      << "others have waited longer";
  const std::string as_x = "promise 2 2 cells on device\nprefill 2 [0, 124) samples x2 keeps kv x0 x x2\n";
  const std::unique_ptr<Policy> restored = make_policy(name).value();
  EXPECT_FALSE(restored->restore_state("2 x").ok());
  ASSERT_TRUE(restored->restore_state("2").ok());
  EXPECT_EQ(plan_of(*restored, view), as_x);
  EXPECT_EQ(plan_of(*policy, view), as_x);
  EXPECT_EQ(policy->save_state(), "") << "once";
  // One whose bound is missed waits as the others do.
  view.waiting[0].slo.tbt_ms = 399;
  ASSERT_TRUE(restored->restore_state("2").ok());
  EXPECT_EQ(plan_of(*restored, view).substr(0, 9), "decode 1 ");
  EXPECT_EQ(restored->save_state(), "");
  // Without room it waits for cells that are about to become free, and otherwise as the others do.
  view.waiting[0].slo = {};
  view.device.spare_slabs = 2;
  for (uint32_t coming : {4u, 0u}) {
    set_pinned(view, coming);
    ASSERT_TRUE(restored->restore_state("2").ok());
    plan_of(*restored, view);
    EXPECT_EQ(restored->save_state(), coming > 0 ? "2" : "");
  }
}

// Its recomputation costs each of the four 123 rows: 492 R. With R = 40 us the K and V of 2 are worth
// (0.1344 + 0.0197) / 3,072 = 50.2 by the byte, and 4 is worth (0.095 + 0.0046) / 2,048 = 48.7; with 10 us
// 45.4 and 47.0.
TEST(AptServePolicy, ThatItsKvWouldBeComputedAgainCounts) {
  View view = view_of_a_switch();
  view.costs.prefill_row_s = 40e-6;
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:to-x=running:hidden-share=1").substr(0, 10), "preempt 4\n");
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:to-x=running:switch-cost=off:hidden-share=1").substr(0, 10),
            "preempt 2\n");
  view.costs.prefill_row_s = 10e-6;
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:to-x=running:hidden-share=1").substr(0, 10), "preempt 2\n");
}

// As X, 1 would free three blocks, which cost 3 x 112 x 4 rho = 0.1344 s, 43.8 us a byte, and with its
// recomputation of 123 ms 164. The prompt of three blocks is worth 0.2 / 3,072 = 65, or
// (0.2 - 3 x 48 x 4 rho) / 1,536 = 92.7 as X and then 0.0576 / 1,536 = 37.5.
TEST(AptServePolicy, OneWithKvMayMakeRoomForTheQueue) {
  View view = apt_view(50, 1, 20);
  view.running = {timed(decoding_seq(1, 10, 124), 0.05), timed(decoding_seq(3, 10, 30), 0.05)};
  view.waiting = {waits(2, 48, 0.2)};
  view.costs.projected_token_s = 1e-4;
  const std::string decodes = "decode 3 [29, 30) samples\ndecode 1 [123, 124) samples\n";
  for (const char* policy : {"apt-serve", "apt-serve:to-x=running"}) {
    EXPECT_EQ(apt_serve_plan(view, policy), decodes) << policy;
  }
  const std::string makes_room = apt_serve_plan(view, "apt-serve:to-x=queue");
  EXPECT_EQ(makes_room.substr(0, 10), "preempt 1\n");
  EXPECT_NE(makes_room.find("prefill 2 [0, 48) samples\n"), std::string::npos) << makes_room;
  EXPECT_EQ(first_reason("apt-serve:to-x=queue", view), "preempt_become_x");
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:to-x=queue:hidden-share=0.15"), decodes)
      << "eight of fifty blocks";
  view.waiting[0].stalled = true;
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:to-x=queue"), decodes) << "memory does not help it";
  view.waiting[0].stalled = false;
  view.costs.prefill_row_s = 1e-3;
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:to-x=queue"), decodes);
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:to-x=queue:switch-cost=off").substr(0, 10), "preempt 1\n");
  // The last one that runs keeps what it has.
  view.running.pop_back();
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:to-x=queue:switch-cost=off").substr(0, 9), "decode 1 ");
}

// rho of the 24 tokens without K and V in four layers, times two requests: 0.5 s.
TEST(AptServePolicy, OneKeptAsXSitsOutWhileItsTokenCostsMoreThanItHasWaited) {
  View view = apt_view(50, 0);
  view.costs.projected_token_s = 0.5 / (2 * 4 * 24);
  const auto with = [&](double waited, Slo slo = {}) {
    view.running = {hidden(1, 40, waited, slo), timed(decoding_seq(2, 20, 30), 0.1)};
    return apt_serve_plan(view);
  };
  const std::string both =
      "stage 1 [0, 39) kv device x2 before_layer\ndecode 1 [39, 40) samples x2 keeps kv x0 x x2\n";
  EXPECT_EQ(with(0.49), "decode 2 [29, 30) samples\n");
  EXPECT_NE(with(0.51).find("decode 1"), std::string::npos);
  EXPECT_NE(with(0.49, {.tbt_ms = 900}).find("decode 1"), std::string::npos) << "half of its gap is over";
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:step-share=0.6"), "decode 2 [29, 30) samples\n") << "0.54 s";
  view.running = {hidden(1, 40, 0.01)};
  EXPECT_EQ(apt_serve_plan(view), both) << "no other runs";
}

TEST(AptServePolicy, AsSoonAsThereIsRoomItHasItsKv) {
  View view = apt_view(50, 4);
  view.running = {hidden(1, 40, 0.1), timed(decoding_seq(2, 20, 30), 0.1)};
  const std::string upgrade = "add 1 [0, 32) kv device x2 before_layer\n";
  EXPECT_NE(apt_serve_plan(view).find(upgrade), std::string::npos) << apt_serve_plan(view);
  EXPECT_NE(apt_serve_plan(view, "apt-serve-s").find(upgrade), std::string::npos);
  view.device.spare_slabs = 2 * 2;
  EXPECT_EQ(apt_serve_plan(view).find(upgrade), std::string::npos) << "two blocks and one that it may begin";
  // A prompt of three blocks is worth less by the byte than the projections that an upgrade spares.
  view.device.spare_slabs = 2 * 4;
  view.costs.projected_token_s = 1.0 / (3 * 4 * 24);
  view.waiting = {waits(3, 48, 0.9)};
  EXPECT_NE(apt_serve_plan(view).find(upgrade), std::string::npos) << apt_serve_plan(view);
  EXPECT_EQ(apt_serve_plan(view).find("prefill 3"), std::string::npos);
}

TEST(AptServePolicy, WhereBlocksRunOutTheLeastValueByTheByteIsPreempted) {
  View view = apt_view(20, 0);
  // Of one, four and two blocks; the first and the last begin one.
  view.running = {timed(decoding_seq(1, 10, 17), 0.1), timed(decoding_seq(2, 10, 60), 0.1),
                  timed(decoding_seq(3, 10, 33), 0.1)};
  const std::string out = apt_serve_plan(view);
  EXPECT_EQ(out.substr(0, 10), "preempt 2\n") << out;
  EXPECT_NE(out.find("decode 1 [16, 17)"), std::string::npos);
  EXPECT_NE(out.find("decode 3 [32, 33)"), std::string::npos);
  // The latest, first come, first served.
  view.running[2].arrival = 5;
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:order=fcfs").substr(0, 10), "preempt 3\n");
}

// Five blocks each, and a ring of ten. There is room for three of them as X, and two blocks are spared.
TEST(AptServePolicy, NoMoreThanTheRingPassesAreKeptAsXInAStep) {
  View view = apt_view(200, 10, 10);
  view.waiting = {waits(1, 80, 4), waits(2, 80, 4), waits(3, 80, 4)};
  view.running = {timed(decoding_seq(9, 20, 30), 0.1)};
  for (SeqView& s : view.waiting) s.max_total_tokens = 100;
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:hidden-share=1"),
            "prefill 1 [0, 80) samples x2 keeps kv x0 x x2\n"
            "prefill 2 [0, 80) samples x2 keeps kv x0 x x2\n");
  // And no more than the share of the device allows, or than X has cells for.
  EXPECT_EQ(apt_serve_plan(view, "apt-serve:hidden-share=0.03"),
            "prefill 1 [0, 80) samples x2 keeps kv x0 x x2\n");
}

TEST(AptServePolicy, AnUpgradeNeedsNoRing) {
  View view = apt_view(50, 4, 1);
  view.running = {hidden(1, 40, 0.1), timed(decoding_seq(2, 20, 30), 0.1)};
  EXPECT_NE(apt_serve_plan(view).find("add 1 [0, 32) kv device x2 before_layer\n"), std::string::npos)
      << apt_serve_plan(view);
}

// Whether it was upgraded or has adopted X that became K and V: it is no longer kept as X.
TEST(AptServePolicy, ASequenceWithItsKvGivesUpItsX) {
  View view = apt_view(50, 50);
  SeqView s = timed(decoding_seq(1, 10, 40), 0.1);
  hold(s, Form::kX, Tier::kDevice, 6);
  view.running = {s};
  EXPECT_EQ(apt_serve_plan(view), "drop 1 [0, 39) x device x2 when_ready\ndecode 1 [39, 40) samples\n");
  s = running_seq(1, 100, 100, 40);
  s.arrival = 1;
  hold(s, Form::kX, Tier::kDevice, 6);
  view.running = {s};
  EXPECT_EQ(apt_serve_plan(view), "drop 1 [0, 40) x device x2 when_ready\nprefill 1 [40, 100) samples\n");
}

// One larger than the device is worth by the byte what its whole length says, and needs two blocks.
TEST(AptServePolicy, OneThatStreamsIsAdmittedBesideOthers) {
  View view = apt_view(200, 20, 400);
  with_host(view, 1000, 1000);
  view.running = {timed(decoding_seq(9, 20, 30), 0.1)};
  view.waiting = {waits(1, 16 * 210, 4), waits(2, 16, 1)};
  view.limits.max_num_batched_tokens = 4000;
  const std::string out = apt_serve_plan(view);
  EXPECT_NE(out.find("prefill 2 [0, 16)"), std::string::npos) << out;
  EXPECT_NE(out.find("prefill 1 [0, "), std::string::npos) << out;
  EXPECT_LT(out.find("prefill 2 [0, 16)"), out.find("prefill 1 [0, ")) << out;
}

// Three decode with a prefix of 40 blocks in common, and nothing is free: their cells count on both sides.
TEST(AptServePolicy, SharedCellsAreNotMissing) {
  View view = apt_view(50, 3);
  for (uint64_t id = 1; id <= 3; ++id) {
    SeqView s = timed(decoding_seq(id, 640, 650), 0.1);
    s.own_cells[index_of(Form::kKv)][index_of(Tier::kDevice)] = kViewGroups;
    view.running.push_back(s);
  }
  SeqView waiting_to_be_kv = hidden(4, 40, 0.1);
  view.running.push_back(waiting_to_be_kv);
  EXPECT_NE(apt_serve_plan(view).find("add 4 [0, 32) kv device x2 before_layer\n"), std::string::npos)
      << apt_serve_plan(view);
}

TEST(AptServePolicy, SettingsThatMeanNothingAreRefused) {
  for (const char* policy : {"apt-serve:to-x=all", "apt-serve:switch-cost=off", "apt-serve:step-share=0",
                             "apt-serve-s:all-share=1.1"}) {
    EXPECT_FALSE(make_policy(policy).ok()) << policy;
  }
  EXPECT_TRUE(make_policy("apt-serve-s:to-x=queue:switch-cost=off:step-share=1:all-share=0.01").ok());
}

TEST(AptServePolicy, ItKeepsXUnlessItsSettingsSayOtherwise) {
  EXPECT_TRUE(policy_traits("apt-serve").keeps_x);
  EXPECT_TRUE(policy_traits("apt-serve-s:decay=0.4").keeps_x);
  EXPECT_FALSE(policy_traits("apt-serve:hidden=off").keeps_x);
  EXPECT_FALSE(policy_traits("vllm").keeps_x);
  EXPECT_FALSE(policy_traits("apt-serve:hidden=perhaps").keeps_x);
}

}  // namespace
}  // namespace kvasir::test
