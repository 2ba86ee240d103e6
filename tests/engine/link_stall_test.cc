// A link that stands still for seconds, on a real clock: requests that need it wait, all others go on. One
// whose copies all fail: requests that need it end.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "cache/tiers/memory_link.h"
#include "engine/engine.h"
#include "fakes/shadow_executor.h"
#include "sched/registry.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kBlockTokens = 16;
constexpr CacheGeometry kGeometry = {kBlockTokens, 4, 2, 8};
constexpr Nanos kStallBudget = 50 * kNanosPerMilli;
constexpr Nanos kStandstill = 5 * kNanosPerSecond;

void sleep_for(Nanos t) {
  std::this_thread::sleep_for(std::chrono::nanoseconds(t));
}

// The shadow's outputs, in the time that it really takes and a pace on top.
class RealTimeShadow final : public Executor {
 public:
  RealTimeShadow(std::span<std::byte> memory, const Clock& clock, Link* link)
      : clock_(clock), shadow_(kGeometry, memory, 1, virtual_clock_, link, &clock) {}

  int depth() const override { return 1; }
  void submit(Step step) override {
    started_ = clock_.now();
    shadow_.submit(std::move(step));
  }
  StepResult wait() override {
    sleep_for(pace_);
    StepResult result = shadow_.wait();
    result.started = started_;
    result.ended = clock_.now();
    return result;
  }
  void set_pace(Nanos pace) { pace_ = pace; }

 private:
  const Clock& clock_;
  VirtualClock virtual_clock_;
  ShadowExecutor shadow_;
  std::atomic<Nanos> pace_{0};
  Nanos started_ = 0;
};

// Tokens with the times at which they came.
class TimedSink final : public OutputSink {
 public:
  explicit TimedSink(const Clock& clock) : clock_(clock) {}

  void on_output(OutputEvent event) override {
    const std::lock_guard lock(mutex_);
    for (const OutputToken& t : event.tokens) {
      tokens_.push_back(t.id);
      times_.push_back(clock_.now());
    }
    error_ += event.error;
    if (event.finish) finish_ = event.finish;
  }
  std::string error() const {
    const std::lock_guard lock(mutex_);
    return error_;
  }
  size_t count() const {
    const std::lock_guard lock(mutex_);
    return tokens_.size();
  }
  bool finished() const {
    const std::lock_guard lock(mutex_);
    return finish_.has_value();
  }
  std::vector<Token> tokens() const {
    const std::lock_guard lock(mutex_);
    return tokens_;
  }
  double longest_gap_s() const {
    const std::lock_guard lock(mutex_);
    Nanos longest = 0;
    for (size_t i = 1; i < times_.size(); ++i) longest = std::max(longest, times_[i] - times_[i - 1]);
    return to_seconds(longest);
  }

 private:
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::vector<Token> tokens_;
  std::vector<Nanos> times_;
  std::optional<FinishReason> finish_;
  std::string error_;
};

// Copies of either direction fail.
class FailingMover final : public Mover {
 public:
  void fail_to(std::span<const std::byte> memory) { memory_ = memory; }
  Status move(std::span<const MovedRun> runs) override {
    for (const MovedRun& run : runs) {
      if (run.to >= memory_.data() && run.to < memory_.data() + memory_.size()) {
        return error(ErrorCode::kIo, "the bus is gone");
      }
      std::memcpy(run.to, run.from, run.bytes);
    }
    return {};
  }

 private:
  std::span<const std::byte> memory_;
};

EngineOptions stalling_options() {
  EngineOptions o;
  o.cache.geometry = kGeometry;
  o.cache.device_bytes = 110 * kGeometry.kv_block_bytes();
  o.cache.host_bytes = 300 * kGeometry.kv_block_bytes();
  o.cache.stage_bytes = uint64_t{2} * 260 * 2 * kGeometry.layer_plane_bytes();
  o.max_decode_stall = kStallBudget;
  o.limits.max_num_batched_tokens = 256;
  o.max_model_len = Engine::longest_fit(o.cache);
  return o;
}

struct Rig {
  explicit Rig(const char* policy)
      : device(stalling_options().cache.device_bytes + stalling_options().cache.stage_bytes),
        host(stalling_options().cache.host_bytes),
        link(link_options(), clock),
        executor(device, clock, &link),
        engine(stalling_options(), make_policy(policy).value(), executor, clock, nullptr, &link) {}

  MemoryLinkOptions link_options() {
    MemoryLinkOptions o;
    o.memory = {std::span(device), std::span(host), {}};
    o.mover = &mover;
    return o;
  }

  std::vector<std::byte> device;
  std::vector<std::byte> host;
  MonotonicClock clock;
  FailingMover mover;  // nothing fails at first
  MemoryLink link;
  RealTimeShadow executor;
  Engine engine;
};

struct Client {
  Client(Rig& rig, uint32_t prompt, uint32_t output, uint64_t seed) {
    Random random(seed);
    for (uint32_t i = 0; i < prompt; ++i) {
      request.prompt.push_back(static_cast<Token>(random.below(kShadowVocab)));
    }
    request.max_tokens = output;
    request.sampling.seed = seed;
    sink = std::make_shared<TimedSink>(rig.clock);
    EXPECT_TRUE(rig.engine.submit(request, sink).ok());
  }
  std::vector<Token> right_output() const {
    return shadow_output(kGeometry.layers, request.prompt, request.sampling.seed, request.max_tokens, {});
  }

