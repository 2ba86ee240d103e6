// Requests that are held back while a peer computes the first rows of their prompts, and rows that are
// computed for peers. Blocks have 16 tokens, 16 to a leaf of attention, and two cells.
#include "engine/peer_prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "contract/cost_estimator.h"
#include "engine/engine_fixture.h"
#include "fakes/fake_link.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kLeaf = 256;
constexpr int32_t kVocab = 2000;

// Peers that do what the test says.
class ComputingPeers final : public Lending {
 public:
  LendingEvents turn(const LendingRequest& request, LendableCells& own) override {
    asked.insert(asked.end(), request.prompts_wanted.begin(), request.prompts_wanted.end());
    done.insert(done.end(), request.prompts_done.begin(), request.prompts_done.end());
    returned.insert(returned.end(), request.returned.begin(), request.returned.end());
    for (const auto& [id, chain] : request.prompts_computed) {
      computed.emplace_back(id, !chain.empty());
      last_chain = chain;
    }
    if (!take.empty()) taken = own.take_blocks(std::exchange(take, {}));
    if (taken && give_back) own.give_back(*std::exchange(taken, std::nullopt));
    LendingEvents events = std::exchange(next, {});
    for (uint32_t i = 0; grants && i < request.borrow; ++i) events.granted.push_back(next_cell++);
    if (!grants) events.refused = request.borrow;
    return events;
  }
  void start_anew() override {}
  void set_wake(std::function<void()>) override {}

  std::vector<PromptQuestion> asked;
  std::vector<uint64_t> done;
  std::vector<uint32_t> returned;
  std::vector<std::pair<uint64_t, bool>> computed;
  std::vector<PrefixHash> last_chain;
  LendingEvents next;
  bool grants = false;           // what it is asked for
  uint32_t next_cell = 64;       // behind those of an answer
  std::vector<PrefixHash> take;  // in the next turn
  std::optional<std::vector<LendableCells::Frame>> taken;
  bool give_back = false;
};

// A row takes a millisecond.
class RowCosts final : public CostEstimator {
 public:
  void observe(const StepWork&, double) override {}
  bool take_latest(CostModel& costs) override {
    costs = {};
    costs.prefill_row_s = 1e-3;
    return true;
  }
  bool learning() const override { return false; }
  uint64_t observed() const override { return 0; }
  uint64_t dropped() const override { return 0; }
  double error() const override { return 0; }
};

// A device of 40 blocks, and as many as 100 of peers.
EngineOptions long_prompts(PeerPromptUse use) {
  EngineOptions o = small_options(40);
  o.cache.borrowed_bytes = 100 * o.cache.geometry.kv_block_bytes();
  o.cache.stage_bytes = 40 * o.cache.geometry.largest_piece_bytes();
  o.max_model_len = 1600;
  o.limits.max_num_batched_tokens = 512;
  o.peer_prompts = use;
  o.vocab_size = kVocab;
  return o;
}

struct PromptWorld {
  explicit PromptWorld(PeerPromptUse use = PeerPromptUse::kAlways) : PromptWorld(long_prompts(use)) {}
  explicit PromptWorld(const EngineOptions& with)
      : options(with),
        device(options.cache.device_bytes + options.cache.stage_bytes),
        host(options.cache.peers_begin() + options.cache.peers_bytes()),
        link(clock, {device, host, {}}),
        executor(clock, 1, kStep),
        engine(options, make_policy("distkv").value(), executor, clock, nullptr, &link, {&beliefs, nullptr},
               &peers) {}

  // Of 51 blocks 13 do not fit beside the two that are being written: a leaf of 16 has to go.
  std::shared_ptr<CollectingSink> submit_long(Token first = 0) { return submit(request(800, 1, first)); }
  std::shared_ptr<CollectingSink> submit(GenerationRequest r) {
    auto sink = std::make_shared<CollectingSink>();
    last = engine.submit(std::move(r), sink).value();
    return sink;
  }
  // A peer has computed so many blocks of the question asked last.
  void answer(uint32_t blocks) {
    PromptAnswer answer{peers.asked.back().id, std::vector<uint32_t>(2 * blocks)};
    std::iota(answer.cells.begin(), answer.cells.end(), 0u);
    peers.next.prompts_found.push_back(answer);
  }
  void turns(int count) {
    for (int i = 0; i < count; ++i) {
      engine.step();
      link.complete_all();
    }
  }
  uint64_t steps() const { return engine.metrics().steps; }
  const EngineMetrics::Peers& figures() const { return engine.metrics().peers; }

  EngineOptions options;
  VirtualClock clock;
  std::vector<std::byte> device, host;
  FakeLink link;
  ScriptedExecutor executor;
  ComputingPeers peers;
  RowCosts beliefs;
  Engine engine;
  RequestId last{};
};

