// Folders whose matrices are quantised: their values, their types, and what is refused. That logits are those
// of the same values: exec/quantized_folder_test.cc.
#include "support/quantized_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "model/files/convert.h"
#include "model/model_folder_cases.h"
#include "support/random_parts.h"
#include "support/temp_file.h"

namespace kvasir {
namespace {

using ops::WeightType;
using test::FolderQuantizing;
using test::QuantizedFolder;
using test::TempFolder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// ---------------------------------------------------------------- golden values

constexpr size_t kRows = 128, kColumns = 256;

uint64_t fnv1a(const void* data, size_t size) {
  const auto* bytes = static_cast<const uint8_t*>(data);
  uint64_t hash = 0xCBF29CE484222325;
  for (size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 0x100000001B3;
  return hash;
}

struct GoldenCase {
  test::RandomMatrix matrix;  // as make_folder_goldens.py has it
  WeightType becomes;
};
const std::map<std::string, GoldenCase> kCases = {
    {"awq_128", {{"awq", 4, 128, "F16", ""}, WeightType::kZ4x128}},
    {"awq_32", {{"awq", 4, 32, "F16", ""}, WeightType::kZ4}},
    {"awq_whole", {{"awq", 4, 256, "F16", ""}, WeightType::kZ4x128}},
    {"gptq_4_64", {{"gptq", 4, 64, "F16", ""}, WeightType::kZ4}},
    {"gptq_4_order", {{"gptq", 4, 64, "F16", "order"}, WeightType::kF16}},
    {"gptq_4_middle", {{"gptq", 4, 128, "F16", "middle"}, WeightType::kQ4_0}},
    {"gptq_8_128", {{"gptq", 8, 128, "F16", ""}, WeightType::kF16}},
    {"gptq_8_middle", {{"gptq", 8, 32, "F16", "middle"}, WeightType::kQ8_0}},
    {"gptq_v2_4_128", {{"gptq_v2", 4, 128, "F16", ""}, WeightType::kZ4x128}},
    {"gptq_v2_4_order", {{"gptq_v2", 4, 32, "BF16", "order"}, WeightType::kBf16}},
    {"packed_4_128", {{"packed", 4, 128, "BF16", "middle"}, WeightType::kQ4_0}},
    {"packed_4_32_zeros", {{"packed", 4, 32, "F16", ""}, WeightType::kZ4}},
    {"packed_8_whole", {{"packed", 8, 256, "BF16", "middle"}, WeightType::kQ8_0}},
    {"bytes_whole", {{"bytes", 8, 256, "BF16", "middle"}, WeightType::kQ8_0}},
    {"fp8_blocks", {{"fp8_blocks", 8, 0, "F32", ""}, WeightType::kBf16}},
    {"fp8_rows", {{"fp8_rows", 8, 0, "BF16", ""}, WeightType::kBf16}},
    {"fp8_one", {{"fp8_one", 8, 0, "F32", ""}, WeightType::kBf16}},
};

std::vector<float> values_of(const WeightMatrix& m) {
  std::vector<float> out(static_cast<size_t>(m.rows * m.columns));
  std::vector<std::byte> row(m.row_bytes());
  for (int64_t r = 0; r < m.rows; ++r) {
    m.made->read(m.first_made + r, row.data());
    ops::dequantize_row(m.type, row.data(), m.columns, out.data() + r * m.columns);
  }
  return out;
}

TEST(QuantizedFolder, ValuesAreThoseOfOtherPrograms) {
  test::TinyLlamaShape shape;
  shape.layers = 1;
  shape.dim = kColumns;
  shape.heads = shape.kv_heads = 4;
  shape.head_dim = kRows / 4;
  shape.ffn = 64;
  const TinyFolder plain = make_tiny_folder(shape, WeightType::kBf16, 5);
  std::ifstream file(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/folder_values.txt");
  size_t compared = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string name, hash;
    words >> name >> hash;
    SCOPED_TRACE(name);
    ASSERT_TRUE(kCases.contains(name));
    const GoldenCase& c = kCases.at(name);
    TinyFolder folder = with(plain, R"("quantization_config":)" + test::quantization_config_of(c.matrix));
    const std::string stem = "model.layers.0.self_attn.q_proj";
    std::erase_if(folder.tensors, [&](const auto& t) { return t.name == stem + ".weight"; });
    for (FolderTensor& part : test::random_parts(c.matrix, stem, name, kRows, kColumns)) {
      folder.tensors.push_back(std::move(part));
    }
    const Opened opened(folder);
    const WeightMatrix& q = (*opened).weights().layers[0].attn_q;
    EXPECT_EQ(q.type, c.becomes) << ops::weight_type_name(q.type);
    EXPECT_EQ((*opened).warnings().size(),
              c.becomes == WeightType::kF16 || c.matrix.more == "order" ? 1U : 0U);
    std::vector<float> values = values_of(q);
    for (float& v : values) v += 0.0F;
    EXPECT_EQ(fnv1a(values.data(), values.size() * sizeof(float)), std::stoull(hash, nullptr, 16));
    ++compared;
  }
  EXPECT_EQ(compared, kCases.size());
}

// ---------------------------------------------------------------- types

// All rows are whole groups of 128.
TinyFolder folder_to_quantize(bool tied = true) {
  test::TinyLlamaShape shape;
  shape.dim = shape.ffn = 256;
  shape.heads = 4;
  shape.kv_heads = 2;
  shape.head_dim = 32;
  shape.layers = 2;
  shape.tied = tied;
  return make_tiny_folder(shape, WeightType::kBf16, 5);
}
QuantizedFolder quantized(const FolderQuantizing& how) {
  return quantize_folder(folder_to_quantize(), how);
}
WeightType type_of_q(const TinyFolder& folder) {
  return (*Opened(folder)).weights().layers[0].attn_q.type;
}

TEST(QuantizedFolder, IntegersBecomeBlocksOfTheSameValues) {
  EXPECT_EQ(type_of_q(quantized({.form = "awq", .group = 128}).folder), WeightType::kZ4x128);
  EXPECT_EQ(type_of_q(quantized({.form = "awq", .group = 64}).folder), WeightType::kZ4);
  EXPECT_EQ(type_of_q(quantized({.form = "awq", .in_middle = true}).folder), WeightType::kQ4_0);
  EXPECT_EQ(type_of_q(quantized({.form = "gptq", .bits = 8, .in_middle = true}).folder), WeightType::kQ8_0);
  // The memory of weights is that of the blocks.
  const QuantizedFolder awq = quantized({.form = "awq", .group = 128});
  const Opened opened(awq.folder);
  const WeightMatrix& up = (*opened).weights().layers[0].ffn_up;
  EXPECT_EQ(up.bytes, static_cast<uint64_t>(up.rows * up.columns / 128 * 68));
  EXPECT_THAT((*opened).warnings(), IsEmpty());
}

TEST(QuantizedFolder, OneZeroPointOutOfTheMiddleDecidesForTheModel) {
  TinyFolder folder = quantized({.form = "awq", .in_middle = true}).folder;
  folder.tensor("model.layers.1.mlp.up_proj.qzeros").data[3] = std::byte{0x87};
  EXPECT_EQ(type_of_q(folder), WeightType::kZ4);
}

TEST(QuantizedFolder, AScaleThatF16HasNotKeepsAMatrixInItsType) {
  TinyFolder folder = quantized({.form = "packed", .in_middle = true, .type = "BF16"}).folder;
  EXPECT_EQ(type_of_q(folder), WeightType::kQ4_0);
  const uint16_t tiny = ops::f32_to_bf16(1e-9F);
  std::memcpy(folder.tensor("model.layers.0.self_attn.q_proj.weight_scale").data.data() + 2, &tiny, 2);
  const Opened opened(folder);
  EXPECT_EQ((*opened).weights().layers[0].attn_q.type, WeightType::kBf16);
  EXPECT_EQ((*opened).weights().layers[1].attn_q.type, WeightType::kQ4_0);
  EXPECT_THAT((*opened).warnings(), testing::ElementsAre(HasSubstr("1 quantised matrices are held as BF16")));
}

TEST(QuantizedFolder, AnOutputMatrixMayBeQuantised) {
  const Opened opened(
      quantize_folder(folder_to_quantize(/*tied=*/false), {.form = "gptq", .output_too = true}).folder);
  EXPECT_EQ((*opened).weights().output.type, WeightType::kZ4);
}

TEST(QuantizedFolder, PartsMayLieInSeveralFiles) {
  const QuantizedFolder made = quantized({.form = "gptq"});
  const TempFolder place;
  made.folder.write(place.path(), /*files=*/7);
  const auto model = ModelFile::open(place.path());
  ASSERT_TRUE(model.ok()) << model.status().message();
  EXPECT_EQ((*model)->weights().layers[0].attn_q.type, WeightType::kZ4);
}

TEST(QuantizedFolder, PassesOverWhatQuantisersAddBesides) {
  TinyFolder folder = quantized({.form = "fp8_rows", .type = "BF16"}).folder;
  const FolderTensor one = {
      "model.layers.0.self_attn.q_proj.input_scale", "F32", {1}, std::vector<std::byte>(4)};
  folder.tensors.push_back(one);
  folder.tensors.push_back({"model.layers.0.self_attn.k_scale", "F32", {1}, std::vector<std::byte>(4)});
  folder.tensors.push_back(
      {"model.layers.0.self_attn.q_proj.bias", "BF16", {128}, std::vector<std::byte>(256)});
  EXPECT_THAT((*Opened(folder)).warnings(), IsEmpty());
  folder.tensors.back().data[7] = std::byte{1};
  expect_refused(folder, ErrorCode::kUnsupported, "q_proj.bias' is none that a llama");
}

// ---------------------------------------------------------------- conversion

TEST(QuantizedFolder, ConvertsToWhatGgufHas) {
  const TempFolder place;
  const std::string path = place.path() + "/out.gguf";
  const auto converted = [&](const TinyFolder& folder, const char* recipe) {
    return convert_model(*Opened(folder), *find_recipe(recipe), path, 1);
  };
  const QuantizedFolder awq = quantized({.form = "awq"});
  const Status refused = converted(awq.folder, "q4_0");
  EXPECT_EQ(refused.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(refused.message(),
              HasSubstr("quantised already, as Z4, which GGUF files do not have; convert it "
                        "to f32, f16 or bf16"));
  ASSERT_TRUE(converted(awq.folder, "f32").ok());
  const auto as_f32 = ModelFile::open(path);
  ASSERT_TRUE(as_f32.ok());
  const WeightMatrix& up = (*as_f32)->weights().layers[1].ffn_up;
  ASSERT_EQ(up.type, WeightType::kF32);
  TinyFolder plain = awq.plain;
  const FolderTensor& wanted = plain.tensor("model.layers.1.mlp.up_proj.weight");
  EXPECT_EQ(std::memcmp(up.data, wanted.data.data(), wanted.data.size()), 0);
  // Zero points in the middle: Q4_0 as it is.
  const QuantizedFolder middle = quantized({.form = "gptq", .in_middle = true});
  const Status written = converted(middle.folder, "q4_0");
  ASSERT_TRUE(written.ok()) << written.message();
  EXPECT_EQ((*ModelFile::open(path))->weights().layers[1].ffn_up.type, WeightType::kQ4_0);
  // FP8 is BF16, which may become anything.
  EXPECT_TRUE(converted(quantized({.form = "fp8_blocks", .type = "F32"}).folder, "q8_0").ok());
}

// ---------------------------------------------------------------- what is refused

void expect_setting_refused(const std::string& config, const std::string& part) {
  expect_refused(with(tiny_folder_of(), R"("quantization_config":)" + config), ErrorCode::kUnsupported, part);
}

TEST(QuantizedFolder, RefusesOtherSettingsByName) {
  expect_setting_refused(
      R"({"quant_method":"bitsandbytes","load_in_4bit":true})",
      "'quant_method' is \"bitsandbytes\", which is not supported; use the model in BF16, with 4 "
      "bits as AWQ or GPTQ, in FP8, or as a GGUF file");
  expect_setting_refused(R"({"load_in_4bit":true})", "without a quant_method");
  expect_setting_refused(R"({"quant_method":"gptq","bits":3})", "'bits' is 3, where 4 or 8 is needed");
  expect_setting_refused(R"({"quant_method":"gptq","bits":2})", "'bits' is 2");
  expect_setting_refused(R"({"quant_method":"awq","bits":8})", "'bits' is 8, where 4 is needed");
  expect_setting_refused(R"({"quant_method":"awq","bits":4,"group_size":16})", "'group_size' is 16");
  expect_setting_refused(R"({"quant_method":"gptq","bits":4,"group_size":0})", "'group_size' is 0");
  expect_setting_refused(R"({"quant_method":"awq","version":"gemv"})", "'version' is \"gemv\", where gemm");
  expect_setting_refused(R"({"quant_method":"gptq","bits":4,"checkpoint_format":"marlin"})",
                         "'checkpoint_format' is \"marlin\"");
  expect_setting_refused(R"({"quant_method":"gptq","bits":4,"is_marlin_format":true})", "'is_marlin_format'");
  expect_setting_refused(R"({"quant_method":"fp8","fmt":"e5m2"})", "'fmt' is \"e5m2\"");
  expect_setting_refused(R"({"quant_method":"fp8","weight_block_size":[128,0]})", "'weight_block_size'");
  expect_setting_refused(R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized"})",
                         "'format' is \"nvfp4-pack-quantized\"");
  expect_setting_refused(
      R"({"quant_method":"compressed-tensors","config_groups":{"a":{"weights":{"type":"int","num_bits":2}}}})",
      "config_groups a, weights: 'num_bits' is 2");
  expect_setting_refused(R"({"quant_method":"compressed-tensors","sparsity_config":{"format":"sparse-24"}})",
                         "sparsity_config: 'format'");
  expect_setting_refused(R"({"quant_method":"compressed-tensors","transform_config":{"r1":{}}})",
                         "'transform_config'");
}

// A norm, and the matrix from which latent attention makes two.
TEST(QuantizedFolder, RefusesWhatIsNoMatrixAndLatentAttention) {
  TinyFolder norm = quantized({.form = "fp8_rows"}).folder;
  FolderTensor& tensor = norm.tensor("model.norm.weight");
  tensor.type = "F8_E4M3";
  tensor.data.resize(tensor.shape[0]);
  norm.tensors.push_back({"model.norm.weight_scale", "F32", {1}, std::vector<std::byte>(4)});
  expect_refused(norm, ErrorCode::kUnsupported, "is quantised, which is supported for matrices alone");
  for (const char* form : {"awq", "fp8_rows", "fp8_blocks"}) {
    expect_refused(test::quantize_folder(make_tiny_folder(test::tiny_latents()[0], ops::WeightType::kBf16, 1),
                                         {.form = form})
                       .folder,
                   ErrorCode::kUnsupported, "which is not supported for latent attention");
  }
}

TinyFolder without(TinyFolder folder, const std::string& name) {
  std::erase_if(folder.tensors, [&](const auto& tensor) { return tensor.name == name; });
  return folder;
}

TEST(QuantizedFolder, RefusesDamage) {
  const std::string q = "model.layers.1.self_attn.q_proj.";
  const std::pair<FolderQuantizing, std::vector<std::string>> forms[] = {
      {{.form = "awq"}, {"qweight", "qzeros", "scales"}},
      {{.form = "gptq"}, {"qweight", "qzeros", "scales"}},
      {{.form = "packed"}, {"weight_packed", "weight_scale", "weight_shape"}},
      {{.form = "bytes", .bits = 8, .in_middle = true}, {"weight", "weight_scale"}},
      {{.form = "fp8_blocks", .type = "F32"}, {"weight", "weight_scale_inv"}},
  };
  for (const auto& [how, parts] : forms) {
    const TinyFolder good = quantized(how).folder;
    for (const std::string& part : parts) {
      SCOPED_TRACE(how.form + " " + part);
      const Opened missing(without(good, q + part));
      EXPECT_EQ(missing.model.status().code(), ErrorCode::kCorrupt);
      EXPECT_THAT(missing.model.status().message(), HasSubstr("is missing"));
      // Of half the outputs or inputs, by turns.
      for (size_t axis = 0; axis < good.tensors[0].shape.size(); ++axis) {
        TinyFolder half = good;
        FolderTensor& tensor = half.tensor(q + part);
        if (how.form == "bytes" && part == "weight_scale" && axis == 1) continue;  // larger groups
        if (tensor.shape.size() <= axis || tensor.shape[axis] % 2 != 0) continue;
        tensor.shape[axis] /= 2;
        tensor.data.resize(tensor.data.size() / 2);
        EXPECT_FALSE(Opened(half).model.ok()) << axis;
      }
      TinyFolder other = good;
      FolderTensor& tensor = other.tensor(q + part);
      tensor.type = tensor.type == "I32"   ? "F32"
                    : tensor.type == "F16" ? "I16"
                    : tensor.type == "F32" ? "I32"
                    : tensor.type == "I64" ? "F64"
                                           : "U8";
      EXPECT_FALSE(Opened(other).model.ok());
    }
    TinyFolder twice = good;
    for (const std::string& part : parts) {
      FolderTensor copy = twice.tensor(q + part);
      copy.name = "layers.1.self_attn.q_proj." + part;
      twice.tensors.push_back(copy);
    }
    expect_refused(twice, ErrorCode::kCorrupt, "is there twice");
  }
  TinyFolder infinite = quantized({.form = "awq"}).folder;
  infinite.tensor(q + "scales").data[5] = std::byte{0x7C};
  expect_refused(infinite, ErrorCode::kCorrupt, "q_proj.scales' has a value that is not finite");
  for (const int32_t group : {-1, 1 << 20}) {
    TinyFolder order = quantized({.form = "gptq"}).folder;
    std::memcpy(order.tensor(q + "g_idx").data.data() + 8, &group, 4);
    expect_refused(order, ErrorCode::kCorrupt, fmt::format("q_proj.g_idx' has group {} of 8", group));
  }
  TinyFolder embedding = quantized({.form = "fp8_rows", .type = "F32"}).folder;
  FolderTensor& table = embedding.tensor("model.embed_tokens.weight");
  table.type = "F8_E4M3";
  table.data.resize(table.data.size() / 2);
  embedding.tensors.push_back({"model.embed_tokens.weight_scale", "F32", {1}, std::vector<std::byte>(4)});
  expect_refused(embedding, ErrorCode::kUnsupported,
                 "the embedding ('model.embed_tokens.weight') is quantised");
  for (const char* form : {"bytes", "fp8_rows"}) {
    TinyFolder zeros = quantized({.form = form, .bits = 8, .in_middle = true, .type = "BF16"}).folder;
    zeros.tensors.push_back({q + "weight_zero_point", "I8", {128, 1}, std::vector<std::byte>(128)});
    EXPECT_TRUE(Opened(zeros).model.ok()) << form;
    zeros.tensors.back().data[9] = std::byte{1};
    expect_refused(zeros, ErrorCode::kUnsupported, "q_proj.weight_zero_point' is not zero");
  }
  // Without the field nothing says what the parts are.
  TinyFolder silent = quantized({.form = "awq"}).folder;
  silent.texts["config.json"] = folder_to_quantize().texts["config.json"];
  expect_refused(silent, ErrorCode::kUnsupported, "is none that a llama of this configuration has");
}

TEST(QuantizedFolder, EveryPartIsPartOfTheFingerprint) {
  const TinyFolder good = quantized({.form = "awq"}).folder;
  const auto fingerprint = (*Opened(good)).fingerprint();
  for (const char* part : {"qweight", "qzeros", "scales"}) {
    TinyFolder other = good;
    other.tensor(std::string("model.layers.1.mlp.down_proj.") + part).data[0] ^= std::byte{1};
    EXPECT_NE((*Opened(other)).fingerprint(), fingerprint) << part;
  }
}

}  // namespace
}  // namespace kvasir
