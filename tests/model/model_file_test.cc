// A whole model: opening, the tensor table, the fingerprint, the pages, the description.
#include "model/files/model_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "model/files/inspect.h"
#include "ops/weight_traits.h"
#include "support/block_weights.h"
#include "support/temp_file.h"
#include "support/tiny_llama.h"

namespace kvasir {
namespace {

using ops::WeightType;
using test::GgufBuilder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

constexpr WeightType kAllTypes[] = {WeightType::kF32,  WeightType::kF16,  WeightType::kBf16,
                                    WeightType::kQ8_0, WeightType::kQ4_0, WeightType::kQ4_1,
                                    WeightType::kQ5_0, WeightType::kQ5_1, WeightType::kIq4Nl};

GgufBuilder tiny(WeightType type = WeightType::kQ4_1) {
  test::TinyLlamaShape shape = test::tiny_gqa();
  shape.tied = false;
  return test::tiny_llama_builder(shape, type, 5);
}

Result<std::unique_ptr<ModelFile>> load(const GgufBuilder& builder) {
  return ModelFile::from_bytes(builder.build(), "model.gguf");
}

void expect_file_refused(const GgufBuilder& builder, ErrorCode code, const std::string& part) {
  const Status status = load(builder).status();
  ASSERT_FALSE(status.ok()) << part;
  EXPECT_EQ(status.code(), code) << status.message();
  EXPECT_THAT(status.message(), AllOf(StartsWith("model.gguf: "), HasSubstr(part), Not(HasSubstr("\n"))));
}

void expect_matrix(const WeightMatrix& m, WeightType type, int64_t rows, int64_t columns) {
  EXPECT_EQ(m.type, type);
  EXPECT_EQ(m.rows, rows);
  EXPECT_EQ(m.columns, columns);
  EXPECT_TRUE(m.present());
  EXPECT_EQ(m.row_bytes(), ops::row_bytes(type, columns));
  EXPECT_EQ(m.bytes, m.row_bytes() * static_cast<uint64_t>(rows));
}

TEST(ModelFile, FindsEveryTensorInEveryType) {
  for (WeightType type : kAllTypes) {
    auto model = load(tiny(type));
    ASSERT_TRUE(model.ok()) << model.status().message();
    const TensorTable& w = (*model)->weights();
    expect_matrix(w.token_embedding, type, 512, 128);
    expect_matrix(w.output, type, 512, 128);
    EXPECT_EQ(&w.output_matrix(), &w.output);
    EXPECT_EQ(w.output_norm.weight.size(), 128U);
    ASSERT_EQ(w.layers.size(), 3U);
    for (const LayerWeights& layer : w.layers) {
      EXPECT_EQ(layer.attn_norm.weight.size(), 128U);
      EXPECT_EQ(layer.ffn_norm.weight.size(), 128U);
      expect_matrix(layer.attn_q, type, 128, 128);
      expect_matrix(layer.attn_k, type, 64, 128);
      expect_matrix(layer.attn_v, type, 64, 128);
      expect_matrix(layer.attn_output, type, 128, 128);
      expect_matrix(layer.ffn_gate, type, 192, 128);
      expect_matrix(layer.ffn_up, type, 192, 128);
      expect_matrix(layer.ffn_down, type, 128, 192);
    }
    EXPECT_NE(w.layers[0].attn_q.data, w.layers[1].attn_q.data);
    EXPECT_TRUE((*model)->warnings().empty());
  }
}

// The tiny models of all types hold the same numbers but for rounding, so that paths can be compared.
TEST(ModelFile, TinyModelsOfAllTypesAgree) {
  auto reference = load(tiny(WeightType::kF32));
  ASSERT_TRUE(reference.ok());
  const WeightMatrix& exact = (*reference)->weights().layers[1].ffn_down;
  for (WeightType type : kAllTypes) {
    auto model = load(tiny(type));
    ASSERT_TRUE(model.ok());
    const WeightMatrix& rounded = (*model)->weights().layers[1].ffn_down;
    std::vector<float> a(192);
    std::vector<float> b(192);
    double error = 0;
    double norm = 0;
    for (int64_t row = 0; row < exact.rows; ++row) {
      ops::dequantize_row(WeightType::kF32, exact.data + static_cast<uint64_t>(row) * exact.row_bytes(), 192,
                          a.data());
      ops::dequantize_row(type, rounded.data + static_cast<uint64_t>(row) * rounded.row_bytes(), 192,
                          b.data());
      for (size_t i = 0; i < a.size(); ++i) {
        error += std::pow(a[i] - b[i], 2);
        norm += std::pow(a[i], 2);
      }
    }
    const double relative = std::sqrt(error / norm);
    EXPECT_LT(relative, ops::is_quantized(type) ? (type == WeightType::kQ8_0 ? 0.01 : 0.12) : 0.004);
    EXPECT_EQ(relative == 0.0, type == WeightType::kF32);
    EXPECT_NEAR(norm / static_cast<double>(exact.rows), 1.0, 0.1);  // deviation 1 / sqrt(columns)
  }
}

TEST(ModelFile, TinyModelsOfTheLargeBlocksAgree) {
  test::TinyLlamaShape shape = test::tiny_256();
  auto reference = load(test::tiny_llama_builder(shape, WeightType::kF32, 5));
  ASSERT_TRUE(reference.ok());
  const LayerWeights& exact = (*reference)->weights().layers[1];
  for (const auto& [type, fallback, most] : {std::tuple{WeightType::kQ2K, WeightType::kIq4Nl, 0.45},
                                             {WeightType::kQ3K, WeightType::kIq4Nl, 0.25},
                                             {WeightType::kQ4K, WeightType::kQ5_0, 0.1},
                                             {WeightType::kQ5K, WeightType::kQ5_1, 0.05},
                                             {WeightType::kQ6K, WeightType::kQ8_0, 0.03},
                                             {WeightType::kIq4Xs, WeightType::kIq4Nl, 0.1}}) {
    SCOPED_TRACE(ops::weight_type_name(type));
    auto model = load(test::tiny_llama_builder(shape, type, 5));
    ASSERT_TRUE(model.ok()) << model.status().message();
    const LayerWeights& rounded = (*model)->weights().layers[1];
    expect_matrix(rounded.attn_q, type, 128, 256);
    expect_matrix(rounded.ffn_down, fallback, 256, 288);
    std::vector<float> a(256), b(256);
    double error = 0, norm = 0;
    for (uint64_t row = 0; row < 128; ++row) {
      ops::dequantize_row(WeightType::kF32, exact.attn_q.data + row * exact.attn_q.row_bytes(), 256,
                          a.data());
      ops::dequantize_row(type, rounded.attn_q.data + row * rounded.attn_q.row_bytes(), 256, b.data());
      for (size_t i = 0; i < a.size(); ++i) {
        error += std::pow(a[i] - b[i], 2);
        norm += std::pow(a[i], 2);
      }
    }
    EXPECT_LT(std::sqrt(error / norm), most);
    EXPECT_GT(std::sqrt(error / norm), most / 10);
  }
}

TEST(ModelFile, TiedEmbeddingsShareTheMatrix) {
  auto model = load(test::tiny_llama_builder(test::tiny_mha(), WeightType::kQ8_0, 5));
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_FALSE((*model)->weights().output.present());
  EXPECT_EQ(&(*model)->weights().output_matrix(), &(*model)->weights().token_embedding);
}

TEST(ModelFile, ReadsRopeFactors) {
  test::TinyLlamaShape shape = test::tiny_mha();
  shape.rope_factors = true;
  GgufBuilder b = test::tiny_llama_builder(shape, WeightType::kQ8_0, 5);
  auto model = load(b);
  ASSERT_TRUE(model.ok()) << model.status().message();
  ASSERT_EQ((*model)->spec().ropes[0].divisors.size(), 16U);
  EXPECT_EQ((*model)->spec().ropes[0].divisors[2], 1.5F);
  const float zero = 0;
  std::memcpy(b.tensor("rope_freqs.weight").data.data() + 4, &zero, sizeof(zero));
  expect_file_refused(b, ErrorCode::kCorrupt, "rope_freqs.weight");
}

TEST(ModelFile, ReadsTheBiasesOfQKV) {
  test::TinyLlamaShape shape = test::tiny_gqa();
  shape.qkv_bias = true;
  const GgufBuilder whole = test::tiny_llama_builder(shape, WeightType::kQ4_1, 5);
  auto model = load(whole);
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_TRUE((*model)->warnings().empty());
  for (const LayerWeights& layer : (*model)->weights().layers) {
    EXPECT_EQ(layer.q_bias.size(), 128U);
    EXPECT_EQ(layer.k_bias.size(), 64U);
    EXPECT_EQ(layer.v_bias.size(), 64U);
    EXPECT_NE(layer.k_bias, layer.v_bias);
  }
  const auto without = load(test::tiny_llama_builder(test::tiny_gqa(), WeightType::kQ4_1, 5));
  ASSERT_TRUE(without.ok());
  EXPECT_TRUE((*without)->weights().layers[0].q_bias.empty());
  EXPECT_NE((*without)->fingerprint(), (*model)->fingerprint());
  GgufBuilder b = whole;
  b.tensor("blk.2.attn_v.bias").data.back() ^= std::byte{1};
  EXPECT_NE((*load(b))->fingerprint(), (*model)->fingerprint());

  b = whole;
  b.tensor("blk.1.attn_q.bias").shape = {64, 2};
  expect_file_refused(b, ErrorCode::kCorrupt, "'blk.1.attn_q.bias' is 64 x 2 x 1 x 1");
  b = whole;
  b.remove_tensor("blk.1.attn_k.bias");
  b.add_tensor("blk.1.attn_k.bias", {128}, test::gguf_type_id(WeightType::kF32),
               test::quantize(WeightType::kF32, std::vector<float>(128), 128));
  expect_file_refused(b, ErrorCode::kCorrupt, "'blk.1.attn_k.bias' is 128 x 1 x 1 x 1");
  b = whole;
  b.tensor("blk.0.attn_q.bias").type = test::gguf_type_id(WeightType::kQ8_0);
  b.tensor("blk.0.attn_q.bias").data = test::quantize(WeightType::kQ8_0, std::vector<float>(128, 1.0F), 128);
  expect_file_refused(b, ErrorCode::kUnsupported, "'blk.0.attn_q.bias' is of type Q8_0");
  b = whole;
  const float value = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(b.tensor("blk.0.attn_v.bias").data.data() + 4, &value, sizeof(value));
  expect_file_refused(b, ErrorCode::kCorrupt, "value 1 of the tensor 'blk.0.attn_v.bias' is not finite");
}

TEST(ModelFile, NamesAMissingTensor) {
  for (const char* name :
       {"token_embd.weight", "output_norm.weight", "blk.0.attn_norm.weight", "blk.1.attn_q.weight",
        "blk.1.attn_k.weight", "blk.1.attn_v.weight", "blk.2.attn_output.weight", "blk.2.ffn_norm.weight",
        "blk.0.ffn_gate.weight", "blk.0.ffn_up.weight", "blk.2.ffn_down.weight"}) {
    GgufBuilder b = tiny();
    b.remove_tensor(name);
    expect_file_refused(b, ErrorCode::kCorrupt, fmt::format("'{}' is missing", name));
  }
}

TEST(ModelFile, ChecksShapes) {
  GgufBuilder b = tiny(WeightType::kF32);
  b.tensor("blk.1.attn_k.weight").shape = {64, 128};  // transposed: the same number of values
  expect_file_refused(b, ErrorCode::kCorrupt,
                      "'blk.1.attn_k.weight' is 64 x 128 x 1 x 1 where the metadata asks for 128 x 64");

  for (std::vector<uint64_t> smaller : {std::vector<uint64_t>{64, 192}, {128, 96}}) {
    b = tiny(WeightType::kF32);
    b.tensor("blk.0.ffn_up.weight").shape = smaller;
    expect_file_refused(b, ErrorCode::kCorrupt, "where the metadata asks for 128 x 192");
  }

  b = tiny(WeightType::kF32);
  b.tensor("blk.0.ffn_up.weight").shape = {128, 96, 2};
  expect_file_refused(b, ErrorCode::kCorrupt, "blk.0.ffn_up.weight");

  b = tiny(WeightType::kF32);
  b.tensor("output_norm.weight").shape = {64, 2};
  expect_file_refused(b, ErrorCode::kCorrupt, "output_norm.weight");
}

TEST(ModelFile, NamesATypeThatNoKernelReads) {
  GgufBuilder b = tiny();
  auto& tensor = b.tensor("blk.1.ffn_gate.weight");
  tensor.type = 9;  // Q8_1
  tensor.data.resize(192 * 128 / 32 * 36);
  expect_file_refused(
      b, ErrorCode::kUnsupported,
      "'blk.1.ffn_gate.weight' is of type Q8_1, which is not supported; quantise the model as Q4_K_M");
}

// Types of two and three bits by tables.
TEST(ModelFile, RefusesIq2AndIq3ByName) {
  for (const auto& [id, bytes, name] : {std::tuple{16, 66, "IQ2_XXS"},
                                        {17, 74, "IQ2_XS"},
                                        {18, 98, "IQ3_XXS"},
                                        {21, 110, "IQ3_S"},
                                        {22, 82, "IQ2_S"}}) {
    GgufBuilder b = test::tiny_llama_builder(test::tiny_256(), WeightType::kQ4K, 5);
    auto& tensor = b.tensor("blk.1.ffn_gate.weight");
    tensor.type = static_cast<uint32_t>(id);
    tensor.data.resize(static_cast<size_t>(288 * bytes));
    expect_file_refused(b, ErrorCode::kUnsupported,
                        fmt::format("'blk.1.ffn_gate.weight' is of type {}, which is not supported", name));
  }
}

TEST(ModelFile, BlocksAreThoseOfTheContainer) {
  for (const ops::WeightTraits& t : ops::kWeightTraits) {
    if (test::is_of_folders(t.type)) continue;
    const GgufTensorType* type = gguf_tensor_type(test::gguf_type_id(t.type));
    ASSERT_NE(type, nullptr) << t.name;
    EXPECT_EQ(type->name, t.name);
    EXPECT_EQ(type->block_values, static_cast<uint32_t>(t.block_values)) << t.name;
    EXPECT_EQ(type->block_bytes, static_cast<uint32_t>(t.block_bytes)) << t.name;
  }
}

TEST(ModelFile, ConvertsNorms) {
  for (WeightType type : {WeightType::kF16, WeightType::kBf16}) {
    GgufBuilder b = tiny();
    std::vector<float> values(128, 0.75F);
    values[3] = -1.5F;
    auto& tensor = b.tensor("blk.1.ffn_norm.weight");
    tensor.type = test::gguf_type_id(type);
    tensor.data = test::quantize(type, values, 128);
    auto model = load(b);
    ASSERT_TRUE(model.ok()) << model.status().message();
    EXPECT_EQ((*model)->weights().layers[1].ffn_norm.weight, values);
  }
  GgufBuilder b = tiny();
  auto& tensor = b.tensor("blk.1.ffn_norm.weight");
  tensor.type = test::gguf_type_id(WeightType::kQ8_0);
  tensor.data = test::quantize(WeightType::kQ8_0, std::vector<float>(128, 1.0F), 128);
  expect_file_refused(b, ErrorCode::kUnsupported, "where F32, F16 or BF16 is needed");
}

TEST(ModelFile, RefusesNormsThatAreNotFinite) {
  GgufBuilder b = tiny();
  const float value = std::numeric_limits<float>::infinity();
  std::memcpy(b.tensor("output_norm.weight").data.data() + 8, &value, sizeof(value));
  expect_file_refused(b, ErrorCode::kCorrupt, "value 2 of the tensor 'output_norm.weight' is not finite");
}

TEST(ModelFile, WarnsOfHarmlessExtrasAndRefusesOthers) {
  const auto with = [](const char* name) {
    GgufBuilder b = tiny();
    b.add_tensor(name, {1}, 0, std::vector<std::byte>(4));
    return b;
  };
  auto model = load(with("blk.0.attn_rot_embd.weight"));
  ASSERT_TRUE(model.ok()) << model.status().message();
  ASSERT_EQ((*model)->warnings().size(), 1U);
  EXPECT_THAT((*model)->warnings()[0], HasSubstr("'blk.0.attn_rot_embd.weight' is not used"));
  for (const char* name : {"blk.0.attn_sinks.weight", "output.bias", "blk.1.attn_q_norm.weight",
                           "blk.0.ffn_gate_inp.weight", "blk.0.ffn_up_exps.weight", "blk.2.ffn_down.scale",
                           "blk.0.ffn_up.0.weight", "blk.1.ffn_down.99.weight"}) {
    expect_file_refused(with(name), ErrorCode::kUnsupported,
                        fmt::format("'{}' changes what the model computes", name));
  }
  expect_file_refused(with("blk.3.anything.weight"), ErrorCode::kUnsupported, "beyond the model's 3 layers");
}

// ---------------------------------------------------------------- experts

// Mixtral's 8 experts of width 96 in 3 layers of width 128, or dots.llm1's behind a layer without.
GgufBuilder mixture_file(const std::string& architecture = "llama") {
  for (const test::TinyLlamaShape& shape : test::tiny_mixtures()) {
    if (shape.architecture == architecture) return test::tiny_llama_builder(shape, WeightType::kF32, 5);
  }
  KV_CHECK(false, "{}", architecture);
  return {};
}

// A tensor for each expert, as in old files, in the place of those of all.
GgufBuilder numbered_file() {
  GgufBuilder b = mixture_file();
  for (int layer = 0; layer < 3; ++layer) {
    for (const char* role : {"ffn_gate", "ffn_up", "ffn_down"}) {
      const std::string whole = fmt::format("blk.{}.{}_exps.weight", layer, role);
      const GgufBuilder::Tensor all = b.tensor(whole);
      b.remove_tensor(whole);
      const auto bytes = static_cast<std::ptrdiff_t>(all.data.size() / 8);
      for (int e = 0; e < 8; ++e) {
        const auto at = all.data.begin() + e * bytes;
        b.add_tensor(fmt::format("blk.{}.{}.{}.weight", layer, role, e), {all.shape[0], all.shape[1]},
                     all.type, {at, at + bytes});
      }
    }
  }
  return b;
}

TEST(ModelFile, ExpertsOfATensorEachAreThoseOfOneTensor) {
  const auto stacked = load(mixture_file()), numbered = load(numbered_file());
  ASSERT_TRUE(stacked.ok() && numbered.ok()) << numbered.status().message();
  const ExpertWeights &a = (*stacked)->weights().layers[2].experts,
                      &b = (*numbered)->weights().layers[2].experts;
  for (const auto& [x, y] : {std::pair{&a.gate, &b.gate}, {&a.up, &b.up}, {&a.down, &b.down}}) {
    ASSERT_EQ(x->size(), 8U);
    ASSERT_EQ(y->size(), 8U);
    for (size_t e = 0; e < 8; ++e) {
      ASSERT_EQ((*x)[e].bytes, (*y)[e].bytes);
      EXPECT_EQ(std::memcmp((*x)[e].data, (*y)[e].data, (*x)[e].bytes), 0);
    }
  }
}

TEST(ModelFile, ChecksTheTensorsOfExperts) {
  for (const char* name : {"blk.1.ffn_gate_inp.weight", "blk.0.ffn_gate_exps.weight",
                           "blk.2.ffn_up_exps.weight", "blk.1.ffn_down_exps.weight"}) {
    GgufBuilder b = mixture_file();
    b.remove_tensor(name);
    expect_file_refused(b, ErrorCode::kCorrupt, fmt::format("'{}' is missing", name));
  }
  GgufBuilder b = mixture_file();
  b.tensor("blk.1.ffn_gate_inp.weight").shape = {64, 16};
  expect_file_refused(b, ErrorCode::kCorrupt,
                      "'blk.1.ffn_gate_inp.weight' is 64 x 16 x 1 x 1 where the metadata asks for 128 x 8;");
  for (const std::vector<uint64_t>& shape : {std::vector<uint64_t>{128, 96, 4}, {96, 128, 8}, {128, 768}}) {
    b = mixture_file();
    b.tensor("blk.0.ffn_up_exps.weight").shape = shape;
    expect_file_refused(b, ErrorCode::kCorrupt, "x 1 where the metadata asks for 128 x 96 x 8;");
  }
}

TEST(ModelFile, ChecksTheTensorsOfExpertsOneByOne) {
  GgufBuilder b = numbered_file();
  b.remove_tensor("blk.1.ffn_up.3.weight");
  expect_file_refused(b, ErrorCode::kCorrupt, "'blk.1.ffn_up.3.weight' is missing");
  b = numbered_file();
  b.tensor("blk.1.ffn_up.3.weight").shape = {96, 128};
  expect_file_refused(b, ErrorCode::kCorrupt, "96 x 128 x 1 x 1 where the metadata asks for 128 x 96;");
  b = numbered_file();
  b.tensor("blk.1.ffn_up.3.weight").type = test::gguf_type_id(WeightType::kF16);
  b.tensor("blk.1.ffn_up.3.weight").data.resize(size_t{2} * 96 * 128);
  expect_file_refused(b, ErrorCode::kUnsupported, "the experts of layer 1 are of several types");
  // More than there are, or beside the tensor of all, or in a layer without experts.
  const auto refused = [](GgufBuilder file, const char* name) {
    file.add_tensor(name, {128, 96}, test::gguf_type_id(WeightType::kF32),
                    std::vector<std::byte>(size_t{4} * 96 * 128));
    expect_file_refused(file, ErrorCode::kUnsupported,
                        fmt::format("'{}' changes what the model computes", name));
  };
  refused(numbered_file(), "blk.1.ffn_up.8.weight");
  refused(mixture_file(), "blk.1.ffn_up.3.weight");
  refused(mixture_file("dots1"), "blk.0.ffn_gate.3.weight");
}

TEST(ModelFile, OpensFilesAndNamesWhatItCannotOpen) {
  const auto bytes = tiny().build();
  test::TempFile file(bytes);
  auto model = ModelFile::open(file.path());
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->path(), file.path());
  EXPECT_EQ((*model)->file_bytes(), bytes.size());

