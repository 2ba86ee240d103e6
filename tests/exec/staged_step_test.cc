// Steps whose K and V are staged: the same bits as from frames, for any place of the history, and only those
// slices leave a step whose transfers do not end in time.
#include <gtest/gtest.h>

#include "base/mutant.h"
#include "exec/staged_rig.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kLayers = 3;  // of the tiny model

std::vector<uint32_t> blocks(uint32_t begin, uint32_t end, uint32_t every = 1) {
  std::vector<uint32_t> out;
  for (uint32_t b = begin; b < end; b += every) out.push_back(b);
  return out;
}

TransferId nth(const StagedRig& rig, uint64_t n) {
  return TransferId{raw(rig.first_transfer()) + n};
}

// Layers per group, layers in the ring, threads.
class StagedStep : public testing::TestWithParam<std::tuple<uint32_t, uint32_t, int>> {
 protected:
  static StagedRig::Options options() {
    const auto [group, ring, threads] = GetParam();
    return {group, ring, threads, true};
  }
};

TEST_P(StagedStep, AHistoryThatLiesOnTheHostGivesTheSameBits) {
  for (const std::vector<uint32_t>& on_host : {blocks(0, 17), blocks(0, 17, 2), blocks(16, 17)}) {
    StagedRig rig(options());
    rig.run_history(0, 272);
    rig.move_to_host(0, on_host);
    const StepResult chunk = rig.run({{0, {272, 301}, on_host}});
    const StepResult decode = rig.run({{0, {301, 302}, on_host}});
    EXPECT_TRUE(chunk.deferred.empty() && decode.deferred.empty());
    EXPECT_EQ(chunk.sampled.size() + decode.sampled.size(), 2u);
    EXPECT_EQ(rig.logits().size(), 30u);
    EXPECT_EQ(differences(rig.logits()), 0) << on_host.size() << " blocks on the host";
    EXPECT_EQ(rig.link().stats().transfers, 2 * kLayers);
    EXPECT_EQ(rig.link().queued(), 0u);
  }
}

TEST_P(StagedStep, RowsThatAreWrittenThroughToTheHostAreThereForLaterSteps) {
  StagedRig rig(options());
  rig.run({{0, {0, 40}, {}, true}});
  rig.run({{0, {40, 100}, blocks(0, 2), true}});  // begins inside a block
  for (uint32_t p = 100; p < 116; ++p) rig.run({{0, {p, p + 1}, blocks(0, p / 16), true}});
  EXPECT_EQ(rig.logits().size(), 116u);
  EXPECT_EQ(differences(rig.logits()), 0);
  for (uint32_t b = 0; b < 8; ++b) EXPECT_TRUE(rig.untouched(0, b, 0)) << b;
}

TEST_P(StagedStep, SequencesInFramesBesideStagedOnes) {
  StagedRig rig(options());
  for (uint32_t s : {0u, 1u, 2u}) rig.run_history(s, 64 + 16 * s);
  rig.move_to_host(1, blocks(0, 5));
  rig.move_to_host(2, blocks(2, 6));
  rig.run({{1, {80, 83}, blocks(0, 5)}, {0, {64, 90}}, {2, {96, 97}, blocks(2, 6), true}});
  EXPECT_EQ(rig.logits().size(), 30u);
  EXPECT_EQ(differences(rig.logits()), 0);
}

INSTANTIATE_TEST_SUITE_P(All, StagedStep,
                         testing::Combine(testing::Values(1, 2, 3), testing::Values(1, 2),
                                          testing::Values(1, 2)),
                         [](const auto& instance) {
                           return fmt::format("group{}_ring{}_threads{}", std::get<0>(instance.param),
                                              std::get<1>(instance.param), std::get<2>(instance.param));
                         });

// ---------------------------------------------------------------- what does not come in time

// Three sequences that decode: 0 with its history in frames, 1 and 2 with theirs on the host.
struct ThreeDecodes {
  explicit ThreeDecodes(const StagedRig::Options& options) : rig(options) {
    for (uint32_t s : {0u, 1u, 2u}) rig.run_history(s, 48);
    for (uint32_t s : {1u, 2u}) rig.move_to_host(s, blocks(0, 3));
  }
  Step step() {
    return rig.make_step({{0, {48, 49}}, {1, {48, 49}, blocks(0, 3)}, {2, {48, 49}, blocks(0, 3)}});
  }
  StagedRig rig;
};

TEST(DeferredSlice, OnlyTheSliceOfAFailedTransferLeavesTheStep) {
  for (int threads : {1, 2}) {
    for (bool tap_all_rows : {false, true}) {
      for (uint32_t layer = 0; layer < kLayers; ++layer) {
        SCOPED_TRACE(layer);
        ThreeDecodes three({1, 1, threads, tap_all_rows});
        StagedRig& rig = three.rig;
        Step step = three.step();
        rig.link().fail(nth(rig, layer));  // of sequence 1
        const StepResult result = rig.run(std::move(step));
        EXPECT_TRUE(result.status.ok());
        EXPECT_EQ(result.deferred, std::vector<SeqId>{SeqId{1}});
        ASSERT_EQ(result.sampled.size(), 2u);
        EXPECT_EQ(result.sampled[0].seq, SeqId{0});
        EXPECT_EQ(result.sampled[1].seq, SeqId{2});
        EXPECT_EQ(rig.logits().size(), 2u);
        EXPECT_FALSE(rig.logits().contains({1, 48}));
        EXPECT_EQ(differences(rig.logits()), 0);
        for (uint32_t l = 0; l < kLayers; ++l) EXPECT_EQ(rig.untouched(1, 3, l), l >= layer) << l;
        EXPECT_EQ(rig.link().stats().transfers + rig.link().queued(), 2 * kLayers);
        EXPECT_EQ(rig.link().stats().failed, 1u);

        // It comes again later, and nothing is left of the first try.
        rig.link().complete_all();
        rig.run({{1, {48, 49}, blocks(0, 3)}});
        EXPECT_EQ(rig.logits().size(), 3u);
        EXPECT_EQ(differences(rig.logits()), 0);
      }
    }
  }
}

