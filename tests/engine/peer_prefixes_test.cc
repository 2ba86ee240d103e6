// Requests that are held back while the beginnings of their prompts come from peers.
#include "engine/peer_prefixes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "contract/cost_estimator.h"
#include "engine/engine_fixture.h"
#include "fakes/fake_link.h"

namespace kvasir::test {
namespace {

// Peers that answer when the test says so.
class Answering final : public Lending {
 public:
  LendingEvents turn(const LendingRequest& request, LendableCells& own) override {
    for (const PrefixQuestion& q : request.prefixes_wanted) asked.push_back(q);
    for (const uint64_t id : request.prefixes_done) done.push_back(id);
    for (const PrefixKept& k : request.prefixes_kept) keep.push_back(k);
    returned.insert(request.returned.begin(), request.returned.end());
    recall += request.recall;
    if (!show.empty()) {
      shown = own.show_prefix(std::exchange(show, {}));
      if (keeps) own.keep_prefix(shown.id, shown.blocks);
    }
    if (hide) own.hide_prefix(std::exchange(hide, 0));
    LendingEvents events;
    events.prefixes_found = std::exchange(answers, {});
    events.prefixes_kept = std::exchange(kept, {});
    events.recalled = std::exchange(recalled, {});
    events.lost = std::exchange(lost, {});
    return events;
  }
  void start_anew() override {}
  void set_wake(std::function<void()>) override {}

  std::vector<PrefixQuestion> asked;
  std::vector<uint64_t> done;
  std::vector<PrefixKept> keep;
  std::set<uint32_t> returned;
  std::vector<PrefixAnswer> answers;
  std::vector<PrefixKeptAnswer> kept;
  std::vector<uint32_t> recalled, lost;
  std::vector<PrefixHash> show;  // in the next turn
  bool keeps = false;            // that, for as long as they want it
  LendableCells::Prefix shown;
  uint32_t recall = 0;  // cells that it wants back
  uint64_t hide = 0;
};

EngineOptions options_with(PeerPrefixUse use) {
  EngineOptions o = small_options();
  o.peer_prefixes = use;
  o.cache.prefix_cells = o.cache.cells(Tier::kDevice);
  if (use != PeerPrefixUse::kFetch) o.cache.attended_cells = 64;
  return o;
}

// A row takes a millisecond: 32 of them 32.
CostModel costs() {
  CostModel c;
  c.prefill_row_s = 1e-3;
  return c;
}

// Beliefs that stay as they are.
class FixedCosts final : public CostEstimator {
 public:
  explicit FixedCosts(const CostModel& costs) : costs_(costs) {}
  void observe(const StepWork&, double) override {}
  bool take_latest(CostModel& costs) override {
    costs = costs_;
    return true;
  }
  bool learning() const override { return false; }
  uint64_t observed() const override { return 0; }
  uint64_t dropped() const override { return 0; }
  double error() const override { return 0; }

 private:
  const CostModel costs_;
};

struct World {
  explicit World(PeerPrefixUse use = PeerPrefixUse::kByCost, const CostModel& believed = costs())
      : options(options_with(use)),
        device(options.cache.device_bytes),
        host(options.cache.peers_bytes()),
        link(clock, {device, host, {}}),
        executor(clock, 1, kStep),
        beliefs(believed),
        engine(options, make_policy("sarathi").value(), executor, clock, nullptr, &link, {&beliefs, nullptr},
               &peers) {}

  std::shared_ptr<CollectingSink> submit(GenerationRequest r) {
    auto sink = std::make_shared<CollectingSink>();
    last = engine.submit(std::move(r), sink).value();
    return sink;
  }
  // A peer has so many blocks of the question asked last: two cells each.
  void answer(size_t blocks, std::optional<PrefixAnswer::Attending> attending = std::nullopt) {
    PrefixAnswer answer{peers.asked.back().id, {}, "b", attending};
    const uint32_t first = options.cache.first_shown_cell();
    for (uint32_t cell = 0; cell < 2 * blocks; ++cell) answer.cells.push_back(first + cell);
    peers.answers.push_back(answer);
  }
  void finish() {
    while (engine.step()) link.complete_all();
  }
  uint64_t steps() const { return engine.metrics().steps; }
  const EngineMetrics::Peers& figures() const { return engine.metrics().peers; }

