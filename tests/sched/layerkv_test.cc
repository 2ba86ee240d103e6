// Plans of the LayerKV policy, worked by hand. Blocks have 16 tokens.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "fakes/views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

constexpr Nanos kLayerkvNow = 10 * kNanosPerSecond;

std::string layerkv_plan(const View& view, const char* settings = "") {
  return plan_of((std::string("layerkv") + settings).c_str(), view);
}

// Decodes, and what it had was sampled just now.
SeqView timed(SeqView s, Slo slo) {
  s.slo = slo;
  s.first_token_time = kLayerkvNow;
  s.last_token_time = kLayerkvNow;
  return s;
}

// A step takes an eighth of a second, and a 64th more for each row of a prompt: sums of these are exact.
void set_costs(View& view) {
  view.now = kLayerkvNow;
  view.costs.step_s = 0.125;
  view.costs.prefill_row_s = 1.0 / 64;
}

void set_link(View& view, double seconds_per_cell) {
  for (const auto& [from, to] : {std::pair{Tier::kDevice, Tier::kHost}, {Tier::kHost, Tier::kDevice}}) {
    view.costs.links[index_of(from)][index_of(to)].seconds_per_byte =
        seconds_per_cell / static_cast<double>(view.geometry.kv_cell_bytes());
  }
}

// Decodes; of its full blocks some groups are on the device, and the others on the host.
SeqView partial_seq(uint64_t id, uint32_t prompt, uint32_t known, const LayerSet& there) {
  SeqView s = decoding_seq(id, prompt, known);
  const uint32_t full = s.ready_tokens / kViewBlock;
  const uint32_t tail = s.blocks - full;
  set_cells(s, Tier::kDevice, full * there.count() + tail * kViewGroups);
  set_cells(s, Tier::kHost, full * (kViewGroups - there.count()));
  s.device_groups = there;
  s.resident_blocks = tail;
  return s;
}

LayerSet group(uint32_t g) {
  LayerSet set;
  set.add(g);
  return set;
}

TEST(LayerKvPolicy, APromptIsAdmittedWholeWhileThereIsRoom) {
  View view = make_view(50, 50);
  set_host(view, 50, 50);
  view.limits.max_num_batched_tokens = 101;
  view.running = {decoding_seq(4, 20, 30)};
  view.waiting = {waiting_seq(1, 40), waiting_seq(2, 60), waiting_seq(3, 1)};
  EXPECT_EQ(layerkv_plan(view),
            "promise 1 6 cells on device\npromise 2 8 cells on device\n"
            "decode 4 [29, 30) samples\nprefill 1 [0, 40) samples\nprefill 2 [0, 60) samples\n")
      << "1 + 40 + 60 rows are the budget";
}

// Eight groups, 200 cells. What decodes has 25 tokens and begins a block within the next 16: eight cells. Two
// cells are the threshold, and eight the block in which the prompt's output begins. A layer of it has ten.
TEST(LayerKvPolicy, WhereThereIsNotTheLayersThatStayAreSpread) {
  View view = make_view(0, 0);
  view.geometry = {kViewBlock, 8, 1, 8};
  view.device.slabs = 200;
  view.host.per_slab[0] = 1;
  view.host.slabs = view.host.spare_slabs = 200;
  set_ring(view, 20);
  SeqView decodes = decoding_seq(1, 20, 25);
  set_cells(decodes, Tier::kDevice, 2 * 8);
  decodes.device_groups = LayerSet::all(8);
  view.running = {decodes};
  view.waiting = {waiting_seq(2, 160)};
  struct Case {
    uint32_t free_cells;
    std::vector<uint32_t> kept;
  };
  for (const Case& c : {Case{58, {1, 3, 5, 7}}, Case{57, {2, 5, 7}}, Case{28, {7}}, Case{27, {}}}) {
    SCOPED_TRACE(c.free_cells);
    view.device.spare_slabs = c.free_cells;
    const StepPlan plan = make_policy("layerkv").value()->plan(view);
    EXPECT_TRUE(check_plan(view, plan).ok()) << check_plan(view, plan).message();
    LayerSet kept;
    for (uint32_t g : c.kept) kept.add(g);
    ASSERT_EQ(plan.rows.size(), 2u);
    EXPECT_EQ(plan.rows[1].writes.kv, kept);
    EXPECT_EQ(plan.rows[1].tokens, (Interval{0, 160}));
    ASSERT_EQ(plan.copies.size(), 1u);
    EXPECT_EQ(plan.copies[0].layers, LayerSet::all(8) - kept);
    EXPECT_EQ(plan.copies[0].trigger, Trigger::kAfterLayerWrites);
  }
  EXPECT_EQ(layerkv_plan(view),
            "add 2 [0, 160) kv host x8 after_layer_writes\npromise 2 80 cells on host\n"
            "decode 1 [24, 25) samples\nprefill 2 [0, 160) samples x8 keeps kv x0 x x0\n");
  // Those whose layers are away have the first claim to free cells: 64 of their own and the prompt's.
  SeqView away = decoding_seq(3, 20, 65);
  set_cells(away, Tier::kDevice, 0);
  set_cells(away, Tier::kHost, 4 * 8);
  away.device_groups = {};
  away.resident_blocks = 0;
  view.running.push_back(away);
  view.device.spare_slabs = 58 + 32;
  const StepPlan beside = make_policy("layerkv").value()->plan(view);
  ASSERT_EQ(beside.rows.size(), 2u);
  EXPECT_EQ(beside.rows[1].writes.kv.count(), 4u);
  EXPECT_TRUE(check_plan(view, beside).ok());
}

