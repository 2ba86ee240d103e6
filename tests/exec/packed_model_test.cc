// What a packed model says about the numerics of its products.
#include "exec/cpu/packed_model.h"

#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <tuple>

#include "model/files/convert.h"
#include "model/files/form_bytes.h"
#include "support/take.h"
#include "support/temp_file.h"
#include "support/tiny_folder.h"
#include "support/tiny_llama.h"

namespace kvasir {
namespace {

using ops::ActivationMode;
using ops::WeightType;
using Types = std::vector<std::pair<std::string, WeightType>>;

// "under kAuto under kF32"
std::string activation_types(WeightType type, const Types& others, bool tied = true) {
  test::TinyLlamaShape shape = test::tiny_gqa();
  shape.tied = tied;
  shape.other_types = others;
  auto file = ModelFile::from_bytes(test::make_tiny_llama(shape, type, 5), "model.gguf");
  EXPECT_TRUE(file.ok()) << file.status().message();
  auto packed = PackedModel::make(**file, 64);
  EXPECT_TRUE(packed.ok()) << packed.status().message();
  return (*packed)->activation_types(ActivationMode::kAuto) + " " +
         (*packed)->activation_types(ActivationMode::kF32);
}

TEST(PackedModel, RefusesHeadsThatAreNoMultipleOfAVector) {
  test::TinyLlamaShape shape = test::tiny_gqa();
  shape.head_dim = 24;
  const auto file =
      ModelFile::from_bytes(test::make_tiny_llama(shape, WeightType::kBf16, 5), "model.gguf").value();
  const Status status = PackedModel::make(*file, 64).status();
  EXPECT_EQ(status.code(), ErrorCode::kUnsupported);
  EXPECT_EQ(status.message(),
            "model.gguf: heads of 24 values are not supported (multiples of 16); use another model");
}

TEST(PackedModel, NamesTheRowsThatItsProductsTake) {
  EXPECT_EQ(activation_types(WeightType::kQ4_1, {}), "int8 f32");
  EXPECT_EQ(activation_types(WeightType::kBf16, {}), "bf16 f32");
  EXPECT_EQ(activation_types(WeightType::kQ8_0, {{"attn_v", WeightType::kBf16}}), "bf16+int8 f32");
  EXPECT_EQ(activation_types(WeightType::kBf16, {{"ffn_down", WeightType::kQ4_0}}), "bf16+int8 f32");
  EXPECT_EQ(activation_types(WeightType::kF16, {{"attn_k", WeightType::kBf16}}), "bf16+f32 f32");
  EXPECT_EQ(activation_types(WeightType::kF32, {}), "f32 f32");
}

TEST(PackedModel, ATableThatIsOnlyLookedUpInIsNoProduct) {
  const Types types = {{"token_embd", WeightType::kBf16}};
  EXPECT_EQ(activation_types(WeightType::kQ8_0, types, false), "int8 f32");
  EXPECT_EQ(activation_types(WeightType::kQ8_0, types, true), "bf16+int8 f32");
}

TEST(PackedModel, BiasesStandAsTheColumnsOfQKV) {
  test::TinyLlamaShape shape = test::tiny_gqa();
  shape.qkv_bias = true;
  const test::GgufBuilder whole = test::tiny_llama_builder(shape, WeightType::kQ8_0, 5);
  const auto bias = [](const test::GgufBuilder& b, size_t layer) {
    auto file = ModelFile::from_bytes(b.build(), "model.gguf");
    EXPECT_TRUE(file.ok()) << file.status().message();
    const LayerWeights& l = (*file)->weights().layers[layer];
    auto packed = PackedModel::make(**file, 64);
    EXPECT_TRUE(packed.ok()) << packed.status().message();
    return std::tuple((*packed)->layers()[layer].qkv_bias, l.q_bias, l.k_bias, l.v_bias);
  };
  const std::vector<float> none_q(128), none_kv(64);
  const auto joined = [](std::vector<float> a, const std::vector<float>& b, const std::vector<float>& c) {
    a.insert(a.end(), b.begin(), b.end());
    a.insert(a.end(), c.begin(), c.end());
    return a;
  };
  for (size_t layer : {0U, 2U}) {
    const auto [all, q, k, v] = bias(whole, layer);
    EXPECT_EQ(q.size(), 128U);
    EXPECT_EQ(all, joined(q, k, v));
    // A part that is absent is zero, in its layer only.
    test::GgufBuilder part = whole;
    part.remove_tensor("blk.0.attn_k.bias");
    EXPECT_EQ(std::get<0>(bias(part, layer)), joined(q, layer == 0 ? none_kv : k, v));
    part.remove_tensor("blk.0.attn_q.bias");
    EXPECT_EQ(std::get<0>(bias(part, layer)), layer == 0 ? joined(none_q, none_kv, v) : all);
    part.remove_tensor("blk.0.attn_v.bias");
    EXPECT_EQ(std::get<0>(bias(part, layer)), layer == 0 ? std::vector<float>() : all);
  }
}

// All bytes that products read, and the embedding of a token.
std::vector<std::byte> bytes_of(const PackedModel& model) {
  std::vector<std::byte> out;
  const auto add = [&out](const Projection& p) {
    for (const Projection::Part& part : p.parts) {
      const ops::PackedMatrix& m = part.matrix;
      const auto* data = reinterpret_cast<const std::byte*>(m.data);
      out.push_back(static_cast<std::byte>(m.type));
      out.insert(out.end(), data, data + ops::packed_bytes(m.type, m.n, m.k));
    }
  };
  for (const PackedLayer& l : model.layers()) {
    for (const Projection* p : {&l.qkv, &l.attn_output, &l.ffn_in, &l.ffn_down}) add(*p);
  }
  add(model.output());
  std::vector<float> row(static_cast<size_t>(model.spec().dim));
  model.embed(77, 0, row.data());
  const auto* values = reinterpret_cast<const std::byte*>(row.data());
  out.insert(out.end(), values, values + row.size() * sizeof(float));
  return out;
}

// A model of a file, or of a folder in memory, with its bytes.
struct Opened {
  Opened(const test::TinyLlamaShape& shape, bool folder)
      : bytes(test::make_tiny_folder(shape, WeightType::kBf16, 5)),
        model(test::take(
            folder ? ModelFile::from_folder(bytes.files())
                   : ModelFile::from_bytes(test::make_tiny_llama(shape, WeightType::kBf16, 5), "m"))) {}
  const test::FolderInMemory bytes;
  const std::unique_ptr<ModelFile> model;
};

// The same operands and the same arithmetic: the same logits.
void expect_quantised_is_converted(const test::TinyLlamaShape& shape, bool of_folder, const char* name) {
  SCOPED_TRACE(shape.architecture + " " + name + (of_folder ? " of a folder" : ""));
  const QuantizationRecipe& recipe = *find_recipe(name);
  const Opened stored(shape, of_folder), quantised(shape, of_folder);
  const test::TempFolder folder;
  const std::string path = folder.path() + "/out.gguf";
  ASSERT_TRUE(convert_model(*stored.model, recipe, path, 1).ok());
  const auto converted = test::take(ModelFile::open(path));
  ASSERT_TRUE(quantised.model->quantize_as(recipe).ok());
  const auto a = test::take(PackedModel::make(*quantised.model, 64, 2));
  const auto b = test::take(PackedModel::make(*converted, 64));
  EXPECT_TRUE(bytes_of(*a) == bytes_of(*b));
  EXPECT_EQ(a->weight_types(), b->weight_types() + "~quantizer-2");
  EXPECT_EQ(a->x_type(ActivationMode::kAuto), x_type_of(quantised.model->weights(), ActivationMode::kAuto));
  EXPECT_NE(quantised.model->fingerprint(), stored.model->fingerprint());
  EXPECT_NE(quantised.model->fingerprint(), converted->fingerprint());
}

TEST(PackedModel, QuantisedAtLoadIsTheConvertedFile) {
  int folders = 0;
  for (const char* name : {"q4_k_m", "q8_0"}) {
    expect_quantised_is_converted(test::tiny_256(), false, name);
    for (const test::TinyLlamaShape& shape : test::tiny_mixtures()) {
      expect_quantised_is_converted(shape, true, name);
    }
    for (const test::TinyLlamaShape& shape : test::tiny_latents()) {
      expect_quantised_is_converted(shape, true, name);
    }
    for (const test::TinyLlamaShape& shape : test::tiny_architectures()) {
      const bool split = shape.architecture == "qwen3" || shape.architecture == "phi3";
      if (split) expect_quantised_is_converted(shape, false, name);
      // Rows of Q and K in another order than the file's; norms less 1.
      if (shape.architecture != "mistral3" && shape.architecture != "gemma3") continue;
      expect_quantised_is_converted(shape, true, name);
      ++folders;
    }
  }
  EXPECT_EQ(folders, 4);
}

// Old files have one matrix for keys and values of latent attention, whose rows are the other's columns.
TEST(PackedModel, OldFilesOfLatentAttentionGiveTheSameMatrices) {
  const test::TinyLlamaShape shape = test::tiny_latents()[1];
  const auto nope = shape.head_dim - shape.rope_dim;
  for (const WeightType type : {WeightType::kF32, WeightType::kBf16, WeightType::kQ8_0}) {
    const test::GgufBuilder builder = test::tiny_llama_builder(shape, type, 5);
    const auto now = test::take(ModelFile::from_bytes(builder.build(), "model.gguf"));
    test::GgufBuilder old = builder;
    const auto per_row = static_cast<int64_t>(ops::row_bytes(type, shape.kv_rank));
    for (int32_t l = 0; l < shape.layers; ++l) {
      const LatentWeights& weights = now->weights().layers[static_cast<size_t>(l)].latent;
      std::vector<std::byte> both;
      for (size_t h = 0; h < weights.k_b.size(); ++h) {
        std::vector<float> column(static_cast<size_t>(nope)), k(static_cast<size_t>(nope * shape.kv_rank));
        for (int64_t r = 0; r < shape.kv_rank; ++r) {
          const WeightMatrix& m = weights.k_b[h];
          ops::dequantize_row(type, m.data + static_cast<uint64_t>(r) * m.row_bytes(), nope, column.data());
          for (int64_t n = 0; n < nope; ++n)
            k[static_cast<size_t>(n * shape.kv_rank + r)] = column[static_cast<size_t>(n)];
        }
        const std::vector<std::byte> rows = test::quantize(type, k, shape.kv_rank);
        both.insert(both.end(), rows.begin(), rows.end());
        both.insert(both.end(), weights.v_b[h].data, weights.v_b[h].data + shape.value_dim * per_row);
      }
      for (const char* name : {"attn_k_b", "attn_v_b"})
        old.remove_tensor(fmt::format("blk.{}.{}.weight", l, name));
      old.add_tensor(fmt::format("blk.{}.attn_kv_b.weight", l),
                     {static_cast<uint64_t>(shape.kv_rank),
                      static_cast<uint64_t>(shape.heads * (nope + shape.value_dim))},
                     test::gguf_type_id(type), both);
    }
    const auto before = test::take(ModelFile::from_bytes(old.build(), "model.gguf"));
    const auto a = test::take(PackedModel::make(*now, 64)), b = test::take(PackedModel::make(*before, 64));
    for (size_t l = 0; l < a->layers().size(); ++l) {
      const PackedLayer &x = a->layers()[l], &y = b->layers()[l];
      for (size_t h = 0; h < x.absorb.size(); ++h) {
        const ops::PackedMatrix &v = x.value_up[h].parts[0].matrix, &w = y.value_up[h].parts[0].matrix;
        EXPECT_EQ(std::memcmp(v.data, w.data, ops::packed_bytes(v.type, v.n, v.k)), 0) << l << " " << h;
        const ops::PackedMatrix &p = x.absorb[h].parts[0].matrix, &q = y.absorb[h].parts[0].matrix;
        EXPECT_EQ(q.type, type == WeightType::kQ8_0 ? WeightType::kF32 : type);
        if (p.type == q.type) {
          EXPECT_EQ(std::memcmp(p.data, q.data, ops::packed_bytes(p.type, p.n, p.k)), 0) << l << " " << h;
        }
      }
    }
  }
}

TEST(PackedModel, RefusesToQuantiseWhatIsQuantisedAlreadyOrNotFinite) {
  const auto q8 = test::take(
      ModelFile::from_bytes(test::make_tiny_llama(test::tiny_gqa(), WeightType::kQ8_0, 5), "model.gguf"));
  // Its embedding, which is the output matrix, would stay Q8_0.
  EXPECT_EQ(q8->quantize_as(*find_recipe("q4_0")).message(),
            "model.gguf: the model is quantised already (the tensor 'blk.0.attn_q.weight' as Q8_0); serve it "
            "without --quantization, or give a model of F32, F16 or BF16");
  test::GgufBuilder builder = test::tiny_llama_builder(test::tiny_gqa(), WeightType::kF32, 5);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(builder.tensor("blk.1.attn_v.weight").data.data() + 4 * (128 * 3 + 9), &nan, 4);
  const auto model = test::take(ModelFile::from_bytes(builder.build(), "model.gguf"));
  ASSERT_TRUE(model->quantize_as(*find_recipe("q4_0")).ok());
  EXPECT_EQ(PackedModel::make(*model, 64).status().message(),
            "model.gguf: the tensor 'blk.1.attn_v.weight': row 3: value 9 is NaN");
}

}  // namespace
}  // namespace kvasir
