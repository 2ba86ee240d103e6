// Each allocation of the engine's thread fails once: requests fail or end rightly, and the engine goes on.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/engine.h"
#include "fakes/fake_link.h"
#include "fakes/shadow_executor.h"
#include "memory/failing_new.h"
#include "memory/spared_sink.h"
#include "sched/registry.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kLayers = 4;

// What is not under test has memory at any time.
class SparedExecutor final : public Executor {
 public:
  explicit SparedExecutor(Executor& executor) : executor_(executor) {}
  int depth() const override { return executor_.depth(); }
  void submit(Step step) override {
    const Spared spared;
    executor_.submit(std::move(step));
  }
  StepResult wait() override {
    const Spared spared;
    return executor_.wait();
  }

 private:
  Executor& executor_;
};

class SparedLink final : public Link {
 public:
  explicit SparedLink(FakeLink& link) : link_(link) {}
  void start(Transfer transfer) override {
    const Spared spared;
    link_.start(std::move(transfer));
  }
  void cancel(TransferId id) override {
    const Spared spared;
    link_.cancel(id);
  }
  TransferState wait(TransferId id, Nanos timeout) override {
    const Spared spared;
    return link_.wait(id, timeout);
  }
  std::vector<TransferDone> completed() override {
    const Spared spared;
    return link_.completed();
  }
  void set_wake(std::function<void()> wake) override {
    const Spared spared;
    link_.set_wake(std::move(wake));
  }
  LinkStats stats() const override {
    const Spared spared;
    return link_.stats();
  }

 private:
  FakeLink& link_;
};

struct Sent {
  std::vector<Token> prompt;
  uint32_t max_tokens = 0;
  bool cancelled = false;
  std::shared_ptr<SparedSink> sink = std::make_shared<SparedSink>();
  std::optional<RequestId> id = {};  // nothing: it was not accepted
};

class ShadowWorld {
 public:
  ShadowWorld(const std::string& policy, int depth)
      : options_(make_options()),
        device_(options_.cache.device_bytes + options_.cache.stage_bytes),
        host_(options_.cache.host_bytes),
        fake_link_(clock_, {device_, host_, {}}),
        link_(fake_link_),
        shadow_(options_.cache.geometry, device_, depth, clock_, &fake_link_),
        executor_(shadow_),
        engine_(options_, make_policy(policy).value(), executor_, clock_, nullptr, &link_) {}

  // Without memory the request is not accepted.
  void send(Sent& sent, const std::string& salt) {
    GenerationRequest request;
    request.prompt = sent.prompt;
    request.max_tokens = sent.max_tokens;
    request.cache_salt = salt;
    std::shared_ptr<OutputSink> sink = sent.sink;
    const Enlisted enlisted;
    try {
      sent.id = engine_.submit(std::move(request), std::move(sink)).value();
    } catch (const std::bad_alloc&) {
    }
  }
  void cancel(const Sent& sent) {
    const Enlisted enlisted;
    if (sent.id) engine_.cancel(*sent.id);
  }
  bool step() {
    const Enlisted enlisted;
    return engine_.step();
  }
  void complete_all() { fake_link_.complete_all(); }
  void complete_some() { fake_link_.complete_some(random_); }
  Engine& engine() { return engine_; }

 private:
  // The sequences of play() do not fit the device together.
  static EngineOptions make_options() {
    EngineOptions o;
    o.cache.geometry = {16, kLayers, 1, 8};
    o.cache.device_bytes = o.cache.geometry.kv_block_bytes() * 8;
    o.cache.host_bytes = o.cache.geometry.kv_block_bytes() * 24;
    o.cache.stage_bytes = 2 * o.cache.geometry.layer_plane_bytes() * 20;
    o.limits.max_num_seqs = 4;
    o.limits.max_num_batched_tokens = 32;
    o.max_model_len = 160;
    return o;
  }

  const EngineOptions options_;
  VirtualClock clock_;
  std::vector<std::byte> device_;
  std::vector<std::byte> host_;
  FakeLink fake_link_;
  SparedLink link_;
  ShadowExecutor shadow_;
  SparedExecutor executor_;
  Engine engine_;
  Random random_{7};
};