// A token was sampled just now, and one more is to come at least: of twice 250 ms the step takes 125. So 375
// may pass beside it, 24 rows. Less is asked for than that.
TEST(LayerKvPolicy, TheLongestPrefixForWhichThereIsTime) {
  View view = make_view(50, 50);
  set_host(view, 50, 50);
  set_costs(view);
  view.running = {timed(decoding_seq(1, 20, 22), {.tpot_ms = 250})};
  view.waiting = {waiting_seq(2, 8), waiting_seq(3, 15), waiting_seq(4, 1)};
  const std::string one = "promise 2 2 cells on device\n", two = "promise 3 2 cells on device\n",
                    three = "promise 4 2 cells on device\n", decode = "decode 1 [21, 22) samples\n",
                    first = "prefill 2 [0, 8) samples\n", last = "prefill 4 [0, 1) samples\n";
  EXPECT_EQ(layerkv_plan(view), one + two + decode + first + "prefill 3 [0, 15) samples\n")
      << "23 rows, and not 24";
  view.waiting[1] = waiting_seq(3, 16);
  EXPECT_EQ(layerkv_plan(view), one + decode + first) << "none overtakes";
  const std::string all = one + two + three + decode + first + "prefill 3 [0, 16) samples\n" + last;
  EXPECT_EQ(layerkv_plan(view, ":slo=off"), all);
  // A second ago: what is left of its bound is less than nothing, whatever comes.
  view.running[0].first_token_time = kLayerkvNow - kNanosPerSecond;
  EXPECT_EQ(layerkv_plan(view), decode) << "a request that is late allows nothing";
  // With 20 tokens predicted there is time in the end, but not by the lower bound of the class.
  view.running[0].predicted = {.output_tokens = 20};
  view.length_classes = {{.low = 4, .high = 32}};
  EXPECT_EQ(layerkv_plan(view), decode) << "4 tokens of which 2 are there: 0.25 * 3 - 1 - 2 * 0.125 s";
  view.length_classes[0].low = 12;  // 0.25 * 11 - 1 - 10 * 0.125 s: 32 rows
  EXPECT_EQ(layerkv_plan(view), all);
}