  GenerationRequest request;
  std::shared_ptr<TimedSink> sink;
};

template <typename Condition>
bool wait_until(const Condition& condition) {
  for (int i = 0; i < 30'000; ++i) {
    if (condition()) return true;
    sleep_for(kNanosPerMilli);
  }
  return false;
}

TEST(LinkStall, RequestsThatNeedTheLinkWaitAndAllOthersGoOn) {
  Rig rig("sarathi");
  rig.executor.set_pace(20 * kNanosPerMilli);
  rig.engine.start();
  // Larger than the device: every one of its steps reads over the link.
  const Client streaming(rig, 130 * kBlockTokens, 600, 1);
  ASSERT_TRUE(wait_until([&] { return streaming.sink->count() >= 3; }));
  std::vector<Client> resident;
  for (uint64_t seed : {2, 3, 4}) resident.emplace_back(rig, 20, 480, seed);
  ASSERT_TRUE(wait_until([&] {
    return std::all_of(resident.begin(), resident.end(),
                       [](const Client& c) { return c.sink->count() >= 3; });
  }));

  const EngineMetrics& m = rig.engine.metrics();
  const uint64_t deferred_before = m.deferred_rows;
  rig.link.stand_still(true);
  const size_t streamed_before = streaming.sink->count();
  const size_t before = resident[0].sink->count();
  // Its prompt cannot be computed either: what it writes has to leave.
  const Client late(rig, 120 * kBlockTokens, 5, 5);
  sleep_for(kStandstill);
  EXPECT_GT(m.deferred_rows, deferred_before);
  EXPECT_GT(rig.link.stats().queued_bytes, 0u);
  EXPECT_LE(streaming.sink->count(), streamed_before + 2);  // one was under way
  EXPECT_GT(resident[0].sink->count(), before + 10);        // of 250 on idle cores
  for (const Client& c : resident) EXPECT_FALSE(c.sink->finished());

  rig.link.stand_still(false);
  rig.executor.set_pace(0);
  ASSERT_TRUE(rig.engine.wait_idle(60 * kNanosPerSecond));
  EXPECT_TRUE(wait_until([&] { return m.transfers_in_flight == 0; }));
  rig.engine.stop();
  for (const Client& c : resident) {
    EXPECT_LT(c.sink->longest_gap_s(), 3.0);
    EXPECT_EQ(c.sink->tokens(), c.right_output());
  }
  EXPECT_GT(streaming.sink->longest_gap_s(), 4.0);
  EXPECT_EQ(streaming.sink->tokens(), streaming.right_output());
  EXPECT_EQ(late.sink->tokens(), late.right_output());
  EXPECT_EQ(rig.engine.check_integrity().message(), "");
  EXPECT_EQ(m.tiers[0].bytes_used, 0u);
  EXPECT_EQ(m.tiers[1].bytes_used, 0u);
  EXPECT_EQ(rig.link.stats().queued_bytes, 0u);
}

// Each request ends: with its tokens, or because its keys and values cannot be copied. One larger than the
// device needs the link. Of five that fit on the device two at a time, layerkv sends layers of the others to
// the host, and has to bring them back. The other policies recompute what a preemption lost.
TEST(LinkFailure, NoRequestHangsOnALinkWhoseCopiesFail) {
  for (const std::string policy : {"vllm-swap", "layerkv", "sarathi", "auto"}) {
    for (const bool to_device : {true, false}) {
      SCOPED_TRACE(policy + (to_device ? ", to the device" : ", to the host"));
      Rig rig(policy.c_str());
      rig.mover.fail_to(to_device ? rig.device : rig.host);
      std::vector<Client> clients;
      for (uint64_t seed = 1; seed <= 5; ++seed) clients.emplace_back(rig, 40 * kBlockTokens, 200, seed);
      clients.emplace_back(rig, 130 * kBlockTokens, 20, 6);  // larger than the device
      rig.engine.start();
      ASSERT_TRUE(rig.engine.wait_idle(60 * kNanosPerSecond));
      const EngineMetrics& m = rig.engine.metrics();
      // Blocks that are idle now are saved on the host, as far as that works.
      EXPECT_TRUE(wait_until([&] { return m.tiers[0].bytes_used == 0 && m.transfers_in_flight == 0; }));
      rig.engine.stop();
      size_t right = 0;
      for (const Client& c : clients) {
        ASSERT_TRUE(c.sink->finished());
        if (c.sink->error().empty()) {
          EXPECT_EQ(c.sink->tokens(), c.right_output());
          ++right;
        } else {
          EXPECT_NE(c.sink->error().find("between the tiers fail: the bus is gone"), std::string::npos)
              << c.sink->error();
        }
      }
      EXPECT_FALSE(clients.back().sink->error().empty());
      if (policy == "layerkv") {
        EXPECT_LT(right, 5u);
      } else {
        EXPECT_EQ(right, 5u);
      }
      EXPECT_EQ(rig.engine.check_integrity().message(), "");
    }
  }
}

}  // namespace
}  // namespace kvasir::test
