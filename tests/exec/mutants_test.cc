// Every seeded fault must turn the bit tests red: proof that they can fail.
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/mutant.h"
#include "exec/scenarios.h"
#include "exec/tier_torture.h"

namespace kvasir::test {
namespace {

#if defined(KVASIR_MUTANTS)

struct Case {
  Mutant mutant;
  const char* name;
  const char* scenario;  // the one in which it must show
  // Rounding to int8 hides a change of the last bit most of the time; f32 weights hide nothing.
  ops::WeightType weights = ops::WeightType::kQ4_1;
  ops::KvType kv_type = ops::KvType::kBf16;
  const char* architecture = "llama";
};

// A part of an architecture, in f32.
constexpr Case of(const char* architecture, Mutant mutant, const char* name, const char* scenario) {
  return {mutant, name, scenario, ops::WeightType::kF32, ops::KvType::kBf16, architecture};
}

constexpr Case kCases[] = {
    {Mutant::kMergeOrder, "merge order", "among 32, sarathi", ops::WeightType::kF32},
    {Mutant::kPieceOrder, "order of pieces", "alone", ops::WeightType::kF32},
    {Mutant::kMergedEarly, "merged before the last piece", "alone"},
    {Mutant::kLeafOffByOne, "leaf off by one", "among 32, sarathi"},
    {Mutant::kOwnKvUnrounded, "own K and V unrounded", "among 32, sarathi"},
    {Mutant::kAttendBeforeWrite, "skipped wait", "among 32, sarathi"},
    {Mutant::kWrongPosition, "wrong position", "among 32, sarathi"},
    {Mutant::kSwappedKvHeads, "swapped KV heads", "among 32, sarathi"},
    {Mutant::kStaleFrame, "stale frame", "preemption, sarathi"},
    {Mutant::kKTailDropped, "last K group dropped", "alone"},
    {Mutant::kBatchScale, "scale of the batch", "among 32, sarathi"},
    {Mutant::kHiddenOfBatch, "hidden row of the batch's first", "among 32, sarathi"},
    {Mutant::kScaleUnrounded, "scale unrounded", "among 32, sarathi"},
    {Mutant::kSamplerSeedByStep, "draws by step", "among 32, sarathi"},
    {Mutant::kPrefixWrongBlock, "wrong prefix block", "prefix reuse, sarathi", ops::WeightType::kF32},
    {Mutant::kPrefixPartialBlock, "partial block shared", "prefix reuse, chunks of 7"},
    {Mutant::kResumeSkipsToken, "resumption skips a token", "preemption, sarathi"},
    {Mutant::kSumOrderByChunk, "sum order by chunk", "chunks of 7", ops::WeightType::kF32},
    {Mutant::kKvScaleUnrounded, "KV scale unrounded", "among 32, sarathi", ops::WeightType::kQ4_1,
     ops::KvType::kQ8_0},
    {Mutant::kKvScaleShared, "KV scale shared", "among 32, sarathi", ops::WeightType::kQ4_1,
     ops::KvType::kQ8_0},
    {Mutant::kKScaleForV, "scale of K for V", "among 32, sarathi", ops::WeightType::kQ4_1,
     ops::KvType::kQ8_0},
    {Mutant::kOwnKvUnrounded, "own K and V unrounded, q8_0", "among 32, sarathi", ops::WeightType::kQ4_1,
     ops::KvType::kQ8_0},
    {Mutant::kBf16PairSwapped, "even element of a pair first", "alone", ops::WeightType::kBf16},
    {Mutant::kBf16RowsUnrounded, "rows not rounded to bf16", "alone", ops::WeightType::kBf16},
    {Mutant::kScaleOfNextGroup, "scales of the next group", "alone", ops::WeightType::kQ4K},
    {Mutant::kScaleOfNextGroup, "scales of the next group, per 16", "alone", ops::WeightType::kQ6K},
    {Mutant::kStagedWrongLayer, "staged planes of the next layer", "outgrown, sarathi"},
    // The sums of a softmax hide the order of keys but for their last bits.
    {Mutant::kStagedWrongBlock, "staged blocks change places", "outgrown, sarathi", ops::WeightType::kF32},
    of("gemma3", Mutant::kWindowOffByOne, "window off by one", "outgrown, random"),
    of("gemma3", Mutant::kRopeOfOtherLayers, "rope of the other layers", "prefix reuse, sarathi"),
    of("gemma3", Mutant::kNormAfterRope, "norm after RoPE", "ellm:ratio=0.5:again=0.5"),
    of("gemma3", Mutant::kPostNormSkipped, "norm behind left out", "preemption, sarathi"),
    of("gemma2", Mutant::kScoreUncapped, "scores of a lone row uncapped", "swap"),
    of("gemma2", Mutant::kLogitsUncapped, "logits of a lone row uncapped", "three threads"),
    of("opt", Mutant::kNormBiasMissing, "LayerNorm of a lone row without bias", "outgrown, sarathi"),
    of("opt", Mutant::kPositionOffset, "position without its offset", "blocks of 16"),
};

// What a scenario gives without the fault is what the reference gives: Bits asserts it.
TEST(Mutants, EachTurnsTheBitTestsRed) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    Workload work = make_workload(c.weights, c.architecture);
    // A fault in the draws needs draws; the others must show in the logits alone.
    const bool draws = c.mutant == Mutant::kSamplerSeedByStep;
    for (RigRequest& r : work.requests) r.sampling.temperature = draws ? 1.0f : 0.0f;
    bool found = false;
    for (Scenario scenario : scenarios()) {
      if (scenario.name != c.scenario) continue;
      found = true;
      scenario.options.check_integrity = false;
      scenario.options.kv_type = c.kv_type;
      // It reads what is given up.
      scenario.options.windows_free_memory = c.mutant != Mutant::kWindowOffByOne;
      const std::vector<RigOutput> expected = run_scenario(work, scenario);
      const ScopedMutant fault(c.mutant);
      EXPECT_GT(differences(expected, run_scenario(work, scenario)), 0) << "the fault was not noticed";
    }
    EXPECT_TRUE(found);
  }
}