// A request that is late for good, and a prompt that came at 0: after a minute it goes, and the one behind it
// does not. The next minute begins with it.
TEST(LayerKvPolicy, APromptThatHasWaitedForAMinuteGoesBesideLateRequests) {
  View view = make_view(50, 50);
  set_host(view, 50, 50);
  set_costs(view);
  view.running = {timed(decoding_seq(1, 20, 22), {.tpot_ms = 250})};
  view.waiting = {waiting_seq(2, 8), waiting_seq(3, 8)};
  const std::string decode = "decode 1 [21, 22) samples\n";
  const std::string goes = "promise 2 2 cells on device\n" + decode + "prefill 2 [0, 8) samples\n";
  const auto policy = make_policy("layerkv").value();
  view.now = 59 * kNanosPerSecond;
  EXPECT_EQ(plan_of(*policy, view), decode);
  view.now = 61 * kNanosPerSecond;
  EXPECT_EQ(plan_of(*policy, view), goes);
  view.waiting.erase(view.waiting.begin());
  view.now = 120 * kNanosPerSecond;
  EXPECT_EQ(plan_of(*policy, view), decode);
  view.now = 121 * kNanosPerSecond;
  EXPECT_NE(plan_of(*policy, view), decode);
  // What is remembered is text, for kvasir replay.
  const auto other = make_policy("layerkv").value();
  ASSERT_TRUE(other->restore_state(policy->save_state()).ok());
  EXPECT_EQ(other->save_state(), policy->save_state());
  view.now = 122 * kNanosPerSecond;
  EXPECT_EQ(plan_of(*other, view), decode);
  EXPECT_FALSE(other->restore_state("nonsense").ok());
  view.now = 13 * kNanosPerSecond;
  view.waiting = {waiting_seq(2, 8), waiting_seq(3, 8)};
  EXPECT_EQ(layerkv_plan(view, ":age=14"), decode);
  EXPECT_EQ(layerkv_plan(view, ":age=13"), decode) << "it came at 2 ns";
  EXPECT_EQ(layerkv_plan(view, ":age=12"), goes);
}

// With bounds on gaps it goes in pieces that one takes: 31 rows are less than half a second.
TEST(LayerKvPolicy, AnAgedPromptTakesNoMoreThanAGapEverAllows) {
  View view = make_view(50, 50);
  set_host(view, 50, 50);
  set_costs(view);
  view.now = 100 * kNanosPerSecond;
  view.running = {timed(decoding_seq(1, 20, 22), {.tpot_ms = 250}),
                  timed(decoding_seq(2, 20, 22), {.tbt_ms = 1000})};
  view.running[1].last_token_time = view.now;
  view.waiting = {waiting_seq(3, 100)};
  const std::string decodes = "decode 1 [21, 22) samples\ndecode 2 [21, 22) samples\n";
  EXPECT_EQ(layerkv_plan(view), "promise 3 14 cells on device\n" + decodes + "prefill 3 [0, 16)\n");
  // What has begun goes on as those that are not late allow.
  view.running.push_back(running_seq(3, 100, 100, 16));
  view.running.back().promised_cells[0] = 6 * kViewGroups;
  view.waiting.clear();
  EXPECT_EQ(layerkv_plan(view), decodes + "prefill 3 [16, 32)\n");
}

// The bound of a request that a step by itself exceeds (125 ms) would keep every prompt waiting, and gain
// nothing by it.
TEST(LayerKvPolicy, ABoundBeyondReachHoldsNothingBack) {
  View view = make_view(50, 50);
  set_host(view, 50, 50);
  set_costs(view);
  view.waiting = {waiting_seq(2, 16)};
  const std::string decode = "decode 1 [21, 22) samples\n";
  const std::string goes = "promise 2 2 cells on device\n" + decode + "prefill 2 [0, 16) samples\n";
  for (const auto& [slo, plan] : {std::pair{Slo{.tpot_ms = 124}, goes},
                                  {Slo{.tbt_ms = 124}, goes},
                                  {Slo{.tpot_ms = 126}, decode},
                                  {Slo{.tbt_ms = 126}, decode}}) {
    view.running = {timed(decoding_seq(1, 20, 22), slo)};
    EXPECT_EQ(layerkv_plan(view), plan) << slo.tpot_ms << ' ' << slo.tbt_ms;
  }
}

