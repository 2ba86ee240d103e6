// Quantisers of rows: GGUF's plain blocks bit for bit (tests/golden/make_quantize_goldens.py), the search by
// its error, and which tensor gets which type.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cfenv>
#include <cmath>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/random.h"
#include "model/quantize/quantize_row.h"
#include "model/quantize/quantize_rows.h"
#include "model/quantize/recipe.h"
#include "ops/weight_traits.h"
#include "support/block_weights.h"
#include "support/gguf_builder.h"

namespace kvasir {
namespace {

using ops::WeightType;
using ::testing::HasSubstr;

uint64_t hash_of(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  uint64_t hash = 0xCBF29CE484222325;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001B3;
  return hash;
}

std::vector<std::byte> quantized(WeightType type, const std::vector<float>& row) {
  std::vector<std::byte> out(ops::row_bytes(type, static_cast<int64_t>(row.size())));
  const Status status = quantize_row(type, row, out.data());
  EXPECT_TRUE(status.ok()) << status.message();
  return out;
}

// The values of make_quantize_goldens.py.
std::vector<float> golden_values(uint64_t seed) {
  std::vector<float> out(size_t{128} * 32);
  for (size_t i = 0; i < out.size(); ++i) {
    seed = seed * 6364136223846793005 + 1442695040888963407;
    const float u = static_cast<float>(static_cast<int64_t>(seed >> 40) - (1 << 23)) / 8388608.0F;
    const size_t block = i / 32;
    const float size = std::ldexp(1.0F, static_cast<int>(block % 29) - 20);
    out[i] = u * u * u * size;
    if (block % 8 == 7) out[i] = block % 16 == 7 ? 0.0F : size;
  }
  return out;
}

// Sums of twelve uniform numbers, about Gaussian; `heavy`: some values are up to thirty times as large.
std::vector<float> random_row(size_t size, bool heavy) {
  Random random(7);
  std::vector<float> out;
  for (size_t i = 0; i < size; ++i) {
    double v = -6;
    for (int d = 0; d < 12; ++d) v += random.unit();
    if (heavy && random.below(50) == 0) v *= 30 * random.unit();
    out.push_back(static_cast<float>(0.02 * v));
  }
  return out;
}

// Root mean square of the error, as a share of that of the values.
double error_of(WeightType type, const std::vector<float>& row, const std::vector<std::byte>& bytes) {
  std::vector<float> values(row.size());
  ops::dequantize_row(type, bytes.data(), static_cast<int64_t>(row.size()), values.data());
  double wrong = 0, all = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    wrong += std::pow(static_cast<double>(row[i]) - values[i], 2);
    all += std::pow(static_cast<double>(row[i]), 2);
  }
  return std::sqrt(wrong / all);
}

TEST(QuantizeRow, PlainBlocksAreThoseOfGguf) {
  std::ifstream file(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/quantize.txt");
  int compared = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string name, hash;
    words >> name >> hash;
    const auto bytes =
        quantized(*ops::weight_type_of_name(name), golden_values(hash_of(name.data(), name.size())));
    EXPECT_EQ(hash_of(bytes.data(), bytes.size()), std::stoull(hash, nullptr, 16)) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 6);
}

// Bounds 2 % above the errors of ggml's quantisers on Gaussian rows (docs/models.md).
TEST(QuantizeRow, TheSearchIsAsGoodAsGgmls) {
  const std::pair<WeightType, double> bounds[] = {{WeightType::kQ2K, 0.302},   {WeightType::kQ3K, 0.1537},
                                                  {WeightType::kQ4K, 0.0728},  {WeightType::kQ5K, 0.0368},
                                                  {WeightType::kQ6K, 0.0181},  {WeightType::kIq4Nl, 0.0777},
                                                  {WeightType::kIq4Xs, 0.0783}};
  const std::vector<float> row = random_row(8192, false), heavy = random_row(8192, true);
  for (const auto& [type, bound] : bounds) {
    SCOPED_TRACE(ops::weight_type_name(type));
    EXPECT_LT(error_of(type, row, quantized(type, row)), bound);
    // A search, not the largest value alone, decides a scale: better than what tests store.
    EXPECT_LT(error_of(type, heavy, quantized(type, heavy)),
              0.95 * error_of(type, heavy, test::quantize(type, heavy, 8192)));
  }
}

TEST(QuantizeRow, ZerosConstantsAndTinyValuesAreKept) {
  for (const ops::WeightTraits& t : ops::kWeightTraits) {
    if (test::is_of_folders(t.type)) continue;
    SCOPED_TRACE(t.name);
    const auto near = [&](float v, double most) {
      const std::vector<float> row(256, v);
      std::vector<float> out(256);
      const std::vector<std::byte> bytes = quantized(t.type, row);
      ops::dequantize_row(t.type, bytes.data(), 256, out.data());
      for (const float w : out) EXPECT_LE(std::fabs(w - v), most) << v;
    };
    near(0, 0);
    near(1, 0.02);
    near(-1, 0.02);
    near(1e-30F, 1.1e-30);  // no scale is so small
  }
}

// The quotient of a level and such a value is infinite, and its product with a zero is no number.
TEST(QuantizeRow, TinyValuesBesideZerosBecomeZeros) {
  for (const ops::WeightTraits& t : ops::kWeightTraits) {
    if (t.block_values == 1 || t.bf16_scale) continue;  // whose scales are as tiny
    if (test::is_of_folders(t.type)) continue;
    SCOPED_TRACE(t.name);
    for (const float tiny : {1e-38F, -1e-38F, 1e-44F}) {
      std::vector<float> row(256, 0.0F), out(256, 1.0F);
      row[40] = tiny;
      const std::vector<std::byte> bytes = quantized(t.type, row);
      ops::dequantize_row(t.type, bytes.data(), 256, out.data());
      EXPECT_THAT(out, testing::Each(0.0F)) << tiny;
    }
  }
}

// The scale of MXFP4's exponent 0 is 2^-128, which its values are multiples of.
TEST(QuantizeRow, Mxfp4KeepsSubnormalValues) {
  for (const int largest : {1, 2, 8, 12}) {
    SCOPED_TRACE(largest);
    std::vector<float> row(32), out(32);
    for (int i = 0; i < 32; ++i) {
      const int multiple = std::min(test::kMxfp4Values[i % 8], largest);
      row[static_cast<size_t>(i)] = std::ldexp(static_cast<float>(i < 16 ? multiple : -multiple), -128);
    }
    const std::vector<std::byte> bytes = quantized(WeightType::kMxfp4, row);
    EXPECT_EQ(bytes[0], std::byte{0});
    ops::dequantize_row(WeightType::kMxfp4, bytes.data(), 32, out.data());
    EXPECT_EQ(out, row);
  }
}

TEST(QuantizeRow, RefusesWhatATypeCannotHold) {
  std::vector<float> row(256, 1.0F);
  std::vector<std::byte> out(ops::row_bytes(WeightType::kF32, 256));
  const auto refusal = [&](WeightType type) { return quantize_row(type, row, out.data()).message(); };
  for (const ops::WeightTraits& t : ops::kWeightTraits) {
    if (test::is_of_folders(t.type)) continue;
    SCOPED_TRACE(t.name);
    row[17] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_FALSE(quantize_row(t.type, row, out.data()).ok());
    row[17] = -std::numeric_limits<float>::infinity();
    EXPECT_FALSE(quantize_row(t.type, row, out.data()).ok());
    row[17] = 3e38F;
    EXPECT_EQ(quantize_row(t.type, row, out.data()).ok(),
              t.type == WeightType::kF32 || t.type == WeightType::kBf16 || t.type == WeightType::kMxfp4);
  }
  EXPECT_THAT(refusal(WeightType::kQ4K), HasSubstr("value 17 (3e+38) is too large for Q4_K"));
  row[17] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(refusal(WeightType::kQ4K), "value 17 is NaN");
}

TEST(QuantizeRows, ThreadsRoundingAndOrderDoNotChangeARow) {
  const std::vector<float> values = random_row(size_t{512} * 1024, true);
  const StoredRows from = {WeightType::kF32, reinterpret_cast<const std::byte*>(values.data()), 512};
  const size_t bytes = ops::row_bytes(WeightType::kQ8_0, 512);
  const auto rows = [&](const std::vector<int64_t>& order, int64_t first, int64_t count, int threads) {
    std::vector<std::byte> out(static_cast<size_t>(count) * bytes);
    const Status status = quantize_rows(from, order, first, count, WeightType::kQ8_0, threads, out.data());
    EXPECT_TRUE(status.ok()) << status.message();
    return out;
  };
  const std::vector<std::byte> all = rows({}, 0, 1024, 1);
  EXPECT_EQ(rows({}, 0, 1024, 5), all);
  std::fesetround(FE_UPWARD);
  EXPECT_EQ(rows({}, 0, 1024, 1), all);
  std::fesetround(FE_TONEAREST);
  const std::vector<std::byte> two = rows({9, 3, 1000, 7}, 1, 2, 1);
  EXPECT_TRUE(std::equal(two.begin(), two.begin() + static_cast<long>(bytes),
                         all.begin() + static_cast<long>(3 * bytes)));
  EXPECT_TRUE(std::equal(two.begin() + static_cast<long>(bytes), two.end(),
                         all.begin() + static_cast<long>(1000 * bytes)));
}

TEST(QuantizeRows, NamesTheFirstValueAtFault) {
  std::vector<float> values(size_t{512} * 1024, 1.0F);
  values[512 * 900 + 5] = values[512 * 300 + 7] = std::numeric_limits<float>::infinity();
  std::vector<std::byte> out(values.size() * 4);
  const StoredRows from = {WeightType::kF32, reinterpret_cast<const std::byte*>(values.data()), 512};
  EXPECT_EQ(quantize_rows(from, {}, 0, 1024, WeightType::kQ8_0, 4, out.data()).message(),
            "row 300: value 7 is infinite");
}

ModelSpec spec_of(int32_t layers, int32_t heads, bool tied) {
  ModelSpec spec;
  spec.layers = layers;
  spec.layer_specs.resize(static_cast<size_t>(layers));
  spec.heads = heads;
  spec.kv_heads = 2;
  spec.tied_embeddings = tied;
  return spec;
}

std::string_view type_of(std::string_view recipe, const ModelSpec& spec, const std::string& name,
                         uint64_t columns = 512) {
  return type_in_recipe(*find_recipe(recipe), spec, name, 2, columns, "BF16");
}

// Of a tensor in each layer the 4 of Q4_K; of types of other names their first letter.
std::string by_layer(std::string_view recipe, const ModelSpec& spec, std::string_view role) {
  std::string out;
  for (int l = 0; l < spec.layers; ++l) {
    const std::string_view type = type_of(recipe, spec, fmt::format("blk.{}.{}.weight", l, role));
    out += type.ends_with("_K") ? type[1] : type[0];
  }
  return out;
}

std::string times(int count, const std::string& text) {
  std::string out;
  for (; count > 0; --count) out += text;
  return out;
}

// The types that llama.cpp's quantiser gave to tensors of such shapes (tests/golden/compare_recipes.py).
TEST(Recipe, HasTheMixturesOfLlamaCpp) {
  const ModelSpec twice = spec_of(32, 4, false), shared = spec_of(32, 8, false);
  // Of 32 layers: 0 to 3, then each third, then 28 to 31.
  const std::string more = "66664464464464464464464464466666";
  EXPECT_EQ(by_layer("q4_k_m", twice, "ffn_down"), more);
  EXPECT_EQ(by_layer("q4_k_m", twice, "attn_v"), more);
  EXPECT_EQ(by_layer("q4_k_m", twice, "attn_k"), times(32, "4"));
  EXPECT_EQ(by_layer("q5_k_m", twice, "ffn_down"), "66665565565565565565565565566666");
  EXPECT_EQ(by_layer("q3_k_m", twice, "attn_v"), "55" + times(30, "4"));
  EXPECT_EQ(by_layer("q3_k_m", twice, "ffn_down"), "55" + times(30, "4"));
  EXPECT_EQ(by_layer("q3_k_m", twice, "attn_output"), times(32, "4"));
  EXPECT_EQ(by_layer("q3_k_m", twice, "ffn_up"), times(32, "3"));
  EXPECT_EQ(by_layer("q2_k", twice, "attn_v"), times(32, "3"));
  EXPECT_EQ(by_layer("q2_k", shared, "attn_v"), times(32, "4"));
  EXPECT_EQ(by_layer("q2_k", shared, "attn_output"), times(32, "3"));
  EXPECT_EQ(by_layer("iq4_xs", twice, "attn_v"), times(32, "I"));
  EXPECT_EQ(by_layer("iq4_xs", shared, "attn_v"), times(32, "5"));
  EXPECT_EQ(by_layer("iq4_nl", twice, "ffn_down"), "5555" + times(28, "I"));
  // Few layers: no eighth, but the last.
  EXPECT_EQ(by_layer("q4_k_m", spec_of(6, 4, false), "ffn_down"), "446446");
  EXPECT_EQ(by_layer("q4_k_m", spec_of(1, 4, false), "ffn_down"), "6");
  EXPECT_EQ(by_layer("q3_k_m", spec_of(6, 4, false), "ffn_down"), "444444");
  EXPECT_EQ(by_layer("iq4_xs", spec_of(7, 4, false), "ffn_down"), "IIIIIII");
}

// Phi-3's tensor of Q, K and V has the types of V.
TEST(Recipe, OneTensorOfQKAndVHasTheTypesOfV) {
  const ModelSpec phi3 = spec_of(6, 2, false);
  EXPECT_EQ(by_layer("q2_k", phi3, "attn_qkv"), "333333");
  EXPECT_EQ(by_layer("q3_k_m", phi3, "attn_qkv"), "554444");
  EXPECT_EQ(by_layer("q4_k_m", phi3, "attn_qkv"), "446446");
  EXPECT_EQ(by_layer("q5_k_m", phi3, "attn_qkv"), "556556");
  EXPECT_EQ(by_layer("q6_k", phi3, "attn_qkv"), "666666");
  EXPECT_EQ(by_layer("iq4_xs", phi3, "attn_qkv"), "IIIIII");
  EXPECT_EQ(by_layer("iq4_xs", spec_of(6, 8, false), "attn_qkv"), "555555");
}

// Of experts, in one tensor or one each, and of the shared one; of eight experts the rest is a small part.
TEST(Recipe, ExpertsHaveTheTypesOfTheFeedForward) {
  ModelSpec spec = spec_of(6, 4, false);
  spec.experts.count = 16;
  for (const char* role : {"ffn_down_exps", "ffn_down.11", "ffn_down_shexp"}) {
    EXPECT_EQ(by_layer("q4_k_m", spec, role), "446446") << role;
  }
  EXPECT_EQ(by_layer("q4_k_m", spec, "ffn_up_exps"), "444444");
  EXPECT_EQ(by_layer("q4_k_m", spec, "attn_k"), "444444");
  spec.experts.count = 8;
  EXPECT_EQ(by_layer("q4_k_m", spec, "ffn_down_exps"), "446446");
  EXPECT_EQ(by_layer("q4_k_m", spec, "attn_k"), "QQQQQQ") << "Q8_0";
  EXPECT_EQ(by_layer("q4_k_m", spec, "attn_v"), "QQQQQQ");
  EXPECT_EQ(by_layer("q4_k_m", spec, "attn_output"), "555555");
  EXPECT_EQ(by_layer("q5_k_m", spec, "attn_output"), "555555");
  EXPECT_EQ(by_layer("q6_k", spec, "attn_output"), "666666");
}

// Llama 2 and 3 of 70 billion parameters, and Qwen 2 of 72.
TEST(Recipe, ModelsOf80LayersHaveMoreBitsInV) {
  ModelSpec llama = spec_of(80, 16, false), qwen = spec_of(80, 2, false), other = spec_of(80, 16, false);
  llama.architecture = "llama";
  qwen.architecture = "qwen2";
  other.architecture = "qwen3";
  const std::string usual = times(10, "6") + times(20, "446") + times(10, "6");
  const std::string more = times(10, "6") + times(20, "556") + times(10, "6");
  EXPECT_EQ(by_layer("q4_k_m", llama, "attn_v"), more);
  EXPECT_EQ(by_layer("q4_k_m", qwen, "attn_v"), more);
  EXPECT_EQ(by_layer("q4_k_m", other, "attn_v"), usual);
  EXPECT_EQ(by_layer("q4_k_m", llama, "ffn_down"), usual);
  EXPECT_EQ(by_layer("q5_k_m", llama, "attn_v"), more);
  for (const ModelSpec& spec : {llama, qwen}) {
    EXPECT_EQ(by_layer("q2_k", spec, "attn_v"), times(80, "5"));
    EXPECT_EQ(by_layer("q3_k_m", spec, "attn_v"), times(80, "5"));
    EXPECT_EQ(by_layer("q6_k", spec, "attn_v"), times(80, "6"));
  }
  EXPECT_EQ(by_layer("q3_k_m", llama, "ffn_down"), times(5, "5") + times(75, "4"));
  llama.kv_heads = llama.heads;  // the one of 65 billion
  EXPECT_EQ(by_layer("q4_k_m", llama, "attn_v"), usual);
  EXPECT_EQ(by_layer("q2_k", llama, "attn_v"), times(80, "3"));
}

TEST(Recipe, TheOutputMatrixHasMoreBits) {
  const ModelSpec apart = spec_of(2, 2, false), tied = spec_of(2, 2, true);
  for (const std::string_view recipe : {"q4_0", "q5_1", "q2_k", "q4_k_m", "q6_k", "iq4_nl", "iq4_xs"}) {
    SCOPED_TRACE(recipe);
    EXPECT_EQ(type_of(recipe, apart, "output.weight"), "Q6_K");
    EXPECT_EQ(type_of(recipe, tied, "token_embd.weight"), "Q6_K");
    EXPECT_EQ(type_of(recipe, apart, "output.weight", 288), "Q8_0");
    EXPECT_EQ(type_of(recipe, apart, "output.weight", 80), "F16");
  }
  EXPECT_EQ(type_of("q8_0", apart, "output.weight"), "Q8_0");
  EXPECT_EQ(type_of("q4_0", apart, "token_embd.weight"), "Q4_0");
  EXPECT_EQ(type_of("q2_k", apart, "token_embd.weight"), "Q2_K");
  EXPECT_EQ(type_of("f16", apart, "output.weight"), "F16");
}

TEST(Recipe, RowsThatAreNoWholeBlocksFallBack) {
  const auto type = [](std::string_view recipe, uint64_t columns) {
    return type_in_recipe(*find_recipe(recipe), spec_of(32, 4, false), "blk.9.ffn_up.weight", 2, columns,
                          "F32");
  };
  EXPECT_EQ(type("q2_k", 288), "IQ4_NL");
  EXPECT_EQ(type("q3_k_m", 288), "IQ4_NL");
  EXPECT_EQ(type("q4_k_m", 288), "Q5_0");
  EXPECT_EQ(type("q5_k_m", 288), "Q5_1");
  EXPECT_EQ(type("q6_k", 288), "Q8_0");
  EXPECT_EQ(type("iq4_xs", 288), "IQ4_NL");
  EXPECT_EQ(type("q4_k_m", 40), "F16");
}

TEST(Recipe, Mxfp4IsForExperts) {
  const ModelSpec spec = spec_of(2, 4, false);
  for (const char* name :
       {"blk.1.ffn_gate_exps.weight", "blk.0.ffn_down_exps.weight", "blk.0.ffn_up.3.weight"}) {
    EXPECT_EQ(type_of("mxfp4_moe", spec, name, 288), "MXFP4") << name;
  }
  for (const char* name :
       {"blk.1.attn_v.weight", "blk.0.ffn_down_shexp.weight", "output.weight", "token_embd.weight"}) {
    EXPECT_EQ(type_of("mxfp4_moe", spec, name, 288), "Q8_0") << name;
  }
}

TEST(Recipe, VectorsTablesAndRoutersAreNotQuantised) {
  const auto type = [](std::string_view name, uint32_t dimensions, std::string_view stored) {
    return type_in_recipe(*find_recipe("q4_0"), spec_of(2, 2, false), name, dimensions, 512, stored);
  };
  EXPECT_EQ(type("blk.0.attn_norm.weight", 1, "BF16"), "F32");
  EXPECT_EQ(type("blk.0.attn_q_norm.weight", 2, "F32"), "F32");
  EXPECT_EQ(type("blk.0.attn_q.bias", 1, "F16"), "F32");
  EXPECT_EQ(type("position_embd.weight", 2, "F16"), "F32");
  EXPECT_EQ(type("blk.0.ffn_gate_inp.weight", 2, "F32"), "F32");
  EXPECT_EQ(type("blk.0.ffn_gate_inp_shexp.weight", 2, "BF16"), "F32");
  EXPECT_EQ(type("blk.0.exp_probs_b.bias", 1, "F32"), "F32");
  EXPECT_EQ(type("rope_freqs.weight", 1, "F32"), "F32");
}

}  // namespace
}  // namespace kvasir
