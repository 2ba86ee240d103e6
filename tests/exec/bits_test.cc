// The promise: a request's logits and tokens do not depend on batch, policy, chunks, preemption, tiers,
// prefix reuse, threads, layer groups, block size or instruction set; and they are those of the rules.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "exec/scenarios.h"
#include "model/files/convert.h"
#include "model/tokenizers/tokenizer_data.h"
#include "ops/weight_traits.h"
#include "support/block_weights.h"
#include "support/levels.h"
#include "support/temp_file.h"
#include "support/tiny_folder.h"

namespace kvasir::test {
namespace {

using ops::IsaClass;
using ops::KvType;
using ops::WeightType;

// Which kinds of arithmetic scenarios run in.
struct BitsArithmetic {
  WeightType type;
  KvType kv;
  size_t part;  // which third of the scenarios runs at the default level; 3 is all of them
  // With which of kScenarioArchitectures at the default level. The reference of each takes as long as some
  // scenarios, and in int8 longer.
  std::vector<std::string> architectures;
};
// Every scenario runs in f32, where no rounding hides the change of a last bit, and in one other kind of
// arithmetic; at the full level in all.
const BitsArithmetic kBitsArithmetics[] = {
    {WeightType::kF32, KvType::kBf16, 3, {"gemma3", "opt", "gemma2", "llama"}},
    {WeightType::kQ4_1, KvType::kBf16, 0, {"llama"}},
    {WeightType::kF32, KvType::kQ8_0, 1, {"gemma2", "gemma3"}},
    {WeightType::kBf16, KvType::kBf16, 2, {"gemma2", "opt"}},
    {WeightType::kQ4K, KvType::kBf16, 1, {"llama"}}};

// By the place of its arithmetic, then by architecture.
using ScenarioRuns = std::array<std::map<std::string, std::vector<Scenario>>, std::size(kBitsArithmetics)>;

// At the full level all combinations. Otherwise each run has the architecture that its kind of scenario has
// met least so far, of those that its arithmetic has.
ScenarioRuns scenario_runs() {
  ScenarioRuns out;
  std::map<std::string, std::map<std::string, size_t>> met;  // by kind and architecture
  const std::vector<Scenario> all = scenarios();
  for (size_t a = 0; a < std::size(kBitsArithmetics); ++a) {
    const BitsArithmetic& arithmetic = kBitsArithmetics[a];
    for (size_t i = 0; i < all.size(); ++i) {
      if (at_full_level()) {
        for (const char* name : kScenarioArchitectures) out[a][name].push_back(all[i]);
      } else if (arithmetic.part == 3 || i % 3 == arithmetic.part) {
        std::map<std::string, size_t>& times = met[all[i].kind];
        const std::string& least = *std::min_element(
            arithmetic.architectures.begin(), arithmetic.architectures.end(),
            [&](const std::string& x, const std::string& y) { return times[x] < times[y]; });
        ++times[least];
        out[a][least].push_back(all[i]);
      }
    }
  }
  return out;
}

class Scenarios : public testing::TestWithParam<std::tuple<size_t, std::string>> {};

TEST_P(Scenarios, GiveWhatTheReferenceGives) {
  const auto& [number, architecture] = GetParam();
  const BitsArithmetic& arithmetic = kBitsArithmetics[number];
  const std::vector<Scenario> mine = scenario_runs()[number][architecture];
  if (mine.empty()) GTEST_SKIP() << "only at the full level";
  const Workload work = make_workload(arithmetic.type, architecture);
  RigOptions options;
  options.kv_type = arithmetic.kv;
  const std::vector<RigOutput> expected = run_reference(*work.file, options, work.requests);
  for (Scenario scenario : mine) {
    scenario.options.kv_type = arithmetic.kv;
    SCOPED_TRACE(scenario.name);
    EXPECT_EQ(differences(expected, run_scenario(work, scenario)), 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Bits, Scenarios,
    testing::Combine(testing::Range(size_t{0}, std::size(kBitsArithmetics)),
                     testing::ValuesIn(std::vector<std::string>(std::begin(kScenarioArchitectures),
                                                                std::end(kScenarioArchitectures)))),
    [](const auto& c) {
      const BitsArithmetic& a = kBitsArithmetics[std::get<0>(c.param)];
      return std::string(ops::weight_type_name(a.type)) + "_" + ops::kv_type_name(a.kv) + "_" +
             std::get<1>(c.param);
    });

// What of an architecture scenarios are to meet.
std::set<std::string> parts_of(const ModelFile& file) {
  const ModelSpec& spec = file.spec();
  std::set<std::string> out;
  if (spec.has_windows()) out.insert("window");
  if (spec.qk_norm != QkNorm::kNone) out.insert("norms of Q and K");
  if (spec.norm == NormKind::kLayer) out.insert("LayerNorm");
  if (file.weights().layers[0].ffn_post_norm.present()) out.insert("norms behind");
  if (spec.score_cap != 0 && spec.logit_cap != 0) out.insert("caps");
  if (file.read_tokenizer()->model == TokenizerModel::kPieces) out.insert("pieces");
  if (out.empty()) out.insert("llama");
  return out;
}

TEST(Bits, EachKindOfScenarioMeetsEachPartOfArchitectures) {
  std::map<std::string, std::set<std::string>> met;  // by kind
  for (const auto& runs : scenario_runs()) {
    for (const auto& [architecture, mine] : runs) {
      const std::set<std::string> parts = parts_of(*make_workload(WeightType::kF32, architecture).file);
      for (const Scenario& scenario : mine) met[scenario.kind].insert(parts.begin(), parts.end());
    }
  }
  EXPECT_EQ(met.size(), 9U);
  for (const auto& [kind, parts] : met) {
    EXPECT_THAT(parts, testing::ElementsAre("LayerNorm", "caps", "llama", "norms behind", "norms of Q and K",
                                            "pieces", "window"))
        << kind;
  }
}

TEST(Bits, EveryWeightTypeMatchesTheReference) {
  for (const ops::WeightTraits& t : ops::kWeightTraits) {
    const WeightType type = t.type;
    if (is_of_folders(type)) continue;
    const bool large = t.block_values == 256;
    for (KvType kv : ops::kKvTypes) {
      if (large && kv != KvType::kBf16) continue;  // the cache's type does not meet the weights'
      for (ops::ActivationMode act : {ops::ActivationMode::kF32, ops::ActivationMode::kAuto}) {
        SCOPED_TRACE(std::string(ops::weight_type_name(type)) + " " + ops::kv_type_name(kv) + " " +
                     ops::activation_mode_name(act));
        const auto file = tiny_model(large ? tiny_256() : tiny_mha(), type);
        RigOptions options;
        options.kv_type = kv;
        options.activation = act;
        options.limits.long_prefill_token_threshold = 29;
        const std::vector<RigRequest> requests = {{random_tokens(1, 270), 4}, {random_tokens(2, 40), 12}};
        EXPECT_EQ(differences(run_reference(*file, options, requests), run(*file, options, requests).outputs),
                  0);
      }
    }
  }
}

// Each part of each architecture, with histories that cross leaves and windows: chunks of any length, few
// threads or more, plans at random over two tiers and both forms, every instruction set.
TEST(Bits, EveryArchitectureMatchesTheReference) {
  const std::vector<RigRequest> requests = {{random_tokens(1, 370), 4}, {random_tokens(2, 40), 8}};
  for (const TinyLlamaShape& shape : all_tiny_architectures()) {
    SCOPED_TRACE(shape.architecture);
    const auto file = tiny_model(shape, WeightType::kQ8_0);
    RigOptions options;
    options.limits.long_prefill_token_threshold = 29;
    const auto expected = run_reference(*file, options, requests);
    EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 0) << "chunks of 29";
    options.limits.long_prefill_token_threshold = 200;
    for (IsaClass isa : {IsaClass::kPortable, IsaClass::kAvx2}) {
      if (!ops::is_supported(isa)) continue;
      options.isa = isa;
      EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 0) << ops::isa_name(isa);
    }
    options.isa = ops::detect_isa();
    options.threads = 3;
    options.policy = "random-forms";
    options.forms = true;
    options.layers_per_group = 1;
    options.blocks = 9;
    options.host_blocks = 40;
    options.stage_blocks = 40;
    EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 0) << "random plans, X";
  }
}

// Latent attention with every type of weights and of the cache, over histories of several leaves.
TEST(Bits, LatentAttentionMatchesTheReference) {
  const std::vector<RigRequest> requests = {{random_tokens(1, 530), 5}, {random_tokens(2, 40), 12}};
  for (const TinyLlamaShape& shape : tiny_latents()) {
    for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kQ4_0}) {
      const auto file = tiny_model(shape, type);
      for (const ops::KvType kv : ops::kKvTypes) {
        SCOPED_TRACE(
            fmt::format("{} {} {}", shape.q_rank, ops::weight_type_name(type), ops::kv_type_name(kv)));
        RigOptions options;
        options.kv_type = kv;
        options.threads = 2;
        options.limits.long_prefill_token_threshold = 70;
        const auto expected = run_reference(*file, options, requests);
        EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 0);
        options.isa = IsaClass::kPortable;
        EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 0) << "portable";
      }
    }
  }
}

