// Tenants that share an engine: none gets less than its share, whatever another sends; none is idle for
// another's sake; and what a request gets to hear depends on none of it.
#include "engine/fair_gate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "engine/engine_fixture.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kTurns = 600;
constexpr uint32_t kSeqs = 8;
constexpr uint32_t kLongestPrompt = 60;
constexpr uint32_t kLongestOutput = 30;

EngineOptions shared_options() {
  EngineOptions o = small_options(20);
  o.cache.prefix_caching = false;
  o.check_integrity = false;
  o.limits.max_num_batched_tokens = 64;
  o.limits.max_num_seqs = kSeqs;
  return o;
}

// The tenants of a run, each of which keeps so many requests waiting.
struct Sender {
  Tenant tenant;
  uint32_t waiting = 0;
  uint32_t from_turn = 0;
};

// What the tenants had of it, as they could count it themselves: the prompts that began, and twice what came
// out.
class Shared {
 public:
  Shared(const std::string& policy, double slack, int depth) : options_(shared_options()) {
    options_.fair_slack_tokens = slack;
    executor_ = std::make_unique<ScriptedExecutor>(clock_, depth, kStep);
    engine_ = std::make_unique<Engine>(options_, make_policy(policy).value(), *executor_, clock_);
  }

  void turn(const std::vector<Sender>& senders) {
    for (const Sender& sender : senders) {
      if (turn_ < sender.from_turn) continue;
      while (waiting_[sender.tenant.id] < sender.waiting) send(sender.tenant);
    }
    engine_->step();
    for (; steps_ < executor_->steps().size(); ++steps_) {
      for (const StepSlice& slice : executor_->steps()[steps_].slices) {
        Sent& sent = sent_.at(raw(slice.seq));
        if (!std::exchange(sent.began, true)) --waiting_[sent.tenant];
      }
    }
    ++turn_;
  }

  double served(const Tenant& tenant) const {
    double tokens = 0;
    for (const auto& [id, s] : sent_) {
      if (s.tenant != tenant.id || !s.began) continue;
      tokens += s.prompt + FairGate::kOutputWeight * static_cast<double>(s.sink->tokens.size());
    }
    return tokens / static_cast<double>(tenant.weight);
  }

 private:
  struct Sent {
    uint32_t tenant;
    uint32_t prompt;
    std::shared_ptr<CollectingSink> sink;
    bool began = false;
  };

  void send(const Tenant& tenant) {
    GenerationRequest r = request(static_cast<uint32_t>(random_.between(1, kLongestPrompt)),
                                  static_cast<uint32_t>(random_.between(1, kLongestOutput)));
    r.tenant = tenant;
    auto sink = std::make_shared<CollectingSink>();
    const auto prompt = static_cast<uint32_t>(r.prompt.size());
    const RequestId id = engine_->submit(std::move(r), sink).value();
    sent_.emplace(raw(id), Sent{tenant.id, prompt, std::move(sink)});
    ++waiting_[tenant.id];
  }

  EngineOptions options_;
  VirtualClock clock_;
  std::unique_ptr<ScriptedExecutor> executor_;
  std::unique_ptr<Engine> engine_;
  Random random_{5};
  std::map<uint64_t, Sent> sent_;
  std::map<uint32_t, uint32_t> waiting_;  // that have not begun, by tenant
  size_t steps_ = 0;
  uint32_t turn_ = 0;
};

// The bound of fair_gate.h: two plans begin no more than run at once, each.
double bound(double slack, double weight) {
  constexpr double kPrompts = 2.0 * kSeqs * kLongestPrompt;
  constexpr double kOutputs = FairGate::kOutputWeight * kSeqs * kLongestOutput;
  return slack + (kPrompts + kOutputs) / weight;
}

