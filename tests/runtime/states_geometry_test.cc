// How the cache of a model with recurrent layers is laid out.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

#include "model/files/model_file.h"
#include "runtime/engine_options.h"
#include "support/tiny_llama.h"

namespace kvasir {
namespace {

std::unique_ptr<ModelFile> hybrid_of(int32_t layers) {
  test::TinyLlamaShape shape = test::tiny_hybrids()[0];
  shape.layers = layers;
  auto file = ModelFile::from_bytes(test::make_tiny_llama(shape, ops::WeightType::kF32, 1), "hybrid.gguf");
  EXPECT_TRUE(file.ok()) << file.status().message();
  return std::move(file).value();
}

// K and V of a block of 16 tokens are 16 x 2 x 2 x 32 values in bf16: 4 KiB. A state is 16 units of 192 bytes
// and 12 of 1 KiB: 15 KiB, in four parts.
TEST(StatesGeometry, AStateIsInAsManyLayersAsItNeeds) {
  RuntimeOptions options;
  options.block_size = 16;
  const auto five = hybrid_of(5);
  const auto g = make_geometry(options, *five, {});
  ASSERT_TRUE(g.ok()) << g.status().message();
  EXPECT_EQ(g->layers, 4 * 4 + 1u);
  EXPECT_EQ(g->layers_per_group, 1u);
  EXPECT_TRUE(g->states);
  EXPECT_EQ(g->window, 17u);
  EXPECT_EQ(g->windowed, LayerSet::all(17) - LayerSet::one(12));
  EXPECT_EQ(g->window_chunk, 16u);
  EXPECT_EQ(g->piece_bytes(Form::kKv), 4096u);
  EXPECT_FALSE(g->has(Form::kX));
  options.block_size = 64;
  EXPECT_EQ(make_geometry(options, *five, {})->layers, 5u);
}

// Of forty layers thirty are recurrent: 130 groups are too many, and in pieces of 5 KiB a state is in three.
TEST(StatesGeometry, PiecesGrowWhereThereWouldBeTooManyGroups) {
  RuntimeOptions options;
  options.block_size = 16;
  const auto g = make_geometry(options, *hybrid_of(40), {});
  ASSERT_TRUE(g.ok()) << g.status().message();
  EXPECT_EQ(g->layers, 30 * 3 + 10u);
  EXPECT_EQ(g->piece_bytes(Form::kKv), 5120u);
  EXPECT_EQ(g->v_offset(), 2048u) << "K and V stay where they are";
}

TEST(StatesGeometry, GroupsOfSeveralLayersAreRefused) {
  RuntimeOptions options;
  options.kv_layer_group = 2;
  const auto g = make_geometry(options, *hybrid_of(5), {});
  EXPECT_THAT(g.status().message(), testing::HasSubstr("--kv-layer-group 2: a model with recurrent layers"));
}

}  // namespace
}  // namespace kvasir