  const auto refused = [](const std::string& path, ErrorCode code, const std::string& part) {
    const Status status = ModelFile::open(path).status();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.code(), code) << status.message();
    EXPECT_THAT(status.message(), AllOf(StartsWith(path), HasSubstr(part)));
  };
  refused(file.path() + ".missing", ErrorCode::kNotFound, "no such file");
  refused(file.path() + "/model.gguf", ErrorCode::kNotFound, "no such file");
  refused(std::filesystem::temp_directory_path().string(), ErrorCode::kInvalidArgument, "directory");
  refused("/dev/null", ErrorCode::kInvalidArgument, "not a plain file");
  test::TempFile empty({});
  refused(empty.path(), ErrorCode::kInvalidArgument, "empty");
  test::TempFile cut(std::span<const std::byte>(bytes).first(bytes.size() / 2));
  refused(cut.path(), ErrorCode::kCorrupt, "fetch it again");
}

TEST(ModelFile, ReleasedPagesReadTheSame) {
  const auto bytes = tiny(WeightType::kF32).build();
  test::TempFile file(bytes);
  auto model = ModelFile::open(file.path());
  ASSERT_TRUE(model.ok()) << model.status().message();
  (*model)->release_pages();
  const WeightMatrix& last = (*model)->weights().output;
  const auto in_memory = ModelFile::from_bytes(bytes, "model.gguf");
  ASSERT_TRUE(in_memory.ok());
  (*in_memory)->release_pages();
  const WeightMatrix& same = (*in_memory)->weights().output;
  ASSERT_EQ(last.bytes, same.bytes);
  EXPECT_EQ(std::memcmp(last.data, same.data, last.bytes), 0);
}