TEST(Mutants, FaultsOfTheRulesOfLogitsShow) {
  Workload work = make_workload(ops::WeightType::kF32);
  add_rules(work);
  const std::pair<Mutant, const char*> cases[] = {{Mutant::kCountsKept, "among 32, sarathi"},
                                                  {Mutant::kOutputForgotten, "preemption, sarathi"},
                                                  {Mutant::kScoredOneLate, "among 32, sarathi"}};
  for (const auto& [mutant, name] : cases) {
    for (const Scenario& scenario : scenarios()) {
      if (scenario.name != name) continue;
      const std::vector<RigOutput> expected = run_scenario(work, scenario);
      const ScopedMutant fault(mutant);
      EXPECT_GT(differences(expected, run_scenario(work, scenario)), 0) << static_cast<int>(mutant);
    }
  }
}

struct TierCase {
  Mutant mutant;
  const char* name;
  const char* policy;
};

constexpr TierCase kTierCases[] = {
    {Mutant::kSkippedTransferWait, "skipped wait for a transfer", "sarathi"},
    {Mutant::kRingReusedEarly, "ring reused early", "sarathi"},
    {Mutant::kDeferredSampled, "deferred rows sample", "sarathi"},
    {Mutant::kTransferSourceFreedEarly, "source of a transfer freed early", "vllm-swap"},
    {Mutant::kSkippedTransferWait, "skipped wait for a transfer", "random"},
    {Mutant::kStagedWrongLayer, "staged planes of the next layer", "random"},
    {Mutant::kStagedWrongBlock, "staged blocks change places", "random"},
    {Mutant::kRingReusedEarly, "ring reused early", "random"},
    {Mutant::kDeferredSampled, "deferred rows sample", "random"},
    // It shows where a tail goes to the host, comes back, grows and goes again.
    {Mutant::kStaleCopy, "stale copy of a tail", "vllm-swap"},
    {Mutant::kTransferSourceFreedEarly, "source of a transfer freed early", "random"},
};