// Every kind of scenario, and at the full level each of them, with the rows of latent attention: one plane,
// and no X. The model has experts.
TEST(Bits, LatentAttentionInScenarios) {
  const Workload work = make_workload(WeightType::kF32, "deepseek2");
  ASSERT_TRUE(work.file->spec().is_latent());
  const std::vector<RigOutput> expected = run_reference(*work.file, {}, work.requests);
  std::map<std::string, size_t> met;  // by kind
  for (const Scenario& scenario : scenarios()) {
    if (met[scenario.kind]++ % 3 != 0 && !at_full_level()) continue;
    SCOPED_TRACE(scenario.name);
    EXPECT_EQ(differences(expected, run_scenario(work, scenario)), 0);
  }
  EXPECT_EQ(met.size(), 9U);
}

// Recurrent layers with every type of weights, over many blocks, in chunks of several lengths, and by every
// instruction set. Small blocks cut a state into more parts.
TEST(Bits, RecurrentLayersMatchTheReference) {
  const std::vector<RigRequest> requests = {{random_tokens(1, 330), 5}, {random_tokens(2, 40), 30}};
  for (const TinyLlamaShape& shape : tiny_hybrids()) {
    for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kQ4_0}) {
      const auto file = tiny_model(shape, type);
      SCOPED_TRACE(shape.architecture + " " + ops::weight_type_name(type));
      const auto expected = run_reference(*file, {}, requests);
      for (const uint32_t block : {16U, 64U, 256U}) {
        for (const uint32_t chunk : {1U, 70U, 200U}) {
          if (chunk == 1 && block != 64 && !at_full_level()) continue;
          RigOptions options;
          options.block_tokens = block;
          options.limits.long_prefill_token_threshold = chunk;
          options.prefix_caching = true;
          EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 0) << block << " " << chunk;
          options.isa = chunk == 70 ? IsaClass::kPortable : IsaClass::kAvx2;
          if (!ops::is_supported(options.isa)) continue;
          EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 0) << block << " " << chunk;
        }
      }
    }
  }
}

