// `kvasir convert`: GGUF files and folders as GGUF files of other types.
#include "model/files/convert.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <cstring>
#include <filesystem>
#include <limits>

#include "base/file.h"
#include "support/take.h"
#include "support/temp_file.h"
#include "support/tiny_folder.h"

namespace kvasir {
namespace {

using ops::WeightType;
using test::take;
using ::testing::HasSubstr;

std::unique_ptr<ModelFile> model_of(std::vector<std::byte> bytes) {
  return take(ModelFile::from_bytes(std::move(bytes), "model.gguf"));
}
std::unique_ptr<ModelFile> tiny(const test::TinyLlamaShape& shape, WeightType type) {
  return model_of(test::make_tiny_llama(shape, type, 5));
}

// Converts, and opens the result.
class Converted {
 public:
  Converted(const ModelFile& model, std::string_view recipe, int threads = 1) {
    const Status status = convert_model(model, *find_recipe(recipe), path(), threads);
    KV_CHECK(status.ok(), "{}", status.message());
    file_ = take(ModelFile::open(path()));
  }
  std::string path() const { return folder_.path() + "/out.gguf"; }
  const ModelFile& operator*() const { return *file_; }
  const ModelFile* operator->() const { return file_.get(); }
  std::string type_of(std::string_view tensor) const {
    return std::string(file_->gguf().find_tensor(tensor)->type->name);
  }