// Two requests have a token each 125 ms at a bound of 250; but of the two only the first has decoded so far,
// the second waits for its layers. So the TPOT is 250 ms: 0.25 x 2 - (0 + 0.25) s is left of the first, and
// 0.25 x 2 - (0.125 + 0.25) of the second: 0.125 s, less than 8 rows.
TEST(LayerKvPolicy, TheTpotIsMeasuredWithAllWaits) {
  View view = make_view(50, 50);
  set_host(view, 50, 50);
  set_ring(view, 20);
  set_costs(view);
  set_link(view, 1000);
  view.waiting = {waiting_seq(3, 8)};
  const auto policy = make_policy("layerkv:urgent=0").value();
  const auto unmeasured = make_policy("layerkv:urgent=0:measured=off").value();
  std::string plan;
  std::string plan_unmeasured;
  for (int step = 0; step < 2; ++step) {
    view.now = kLayerkvNow + step * kNanosPerSecond / 8;
    view.running = {timed(decoding_seq(1, 20, 22 + step), {.tpot_ms = 250}),
                    timed(partial_seq(2, 60, 70, group(1)), {.tpot_ms = 250})};
    view.running[0].first_token_time = view.running[1].first_token_time = kLayerkvNow - 1;
    view.running[1].last_token_time = kLayerkvNow - 1;
    view.running[0].last_token_time = view.now;
    view.running[1].known_tokens = 62;
    view.running[1].ready_tokens = 61;
    plan = plan_of(*policy, view);
    plan_unmeasured = plan_of(*unmeasured, view);
  }
  EXPECT_EQ(plan.find("prefill 3"), std::string::npos) << plan;
  EXPECT_NE(plan_unmeasured.find("prefill 3"), std::string::npos) << plan_unmeasured;
}

TEST(LayerKvPolicy, TheLeastOfAllBoundsCounts) {
  View view = make_view(50, 50);
  set_host(view, 50, 50);
  set_costs(view);
  view.running = {timed(decoding_seq(1, 20, 22), {.tpot_ms = 500}),
                  timed(decoding_seq(2, 20, 22), {.tbt_ms = 250}), decoding_seq(3, 20, 22)};
  // Of the second: a gap of 250 ms, of which the step takes 125: eight rows.
  view.waiting = {waiting_seq(4, 7), waiting_seq(5, 1)};
  EXPECT_EQ(layerkv_plan(view),
            "promise 4 2 cells on device\ndecode 1 [21, 22) samples\ndecode 2 [21, 22) samples\n"
            "decode 3 [21, 22) samples\nprefill 4 [0, 7) samples\n");
}

// The step of decodes comes after that of the prompts: 375 ms less 125 are 16 rows.
TEST(LayerKvPolicy, WithoutMixedAStepIsPrefillsOrDecodes) {
  View view = make_view(50, 50);
  set_host(view, 50, 50);
  set_costs(view);
  view.running = {timed(decoding_seq(1, 20, 22), {.tpot_ms = 250})};
  view.waiting = {waiting_seq(2, 8), waiting_seq(3, 7), waiting_seq(4, 1)};
  EXPECT_EQ(layerkv_plan(view, ":mixed=off"),
            "promise 2 2 cells on device\npromise 3 2 cells on device\n"
            "prefill 2 [0, 8) samples\nprefill 3 [0, 7) samples\n");
  view.waiting = {waiting_seq(2, 16)};
  EXPECT_EQ(layerkv_plan(view, ":mixed=off"), "decode 1 [21, 22) samples\n");
  EXPECT_EQ(layerkv_plan(view, ":mixed=off:slo=off"),
            "promise 2 2 cells on device\nprefill 2 [0, 16) samples\n");
  // What was cut short goes on beside decodes, and none is admitted before it has come to its end.
  view.running.push_back(running_seq(3, 40, 40, 16));
  view.running.back().promised_cells[0] = 2 * kViewGroups;
  EXPECT_EQ(layerkv_plan(view, ":mixed=off:slo=off"),
            "decode 1 [21, 22) samples\nprefill 3 [16, 40) samples\n");
}