// Whether a torture over the fake link shows the fault. What chance has a policy and a link do differs from
// seed to seed: one of a few must.
bool shows(const TierTorture& torture, RigOptions options, Mutant mutant) {
  constexpr uint64_t kSeeds = 8;
  options.threads = 1;  // the link's faults must not race with attention
  options.link = RigLink::kFake;
  options.check_integrity = false;
  const uint64_t first = options.seed;
  for (options.seed = first; options.seed < first + kSeeds; ++options.seed) {
    EXPECT_EQ(torture.torture(options).wrong, 0u);
    const ScopedMutant fault(mutant);
    if (torture.torture(options).wrong > 0) return true;
  }
  return false;
}

// Faults of time show for certain where time is the test's: the fake link holds transfers back, and spoils
// what is not there yet.
TEST(Mutants, EachFaultOfTheTiersTurnsTheTortureRed) {
  const TierTorture torture(torture_gqa(), ops::WeightType::kF32, ops::KvType::kBf16, 24, 50);
  for (const TierCase& c : kTierCases) {
    SCOPED_TRACE(std::string(c.name) + ", " + c.policy);
    RigOptions options = torture.tiers(1);
    options.policy = c.policy;
    options.late_waits = 0.03;
    EXPECT_TRUE(shows(torture, options, c.mutant)) << "the fault was not noticed";
  }
}

// The same where layers are offloaded.
TEST(Mutants, EachFaultOfTheTiersTurnsTheTortureOfLayersRed) {
  const TierTorture torture(torture_gqa(), ops::WeightType::kF32, ops::KvType::kBf16, 24, 50);
  for (const auto& [mutant, name] :
       {std::pair{Mutant::kSkippedTransferWait, "skipped wait for a transfer"},
        {Mutant::kStagedWrongLayer, "staged planes of the next layer"},
        {Mutant::kStagedWrongBlock, "staged blocks change places"},
        {Mutant::kTransferSourceFreedEarly, "source of a transfer freed early"}}) {
    SCOPED_TRACE(name);
    RigOptions options = torture.layers(1);
    options.late_waits = 0.03;
    EXPECT_TRUE(shows(torture, options, mutant)) << "the fault was not noticed";
  }
}

// Gemma 3 has a window, two ropes, norms of Q and K, and norms behind attention and feed-forward.
TEST(Mutants, EachFaultOfAnArchitecturesPartsIsFound) {
  TinyLlamaShape shape = tiny_gqa();
  shape.architecture = "gemma3";
  shape.layers = 6;
  shape.rope_base = 1e6F;  // the local ropes keep 10000
  shape.window = 96;
  const auto file = tiny_model(shape, ops::WeightType::kF32);
  const std::vector<RigRequest> requests = {{random_tokens(1, 120), 3}};
  const auto expected = run_reference(*file, {}, requests);
  EXPECT_EQ(differences(expected, run(*file, {}, requests).outputs), 0);
  for (Mutant fault : {Mutant::kWindowOffByOne, Mutant::kRopeOfOtherLayers, Mutant::kNormAfterRope,
                       Mutant::kPostNormSkipped}) {
    const ScopedMutant active(fault);
    EXPECT_EQ(differences(expected, run(*file, {}, requests).outputs), 1) << static_cast<int>(fault);
  }
}

// OPT has learned positions, Ministral 3 queries that grow with theirs.
TEST(Mutants, EachFaultOfPositionsIsFound) {
  for (const auto& [architecture, fault] :
       {std::pair{"opt", Mutant::kPositionOffset}, {"mistral3", Mutant::kTemperatureOfOrigin}}) {
    SCOPED_TRACE(architecture);
    TinyLlamaShape shape = tiny_gqa();
    shape.architecture = architecture;
    const auto file = tiny_model(shape, ops::WeightType::kF32);
    const std::vector<RigRequest> requests = {{random_tokens(1, 120), 3}};
    const auto expected = run_reference(*file, {}, requests);
    EXPECT_EQ(differences(expected, run(*file, {}, requests).outputs), 0);
    const ScopedMutant active(fault);
    EXPECT_EQ(differences(expected, run(*file, {}, requests).outputs), 1);
  }
}

