// Where the policy `auto` keeps histories, in plans that are worked by hand. Blocks have 16 tokens in two
// layer groups.
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "fakes/views.h"
#include "sched/plans.h"

namespace kvasir::test {
namespace {

constexpr Nanos kResidencyNow = 100 * kNanosPerSecond;

// A step takes 20 ms, a row of a prompt 1 ms, a decode 1 ms. Of `blocks` on the device and as many on the
// host so many are free. The link moves a block of both groups in `block_s`.
View residency_view(uint32_t blocks, uint32_t free_blocks, double block_s) {
  View view = make_view(blocks, free_blocks);
  view.now = kResidencyNow;
  view.limits.max_num_batched_tokens = 512;
  view.costs.step_s = 0.02;
  view.costs.prefill_row_s = 1e-3;
  view.costs.decode_row_s = 1e-3;
  set_host(view, blocks, blocks);
  set_ring(view, 2 * blocks);
  for (const auto& [from, to] : {std::pair{Tier::kDevice, Tier::kHost}, {Tier::kHost, Tier::kDevice}}) {
    view.costs.links[index_of(from)][index_of(to)].seconds_per_byte =
        block_s / static_cast<double>(view.geometry.kv_block_bytes());
  }
  return view;
}

SeqView prompt_of(uint64_t id, uint32_t tokens, double seconds_ago, Slo slo) {
  SeqView s = waiting_seq(id, tokens);
  s.arrival = kResidencyNow - from_seconds(seconds_ago);
  s.slo = slo;
  s.predicted.output_tokens = 50;
  return s;
}

SeqView decode_of(uint64_t id, uint32_t prompt, uint32_t known) {
  SeqView s = decoding_seq(id, prompt, known);
  s.arrival = kResidencyNow - kNanosPerSecond;
  s.first_token_time = s.last_token_time = kResidencyNow - from_seconds(0.01);
  s.predicted.output_tokens = 50;
  return s;
}

// A history of full blocks, all layers of it on the host; 10 ms ago it had its last token.
SeqView away_seq(uint64_t id, Slo slo, uint32_t known = 33) {
  SeqView s = decode_of(id, 32, known);
  set_cells(s, Tier::kDevice, 0);
  set_cells(s, Tier::kHost, s.blocks * kViewGroups);
  s.device_groups = {};
  s.resident_blocks = 0;
  s.slo = slo;
  return s;
}

// Without the bound by growth: most of the memory here belongs to no request that the view has.
std::string residency_plan(const View& view) {
  return plan_of("auto:growth=off", view);
}

// No block is free. Of the second left until its first token less than half is left: 32 rows take 52 ms. Its
// two blocks need 20 ms of the link for each token, of 100.
View short_of_memory() {
  View view = residency_view(20, 0, 0.01);
  view.running = {decode_of(1, 20, 30)};
  view.waiting = {prompt_of(2, 32, 0.6, {.ttft_ms = 1000, .tbt_ms = 100})};
  return view;
}

constexpr const char* kRunsAway =
    "add 2 [0, 32) kv host x2 after_layer_writes\npromise 2 4 cells on host\n"
    "decode 1 [29, 30) samples\nprefill 2 [0, 32) samples x2 keeps kv x0 x x0\n";
constexpr const char* kWaits = "decode 1 [29, 30) samples\n";

TEST(AutoResidency, APromptRunsBeforeThereIsRoom) {
  EXPECT_EQ(residency_plan(short_of_memory()), kRunsAway);
}

TEST(AutoResidency, WhileThereIsTimeThePromptWaitsForRoom) {
  View view = short_of_memory();
  view.waiting[0].arrival = kResidencyNow - from_seconds(0.49);
  EXPECT_EQ(residency_plan(view), kWaits);
}

TEST(AutoResidency, NoPromptRunsAwayThatTheLinkCannotServe) {
  View view = short_of_memory();
  view.waiting[0].slo.tbt_ms = 39;  // 20 ms are more than half of it
  EXPECT_EQ(residency_plan(view), kWaits);
  view = short_of_memory();
  view.device.spare_slabs = kViewGroups;                // a block, for the next token of the one that is away
  view.running.push_back(away_seq(3, {.tbt_ms = 64}));  // 20 / 64 and 20 / 100 are more than half
  EXPECT_EQ(residency_plan(view).find("prefill 2"), std::string::npos);
  view.running[1].slo.tbt_ms = 68;
  EXPECT_NE(residency_plan(view).find("prefill 2"), std::string::npos);
}

TEST(AutoResidency, OneWithoutABoundOnItsFirstTokenWaits) {
  View view = short_of_memory();
  view.waiting[0].slo = {.tbt_ms = 100};
  EXPECT_EQ(residency_plan(view), kWaits);
}

TEST(AutoResidency, LayersComeBackAsThereIsRoom) {
  View view = residency_view(20, 8, 0.01);
  view.running = {decode_of(1, 20, 30), away_seq(3, {.tbt_ms = 1000})};
  EXPECT_EQ(residency_plan(view), "add 3 [0, 32) kv device x2 now\ndecode 1 [29, 30) samples\n")
      << "20 ms of the link hide behind the step";
  view.device.spare_slabs = 0;
  EXPECT_EQ(residency_plan(view), kWaits);
}

// Its next token has to be there in 45 ms. The link takes 40 ms for its history, twice as long as the step:
// so the step waits.
TEST(AutoResidency, WhatIsDueSoonIsStagedThoughTheStepWaits) {
  View view = residency_view(20, 1, 0.02);
  view.running = {decode_of(1, 20, 30), away_seq(3, {.tbt_ms = 100})};
  view.running[1].last_token_time = kResidencyNow - from_seconds(0.055);
  EXPECT_EQ(
      residency_plan(view),
      "stage 3 [0, 32) kv device x2 before_layer\ndecode 1 [29, 30) samples\ndecode 3 [32, 33) samples\n");
  view.running[0].slo.tbt_ms = 45;  // 35 ms are left of it
  EXPECT_EQ(residency_plan(view), kWaits);
}

// The 17 tokens so far took 1.05 s, where the bound on their mean gives the 16 gaps 1.6. Whether the next one
// is urgent depends on how many are to come.
TEST(AutoResidency, WhatIsDueByItsMeanGapIsStagedIfItEndsSoon) {
  View view = residency_view(20, 1, 0.02);
  view.running = {decode_of(1, 20, 30), away_seq(3, {.tpot_ms = 100}, 49)};
  view.running[1].arrival = view.running[1].first_token_time = kResidencyNow - from_seconds(1.05);
  EXPECT_EQ(residency_plan(view), kWaits) << "33 more have 3.3 s, and steps of 22 ms";
  view.running[1].predicted.output_tokens = 18;  // one more: of 1.7 s less than half is left
  EXPECT_NE(residency_plan(view).find("stage 3 [0, 48)"), std::string::npos) << residency_plan(view);
}

// 129 rows are a step's budget, one of them the decode's.
TEST(AutoResidency, ALongPromptRunsAwayInChunks) {
  View view = residency_view(60, 0, 0.001);
  view.limits.max_num_batched_tokens = 129;
  view.running = {decode_of(1, 20, 30)};
  view.waiting = {prompt_of(2, 160, 0.6, {.ttft_ms = 1000, .tbt_ms = 1000})};
  EXPECT_EQ(residency_plan(view),
            "add 2 [0, 128) kv host x2 after_layer_writes\npromise 2 20 cells on host\n"
            "decode 1 [29, 30) samples\nprefill 2 [0, 128) x2 keeps kv x0 x x0\n");
  SeqView begun = running_seq(2, 160, 160, 128);
  begun.arrival = view.waiting[0].arrival;
  begun.slo = view.waiting[0].slo;
  set_cells(begun, Tier::kDevice, 0);
  set_cells(begun, Tier::kHost, 8 * kViewGroups);
  begun.promised_cells[static_cast<size_t>(Tier::kHost)] = 2 * kViewGroups;
  view.host.promised[0] = 2 * kViewGroups;
  begun.device_groups = {};
  begun.resident_blocks = 0;
  view.waiting.clear();
  view.running.push_back(begun);
  EXPECT_EQ(residency_plan(view),
            "stage 2 [0, 128) kv device x2 before_layer\nadd 2 [128, 160) kv host x2 after_layer_writes\n"
            "decode 1 [29, 30) samples\nprefill 2 [128, 160) samples x2 keeps kv x0 x x0\n");
}

TEST(AutoResidency, TheCheaperFormOfAnEviction) {
  // No block is free, and 1 is to begin one. 2 costs more; its 40 tokens take 60 ms to recompute, and its
  // three blocks move there and back in 30 ms, or in 120.
  View view = residency_view(20, 0, 0.005);
  view.running = {decode_of(1, 16, 17), decode_of(2, 30, 41)};
  view.running[1].predicted.output_tokens = 500;
  EXPECT_EQ(residency_plan(view),
            "preempt 2\nadd 2 [0, 40) kv host x2 now\ndrop 2 [0, 40) kv device x2 when_ready\n");
  view = residency_view(20, 0, 0.02);
  view.running = {decode_of(1, 16, 17), decode_of(2, 30, 41)};
  view.running[1].predicted.output_tokens = 500;
  EXPECT_EQ(residency_plan(view), "preempt 2\ndrop_all 2 kv device\ndecode 1 [16, 17) samples\n");
}

}  // namespace
}  // namespace kvasir::test
