// Pieces of X: sizes and views.
#include "ops/x_layout.h"

#include "base/check.h"
#include "base/units.h"

namespace kvasir::ops {
namespace {

void check_piece(const void* piece) {
  KV_CHECK(reinterpret_cast<uintptr_t>(piece) % 4 == 0, "a piece of X is not aligned to 4 bytes");
}

}  // namespace

int64_t x_row_bytes(ActivationType type, int64_t k) {
  switch (type) {
    case ActivationType::kInt8:
      KV_CHECK(k > 0 && k % kGroup == 0, "k={}", k);
      return round_up<int64_t>(k + k / kGroup * 2, 4);
    case ActivationType::kBf16:
      return round_up<int64_t>(k, 2) * 2;
    case ActivationType::kF32:
      return k * 4;
  }
  return 0;
}

Int8XRows int8_x_rows(void* piece, int64_t block_tokens, int64_t k) {
  check_piece(piece);
  auto* q = static_cast<int8_t*>(piece);
  return {q, reinterpret_cast<uint16_t*>(q + block_tokens * k)};
}

Bf16Rows bf16_x_rows(void* piece, int64_t block_tokens, int64_t k) {
  check_piece(piece);
  return {static_cast<uint16_t*>(piece), block_tokens, k, round_up<int64_t>(k, 2)};
}

}  // namespace kvasir::ops
