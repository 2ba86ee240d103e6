// The longest request that an engine accepts is served, by every policy, whatever the memory is like; and a
// policy that would preempt it for ever is stopped.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/engine_fixture.h"
#include "fakes/fake_link.h"
#include "fakes/shadow_executor.h"
#include "plan/plan_builder.h"
#include "support/levels.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kLayers = 6;
constexpr uint32_t kOutput = 4;
constexpr uint64_t kMostSteps = 20'000;

struct Memory {
  uint32_t block_tokens = 16;
  uint32_t layers_per_group = 1;
  uint32_t device_blocks = 8;
  uint32_t host_blocks = 0;
  uint32_t stage_blocks = 0;
  uint32_t batched_tokens = 64;
  int depth = 1;
  uint32_t window = 0;  // of all layers but every third one

  static Memory any(Random& random) {
    Memory m;
    m.block_tokens = 16u << random.below(3);
    m.layers_per_group = std::vector<uint32_t>{1, 2, 3, 6}[random.below(4)];
    m.device_blocks = static_cast<uint32_t>(random.between(4, 24));
    m.host_blocks = random.below(3) == 0 ? 0 : static_cast<uint32_t>(random.between(2, 40));
    m.stage_blocks = m.host_blocks > 0 ? static_cast<uint32_t>(random.between(8, 60)) : 0;
    m.batched_tokens = 16u << random.below(5);
    m.depth = static_cast<int>(random.between(1, 2));
    m.window = std::vector<uint32_t>{0, 0, 23, 70}[random.below(4)];
    return m;
  }
  std::string text() const {
    return fmt::format("block {} group {} device {} host {} ring {} batch {} depth {} window {}",
                       block_tokens, layers_per_group, device_blocks, host_blocks, stage_blocks,
                       batched_tokens, depth, window);
  }
};

EngineOptions options_of(const Memory& m) {
  EngineOptions o;
  o.cache.geometry = {m.block_tokens, kLayers, m.layers_per_group, 8};
  o.cache.geometry.set_windows(std::vector<uint32_t>{m.window, m.window, 0, m.window, m.window, 0});
  o.cache.geometry.window_chunk = 16;
  o.cache.device_bytes = o.cache.geometry.kv_block_bytes() * m.device_blocks;
  o.cache.host_bytes = o.cache.geometry.kv_block_bytes() * m.host_blocks;
  o.cache.stage_bytes = o.cache.geometry.largest_piece_bytes() * m.stage_blocks;
  o.limits.max_num_batched_tokens = m.batched_tokens;
  o.max_model_len = Engine::longest_fit(o.cache);
  return o;
}

GenerationRequest request_of(Random& random, uint32_t tokens) {
  GenerationRequest r;
  for (uint32_t i = kOutput; i < tokens; ++i)
    r.prompt.push_back(static_cast<Token>(random.below(kShadowVocab)));
  r.max_tokens = kOutput;
  return r;
}