// Every kind of scenario, and at the full level each of them, with states.
TEST(Bits, RecurrentLayersInScenarios) {
  const Workload work = make_workload(WeightType::kF32, "qwen3next");
  ASSERT_TRUE(work.file->spec().is_recurrent());
  const std::vector<RigOutput> expected = run_reference(*work.file, {}, work.requests);
  std::map<std::string, size_t> met;  // by kind
  for (Scenario scenario : scenarios()) {
    if (met[scenario.kind]++ % 3 != 0 && !at_full_level()) continue;
    SCOPED_TRACE(scenario.name);
    // The longest request needs 56 cells of K and V, and four in each of 16 groups of states: 120 of the 136
    // of eight blocks.
    if (scenario.kind == "preemption") scenario.options.blocks = 8;
    EXPECT_EQ(differences(expected, run_scenario(work, scenario)), 0);
  }
  EXPECT_EQ(met.size(), 9U);
}

// A folder of Hugging Face is the same model as its GGUF file, and as the one that it is converted to, to
// the bit.
TEST(Bits, AFolderGivesWhatItsGgufFileGives) {
  const std::vector<RigRequest> requests = {{random_tokens(1, 140), 4}, {random_tokens(2, 40), 8}};
  for (const TinyLlamaShape& shape : all_tiny_architectures()) {
    for (const WeightType type : {WeightType::kF32, WeightType::kBf16}) {
      SCOPED_TRACE(shape.architecture + " " + ops::weight_type_name(type));
      const TempFolder place;
      make_tiny_folder(shape, type, 11).write(place.path(), /*files=*/3);
      const auto folder = ModelFile::open(place.path());
      ASSERT_TRUE(folder.ok()) << folder.status().message();
      EXPECT_THAT((*folder)->warnings(), testing::IsEmpty());
      const auto expected = run(*tiny_model(shape, type), {}, requests).outputs;
      EXPECT_EQ(differences(expected, run(**folder, {}, requests).outputs), 0);
      const std::string path = place.path() + "/out.gguf";
      const char* recipe = type == WeightType::kF32 ? "f32" : "bf16";
      ASSERT_TRUE(convert_model(**folder, *find_recipe(recipe), path, 1).ok());
      const auto converted = ModelFile::open(path);
      ASSERT_TRUE(converted.ok()) << converted.status().message();
      EXPECT_EQ(differences(expected, run(**converted, {}, requests).outputs), 0) << "converted";
    }
  }
}

