#include "exec/cpu/operand.h"

#include <algorithm>

#include "base/units.h"

namespace kvasir {

Status OperandBuffers::grow(std::initializer_list<Extent> extents, bool takes_bf16) {
  uint64_t floats = 0, int8 = 0, bf16 = 0;  // bytes
  for (const auto& [count, k] : extents) {
    floats = std::max(floats, static_cast<uint64_t>(count * row_stride(k)) * sizeof(float));
    int8 = std::max<uint64_t>(int8, ops::quantized_rows_bytes(count, round_up<int64_t>(k, ops::kGroup)));
    bf16 = std::max<uint64_t>(bf16, ops::bf16_rows_bytes(count, k));
  }
  KV_ASSIGN_OR_RETURN(rows, Arena::map(floats, "activations"));
  KV_ASSIGN_OR_RETURN(quantized, Arena::map(int8, "quantised activations"));
  if (takes_bf16) {
    KV_ASSIGN_OR_RETURN(rounded, Arena::map(bf16, "bf16 activations"));
  }
  return {};
}

int64_t row_stride(int64_t k) {
  constexpr int64_t kFloat = sizeof(float);
  return ops::row_stride_bytes(k * kFloat) / kFloat;
}

bool takes(const Projection& p, ops::ActivationMode mode, ops::ActivationType type) {
  return std::any_of(p.parts.begin(), p.parts.end(), [&](const Projection::Part& part) {
    return ops::activation_for(part.matrix.type, mode) == type;
  });
}

Operand operand_over(const Projection& p, ops::ActivationMode mode, const float* x, int64_t stride,
                     const OperandBuffers& buffers, int64_t rows) {
  Operand out;
  out.x = x;
  out.stride = stride;
  if (takes(p, mode, ops::ActivationType::kInt8)) {
    out.quantized = ops::make_quantized_rows(buffers.quantized.data(), rows, p.k);
  }
  if (takes(p, mode, ops::ActivationType::kBf16)) {
    out.rounded = ops::make_bf16_rows(buffers.rounded.data(), rows, p.k);
  }
  return out;
}

Operand from_row(const Operand& operand, int64_t row) {
  Operand out = operand;
  if (out.x) out.x += row * out.stride;
  if (ops::QuantizedRows& q = out.quantized; q.q) {
    const int64_t groups = q.k / ops::kGroup;
    q = {q.q + row * q.k,
         q.scales + row * groups,
         q.sums + 2 * row * groups,
         q.moments + row * groups,
         q.rows - row,
         q.k};
  }
  if (ops::Bf16Rows& b = out.rounded; b.x) {
    b.x += row * b.stride;
    b.rows -= row;
  }
  return out;
}

void fill_operand(const ops::Kernels& kernels, const Projection& p, ops::ActivationMode mode,
                  const Operand& operand, const Share& rows) {
  if (takes(p, mode, ops::ActivationType::kInt8)) {
    kernels.quantize_rows(operand.x, operand.stride, operand.quantized, rows.begin, rows.end);
  }
  if (takes(p, mode, ops::ActivationType::kBf16)) {
    kernels.round_rows_bf16(operand.x, operand.stride, operand.rounded, rows.begin, rows.end);
  }
}

void multiply_part(const ops::Kernels& kernels, const Projection::Part& part, ops::ActivationType type,
                   const Operand& operand, const Share& rows, const Share& panels, float* out, int64_t ldo,
                   bool accumulate) {
  float* c = out + part.column;
  switch (type) {
    case ops::ActivationType::kInt8:
      kernels.gemm_int8(operand.quantized, rows.begin, rows.end, part.matrix, panels.begin, panels.end, c,
                        ldo, accumulate);
      break;
    case ops::ActivationType::kBf16:
      kernels.gemm_bf16(operand.rounded, rows.begin, rows.end, part.matrix, panels.begin, panels.end, c, ldo,
                        accumulate);
      break;
    case ops::ActivationType::kF32:
      kernels.gemm_f32(operand.x, operand.stride, rows.begin, rows.end, part.matrix, panels.begin, panels.end,
                       c, ldo, accumulate);
      break;
  }
}

}  // namespace kvasir
