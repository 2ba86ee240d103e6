#include "exec/cpu/decoder.h"

#include <algorithm>
#include <cmath>
#include <new>

#include "base/check.h"
#include "base/mutant.h"
#include "model/sampler.h"

namespace kvasir {
namespace {

ops::KvShape frame_shape(const ModelConfig& config, const CacheGeometry& geometry, ops::KvType type) {
  ops::KvShape shape;
  shape.layers = geometry.layers_per_group;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.block_tokens = geometry.block_tokens;
  shape.type = type;
  return shape;
}

// Floats from one row of a projection's input to the next.
int64_t row_stride(int64_t k) {
  constexpr int64_t kFloat = sizeof(float);
  return ops::row_stride_bytes(k * kFloat) / kFloat;
}

}  // namespace

Decoder::Decoder(const PackedModel& model, const ops::Kernels& kernels, const CacheGeometry& geometry,
                 const Options& options, std::byte* device_memory, int threads)
    : model_(model),
      kernels_(kernels),
      geometry_(geometry),
      options_(options),
      frame_(frame_shape(model.config(), geometry, options.kv_type)),
      device_memory_(device_memory),
      query_scale_(1.0f / std::sqrt(static_cast<float>(model.config().head_dim))),
      attention_(model.config(), kernels, geometry_, frame_, device_memory, threads) {
  own_.resize(static_cast<size_t>(threads));
  for (Buffers& own : own_) {
    const Status status = grow(own, kSoloRows);
    KV_CHECK(status.ok(), "{}", status.message());
  }
  KV_CHECK(ops::is_valid(frame_), "head_dim={} block_tokens={}", frame_.head_dim, frame_.block_tokens);
  KV_CHECK(ops::kv_plane_bytes(frame_) == geometry.frame_bytes(FrameClass::kKvPlane), "plane={} frame={}",
           ops::kv_plane_bytes(frame_), geometry.frame_bytes(FrameClass::kKvPlane));
}

// ---------------------------------------------------------------- layout of a step

Status Decoder::prepare(const Step& step) {
  KV_RETURN_IF_ERROR(reserve(step.row_count()));
  try {
    lay_out(step);
  } catch (const std::bad_alloc&) {
    return error(ErrorCode::kExhausted, "no memory for the rows of a step of {} tokens", step.row_count());
  }
  return attention_.prepare(step, rows_);
}

void Decoder::lay_out(const Step& step) {
  rows_.clear();
  logit_rows_.clear();
  sampled_.clear();
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    const StepSlice& slice = step.slices[s];
    const auto first = static_cast<int64_t>(rows_.size());
    for (uint32_t i = 0; i < slice.tokens.size(); ++i) {
      rows_.push_back({s, slice.tokens.begin + i, step.token_ids[slice.first_token + i]});
      if (options_.tap_all_rows) logit_rows_.push_back(first + i);
    }
    if (slice.samples && !options_.tap_all_rows) {
      logit_rows_.push_back(static_cast<int64_t>(rows_.size()) - 1);
    }
  }
  for (const StepSlice& slice : step.slices) {
    if (slice.samples) sampled_.emplace_back().seq = slice.seq;
  }
}

Status Decoder::reserve(int64_t rows) {
  if (rows <= capacity_rows_) return {};
  const ModelConfig& c = model_.config();
  const auto n = static_cast<size_t>(rows);
  try {
    x_.resize(n * static_cast<size_t>(c.dim));
    qkv_.resize(n * static_cast<size_t>(c.q_dim() + 2 * c.kv_dim()));
    attended_.resize(n * static_cast<size_t>(row_stride(c.q_dim())));
    gate_up_.resize(n * 2 * static_cast<size_t>(c.ffn_dim));
    logits_.resize(static_cast<size_t>(std::min(rows, kLogitRows) * c.vocab_size));
    KV_RETURN_IF_ERROR(grow(shared_, rows));
  } catch (const std::bad_alloc&) {
    return error(ErrorCode::kExhausted, "no memory for the activations of a step of {} tokens", rows);
  }
  capacity_rows_ = rows;
  return {};
}