TEST(DeferredSlice, LeavesWhenTheStepHasStalledForLongEnough) {
  ThreeDecodes three({1, 1, 2, true});
  StagedRig& rig = three.rig;
  Step step = three.step();
  step.max_stall = 80;
  rig.link().stall(true);
  const Nanos before = rig.clock().now();
  const StepResult result = rig.run(std::move(step));
  EXPECT_EQ(result.deferred, (std::vector<SeqId>{SeqId{1}, SeqId{2}}));
  EXPECT_EQ(result.stalled, 80);
  EXPECT_EQ(rig.clock().now() - before, 80);
  ASSERT_EQ(result.sampled.size(), 1u);
  EXPECT_EQ(rig.logits().size(), 1u);
  EXPECT_EQ(differences(rig.logits()), 0);
  EXPECT_EQ(rig.link().queued(), 2 * kLayers) << "not all was fired";
}

TEST(DeferredSlice, AStepThatAllHaveLeftFiresWhatIsLeft) {
  for (int threads : {1, 2}) {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      ThreeDecodes three({2, 1, threads, true});
      StagedRig& rig = three.rig;
      Step step = rig.make_step({{1, {48, 70}, blocks(0, 3), true}});
      rig.link().fail(nth(rig, 2 * layer));
      const StepResult result = rig.run(std::move(step));
      EXPECT_EQ(result.deferred, std::vector<SeqId>{SeqId{1}});
      EXPECT_TRUE(result.sampled.empty());
      EXPECT_TRUE(rig.logits().empty());
      EXPECT_EQ(rig.link().stats().transfers + rig.link().queued(), 2 * kLayers);
      // The others run on, in the step after it.
      rig.link().complete_all();
      rig.run({{2, {48, 49}, blocks(0, 3)}, {0, {48, 49}}});
      EXPECT_EQ(differences(rig.logits()), 0);
    }
  }
}

TEST(DeferredSlice, ManyRowsOfALongHistoryLeaveWithoutATrace) {
  StagedRig rig({1, 2, 2, true});
  for (uint32_t s : {0u, 1u}) rig.run_history(s, 288);
  rig.move_to_host(1, blocks(0, 18));
  Step step = rig.make_step({{1, {288, 320}, blocks(0, 18)}, {0, {288, 320}}});
  rig.link().fail(nth(rig, 1));
  EXPECT_EQ(rig.run(std::move(step)).deferred, std::vector<SeqId>{SeqId{1}});
  EXPECT_EQ(rig.logits().size(), 32u);
  EXPECT_EQ(differences(rig.logits()), 0);
  EXPECT_FALSE(rig.untouched(1, 18, 0));
  EXPECT_TRUE(rig.untouched(1, 18, 1));
}

// ---------------------------------------------------------------- seeded faults

#if defined(KVASIR_MUTANTS)

// One thread: these faults are races, and are to be seen in what comes out.
int differences_of_staged(Mutant fault) {
  StagedRig rig({1, fault == Mutant::kStagedWrongLayer ? 2u : 1u, 1, true});
  rig.run_history(0, 48);
  rig.move_to_host(0, blocks(0, 3));
  const ScopedMutant active(fault);
  rig.run({{0, {48, 52}, blocks(0, 3)}});
  EXPECT_EQ(rig.logits().size(), 4u);
  return differences(rig.logits());
}

TEST(StagedMutants, EachTurnsTheBitsRed) {
  (void)plain_logits();
  EXPECT_EQ(differences_of_staged(Mutant::kNone), 0);
  for (Mutant fault : {Mutant::kSkippedTransferWait, Mutant::kStagedWrongLayer, Mutant::kRingReusedEarly}) {
    EXPECT_GT(differences_of_staged(fault), 0) << "fault " << static_cast<int>(fault) << " was not noticed";
  }
}

TEST(StagedMutants, ADeferredSliceThatSamplesIsNoticed) {
  (void)plain_logits();
  for (bool tap_all_rows : {false, true}) {
    ThreeDecodes three({1, 1, 1, tap_all_rows});
    Step step = three.step();
    three.rig.link().fail(nth(three.rig, 1));
    const ScopedMutant active(Mutant::kDeferredSampled);
    const StepResult result = three.rig.run(std::move(step));
    EXPECT_EQ(result.deferred, std::vector<SeqId>{SeqId{1}});
    EXPECT_EQ(result.sampled.size(), 3u);
    EXPECT_EQ(differences(three.rig.logits()), 1);
  }
}

#endif

}  // namespace
}  // namespace kvasir::test