// Llama 4's files do not say how long chunks are; these cut tiles, blocks and leaves.
TEST(Bits, ChunksOfAttentionMatchTheReference) {
  const std::vector<RigRequest> requests = {{random_tokens(1, 600), 4}, {random_tokens(2, 40), 8}};
  TinyLlamaShape shape;
  for (const TinyLlamaShape& mixture : tiny_mixtures()) {
    if (mixture.architecture == "llama4") shape = mixture;
  }
  GgufBuilder builder = tiny_llama_builder(shape, WeightType::kF32, 11);
  builder.set_i32s("kvasir.layer_windows", {96, 256, 100, 0});
  const auto file = ModelFile::from_bytes(builder.build(), "tiny.gguf");
  ASSERT_TRUE(file.ok()) << file.status().message();
  RigOptions options;
  const auto expected = run_reference(**file, options, requests);
  for (const uint32_t chunk : {29U, 200U, 1000U}) {
    for (const int threads : {1, 3}) {
      options.limits.long_prefill_token_threshold = chunk;
      options.threads = threads;
      EXPECT_EQ(differences(expected, run(**file, options, requests).outputs), 0) << chunk;
    }
  }
#if defined(KVASIR_MUTANTS)
  const ScopedMutant active(Mutant::kWindowOffByOne);
  EXPECT_GT(differences(expected, run(**file, options, requests).outputs), 0);
#endif
}

// gpt-oss as it is published: experts in MXFP4, all else in BF16.
TEST(Bits, AFolderWithExpertsInMxfp4GivesWhatItsGgufFileGives) {
  TinyLlamaShape shape;
  for (const TinyLlamaShape& mixture : tiny_mixtures()) {
    if (mixture.architecture == "gpt-oss") shape = mixture;
  }
  shape.other_types = {{"_exps", WeightType::kMxfp4}};
  const std::vector<RigRequest> requests = {{random_tokens(1, 140), 4}, {random_tokens(2, 40), 8}};
  const auto file = tiny_model(shape, WeightType::kBf16);
  const auto expected = run_reference(*file, {}, requests);
  EXPECT_EQ(differences(expected, run(*file, {}, requests).outputs), 0);
  const TempFolder place;
  make_tiny_folder(shape, WeightType::kBf16, 11).write(place.path(), /*files=*/2);
  const auto folder = ModelFile::open(place.path());
  ASSERT_TRUE(folder.ok()) << folder.status().message();
  EXPECT_THAT((*folder)->warnings(), testing::IsEmpty());
  EXPECT_EQ(differences(expected, run(**folder, {}, requests).outputs), 0);
  const std::string path = place.path() + "/out.gguf";
  const Status refused = convert_model(**folder, *find_recipe("bf16"), path, 1);
  EXPECT_THAT(refused.message(), testing::HasSubstr("quantised already, as MXFP4"));
  // The experts stay as they are, the rest becomes Q8_0.
  const Status written = convert_model(**folder, *find_recipe("mxfp4_moe"), path, 1);
  ASSERT_TRUE(written.ok()) << written.message();
  const auto converted = ModelFile::open(path);
  ASSERT_TRUE(converted.ok()) << converted.status().message();
  const GgufTensor* experts = (*converted)->gguf().find_tensor("blk.1.ffn_up_exps.weight");
  const GgufTensor* before = file->gguf().find_tensor("blk.1.ffn_up_exps.weight");
  EXPECT_TRUE(std::ranges::equal(experts->data, before->data));
  const auto at_load = ModelFile::open(place.path());
  ASSERT_TRUE((*at_load)->quantize_as(*find_recipe("mxfp4_moe")).ok());
  EXPECT_EQ(differences(run(**converted, {}, requests).outputs, run(**at_load, {}, requests).outputs), 0);
}