Status Decoder::grow(Buffers& buffers, int64_t rows) const {
  const ModelConfig& c = model_.config();
  const int64_t widest = std::max({c.dim, c.q_dim(), c.ffn_dim});
  buffers.rows.resize(static_cast<size_t>(rows * row_stride(widest)));
  KV_ASSIGN_OR_RETURN(buffers.quantized,
                      Arena::map(ops::quantized_rows_bytes(rows, round_up<int64_t>(widest, ops::kGroup)),
                                 "quantised activations"));
  if (takes_anywhere(ops::ActivationType::kBf16)) {
    KV_ASSIGN_OR_RETURN(buffers.rounded, Arena::map(ops::bf16_rows_bytes(rows, widest), "bf16 activations"));
  }
  return {};
}

uint64_t Decoder::scratch_bytes() const {
  const size_t floats =
      x_.size() + qkv_.size() + attended_.size() + gate_up_.size() + logits_.size() + shared_.rows.size();
  return floats * sizeof(float) + attention_.scratch_bytes() + shared_.quantized.size() +
         shared_.rounded.size();
}

// ---------------------------------------------------------------- the pass

void Decoder::run(const Step& step, StepTransfers& transfers, const ThreadPool::Worker& worker) {
  const ModelConfig& c = model_.config();
  const auto rows = static_cast<int64_t>(rows_.size());
  const Share mine = share_of(rows, worker);
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    model_.embed(rows_[static_cast<size_t>(r)].token, x_.data() + r * c.dim);
  }
  worker.barrier.wait();
  for (uint32_t layer = 0; layer < model_.layers().size(); ++layer) {
    const PackedLayer& weights = model_.layers()[layer];
    const Input normed = normed_input(weights.attn_norm, weights.qkv, worker);
    multiply(weights.qkv, normed, rows, qkv_.data(), weights.qkv.n, false, worker);
    if (transfers.waits_before(layer)) {
      await_transfers(step, layer, transfers, worker);
      if (transfers.all_deferred()) break;
    }
    if (mutant(Mutant::kAttendBeforeWrite)) {
      attend(step, layer, transfers, worker);
      rotate_and_write(step, layer, transfers, worker);
    } else {
      rotate_and_write(step, layer, transfers, worker);
      attend(step, layer, transfers, worker);
    }
    const Input attended = take_rows(weights.attn_output, attended_.data(), worker);
    multiply(weights.attn_output, attended, rows, x_.data(), c.dim, true, worker);
    feed_forward(weights, worker);
  }
  sample_rows(step, worker);
}

ops::ActivationType Decoder::rows_for(const Projection::Part& part) const {
  return ops::activation_for(part.matrix.type, options_.activation);
}

bool Decoder::takes(const Projection& p, ops::ActivationType type) const {
  return std::any_of(p.parts.begin(), p.parts.end(),
                     [&](const Projection::Part& part) { return rows_for(part) == type; });
}

bool Decoder::takes_anywhere(ops::ActivationType type) const {
  const auto layer_takes = [&](const PackedLayer& l) {
    return takes(l.qkv, type) || takes(l.attn_output, type) || takes(l.gate_up, type) ||
           takes(l.ffn_down, type);
  };
  return takes(model_.output(), type) ||
         std::any_of(model_.layers().begin(), model_.layers().end(), layer_takes);
}

Decoder::Input Decoder::convert_rows(const Projection& next, const float* x, Buffers& buffers, int64_t rows,
                                     const Share& mine) const {
  Input input;
  input.x = x;
  input.stride = row_stride(next.k);
  // Every thread makes the same views over shared memory.
  if (takes(next, ops::ActivationType::kInt8)) {
    input.quantized = ops::make_quantized_rows(buffers.quantized.data(), rows, next.k);
    kernels_.quantize_rows(input.x, input.stride, input.quantized, mine.begin, mine.end);
  }
  if (takes(next, ops::ActivationType::kBf16)) {
    input.rounded = ops::make_bf16_rows(buffers.rounded.data(), rows, next.k);
    kernels_.round_rows_bf16(input.x, input.stride, input.rounded, mine.begin, mine.end);
  }
  return input;
}

