#include "exec/cpu/kv_projection.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"
#include "base/units.h"

namespace kvasir {
namespace {

// What a thread claims of a projection is whole runs of so many tokens.
constexpr int64_t kRun = 16;

int64_t runs_of(const KvProjection& p) {
  return ceil_div<int64_t>(p.tokens, kRun);
}

}  // namespace

KvProjector::KvProjector(const PackedModel& model, const ops::Kernels& kernels, const CacheGeometry& geometry,
                         const std::vector<ops::KvShape>& frames, ops::ActivationMode mode,
                         std::byte* device_memory, int threads)
    : model_(model),
      kernels_(kernels),
      finisher_(model, kernels),
      geometry_(geometry),
      frames_(frames),
      mode_(mode),
      x_type_(model.x_type(mode)),
      device_memory_(device_memory),
      scratch_(static_cast<size_t>(threads)) {
  if (!geometry.has(Form::kX)) return;
  const int64_t k = model.spec().dim;
  const auto row_bytes = static_cast<uint64_t>(ops::x_row_bytes(x_type_, k));
  KV_CHECK(row_bytes == geometry.x_bytes_per_token_layer, "X has {} bytes a row, the geometry says {}",
           row_bytes, geometry.x_bytes_per_token_layer);
  int64_t widest = 0;
  bool makes_int8_or_bf16 = false, makes_bf16 = false;
  for (const PackedLayer& layer : model.layers()) {
    const auto index = static_cast<uint32_t>(products_.size());
    products_.push_back(product_of(layer, model.spec().heads_of(index).q_dim()));
    const Projection& columns = products_.back().columns;
    widest = std::max(widest, columns.n);
    makes_bf16 |= takes(columns, mode, ops::ActivationType::kBf16);
    makes_int8_or_bf16 |= makes_bf16 || takes(columns, mode, ops::ActivationType::kInt8);
  }
  const auto block = static_cast<size_t>(geometry.block_tokens);
  for (Scratch& s : scratch_) {
    s.out.resize(block * static_cast<size_t>(widest));
    if (x_type_ == ops::ActivationType::kInt8) {
      s.scales.resize(block * static_cast<size_t>(k / ops::kGroup));
      s.moments.resize(s.scales.size());
      s.sums.resize(2 * s.scales.size());
    } else if (x_type_ == ops::ActivationType::kF32 && makes_int8_or_bf16) {
      const Status status = s.made.grow(geometry.block_tokens, k, makes_bf16);
      KV_CHECK(status.ok(), "{}", status.message());
    }
  }
}

KvProjector::Product KvProjector::product_of(const PackedLayer& layer, int64_t q_dim) {
  Product out;
  out.columns.k = layer.qkv.k;
  int64_t first_column = -1;
  for (const Projection::Part& part : layer.qkv.parts) {
    if (part.column + part.matrix.n <= q_dim) continue;
    const int64_t panel = std::max<int64_t>(0, q_dim - part.column) / ops::kPanel;
    Projection::Part kept = part;
    kept.matrix.data += static_cast<size_t>(panel) * ops::panel_bytes(part.matrix.type, part.matrix.k);
    kept.matrix.n -= panel * ops::kPanel;
    if (first_column < 0) first_column = part.column + panel * ops::kPanel;
    kept.column = part.column + panel * ops::kPanel - first_column;
    out.columns.n = kept.column + kept.matrix.n;
    out.columns.parts.push_back(kept);
  }
  out.first_k = q_dim - first_column;
  return out;
}

uint64_t KvProjector::scratch_bytes() const {
  uint64_t bytes = 0;
  for (const Scratch& s : scratch_) {
    bytes += (s.out.size() + s.scales.size() + s.moments.size()) * sizeof(float);
    bytes += s.sums.size() * sizeof(int16_t) + s.made.bytes();
  }
  return bytes;
}

void KvProjector::run(const Step& step, uint32_t layer, const StepTransfers& transfers, ThreadPool& pool) {
  const std::span<const KvProjection> all = step.projections_in(layer);
  int64_t runs = 0;
  for (const KvProjection& p : all) runs += transfers.deferred(p.slice) ? 0 : runs_of(p);
  pool.for_each(runs, [&](Share mine, int thread) {
    int64_t before = 0;
    for (const KvProjection& p : all) {
      if (transfers.deferred(p.slice)) continue;
      const int64_t begin = std::max<int64_t>(0, (mine.begin - before) * kRun);
      const int64_t end = std::min<int64_t>(p.tokens, (mine.end - before) * kRun);
      before += runs_of(p);
      if (begin >= end) continue;
      const int64_t first = p.first_position % geometry_.block_tokens;
      project(p, first + begin, end - begin, scratch_[static_cast<size_t>(thread)]);
    }
  });
}

Operand KvProjector::operand(const KvProjection& p, const Product& product, const Share& rows,
                             Scratch& scratch) const {
  void* piece = device_memory_ + p.x;
  const int64_t block = geometry_.block_tokens, k = product.columns.k;
  Operand out;
  switch (x_type_) {
    case ops::ActivationType::kInt8: {
      const ops::Int8XRows x = ops::int8_x_rows(piece, block, k);
      out.quantized = {x.q, scratch.scales.data(), scratch.sums.data(), scratch.moments.data(), block, k};
      kernels_.complete_rows(x.d, out.quantized, rows.begin, rows.end);
      break;
    }
    case ops::ActivationType::kBf16:
      out.rounded = ops::bf16_x_rows(piece, block, k);
      break;
    case ops::ActivationType::kF32:
      out = operand_over(product.columns, mode_, ops::f32_x_rows(piece), k, scratch.made, block);
      fill_operand(kernels_, product.columns, mode_, out, rows);
      break;
  }
  return out;
}

void KvProjector::project(const KvProjection& p, int64_t first, int64_t tokens, Scratch& scratch) const {
  const int64_t kv_dim = model_.spec().heads_of(p.layer).kv_dim();
  const Product& product = products_[p.layer];
  const int64_t width = product.columns.n;
  const Share rows{first, first + tokens};
  const Operand x = operand(p, product, rows, scratch);
  for (const Projection::Part& part : product.columns.parts) {
    multiply_part(kernels_, part, ops::activation_for(part.matrix.type, mode_), x, rows,
                  {0, ops::panel_count(part.matrix.n)}, scratch.out.data(), width, false);
  }
  const auto block_begin = static_cast<int64_t>(p.first_position / geometry_.block_tokens) *
                           static_cast<int64_t>(geometry_.block_tokens);
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float* kv = scratch.out.data() + r * width + product.first_k;
    const int64_t position = mutant(Mutant::kXWrongPosition) ? r : block_begin + r;
    finisher_.finish_kv(p.layer, position, kv, /*with_bias=*/!mutant(Mutant::kXBiasMissing));
    kernels_.write_kv(frames_[p.layer], /*layer=*/0, r, kv, kv + kv_dim, device_memory_ + p.to.k,
                      device_memory_ + p.to.v);
  }
}

}  // namespace kvasir