TEST(ModelFile, TheFingerprintNamesTheModel) {
  const auto fingerprint = [](const GgufBuilder& b) {
    auto model = load(b);
    KV_CHECK(model.ok(), "{}", model.status().message());
    return to_hex((*model)->fingerprint());
  };
  const std::string base = fingerprint(tiny());
  EXPECT_EQ(base.size(), 64U);
  EXPECT_EQ(fingerprint(tiny()), base);
  GgufBuilder b = tiny();
  b.set_string("general.name", "another");
  EXPECT_NE(fingerprint(b), base);
  b = tiny();
  b.tensor("blk.1.ffn_up.weight").data.front() ^= std::byte{1};
  EXPECT_NE(fingerprint(b), base);
  b = tiny();
  b.tensor("blk.1.ffn_up.weight").data.back() ^= std::byte{1};
  EXPECT_NE(fingerprint(b), base);
}

TEST(ModelFile, TheDigestIsSha256) {
  // Without tensors only the header counts; this one's digest was computed with another tool.
  GgufBuilder b;
  const auto bytes = b.build();
  auto file = Gguf::parse(bytes, "model.gguf");
  ASSERT_TRUE(file.ok()) << file.status().message();
  ASSERT_EQ(bytes.size(), 24U);
  EXPECT_EQ(to_hex(fingerprint_of(*file)),
            "a4e5e156ddec27e286f75328784d7106b60a4eb1d246e950a001a3f944fbda99");
}

