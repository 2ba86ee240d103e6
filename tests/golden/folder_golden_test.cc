// Folders whose matrices are quantised against transformers: see make_folder_goldens.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iostream>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <vector>

#include "golden/teacher_forcing.h"
#include "model/files/model_file.h"
#include "support/random_parts.h"

namespace kvasir::test {
namespace {

constexpr uint64_t kWidth = 256, kFfn = 384, kHeads = 4, kKvHeads = 2, kHead = 64, kVocabulary = 96,
                   kLayers = 2;
constexpr size_t kPromptTokens = 100;
constexpr double kLargestError = 1e-4;  // of the golden's root mean square

const std::map<std::string, RandomMatrix> kModels = {
    {"awq", {"awq", 4, 128, "F16", "", true}},
    {"gptq", {"gptq", 4, 32, "F16", "", true}},
    {"gptq_order", {"gptq", 4, 64, "F16", "order", true}},
    {"gptq_8", {"gptq", 8, 32, "F16", "middle", true}},
    {"packed", {"packed", 4, 128, "BF16", "middle", true}},
    {"fp8", {"fp8_blocks", 8, 0, "F32", "", true}},
};

TinyFolder folder_of(const std::string& form, const RandomMatrix& matrix) {
  TinyFolder out;
  out.texts["config.json"] = fmt::format(
      R"({{"model_type":"llama","architectures":["LlamaForCausalLM"],"vocab_size":{},"hidden_size":{},)"
      R"("intermediate_size":{},"num_hidden_layers":{},"num_attention_heads":{},"num_key_value_heads":{},)"
      R"("head_dim":{},"max_position_embeddings":128,"rms_norm_eps":1e-5,"rope_theta":10000.0,"hidden_act":"silu",)"
      R"("tie_word_embeddings":false,"quantization_config":{}}})",
      kVocabulary, kWidth, kFfn, kLayers, kHeads, kKvHeads, kHead, quantization_config_of(matrix));
  const auto add_norm = [&](const std::string& name) {
    FolderTensor& to =
        out.tensors.emplace_back(FolderTensor{name, "F32", {kWidth}, std::vector<std::byte>(4 * kWidth)});
    const std::vector<float> ones(kWidth, 1.0F);
    std::memcpy(to.data.data(), ones.data(), to.data.size());
  };
  for (const char* name : {"model.embed_tokens.weight", "lm_head.weight"}) {
    FolderTensor& to = out.tensors.emplace_back(
        FolderTensor{name, "BF16", {kVocabulary, kWidth}, random_bytes(name, 2 * kVocabulary * kWidth)});
    for (size_t i = 1; i < to.data.size(); i += 2)
      to.data[i] = (to.data[i] & std::byte{0x80}) | std::byte{0x3C};
  }
  add_norm("model.norm.weight");
  for (uint64_t layer = 0; layer < kLayers; ++layer) {
    const std::string prefix = fmt::format("model.layers.{}.", layer);
    add_norm(prefix + "input_layernorm.weight");
    add_norm(prefix + "post_attention_layernorm.weight");
    const auto add = [&](const std::string& role, uint64_t rows, uint64_t columns) {
      for (FolderTensor& part :
           random_parts(matrix, prefix + role, form + "." + prefix + role, rows, columns)) {
        out.tensors.push_back(std::move(part));
      }
    };
    add("self_attn.q_proj", kHeads * kHead, kWidth);
    add("self_attn.k_proj", kKvHeads * kHead, kWidth);
    add("self_attn.v_proj", kKvHeads * kHead, kWidth);
    add("self_attn.o_proj", kWidth, kHeads * kHead);
    add("mlp.gate_proj", kFfn, kWidth);
    add("mlp.up_proj", kFfn, kWidth);
    add("mlp.down_proj", kWidth, kFfn);
  }
  return out;
}

// Every third token's, by form and position.
std::map<std::string, std::map<uint32_t, std::vector<double>>> read_goldens() {
  std::map<std::string, std::map<uint32_t, std::vector<double>>> out;
  std::ifstream file(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/folder_logits.txt");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("#")) continue;
    std::istringstream words(line);
    std::string form;
    uint32_t position = 0;
    words >> form >> position;
    for (double value = 0; words >> value;) out[form][position].push_back(value);
  }
  return out;
}

TEST(FolderGolden, LogitsAreThoseOfTransformers) {
  const auto goldens = read_goldens();
  ASSERT_EQ(goldens.size(), kModels.size());
  std::vector<Token> tokens;
  for (std::byte b : random_bytes("tokens", kPromptTokens))
    tokens.push_back(static_cast<Token>(std::to_integer<uint64_t>(b) % kVocabulary));
  for (const auto& [form, matrix] : kModels) {
    SCOPED_TRACE(form);
    const FolderInMemory bytes(folder_of(form, matrix));
    const auto file = ModelFile::from_folder(bytes.files());
    ASSERT_TRUE(file.ok()) << file.status().message();
    const auto& golden = goldens.at(form);
    double worst = 0, squares = 0;
    size_t compared = 0;
    TeacherForcing model(**file, {ops::ActivationMode::kF32, ops::KvType::kF32}, kPromptTokens, 1);
    model.run(tokens, 37, [&](uint32_t position, std::span<const float> logits) {
      const auto row = golden.find(position);
      if (row == golden.end()) return;
      for (size_t i = 0; i < row->second.size(); ++i, ++compared) {
        const double wanted = row->second[i], off = std::fabs(static_cast<double>(logits[3 * i]) - wanted);
        ASSERT_TRUE(std::isfinite(off));
        worst = std::max(worst, off);
        squares += wanted * wanted;
      }
    });
    ASSERT_EQ(compared, golden.size() * kVocabulary / 3);
    worst /= std::sqrt(squares / static_cast<double>(compared));
    std::cout << fmt::format("{}: {:.2g} of the logits' root mean square\n", form, worst);
    EXPECT_LT(worst, kLargestError);
  }
}

}  // namespace
}  // namespace kvasir::test