// One floods, ten times as much as the other, and began earlier.
TEST(FairGate, AFloodTakesNoMoreThanItsShareUnderEveryPolicy) {
  for (const std::string& policy : policy_names()) {
    for (const int depth : {1, 2}) {
      if (depth == 2 && policy != "auto" && policy != "vllm") continue;
      const double slack = depth == 1 ? 0 : 500;
      const std::vector<Sender> senders = {{{.id = 1}, 40, 0}, {{.id = 2}, 4, 50}};
      Shared shared(policy, slack, depth);
      double worst = 0, first = 0, mine = 0;
      for (uint32_t turn = 0; turn < kTurns; ++turn) {
        shared.turn(senders);
        if (turn == 50) first = shared.served(senders[0].tenant);
        if (turn % 50 != 0 || turn <= 50) continue;
        mine = shared.served(senders[1].tenant);
        worst = std::max(worst, std::abs(shared.served(senders[0].tenant) - first - mine));
      }
      std::printf("%s, depth %d: %.0f apart of %.0f, bound %.0f\n", policy.c_str(), depth, worst, mine,
                  bound(slack, 1));
      EXPECT_LE(worst, bound(slack, 1)) << policy << " depth " << depth;
      EXPECT_GT(mine, 2 * bound(slack, 1)) << policy << ": too little was served to tell";
    }
  }
}

TEST(FairGate, SharesAreByWeight) {
  for (const std::string policy : {"sarathi", "auto", "vllm"}) {
    const std::vector<Sender> senders = {{{.id = 1, .weight = 1}, 40, 0}, {{.id = 2, .weight = 3}, 6, 0}};
    Shared shared(policy, 100, 1);
    double worst = 0;
    for (uint32_t turn = 0; turn < kTurns; ++turn) {
      shared.turn(senders);
      if (turn % 50 != 0) continue;
      worst = std::max(worst, std::abs(shared.served(senders[0].tenant) - shared.served(senders[1].tenant)));
    }
    EXPECT_LE(worst, bound(100, 1)) << policy;
    EXPECT_GT(shared.served(senders[0].tenant), bound(100, 1)) << policy;
  }
}

// One that asked for nothing for long gets its share from now on, and no more.
TEST(FairGate, NoTenantSavesUpServiceWhileAway) {
  const std::vector<Sender> senders = {{{.id = 1}, 10, 0}, {{.id = 2}, 10, 400}};
  Shared shared("sarathi", 0, 1);
  double before = 0;
  for (uint32_t turn = 0; turn < kTurns; ++turn) {
    if (turn == 400) before = shared.served(senders[0].tenant);
    shared.turn(senders);
  }
  const double since = shared.served(senders[0].tenant) - before;
  EXPECT_GT(since, 0.3 * shared.served(senders[1].tenant));
}

struct Whole {
  Nanos end = 0;
  uint64_t steps = 0;
  std::vector<std::vector<Token>> outputs;
};

// All of `requests` at once, to the end. tenants: the requests' in turn.
Whole run_all(const std::string& policy, const std::vector<Tenant>& tenants, uint32_t count) {
  EngineOptions o = shared_options();
  o.fair_slack_tokens = 50;
  Harness h(o, make_policy(policy).value());
  Random random(3);
  std::vector<std::shared_ptr<CollectingSink>> sinks;
  for (uint32_t i = 0; i < count; ++i) {
    GenerationRequest r = request(static_cast<uint32_t>(random.between(1, kLongestPrompt)),
                                  static_cast<uint32_t>(random.between(1, kLongestOutput)));
    r.tenant = tenants[i % tenants.size()];
    sinks.push_back(h.submit(std::move(r)));
  }
  h.finish();
  Whole out{h.clock.now(), h.engine.metrics().steps, {}};
  for (const auto& sink : sinks) out.outputs.push_back(sink->tokens);
  return out;
}

TEST(FairGate, OneTenantAloneIsServedAsWithoutTenants) {
  for (const std::string& policy : policy_names()) {
    const Whole without = run_all(policy, {{}}, 60);
    const Whole alone = run_all(policy, {{.id = 7, .weight = 0.5F}}, 60);
    EXPECT_EQ(alone.end, without.end) << policy;
    EXPECT_EQ(alone.steps, without.steps) << policy;
  }
}

// Work is the same and takes no longer; every output is the same, bit for bit.
TEST(FairGate, NothingIsIdleForFairness) {
  for (const std::string& policy : policy_names()) {
    const Whole without = run_all(policy, {{}}, 120);
    const Whole shared = run_all(policy, {{.id = 1}, {.id = 2}, {.id = 1}, {.id = 3, .weight = 4}}, 120);
    EXPECT_EQ(shared.outputs, without.outputs) << policy;
    EXPECT_LE(static_cast<double>(shared.end), 1.1 * static_cast<double>(without.end)) << policy;
  }
}