  EngineOptions options;
  VirtualClock clock;
  std::vector<std::byte> device, host;
  FakeLink link;
  ScriptedExecutor executor;
  Answering peers;
  FixedCosts beliefs;
  Engine engine;
  RequestId last{};
};

TEST(PeerPrefixes, BlocksOfAPeerCountAsCached) {
  World w;
  const auto sink = w.submit(request(70, 2));  // four full blocks of 16, and the rest
  w.engine.step();
  ASSERT_EQ(w.peers.asked.size(), 1u);
  EXPECT_EQ(w.peers.asked[0].chain.size(), 4u);
  EXPECT_EQ(w.peers.asked[0].chain[0], block_hash(root_hash("", ""), request(16, 1).prompt).words);
  EXPECT_EQ(w.steps(), 0u) << "it is held back";
  w.answer(3);
  w.engine.step();
  EXPECT_EQ(w.link.queued(), 1u);
  w.engine.step();
  EXPECT_EQ(w.steps(), 0u) << "its bytes have not come";
  EXPECT_TRUE(w.peers.done.empty());
  w.link.complete_all();
  w.finish();
  EXPECT_EQ(w.engine.metrics().prompt_tokens_cached, 48u);
  EXPECT_EQ(w.figures().prefix_queries, 64u);
  EXPECT_EQ(w.figures().prefix_hits, 48u);
  EXPECT_EQ(w.figures().prefix_bytes, 3 * w.options.cache.geometry.kv_block_bytes());
  EXPECT_EQ(sink->tokens.size(), 2u);
  w.submit(request(70, 1, 500));
  w.engine.step();
  EXPECT_EQ(w.peers.done, (std::vector<uint64_t>{1}));
}

// ---------------------------------------------------------------- attended at a peer

// A prompt of 18 full blocks, of which the first 16 are a leaf of attention: 32 cells.
struct Attending : World {
  explicit Attending(PeerPrefixUse use = PeerPrefixUse::kAttend) : World(use) {}
  std::shared_ptr<CollectingSink> ask(uint32_t output, int seed = 1) {
    auto sink = submit(request(300, output, seed));
    engine.step();
    return sink;
  }
  void kept(uint32_t cells) {
    PrefixKeptAnswer answer{peers.asked.back().id, {}};
    for (uint32_t cell = 0; cell < cells; ++cell) answer.cells.push_back(cell);
    peers.kept.push_back(answer);
    engine.step();
  }
};

TEST(AttendedPrefixes, WholeLeavesStayAtThePeerUntilTheRequestEnds) {
  Attending w;
  const auto sink = w.ask(3);
  w.answer(18);
  w.engine.step();
  w.engine.step();
  ASSERT_EQ(w.peers.keep.size(), 1u);
  EXPECT_EQ(w.peers.keep[0].id, 1u);
  EXPECT_EQ(w.peers.keep[0].cells, 32u) << "of a leaf, two of each block";
  EXPECT_EQ(w.steps(), 0u) << "it is held back";
  w.kept(32);
  EXPECT_EQ(w.steps(), 1u);
  EXPECT_EQ(w.link.queued(), 0u) << "no bytes move";
  EXPECT_TRUE(w.peers.returned.empty());
  w.finish();
  EXPECT_EQ(sink->tokens.size(), 3u);
  EXPECT_EQ(w.engine.metrics().prompt_tokens_cached, 256u);
  EXPECT_EQ(w.figures().prefix_attended, 256u);
  EXPECT_EQ(w.figures().prefix_hits, 0u);
  w.engine.step();
  w.engine.step();
  EXPECT_EQ(w.peers.returned.size(), 32u);
  // Nothing of it is left here.
  w.ask(1);
  EXPECT_EQ(w.peers.asked.size(), 2u);
}

TEST(AttendedPrefixes, OthersThatBeginAlikeAttendToThemToo) {
  Attending w;
  w.ask(40);
  w.answer(18);
  w.engine.step();
  w.kept(32);
  const auto second = w.ask(2);
  EXPECT_EQ(w.peers.asked.size(), 1u) << "the first one has computed the blocks behind the leaf";
  w.finish();
  EXPECT_EQ(second->tokens.size(), 2u);
  EXPECT_EQ(w.engine.metrics().prompt_tokens_cached, 256u + 288u);
}

TEST(AttendedPrefixes, WhatThePeerDoesNotKeepIsCopied) {
  Attending w;
  const auto sink = w.ask(2);
  w.answer(18);
  w.engine.step();
  w.kept(0);
  EXPECT_EQ(w.link.queued(), 1u);
  w.link.complete_all();
  w.finish();
  EXPECT_EQ(w.figures().prefix_attended, 0u);
  EXPECT_EQ(w.figures().prefix_hits, 288u);
  EXPECT_EQ(sink->tokens.size(), 2u);
}

TEST(AttendedPrefixes, OfMoreThanWasAskedForTheRestIsIgnored) {
  Attending w;
  const auto sink = w.ask(2);
  w.answer(32);
  w.engine.step();
  w.engine.step();
  ASSERT_EQ(w.peers.keep.size(), 1u);
  EXPECT_EQ(w.peers.keep[0].cells, 32u) << "of the leaf in the 18 blocks";
  w.kept(64);
  w.finish();
  EXPECT_EQ(w.figures().prefix_attended, 288u);
  EXPECT_EQ(sink->tokens.size(), 2u);
}

TEST(AttendedPrefixes, LessThanALeafIsCopied) {
  Attending w;
  w.ask(2);
  w.answer(15);
  w.engine.step();
  EXPECT_TRUE(w.peers.keep.empty());
  EXPECT_EQ(w.link.queued(), 1u);
  w.finish();
}

TEST(AttendedPrefixes, WhatComesTooLateGoesBack) {
  Attending w;
  const auto sink = w.ask(2);
  w.answer(18);
  w.engine.step();
  w.clock.advance(PeerPrefixes::kLongestWait);
  w.engine.step();
  EXPECT_EQ(w.steps(), 1u) << "it computes";
  w.kept(32);
  w.finish();
  w.engine.step();
  w.engine.step();
  EXPECT_EQ(w.peers.returned.size(), 32u);
  EXPECT_EQ(w.figures().prefix_attended, 0u);
  EXPECT_EQ(sink->tokens.size(), 2u);
}

TEST(AttendedPrefixes, WhatIsLostIsComputed) {
  Attending w;
  const auto sink = w.ask(20);
  w.answer(18);
  w.engine.step();
  w.kept(32);
  w.engine.step();
  for (uint32_t cell = 0; cell < 32; ++cell) w.peers.lost.push_back(cell);
  w.finish();
  w.engine.step();
  EXPECT_EQ(sink->tokens.size(), 20u);
  EXPECT_EQ(w.peers.returned.size(), 32u);
}

// Called back, they stay as long as the request needs them, and no longer.
TEST(AttendedPrefixes, WhatIsCalledBackGoesWhenTheRequestHasEnded) {
  Attending w;
  const auto sink = w.ask(6);
  w.answer(18);
  w.engine.step();
  w.kept(32);
  for (uint32_t cell = 0; cell < 32; ++cell) w.peers.recalled.push_back(cell);
  w.engine.step();
  EXPECT_TRUE(w.peers.returned.empty());
  w.finish();
  w.engine.step();
  EXPECT_EQ(sink->tokens.size(), 6u);
  EXPECT_EQ(w.peers.returned.size(), 32u);
}

// A row takes 1 ms, so the 288 rows 288. A copy of them took 1 s. 4 tokens to come and a step with the 44
// rows behind the leaf: 5 steps.
TEST(AttendedPrefixes, ByCostTheFastestIsTaken) {
  const auto way = [](double step_s, uint32_t output, double row_s = 0) {
    Attending w(PeerPrefixUse::kByCost);
    w.ask(1);
    w.answer(18);
    w.engine.step();
    EXPECT_EQ(w.link.queued(), 1u) << "the path is measured";
    w.clock.advance(kNanosPerSecond);
    w.link.complete_all();
    w.finish();
    w.ask(output, 500);
    w.answer(18, PrefixAnswer::Attending{step_s, row_s});
    w.engine.step();
    w.engine.step();
    const bool keeps = w.peers.keep.size() == 1;
    EXPECT_EQ(w.link.queued(), 0u) << "which copying is not";
    if (keeps) w.kept(32);
    w.finish();
    return keeps;
  };
  // 32 rows more are computed, of the blocks behind the leaf: 5 s + 32 ms + slack of 10 ms below 298 ms.
  EXPECT_TRUE(way(0.050, 4));
  EXPECT_FALSE(way(0.054, 4));
  EXPECT_FALSE(way(0.050, 5));
  // 48 rows attend.
  EXPECT_TRUE(way(0, 4, 0.0053));
  EXPECT_FALSE(way(0, 4, 0.0054));
}

// A device of 32 blocks, of which a peer attends to four, for as long as it wants. Two requests grow until
// the rest is full, and the second one lacks a block eight steps before the first one does.
TEST(AttendedPrefixes, NoRequestWaitsForWhatAPeerAttendsHere) {
  World w;
  const auto submit = [&](const GenerationRequest& r) {
    const auto sink = w.submit(r);
    w.engine.step();
    w.answer(0);
    w.engine.step();
    return sink;
  };
  submit(request(70, 1));
  w.finish();
  w.peers.show = w.peers.asked[0].chain;
  w.peers.keeps = true;
  w.engine.step();
  ASSERT_EQ(w.peers.shown.blocks, 4u);
  const auto first = submit(request(100, 300, 1000));
  const auto second = submit(request(106, 300, 2000));
  uint32_t without = 0;  // steps in which one of them did not go on
  while (w.peers.recall == 0 && !first->finish) {
    const size_t before = first->tokens.size() + second->tokens.size();
    w.engine.step();
    without += first->tokens.size() + second->tokens.size() < before + 2 ? 1 : 0;
  }
  EXPECT_GT(w.peers.recall, 0u) << "it wants it back";
  EXPECT_LE(without, 2u) << "at once";
  w.peers.hide = w.peers.shown.id;
  w.finish();
  EXPECT_EQ(first->tokens.size() + second->tokens.size(), 600u);
}

TEST(PeerPrefixes, WhatIsCachedIsNotAskedFor) {
  World w(PeerPrefixUse::kFetch);
  w.submit(request(40, 1));
  w.engine.step();
  w.answer(0);
  w.finish();
  w.submit(request(70, 1));
  w.engine.step();
  ASSERT_EQ(w.peers.asked.size(), 2u);
  EXPECT_EQ(w.peers.asked[1].chain.size(), 2u);
  w.answer(2);
  w.finish();
  EXPECT_EQ(w.engine.metrics().prompt_tokens_cached, 64u);
}

TEST(PeerPrefixes, OthersRunMeanwhile) {
  World w;
  w.submit(request(70, 1));
  const auto other = w.submit(request(8, 3, 900));
  for (int i = 0; i < 3; ++i) w.engine.step();
  EXPECT_EQ(other->tokens.size(), 3u);
}

// It hopes for all of its 64 rows at first, and waits for 64 ms.
TEST(PeerPrefixes, WithoutAnAnswerItGoesOnWhenItHasWaitedForWhatItCouldGain) {
  World w;
  const auto sink = w.submit(request(70, 1));
  w.engine.step();
  w.clock.advance(63 * kNanosPerMilli);
  w.engine.step();
  EXPECT_EQ(w.steps(), 0u);
  w.clock.advance(2 * kNanosPerMilli);
  w.finish();
  EXPECT_EQ(sink->tokens.size(), 1u);
  EXPECT_EQ(w.figures().prefix_late, 64u);
  w.engine.step();
  EXPECT_EQ(w.peers.done, (std::vector<uint64_t>{1}));
  w.answer(3);  // too late
  w.submit(request(70, 1, 300));
  w.engine.step();
  EXPECT_EQ(w.link.queued(), 0u);
  // Of the blocks asked for 15/16 were found, of late: (1 - 1/16) 64 ms.
  EXPECT_NEAR(to_seconds(w.peers.asked[1].until - w.clock.now()), 0.060, 1e-6);
}

TEST(PeerPrefixes, WhereNobodyEverHasAnyItWaitsForASixteenthOfTheTime) {
  World w;
  Nanos waits = 0;
  for (int i = 0; i < 100; ++i) {
    w.submit(request(500, 1, 1000 * i));
    w.engine.step();
    waits = w.peers.asked.back().until - w.clock.now();
    w.answer(0);
    w.finish();
  }
  EXPECT_NEAR(to_seconds(waits), 0.031, 1e-6);  // 31 blocks of 16 rows are 496 ms
  EXPECT_EQ(w.figures().prefix_hits, 0u);
}

TEST(PeerPrefixes, ACopyThatFailsIsComputed) {
  World w;
  const auto sink = w.submit(request(70, 2));
  w.engine.step();
  w.answer(3);
  w.engine.step();
  w.link.fail(TransferId{1});
  w.finish();
  EXPECT_EQ(sink->tokens.size(), 2u);
  EXPECT_EQ(w.engine.metrics().prompt_tokens_cached, 0u);
  EXPECT_EQ(w.figures().prefix_failed, 48u);
  EXPECT_EQ(w.engine.check_integrity().message(), "");
}

// For 48 rows it waits for 48 ms, then it goes on. What comes later serves the next one.
TEST(PeerPrefixes, ACopyThatIsLateServesOthers) {
  World w;
  const auto sink = w.submit(request(70, 1));
  w.engine.step();
  w.answer(3);
  w.engine.step();
  w.clock.advance(50 * kNanosPerMilli);
  for (int i = 0; i < 3; ++i) w.engine.step();
  EXPECT_EQ(sink->tokens.size(), 1u);
  EXPECT_EQ(w.figures().prefix_late, 48u);
  w.finish();
  EXPECT_EQ(w.engine.check_integrity().message(), "");
}

TEST(PeerPrefixes, RequestsWithOneBeginningAskOnce) {
  World w;
  w.submit(request(70, 1));
  w.submit(request(70, 1));
  w.engine.step();
  EXPECT_EQ(w.peers.asked.size(), 1u);
  w.answer(4);
  w.finish();
  EXPECT_EQ(w.engine.metrics().prompt_tokens_cached, 128u);
}

TEST(PeerPrefixes, OneThatIsCancelledIsHeldNoLonger) {
  World w;
  const auto sink = w.submit(request(70, 1));
  w.engine.step();
  w.engine.cancel(w.last);
  w.engine.step();
  EXPECT_EQ(*sink->finish, FinishReason::kAbort);
  w.answer(3);
  w.finish();
  EXPECT_EQ(w.engine.check_integrity().message(), "");
}

TEST(PeerPrefixes, ByCostAShortPromptIsNotAskedFor) {
  World cost;  // 16 rows take 16 ms, of which 10 are what the estimates may be wrong by
  cost.submit(request(16, 1));
  cost.engine.step();
  EXPECT_TRUE(cost.peers.asked.empty()) << "none is full before the last token";
  CostModel fast = costs();
  fast.prefill_row_s = 6e-4;
  World short_one(PeerPrefixUse::kByCost, fast);
  short_one.submit(request(17, 1));
  short_one.engine.step();
  EXPECT_TRUE(short_one.peers.asked.empty());
  World always(PeerPrefixUse::kFetch, fast);
  always.submit(request(17, 1));
  always.engine.step();
  EXPECT_EQ(always.peers.asked.size(), 1u);
}

// The first copy is tried, and takes 200 ms for three blocks. Four blocks, which are computed in 64, are then
// not copied; when ten seconds have gone by it is tried again.
TEST(PeerPrefixes, ASlowPathIsNotTakenAgainUntilItsTimesAreOld) {
  World w;
  const auto ask = [&](Token first, size_t blocks) {
    w.submit(request(70, 1, first));
    w.engine.step();
    w.answer(blocks);
    w.engine.step();
    return w.link.queued();
  };
  EXPECT_EQ(ask(100, 3), 1u);
  w.clock.advance(200 * kNanosPerMilli);
  w.link.complete_all();
  w.finish();
  EXPECT_EQ(ask(200, 4), 0u);
  w.finish();
  w.clock.advance(10 * kNanosPerSecond);
  EXPECT_EQ(ask(300, 4), 1u);
  w.finish();
  EXPECT_EQ(w.engine.metrics().peers.prefix_hits, 48u + 64u);
}

// Of the device's 32 blocks the five that the prompt begins with are the oldest that are idle.
TEST(PeerPrefixes, ACopyDoesNotEvictTheBlocksThatItContinues) {
  World w(PeerPrefixUse::kFetch);
  const auto run = [&](const GenerationRequest& r, size_t blocks) {
    w.submit(r);
    w.engine.step();
    w.answer(blocks);
    w.finish();
  };
  run(request(81, 1), 0);
  run(request(420, 1, 5000), 0);
  w.submit(request(17 * 16 + 1, 1));
  w.engine.step();
  EXPECT_EQ(w.peers.asked.back().chain.size(), 12u);
  const uint64_t before = w.engine.metrics().prompt_tokens_cached;
  w.answer(12);
  w.finish();
  EXPECT_EQ(w.engine.metrics().prompt_tokens_cached - before, 17u * 16);
  EXPECT_EQ(w.engine.check_integrity().message(), "");
}

// What is shown keeps its bytes, though others want the room.
TEST(PeerPrefixes, WhatIsShownStaysAndOnlyAQuarterIs) {
  World w(PeerPrefixUse::kFetch);  // 32 blocks
  w.submit(request(200, 1));
  w.engine.step();
  ASSERT_EQ(w.peers.asked.size(), 1u);
  const std::vector<PrefixHash> chain = w.peers.asked[0].chain;
  ASSERT_EQ(chain.size(), 12u);
  w.answer(0);
  w.finish();
  w.peers.show = chain;
  w.engine.step();
  EXPECT_EQ(w.peers.shown.frames.size(), 16u) << "eight of the twelve";
  const uint64_t id = w.peers.shown.id;
  w.peers.show = chain;
  w.engine.step();
  EXPECT_TRUE(w.peers.shown.frames.empty());
  // One that takes all the rest evicts the others only.
  w.submit(request(380, 1, 5000));
  w.engine.step();
  w.answer(0);
  w.finish();
  w.submit(request(200, 1));
  w.engine.step();
  EXPECT_EQ(w.peers.asked.back().chain.size(), 4u);
  w.answer(0);
  w.finish();
  w.peers.hide = id;
  w.engine.step();
  w.peers.show = chain;
  w.engine.step();
  EXPECT_EQ(w.peers.shown.frames.size(), 16u);
  w.peers.hide = w.peers.shown.id;
  w.engine.step();
  EXPECT_EQ(w.engine.check_integrity().message(), "");
}

}  // namespace
}  // namespace kvasir::test