Decoder::Preparation Decoder::preparation(const ThreadPool::Worker& worker) {
  const auto rows = static_cast<int64_t>(rows_.size());
  if (rows <= kSoloRows) return {own_[static_cast<size_t>(worker.index)], {0, rows}, true};
  return {shared_, share_of(rows, worker), false};
}

Decoder::Input Decoder::take_rows(const Projection& next, const float* x, const ThreadPool::Worker& worker) {
  const Preparation my = preparation(worker);
  if (!my.alone && mutant(Mutant::kBatchScale)) worker.barrier.wait();  // it reads the first row
  const Input input = convert_rows(next, x, my.buffers, static_cast<int64_t>(rows_.size()), my.rows);
  if (!my.alone) worker.barrier.wait();
  return input;
}

template <typename MakeRow>
Decoder::Input Decoder::make_rows(const Projection& next, const ThreadPool::Worker& worker,
                                  const MakeRow& make_row) {
  const Preparation my = preparation(worker);
  float* x = my.buffers.rows.data();
  for (int64_t r = my.rows.begin; r < my.rows.end; ++r) make_row(r, x + r * row_stride(next.k));
  return take_rows(next, x, worker);
}

Decoder::Input Decoder::normed_input(const std::vector<float>& weight, const Projection& next,
                                     const ThreadPool::Worker& worker) {
  const ModelConfig& c = model_.config();
  return make_rows(next, worker, [&](int64_t row, float* out) {
    kernels_.rms_norm(x_.data() + row * c.dim, weight.data(), c.dim, c.rms_epsilon, out);
  });
}

void Decoder::multiply(const Projection& p, const Input& input, int64_t rows, float* out, int64_t ldo,
                       bool accumulate, const ThreadPool::Worker& worker) {
  for (const Projection::Part& part : p.parts) {
    const Share panels = share_of(ops::panel_count(part.matrix.n), worker);
    if (panels.begin == panels.end) continue;
    ops::ActivationType type = rows_for(part);
    if (mutant(Mutant::kBf16RowsUnrounded) && rows == 1 && type == ops::ActivationType::kBf16) {
      type = ops::ActivationType::kF32;
    }
    switch (type) {
      case ops::ActivationType::kInt8:
        kernels_.gemm_int8(input.quantized, 0, rows, part.matrix, panels.begin, panels.end, out + part.column,
                           ldo, accumulate);
        break;
      case ops::ActivationType::kBf16:
        kernels_.gemm_bf16(input.rounded, 0, rows, part.matrix, panels.begin, panels.end, out + part.column,
                           ldo, accumulate);
        break;
      case ops::ActivationType::kF32:
        kernels_.gemm_f32(input.x, input.stride, 0, rows, part.matrix, panels.begin, panels.end,
                          out + part.column, ldo, accumulate);
        break;
    }
  }
  worker.barrier.wait();
}

void Decoder::await_transfers(const Step& step, uint32_t layer, StepTransfers& transfers,
                              const ThreadPool::Worker& worker) {
  if (worker.index == 0 && transfers.wait_before(layer)) leave_out_deferred(step, transfers);
  worker.barrier.wait();
}

void Decoder::leave_out_deferred(const Step& step, const StepTransfers& transfers) {
  size_t samples = 0;
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    if (transfers.deferred(s)) {
      attention_.leave_out(s);
    } else if (step.slices[s].samples) {
      ++samples;
    }
  }
  const int64_t stride = row_stride(model_.config().q_dim());
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (transfers.deferred(rows_[r].slice)) {
      std::fill_n(attended_.begin() + static_cast<int64_t>(r) * stride, stride, 0.0f);
    }
  }
  if (mutant(Mutant::kDeferredSampled)) return;
  std::erase_if(logit_rows_,
                [&](int64_t r) { return transfers.deferred(rows_[static_cast<size_t>(r)].slice); });
  sampled_.resize(samples);
}

void Decoder::attend(const Step& step, uint32_t layer, StepTransfers& transfers,
                     const ThreadPool::Worker& worker) {
  attention_.run(step, layer, qkv_.data(), attended_.data(), row_stride(model_.config().q_dim()), worker);
  if (worker.index == 0) transfers.pass(layer_attended(layer));
}

