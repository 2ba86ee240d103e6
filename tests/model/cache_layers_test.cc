// How a model's layers lie in the cache's grid.
#include "model/architectures/cache_layers.h"

#include <gtest/gtest.h>

#include <vector>

namespace kvasir {
namespace {

// Three layers of four are recurrent: a state of `conv` + `matrix` bytes.
ModelSpec hybrid(int32_t layers, const RecurrentSpec& recurrent) {
  ModelSpec spec;
  spec.layers = layers;
  spec.recurrent = recurrent;
  spec.layer_specs.resize(static_cast<size_t>(layers));
  for (int32_t l = 0; l < layers; ++l) spec.layer_specs[static_cast<size_t>(l)].recurrent = l % 4 != 3;
  return spec;
}

TEST(CacheLayers, AModelWithoutRecurrentLayersHasItsOwn) {
  ModelSpec spec;
  spec.layers = 3;
  spec.layer_specs.resize(3);
  spec.layer_specs[1].window = 40;
  const CacheLayers layers(spec, 64);
  EXPECT_EQ(layers.count(), 3u);
  for (uint32_t l = 0; l < 3; ++l) EXPECT_EQ(layers.of(l), (Interval{l, l + 1}));
  EXPECT_EQ(layers.model_layers(2), 2u);
  EXPECT_EQ(layers.model_layers(UINT32_MAX), 3u);
  EXPECT_EQ(layers.windows(spec, 16), (std::vector<uint32_t>{0, 40, 0}));
}

TEST(CacheLayers, AStateIsCutIntoPartsOfWholeUnits) {
  // 2 x 16 keys and 32 values are 4 units of the convolution of 3 x 16 floats (192 bytes), and 2 x 16 values
  // 2 units of 16 x 16 floats (1,024 bytes).
  const ModelSpec spec = hybrid(5, {1, 1, 16, 32, 4});
  EXPECT_EQ(spec.recurrent.state_floats(), 3 * 64 + 16 * 32);
  const CacheLayers whole(spec, 4 * 192 + 2 * 1024);
  EXPECT_EQ(whole.parts(), (std::vector<CacheLayers::Part>{{{0, 4}, {0, 2}}}));
  EXPECT_EQ(whole.count(), 5u);
  const CacheLayers two(spec, 4 * 192 + 2 * 1024 - 1);
  EXPECT_EQ(two.parts(), (std::vector<CacheLayers::Part>{{{0, 4}, {0, 1}}, {{4, 4}, {1, 2}}}));
  EXPECT_EQ(two.count(), 4 * 2 + 1u);
  EXPECT_EQ(two.of(0), (Interval{0, 2}));
  EXPECT_EQ(two.of(3), (Interval{6, 7}));
  EXPECT_EQ(two.of(4), (Interval{7, 9}));
  EXPECT_EQ(two.windows(spec, 16), (std::vector<uint32_t>{17, 17, 17, 17, 17, 17, 0, 17, 17}));
  // Rows that pass the first five of the cache's layers pass three of the model's.
  EXPECT_EQ(two.model_layers(1), 1u);
  EXPECT_EQ(two.model_layers(2), 1u);
  EXPECT_EQ(two.model_layers(5), 3u);
  EXPECT_EQ(two.model_layers(7), 4u);
  EXPECT_EQ(two.model_layers(8), 5u);
  EXPECT_EQ(CacheLayers(spec, 1024).parts(),
            (std::vector<CacheLayers::Part>{{{0, 4}, {0, 0}}, {{4, 4}, {0, 1}}, {{4, 4}, {1, 2}}}));
  EXPECT_EQ(CacheLayers(spec, 1023).count(), 0u) << "not even a unit fits";
}

TEST(CacheLayers, PublishedSizes) {
  // Qwen3-Next 80B: a state of 2,195,456 bytes in each of 36 layers; K and V of 256 tokens in bf16 are
  // 524,288.
  const ModelSpec spec = hybrid(48, {16, 32, 128, 128, 4});
  EXPECT_EQ(spec.recurrent.state_floats() * 4, 2'195'456);
  EXPECT_EQ(spec.state_bytes(), 36u * 2'195'456);
  EXPECT_EQ(CacheLayers(spec, 524'288).count(), 12 + 36 * 5u);
  EXPECT_EQ(CacheLayers(spec, 737'280).count(), 12 + 36 * 3u);
  EXPECT_EQ(CacheLayers(spec, 729'088).count(), 12 + 36 * 4u);
}

}  // namespace
}  // namespace kvasir
