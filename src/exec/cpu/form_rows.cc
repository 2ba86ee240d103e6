#include "exec/cpu/form_rows.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/mutant.h"
#include "exec/cpu/faults.h"
#include "ops/x_layout.h"

namespace kvasir {
namespace {

// The tokens of a slice in one of its blocks.
Interval tokens_in(const StepSlice& slice, uint32_t block, uint32_t block_tokens) {
  return {std::max(slice.tokens.begin, block * block_tokens),
          std::min(slice.tokens.end, (block + 1) * block_tokens)};
}

}  // namespace

FormRows::FormRows(const CacheGeometry& geometry, int64_t dim, ops::ActivationType x_type,
                   std::byte* device_memory)
    : geometry_(geometry), dim_(dim), x_type_(x_type), device_memory_(device_memory) {
  const auto h_bytes = static_cast<uint64_t>(dim) * sizeof(float);
  KV_CHECK(!geometry.has(Form::kH) || geometry.h_bytes_per_token == h_bytes,
           "H has {} bytes a row, the geometry says {}", h_bytes, geometry.h_bytes_per_token);
}

Share FormRows::rows_of(const Step& step, const RowSets::Set& set, uint32_t slice, uint32_t block) const {
  const StepSlice& of = step.slices[slice];
  const Interval tokens = tokens_in(of, block, geometry_.block_tokens);
  KV_CHECK(tokens.begin < tokens.end, "seq={}: no rows in block {}", raw(of.seq), block);
  const int64_t first = set.first_row[slice] + (tokens.begin - of.tokens.begin);
  return {first, first + tokens.size()};
}

void FormRows::write(const Step& step, uint32_t layer, const RowSets::Set& set, const Operand& operand,
                     const float* x, const StepTransfers& transfers, const Share& mine) const {
  const uint32_t group = geometry_.group_of(layer);
  const uint32_t in_group = geometry_.layer_in_group(layer);
  const uint32_t h_layer = mutant(Mutant::kWrongCheckpoint) ? 1 : 0;
  const auto by_group = [](const FormWrite& w, uint32_t g) { return w.group < g; };
  auto write = std::lower_bound(step.form_writes.begin(), step.form_writes.end(), group, by_group);
  for (; write != step.form_writes.end() && write->group == group; ++write) {
    if (transfers.deferred(write->slice) || (write->form == Form::kH && in_group != h_layer)) continue;
    const Share rows = rows_of(step, set, write->slice, write->block);
    const int64_t end = std::min(rows.end, mine.end);
    for (int64_t r = std::max(rows.begin, mine.begin); r < end; ++r) {
      const uint32_t position = set.rows[static_cast<size_t>(r)].position;
      const auto token = static_cast<int64_t>(position % geometry_.block_tokens);
      std::byte* to = device_memory_ + write->to;
      if (write->form == Form::kH) {
        std::memcpy(reinterpret_cast<float*>(to) + token * dim_, x + r * dim_,
                    static_cast<size_t>(dim_) * sizeof(float));
      } else {
        write_x(operand, r, token, to + in_group * geometry_.piece_bytes(Form::kX));
      }
    }
  }
}

void FormRows::write_x(const Operand& operand, int64_t row, int64_t token, std::byte* piece) const {
  const int64_t block = geometry_.block_tokens;
  const auto copy = [](auto* to, const auto* from, int64_t count) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(*to));
  };
  switch (x_type_) {
    case ops::ActivationType::kInt8: {
      const ops::QuantizedRows to = ops::int8_x_rows(piece, block, dim_, nullptr, nullptr);
      const int64_t groups = dim_ / ops::kGroup;
      copy(to.q + token * dim_, operand.quantized.q + row * dim_, dim_);
      copy(to.d + token * groups, operand.quantized.d + row * groups, groups);
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

void FormRows::restart(const Step& step, uint32_t layer, const RowSets::Set& set,
                       const StepTransfers& transfers, const Share& mine, float* x) const {
  for (const Restart& restart : step.restarts) {
    if (step.slices[restart.slice].first_layer != layer) continue;
    const Share rows = rows_of(step, set, restart.slice, restart.block);
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      float* to = x + r * dim_ + mine.begin;
      if (transfers.deferred(restart.slice)) {
        std::fill_n(to, mine.end - mine.begin, 0.0f);
        continue;
      }
      const int64_t token = set.rows[static_cast<size_t>(r)].position % geometry_.block_tokens;
      const auto* from = reinterpret_cast<const float*>(device_memory_ + restart.from);
      std::copy_n(from + token * dim_ + mine.begin, mine.end - mine.begin, to);
    }
  }
}

void FormRows::check(const Step& step) const {
  KV_CHECK(std::is_sorted(step.form_writes.begin(), step.form_writes.end(),
                          [](const FormWrite& a, const FormWrite& b) { return a.group < b.group; }),
           "step {}: form writes are not in the order of their groups", raw(step.id));
  KV_CHECK(std::is_sorted(step.projections.begin(), step.projections.end(),
                          [](const KvProjection& a, const KvProjection& b) { return a.layer < b.layer; }),
           "step {}: projections are not in the order of their layers", raw(step.id));
  for (const FormWrite& w : step.form_writes) {
    KV_CHECK(geometry_.has(w.form) && w.form != Form::kKv, "step {}: a write of form {}", raw(step.id),
             static_cast<int>(w.form));
  }
  for (const KvProjection& p : step.projections) {
    const uint32_t first = p.first_position % geometry_.block_tokens;
    KV_CHECK(geometry_.has(Form::kX) && first + p.tokens <= geometry_.block_tokens,
             "step {}: a projection of tokens [{}, +{})", raw(step.id), p.first_position, p.tokens);
  }
  std::vector<uint32_t> restarted;
  for (const Restart& r : step.restarts) {
    restarted.resize(step.slices.size());
    const Interval tokens = tokens_in(step.slices[r.slice], r.block, geometry_.block_tokens);
    restarted[r.slice] += tokens.size();
  }
  for (size_t s = 0; s < step.slices.size(); ++s) {
    const uint32_t rows = step.slices[s].first_layer > 0 ? step.slices[s].tokens.size() : 0;
    KV_CHECK((restarted.empty() ? 0 : restarted[s]) == rows, "seq={}: {} rows begin at layer {}, {} have H",
             raw(step.slices[s].seq), rows, step.slices[s].first_layer, restarted.empty() ? 0 : restarted[s]);
  }
}

}  // namespace kvasir
