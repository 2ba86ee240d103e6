#include "exec/cpu/decoder.h"

#include <algorithm>
#include <new>
#include <numeric>

#include "base/check.h"
#include "base/mutant.h"
#include "exec/cpu/sampler.h"

namespace kvasir {
namespace {

ops::KvShape frame_shape(const ModelSpec& config, const CacheGeometry& geometry, ops::KvType type) {
  ops::KvShape shape;
  shape.layers = geometry.layers_per_group;
  shape.kv_heads = config.kv_heads;
  shape.head_dim = config.head_dim;
  shape.block_tokens = geometry.block_tokens;
  shape.type = type;
  return shape;
}

}  // namespace

Decoder::Decoder(const PackedModel& model, const ops::Kernels& kernels, const CacheGeometry& geometry,
                 const Options& options, std::byte* device_memory, int threads)
    : model_(model),
      kernels_(kernels),
      geometry_(geometry),
      options_(options),
      frame_(frame_shape(model.spec(), geometry, options.kv_type)),
      device_memory_(device_memory),
      finisher_(model, kernels),
      attention_(model.spec(), kernels, geometry_, frame_, device_memory, threads),
      remote_(options.peers, model.spec(), geometry_),
      x_rows_(geometry_, model.spec().dim, model.x_type(options.activation), device_memory),
      projector_(model, kernels, geometry_, frame_, options.activation, device_memory, threads) {
  own_.resize(static_cast<size_t>(threads));
  for (OperandBuffers& own : own_) {
    const Status status = own.grow(kSoloRows, widest_operand(), takes_anywhere(ops::ActivationType::kBf16));
    KV_CHECK(status.ok(), "{}", status.message());
  }
  KV_CHECK(ops::is_valid(frame_), "head_dim={} block_tokens={}", frame_.head_dim, frame_.block_tokens);
  KV_CHECK(ops::kv_plane_bytes(frame_) == geometry.layer_plane_bytes() * geometry.layers_per_group,
           "plane={} frame={}", ops::kv_plane_bytes(frame_),
           geometry.layer_plane_bytes() * geometry.layers_per_group);
}

// ---------------------------------------------------------------- layout of a step

Status Decoder::prepare(const Step& step) {
  KV_RETURN_IF_ERROR(reserve(step.row_count()));
  KV_RETURN_IF_ERROR(remote_.prepare(step));
  try {
    lay_out(step);
  } catch (const std::bad_alloc&) {
    return error(ErrorCode::kExhausted, "no memory for the rows of a step of {} tokens", step.row_count());
  }
  // From the last set to the first, with which the step begins: later there is room for each.
  for (size_t i = sets_.count(); i-- > 0;) {
    rows_ = sets_.set(i).rows;
    KV_RETURN_IF_ERROR(attention_.prepare(rows_));
    for (uint32_t layer = geometry_.layers; layer-- > 0 && !step.remote.empty();) {
      KV_RETURN_IF_ERROR(attention_.prepare_layer(layer, step.remote_in(layer)));
    }
  }
  return {};
}

void Decoder::lay_out(const Step& step) {
  x_rows_.check(step);
  sets_.lay_out(step, geometry_.layers, options_.tap_all_rows);
  logit_rows_.resize(sets_.last().rows.size());
  std::iota(logit_rows_.begin(), logit_rows_.end(), 0);
  sampled_.clear();
  for (const StepSlice& slice : step.slices) {
    if (slice.samples) sampled_.emplace_back().seq = slice.seq;
  }
}

Status Decoder::reserve(int64_t rows) {
  if (rows <= capacity_rows_) return {};
  const ModelSpec& c = model_.spec();
  const auto n = static_cast<size_t>(rows);
  try {
    x_.resize(n * static_cast<size_t>(c.dim));
    qkv_.resize(n * static_cast<size_t>(c.q_dim() + 2 * c.kv_dim()));
    attended_.resize(n * static_cast<size_t>(row_stride(c.q_dim())));
    ffn_in_.resize(n * static_cast<size_t>(c.ffn_inputs()));
    if (!model_.adds_at_once()) branch_.resize(n * static_cast<size_t>(c.dim));
    logits_.resize(static_cast<size_t>(std::min(rows, kLogitRows) * c.vocab_size));
    KV_RETURN_IF_ERROR(shared_.grow(rows, widest_operand(), takes_anywhere(ops::ActivationType::kBf16)));
  } catch (const std::bad_alloc&) {
    return error(ErrorCode::kExhausted, "no memory for the activations of a step of {} tokens", rows);
  }
  capacity_rows_ = rows;
  return {};
}

int64_t Decoder::widest_operand() const {
  const ModelSpec& c = model_.spec();
  return std::max({c.dim, c.q_dim(), c.ffn_dim});
}

bool Decoder::takes_anywhere(ops::ActivationType type) const {
  const auto p_takes = [&](const Projection& p) { return takes(p, options_.activation, type); };
  const auto layer_takes = [&](const PackedLayer& l) {
    return p_takes(l.qkv) || p_takes(l.attn_output) || p_takes(l.ffn_in) || p_takes(l.ffn_down);
  };
  return p_takes(model_.output()) || std::any_of(model_.layers().begin(), model_.layers().end(), layer_takes);
}

uint64_t Decoder::scratch_bytes() const {
  const size_t floats =
      x_.size() + qkv_.size() + attended_.size() + ffn_in_.size() + logits_.size() + branch_.size();
  uint64_t bytes =
      floats * sizeof(float) + attention_.scratch_bytes() + projector_.scratch_bytes() + shared_.bytes();
  bytes += remote_.scratch_bytes();
  for (const OperandBuffers& own : own_) bytes += own.bytes();
  return bytes;
}

// ---------------------------------------------------------------- the pass

void Decoder::run(const Step& step, StepTransfers& transfers, const ThreadPool::Worker& worker) {
  const ModelSpec& c = model_.spec();
  Place place;
  const Share mine = share_of(static_cast<int64_t>(rows_.size()), worker);
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    const StepRow& row = rows_[static_cast<size_t>(r)];
    model_.embed(row.token, row.position, x_.data() + r * c.dim);
  }
  worker.barrier.wait();
  for (uint32_t layer = 0; layer < model_.layers().size(); ++layer) {
    const PackedLayer& weights = model_.layers()[layer];
    const Operand normed = normed_input(weights.attn_norm, weights.qkv, worker);
    multiply(weights.qkv, normed, row_count(), qkv_.data(), weights.qkv.n, false, worker);
    if (!await_transfers(step, layer, transfers, worker)) break;
    const bool early = mutant(Mutant::kAttendBeforeWrite) && !sets_.leaves(layer);
    if (early && !attend(step, layer, transfers, worker)) break;
    write(step, layer, normed, transfers, worker, place);
    if (sets_.leaves(layer)) next_set(step, layer, transfers, worker, place);
    if (!early && !attend(step, layer, transfers, worker)) break;
    const Operand attended = take_rows(weights.attn_output, attended_.data(), worker);
    add_to_residual(weights.attn_output, attended, weights.attn_branch, worker);
    feed_forward(weights, worker);
  }
  sample_rows(step, worker);
}

