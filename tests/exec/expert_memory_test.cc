// What the decoder reserves for a mixture of experts, and what it refuses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "exec/cpu/decoder.h"
#include "model/files/model_file.h"
#include "support/tiny_llama.h"

namespace kvasir {
namespace {

// Two experts, both used, of one layer.
test::TinyLlamaShape two_experts() {
  test::TinyLlamaShape shape;
  shape.layers = 1;
  shape.dim = 32;
  shape.heads = shape.kv_heads = 1;
  shape.experts = shape.experts_used = 2;
  return shape;
}

struct Reserved {
  Status status;
  uint64_t bytes = 0;
};

Reserved reserve(const test::TinyLlamaShape& shape, int64_t rows) {
  auto file = ModelFile::from_bytes(test::make_tiny_llama(shape, ops::WeightType::kBf16, 5), "model.gguf");
  EXPECT_TRUE(file.ok()) << file.status().message();
  auto model = PackedModel::make(**file, 64);
  EXPECT_TRUE(model.ok()) << model.status().message();
  const ModelSpec& spec = (*file)->spec();
  CacheGeometry geometry;
  geometry.block_tokens = 16;
  geometry.layers = geometry.layers_per_group = static_cast<uint32_t>(spec.layers);
  geometry.kv_plane_bytes_per_token_layer = spec.kv_plane_bytes_per_token_layer(ops::KvType::kBf16);
  ThreadPool pool(1);
  Decoder decoder(**model, ops::kernels_for(ops::detect_isa()), geometry, {}, nullptr, pool);
  Reserved out;
  out.status = decoder.reserve(rows);
  out.bytes = decoder.scratch_bytes();
  return out;
}

// A job has at most 2,097,151 items.
TEST(ExpertMemory, AStepOfTooManyItemsIsRefused) {
  const auto refused = [](const test::TinyLlamaShape& shape, int64_t rows, const char* items) {
    const Status status = reserve(shape, rows).status;
    EXPECT_EQ(status.code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(status.message(), testing::HasSubstr(items));
    EXPECT_THAT(status.message(), testing::HasSubstr("lower --max-num-batched-tokens"));
  };
  // Rows times experts used.
  refused(two_experts(), 1 << 20, "up to 2097152 parts");
  // 200,000 such rows are 2,084 blocks of 96 at most, and one more for each expert; each by the 2 x 504
  // panels of gate and up.
  test::TinyLlamaShape wide = two_experts();
  wide.expert_ffn = 504 * 32;
  refused(wide, 100'000, "up to 2102688 parts");
  EXPECT_TRUE(reserve(wide, 16).status.ok());
}

// Where all layers have experts, "feed_forward_length" is the width of none.
TEST(ExpertMemory, TheWidthOfLayersWithoutExpertsTakesNothing) {
  const auto bytes = [](int32_t ffn, int32_t dense_layers) {
    test::TinyLlamaShape shape = two_experts();
    shape.architecture = "dots1";
    shape.layers = 2;
    shape.shared_ffn = shape.expert_ffn;
    shape.ffn = ffn;
    shape.dense_layers = dense_layers;
    const Reserved reserved = reserve(shape, 64);
    EXPECT_TRUE(reserved.status.ok()) << reserved.status.message();
    return reserved.bytes;
  };
  EXPECT_EQ(bytes(4096, 0), bytes(32, 0));
  EXPECT_GE(bytes(4096, 1), bytes(32, 1) + sizeof(float) * 64 * 2 * (4096 - 32));
}

}  // namespace
}  // namespace kvasir
