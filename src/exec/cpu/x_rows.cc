#include "exec/cpu/x_rows.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/mutant.h"
#include "exec/cpu/faults.h"
#include "ops/x_layout.h"

namespace kvasir {

XRows::XRows(const CacheGeometry& geometry, int64_t dim, ops::ActivationType x_type, std::byte* device_memory)
    : geometry_(geometry), dim_(dim), x_type_(x_type), device_memory_(device_memory) {}

Share XRows::rows_of(const Step& step, const RowSets::Set& set, uint32_t slice, uint32_t block) const {
  const StepSlice& of = step.slices[slice];
  const uint32_t b = geometry_.block_tokens;
  const Interval tokens = {std::max(of.tokens.begin, block * b), std::min(of.tokens.end, (block + 1) * b)};
  KV_CHECK(tokens.begin < tokens.end, "seq={}: no rows in block {}", raw(of.seq), block);
  const int64_t first = set.first_row[slice] + (tokens.begin - of.tokens.begin);
  return {first, first + tokens.size()};
}

void XRows::write(const Step& step, uint32_t layer, const RowSets::Set& set, const Operand& operand,
                  const StepTransfers& transfers, const Share& mine) const {
  const uint32_t group = geometry_.group_of(layer);
  const uint32_t in_group = geometry_.layer_in_group(layer);
  for (const XWrite& write : step.x_writes_in(group)) {
    if (transfers.deferred(write.slice)) continue;
    const Share rows = rows_of(step, set, write.slice, write.block);
    const int64_t end = std::min(rows.end, mine.end);
    for (int64_t r = std::max(rows.begin, mine.begin); r < end; ++r) {
      const uint32_t position = set.rows[static_cast<size_t>(r)].position;
      const auto token = static_cast<int64_t>(position % geometry_.block_tokens);
      write_row(operand, r, token, device_memory_ + write.to + in_group * geometry_.piece_bytes(Form::kX));
    }
  }
}

void XRows::write_row(const Operand& operand, int64_t row, int64_t token, std::byte* piece) const {
  const int64_t block = geometry_.block_tokens;
  const auto copy = [](auto* to, const auto* from, int64_t count) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(*to));
  };
  switch (x_type_) {
    case ops::ActivationType::kInt8: {
      const ops::Int8XRows to = ops::int8_x_rows(piece, block, dim_);
      const int64_t groups = dim_ / ops::kGroup;
      copy(to.q + token * dim_, operand.quantized.q + row * dim_, dim_);
      std::transform(operand.quantized.scales + row * groups, operand.quantized.scales + (row + 1) * groups,
                     to.d + token * groups, ops::f32_to_f16);
      break;
    }
    case ops::ActivationType::kBf16: {
      const ops::Bf16Rows to = ops::bf16_x_rows(piece, block, dim_);
      copy(to.x + token * to.stride, operand.rounded.x + row * operand.rounded.stride, to.stride);
      break;
    }
    case ops::ActivationType::kF32:
      copy(ops::f32_x_rows(piece) + token * dim_, operand.x + row * operand.stride, dim_);
      break;
  }
  if (mutant(Mutant::kXOtherRounding)) {
    write_x_with_fault(x_type_, operand.x + row * operand.stride, dim_, token, block, piece);
  }
}

void XRows::check(const Step& step) const {
  KV_CHECK(step.is_indexed(), "step {}: its lists are not indexed by layer", raw(step.id));
  KV_CHECK(step.x_writes.empty() || geometry_.has(Form::kX), "step {}: writes of X", raw(step.id));
  for (const KvProjection& p : step.projections) {
    const uint32_t first = p.first_position % geometry_.block_tokens;
    KV_CHECK(geometry_.has(Form::kX) && first + p.tokens <= geometry_.block_tokens,
             "step {}: a projection of tokens [{}, +{})", raw(step.id), p.first_position, p.tokens);
  }
}

}  // namespace kvasir