// Cohere 2 has attention and feed-forward side by side, Gemma 4 heads of two sizes and norms of V.
TEST(Mutants, EachFaultOfPartsWithoutAGpuIsFound) {
  for (const TinyLlamaShape& shape : tiny_without_gpu()) {
    SCOPED_TRACE(shape.architecture);
    const auto file = tiny_model(shape, ops::WeightType::kF32);
    const std::vector<RigRequest> requests = {{random_tokens(1, 120), 3}};
    const auto expected = run_reference(*file, {}, requests);
    EXPECT_EQ(differences(expected, run(*file, {}, requests).outputs), 0);
    std::vector<Mutant> faults = {Mutant::kParallelInSeries};
    if (shape.architecture == "gemma4") {
      faults = {Mutant::kValuesNotNormed, Mutant::kLayerUnscaled, Mutant::kNormAfterRope,
                Mutant::kSwappedKvHeads};
    }
    faults.insert(faults.end(), {Mutant::kWindowOffByOne, Mutant::kWrongPosition});
    for (const Mutant fault : faults) {
      const ScopedMutant active(fault);
      EXPECT_EQ(differences(expected, run(*file, {}, requests).outputs), 1) << static_cast<int>(fault);
    }
  }
}

// Of dots.llm1 with a bias to choose by, of Qwen 2 with a shared expert that has a weight.
TEST(Mutants, EachFaultOfExpertsIsFound) {
  for (TinyLlamaShape& shape : tiny_mixtures()) {
    SCOPED_TRACE(shape.architecture);
    const auto file = tiny_model(shape, ops::WeightType::kF32);
    const std::vector<RigRequest> requests = {{random_tokens(1, 120), 3}};
    const auto expected = run_reference(*file, {}, requests);
    EXPECT_EQ(differences(expected, run(*file, {}, requests).outputs), 0);
    std::vector<Mutant> faults = {Mutant::kExpertNeighbour, Mutant::kRouterRounded};
    // Llama 4 adds two experts without weights, which give the same in either order.
    if (shape.architecture != "llama4") faults.push_back(Mutant::kExpertSumOrder);
    if (shape.architecture == "dots1") faults.push_back(Mutant::kBiasWeighs);
    if (shape.architecture == "qwen2moe") faults.push_back(Mutant::kSharedUnweighed);
    if (shape.architecture == "llama4") {
      faults.insert(faults.end(), {Mutant::kOutputsWeighed, Mutant::kTemperatureOfOrigin});
    }
    if (shape.architecture == "gpt-oss") {
      faults.insert(faults.end(), {Mutant::kSinkLeftOut, Mutant::kExpertBiasShared, Mutant::kWindowOffByOne});
    }
    for (const Mutant fault : faults) {
      const ScopedMutant active(fault);
      EXPECT_EQ(differences(expected, run(*file, {}, requests).outputs), 1) << static_cast<int>(fault);
    }
  }
}

// Without a rank of queries and with one.
TEST(Mutants, EachFaultOfLatentAttentionIsFound) {
  for (TinyLlamaShape& shape : tiny_latents()) {
    SCOPED_TRACE(shape.q_rank);
    const auto file = tiny_model(shape, ops::WeightType::kF32);
    const std::vector<RigRequest> requests = {{random_tokens(1, 120), 3}};
    const auto expected = run_reference(*file, {}, requests);
    EXPECT_EQ(differences(expected, run(*file, {}, requests).outputs), 0);
    for (const Mutant fault : {Mutant::kAbsorbedByOtherHead, Mutant::kRopePartMissing, Mutant::kLeafOffByOne,
                               Mutant::kSumOrderByChunk, Mutant::kWrongPosition}) {
      const ScopedMutant active(fault);
      EXPECT_EQ(differences(expected, run(*file, {}, requests).outputs), 1) << static_cast<int>(fault);
    }
  }
}