void Decoder::next_set(const Step& step, uint32_t layer, const StepTransfers& transfers,
                       const ThreadPool::Worker& worker, Place& place) {
  const ModelSpec& c = model_.spec();
  const RowSets::Set& set = sets_.set(++place.set);
  move_rows(set, x_.data(), c.dim, share_of(c.dim, worker));
  const int64_t width = c.q_dim() + 2 * c.kv_dim();
  move_rows(set, qkv_.data(), width, share_of(width, worker));
  if (worker.index == 0) {
    rows_ = set.rows;
    const Status status = attention_.prepare(rows_);
    KV_CHECK(status.ok(), "{}", status.message());
    prepare_attention(step, layer);
    leave_out_of_attention(step, transfers);
  }
  worker.barrier.wait();
}

void Decoder::move_rows(const RowSets::Set& set, float* rows, int64_t width, const Share& columns) const {
  for (int64_t to = 0; to < static_cast<int64_t>(set.rows.size()); ++to) {
    const auto from = static_cast<int64_t>(set.source[static_cast<size_t>(to)]);
    if (from == to) continue;
    std::copy(rows + from * width + columns.begin, rows + from * width + columns.end,
              rows + to * width + columns.begin);
  }
}

Decoder::Preparation Decoder::preparation(const ThreadPool::Worker& worker) {
  if (row_count() <= kSoloRows) return {own_[static_cast<size_t>(worker.index)], {0, row_count()}, true};
  return {shared_, share_of(row_count(), worker), false};
}