// Half of a gap of a second is for 31 rows; of what is left of it after 750 ms, less a step, there is time
// for seven.
TEST(LayerKvPolicy, APromptLongerThanAnyGapIsCut) {
  View view = make_view(50, 50);
  set_host(view, 50, 50);
  set_costs(view);
  view.running = {timed(decoding_seq(1, 20, 22), {.tbt_ms = 1000})};
  view.waiting = {waiting_seq(2, 100), waiting_seq(3, 1)};
  EXPECT_EQ(layerkv_plan(view),
            "promise 2 14 cells on device\ndecode 1 [21, 22) samples\nprefill 2 [0, 16)\n")
      << "to whole blocks";
  view.running[0].last_token_time = kLayerkvNow - 3 * kNanosPerSecond / 4;
  EXPECT_EQ(layerkv_plan(view), "decode 1 [21, 22) samples\n") << "another time";
  view.running[0].last_token_time = kLayerkvNow;
  view.running.push_back(running_seq(2, 100, 100, 16));
  view.running.back().promised_cells[0] = 6 * kViewGroups;
  view.waiting.clear();
  EXPECT_EQ(layerkv_plan(view), "decode 1 [21, 22) samples\nprefill 2 [16, 32)\n");
  // A bound on the mean does not cut: it is waited for.
  view.running = {timed(decoding_seq(1, 20, 22), {.tpot_ms = 250})};
  view.waiting = {waiting_seq(2, 100)};
  EXPECT_EQ(layerkv_plan(view), "decode 1 [21, 22) samples\n");
}

TEST(LayerKvPolicy, IfNoneDecodesThereIsNoBound) {
  View view = make_view(50, 50);
  set_host(view, 50, 50);
  set_costs(view);
  view.waiting = {waiting_seq(1, 300), waiting_seq(2, 100)};
  for (SeqView& s : view.waiting) s.slo = {.tpot_ms = 1, .tbt_ms = 1};
  const std::string promises = "promise 1 38 cells on device\npromise 2 14 cells on device\n";
  const std::string prefills = "prefill 1 [0, 300) samples\nprefill 2 [0, 100) samples\n";
  EXPECT_EQ(layerkv_plan(view), promises + prefills);
  view.running = {timed(decoding_seq(3, 20, 22), {.ttft_ms = 1})};
  EXPECT_EQ(layerkv_plan(view), promises + "decode 3 [21, 22) samples\n" + prefills)
      << "nor with none of theirs";
}

TEST(LayerKvPolicy, ASwappedOutRequestComesBackBeforeAnyPrompt) {
  View view = make_view(20, 3);
  set_host(view, 10, 8);
  set_ring(view, 20);
  view.running = {decoding_seq(1, 20, 34), decoding_seq(2, 20, 50)};
  view.waiting = {swapped_seq(3, 20, 30, 29), waiting_seq(4, 4)};
  EXPECT_EQ(layerkv_plan(view),
            "add 3 [0, 29) kv device x2 before_layer\n"
            "decode 1 [33, 34) samples\ndecode 2 [49, 50) samples\ndecode 3 [29, 30) samples\n");
  // Of two cells, 1 and 2 will want four: 2 gives those of a layer, and 4 is not let in before 3.
  view.device.spare_slabs = kViewGroups;
  EXPECT_EQ(layerkv_plan(view),
            "add 2 [0, 48) kv host x1 now\ndrop 2 [0, 48) kv device x1 when_ready\n"
            "decode 1 [33, 34) samples\ndecode 2 [49, 50) samples\n");
}

// What cannot be read through the ring is not to be elsewhere: it goes as a whole, and comes back as a whole.
TEST(LayerKvPolicy, WithoutARingNoLayersLeave) {
  View view = make_view(20, 3);
  set_host(view, 40, 40);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 48)};
  view.waiting = {waiting_seq(3, 40)};
  for (uint32_t ring : {0u, 3u}) {
    set_ring(view, ring);
    const StepPlan plan = make_policy("layerkv").value()->plan(view);
    EXPECT_TRUE(check_plan(view, plan).ok()) << check_plan(view, plan).message();
    EXPECT_TRUE(plan.copies.empty()) << to_string(plan);
    for (const Rows& r : plan.rows) EXPECT_EQ(r.writes.kv, LayerSet::all(kViewGroups));
  }
}

TEST(LayerKvPolicy, LayersOfTheNewestMakeRoom) {
  // They begin 2, 2 and 1 blocks within 16 tokens: 10 cells. Of 3 go the four blocks of one layer, those of
  // the other, and of 2 the three of one. 1 and 2 wait for them; 3 has its token in a block that it has.
  View view = make_view(20, 0);
  set_host(view, 20, 20);
  set_ring(view, 20);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 20, 49), decoding_seq(3, 20, 80)};
  EXPECT_EQ(layerkv_plan(view),
            "add 3 [0, 64) kv host x2 now\ndrop 3 [0, 64) kv device x2 when_ready\n"
            "add 2 [0, 48) kv host x1 now\ndrop 2 [0, 48) kv device x1 when_ready\n"
            "decode 3 [79, 80) samples\n");
  // Without room there it is as if there were no host.
  set_host(view, 20, 0);
  EXPECT_EQ(layerkv_plan(view),
            "preempt 3\ndrop_all 3 kv device\n"
            "decode 1 [32, 33) samples\ndecode 2 [48, 49) samples\n");
}

