// Requests that are held back while a peer computes the first rows of their prompts, and rows that are
// computed for peers. Blocks have 16 tokens, 16 to a leaf of attention, and two cells.
#include "engine/peer_prompts.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "contract/cost_estimator.h"
#include "contract/length_predictor.h"
#include "engine/engine_fixture.h"
#include "fakes/fake_link.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kLeaf = 256;
constexpr int32_t kVocab = 2000;
constexpr double kLeafBytes = 8192;  // of K and V

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
    events.lendable = lendable;
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
  uint32_t lendable = UINT32_MAX;
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

// Wants all that it can be given, and counts what it is taught.
class CountingLengths final : public LengthPredictor {
 public:
  LengthPrediction predict(const PromptFeatures&) override { return {}; }
  bool reads_hidden() const override { return true; }
  void learn(const PromptFeatures&, const LengthPrediction&, uint32_t) override { ++learnt; }
  void learn_at_least(const PromptFeatures&, const LengthPrediction&, uint32_t) override { ++learnt; }
  const std::vector<LengthClass>& classes() const override { return classes_; }

  int learnt = 0;

 private:
  std::vector<LengthClass> classes_;
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
        engine(options, make_policy("distkv").value(), executor, clock, nullptr, &link, {&beliefs, &lengths},
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
  CountingLengths lengths;
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
  EXPECT_EQ(w.figures().granted, 32u) << "as what is lost and called back of them is counted, too";
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
  w.link.set_peer_bytes_per_s(kLeafBytes);
  w.submit(request(8, 500, 900));
  w.turns(2);
  const auto sink = w.submit_long();
  w.turns(1);
  ASSERT_EQ(w.peers.asked.size(), 1u);
  EXPECT_NEAR(to_seconds(w.peers.asked[0].until - w.clock.now()), 2 * 0.256 + 1, 0.02);
  w.turns(1);
  EXPECT_TRUE(w.peers.done.empty() && sink->tokens.empty()) << "not before";
  w.clock.advance(w.peers.asked[0].until - w.clock.now());
  w.peers.grants = true;
  w.turns(10);
  EXPECT_EQ(w.peers.done, (std::vector<uint64_t>{1}));
  EXPECT_EQ(sink->tokens.size(), 1u) << "it is held back no longer";
}

// The rows take 256 ms. Their K and V have 16 blocks of 512 bytes, their ids 1,024 bytes: where K and V take
// S, the ids take S / 8, and the peer must be 10 ms faster: 256 + S / 8 + 10 < S, if S > 304 ms.
TEST(PeerPrompts, ByCostAPeerIsAskedWhereTheNetworkWouldTakeLonger) {
  for (const auto& [stream_s, asked] : {std::pair{0.300, false}, {0.308, true}, {5.0, true}, {1e-3, false}}) {
    PromptWorld w(PeerPromptUse::kByCost);
    ASSERT_EQ(w.options.cache.geometry.kv_block_bytes() * 16, kLeafBytes);
    w.link.set_peer_bytes_per_s(kLeafBytes / stream_s);
    // Others that run and wait change nothing.
    w.submit(request(8, 500, 900));
    w.submit_long();
    w.turns(2);
    EXPECT_EQ(w.peers.asked.size(), asked ? 1u : 0u) << stream_s;
  }
}

TEST(PeerPrompts, ByCostNoPeerIsAskedWhileTheNetworkIsUnknown) {
  PromptWorld w(PeerPromptUse::kByCost);
  w.submit(request(8, 500, 900));
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

// What is borrowed already may fill the one peer that there is, though it may borrow more.
TEST(PeerPrompts, ItMakesRoomWithinWhatPeersLend) {
  PromptWorld w;
  w.peers.lendable = 64;
  w.turns(1);
  for (Token i = 0; i < 3; ++i) {
    const auto sink = w.submit_long(i * 100);
    w.turns(2);
    ASSERT_EQ(w.peers.asked.size(), static_cast<size_t>(i) + 1);
    EXPECT_EQ(w.peers.asked.back().cells, 32u);
    EXPECT_EQ(w.peers.returned.size(), i == 2 ? 32u : 0u) << "of what the first two have left";
    PromptAnswer answer{w.peers.asked.back().id, w.peers.returned};
    for (uint32_t cell = 0; i < 2 && cell < 32; ++cell) {
      answer.cells.push_back(static_cast<uint32_t>(i) * 32 + cell);
    }
    w.peers.next.prompts_found.push_back(answer);
    w.turns(10);
    EXPECT_EQ(sink->tokens.size(), 1u) << i;
  }
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

uint64_t observed(const Histogram& figure) {
  uint64_t count = 0;
  for (size_t i = 0; i <= figure.bounds().size(); ++i) count += figure.count(i);
  return count;
}

// Its clients are the peer's.
TEST(PeerPromptsOfOthers, NoFigureOfRequestsCountsThem) {
  PromptWorld w(PeerPromptUse::kByCost);
  w.peers.next.prompts_to_compute = {job(7, 2 * kLeaf)};
  w.turns(5);
  ASSERT_EQ(w.peers.computed, (Computed{{7, true}}));
  const EngineMetrics& m = w.engine.metrics();
  for (const auto& finished : m.finished) EXPECT_EQ(finished, 0u);
  EXPECT_EQ(m.prompt_tokens + m.generation_tokens + m.prefix_cache_queries, 0u);
  for (const auto* figure :
       {&m.request_prompt_tokens, &m.request_generation_tokens, &m.time_to_first_token, &m.request_queue_time,
        &m.request_prefill_time, &m.e2e_request_latency, &m.request_inference_time, &m.request_decode_time}) {
    EXPECT_EQ(observed(*figure), 0u);
  }
  EXPECT_EQ(m.steps, 1u) << "the device's time is counted";
  w.submit(request(8, 1));
  w.turns(3);
  EXPECT_EQ(m.prompt_tokens, 8u);
  EXPECT_EQ(observed(m.time_to_first_token), 1u);
}

// What it learns of lengths would else be that outputs are cut at one token.
TEST(PeerPromptsOfOthers, TheyTeachNoLengths) {
  PromptWorld w(PeerPromptUse::kByCost);
  w.peers.next.prompts_to_compute = {job(7, kLeaf)};
  w.turns(5);
  ASSERT_EQ(w.peers.computed, (Computed{{7, true}}));
  EXPECT_EQ(w.lengths.learnt, 0);
  EXPECT_EQ(w.executor.steps().at(0).slices.at(0).hidden_from, StepSlice::kNoHidden) << "nor read";
  w.submit(request(8, 1));
  w.turns(3);
  EXPECT_EQ(w.lengths.learnt, 1);
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