// The longest request and `others` behind it all end with what their tokens say.
void serve_longest(const std::string& policy, const Memory& memory, int others, uint64_t seed) {
  SCOPED_TRACE(policy + ": " + memory.text());
  const EngineOptions options = options_of(memory);
  VirtualClock clock;
  std::vector<std::byte> device(options.cache.device_bytes + options.cache.stage_bytes);
  std::vector<std::byte> host(options.cache.host_bytes);
  FakeLink link(clock, {device, host, {}});
  Link* const used = memory.host_blocks > 0 ? &link : nullptr;
  ShadowExecutor executor(options.cache.geometry, device, memory.depth, clock, used);
  Engine engine(options, make_policy(policy).value(), executor, clock, nullptr, used);
  Random random(seed);
  std::vector<std::pair<GenerationRequest, std::shared_ptr<CollectingSink>>> all;
  for (int i = 0; i <= others; ++i) {
    const uint32_t most = options.max_model_len;
    const uint32_t tokens = i == 0 ? most : static_cast<uint32_t>(random.between(kOutput + 1, most));
    GenerationRequest r = request_of(random, tokens);
    auto sink = std::make_shared<CollectingSink>();
    ASSERT_TRUE(engine.submit(r, sink).ok());
    all.emplace_back(std::move(r), std::move(sink));
  }
  bool more = true;
  for (uint64_t turn = 0; more && turn < kMostSteps; ++turn) {
    more = engine.step();
    link.complete_all();
  }
  for (const auto& [r, sink] : all) {
    ASSERT_TRUE(sink->finish.has_value()) << "a request of " << r.prompt.size() << " tokens has not ended; "
                                          << engine.metrics().num_preemptions << " preemptions";
    EXPECT_EQ(*sink->finish, FinishReason::kLength) << sink->error;
    EXPECT_EQ(sink->tokens, shadow_output(ShadowLayers(options.cache.geometry), r.prompt, r.sampling, kOutput,
                                          r.stop_tokens));
  }
  EXPECT_EQ(engine.metrics().standstills, 0u);
}

TEST(LongestRequest, IsServedByEveryPolicyInAnyMemory) {
  const int rounds = at_long_level() ? 400 : at_full_level() ? 200 : 40;
  for (const std::string& policy : policy_names()) {
    Random random(7);
    for (int round = 0; round < rounds && !HasFatalFailure(); ++round) {
      const Memory memory = Memory::any(random);
      serve_longest(policy, memory, /*others=*/round % 2 == 0 ? 0 : 3, 100 + static_cast<uint64_t>(round));
    }
  }
}

// The reserve for requests that run short is as large as what a long prompt lacks at its end.
TEST(LongestRequest, TheReserveGoesToTheOnlyOneThatRuns) {
  for (const uint32_t device : {8u, 12u, 16u, 20u}) {
    for (const uint32_t host : {0u, 4u, 12u, 24u}) {
      for (const uint32_t per_group : {1u, 2u, 6u}) {
        Memory memory;
        memory.device_blocks = device;
        memory.host_blocks = host;
        memory.stage_blocks = host > 0 ? device + host : 0;
        memory.layers_per_group = per_group;
        serve_longest("cacheopt", memory, /*others=*/0, 1);
        serve_longest("cacheopt:reserve=4096:reserve-share=0.25", memory, /*others=*/2, 2);
      }
    }
  }
}

// Admits the first request, computes a chunk of it and preempts it again, for ever.
StepPlan admit_and_preempt(const View& view) {
  PlanBuilder builder(view);
  if (!view.running.empty()) {
    if (builder.can_stop(view.running.front())) builder.preempt_and_drop(view.running.front());
  } else if (!view.waiting.empty() && builder.admit(view.waiting.front())) {
    builder.prefill(view.waiting.front(), 16);
  }
  return builder.take();
}

TEST(PreemptedForEver, IsAStandstillThatEndsThatRequestAlone) {
  EngineOptions options = small_options();
  options.cache.prefix_caching = false;  // or it would find what it had computed
  Harness h(options, std::make_unique<FunctionPolicy>(admit_and_preempt));
  const auto first = h.submit(request(60, 4));
  const auto second = h.submit(request(16, 1, 100));  // one chunk: it ends before it can be preempted
  for (int turn = 0; turn < 200 && h.engine.step(); ++turn) {
  }
  ASSERT_TRUE(first->finish && second->finish);
  EXPECT_EQ(*first->finish, FinishReason::kError);
  EXPECT_EQ(first->error, "there is no memory for this request: try again later, or send less");
  EXPECT_EQ(*second->finish, FinishReason::kLength);
  EXPECT_EQ(h.engine.metrics().standstills, 1u);
  EXPECT_EQ(h.engine.metrics().num_preemptions, kPreemptionsInVain);
}

}  // namespace
}  // namespace kvasir::test