void Decoder::rotate_and_write(const Step& step, uint32_t layer, StepTransfers& transfers,
                               const ThreadPool::Worker& worker) {
  const ModelConfig& c = model_.config();
  const int64_t width = c.q_dim() + 2 * c.kv_dim();
  const Share mine = share_of(static_cast<int64_t>(rows_.size()), worker);
  const bool some_deferred = transfers.any_deferred();
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    const StepRow& row = rows_[static_cast<size_t>(r)];
    if (some_deferred && transfers.deferred(row.slice)) continue;
    const StepSlice& slice = step.slices[row.slice];
    float* q = qkv_.data() + r * width;
    float* k = q + c.q_dim();
    const float* v = k + c.kv_dim();
    const int64_t position = mutant(Mutant::kWrongPosition) ? r : row.position;
    const float* cos = model_.rope().cos_row(position);
    const float* sin = model_.rope().sin_row(position);
    kernels_.rope(q, c.heads, c.head_dim, cos, sin, model_.rope().half);
    kernels_.rope(k, c.kv_heads, c.head_dim, cos, sin, model_.rope().half);
    kernels_.scale(q, query_scale_, c.q_dim(), q);
    const KvPlanes planes = step.planes(geometry_, slice, geometry_.block_of(row.position), layer);
    kernels_.write_kv(frame_, /*layer=*/0, row.position % geometry_.block_tokens, k, v,
                      device_memory_ + planes.k, device_memory_ + planes.v);
  }
  worker.barrier.wait();
  if (worker.index == 0) transfers.pass(layer_written(layer));
}

void Decoder::feed_forward(const PackedLayer& layer, const ThreadPool::Worker& worker) {
  const ModelConfig& c = model_.config();
  const auto rows = static_cast<int64_t>(rows_.size());
  const Input normed = normed_input(layer.ffn_norm, layer.gate_up, worker);
  multiply(layer.gate_up, normed, rows, gate_up_.data(), layer.gate_up.n, false, worker);
  const Input activated = make_rows(layer.ffn_down, worker, [&](int64_t row, float* out) {
    const float* gate = gate_up_.data() + row * layer.gate_up.n;
    kernels_.silu_mul(gate, gate + c.ffn_dim, c.ffn_dim, out);
  });
  multiply(layer.ffn_down, activated, rows, x_.data(), c.dim, true, worker);
}

// Final norm, logits and sampling, for kLogitRows rows at a time.
void Decoder::sample_rows(const Step& step, const ThreadPool::Worker& worker) {
  const ModelConfig& c = model_.config();
  const Projection& output = model_.output();
  size_t next_sampled = 0;
  for (size_t begin = 0; begin < logit_rows_.size(); begin += kLogitRows) {
    const auto count = static_cast<int64_t>(std::min<size_t>(kLogitRows, logit_rows_.size() - begin));
    const Share mine = share_of(count, worker);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t row = logit_rows_[begin + static_cast<size_t>(i)];
      kernels_.rms_norm(x_.data() + row * c.dim, model_.output_norm().data(), c.dim, c.rms_epsilon,
                        shared_.rows.data() + i * row_stride(c.dim));
    }
    const Input normed = convert_rows(output, shared_.rows.data(), shared_, count, mine);
    worker.barrier.wait();
    multiply(output, normed, count, logits_.data(), c.vocab_size, false, worker);

    for (int64_t i = 0; i < count; ++i) {
      const StepRow& row = rows_[static_cast<size_t>(logit_rows_[begin + static_cast<size_t>(i)])];
      const StepSlice& slice = step.slices[row.slice];
      const std::span<const float> logits(logits_.data() + i * c.vocab_size,
                                          static_cast<size_t>(c.vocab_size));
      if (tap_ && worker.index == 0) tap_(slice.seq, row.position, logits);
      if (!slice.samples || row.position + 1 != slice.tokens.end) continue;
      const size_t place = next_sampled++;
      if (i % worker.count != worker.index) continue;
      sampled_[place] = sample(kernels_, logits, slice.sampling, row.position + 1, slice.seq);
    }
    worker.barrier.wait();
  }
}

}  // namespace kvasir