TEST(LayerKvPolicy, WhatIsOffloadedIsNotOffloadedTwiceNorPreempted) {
  // They will want six cells, and the newest has two.
  View view = make_view(20, 0);
  set_host(view, 20, 20);
  set_ring(view, 20);
  view.running = {decoding_seq(1, 20, 33), decoding_seq(2, 10, 17)};
  EXPECT_EQ(layerkv_plan(view), "add 2 [0, 16) kv host x2 now\ndrop 2 [0, 16) kv device x2 when_ready\n");
}

TEST(LayerKvPolicy, NoMoreIsOffloadedThanThereIs) {
  // Of 3 one layer of one block is on the device, so that no layer is whole, and the block that is not full:
  // it gives one cell, and 2 is asked, too.
  View view = make_view(20, 0);
  set_host(view, 20, 20);
  set_ring(view, 20);
  SeqView three = partial_seq(3, 60, 70, {});
  set_cells(three, Tier::kDevice, kViewGroups + 1);
  set_cells(three, Tier::kHost, 7);
  view.running = {decoding_seq(1, 20, 30), decoding_seq(2, 60, 62), three};
  view.running[0].max_total_tokens = 32;
  view.running[1].max_total_tokens = 80;  // two cells
  EXPECT_EQ(layerkv_plan(view),
            "add 3 [0, 64) kv host x2 now\ndrop 3 [0, 64) kv device x2 when_ready\n"
            "add 2 [0, 48) kv host x1 now\ndrop 2 [0, 48) kv device x1 when_ready\n"
            "stage 3 [0, 69) kv device x2 before_layer\n"
            "decode 1 [29, 30) samples\ndecode 2 [61, 62) samples\ndecode 3 [69, 70) samples\n");
}

// A cell takes a 64th of a second, and the step an eighth: eight cells.
TEST(LayerKvPolicy, LayersComeBackIntoFreeCellsInOrderOfArrival) {
  View view = make_view(50, 20);
  set_host(view, 50, 30);
  set_ring(view, 20);
  set_costs(view);
  view.running = {decoding_seq(1, 20, 30), partial_seq(2, 60, 70, group(1)), partial_seq(3, 60, 70, {})};
  const std::string decode = "decode 1 [29, 30) samples\n";
  const std::string two = "add 2 [0, 64) kv device x1 now\n";
  EXPECT_EQ(layerkv_plan(view), two + "add 3 [0, 64) kv device x2 now\n" + decode)
      << "the link is believed to be free";
  set_link(view, 1.0 / 64);
  EXPECT_EQ(layerkv_plan(view), two + "add 3 [0, 64) kv device x1 now\n" + decode)
      << "4 and 4 cells of 4 and 8";
  EXPECT_EQ(layerkv_plan(view, ":link-share=0.5"), two + decode);
  EXPECT_EQ(layerkv_plan(view, ":link-share=0.25"), decode) << "a half of a layer is none";
  EXPECT_EQ(layerkv_plan(view, ":link-share=1.5"), two + "add 3 [0, 64) kv device x2 now\n" + decode);
  // Where nothing else is to be done one goes beyond it.
  view.running.erase(view.running.begin());
  EXPECT_EQ(layerkv_plan(view, ":link-share=0.01"), two);
}

// Of what is free, a cell is the threshold, two are for 1's next block, and two for the block that 2 begins
// when it is back: it lacks four.
TEST(LayerKvPolicy, ARequestThatComesBackFindsRoomForItsNextBlock) {
  View view = make_view(50, 0);
  set_host(view, 50, 30);
  view.running = {decoding_seq(1, 20, 30), partial_seq(2, 60, 70, group(1))};
  view.device.spare_slabs = 9;
  EXPECT_EQ(layerkv_plan(view), "add 2 [0, 64) kv device x1 now\ndecode 1 [29, 30) samples\n");
  view.device.spare_slabs = 8;
  EXPECT_EQ(layerkv_plan(view), "decode 1 [29, 30) samples\n");
}

