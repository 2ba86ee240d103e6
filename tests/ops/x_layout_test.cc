// Pieces of X: their sizes, and products over them that are those over the rows they hold.
#include "ops/x_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "reference.h"

namespace kvasir::ops {
namespace {

constexpr int64_t kBlock = 32;

TEST(XLayout, BytesOfARow) {
  EXPECT_EQ(x_row_bytes(ActivationType::kInt8, 768), 768 + 48);
  EXPECT_EQ(x_row_bytes(ActivationType::kInt8, 576), 576 + 36);
  EXPECT_EQ(x_row_bytes(ActivationType::kInt8, 96), 104);  // 102, up to a multiple of 4
  EXPECT_EQ(x_row_bytes(ActivationType::kBf16, 768), 1536);
  EXPECT_EQ(x_row_bytes(ActivationType::kBf16, 93), 188);
  EXPECT_EQ(x_row_bytes(ActivationType::kF32, 93), 372);
}

// Rows [5, 19) of a piece, whose other bytes are nothing that a product should see.
TEST(XLayout, ProductsReadAPieceAsItStands) {
  constexpr int64_t kBegin = 5, kEnd = 19, n = 40;
  set_flush_to_zero();
  for (IsaClass isa : {IsaClass::kPortable, detect_isa()}) {
    const Kernels& kernels = kernels_for(isa);
    for (const auto& [type, weights, k] :
         {std::tuple{ActivationType::kInt8, WeightType::kQ4_1, int64_t{96}},
          std::tuple{ActivationType::kInt8, WeightType::kQ8_0, int64_t{64}},
          std::tuple{ActivationType::kBf16, WeightType::kBf16, int64_t{93}}}) {
      Random random(7);
      const auto raw = random_weights(random, weights, n, k);
      AlignedBytes packed(packed_bytes(weights, n, k));
      const PackedMatrix w = pack_matrix(weights, raw.data(), n, k, packed.data());
      std::vector<float> x(static_cast<size_t>(kBlock * k));
      for (float& v : x) v = static_cast<float>(random.unit() - 0.5);
      std::vector<float> want(kBlock * n), got(kBlock * n);
      // Four bytes behind a multiple of 64: no more alignment than is asked for.
      AlignedBytes memory(static_cast<size_t>(kBlock * x_row_bytes(type, k)) + 4);
      void* piece = memory.data() + 4;
      std::memset(memory.data(), 0x7b, static_cast<size_t>(kBlock * x_row_bytes(type, k)) + 4);
      if (type == ActivationType::kInt8) {
        AlignedBytes buffer(quantized_rows_bytes(kBlock, k));
        const QuantizedRows rows = make_quantized_rows(buffer.data(), kBlock, k);
        kernels.quantize_rows(x.data(), k, rows, 0, kBlock);
        kernels.gemm_int8(rows, kBegin, kEnd, w, 0, panel_count(n), want.data(), n, false);
        std::vector<float> scales(static_cast<size_t>(kBlock * k / kGroup)), moments(scales.size());
        std::vector<int16_t> sums(2 * scales.size());
        const Int8XRows in_piece = int8_x_rows(piece, kBlock, k);
        std::copy(rows.q + kBegin * k, rows.q + kEnd * k, in_piece.q + kBegin * k);
        std::transform(rows.scales + kBegin * k / kGroup, rows.scales + kEnd * k / kGroup,
                       in_piece.d + kBegin * k / kGroup, f32_to_f16);
        const QuantizedRows again = {in_piece.q, scales.data(), sums.data(), moments.data(), kBlock, k};
        kernels.complete_rows(in_piece.d, again, kBegin, kEnd);
        kernels.gemm_int8(again, kBegin, kEnd, w, 0, panel_count(n), got.data(), n, false);
      } else {
        AlignedBytes buffer(bf16_rows_bytes(kBlock, k));
        const Bf16Rows rows = make_bf16_rows(buffer.data(), kBlock, k);
        kernels.round_rows_bf16(x.data(), k, rows, 0, kBlock);
        kernels.gemm_bf16(rows, kBegin, kEnd, w, 0, panel_count(n), want.data(), n, false);
        const Bf16Rows in_piece = bf16_x_rows(piece, kBlock, k);
        for (int64_t r = kBegin; r < kEnd; ++r) {
          std::copy_n(rows.x + r * rows.stride, in_piece.stride, in_piece.x + r * in_piece.stride);
        }
        kernels.gemm_bf16(in_piece, kBegin, kEnd, w, 0, panel_count(n), got.data(), n, false);
      }
      EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0)
          << activation_type_name(type) << " k=" << k;
    }
  }
}

}  // namespace
}  // namespace kvasir::ops