Operand Decoder::take_rows(const Projection& next, const float* x, const ThreadPool::Worker& worker) {
  const Preparation my = preparation(worker);
  if (!my.alone && mutant(Mutant::kBatchScale)) worker.barrier.wait();  // it reads the first row
  const Operand input = make_operand(kernels_, next, options_.activation, x, row_stride(next.k), my.buffers,
                                     row_count(), my.rows);
  if (!my.alone) worker.barrier.wait();
  return input;
}

template <typename MakeRow>
Operand Decoder::make_rows(const Projection& next, const ThreadPool::Worker& worker,
                           const MakeRow& make_row) {
  const Preparation my = preparation(worker);
  float* x = my.buffers.rows.data();
  for (int64_t r = my.rows.begin; r < my.rows.end; ++r) make_row(r, x + r * row_stride(next.k));
  return take_rows(next, x, worker);
}

Operand Decoder::normed_input(const NormWeights& norm, const Projection& next,
                              const ThreadPool::Worker& worker) {
  const int64_t dim = model_.spec().dim;
  return make_rows(next, worker,
                   [&](int64_t row, float* out) { normalise(norm, x_.data() + row * dim, out); });
}

void Decoder::normalise(const NormWeights& norm, const float* x, float* out) const {
  const ModelSpec& c = model_.spec();
  if (!norm.present()) {
    std::copy_n(x, c.dim, out);
  } else if (c.norm == NormKind::kRms) {
    kernels_.rms_norm(x, norm.weight.data(), c.dim, c.norm_epsilon, out);
  } else {
    kernels_.layer_norm(x, norm.weight.data(), norm.bias.empty() ? nullptr : norm.bias.data(), c.dim,
                        c.norm_epsilon, out);
  }
}

void Decoder::multiply(const Projection& p, const Operand& input, int64_t rows, float* out, int64_t ldo,
                       bool accumulate, const ThreadPool::Worker& worker) {
  for (const Projection::Part& part : p.parts) {
    const Share panels = share_of(ops::panel_count(part.matrix.n), worker);
    if (panels.begin == panels.end) continue;
    ops::ActivationType type = ops::activation_for(part.matrix.type, options_.activation);
    if (mutant(Mutant::kBf16RowsUnrounded) && rows == 1 && type == ops::ActivationType::kBf16) {
      type = ops::ActivationType::kF32;
    }
    multiply_part(kernels_, part, type, input, {0, rows}, panels, out, ldo, accumulate);
  }
  worker.barrier.wait();
}

void Decoder::add_to_residual(const Projection& p, const Operand& input, const Branch& branch,
                              const ThreadPool::Worker& worker) {
  const ModelSpec& c = model_.spec();
  if (model_.adds_at_once()) {
    multiply(p, input, row_count(), x_.data(), c.dim, true, worker);
    return;
  }
  multiply(p, input, row_count(), branch_.data(), c.dim, false, worker);
  const Share mine = share_of(row_count(), worker);
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    float* y = branch_.data() + r * c.dim;
    float* x = x_.data() + r * c.dim;
    if (!branch.bias.empty()) kernels_.add(y, branch.bias.data(), c.dim, y);
    const bool skips = mutant(Mutant::kPostNormSkipped) && row_count() == 1;
    if (branch.post_norm.present() && !skips) normalise(branch.post_norm, y, y);
    if (c.residual_scale != 1) kernels_.scale(y, c.residual_scale, c.dim, y);
    kernels_.add(x, y, c.dim, x);
  }
  worker.barrier.wait();
}

