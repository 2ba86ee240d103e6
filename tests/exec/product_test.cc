// A product in pieces, at once or aside, has the bits of the product as a whole.
#include "exec/cpu/product.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "exec/cpu/expert_product.h"
#include "ops/cpu/packed_matrix.h"
#include "support/block_weights.h"

namespace kvasir {
namespace {

using ops::WeightType;

constexpr int64_t kK = 512;

// A projection of random weights, in the parts that are given by type and columns.
class Weights {
 public:
  Weights(Random& random, const std::vector<std::pair<WeightType, int64_t>>& parts) {
    projection_.k = kK;
    for (const auto& [type, n] : parts) {
      const std::vector<uint8_t> raw = rows(random, type, n);
      memory_.push_back(Arena::map(ops::packed_bytes(type, n, kK), "a test").value());
      projection_.parts.push_back(
          {ops::pack_matrix(type, raw.data(), n, kK, memory_.back().data()), projection_.n});
      projection_.n += n;
    }
  }
  const Projection& projection() const { return projection_; }

 private:
  static std::vector<uint8_t> rows(Random& random, WeightType type, int64_t n) {
    if (ops::is_quantized(type)) {
      return test::random_blocks(random, type, n * kK / ops::block_values(type));
    }
    std::vector<uint8_t> raw;
    for (int64_t i = 0; i < n * kK; ++i) {
      const auto value = static_cast<float>(random.unit() - 0.5);
      const uint16_t rounded = ops::f32_to_bf16(value);
      const auto* bytes = type == WeightType::kF32 ? reinterpret_cast<const uint8_t*>(&value)
                                                   : reinterpret_cast<const uint8_t*>(&rounded);
      raw.insert(raw.end(), bytes, bytes + (type == WeightType::kF32 ? 4 : 2));
    }
    return raw;
  }