// Three cells are free: the threshold and 1's next block. 2 lacks four cells, and 3 eight, which take the
// link as long as the step.
TEST(LayerKvPolicy, ARequestWithLittleTimeLeftIsServedFromTheHost) {
  View view = make_view(50, 0);
  view.device.spare_slabs = 3;
  set_host(view, 50, 30);
  set_ring(view, 20);
  set_costs(view);
  set_link(view, 1.0 / 64);
  view.running = {decoding_seq(1, 20, 30), timed(partial_seq(2, 60, 70, group(1)), {.tbt_ms = 1000}),
                  timed(partial_seq(3, 60, 70, {}), {.tbt_ms = 1000})};
  const std::string decode = "decode 1 [29, 30) samples\n";
  // 2 goes as the first of those whose layers do not come back.
  const std::string two =
      "stage 2 [0, 69) kv device x1 before_layer\n" + decode + "decode 2 [69, 70) samples\n";
  EXPECT_EQ(layerkv_plan(view), two) << "3 has 0.875 of a second left";
  view.running[2].last_token_time = kLayerkvNow - 5 * kNanosPerSecond / 8;  // 0.25
  const std::string three = "stage 3 [0, 69) kv device x2 before_layer\n";
  EXPECT_EQ(layerkv_plan(view), three + decode + "decode 3 [69, 70) samples\n");
  EXPECT_EQ(layerkv_plan(view, ":urgent=0.2"), two);
  EXPECT_EQ(layerkv_plan(view, ":link-share=0.9"), two) << "the link has no time for 3";
  EXPECT_EQ(layerkv_plan(view, ":link-share=0.4"), decode) << "nor for 2";
  // 2 has less left than 3, and takes half of the link's time.
  view.running[1].last_token_time = kLayerkvNow - 3 * kNanosPerSecond / 4;
  EXPECT_EQ(layerkv_plan(view),
            "stage 2 [0, 69) kv device x1 before_layer\n" + decode + "decode 2 [69, 70) samples\n");
  // A request that has missed its bound is no longer urgent.
  view.running[1].last_token_time = kLayerkvNow - 2 * kNanosPerSecond;
  EXPECT_EQ(layerkv_plan(view), three + decode + "decode 3 [69, 70) samples\n");
}

// To the letter of Section 4: all of them in each step, whatever the link takes. 2 lacks four cells and 3
// eight, at a quarter of a second each, and a step takes an eighth.
TEST(LayerKvPolicy, ReloadAllDecodesEveryRequestInEachStep) {
  View view = make_view(50, 0);
  view.device.spare_slabs = 3;
  set_host(view, 50, 30);
  set_ring(view, 20);
  set_costs(view);
  set_link(view, 1.0 / 4);
  view.running = {decoding_seq(1, 20, 30), partial_seq(2, 60, 70, group(1)), partial_seq(3, 60, 70, {})};
  EXPECT_EQ(layerkv_plan(view), "decode 1 [29, 30) samples\n");
  EXPECT_EQ(layerkv_plan(view, ":reload-all=on"),
            "stage 2 [0, 69) kv device x1 before_layer\nstage 3 [0, 69) kv device x2 before_layer\n"
            "decode 1 [29, 30) samples\ndecode 2 [69, 70) samples\ndecode 3 [69, 70) samples\n");
}

TEST(LayerKvPolicy, SettingsAreChecked) {
  for (const char* wrong :
       {":slo=perhaps", ":mixed", ":threshold=0.6", ":stages=0", ":colour=red", ":slo=on:slo=on"}) {
    const auto made = make_policy(std::string("layerkv") + wrong);
    ASSERT_FALSE(made.ok()) << wrong;
    EXPECT_EQ(made.status().code(), ErrorCode::kInvalidArgument) << wrong;
  }
  EXPECT_TRUE(
      make_policy("layerkv:slo=off:mixed=off:threshold=0.1:stages=8:link-share=0.5:urgent=0.1:beta=2").ok());
  EXPECT_FALSE(make_policy("vllm:slo=off").ok());
}

}  // namespace
}  // namespace kvasir::test