bool Decoder::await_transfers(const Step& step, uint32_t layer, StepTransfers& transfers,
                              const ThreadPool::Worker& worker) {
  if (!transfers.waits_before(layer)) return true;
  if (worker.index == 0 && transfers.wait_before(layer)) leave_out_deferred(step, transfers);
  worker.barrier.wait();
  return !transfers.all_deferred();
}

void Decoder::leave_out_deferred(const Step& step, const StepTransfers& transfers) {
  leave_out_of_attention(step, transfers);
  if (mutant(Mutant::kDeferredSampled)) return;
  std::erase_if(logit_rows_, [&](int64_t r) {
    return transfers.deferred(sets_.last().rows[static_cast<size_t>(r)].slice);
  });
  size_t samples = 0;
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    samples += step.slices[s].samples && !transfers.deferred(s) ? 1 : 0;
  }
  sampled_.resize(samples);
}

void Decoder::leave_out_of_attention(const Step& step, const StepTransfers& transfers) {
  if (!transfers.any_deferred()) return;
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    if (transfers.deferred(s)) attention_.leave_out(s);
  }
  const int64_t stride = row_stride(model_.spec().q_dim());
  for (size_t r = 0; r < rows_.size(); ++r) {
    if (transfers.deferred(rows_[r].slice)) {
      std::fill_n(attended_.begin() + static_cast<int64_t>(r) * stride, stride, 0.0f);
    }
  }
}

void Decoder::prepare_attention(const Step& step, uint32_t layer) {
  const Status status = attention_.prepare_layer(layer, step.remote_in(layer));
  KV_CHECK(status.ok(), "{}", status.message());
}

bool Decoder::attend(const Step& step, uint32_t layer, StepTransfers& transfers,
                     const ThreadPool::Worker& worker) {
  const int64_t stride = row_stride(model_.spec().q_dim());
  const bool remote = attention_.awaits_answers(layer);
  // The others begin with what is local.
  if (remote && worker.index == 0) remote_.ask(step, layer, rows_, qkv_.data(), transfers);
  attention_.run(step, layer, qkv_.data(), attended_.data(), stride, worker);
  if (remote) {
    if (worker.index == 0 && remote_.wait(transfers)) leave_out_deferred(step, transfers);
    worker.barrier.wait();
    attention_.merge_answers(layer, remote_, attended_.data(), stride, worker);
  }
  if (worker.index == 0) transfers.pass(layer_attended(layer));
  return !transfers.all_deferred();
}

void Decoder::write(const Step& step, uint32_t layer, const Operand& normed, StepTransfers& transfers,
                    const ThreadPool::Worker& worker, const Place& place) {
  if (worker.index == 0 && !sets_.leaves(layer)) prepare_attention(step, layer);
  const Share mine = share_of(row_count(), worker);
  const bool some_deferred = transfers.any_deferred();
  for (int64_t r = mine.begin; r < mine.end; ++r) {
    if (some_deferred && transfers.deferred(rows_[static_cast<size_t>(r)].slice)) continue;
    rotate_and_write(step, layer, r);
  }
  if (!step.x_writes.empty()) x_rows_.write(step, layer, sets_.set(place.set), normed, transfers, mine);
  if (!step.projections.empty()) projector_.run(step, layer, transfers, worker);
  worker.barrier.wait();
  if (worker.index == 0) transfers.pass(layer_written(layer));
}

void Decoder::rotate_and_write(const Step& step, uint32_t layer, int64_t r) {
  const ModelSpec& c = model_.spec();
  const int64_t width = c.q_dim() + 2 * c.kv_dim();
  const StepRow& row = rows_[static_cast<size_t>(r)];
  float* q = qkv_.data() + r * width;
  float* k = q + c.q_dim();
  const int64_t position = mutant(Mutant::kWrongPosition) ? r : row.position;
  finisher_.finish_q(layer, position, q);
  finisher_.finish_kv(layer, position, k);
  const KvPlanes planes =
      step.planes(geometry_, step.slices[row.slice], geometry_.block_of(row.position), layer);
  kernels_.write_kv(frame_, /*layer=*/0, row.position % geometry_.block_tokens, k, k + c.kv_dim(),
                    device_memory_ + planes.k, device_memory_ + planes.v);
}

