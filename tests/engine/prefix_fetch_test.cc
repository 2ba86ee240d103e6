// A cached prefix on a slower tier is fetched only where computing it takes longer.
#include "engine/prefix_fetch.h"

#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "fakes/fake_link.h"
#include "fakes/shadow_executor.h"
#include "sched/beliefs/cost_beliefs.h"
#include "support/policies.h"

namespace kvasir::test {
namespace {

// Blocks of 16 tokens, 2 layer groups, a cell of K and V of 4 kB.
View view_with(double host_s_per_byte, double disk_s_per_byte) {
  View view;
  view.geometry = {16, 4, 2, 64};
  EXPECT_EQ(view.geometry.cell_bytes(Form::kKv), 4096u);
  view.costs.step_s = 0.5;
  view.costs.prefill_row_s = 1e-3;
  view.costs.links[index_of(Tier::kHost)][index_of(Tier::kDevice)] = {0, host_s_per_byte};
  view.costs.links[index_of(Tier::kDisk)][index_of(Tier::kDevice)] = {0, disk_s_per_byte};
  return view;
}

PrefixIndex::Match found(uint32_t device_blocks, uint32_t host_blocks, uint32_t disk_blocks) {
  PrefixIndex::Match m;
  m.matched = device_blocks + host_blocks + disk_blocks;
  m.what.cells[index_of(kDeviceKv)] = 2 * device_blocks;
  m.what.cells[index_of(Place{Form::kKv, Tier::kHost})] = 2 * host_blocks;
  m.what.cells[index_of(Place{Form::kKv, Tier::kDisk})] = 2 * disk_blocks;
  return m;
}

TEST(PrefixFetch, IsWorthItWhereComputingTakesLonger) {
  // 10 blocks are 160 tokens, 160 ms to compute beside other rows, and 81,920 bytes. With 10 ms to spare they
  // are worth fetching in up to 170 ms: 2.07 us a byte.
  EXPECT_TRUE(worth_fetching(view_with(2.0e-6, 0), found(0, 10, 0)));
  EXPECT_FALSE(worth_fetching(view_with(2.1e-6, 0), found(0, 10, 0)));
  // What is on the device counts on neither side.
  EXPECT_TRUE(worth_fetching(view_with(2.0e-6, 0), found(100, 10, 0)));
  EXPECT_FALSE(worth_fetching(view_with(2.1e-6, 0), found(100, 10, 0)));
  EXPECT_TRUE(worth_fetching(view_with(1, 1), found(100, 0, 0)));
  // Host and disk move at the same time: the slower of them counts.
  EXPECT_TRUE(worth_fetching(view_with(2.0e-6, 4.0e-6), found(0, 5, 5)));
  EXPECT_FALSE(worth_fetching(view_with(2.0e-6, 4.2e-6), found(0, 5, 5)));
}

// The step reads its weights, and all but 3/4 to the power of 160 of its experts, for other rows as well.
TEST(PrefixFetch, WhatAStepReadsDoesNotCount) {
  View fast = view_with(2.0e-6, 0), slow = view_with(2.1e-6, 0);
  for (View* view : {&fast, &slow}) {
    view->costs.expert_share = 0.25;
    view->costs.experts_s = 0.3;
  }
  EXPECT_TRUE(worth_fetching(fast, found(0, 10, 0)));
  EXPECT_FALSE(worth_fetching(slow, found(0, 10, 0)));
}

TEST(PrefixFetch, ALongHistoryMakesComputingSlower) {
  View view = view_with(4.0e-6, 0);
  EXPECT_FALSE(worth_fetching(view, found(100, 10, 0)));
  view.costs.pair_s = 1e-6;  // 160 rows attend to 1,600 tokens and to themselves: 269 ms more
  EXPECT_TRUE(worth_fetching(view, found(100, 10, 0)));
  EXPECT_FALSE(worth_fetching(view, found(0, 10, 0))) << "to themselves alone: 13 ms more";
}

TEST(PrefixFetch, IsWorthItWhileNothingIsKnown) {
  View view = view_with(0, 0);
  EXPECT_TRUE(worth_fetching(view, found(0, 10, 0)));
  view = view_with(1, 0);
  view.costs.step_s = view.costs.prefill_row_s = 0;
  EXPECT_TRUE(worth_fetching(view, found(0, 10, 0)));
}

// A prompt of 160 tokens, one that pushes it out of the device, and the first again. Returns the tokens of
// the last one that were cached.
uint64_t cached_behind_a_link(double host_s_per_byte) {
  EngineOptions o;
  o.cache.geometry = {16, 4, 1, 8};
  o.cache.device_bytes = o.cache.geometry.kv_block_bytes() * 14;
  o.cache.host_bytes = o.cache.geometry.kv_block_bytes() * 64;
  o.max_model_len = 220;
  o.check_integrity = true;
  CostModel model;
  model.step_s = model.prefill_row_s = 1e-3;
  model.links[index_of(Tier::kHost)][index_of(Tier::kDevice)] = {0, host_s_per_byte};
  CostBeliefs costs(CostLearner(model), CostBeliefs::Learns::kNever);
  VirtualClock clock;
  std::vector<std::byte> device(o.cache.device_bytes), host(o.cache.host_bytes);
  FakeLink link(clock, {device, host, {}});
  ShadowExecutor executor(o.cache.geometry, device, 1, clock, &link);
  Engine engine(o, make_policy("sarathi").value(), executor, clock, nullptr, &link, {&costs, nullptr});
  const auto serve = [&](const std::vector<Token>& prompt) {
    GenerationRequest request;
    request.prompt = prompt;
    request.max_tokens = 2;
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(engine.submit(std::move(request), sink).ok());
    while (engine.step()) link.complete_all();
    for (int turn = 0; turn < 20; ++turn) {  // blocks that are idle now are saved
      link.complete_all();
      engine.step();
    }
    EXPECT_EQ(sink->tokens, shadow_output(4, prompt, 0, 2, {}));
  };
  serve(shadow_prompt(164, 1));
  serve(shadow_prompt(200, 7));
  const uint64_t before = engine.metrics().prompt_tokens_cached;
  serve(shadow_prompt(164, 1));
  return engine.metrics().prompt_tokens_cached - before;
}

TEST(PrefixFetch, TheEngineComputesWhatComesTooSlowly) {
  EXPECT_EQ(cached_behind_a_link(1e-9), 160u);
  EXPECT_LT(cached_behind_a_link(1), 160u);
}

}  // namespace
}  // namespace kvasir::test