  std::vector<Arena> memory_;
  Projection projection_;
};

void expect_same_in_pieces(const Weights& weights, int64_t rows, bool accumulate, Random& random) {
  SCOPED_TRACE(std::to_string(rows) + (accumulate ? " rows, added" : " rows"));
  const ops::Kernels& kernels = ops::kernels_for(ops::detect_isa());
  const auto mode = ops::ActivationMode::kAuto;
  const Projection& p = weights.projection();
  OperandBuffers buffers;
  ASSERT_TRUE(buffers.grow(rows, kK, true).ok());
  auto* x = reinterpret_cast<float*>(buffers.rows.data());
  const int64_t stride = row_stride(kK);
  for (int64_t i = 0; i < rows * stride; ++i) x[i] = static_cast<float>(random.unit() - 0.5);
  const Operand operand = operand_over(p, mode, x, stride, buffers, rows);
  fill_operand(kernels, p, mode, operand, {0, rows});

  const int64_t ldo = p.n + 3;
  std::vector<float> before(static_cast<size_t>(rows * ldo));
  for (float& v : before) v = static_cast<float>(random.unit());
  std::vector<float> want = before, got = before;
  for (const Projection::Part& part : p.parts) {
    multiply_part(kernels, part, ops::activation_for(part.matrix.type, mode), operand, {0, rows},
                  {0, ops::panel_count(part.matrix.n)}, want.data(), ldo, accumulate);
  }
  std::vector<float> aside(static_cast<size_t>(Product::kAsideFloats));
  float* by_thread[] = {nullptr, aside.data()};
  const Product product(kernels, p, mode, operand, rows, got.data(), ldo, accumulate, by_thread);
  const Grain grain = product.grain();
  if (rows == 0) {  // such as in the last layer, where no row's logits are wanted
    EXPECT_EQ(product.items(), 0);
    return;
  }
  for (int64_t begin = 0; begin < product.items();) {
    const int64_t end =
        std::min(product.items(), begin + random.between(1, std::max(grain.least, grain.most)));
    std::vector<float> untouched = got;
    if (random.below(3) == 0) {
      product.run({begin, end}, 0);
    } else {
      product.compute({begin, end}, 1);
      ASSERT_EQ(std::memcmp(untouched.data(), got.data(), got.size() * sizeof(float)), 0)
          << "compute() stores";
      product.store({begin, end}, 1);
    }
    begin = end;
  }
  EXPECT_EQ(std::memcmp(want.data(), got.data(), got.size() * sizeof(float)), 0);
}

TEST(Product, PiecesHaveTheBitsOfTheWhole) {
  Random random(3);
  const std::vector<std::vector<std::pair<WeightType, int64_t>>> projections = {
      {{WeightType::kQ4_1, 200}},
      {{WeightType::kQ4K, 70}, {WeightType::kQ8_0, 33}, {WeightType::kQ6K, 1}},
      {{WeightType::kBf16, 300}, {WeightType::kQ4_0, 96}},
      {{WeightType::kF32, 260}},
  };
  for (const auto& parts : projections) {
    SCOPED_TRACE(weight_type_name(parts[0].first));
    const Weights weights(random, parts);
    for (int64_t rows : {0, 1, 2, 4, 5, 95, 96, 97, 200}) {
      for (bool accumulate : {false, true}) expect_same_in_pieces(weights, rows, accumulate, random);
    }
  }
}

// Buckets of any heights, among them experts that no row chooses, which have none.
TEST(ExpertProduct, PiecesHaveTheBitsOfEachExpertsProduct) {
  Random random(7);
  const ops::Kernels& kernels = ops::kernels_for(ops::detect_isa());
  const auto mode = ops::ActivationMode::kAuto;
  for (const auto& parts : std::vector<std::vector<std::pair<WeightType, int64_t>>>{
           {{WeightType::kQ4K, 70}, {WeightType::kQ8_0, 33}},
           {{WeightType::kBf16, 130}},
           {{WeightType::kF32, 40}}}) {
    SCOPED_TRACE(weight_type_name(parts[0].first));
    std::vector<Weights> experts;
    for (int i = 0; i < 6; ++i) experts.emplace_back(random, parts);
    const int64_t n = experts[0].projection().n;
    std::vector<ExpertBucket> buckets;
    int64_t rows = 0;
    for (const auto& [expert, height] :
         {std::pair<size_t, int64_t>{0, 3}, {1, 1}, {3, 200}, {4, 97}, {5, 2}}) {
      buckets.push_back({&experts[expert].projection(), {rows, rows + height}});
      rows += height;
    }
    OperandBuffers buffers;
    ASSERT_TRUE(buffers.grow({{1, 4 * kK}, {rows, kK}}, true).ok());
    auto* x = reinterpret_cast<float*>(buffers.rows.data());
    const int64_t stride = row_stride(kK);
    for (int64_t i = 0; i < rows * stride; ++i) x[i] = static_cast<float>(random.unit() - 0.5);
    const Operand operand = operand_over(*buckets[0].projection, mode, x, stride, buffers, rows);
    fill_operand(kernels, *buckets[0].projection, mode, operand, {0, rows});
    std::vector<float> want(static_cast<size_t>(rows * n)), got(want.size());
    for (const ExpertBucket& bucket : buckets) {
      for (const Projection::Part& part : bucket.projection->parts) {
        multiply_part(kernels, part, ops::activation_for(part.matrix.type, mode), operand, bucket.rows,
                      {0, ops::panel_count(part.matrix.n)}, want.data(), n, false);
      }
    }
    std::vector<float> aside(static_cast<size_t>(Product::kAsideFloats));
    float* by_thread[] = {nullptr, aside.data()};
    const ExpertProduct product(kernels, mode, operand, buckets, got.data(), by_thread);
    const Grain grain = product.grain();
    for (int64_t begin = 0; begin < product.items();) {
      const int64_t end =
          std::min(product.items(), begin + random.between(1, std::max(grain.least, grain.most)));
      if (random.below(3) == 0) {
        product.run({begin, end}, 0);
      } else {
        product.compute({begin, end}, 1);
        product.store({begin, end}, 1);
      }
      begin = end;
    }
    EXPECT_EQ(std::memcmp(want.data(), got.data(), got.size() * sizeof(float)), 0);
    EXPECT_EQ(ExpertProduct(kernels, mode, operand, {}, got.data(), by_thread).items(), 0);
  }
}

}  // namespace
}  // namespace kvasir
