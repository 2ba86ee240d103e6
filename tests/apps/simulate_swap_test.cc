// The engine over the simulated executor and link, with a host tier: what is moved comes beside the steps, in
// virtual time, and every request gives the tokens that it gives where memory is no matter.
#include <gtest/gtest.h>

#include "apps/simulated_world.h"
#include "base/random.h"
#include "engine/collecting_sink.h"
#include "exec/sim/sim_executor.h"

namespace kvasir::test {
namespace {

// Notes when steps run.
class WatchedExecutor final : public Executor {
 public:
  explicit WatchedExecutor(SimExecutor& inner) : inner_(inner) {}
  int depth() const override { return inner_.depth(); }
  void submit(Step step) override { inner_.submit(std::move(step)); }
  StepResult wait() override {
    StepResult result = inner_.wait();
    spans.emplace_back(result.started, result.ended);
    return result;
  }

  std::vector<std::pair<Nanos, Nanos>> spans;

 private:
  SimExecutor& inner_;
};

// Notes when bytes move.
class WatchedLink final : public Link {
 public:
  explicit WatchedLink(SimLink& inner) : inner_(inner) {}
  void start(Transfer transfer) override { inner_.start(std::move(transfer)); }
  void cancel(TransferId id) override { inner_.cancel(id); }
  TransferState wait(TransferId id, Nanos timeout) override { return inner_.wait(id, timeout); }
  std::vector<TransferDone> completed() override {
    std::vector<TransferDone> out = inner_.completed();
    for (const TransferDone& done : out) {
      if (done.status.ok()) spans.emplace_back(done.started, done.ended);
    }
    return out;
  }
  void set_wake(std::function<void()> wake) override { inner_.set_wake(std::move(wake)); }
  LinkStats stats() const override { return inner_.stats(); }

  std::vector<std::pair<Nanos, Nanos>> spans;

 private:
  SimLink& inner_;
};

struct Outcome {
  std::vector<std::vector<Token>> tokens;
  uint64_t swapped = 0;
  uint64_t deferred = 0;
  Nanos took = 0;
  Nanos overlapped = 0;  // in which a step ran and bytes moved
  LinkStats link;
};

// In time order, neither of them overlapping itself.
Nanos overlap(const std::vector<std::pair<Nanos, Nanos>>& steps,
              const std::vector<std::pair<Nanos, Nanos>>& transfers) {
  Nanos total = 0;
  for (const auto& [begin, end] : steps) {
    for (const auto& [from, to] : transfers) {
      total += std::max<Nanos>(0, std::min(end, to) - std::max(begin, from));
    }
  }
  return total;
}

std::vector<GenerationRequest> random_requests(Random& random) {
  std::vector<GenerationRequest> out(30);
  for (GenerationRequest& r : out) {
    r.prompt.resize(static_cast<size_t>(random.between(1, 60)));
    for (Token& t : r.prompt) t = static_cast<Token>(1 + random.below(999));
    r.max_tokens = static_cast<uint32_t>(random.between(1, 60));
  }
  return out;
}

// host_blocks 0: of no bound, and no link.
Outcome run(uint64_t seed, uint32_t blocks, uint32_t host_blocks, double cell_s, uint32_t stage_blocks,
            Nanos max_stall) {
  Random random(seed);
  EngineOptions o;
  o.cache.geometry = {16, 3, 1, 8};
  o.cache.device_bytes = o.cache.geometry.kv_block_bytes() * blocks;
  o.cache.host_bytes = o.cache.geometry.kv_block_bytes() * host_blocks;
  o.cache.stage_bytes = o.cache.geometry.largest_piece_bytes() * stage_blocks;
  o.max_model_len = 120;
  o.max_decode_stall = max_stall;
  o.cache.prefix_caching = false;
  o.check_integrity = true;
  VirtualClock clock;
  SimLink::Costs costs{};
  for (auto& row : costs) row.fill({20e-6, cell_s / static_cast<double>(o.cache.geometry.kv_cell_bytes())});
  SimLink link(costs, clock);
  WatchedLink watched_link(link);
  SimExecutor::Options times;
  times.layers = 3;
  times.seed = seed;
  Link* const used = host_blocks > 0 ? &watched_link : nullptr;
  SimExecutor executor(times, clock, used);
  WatchedExecutor watched(executor);
  Engine engine(o, make_policy("vllm-swap").value(), watched, clock, nullptr, used);
  Outcome out;
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (GenerationRequest& r : random_requests(random)) {
    sinks.push_back(std::make_shared<CollectingSink>());
    EXPECT_TRUE(engine.submit(std::move(r), sinks.back()).ok());
    for (auto turns = random.below(4); turns > 0; --turns) engine.step();
  }
  for (int turn = 0; turn < 100'000; ++turn) {
    const Nanos before = clock.now();
    if (!engine.step() && engine.metrics().transfers_in_flight == 0) break;
    if (clock.now() == before && link.next_end())
      clock.advance(std::max<Nanos>(0, *link.next_end() - before));
  }
  EXPECT_EQ(engine.metrics().kv_blocks_used, 0u);
  EXPECT_EQ(engine.metrics().tiers[1].bytes_used, 0u);
  EXPECT_EQ(link.stats().queued_bytes, 0u);
  for (const auto& sink : sinks) {
    EXPECT_EQ(sink->finish, FinishReason::kLength) << sink->error;
    EXPECT_EQ(sink->events_after_finish, 0);
    out.tokens.push_back(sink->tokens);
  }
  out.swapped = engine.metrics().num_preemptions_swapped;
  out.deferred = engine.metrics().deferred_rows;
  out.took = clock.now();
  out.link = link.stats();
  out.overlapped = overlap(watched.spans, watched_link.spans);
  return out;
}

TEST(SimulateSwap, TheTokensAreThoseOfMemoryWithoutBounds) {
  uint64_t swapped = 0, deferred = 0;
  Nanos overlapped = 0, moving = 0;
  for (uint64_t seed = 0; seed < 40; ++seed) {
    Random random(seed + 77);
    const auto blocks = static_cast<uint32_t>(random.between(9, 16));
    const auto host = static_cast<uint32_t>(random.between(1, 40));
    const double cell_s = random.below(2) == 0 ? 2e-5 : 1e-3;
    const uint32_t stage = random.below(2) == 0 ? 0 : 12;
    const Nanos stall = random.below(2) == 0 ? 0 : kNanosPerMilli / 2;
    const Outcome bounded = run(seed, blocks, host, cell_s, stage, stall);
    const Outcome free = run(seed, 1000, 0, 0, 0, 0);
    ASSERT_EQ(bounded.tokens, free.tokens) << "seed " << seed;
    EXPECT_EQ(free.swapped, 0u);
    swapped += bounded.swapped;
    deferred += bounded.deferred;
    overlapped += bounded.overlapped;
    moving += std::llround(bounded.link.busy_s * 1e9);
  }
  EXPECT_GT(swapped, 100u);
  EXPECT_GT(deferred, 10u);
  EXPECT_GT(overlapped, moving / 2) << "most of what moves does so beside steps";
}

}  // namespace
}  // namespace kvasir::test
