// Steps whose history lies at peers in part: the same bits as with all of it at home, whatever lies where,
// and only sequences whose peer does not answer leave a step.
#include "exec/cpu/remote_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>

#include "base/mutant.h"
#include "base/random.h"
#include "exec/remote_rig.h"
#include "ops/attention_tree.h"
#include "ops/cpu/isa.h"

namespace kvasir::test {
namespace {

using Answers = FakePeerMemory::Answers;

// Any number of runs of leaves that lie wholly before the rows.
void add_runs(Random& random, uint32_t layer, uint32_t part, uint32_t whole_leaves,
              std::vector<PeerRun>& out) {
  const uint64_t density = random.below(4);
  for (uint32_t leaf = 0; leaf < whole_leaves;) {
    const auto end = static_cast<uint32_t>(leaf + 1 + random.below(whole_leaves - leaf));
    if (random.below(4) <= density) out.push_back({layer, part, leaf, end});
    leaf = end;
  }
}

struct RandomStep {
  std::vector<RemotePart> parts;
  std::vector<PeerRun> runs;
  std::set<std::pair<uint32_t, uint32_t>> in_ring;
};

RandomStep random_step(Random& random, const CacheGeometry& geometry) {
  RandomStep out;
  for (uint32_t seq = 0; seq < RemoteRig::kSequences; ++seq) {
    if (seq > 0 && random.below(4) == 0) continue;
    const auto rows = static_cast<uint32_t>(random.below(2) == 0 ? 1 : 1 + random.below(80));
    const auto begin = static_cast<uint32_t>(random.below(RemoteRig::kTokens - rows));
    out.parts.push_back({seq, {begin, begin + rows}});
    for (uint32_t b = 0; b < geometry.block_of(begin); ++b) {
      if (random.below(5) == 0) out.in_ring.insert({seq, b});
    }
  }
  const bool alike = random.below(2) == 0;
  const uint64_t seed = random.bits();
  for (uint32_t layer = 0; layer < geometry.layers; ++layer) {
    Random draws(seed, alike ? 0 : 1000 * layer);
    for (uint32_t part = 0; part < out.parts.size(); ++part) {
      add_runs(draws, layer, part, out.parts[part].tokens.begin / ops::kLeafTokens, out.runs);
    }
  }
  return out;
}

void expect_same_wherever(const RemoteRig::Options& options, int steps, uint64_t seed) {
  RemoteRig rig(options);
  Random random(seed);
  size_t asked = 0;
  for (int i = 0; i < steps; ++i) {
    const RandomStep r = random_step(random, rig.geometry());
    rig.set_threads(2);
    const StepOutcome expected = rig.run(r.parts, {});
    const int threads = 1 + i % 4;
    rig.set_threads(threads);
    rig.peer().set_answers(random.below(2) == 0 ? Answers::kAtOnce : Answers::kInThread);
    rig.peer().be_slow(random.below(2) == 0 ? 0 : 100 * kNanosPerMicro, random.bits());
    const StepOutcome got = rig.run(rig.make_step(r.parts, r.runs, r.in_ring));
    EXPECT_TRUE(got.result.status.ok()) << got.result.status.message();
    EXPECT_TRUE(got.result.deferred.empty() && got.result.lost_remote.empty());
    EXPECT_EQ(got.result.sampled.size(), r.parts.size());
    EXPECT_EQ(got.logits.size(), expected.logits.size());
    EXPECT_EQ(got.written.size(), expected.written.size());
    EXPECT_EQ(differences(expected, got), 0)
        << "step " << i << " on " << threads << " threads, with " << r.runs.size() << " runs at the peer";
    asked = rig.peer().asked().size();
  }
  EXPECT_GT(asked, static_cast<size_t>(2 * steps)) << "next to nothing lay at the peer";
}

// KV type, blocks of so many tokens, layers per group.
class RemoteBits : public testing::TestWithParam<std::tuple<ops::KvType, uint32_t, uint32_t>> {
 protected:
  static RemoteRig::Options options(const TinyLlamaShape& shape) {
    RemoteRig::Options o;
    o.shape = shape;
    std::tie(o.kv_type, o.block_tokens, o.layers_per_group) = GetParam();
    return o;
  }
};

TEST_P(RemoteBits, SeveralQueryHeadsForEachKvHead) {
  expect_same_wherever(options(tiny_gqa()), 10, 1);
}

TEST_P(RemoteBits, AKvHeadForEachQueryHead) {
  expect_same_wherever(options(tiny_mha()), 10, 2);
}

INSTANTIATE_TEST_SUITE_P(All, RemoteBits,
                         testing::Values(std::tuple{ops::KvType::kF32, 256, 3},
                                         std::tuple{ops::KvType::kBf16, 64, 1},
                                         std::tuple{ops::KvType::kBf16, 16, 2},
                                         std::tuple{ops::KvType::kQ8_0, 64, 1}));

// Layers with a window have nothing at peers: no layer has one.
RemoteRig::Options with_sinks() {
  RemoteRig::Options options;
  for (const TinyLlamaShape& shape : tiny_mixtures()) {
    if (shape.architecture == "gpt-oss") options.shape = shape;
  }
  options.shape.window = 0;
  return options;
}

TEST(RemoteAttention, HeadsWithSinks) {
  expect_same_wherever(with_sinks(), 8, 4);
}

TEST(RemoteAttention, OnlySampledRowsAttendInTheLastLayer) {
  RemoteRig::Options options;
  options.tap_all_rows = false;
  expect_same_wherever(options, 8, 3);
  RemoteRig rig(options);
  const std::vector<RemotePart> parts = {{0, {1030, 1050}}};
  rig.run(parts, rig.in_all_layers({{0, 0, 1, 4}}));
  const std::vector<FakePeerMemory::Asked> asked = rig.peer().asked();
  ASSERT_EQ(asked.size(), 3u);
  EXPECT_EQ(asked[0], (FakePeerMemory::Asked{1, 4, 20}));
  EXPECT_EQ(asked[1], (FakePeerMemory::Asked{1, 4, 20}));
  EXPECT_EQ(asked[2], (FakePeerMemory::Asked{1, 4, 1}));
}

// A row at 1,800 sees eight leaves, of which six are at the peer; 40 rows from 1,100 on see five, of which
// three are there. So 2 + 40 x 2 leaves times rows are here, shared by the threads.
TEST(RemoteAttention, PeersAreToldWhatIsAttendedHereMeanwhile) {
  RemoteRig rig({});
  const std::vector<RemotePart> parts = {{0, {1800, 1801}}, {1, {1100, 1140}}};
  const std::vector<PeerRun> runs = rig.in_all_layers({{0, 0, 0, 3}, {0, 0, 4, 7}, {0, 1, 1, 4}});
  for (const int threads : {1, 2}) {
    rig.set_threads(threads);
    rig.run(parts, runs);
    EXPECT_EQ(rig.peer().last_own_leaf_rows(), 82.0 / threads);
  }
}

TEST(RemoteAttention, BuffersAreUsedAgain) {
  RemoteRig rig({});
  const std::vector<RemotePart> parts = {{0, {1800, 1801}}, {1, {1100, 1140}}};
  const std::vector<PeerRun> runs = rig.in_all_layers({{0, 0, 0, 3}, {0, 0, 4, 7}, {0, 1, 1, 4}});
  const uint64_t at_home = (rig.run(parts, {}), rig.executor().scratch_bytes());
  rig.run(parts, runs);
  const uint64_t once = rig.executor().scratch_bytes();
  // At least the answers: two subtrees of one row for each of two runs, and two of 40 rows; two KV heads.
  const uint64_t answers = 2 * (2 + 2 + 2 * 40) * ops::partial_floats(2, 32) * sizeof(float);
  EXPECT_GE(once, at_home + answers);
  for (int i = 0; i < 5; ++i) rig.run(parts, runs);
  EXPECT_EQ(rig.executor().scratch_bytes(), once);
}

TEST(RemoteAttention, AStepNeedsPeersForIt) {
  RemoteRig::Options options;
  options.has_peers = false;
  RemoteRig rig(options);
  const std::vector<RemotePart> parts = {{0, {1030, 1031}}};
  const StepOutcome refused = rig.run(parts, {{1, 0, 0, 2}});
  ASSERT_FALSE(refused.result.status.ok());
  EXPECT_EQ(refused.result.status.code(), ErrorCode::kUnsupported);
  EXPECT_TRUE(refused.logits.empty());
  EXPECT_EQ(rig.run(parts, {}).result.sampled.size(), 1u);
}

// ---------------------------------------------------------------- peers that do not answer

// Three decodes and a chunk, of which 1 and 2 have leaves at the peer; what they give when all is well.
struct FourParts {
  explicit FourParts(int threads, bool tap_all_rows = true) : rig(options(tap_all_rows)) {
    rig.set_threads(threads);
    all = rig.run(parts, {});
  }
  static RemoteRig::Options options(bool tap_all_rows) {
    RemoteRig::Options o;
    o.tap_all_rows = tap_all_rows;
    return o;
  }
  Step step() { return rig.make_step(parts, runs); }
  // The step again, when the peer is well.
  void expect_next_is_fine() {
    rig.peer().set_answers(Answers::kAtOnce);
    const StepOutcome next = rig.run(step());
    EXPECT_TRUE(next.result.deferred.empty());
    EXPECT_EQ(next.result.sampled.size(), 3u);
    EXPECT_EQ(differences(all, next), 0);
  }