TEST(ModelFile, DescribesItself) {
  auto model = load(tiny());
  ASSERT_TRUE(model.ok());
  const std::string text = describe_model(**model);
  for (const char* part :
       {"model.gguf", "architecture:         llama", "layers:               3",
        "4 query heads, 2 KV heads of 32 values (GQA)", "2048 tokens", "KV per token, f32:    1.50 KiB",
        "KV per token, bf16:   768", "KV per token, q8_0:   408",
        "X per token:          408 B (int8: 0.27 of f32, 0.53 of bf16, 1.00 of q8_0)",
        "hidden cache:         X pays: with K and V in f32 or bf16; X does not pay, and is never chosen: "
        "it takes no less than K and V in q8_0",
        "Q4_1", "F32", "512 tokens, 253 merges, model 'gpt2', pre 'smollm'", "chat template:        yes",
        "its own", "fingerprint:"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(ModelFile, DescribesWhatAnArchitectureHas) {
  const std::map<std::string, std::vector<std::string>> wanted = {
      {"gemma2",
       {"feed-forward 192, GeGLU", "before and behind attention and feed-forward",
        "factors:              embedding times 11.313708, scores capped at 50, logits capped at 30",
        "windows:              2 of 3 layers attend to the last 96 tokens only; of K and V of 2048 tokens 36 "
        "% "
        "are read and kept, in whole blocks; a GPU keeps all"}},
      {"gemma3",
       {"; of Q and K by head", "base 10000, in 5 of 6 layers\n", "base 1000000, in 1 of 6 layers\n"}},
      {"gemma4",
       {"4 query heads, 2 KV heads of 64 values (GQA), in 2 of 4 layers 4 of 32 values\n",
        "; of Q and K by head; of V by head, without weights\n", "base 10000, in 2 of 4 layers\n",
        "base 1000000, a divisor for each frequency, in 2 of 4 layers\n",
        // Each of 4 layers has 2 planes of 4 x 32 or 2 x 64 values.
        "KV per token, bf16:   2.00 KiB\n"}},
      {"granite", {"SwiGLU", "embedding times 1.5, residuals times 0.6, logits times 2"}},
      {"llama",
       {"3 of 3 layers attend to the last 256 tokens only",
        "norm:                 RMSNorm, epsilon 1e-05\n"}},
      {"dots1",
       {"experts:              4 of 16 of 96, in 2 of 3 layers, by sigmoid, from 2 of 4 groups, and a shared "
        "one of 192"}},
      {"qwen3moe", {"experts:              8 of 40 of 96\n"}},
      {"deepseek2",
       {" query heads of 32 + 16 values over latent rows of 64 + 16 (MLA), values of 32\n",
        "KV per token, bf16:   480 B\n", "hidden cache:         there is no X"}},
      {"olmo2", {"1e-05, behind attention and feed-forward; of Q and K by row"}},
      {"qwen2", {"(GQA), with biases\n", "RoPE:                 base 10000\n"}},
      {"smollm3", {"base 10000, in 3 of 4 layers\n"}},
      {"opt", {"LayerNorm, epsilon 1e-05\n", "feed-forward 192, ReLU", "positions:            learned"}}};
  for (const test::TinyLlamaShape& shape : test::all_tiny_architectures()) {
    const auto model = load(test::tiny_llama_builder(shape, WeightType::kQ8_0, 1));
    ASSERT_TRUE(model.ok()) << model.status().message();
    const std::string text = describe_model(**model);
    const auto parts = wanted.find(shape.architecture);
    const bool mixtral = shape.architecture == "llama" && shape.experts > 0;
    if (parts == wanted.end() || mixtral) continue;
    for (const std::string& part : parts->second) EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(TinyLlama, IsDeterministic) {
  const auto shape = test::tiny_gqa();
  EXPECT_EQ(test::make_tiny_llama(shape, WeightType::kQ4_1, 1),
            test::make_tiny_llama(shape, WeightType::kQ4_1, 1));
  EXPECT_NE(test::make_tiny_llama(shape, WeightType::kQ4_1, 1),
            test::make_tiny_llama(shape, WeightType::kQ4_1, 2));
}

TEST(TinyLlama, TheVocabularyIsWellFormed) {
  for (int32_t size : {259, 260, 512, 1024, 32000}) {
    const test::TinyVocabulary v = test::make_tiny_vocabulary(size);
    ASSERT_EQ(v.tokens.size(), static_cast<size_t>(size));
    ASSERT_EQ(v.types.size(), v.tokens.size());
    EXPECT_EQ(v.tokens[3 + ' '], "\xc4\xa0");
    EXPECT_EQ(v.tokens[3 + 'a'], "a");
    ASSERT_EQ(v.merges.size(), v.tokens.size() - 259);
    std::vector<std::string> sorted = v.tokens;
    std::sort(sorted.begin(), sorted.end());
    EXPECT_EQ(std::adjacent_find(sorted.begin(), sorted.end()), sorted.end());
    for (size_t i = 0; i < v.merges.size(); ++i) {
      std::string joined = v.merges[i];
      joined.erase(joined.find(' '), 1);
      EXPECT_EQ(joined, v.tokens[259 + i]);
    }
  }
}

}  // namespace
}  // namespace kvasir