 private:
  test::TempFolder folder_;
  std::unique_ptr<ModelFile> file_;
};

void expect_same_tensors(const Gguf& a, const Gguf& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const GgufTensor& t : a.tensors()) {
    SCOPED_TRACE(t.name);
    const GgufTensor* other = b.find_tensor(t.name);
    ASSERT_NE(other, nullptr);
    EXPECT_EQ(t.type->name, other->type->name);
    EXPECT_EQ(t.shape, other->shape);
    EXPECT_TRUE(std::equal(t.data.begin(), t.data.end(), other->data.begin(), other->data.end()));
  }
}

TEST(Convert, OfTheSameTypeKeepsEveryTensorAndKey) {
  const auto model = tiny(test::tiny_gqa(), WeightType::kQ8_0);
  const Converted out(*model, "q8_0");
  expect_same_tensors(model->gguf(), out->gguf());
  for (const std::string_view key : model->gguf().keys()) {
    if (key == "general.file_type" || key == "general.quantization_version") continue;
    SCOPED_TRACE(key);
    const GgufValue &a = *model->gguf().find(key), *b = out->gguf().find(key);
    ASSERT_NE(b, nullptr);
    EXPECT_TRUE(std::equal(a.payload.begin(), a.payload.end(), b->payload.begin(), b->payload.end()));
  }
  EXPECT_EQ(take(out->gguf().get_u32("general.file_type")), 7U);
  EXPECT_EQ(take(out->gguf().get_u32("general.quantization_version")), 2U);
}

TEST(Convert, EveryRecipeWritesAModelThatLoads) {
  const auto model = tiny(test::tiny_256(), WeightType::kBf16);
  for (const std::string& name : recipe_names()) {
    SCOPED_TRACE(name);
    const Converted out(*model, name);
    for (const GgufTensor& t : model->gguf().tensors()) {
      EXPECT_EQ(out.type_of(t.name), type_in_recipe(*find_recipe(name), model->spec(), t.name, t.dimensions,
                                                    t.shape[0], t.type->name));
    }
  }
}

TEST(Convert, TheBytesDoNotDependOnThreads) {
  const auto model = tiny(test::tiny_256(), WeightType::kF32);
  const Converted one(*model, "q4_k_m", 1), three(*model, "q4_k_m", 3);
  EXPECT_EQ(take(read_file(one.path())), take(read_file(three.path())));
  EXPECT_EQ(one.type_of("blk.0.attn_q.weight"), "Q4_K");
  EXPECT_EQ(one.type_of("blk.0.attn_norm.weight"), "F32");
}

TEST(Convert, FoldersBecomeTheGgufFileOfTheirArchitecture) {
  for (const test::TinyLlamaShape& shape : test::all_tiny_architectures()) {
    if (shape.architecture == "granitemoe") continue;  // gate and up stay one tensor
    if (shape.architecture == "qwen3next") continue;   // and so do the queries, keys, values and z
    SCOPED_TRACE(shape.architecture);
    const test::FolderInMemory bytes(test::make_tiny_folder(shape, WeightType::kBf16, 5));
    const auto folder = take(ModelFile::from_folder(bytes.files()));
    const auto gguf = tiny(shape, WeightType::kBf16);
    const Converted out(*folder, "bf16");
    // Vectors and tables of positions are F32, as converters write them.
    const Converted same(*gguf, "bf16");
    expect_same_tensors(same->gguf(), out->gguf());
    ModelSpec expected = gguf->spec();
    expected.name = out->spec().name;
    EXPECT_TRUE(out->spec() == expected);
    for (const std::string_view key : out->gguf().keys()) EXPECT_FALSE(key.starts_with("kvasir.")) << key;
    const TokenizerData a = take(out->read_tokenizer()), b = take(folder->read_tokenizer());
    EXPECT_EQ(a.tokens, b.tokens);
    EXPECT_EQ(a.merges, b.merges);
    EXPECT_EQ(a.eos, b.eos);
    EXPECT_EQ(a.chat_template, b.chat_template);
  }
}

// GGUF has a key for the factor of cosines and sines, on top of YaRN's own.
TEST(Convert, KeepsTheFactorOfYarn) {
  const std::string yarn = R"("rope_type":"yarn","factor":16.0,"original_max_position_embeddings":100,)";
  for (const test::TinyLlamaShape& shape : test::tiny_architectures()) {
    if (shape.architecture != "mistral3" && shape.architecture != "qwen2") continue;
    for (const auto& [fields, factor] : {std::pair{R"("mscale":1.0,"mscale_all_dim":1.0)", 1.0F},
                                         {R"("mscale":1.0,"mscale_all_dim":0.5)", 1.1217F},
                                         {R"("attention_factor":0.75)", 0.75F},
                                         {R"("beta_fast":24)", 1.27726F}}) {
      SCOPED_TRACE(shape.architecture + " " + fields);
      test::TinyFolder folder = test::make_tiny_folder(shape, WeightType::kBf16, 5);
      std::string& config = folder.texts["config.json"];
      const std::string rope = "\"rope_parameters\":{" + yarn + fields + "}";
      if (const size_t old = config.find("\"rope_parameters\""); old != std::string::npos) {
        config.replace(old, config.find('}', old) + 1 - old, rope);
      } else {
        config.insert(1, rope + ",");
      }
      const test::FolderInMemory bytes(folder);
      const auto model = take(ModelFile::from_folder(bytes.files()));
      EXPECT_NEAR(model->spec().ropes[0].attention_factor, factor, 1e-4);
      const Converted out(*model, "bf16");
      EXPECT_TRUE(out->spec().ropes == model->spec().ropes);
    }
  }
}

test::TinyLlamaShape shape_named(const std::vector<test::TinyLlamaShape>& shapes,
                                 const std::string& architecture) {
  for (const test::TinyLlamaShape& shape : shapes) {
    if (shape.architecture == architecture) return shape;
  }
  KV_CHECK(false, "{}", architecture);
  return {};
}

// Of a folder whose config.json says something else.
std::string refusal_of(const test::TinyLlamaShape& shape, const std::string& before,
                       const std::string& after) {
  test::TinyFolder folder = test::make_tiny_folder(shape, WeightType::kBf16, 5);
  folder.edit("config.json", before, after);
  const test::FolderInMemory bytes(folder);
  const auto model = take(ModelFile::from_folder(bytes.files()));
  const test::TempFolder place;
  return std::string(convert_model(*model, *find_recipe("bf16"), place.path() + "/out.gguf", 1).message());
}

// What only the keys of this program say has no form in a file.
TEST(Convert, RefusesWhatTheArchitecturesNameDoesNotSay) {
  EXPECT_THAT(refusal_of(shape_named(test::tiny_architectures(), "gemma2"), R"("query_pre_attn_scalar":32)",
                         R"("query_pre_attn_scalar":144)"),
              HasSubstr("are not those of all gemma2 models"));
  EXPECT_THAT(
      refusal_of(shape_named(test::tiny_mixtures(), "gpt-oss"), R"("truncate":false)", R"("truncate":true)"),
      HasSubstr("are not those of all gpt-oss models"));
}

// The architecture's name says that weights are divided by their sum; a key of the file, that they are not.
TEST(Convert, KeepsWhetherWeightsOfExpertsAddUpToOne) {
  test::TinyFolder folder =
      test::make_tiny_folder(shape_named(test::tiny_mixtures(), "qwen3moe"), WeightType::kBf16, 5);
  folder.edit("config.json", R"("norm_topk_prob":true)", R"("norm_topk_prob":false)");
  const test::FolderInMemory bytes(folder);
  const auto model = take(ModelFile::from_folder(bytes.files()));
  EXPECT_FALSE(model->spec().experts.renormalise);
  const Converted out(*model, "bf16");
  EXPECT_TRUE(out->spec().experts == model->spec().experts);
}

TEST(Convert, NamesLayersWithExpertsThatGgufCannotSay) {
  test::GgufBuilder b =
      test::tiny_llama_builder(shape_named(test::tiny_mixtures(), "dots1"), WeightType::kBf16, 5);
  b.remove("dots1.leading_dense_block_count");
  b.set_i32s("kvasir.layer_experts", {0, 1, 1});
  const test::TempFolder place;
  EXPECT_THAT(
      convert_model(*model_of(b.build()), *find_recipe("bf16"), place.path() + "/out.gguf", 1).message(),
      HasSubstr("or layers with experts are not those of all dots1 models"));
}

TEST(Convert, NeverWritesOverAFileOfTheModel) {
  const test::TempFolder folder;
  test::make_tiny_folder(test::tiny_gqa(), WeightType::kBf16, 5).write(folder.path(), 2);
  const auto model = take(ModelFile::open(folder.path()));
  std::filesystem::create_symlink(folder.path(), folder.path() + "/again");
  for (const char* name : {"config.json", "tokenizer.json", "model-00002-of-00002.safetensors",
                           "again/model-00001-of-00002.safetensors"}) {
    const std::string path = folder.path() + "/" + name;
    const std::string before = take(read_file(path));
    EXPECT_EQ(convert_model(*model, *find_recipe("q8_0"), path, 1).message(),
              path + ": this is a file of the model itself; name another file for the result");
    EXPECT_EQ(take(read_file(path)), before);
  }
  EXPECT_THAT(convert_model(*model, *find_recipe("q8_0"), folder.path(), 1).message(),
              HasSubstr("this is a directory; name a file"));
}

TEST(Convert, StopsWhenItIsToldToAndLeavesNothing) {
  const auto model = tiny(test::tiny_gqa(), WeightType::kF32);
  test::TempFolder folder;
  int asked = 0;
  const Status status = convert_model(*model, *find_recipe("q8_0"), folder.path() + "/out.gguf", 1,
                                      [&asked] { return ++asked == 5; });
  ASSERT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Convert, RefusesFewerBitsUnlessTheTypeStays) {
  const auto model = tiny(test::tiny_gqa(), WeightType::kQ4_1);
  test::TempFolder folder;
  const std::string path = folder.path() + "/out.gguf";
  EXPECT_THAT(convert_model(*model, *find_recipe("q8_0"), path, 1).message(),
              HasSubstr("'token_embd.weight' is quantised already, as Q4_1; convert the model from F32"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Convert, AValueThatIsNotFiniteIsNamedAndNothingIsLeft) {
  test::GgufBuilder builder = test::tiny_llama_builder(test::tiny_gqa(), WeightType::kF32, 5);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(builder.tensor("blk.1.ffn_up.weight").data.data() + 4 * (128 * 3 + 9), &nan, 4);
  const auto model = model_of(builder.build());
  test::TempFolder folder;
  EXPECT_EQ(convert_model(*model, *find_recipe("q8_0"), folder.path() + "/out.gguf", 2).message(),
            "model.gguf: the tensor 'blk.1.ffn_up.weight': row 3: value 9 is NaN");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Convert, AFullDiskIsOneErrorAndLeavesNothing) {
  const auto model = tiny(test::tiny_gqa(), WeightType::kF32);
  test::TempFolder folder;
  const std::string path = folder.path() + "/out.gguf";
  rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small = {100'000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const Status status = convert_model(*model, *find_recipe("q8_0"), path, 1);
  setrlimit(RLIMIT_FSIZE, &before);
  std::signal(SIGXFSZ, handler);
  EXPECT_THAT(status.message(), HasSubstr(path + ": cannot be written: File too large"));
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  EXPECT_THAT(convert_model(*model, *find_recipe("q8_0"), folder.path() + "/none/out.gguf", 1).message(),
              HasSubstr("cannot be written: No such file or directory"));
}

}  // namespace
}  // namespace kvasir