  const std::vector<RemotePart> parts = {{0, {1800, 1801}}, {1, {1100, 1140}}, {2, {900, 901}}};
  RemoteRig rig;
  const std::vector<PeerRun> runs = rig.in_all_layers({{0, 1, 0, 1}, {0, 1, 2, 4}, {0, 2, 0, 3}});
  StepOutcome all;
};
constexpr size_t kRunsPerLayer = 3;

TEST(RemoteAttention, OnlySequencesOfAPeerThatFailsLeaveTheStep) {
  for (int threads : {1, 3}) {
    for (bool tap_all_rows : {false, true}) {
      FourParts four(threads, tap_all_rows);
      for (uint64_t nth = 0; nth < four.runs.size(); ++nth) {
        SCOPED_TRACE(nth);
        four.rig.peer().set_answers(nth % 2 == 0 ? Answers::kAtOnce : Answers::kInThread);
        Step step = four.step();
        const size_t before = four.rig.peer().asked().size();
        four.rig.peer().fail(nth);
        const StepOutcome got = four.rig.run(std::move(step));
        const SeqId gone{nth % kRunsPerLayer == 2 ? 2u : 1u};
        EXPECT_TRUE(got.result.status.ok());
        EXPECT_EQ(got.result.deferred, std::vector<SeqId>{gone});
        EXPECT_EQ(got.result.lost_remote, std::vector<SeqId>{gone});
        ASSERT_EQ(got.result.sampled.size(), 2u);
        EXPECT_EQ(got.result.sampled[0].seq, SeqId{0});
        EXPECT_EQ(got.result.sampled[1].seq, SeqId{gone == SeqId{1} ? 2u : 1u});
        for (const auto& [place, logits] : got.logits) EXPECT_NE(SeqId{place.first}, gone);
        EXPECT_EQ(differences(four.all, got), 0);
        // Nothing more is asked for it.
        const size_t layers = nth / kRunsPerLayer + 1;
        const size_t stay = gone == SeqId{1} ? 1 : 2;
        EXPECT_EQ(four.rig.peer().asked().size() - before,
                  kRunsPerLayer * layers + stay * (four.runs.size() / kRunsPerLayer - layers));
        four.expect_next_is_fine();
      }
    }
  }
}

TEST(RemoteAttention, AnAnswerThatNeverComesEndsByItsDeadline) {
  FourParts four(2);
  four.rig.peer().set_answers(Answers::kInThread);
  Step step = four.step();
  four.rig.peer().lose(4, 20 * kNanosPerMilli);
  const StepOutcome got = four.rig.run(std::move(step));
  EXPECT_EQ(got.result.deferred, std::vector<SeqId>{SeqId{1}});
  EXPECT_EQ(got.result.lost_remote, std::vector<SeqId>{SeqId{1}});
  EXPECT_GT(got.result.stalled, 0);
  EXPECT_GE(got.result.ended - got.result.started, 20 * kNanosPerMilli);
  EXPECT_EQ(got.result.sampled.size(), 2u);
  EXPECT_EQ(differences(four.all, got), 0);
  four.expect_next_is_fine();
}

TEST(RemoteAttention, ASequenceWithALateAnswerIsDeferredButNotLost) {
  FourParts four(2);
  four.rig.peer().set_answers(Answers::kWhenTold);
  Step step = four.step();
  step.max_stall = 10 * kNanosPerMilli;
  const StepOutcome got = four.rig.run(std::move(step));
  EXPECT_EQ(got.result.deferred, (std::vector<SeqId>{SeqId{1}, SeqId{2}}));
  EXPECT_TRUE(got.result.lost_remote.empty());
  EXPECT_GE(got.result.stalled, 10 * kNanosPerMilli);
  ASSERT_EQ(got.result.sampled.size(), 1u);
  EXPECT_EQ(differences(four.all, got), 0);
  EXPECT_EQ(four.rig.peer().pending(), kRunsPerLayer) << "more was asked for those that had left";
  // The next step does not read what is on its way still, nor write where it will be written.
  four.rig.peer().set_answers(Answers::kAtOnce);
  const StepOutcome next = four.rig.run(four.step());
  EXPECT_EQ(next.result.sampled.size(), 3u);
  EXPECT_EQ(differences(four.all, next), 0);
  four.rig.peer().answer_all();
  four.expect_next_is_fine();
}

TEST(RemoteAttention, NothingIsWaitedForWhenTheEngineStops) {
  FourParts four(2);
  four.rig.peer().set_answers(Answers::kWhenTold);
  four.rig.executor().give_up_waiting();
  const StepOutcome got = four.rig.run(four.step());
  EXPECT_EQ(got.result.deferred, (std::vector<SeqId>{SeqId{1}, SeqId{2}}));
  EXPECT_TRUE(got.result.lost_remote.empty());
  EXPECT_EQ(differences(four.all, got), 0);
  four.rig.peer().answer_all();
}

TEST(RemoteAttention, SlicesOfOneSequenceLeaveTogether) {
  RemoteRig rig({});
  // The rows of the first are the history of the second.
  const std::vector<RemotePart> parts = {{0, {1040, 1060}}, {1, {700, 701}}, {0, {1060, 1061}}};
  const StepOutcome all = rig.run(parts, {});
  Step step = rig.make_step(parts, rig.in_all_layers({{0, 0, 1, 3}, {0, 2, 1, 3}}));
  EXPECT_EQ(differences(all, rig.run(Step(step))), 0);
  rig.peer().fail(3);  // of the second layer, for the second slice
  const StepOutcome got = rig.run(std::move(step));
  EXPECT_EQ(got.result.deferred, std::vector<SeqId>{SeqId{0}});
  EXPECT_EQ(got.result.lost_remote, std::vector<SeqId>{SeqId{0}});
  ASSERT_EQ(got.result.sampled.size(), 1u);
  EXPECT_EQ(got.result.sampled[0].seq, SeqId{1});
  EXPECT_EQ(differences(all, got), 0);
}

TEST(RemoteAttention, AStepThatAllHaveLeftEnds) {
  RemoteRig rig({});
  for (int threads : {1, 4}) {
    rig.set_threads(threads);
    for (uint64_t nth : {0u, 1u, 2u}) {
      const std::vector<RemotePart> parts = {{0, {1040, 1075}}};
      const StepOutcome all = rig.run(parts, {});
      Step step = rig.make_step(parts, rig.in_all_layers({{0, 0, 0, 4}}));
      rig.peer().fail(nth);
      const StepOutcome got = rig.run(Step(step));
      EXPECT_EQ(got.result.deferred, std::vector<SeqId>{SeqId{0}});
      EXPECT_TRUE(got.result.sampled.empty() && got.logits.empty());
      EXPECT_EQ(differences(all, rig.run(std::move(step))), 0);
    }
  }
}

TEST(RemoteAttention, AnExecutorEndsWhenNothingWritesToItsMemory) {
  FourParts four(2);
  four.rig.peer().set_answers(Answers::kWhenTold);
  Step step = four.step();
  step.max_stall = 0;
  EXPECT_EQ(four.rig.run(std::move(step)).result.deferred.size(), 2u);
  ASSERT_EQ(four.rig.peer().pending(), kRunsPerLayer);
  std::atomic<bool> answers = false;
  std::thread peer([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    answers = true;
    four.rig.peer().answer_all();
  });
  four.rig.end_executor();
  EXPECT_TRUE(answers);
  peer.join();
}

// ---------------------------------------------------------------- seeded faults

// What a step gives other than it should: runs of several subtrees, and one of a single one.
int differences_of_remote(bool peer_swaps = false) {
  RemoteRig rig({});
  const std::vector<RemotePart> parts = {{0, {1850, 1851}}, {1, {1100, 1120}}};
  const StepOutcome expected = rig.run(parts, {});
  Step step = rig.make_step(parts, rig.in_all_layers({{0, 0, 0, 3}, {0, 0, 4, 7}, {0, 1, 2, 4}}));
  rig.peer().swap_peaks(peer_swaps);
  const StepOutcome got = rig.run(std::move(step));
  EXPECT_EQ(got.logits.size(), 21u);
  return differences(expected, got);
}

TEST(RemoteFaults, APeerThatAnswersInTheWrongOrderIsNoticed) {
  EXPECT_EQ(differences_of_remote(), 0);
  EXPECT_GT(differences_of_remote(/*peer_swaps=*/true), 0);
}

#if defined(KVASIR_MUTANTS)

int differences_under(Mutant fault, const RemoteRig::Options& options = {}) {
  RemoteRig rig(options);
  const std::vector<RemotePart> parts = {{0, {1850, 1851}}, {1, {1100, 1120}}};
  const std::vector<PeerRun> runs = rig.in_all_layers({{0, 0, 0, 3}, {0, 0, 4, 7}, {0, 1, 2, 4}});
  const StepOutcome expected = rig.run(parts, {});
  const ScopedMutant active(fault);
  const StepOutcome got = rig.run(parts, runs);
  EXPECT_TRUE(got.result.deferred.empty());
  return differences(expected, got);
}

TEST(RemoteFaults, ASinkThatIsLeftOutIsNoticed) {
  EXPECT_GT(differences_under(Mutant::kRemoteSinkLeftOut, with_sinks()), 0);
}

TEST(RemoteFaults, EachTurnsTheBitsRed) {
  EXPECT_EQ(differences_under(Mutant::kNone), 0);
  for (Mutant fault : {Mutant::kRemotePeaksSwapped, Mutant::kStaleRemoteAnswer, Mutant::kRemoteRunDropped,
                       Mutant::kRemoteLeafTwice}) {
    EXPECT_GT(differences_under(fault), 0) << "fault " << static_cast<int>(fault) << " was not noticed";
  }
}

#endif

}  // namespace
}  // namespace kvasir::test
