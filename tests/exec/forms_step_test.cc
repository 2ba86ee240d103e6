// Steps whose history is held as X or not at all: every logit has the bits of a run with all K and V on
// the device, and what rows leave behind a second time has the bytes of the first.
#include <gtest/gtest.h>

#include <functional>

#include "base/mutant.h"
#include "exec/forms_rig.h"
#include "exec/reference_decoder.h"
#include "support/levels.h"

namespace kvasir::test {
namespace {

constexpr HeldCell kKvOnly{true, false};
constexpr HeldCell kXOnly{false, true};
constexpr HeldCell kDropped{};

TinyLlamaShape mixed_kv() {
  TinyLlamaShape shape = tiny_gqa();
  shape.other_types = {{"attn_v", ops::WeightType::kBf16}};
  return shape;
}
TinyLlamaShape mixed_layers() {
  TinyLlamaShape shape = tiny_gqa();
  shape.other_types = {{"blk.1.attn", ops::WeightType::kBf16}};
  return shape;
}
// The first panel that holds K holds columns of Q, too, and rows are of odd length.
TinyLlamaShape odd_lengths() {
  TinyLlamaShape shape;
  shape.dim = 93;
  shape.heads = shape.kv_heads = 5;
  shape.head_dim = 16;
  return shape;
}

const FormsModel& mha_int8() {
  static const FormsModel model(tiny_mha(), ops::WeightType::kQ8_0, ops::KvType::kBf16, /*bias=*/true);
  return model;
}
const FormsModel& gqa_int8() {
  static const FormsModel model(tiny_gqa(), ops::WeightType::kQ4_1, ops::KvType::kQ8_0, false);
  return model;
}
const FormsModel& gqa_bf16() {
  static const FormsModel model(tiny_gqa(), ops::WeightType::kBf16, ops::KvType::kBf16, true);
  return model;
}
const FormsModel& mha_f32() {
  static const FormsModel model(tiny_mha(), ops::WeightType::kF32, ops::KvType::kF32, true);
  return model;
}
const FormsModel& k_and_v_of_two_types() {
  static const FormsModel model(mixed_kv(), ops::WeightType::kQ4_1, ops::KvType::kBf16, true);
  return model;
}
const FormsModel& layers_of_two_types() {
  static const FormsModel model(mixed_layers(), ops::WeightType::kQ8_0, ops::KvType::kBf16, false);
  return model;
}
const FormsModel& odd_bf16() {
  static const FormsModel model(odd_lengths(), ops::WeightType::kBf16, ops::KvType::kBf16, true);
  return model;
}

struct Models {
  const char* name;
  const FormsModel& (*model)();
  ops::ActivationType x_type;
};
constexpr Models kModels[] = {
    {"mha_int8", mha_int8, ops::ActivationType::kInt8},
    {"gqa_int8", gqa_int8, ops::ActivationType::kInt8},
    {"gqa_bf16", gqa_bf16, ops::ActivationType::kBf16},
    {"mha_f32", mha_f32, ops::ActivationType::kF32},
    {"two_types", k_and_v_of_two_types, ops::ActivationType::kF32},
    {"layers_differ", layers_of_two_types, ops::ActivationType::kF32},
    {"odd_bf16", odd_bf16, ops::ActivationType::kBf16},
};

TEST(XType, IsWhatTheProductsOfKAndVTake) {
  for (const Models& m : kModels) {
    EXPECT_EQ(m.model().packed->x_type(ops::ActivationMode::kAuto), m.x_type) << m.name;
    EXPECT_EQ(m.model().packed->x_type(ops::ActivationMode::kF32), ops::ActivationType::kF32) << m.name;
  }
}

// Three sequences that prefill in chunks and decode beside one another: of 294, 76 and 37 tokens, so one has
// two attention leaves, and histories end inside blocks.
constexpr uint32_t kRows = 294 + 76 + 37;
constexpr uint32_t kSamples = 13;

std::vector<std::vector<FormsRig::Part>> workload() {
  std::vector<std::vector<FormsRig::Part>> steps = {
      {{0, {0, 150}}, {1, {0, 70}}},
      {{0, {150, 290}}, {1, {70, 71}}, {2, {0, 33}}},
  };
  for (uint32_t i = 0; i < 4; ++i) {
    steps.push_back({{0, {290 + i, 291 + i}}, {2, {33 + i, 34 + i}}});
  }
  steps[4].push_back({1, {71, 76}});
  return steps;
}

void serve(FormsRig& rig) {
  for (const std::vector<FormsRig::Part>& parts : workload()) {
    const StepResult result = rig.run(parts);
    EXPECT_TRUE(result.status.ok() && result.deferred.empty());
    EXPECT_EQ(result.sampled.size(), parts.size());
  }
}

using Case = std::tuple<int, uint32_t, int, bool>;

class FormsStep : public testing::TestWithParam<Case> {
 protected:
  static const FormsModel& model() { return kModels[std::get<0>(GetParam())].model(); }
  static FormsRig::Options options() {
    FormsRig::Options o;
    o.layers_per_group = std::get<1>(GetParam());
    o.threads = std::get<2>(GetParam());
    o.tap_all_rows = std::get<3>(GetParam());
    return o;
  }
  // Runs the workload with all sequences held like this.
  static void expect_same_bits(const char* what, const FormsRig::Options& o, const HeldCells& cells) {
    SCOPED_TRACE(what);
    FormsRig rig(model(), o);
    for (uint32_t s = 0; s < FormsModel::kSequences; ++s) rig.hold(s, cells);
    serve(rig);
    EXPECT_GE(rig.seen(), o.tap_all_rows ? kRows : kSamples);
    EXPECT_EQ(rig.wrong(), 0u);
    EXPECT_EQ(rig.rewritten_otherwise(), 0u);
    EXPECT_EQ(rig.rewritten() > 0, o.rewrite);
  }
};

TEST_P(FormsStep, HistoryInFormX) {
  expect_same_bits("X only", options(), [](uint32_t, uint32_t) { return kXOnly; });
  expect_same_bits("X beside KV", options(), [](uint32_t, uint32_t) { return HeldCell{true, true}; });
  expect_same_bits("by block", options(), [](uint32_t b, uint32_t) { return b % 2 ? kXOnly : kKvOnly; });
  expect_same_bits("by group", options(), [](uint32_t, uint32_t g) { return g % 2 ? kKvOnly : kXOnly; });
}

TEST_P(FormsStep, DroppedHistoryIsComputedAgainBesideDecodes) {
  expect_same_bits("all", options(), [](uint32_t, uint32_t) { return kDropped; });
  expect_same_bits("the first blocks", options(),
                   [](uint32_t b, uint32_t) { return b < 3 ? kDropped : kKvOnly; });
  expect_same_bits("here and there", options(),
                   [](uint32_t b, uint32_t) { return b % 3 == 1 ? kDropped : kXOnly; });
  // Rows leave early.
  expect_same_bits("the first group", options(),
                   [](uint32_t b, uint32_t g) { return g == 0 && b > 1 ? kDropped : kKvOnly; });
  expect_same_bits("the second group", options(),
                   [](uint32_t, uint32_t g) { return g == 1 ? kDropped : kXOnly; });
}

TEST_P(FormsStep, RowsLeaveTheSameBytesEachTime) {
  FormsRig::Options o = options();
  const auto layers = static_cast<uint32_t>(model().file->spec().layers);
  if (o.layers_per_group >= layers) return;  // of one group what is X is not passed again
  o.rewrite = true;
  expect_same_bits("X of all groups but the last", o, [&](uint32_t, uint32_t g) {
    return HeldCell{false, (g + 1) * o.layers_per_group < layers};
  });
}

TEST_P(FormsStep, Mixtures) {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    FormsRig rig(model(), options());
    for (uint32_t s = 0; s < FormsModel::kSequences; ++s) {
      rig.hold(s, [=](uint32_t b, uint32_t g) {
        const uint64_t bits = random_bits(seed, s, b * 16 + g);
        return HeldCell{bits % 3 == 0, bits / 4 % 3 == 0};
      });
    }
    serve(rig);
    EXPECT_EQ(rig.wrong(), 0u) << "seed " << seed;
  }
}

TEST_P(FormsStep, WhatIsHeldMayChangeBetweenSteps) {
  FormsRig rig(model(), options());
  rig.hold(0, [](uint32_t, uint32_t) { return HeldCell{true, true}; });
  rig.run({{0, {0, 280}}});
  rig.hold(0, [](uint32_t b, uint32_t) { return b < 9 ? kKvOnly : kXOnly; });
  rig.run({{0, {280, 283}}});
  rig.hold(0, [](uint32_t b, uint32_t g) { return b < 4 ? kKvOnly : HeldCell{false, g == 0 && b > 9}; });
  rig.run({{0, {283, 284}}});
  rig.run({{0, {284, 288}}, {1, {0, 20}}});
  EXPECT_EQ(rig.wrong(), 0u);
}

std::string case_name(const testing::TestParamInfo<Case>& instance) {
  const auto [model, group, threads, all] = instance.param;
  return fmt::format("{}_group{}_threads{}_{}", kModels[model].name, group, threads, all ? "all" : "samples");
}

INSTANTIATE_TEST_SUITE_P(Groups, FormsStep,
                         testing::ValuesIn(shapes<int, uint32_t, int, bool>(1, {0, 1}, {1, 2, 3}, {1, 2, 3},
                                                                            {false, true})),
                         case_name);
INSTANTIATE_TEST_SUITE_P(Types, FormsStep,
                         testing::Combine(testing::Values(2, 3, 4, 5, 6), testing::Values(1),
                                          testing::Values(2), testing::Values(true)),
                         case_name);
INSTANTIATE_TEST_SUITE_P(TypesBySamples, FormsStep,
                         testing::Combine(testing::Values(2, 4), testing::Values(2), testing::Values(3),
                                          testing::Values(false)),
                         case_name);

// What all of the above is compared with.
TEST(FormsModels, GiveTheBitsOfTheReferenceWithItsBias) {
  for (const Models& m : kModels) {
    const FormsModel& model = m.model();
    ReferenceDecoder reference(*model.file, ops::ActivationMode::kAuto, model.kv_type);
    std::vector<std::vector<float>> bias;
    for (const PackedLayer& layer : model.packed->layers()) {
      if (!layer.qkv_bias.empty()) bias.push_back(layer.qkv_bias);
    }
    reference.set_qkv_bias(std::move(bias));
    for (uint32_t p = 0; p < 20; ++p) {
      EXPECT_EQ(reference.step(model.tokens[0][p]), model.logits.at({0, p})) << m.name << ", token " << p;
    }
  }
}

TEST(FormsModels, ABiasChangesWhatComesOut) {
  const FormsModel without(tiny_mha(), ops::WeightType::kQ8_0, ops::KvType::kBf16, /*bias=*/false);
  EXPECT_NE(without.logits.at({0, 5}), mha_int8().logits.at({0, 5}));
}

// ---------------------------------------------------------------- deferred slices

TEST(FormsDeferred, AProjectionOfADeferredSliceIsSkipped) {
  FormsRig rig(gqa_int8(), {});
  rig.hold(0, [](uint32_t, uint32_t) { return kXOnly; });
  rig.run({{0, {0, 48}}, {1, {0, 48}}});
  Step step = rig.make_step({{0, {48, 49}}, {1, {48, 49}}});
  for (KvProjection& p : step.projections) {
    if (p.layer > 0) p.x = p.to.k = p.to.v = KvPlanes::kAbsent / 2 & ~uint64_t{63};  // nowhere
  }
  Transfer transfer;
  transfer.id = TransferId{1};
  step.transfers.push_back({kStepBegins, std::move(transfer)});
  step.waits.push_back({1, 0, TransferId{1}});
  step.index_by_layer();
  rig.link().fail(TransferId{1});
  EXPECT_EQ(rig.run(std::move(step)).deferred, std::vector<SeqId>{SeqId{0}});
  EXPECT_EQ(rig.wrong(), 0u);
}

// ---------------------------------------------------------------- seeded faults

#if defined(KVASIR_MUTANTS)

struct FormsFaultCase {
  Mutant mutant;
  const FormsModel& (*model)();
  HeldCell held;
};

TEST(FormsMutants, EachTurnsTheBitsRed) {
  for (const FormsFaultCase& c : {
           FormsFaultCase{Mutant::kXWrongPosition, mha_int8, kXOnly},
           FormsFaultCase{Mutant::kXWrongPosition, gqa_int8, kXOnly},
           FormsFaultCase{Mutant::kXOtherRounding, mha_int8, kXOnly},
           FormsFaultCase{Mutant::kXOtherRounding, gqa_bf16, kXOnly},
           FormsFaultCase{Mutant::kXOtherRounding, mha_f32, kXOnly},
           FormsFaultCase{Mutant::kXBiasMissing, mha_int8, kXOnly},
           FormsFaultCase{Mutant::kMergedEarly, mha_f32, kKvOnly},
       }) {
    for (uint32_t group : {1u, 2u}) {
      FormsRig::Options options;
      options.layers_per_group = group;
      const auto wrong_with = [&](Mutant fault) {
        FormsRig rig(c.model(), options);
        rig.hold(0, [&](uint32_t, uint32_t) { return c.held; });
        const ScopedMutant active(fault);
        rig.run({{0, {0, 288}}});
        rig.run({{0, {288, 289}}});
        return rig.wrong();
      };
      EXPECT_EQ(wrong_with(Mutant::kNone), 0u);
      EXPECT_GT(wrong_with(c.mutant), 0u) << "fault " << static_cast<int>(c.mutant) << " was not noticed";
    }
  }
}

#endif

}  // namespace
}  // namespace kvasir::test