void Decoder::feed_forward(const PackedLayer& layer, const ThreadPool::Worker& worker) {
  const Operand normed = normed_input(layer.ffn_norm, layer.ffn_in, worker);
  multiply(layer.ffn_in, normed, row_count(), ffn_in_.data(), layer.ffn_in.n, false, worker);
  const Operand activated = make_rows(layer.ffn_down, worker, [&](int64_t row, float* out) {
    activate(layer, ffn_in_.data() + row * layer.ffn_in.n, out);
  });
  add_to_residual(layer.ffn_down, activated, layer.ffn_branch, worker);
}

void Decoder::activate(const PackedLayer& layer, const float* row, float* out) const {
  const ModelSpec& c = model_.spec();
  if (c.gated && c.activation == Activation::kSilu) {
    kernels_.silu_mul(row, row + c.ffn_dim, c.ffn_dim, out);
  } else if (c.gated) {
    kernels_.gelu_mul(row, row + c.ffn_dim, c.ffn_dim, out);
  } else {
    if (!layer.ffn_in_bias.empty()) {
      kernels_.add(row, layer.ffn_in_bias.data(), c.ffn_dim, out);
      row = out;
    }
    for (int64_t i = 0; i < c.ffn_dim; ++i) out[i] = row[i] > 0 ? row[i] : 0.0F;
  }
}

// Final norm, logits and sampling, for kLogitRows rows at a time.
void Decoder::sample_rows(const Step& step, const ThreadPool::Worker& worker) {
  const ModelSpec& c = model_.spec();
  const Projection& output = model_.output();
  size_t next_sampled = 0;
  for (size_t begin = 0; begin < logit_rows_.size(); begin += kLogitRows) {
    const auto count = static_cast<int64_t>(std::min<size_t>(kLogitRows, logit_rows_.size() - begin));
    const Share mine = share_of(count, worker);
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t row = logit_rows_[begin + static_cast<size_t>(i)];
      normalise(model_.output_norm(), x_.data() + row * c.dim, shared_.rows.data() + i * row_stride(c.dim));
    }
    const Operand normed = make_operand(kernels_, output, options_.activation, shared_.rows.data(),
                                        row_stride(c.dim), shared_, count, mine);
    worker.barrier.wait();
    multiply(output, normed, count, logits_.data(), c.vocab_size, false, worker);
    if (c.logit_scale != 1 || c.logit_cap != 0) {
      for (int64_t i = mine.begin; i < mine.end; ++i) finish_logits(logits_.data() + i * c.vocab_size);
      worker.barrier.wait();
    }

    for (int64_t i = 0; i < count; ++i) {
      const StepRow& row =
          sets_.last().rows[static_cast<size_t>(logit_rows_[begin + static_cast<size_t>(i)])];
      const StepSlice& slice = step.slices[row.slice];
      const std::span<const float> logits(logits_.data() + i * c.vocab_size,
                                          static_cast<size_t>(c.vocab_size));
      if (tap_ && worker.index == 0) tap_(slice.seq, row.position, logits);
      if (!slice.samples || row.position + 1 != slice.tokens.end) continue;
      const size_t place = next_sampled++;
      if (i % worker.count != worker.index) continue;
      sampled_[place] = sample(kernels_, logits, slice.sampling, row.position + 1, slice.seq);
      if (!slice.wants_hidden) continue;
      const int64_t from = mutant(Mutant::kHiddenOfBatch) ? 0 : i;
      const float* hidden = shared_.rows.data() + from * row_stride(c.dim);
      sampled_[place].hidden.assign(hidden, hidden + c.dim);
    }
    worker.barrier.wait();
  }
}

void Decoder::finish_logits(float* logits) const {
  const ModelSpec& c = model_.spec();
  if (c.logit_scale != 1) kernels_.scale(logits, c.logit_scale, c.vocab_size, logits);
  if (c.logit_cap != 0) kernels_.cap(logits, c.logit_cap, c.vocab_size, logits);
}

}  // namespace kvasir
