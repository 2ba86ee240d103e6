// The engine under many requests and many threads: nothing is leaked, and every request hears of its end.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <thread>
#include <vector>

#include "base/random.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "engine/engine_fixture.h"
#include "exec/sim/sim_executor.h"

namespace kvasir::test {
namespace {

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

EngineOptions sim_options(uint32_t blocks) {
  EngineOptions o = small_options(blocks);
  o.check_integrity = false;
  o.max_model_len = 600;
  o.max_num_queued_reqs = 100'000;
  return o;
}

TEST(EngineLoad, NoFrameIsLeakedOverTenThousandRequestsWithCancels) {
  VirtualClock clock;
  SimExecutor::Options sim;
  sim.depth = 2;
  SimExecutor executor(sim, clock);
  Engine engine(sim_options(60), make_policy("sarathi").value(), executor, clock);
  Random random(3);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  std::vector<RequestId> recent;
  const auto start = std::chrono::steady_clock::now();
  while (sinks.size() < 10'000) {
    const bool room = engine.metrics().num_requests_waiting < 200;
    for (uint64_t n = room ? random.below(6) : 0; n > 0; --n) {
      auto sink = std::make_shared<CollectingSink>();
      const auto prompt = static_cast<uint32_t>(random.between(1, 200));
      const auto output = static_cast<uint32_t>(random.between(1, 40));
      recent.push_back(
          engine.submit(request(prompt, output, static_cast<Token>(random.below(5))), sink).value());
      sinks.push_back(std::move(sink));
    }
    if (random.unit() < 0.5 && !recent.empty()) {
      const size_t back = std::min<size_t>(recent.size(), 60);
      engine.cancel(recent[recent.size() - 1 - random.below(back)]);
    }
    engine.step();
  }
  while (engine.step()) {
  }
  const double seconds = seconds_since(start);
  const EngineMetrics& m = engine.metrics();
  std::printf("%llu steps, %.0f a second, %llu preemptions, %llu cancelled\n",
              static_cast<unsigned long long>(m.steps), static_cast<double>(m.steps) / seconds,
              static_cast<unsigned long long>(m.num_preemptions),
              static_cast<unsigned long long>(m.finished[static_cast<size_t>(FinishReason::kAbort)]));
  for (const auto& sink : sinks) {
    ASSERT_TRUE(sink->finish.has_value());
    ASSERT_EQ(sink->events_after_finish, 0);
    ASSERT_NE(sink->finish, FinishReason::kError);
  }
  EXPECT_GT(m.finished[static_cast<size_t>(FinishReason::kAbort)], 100u);
  EXPECT_GT(m.num_preemptions, 100u);
  EXPECT_EQ(m.kv_blocks_used, 0u);
  EXPECT_EQ(engine.check_integrity().message(), "");
}

TEST(EngineLoad, TheSimulatedTokensDependOnNoSchedule) {
  for (int depth : {1, 2}) {
    VirtualClock clock;
    SimExecutor::Options sim;
    sim.depth = depth;
    sim.seed = 11;
    SimExecutor executor(sim, clock);
    Engine engine(sim_options(400), make_policy(depth == 1 ? "vllm" : "sarathi").value(), executor, clock);
    auto sink = std::make_shared<CollectingSink>();
    const RequestId id = engine.submit(request(30, 20), sink).value();
    while (engine.step()) {
    }
    ASSERT_EQ(sink->tokens.size(), 20u);
    for (uint32_t i = 0; i < 20; ++i) EXPECT_EQ(sink->tokens[i], executor.token(SeqId{raw(id)}, 30 + i));
  }
}

TEST(SimExecutor, TakesTheTimeThatItsTruthSays) {
  SimExecutor::Options sim;
  sim.times = std::make_shared<LinearTimes>(100, 10, 5, 1, 0.1);
  VirtualClock clock;
  SimExecutor executor(sim, clock);
  Step step;
  StepSlice prefill;
  prefill.tokens = {2, 5};  // 3 rows over 3, 4 and 5 tokens
  StepSlice decode;
  decode.kind = RowKind::kDecode;
  decode.tokens = {9, 10};  // over 10 tokens
  step.slices = {prefill, decode};
  EXPECT_EQ(executor.duration(step), (100 + 3 * 10 + 12 + 5 + 10) * 1000);
  executor.submit(step);
  EXPECT_EQ(clock.now(), 0);
  EXPECT_EQ(executor.wait().ended, 157'000);
  EXPECT_EQ(clock.now(), 157'000);
}

TEST(EngineLoad, SubmitsAndCancelsFromManyThreads) {
  VirtualClock clock;
  SimExecutor executor({}, clock);
  Engine engine(sim_options(200), make_policy("sarathi").value(), executor, clock);
  engine.start();
  constexpr int kThreads = 4, kEach = 150;
  std::vector<std::vector<std::shared_ptr<CollectingSink>>> sinks(kThreads);
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Random random(static_cast<uint64_t>(t));
      for (int i = 0; i < kEach; ++i) {
        auto sink = std::make_shared<CollectingSink>();
        const auto prompt = static_cast<uint32_t>(random.between(1, 100));
        const auto id = engine.submit(request(prompt, static_cast<uint32_t>(random.between(1, 30))), sink);
        ASSERT_TRUE(id.ok());
        if (random.unit() < 0.3) engine.cancel(id.value());
        (void)engine.metrics().num_requests_running.load();
        sinks[static_cast<size_t>(t)].push_back(std::move(sink));
      }
    });
  }
  for (std::thread& t : threads) t.join();
  engine.drain();
  EXPECT_TRUE(engine.wait_idle(60 * kNanosPerSecond));
  engine.stop();
  for (const auto& mine : sinks) {
    ASSERT_EQ(mine.size(), static_cast<size_t>(kEach));
    for (const auto& sink : mine) {
      EXPECT_TRUE(sink->finish.has_value());
      EXPECT_EQ(sink->events_after_finish, 0);
    }
  }
  EXPECT_EQ(engine.metrics().kv_blocks_used, 0u);
  EXPECT_EQ(engine.check_integrity().message(), "");
}

TEST(EngineLoad, StopsWhileRequestsRun) {
  VirtualClock clock;
  SimExecutor executor({}, clock);
  Engine engine(sim_options(200), make_policy("vllm").value(), executor, clock);
  engine.start();
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (int i = 0; i < 200; ++i) {
    sinks.push_back(std::make_shared<CollectingSink>());
    ASSERT_TRUE(engine.submit(request(20, 500), sinks.back()).ok());
  }
  EXPECT_FALSE(engine.wait_idle(0));
  engine.stop();
  for (const auto& sink : sinks) EXPECT_TRUE(sink->finish.has_value());
  EXPECT_EQ(engine.metrics().kv_blocks_used, 0u);
}

}  // namespace
}  // namespace kvasir::test
