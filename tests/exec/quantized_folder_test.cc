// Folders whose matrices are quantised are the models of their values, to the bit.
#include "support/quantized_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "exec/rig.h"
#include "model/files/convert.h"
#include "support/temp_file.h"

namespace kvasir::test {
namespace {

using ops::IsaClass;
using ops::WeightType;

std::unique_ptr<ModelFile> open(const TinyFolder& folder, const TempFolder& place, const std::string& name) {
  const std::string path = place.path() + "/" + name;
  std::filesystem::create_directory(path);
  folder.write(path, /*files=*/2);
  auto model = ModelFile::open(path);
  KV_CHECK(model.ok(), "{}", model.status().message());
  return std::move(*model);
}

TinyLlamaShape shape_of(const std::string& architecture) {
  for (const TinyLlamaShape& shape : all_tiny_architectures()) {
    if (shape.architecture == architecture) return shape;
  }
  KV_CHECK(false, "{}", architecture);
  return {};
}

const FolderQuantizing kForms[] = {
    {.form = "awq", .group = 32},
    {.form = "gptq", .group = 64},
    {.form = "gptq", .group = 32, .in_middle = true},
    {.form = "gptq_v2", .group = 32, .in_order = false},
    {.form = "gptq", .bits = 8, .group = 32, .in_middle = true},
    {.form = "packed", .group = 32, .type = "BF16"},
    {.form = "bytes", .bits = 8, .group = 64, .in_middle = true, .type = "BF16"},
    {.form = "fp8_blocks", .type = "F32"},
    {.form = "fp8_rows", .type = "BF16"},
};
std::string name_of(const FolderQuantizing& how) {
  return fmt::format("{} {} {} {}", how.form, how.bits, how.group, how.in_order ? "" : "in another order");
}

const std::vector<RigRequest> kRequests = {{random_tokens(1, 140), 4}, {random_tokens(2, 40), 8}};

// With rows in f32 products see the values alone, whatever blocks they lie in.
TEST(QuantizedFolders, GiveWhatTheirValuesGive) {
  RigOptions options;
  options.activation = ops::ActivationMode::kF32;
  for (const std::string architecture : {"llama", "phi3", "qwen3moe", "qwen3next", "qwen35"}) {
    const TinyFolder from = make_tiny_folder(shape_of(architecture), WeightType::kBf16, 11);
    for (FolderQuantizing how : kForms) {
      how.group = 32;
      SCOPED_TRACE(architecture + " " + name_of(how));
      const TempFolder place;
      const QuantizedFolder made = quantize_folder(from, how);
      const auto quantized = open(made.folder, place, "quantized"), plain = open(made.plain, place, "plain");
      EXPECT_EQ(
          differences(run(*plain, options, kRequests).outputs, run(*quantized, options, kRequests).outputs),
          0);
    }
  }
}

// As served: rows of int8 for integers, of BF16 for FP8.
TEST(QuantizedFolders, MatchTheReferenceUnderEveryInstructionSet) {
  TinyLlamaShape shape = tiny_256();  // blocks of 128, two of them in a row
  shape.ffn = 256;
  for (FolderQuantizing how : kForms) {
    if (how.form == "awq") how.group = 128;
    SCOPED_TRACE(name_of(how));
    const TempFolder place;
    const auto file =
        open(quantize_folder(make_tiny_folder(shape, WeightType::kBf16, 11), how).folder, place, "m");
    EXPECT_EQ(file->weights().layers[0].ffn_up.type == WeightType::kZ4x128, how.form == "awq");
    RigOptions options;
    options.limits.long_prefill_token_threshold = 29;
    const auto expected = run_reference(*file, options, kRequests);
    for (IsaClass isa : {IsaClass::kPortable, IsaClass::kAvx2, IsaClass::kAvx512}) {
      if (!ops::is_supported(isa)) continue;
      options.isa = isa;
      EXPECT_EQ(differences(expected, run(*file, options, kRequests).outputs), 0) << ops::isa_name(isa);
    }
  }
}

// Zero points in the middle: a file of Q4_0 and F16, which other programs read, too.
TEST(QuantizedFolders, ConvertedOnesGiveTheSame) {
  const TempFolder place;
  const TinyFolder from = make_tiny_folder(shape_of("qwen3moe"), WeightType::kBf16, 11);
  const auto folder = open(quantize_folder(from, {.form = "gptq", .in_middle = true}).folder, place, "m");
  const std::string path = place.path() + "/out.gguf";
  const Status written = convert_model(*folder, *find_recipe("q4_0"), path, 2);
  ASSERT_TRUE(written.ok()) << written.message();
  const auto converted = ModelFile::open(path);
  ASSERT_TRUE(converted.ok()) << converted.status().message();
  const auto at_load = ModelFile::open(place.path() + "/m");
  ASSERT_TRUE((*at_load)->quantize_as(*find_recipe("q4_0")).ok());
  EXPECT_EQ(differences(run(**at_load, {}, kRequests).outputs, run(**converted, {}, kRequests).outputs), 0);
}

}  // namespace
}  // namespace kvasir::test