TEST(Bits, OneProjectionMayTakeRowsOfSeveralTypes) {
  TinyLlamaShape shape = tiny_gqa();
  shape.other_types = {{"attn_v", WeightType::kBf16},
                       {"attn_k", WeightType::kF16},
                       {"ffn_up", WeightType::kBf16},
                       {"ffn_down", WeightType::kBf16}};
  const auto file = tiny_model(shape, WeightType::kQ8_0);
  RigOptions options;
  options.limits.long_prefill_token_threshold = 29;
  const std::vector<RigRequest> requests = {{random_tokens(1, 270), 4}, {random_tokens(2, 40), 12}};
  const auto expected = run_reference(*file, options, requests);
  EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 0);
  options.activation = ops::ActivationMode::kF32;
  EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 2) << "the mode has no effect";
}

// As in files of Q4_K_M: most matrices Q4_K, some Q6_K, and what has rows of no 256 Q5_0 and Q8_0.
TEST(Bits, MixturesOfTypesMatchTheReference) {
  TinyLlamaShape shape = tiny_256();
  shape.tied = false;
  shape.other_types = {{"attn_v", WeightType::kQ6K},
                       {"ffn_down", WeightType::kQ6K},
                       {"output.weight", WeightType::kQ6K},
                       {"blk.1.ffn_gate", WeightType::kQ5K}};
  const auto file = tiny_model(shape, WeightType::kQ4K);
  RigOptions options;
  options.limits.long_prefill_token_threshold = 29;
  const std::vector<RigRequest> requests = {{random_tokens(1, 270), 4}, {random_tokens(2, 40), 12}};
  EXPECT_EQ(differences(run_reference(*file, options, requests), run(*file, options, requests).outputs), 0);
}

TEST(Bits, InstructionSetsAgree) {
  for (WeightType type : {WeightType::kQ4_1, WeightType::kQ8_0, WeightType::kBf16, WeightType::kF32,
                          WeightType::kQ4K, WeightType::kQ6K, WeightType::kQ5_0, WeightType::kIq4Xs}) {
    const auto file = tiny_model(ops::block_values(type) == 256 ? tiny_256() : tiny_gqa(), type);
    const std::vector<RigRequest> requests = {{random_tokens(3, 600), 6}, {random_tokens(4, 33), 20}};
    for (KvType kv : ops::kKvTypes) {
      RigOptions options;
      options.kv_type = kv;
      options.isa = IsaClass::kPortable;
      const auto expected = run(*file, options, requests).outputs;
      for (IsaClass isa : {IsaClass::kAvx2, IsaClass::kAvx512}) {
        if (!ops::is_supported(isa)) continue;
        options.isa = isa;
        EXPECT_EQ(differences(expected, run(*file, options, requests).outputs), 0) << ops::isa_name(isa);
      }
    }
  }
}

TEST(Bits, SampledTokensDoNotDependOnTheBatch) {
  const auto file = tiny_model(tiny_gqa(), WeightType::kQ8_0);
  std::vector<RigRequest> requests;
  std::vector<RigOutput> alone;
  for (uint64_t i = 0; i < 12; ++i) {
    SamplingParams sampling;
    sampling.temperature = 0.5f + 0.1f * static_cast<float>(i);
    sampling.top_p = i % 3 == 0 ? 0.9f : 1.0f;
    sampling.top_k = i % 4 == 0 ? 20 : 0;
    sampling.seed = 100 + i;
    requests.push_back({random_tokens(i, 10 + i), 20, sampling, i / 3});
    alone.push_back(run(*file, RigOptions{}, {requests.back()}).outputs[0]);
  }
  EXPECT_EQ(differences(alone, run(*file, RigOptions{}, requests).outputs), 0);
  for (RigRequest& r : requests) r.sampling.seed += 1;
  EXPECT_GT(differences(alone, run(*file, RigOptions{}, requests).outputs), 6) << "the seed has no effect";
}