void expect_one_answer(const Sent& sent, bool may_fail) {
  const CollectingSink& heard = sent.sink->heard;
  if (!sent.id) {
    EXPECT_TRUE(may_fail);
    EXPECT_EQ(heard.events, 0);
    return;
  }
  ASSERT_TRUE(heard.finish.has_value());
  EXPECT_EQ(heard.events_after_finish, 0);
  const std::vector<Token> want = shadow_output(kLayers, sent.prompt, 0, sent.max_tokens, {});
  ASSERT_LE(heard.tokens.size(), want.size());
  EXPECT_TRUE(std::equal(heard.tokens.begin(), heard.tokens.end(), want.begin()));
  switch (*heard.finish) {
    case FinishReason::kLength:
      EXPECT_EQ(heard.tokens.size(), want.size());
      EXPECT_EQ(heard.error, "");
      break;
    case FinishReason::kError:
      EXPECT_TRUE(may_fail) << heard.error;
      EXPECT_NE(heard.error, "");
      EXPECT_TRUE(heard.try_again);
      break;
    case FinishReason::kAbort:
      EXPECT_TRUE(sent.cancelled);
      break;
    case FinishReason::kStop:
      ADD_FAILURE();
  }
}

// A few requests that wait for each other's memory; one is cancelled.
std::vector<Sent> play(ShadowWorld& world, uint64_t number) {
  std::vector<Sent> all(4);
  for (uint32_t i = 0; i < all.size(); ++i) {
    all[i].prompt = shadow_prompt(34 + 9 * i, i + 1);
    all[i].max_tokens = 12;
  }
  all[2].cancelled = true;
  const std::string salt = std::to_string(number);
  for (uint32_t i = 0; i < 3; ++i) world.send(all[i], salt);
  for (int turn = 0; turn < 1000; ++turn) {
    if (turn == 4) world.send(all[3], salt);
    if (turn == 6) world.cancel(all[2]);
    if (!world.step() && turn > 6) break;
    world.complete_some();
  }
  return all;
}

void expect_whole(ShadowWorld& world) {
  const EngineMetrics& m = world.engine().metrics();
  while (world.engine().step() || m.transfers_in_flight > 0) world.complete_all();
  EXPECT_EQ(m.num_requests_running, 0u);
  EXPECT_EQ(m.num_requests_waiting, 0u);
  EXPECT_EQ(m.kv_blocks_used, 0u);
  EXPECT_TRUE(world.engine().wait_idle(0)) << "the inbox counts a request that has ended";
  const Status status = world.engine().check_integrity();
  EXPECT_TRUE(status.ok()) << status.message();
}

struct Case {
  std::string policy;
  int depth;
  uint64_t in_a_row;  // allocations that fail
};

class EngineMemory : public testing::TestWithParam<Case> {};

TEST_P(EngineMemory, EachAllocationMayFail) {
  ShadowWorld world(GetParam().policy, GetParam().depth);
  play(world, 0);  // what the first round alone allocates, and keeps
  expect_whole(world);
  uint64_t k = 1;
  for (;; k = next_failing(k)) {
    SCOPED_TRACE("allocation " + std::to_string(k));
    fail_allocations(k, GetParam().in_a_row, Counted::kEnlistedThreads);
    const std::vector<Sent> sent = play(world, k);
    const Failures failures = fail_no_more();
    for (const Sent& s : sent) expect_one_answer(s, failures.any());
    expect_whole(world);
    const std::vector<Sent> next = play(world, k);
    for (const Sent& s : next) expect_one_answer(s, false);
    expect_whole(world);
    if (!failures.any() || testing::Test::HasFailure()) break;
  }
  RecordProperty("allocations", std::to_string(k));
  EXPECT_GT(k, 300u) << "the rounds allocate less than expected: does the test still reach the engine?";
  EXPECT_GT(world.engine().metrics().fresh_starts, 0u);
  if (GetParam().policy == "vllm-swap") {
    EXPECT_GT(world.engine().metrics().num_preemptions_swapped, 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineMemory,
                         testing::Values(Case{"auto", 1, 1}, Case{"vllm-swap", 1, 1}, Case{"sarathi", 2, 1},
                                         Case{"layerkv", 1, 1}, Case{"auto", 1, 4}),
                         [](const auto& tested) {
                           std::string name = tested.param.policy + "_" + std::to_string(tested.param.depth) +
                                              "_" + std::to_string(tested.param.in_a_row);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// A prompt for which there is no memory fails alone.
TEST(EngineMemory, ARequestForWhichThereIsNoMemoryFailsAlone) {
  ShadowWorld world("sarathi", 1);
  Sent running{shadow_prompt(20, 1), 40};
  world.send(running, "");
  for (int i = 0; i < 5; ++i) world.step();
  bool one_failed_alone = false;
  for (uint64_t k = 1; k <= 8; ++k) {
    Sent other{shadow_prompt(64, 2), 1};
    world.send(other, "");
    fail_allocations(k, 1, Counted::kEnlistedThreads);
    world.step();
    fail_no_more();
    if (other.sink->heard.finish == FinishReason::kError && !running.sink->heard.finish)
      one_failed_alone = true;
  }
  EXPECT_TRUE(one_failed_alone);
}

}  // namespace
}  // namespace kvasir::test