TEST(PeerPrompts, WhatAPeerHasComputedIsAdopted) {
  PromptWorld w;
  const auto sink = w.submit_long();
  w.turns(3);
  ASSERT_EQ(w.peers.asked.size(), 1u);
  const PromptQuestion& asked = w.peers.asked[0];
  EXPECT_EQ(asked.tokens, request(kLeaf, 1).prompt);
  EXPECT_EQ(asked.cells, 32u);
  EXPECT_EQ(w.steps(), 0u) << "it is held back";
  w.answer(16);
  w.turns(10);
  EXPECT_EQ(sink->tokens.size(), 1u);
  EXPECT_EQ(w.engine.metrics().prompt_tokens_cached, kLeaf);
  EXPECT_EQ(w.figures().prompt_asked, kLeaf);
  EXPECT_EQ(w.figures().prompt_computed, kLeaf);
  EXPECT_EQ(w.engine.check_integrity().message(), "");
}

TEST(PeerPrompts, TheOthersRunMeanwhile) {
  PromptWorld w;
  w.submit_long();
  const auto other = w.submit(request(8, 3, 900));
  w.turns(3);
  EXPECT_EQ(other->tokens.size(), 3u);
  EXPECT_EQ(w.peers.asked.size(), 1u) << "a short one needs no peer";
}

TEST(PeerPrompts, ARequestThatIsRefusedGoesOn) {
  PromptWorld w;
  const auto sink = w.submit_long();
  w.turns(1);
  EXPECT_EQ(w.steps(), 0u) << "it is held back";
  w.answer(0);
  w.peers.grants = true;
  w.turns(10);
  EXPECT_EQ(sink->tokens.size(), 1u);
  EXPECT_EQ(w.figures().prompt_computed, 0u);
  EXPECT_TRUE(w.peers.done.empty());
}

TEST(PeerPrompts, ItWaitsForTwiceTheRowsTimeAndASecond) {
  PromptWorld w(PeerPromptUse::kByCost);
  w.submit(request(8, 500, 900));
  w.turns(2);
  const auto sink = w.submit_long();
  w.turns(1);
  ASSERT_EQ(w.peers.asked.size(), 1u);
  EXPECT_NEAR(to_seconds(w.peers.asked[0].until - w.clock.now()), 2 * 0.256 + 1, 0.02);
  w.clock.advance(w.peers.asked[0].until - w.clock.now());
  EXPECT_TRUE(sink->tokens.empty());
  w.peers.grants = true;
  w.turns(10);
  EXPECT_EQ(w.peers.done, (std::vector<uint64_t>{1}));
  EXPECT_EQ(sink->tokens.size(), 1u) << "it is held back no longer";
}

TEST(PeerPrompts, ByCostOneThatDelaysNoOtherIsNotSent) {
  PromptWorld w(PeerPromptUse::kByCost);
  w.submit_long();
  w.turns(2);
  EXPECT_TRUE(w.peers.asked.empty());
}

TEST(PeerPrompts, ARequestThatIsCancelledIsNotWanted) {
  PromptWorld w;
  w.submit_long();
  w.turns(1);
  w.engine.cancel(w.last);
  w.turns(2);
  EXPECT_EQ(w.peers.done, (std::vector<uint64_t>{1}));
  // What crosses that are cells as any others.
  w.answer(16);
  w.turns(1);
  EXPECT_EQ(w.engine.check_integrity().message(), "");
}

// Of 100 blocks that may be borrowed each question keeps 16: the seventh finds room for none.
TEST(PeerPrompts, ThereIsRoomForAllThatIsAskedFor) {
  PromptWorld w;
  for (Token i = 0; i < 7; ++i) w.submit_long(i * 100);
  w.turns(1);
  EXPECT_EQ(w.peers.asked.size(), 6u);
}

// What earlier prompts have left goes back, that of the oldest first.
TEST(PeerPrompts, WhatNoRequestNeedsMakesRoom) {
  PromptWorld w;
  std::vector<uint32_t> free(200);
  std::iota(free.begin(), free.end(), 0u);
  for (Token i = 0; i < 8; ++i) {
    const auto sink = w.submit_long(i * 100);
    w.turns(2);
    ASSERT_EQ(w.peers.asked.size(), static_cast<size_t>(i) + 1);
    for (const uint32_t cell : std::exchange(w.peers.returned, {})) free.push_back(cell);
    ASSERT_GE(free.size(), 32u) << i;
    PromptAnswer answer{w.peers.asked.back().id, {free.begin(), free.begin() + 32}};
    free.erase(free.begin(), free.begin() + 32);
    w.peers.next.prompts_found.push_back(answer);
    w.turns(10);
    EXPECT_EQ(sink->tokens.size(), 1u) << i;
  }
  EXPECT_EQ(w.figures().prompt_computed, 8 * kLeaf);
  EXPECT_EQ(w.engine.check_integrity().message(), "");
}