TEST(Mutants, EachFaultOfRecurrentLayersIsFound) {
  for (const TinyLlamaShape& shape : tiny_hybrids()) {
    SCOPED_TRACE(shape.architecture);
    const auto file = tiny_model(shape, ops::WeightType::kF32);
    const std::vector<RigRequest> requests = {{random_tokens(1, 120), 3}};
    const auto expected = run_reference(*file, {}, requests);
    RigOptions options;
    options.limits.long_prefill_token_threshold = 29;
    EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 0);
    std::vector<Mutant> faults = {Mutant::kStateOfOtherBlock, Mutant::kConvolutionForgets,
                                  Mutant::kDecayLeftOut, Mutant::kOutputGateLeftOut, Mutant::kWrongPosition};
    if (shape.shared_ffn > 0) faults.push_back(Mutant::kSharedUnweighed);
    for (const Mutant fault : faults) {
      const ScopedMutant active(fault);
      EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 1) << static_cast<int>(fault);
    }
  }
}

// Rows that leave a step may have advanced the states already.
TEST(Mutants, AStateThatRowsHaveLeftHalfwayIsFound) {
  TinyLlamaShape shape = tiny_hybrids()[0];
  shape.context = 640;
  const TierTorture torture(shape, ops::WeightType::kF32, ops::KvType::kBf16, 16, 60);
  RigOptions options = torture.tiers(1);
  options.link = RigLink::kFake;
  options.late_waits = 0.3;
  const TierTortureOutcome right = torture.torture(options);
  EXPECT_EQ(right.wrong, 0u);
  EXPECT_GT(right.run.deferred_rows, 0u);
  const ScopedMutant active(Mutant::kStateGoneOnWith);
  EXPECT_GT(torture.torture(options).wrong, 0u);
}

struct FormCase {
  Mutant mutant;
  const char* name;
  double late_waits = 0;
  const char* architecture = "llama";
};

constexpr FormCase kFormCases[] = {
    {Mutant::kDiskPlacesMixed, "pieces on the disk change places"},
    {Mutant::kProjectedAtOrigin, "projected at the first positions"},
    {Mutant::kDeferredFill, "deferred rows fill frames", 0.1},
    {Mutant::kXWrongPosition, "X at the place in its block"},
    {Mutant::kXOtherRounding, "X rounded otherwise"},
    {Mutant::kXBiasMissing, "X without a bias"},
    {Mutant::kXOtherRounding, "X behind a LayerNorm rounded otherwise", 0, "opt"},
    {Mutant::kXBiasMissing, "X behind a LayerNorm without a bias", 0, "opt"},
    {Mutant::kXWrongPosition, "X at the place in its block, two ropes", 0, "gemma3"},
    {Mutant::kNormAfterRope, "K of X normalised after RoPE", 0, "gemma3"},
    {Mutant::kWindowOffByOne, "window off by one over X", 0, "gemma3"},
};

TEST(Mutants, EachFaultOfTheFormsTurnsTheTortureRed) {
  std::map<std::string, std::unique_ptr<TierTorture>> tortures;
  for (const FormCase& c : kFormCases) {
    SCOPED_TRACE(c.name);
    std::unique_ptr<TierTorture>& kept = tortures[c.architecture];
    if (kept == nullptr) {
      const std::string name = c.architecture;
      const TinyLlamaShape shape = name == "llama" ? torture_bias() : torture_architecture(name);
      kept = std::make_unique<TierTorture>(shape, ops::WeightType::kF32, ops::KvType::kBf16, 16, 50);
    }
    const TierTorture& torture = *kept;
    RigOptions options = torture.forms(2);
    options.late_waits = c.late_waits;
    options.windows_free_memory = c.mutant != Mutant::kWindowOffByOne;
    EXPECT_TRUE(shows(torture, options, c.mutant)) << "the fault was not noticed";
  }
}

#else

TEST(Mutants, AreNotInThisBuild) {
  GTEST_SKIP() << "built without KVASIR_MUTANTS";
}

#endif

}  // namespace
}  // namespace kvasir::test