// A request that has just come costs no other request the step that could run both.
TEST(FairGate, ANewcomerHoldsNoRequestBackWhereThereIsRoomForAll) {
  EngineOptions o = small_options(64);
  o.fair_slack_tokens = 0;
  Harness h(o);
  Tenant many{.id = 1}, few{.id = 2};
  for (int i = 0; i < 6; ++i) {
    GenerationRequest a = request(10, 40), b = request(10, 40);
    a.tenant = many;
    b.tenant = few;
    h.submit(a);
    h.submit(a);
    h.submit(b);
    h.engine.step();
    EXPECT_EQ(h.engine.metrics().num_requests_waiting.load(), 0u);
  }
  h.finish();
}

// Or the tenant that names none would pay for what peers ask for.
TEST(FairGate, RowsForAPeerAreNoTenants) {
  const EngineOptions o = shared_options();
  View view;
  EngineMetrics metrics;
  LiveRequests requests(view);
  KvCache cache(o.cache);
  BeliefKeeper beliefs({}, cache, view, metrics);
  ViewKeeper keeper(o, view, requests, cache, beliefs, nullptr);
  FairGate gate(o, view, requests, keeper, cache);
  LiveRequest rows, own;
  rows.for_peer = true;
  rows.prompt_tokens = own.prompt_tokens = 40;
  for (const LiveRequest* live : {&rows, &own}) {
    gate.arrived(*live);
    gate.began(*live);
    gate.generated(*live);
    EXPECT_EQ(gate.service(0), live->for_peer ? 0 : 42);
  }
}

TEST(FairGate, CancelledAndStoppedWhileHeldBack) {
  EngineOptions o = shared_options();
  o.fair_slack_tokens = 0;
  o.check_integrity = true;
  o.limits.max_num_seqs = 1;
  Harness h(o);
  std::vector<std::pair<RequestId, std::shared_ptr<CollectingSink>>> sent;
  for (uint32_t i = 0; i < 12; ++i) {
    GenerationRequest r = request(8, 20);
    r.tenant.id = 1 + i % 2;
    auto sink = h.submit(std::move(r));
    sent.emplace_back(h.last, std::move(sink));
  }
  for (int turn = 0; turn < 60; ++turn) h.engine.step();
  EXPECT_GT(h.engine.metrics().num_requests_waiting.load(), 4u);
  for (size_t i = 0; i < sent.size(); i += 3) h.engine.cancel(sent[i].first);
  for (int turn = 0; turn < 60; ++turn) h.engine.step();
  h.engine.stop();
  for (const auto& [id, sink] : sent) EXPECT_TRUE(sink->finish.has_value()) << raw(id);
  EXPECT_EQ(h.engine.metrics().num_requests_waiting.load(), 0u);
}

// One sends more than the queue has places for.
TEST(QueueShare, PlacesStayFreeForOthersHoweverManyFlood) {
  EngineOptions o = small_options();
  o.max_num_queued_reqs = 100;
  o.limits.max_num_seqs = 1;
  Harness h(o);
  const auto flood = [&](uint32_t tenant, float share) {
    uint32_t taken = 0;
    for (;; ++taken) {
      GenerationRequest r = request(4, 4);
      r.tenant = {.id = tenant, .weight = 1, .queue_share = share};
      const auto id = h.engine.submit(std::move(r), std::make_shared<CollectingSink>());
      if (id.ok()) continue;
      EXPECT_EQ(id.status().code(), ErrorCode::kOverShare);
      EXPECT_NE(id.status().message().find("queue_share"), std::string::npos) << id.status().message();
      return taken;
    }
  };
  EXPECT_EQ(flood(1, 0.5F), 50u);
  EXPECT_EQ(flood(2, 0.5F), 25u);
  EXPECT_EQ(flood(3, 0.5F), 12u);
  EXPECT_EQ(flood(4, 0.01F), 1u) << "one place at least, where one is free";
  h.finish();
  EXPECT_EQ(flood(1, 0.2F), 20u) << "places were given back";
}

TEST(QueueShare, OneWithTheWholeQueueMeetsItsEndAsBefore) {
  EngineOptions o = small_options();
  o.max_num_queued_reqs = 10;
  Harness h(o);
  for (int i = 0; i < 10; ++i) h.submit(request(4, 4));
  const auto over = h.engine.submit(request(4, 4), std::make_shared<CollectingSink>());
  EXPECT_EQ(over.status().code(), ErrorCode::kExhausted);
  h.finish();
}

}  // namespace
}  // namespace kvasir::test
