// Each allocation of the engine, its compute threads and its link fails once, over a tiny model: requests
// fail or end with the tokens that they have elsewhere, and the engine goes on.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/tiers/memory_link.h"
#include "engine/engine.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/rig.h"
#include "memory/failing_new.h"
#include "memory/spared_sink.h"
#include "sched/registry.h"

namespace kvasir::test {
namespace {

RigOptions rig_options() {
  RigOptions o;
  o.block_tokens = 16;
  o.layers_per_group = 1;
  o.blocks = 7;
  o.host_blocks = 24;
  o.stage_blocks = 16;
  o.limits.max_num_seqs = 4;
  o.limits.max_num_batched_tokens = 32;
  o.check_integrity = false;
  return o;
}

Arena arena(uint64_t bytes) {
  return std::move(Arena::map(bytes, "the test")).value();
}

class ModelWorld {
 public:
  explicit ModelWorld(const ModelFile& file)
      : options_(engine_options(file, rig_options())),
        packed_(PackedModel::make(file, static_cast<uint32_t>(file.spec().context_length)).value()),
        device_(arena(options_.cache.device_bytes + options_.cache.stage_bytes)),
        host_(arena(options_.cache.host_bytes)),
        link_(link_options(), clock_),
        executor_(*packed_, ops::kernels_for(ops::detect_isa()), options_.cache.geometry, Decoder::Options(),
                  device_.data(), /*threads=*/2, clock_, {}, &link_),
        engine_(options_, make_policy("vllm-swap").value(), executor_, clock_, nullptr, &link_) {}

  Engine& engine() { return engine_; }

 private:
  MemoryLinkOptions link_options() {
    MemoryLinkOptions o;
    o.memory = {std::span(device_.data(), device_.size()), std::span(host_.data(), host_.size()), {}};
    o.unit_bytes = 4 * kKiB;
    return o;
  }

  const MonotonicClock clock_;
  const EngineOptions options_;
  const std::unique_ptr<PackedModel> packed_;
  const Arena device_;
  const Arena host_;
  MemoryLink link_;
  CpuExecutor executor_;
  Engine engine_;
};

GenerationRequest request_of(uint32_t number, uint64_t round) {
  GenerationRequest r;
  r.prompt = random_tokens(number + 1, 30 + 8 * number);
  r.max_tokens = 14;
  r.cache_salt = std::to_string(round);
  if (number == 1) {
    auto rules = std::make_shared<LogitRules>();
    rules->repetition_penalty = 1.3F;
    r.sampling.rules = std::move(rules);
    r.sampling.temperature = 0.8F;
    r.sampling.top_p = 0.9F;
    r.sampling.seed = 3;
  }
  if (number == 2) r.sampling.logprobs = 3;
  return r;
}

bool step(ModelWorld& world) {
  const Enlisted enlisted;
  return world.engine().step();
}

// Of requests that wait for each other's memory; the sinks of those that were accepted.
std::vector<std::shared_ptr<SparedSink>> play_model(ModelWorld& world, uint64_t number) {
  std::vector<std::shared_ptr<SparedSink>> sinks;
  for (uint32_t i = 0; i < 3; ++i) {
    auto& sink = sinks.emplace_back();
    const auto made = std::make_shared<SparedSink>();
    GenerationRequest request = request_of(i, number);
    const Enlisted enlisted;
    try {
      if (world.engine().submit(std::move(request), made).ok()) sink = made;
    } catch (const std::bad_alloc&) {
    }
  }
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (step(world) && std::chrono::steady_clock::now() < end) {
    std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return sinks;
}

TEST(ExecutorMemory, EachAllocationMayFail) {
  const Spared spared;
  const auto file = tiny_model(tiny_gqa(), ops::WeightType::kQ8_0);
  ModelWorld world(*file);
  std::vector<std::vector<Token>> right;
  for (const auto& sink : play_model(world, 0)) right.push_back(sink->heard.tokens);
  for (const auto& tokens : right) ASSERT_EQ(tokens.size(), 14u);

  const auto check = [&](const std::vector<std::shared_ptr<SparedSink>>& sinks, bool may_fail) {
    for (size_t i = 0; i < sinks.size(); ++i) {
      if (!sinks[i]) {
        EXPECT_TRUE(may_fail);
        continue;
      }
      const CollectingSink& heard = sinks[i]->heard;
      ASSERT_TRUE(heard.finish.has_value());
      EXPECT_EQ(heard.events_after_finish, 0);
      ASSERT_LE(heard.tokens.size(), right[i].size());
      EXPECT_TRUE(std::equal(heard.tokens.begin(), heard.tokens.end(), right[i].begin()));
      if (heard.finish == FinishReason::kLength) {
        EXPECT_EQ(heard.tokens.size(), right[i].size());
      } else {
        EXPECT_TRUE(may_fail);
        EXPECT_EQ(heard.finish, FinishReason::kError);
        EXPECT_NE(heard.error, "");
        EXPECT_TRUE(heard.try_again);
      }
    }
    while (world.engine().metrics().transfers_in_flight > 0) world.engine().step();
    EXPECT_EQ(world.engine().metrics().kv_blocks_used, 0u);
    EXPECT_TRUE(world.engine().wait_idle(0));
    const Status status = world.engine().check_integrity();
    EXPECT_TRUE(status.ok()) << status.message();
  };

  uint64_t k = 1;
  bool failed = true;
  for (; failed && !testing::Test::HasFailure(); k = next_failing(k)) {
    SCOPED_TRACE("allocation " + std::to_string(k));
    fail_allocations(k, 1, Counted::kEveryThread);
    const auto sinks = play_model(world, k);
    failed = fail_no_more().any();
    check(sinks, failed);
    if (k % 8 == 0) check(play_model(world, k), false);
  }
  RecordProperty("allocations", std::to_string(k));
  EXPECT_GT(k, 300u);
  EXPECT_GT(world.engine().metrics().fresh_starts, 0u);
  EXPECT_GT(world.engine().metrics().num_preemptions_swapped, 0u);
}

}  // namespace
}  // namespace kvasir::test
