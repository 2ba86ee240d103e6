// An engine over a scripted executor, and policies that do what a test says.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "fakes/scripted_executor.h"
#include "sched/registry.h"

namespace kvasir::test {

constexpr Nanos kStep = 10 * kNanosPerMilli;  // of the scripted executor

// Plans as its function says.
class FunctionPolicy final : public Policy {
 public:
  explicit FunctionPolicy(std::function<StepPlan(const View&)> f) : f_(std::move(f)) {}
  StepPlan plan(const View& view) override { return f_(view); }

 private:
  const std::function<StepPlan(const View&)> f_;
};

inline EngineOptions small_options(uint32_t blocks = 32) {
  EngineOptions o;
  o.cache.geometry = {16, 2, 1, 8};
  o.cache.device_bytes = o.cache.geometry.kv_block_bytes() * blocks;
  o.max_model_len = blocks * 16;
  o.check_integrity = true;
  return o;
}

inline GenerationRequest request(uint32_t prompt, uint32_t max_tokens, Token first = 0) {
  GenerationRequest r;
  for (uint32_t i = 0; i < prompt; ++i) r.prompt.push_back(first + static_cast<Token>(i));
  r.max_tokens = max_tokens;
  return r;
}

struct Harness {
  explicit Harness(const EngineOptions& options = small_options(), std::unique_ptr<Policy> policy = {},
                   int depth = 1)
      : executor(clock, depth, kStep),
        engine(options, policy ? std::move(policy) : make_policy("sarathi").value(), executor, clock) {}

  // Submits a request that must be accepted; its sink.
  std::shared_ptr<CollectingSink> submit(GenerationRequest r) {
    auto sink = std::make_shared<CollectingSink>();
    last = engine.submit(std::move(r), sink).value();
    return sink;
  }
  void finish() {
    while (engine.step()) {
    }
  }

  VirtualClock clock;
  ScriptedExecutor executor;
  Engine engine;
  RequestId last{};
};

}  // namespace kvasir::test