TEST(PeerPrompts, NoQuestionIsLongerThanPeersAnswer) {
  EngineOptions o = long_prompts(PeerPromptUse::kAlways);
  o.max_model_len = PromptQuestion::kMostTokens + 4 * kLeaf;
  o.cache.borrowed_bytes = o.max_model_len / 16 * o.cache.geometry.kv_block_bytes();
  PromptWorld w(o);
  GenerationRequest longest;
  longest.prompt.assign(PromptQuestion::kMostTokens + 4 * kLeaf - 1, 5);
  longest.max_tokens = 1;
  w.submit(std::move(longest));
  w.turns(1);
  ASSERT_EQ(w.peers.asked.size(), 1u);
  EXPECT_EQ(w.peers.asked[0].tokens.size(), PromptQuestion::kMostTokens);
}

// ---------------------------------------------------------------- for peers

using Computed = std::vector<std::pair<uint64_t, bool>>;

PromptJob job(uint64_t id, uint32_t tokens, Token first = 0) {
  return {id, request(tokens, 1, first).prompt};
}

TEST(PeerPromptsOfOthers, RowsAreComputedAndTheirBlocksLent) {
  PromptWorld w(PeerPromptUse::kByCost);
  w.peers.next.prompts_to_compute = {job(7, 2 * kLeaf)};
  w.turns(1);
  int turns = 0;
  while (w.peers.computed.empty() && ++turns < 10) w.turns(1);
  EXPECT_EQ(w.peers.computed, (Computed{{7, true}}));
  EXPECT_EQ(w.figures().prompt_for_peers, 2 * kLeaf);
  w.peers.take = w.peers.last_chain;
  w.turns(1);
  ASSERT_TRUE(w.peers.taken);
  EXPECT_EQ(w.peers.taken->size(), 64u);
  w.submit(request(8, 1));
  w.turns(2);
  EXPECT_EQ(w.figures().lent_cells, 64u);
  EXPECT_EQ(w.engine.check_integrity().message(), "");
  w.peers.give_back = true;
  w.turns(1);
}

// What a peer says of its prompt names no blocks of others, not even those of the same tokens.
TEST(PeerPromptsOfOthers, ItsBlocksAreItsOwn) {
  PromptWorld w(PeerPromptUse::kByCost);
  const auto own = w.submit(request(2 * kLeaf, 1));
  w.turns(5);
  ASSERT_EQ(own->tokens.size(), 1u);
  w.peers.next.prompts_to_compute = {job(7, kLeaf)};
  w.turns(5);
  const std::vector<PrefixHash> first = w.peers.last_chain;
  ASSERT_EQ(first.size(), 16u);
  EXPECT_NE(first[0], block_hash(root_hash("", ""), request(16, 1).prompt).words);
  EXPECT_EQ(w.engine.metrics().prompt_tokens_cached, 0u) << "nor does it find them";
  w.peers.next.prompts_to_compute = {job(8, kLeaf)};
  w.turns(5);
  ASSERT_EQ(w.peers.last_chain.size(), 16u);
  EXPECT_NE(w.peers.last_chain[0], first[0]) << "nor those of another job";
}

TEST(PeerPromptsOfOthers, AnIdleEngineSaysAtOnceThatItRefuses) {
  PromptWorld w(PeerPromptUse::kByCost);
  w.peers.next.prompts_to_compute = {job(1, 40 * 16)};
  EXPECT_TRUE(w.engine.step()) << "a turn is due";
  w.engine.step();
  EXPECT_EQ(w.peers.computed, (Computed{{1, false}}));
}

TEST(PeerPromptsOfOthers, WhatDoesNotFitOrComesBesideOnesThatWaitIsRefused) {
  PromptWorld w(PeerPromptUse::kByCost);
  w.peers.next.prompts_to_compute = {job(1, 40 * 16), job(2, 16, kVocab - 15), job(3, 16, -1)};
  w.turns(2);
  EXPECT_EQ(w.peers.computed, (Computed{{1, false}, {2, false}, {3, false}})) << "a row more than 40 blocks";
  w.submit(request(500, 50));
  w.submit(request(500, 50, 700));
  w.turns(2);
  w.peers.next.prompts_to_compute = {job(4, 16)};
  w.turns(2);
  EXPECT_EQ(w.peers.computed.back(), (std::pair<uint64_t, bool>{4, false})) << "the second waits";
}

TEST(PeerPromptsOfOthers, AJobThatIsDroppedEnds) {
  EngineOptions o = long_prompts(PeerPromptUse::kByCost);
  o.limits.max_num_batched_tokens = 64;
  o.scratch_tokens = 64;
  PromptWorld w(o);
  w.submit(request(8, 400, 900));
  w.turns(1);
  w.peers.next.prompts_to_compute = {job(1, 2 * kLeaf)};
  w.turns(3);
  EXPECT_EQ(w.engine.metrics().num_requests_running, 2u) << "its prompt takes eight steps";
  w.peers.next.prompts_dropped = {1};
  w.turns(3);
  EXPECT_TRUE(w.peers.computed.empty());
  EXPECT_EQ(w.figures().prompt_for_peers, 0u);
  EXPECT_EQ(w.engine.metrics().num_requests_running, 1u);
}

}  // namespace
}  // namespace kvasir::test