// Penalties, bans, biases and cuts read the request's own tokens: what else runs, preemptions, tiers and
// cached prefixes change nothing. The reference has only the tokens themselves.
TEST(Bits, RulesOfLogitsGiveTheSameInEveryScenario) {
  Workload work = make_workload(WeightType::kF32);
  const std::vector<RigOutput> plain = run_reference(*work.file, {}, work.requests);
  add_rules(work);
  const std::vector<RigOutput> expected = run_reference(*work.file, {}, work.requests);
  EXPECT_GT(differences(plain, expected), 25) << "the rules have no effect";
  const std::set<std::string> names = {"alone",
                                       "among 32, sarathi",
                                       "among 32, vllm",
                                       "preemption, sarathi",
                                       "preemption, vllm",
                                       "preemption and prefix reuse",
                                       "prefix reuse, chunks of 7",
                                       "three threads",
                                       "swap",
                                       "outgrown, random",
                                       "ellm:ratio=0.5:again=0.5"};
  size_t ran = 0;
  for (const Scenario& scenario : scenarios()) {
    if (!names.contains(scenario.name)) continue;
    ++ran;
    EXPECT_EQ(differences(expected, run_scenario(work, scenario)), 0) << scenario.name;
  }
  EXPECT_EQ(ran, names.size());
}

// On the real link this is left to chance.
TEST(Bits, ScenariosWithALinkDoWhatTheyAreAbout) {
  const Workload work = make_workload(WeightType::kF32);
  const std::vector<RigOutput> expected = run(*work.file, RigOptions{}, work.requests).outputs;
  size_t ran = 0;
  for (Scenario scenario : scenarios()) {
    if (scenario.options.repeats_itself()) continue;
    SCOPED_TRACE(scenario.name);
    ++ran;
    scenario.options.link = RigLink::kFake;
    EXPECT_EQ(differences(expected, run_scenario(work, scenario)), 0);
  }
  EXPECT_GT(ran, 20U);
}

// A prompt whose beginning is cached is computed all the same if its log-probabilities are asked for.
TEST(Bits, PromptLogprobsDoNotDependOnWhatIsCached) {
  const auto file = tiny_model(tiny_gqa(), WeightType::kF32);
  RigOptions options;
  options.prefix_caching = true;
  options.block_tokens = 16;
  options.limits.long_prefill_token_threshold = 29;
  std::vector<RigRequest> requests = {{random_tokens(1, 150), 4}, {random_tokens(1, 150), 4, {}, 12}};
  const RigRun cached = run(*file, options, requests);
  EXPECT_GT(cached.outputs[1].cached_prompt_tokens, 100U);
  EXPECT_TRUE(cached.outputs[1].scored.empty());
  requests[1].sampling.prompt_logprobs = 2;
  const RigRun scored = run(*file, options, requests);
  EXPECT_EQ(scored.outputs[1].cached_prompt_tokens, 0U);
  EXPECT_EQ(scored.outputs[1].scored.size(), 149U);
  EXPECT_EQ(differences(run_reference(*file, options, requests), scored.outputs), 0);
}

// The last row is computed in any case; a mean needs all of them.
TEST(Bits, EmbeddingsDoNotDependOnWhatIsCached) {
  const auto file = tiny_model(tiny_gqa(), WeightType::kF32);
  RigOptions options;
  options.prefix_caching = true;
  options.block_tokens = 16;
  options.limits.long_prefill_token_threshold = 29;
  std::vector<RigRequest> requests;
  for (const Pooling pooling : {Pooling::kNone, Pooling::kLast, Pooling::kMean}) {
    requests.push_back({random_tokens(1, 150), 1, {}, 12 * requests.size()});
    requests.back().pooling = pooling;
  }
  const RigRun got = run(*file, options, requests);
  EXPECT_TRUE(got.outputs[0].embedding.empty());
  EXPECT_GT(got.outputs[1].cached_prompt_tokens, 100U);
  EXPECT_EQ(got.outputs[2].cached_prompt_tokens, 0U);
  EXPECT_EQ(got.outputs[1].embedding, got.outputs[1].hidden);
  EXPECT_EQ(differences(run_reference(*file, options, requests), got.outputs), 0);
}

}  // namespace
}  // namespace kvasir::test
