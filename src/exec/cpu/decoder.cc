#include "exec/cpu/decoder.h"

#include <algorithm>
#include <array>
#include <new>
#include <numeric>

#include "base/check.h"
#include "base/mutant.h"
#include "base/units.h"
#include "exec/cpu/gated_activation.h"
#include "exec/cpu/product.h"

namespace kvasir {
namespace {

// Of one layer, by layer.
std::vector<ops::KvShape> frame_shapes(const ModelSpec& config, const CacheGeometry& geometry,
                                       ops::KvType type) {
  std::vector<ops::KvShape> out;
  for (int32_t l = 0; l < config.layers; ++l) {
    const HeadShape heads = config.heads_of(l);
    out.push_back({1, heads.kv_heads, heads.head_dim, geometry.block_tokens, type, config.latent.rank});
  }
  return out;
}

}  // namespace

Decoder::Decoder(const PackedModel& model, const ops::Kernels& kernels, const CacheGeometry& geometry,
                 const Options& options, std::byte* device_memory, ThreadPool& pool)
    : model_(model),
      kernels_(kernels),
      geometry_(geometry),
      options_(options),
      cache_layers_(model.spec(), geometry.piece_bytes(Form::kKv)),
      frames_(frame_shapes(model.spec(), geometry, options.kv_type)),
      device_memory_(device_memory),
      pool_(pool),
      finisher_(model, kernels),
      attention_(model.spec(), kernels, geometry_, frames_, device_memory, pool.size()),
      remote_(options.peers, model.spec(), geometry_),
      x_rows_(geometry_, model.spec().dim, model.x_type(options.activation), device_memory),
      projector_(model, kernels, geometry_, frames_, options.activation, device_memory, pool.size()),
      products_(kernels, options.activation, pool),
      experts_(model.spec(), kernels, products_, pool.size()),
      latent_(model, kernels, products_),
      recurrent_(model, kernels, geometry_, products_, device_memory, pool),
      samplers_(static_cast<size_t>(pool.size()), Sampler(kernels)) {
  KV_CHECK(geometry.kv_planes == static_cast<uint32_t>(model.spec().kv_planes()), "planes={}",
           geometry.kv_planes);
  KV_CHECK(geometry.layers == cache_layers_.count() && geometry.states == model.spec().is_recurrent(),
           "{} layers in the cache, the model has {}", geometry.layers, cache_layers_.count());
  size_t widest = 0;
  for (const ops::KvShape& frame : frames_) {
    KV_CHECK(ops::is_valid(frame), "head_dim={} block_tokens={}", frame.head_dim, frame.block_tokens);
    widest = std::max(widest, ops::kv_plane_bytes(frame));
  }
  KV_CHECK(widest == geometry.layer_plane_bytes(), "plane={} frame={}", widest, geometry.layer_plane_bytes());
}

Decoder::~Decoder() {
  pool_.settle();  // a late helper may still read an operand
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
  sets_.lay_out(step, static_cast<uint32_t>(model_.layers().size()), options_.tap_all_rows,
                [this](uint32_t end) { return cache_layers_.model_layers(end); });
  logit_rows_.resize(sets_.last().rows.size());
  std::iota(logit_rows_.begin(), logit_rows_.end(), 0);
  sampled_.clear();
  for (const StepSlice& slice : step.slices) {
    if (slice.samples) sampled_.emplace_back().seq = slice.seq;
  }
  scored_.clear();
  hidden_.clear();
  for (const StepRow& row : sets_.last().rows) {
    const StepSlice& slice = step.slices[row.slice];
    if (slice.gives_hidden(row.position)) {
      hidden_.push_back(
          {slice.seq, row.position, std::vector<float>(static_cast<size_t>(model_.spec().dim))});
    }
    if (!slice.scores_row(row.position)) continue;
    ScoredToken& scored = scored_.emplace_back();
    scored.seq = slice.seq;
    scored.position = row.position + 1;
  }
}

Status Decoder::reserve(int64_t rows) {
  if (rows <= capacity_rows_) return {};
  const ModelSpec& c = model_.spec();
  const auto n = static_cast<size_t>(rows);
  if (const int64_t items = most_items(rows); items > ThreadPool::kMostItems) {
    return error(ErrorCode::kInvalidArgument,
                 "a step of {} tokens is up to {} parts of work at once, and at most {} are possible; lower "
                 "--max-num-batched-tokens",
                 rows, items, ThreadPool::kMostItems);
  }
  try {
    x_.resize(n * static_cast<size_t>(c.dim));
    qkv_.resize(n * static_cast<size_t>(c.qkv_dim()));
    attended_.resize(n * static_cast<size_t>(most_attended_stride()));
    ffn_in_.resize(n * static_cast<size_t>(dense_ffn_dim() * (c.gated ? 2 : 1)));
    if (!model_.adds_at_once() || c.has_experts()) branch_.resize(n * static_cast<size_t>(c.dim));
    logits_.resize(static_cast<size_t>(std::min(rows, kLogitRows) * c.vocab_size));
    experts_.grow(rows);
    latent_.grow(rows);
    recurrent_.grow(rows);
    KV_RETURN_IF_ERROR(products_.grow({{rows, widest_operand()}, experts_.extent(rows), latent_.extent(rows)},
                                      takes_anywhere(ops::ActivationType::kBf16)));
  } catch (const std::bad_alloc&) {
    return error(ErrorCode::kExhausted, "no memory for the activations of a step of {} tokens", rows);
  }
  capacity_rows_ = rows;
  return {};
}

int64_t Decoder::widest_operand() const {
  const ModelSpec& c = model_.spec();
  return std::max<int64_t>({c.dim, c.values_dim(), c.recurrent.values(), c.latent.q_rank, dense_ffn_dim(),
                            c.experts.shared_ffn_dim});
}

int64_t Decoder::dense_ffn_dim() const {
  const auto& layers = model_.spec().layer_specs;
  const bool any = std::any_of(layers.begin(), layers.end(), [](const LayerSpec& l) { return !l.experts; });
  return any ? model_.spec().ffn_dim : 0;
}

int64_t Decoder::most_items(int64_t rows) const {
  int64_t most = std::max({rows, latent_.most_items(rows), recurrent_.most_items(rows)});
  for (const PackedLayer& l : model_.layers()) {
    const PackedExperts& experts = l.experts;
    for (const Projection* p : {&l.qkv, &l.attn_output, &l.ffn_in, &l.ffn_down, &experts.router,
                                &experts.shared_in, &experts.shared_down}) {
      most = std::max(most, Product::block_count(rows) * Product::panel_count(*p));
    }
    if (experts.present()) most = std::max(most, experts_.most_items(experts, rows));
  }
  return most;
}

bool Decoder::takes_anywhere(ops::ActivationType type) const {
  bool found = takes(model_.output(), options_.activation, type);
  for (const PackedLayer& layer : model_.layers()) {
    layer.for_each_projection([&](const Projection& p) { found |= takes(p, options_.activation, type); });
  }
  return found;
}

uint64_t Decoder::scratch_bytes() const {
  const size_t floats =
      x_.size() + qkv_.size() + attended_.size() + ffn_in_.size() + logits_.size() + branch_.size();
  uint64_t bytes = floats * sizeof(float) + attention_.scratch_bytes() + projector_.scratch_bytes();
  return bytes + remote_.scratch_bytes() + products_.bytes() + experts_.bytes() + latent_.bytes() +
         recurrent_.bytes();
}

// ---------------------------------------------------------------- the pass

void Decoder::run(const Step& step, StepTransfers& transfers) {
  const ops::FlushToZero mode;
  const ModelSpec& c = model_.spec();
  set_ = 0;
  products_.for_rows(row_count(), [&](Share rows, int) {
    for (int64_t r = rows.begin; r < rows.end; ++r) {
      const StepRow& row = rows_[static_cast<size_t>(r)];
      model_.embed(row.token, row.position, x_.data() + r * c.dim);
    }
  });
  for (uint32_t layer = 0; layer < model_.layers().size(); ++layer) {
    const PackedLayer& weights = model_.layers()[layer];
    attended_stride_ = row_stride(c.is_latent() ? c.attended_dim() : weights.attn_output.k);
    const Operand normed = normed_input(weights.attn_norm, weights.qkv);
    AttentionPass::settle(pool_);
    if (weights.recurrence.present()) {
      if (!recur(step, layer, normed, transfers)) break;
      add_to_residual(weights.attn_output,
                      products_.take_rows(weights.attn_output, attended_.data(), row_count()),
                      weights.attn_branch);
      feed_forward(weights);
      continue;
    }
    make_qkv(weights, normed);
    if (!await_transfers(step, cache_layer(layer), transfers)) break;
    const bool early = mutant(Mutant::kAttendBeforeWrite) && !sets_.leaves(layer);
    if (early && !attend(step, layer, transfers)) break;
    if (early) AttentionPass::settle(pool_);
    write(step, layer, normed, transfers);
    if (sets_.leaves(layer)) next_set(step, layer, transfers);
    if (!early && !attend(step, layer, transfers)) break;
    const bool parallel = c.parallel && !(mutant(Mutant::kParallelInSeries) && row_count() == 1);
    if (parallel) make_ffn_in(weights);
    add_to_residual(weights.attn_output, attended_input(weights), weights.attn_branch);
    if (parallel) {
      finish_feed_forward(weights);
    } else {
      feed_forward(weights);
    }
  }
  await_masks(step, transfers);
  if (!hidden_.empty()) keep_hidden(step);
  sample_rows(step);
  AttentionPass::settle(pool_);
}

void Decoder::await_masks(const Step& step, StepTransfers& transfers) {
  if (!masks_.await(step, transfers)) return;
  AttentionPass::settle(pool_);
  leave_out_deferred(step, transfers);
}

void Decoder::next_set(const Step& step, uint32_t layer, const StepTransfers& transfers) {
  const ModelSpec& c = model_.spec();
  const RowSets::Set& set = sets_.set(++set_);
  const PackedLayer& weights = model_.layers()[layer];
  move_rows(set, x_.data(), c.dim);
  if (weights.recurrence.present()) {
    move_rows(set, attended_.data(), attended_stride_);
  } else {
    move_rows(set, qkv_.data(), c.qkv_dim_of(static_cast<int32_t>(layer)));
  }
  rows_ = set.rows;
  const Status status = attention_.prepare(rows_);
  KV_CHECK(status.ok(), "{}", status.message());
  if (weights.recurrence.present()) {
    leave_out_tiles(step, transfers);
  } else {
    prepare_attention(step, layer);
    leave_out_of_attention(step, transfers);
  }
}

// A thread takes columns, since a row may move to where another comes from.
void Decoder::move_rows(const RowSets::Set& set, float* rows, int64_t width) {
  constexpr int64_t kColumns = 64;
  pool_.for_each(ceil_div(width, kColumns), [&](Share mine, int) {
    const int64_t begin = mine.begin * kColumns, end = std::min(width, mine.end * kColumns);
    for (int64_t to = 0; to < static_cast<int64_t>(set.rows.size()); ++to) {
      const auto from = static_cast<int64_t>(set.source[static_cast<size_t>(to)]);
      if (from == to) continue;
      std::copy(rows + from * width + begin, rows + from * width + end, rows + to * width + begin);
    }
  });
}

Operand Decoder::normed_input(const NormWeights& norm, const Projection& next) {
  const int64_t dim = model_.spec().dim;
  return products_.make_rows(next, row_count(),
                             [&](int64_t row, float* out) { normalise(norm, x_.data() + row * dim, out); });
}

void Decoder::normalise(const NormWeights& norm, const float* x, float* out) const {
  const ModelSpec& c = model_.spec();
  if (!norm.present()) {
    std::copy_n(x, c.dim, out);
  } else if (c.norm == NormKind::kRms) {
    kernels_.rms_norm(x, norm.weight.data(), c.dim, c.norm_epsilon, out);
  } else {
    const bool skips_bias = mutant(Mutant::kNormBiasMissing) && row_count() == 1;
    kernels_.layer_norm(x, norm.weight.data(), norm.bias.empty() || skips_bias ? nullptr : norm.bias.data(),
                        c.dim, c.norm_epsilon, out);
  }
}

void Decoder::add_to_residual(const Projection& p, const Operand& input, const Branch& branch) {
  const ModelSpec& c = model_.spec();
  if (model_.adds_at_once()) {
    products_.multiply(p, input, row_count(), x_.data(), c.dim, true);
    return;
  }
  products_.multiply(p, input, row_count(), branch_.data(), c.dim, false);
  add_branch(branch);
}

void Decoder::add_branch(const Branch& branch, const PackedExperts* experts) {
  const ModelSpec& c = model_.spec();
  products_.for_rows(row_count(), [&](Share mine, int) {
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      float* y = branch_.data() + r * c.dim;
      float* x = x_.data() + r * c.dim;
      if (experts != nullptr) experts_.add_up(*experts, r, row_count(), y);
      if (!branch.bias.empty()) kernels_.add(y, branch.bias.data(), c.dim, y);
      const bool skips = mutant(Mutant::kPostNormSkipped) && row_count() == 1;
      if (branch.post_norm.present() && !skips) normalise(branch.post_norm, y, y);
      if (c.residual_scale != 1) kernels_.scale(y, c.residual_scale, c.dim, y);
      kernels_.add(x, y, c.dim, x);
      const bool unscaled = mutant(Mutant::kLayerUnscaled) && row_count() == 1;
      if (branch.output_scale != 1 && !unscaled) kernels_.scale(x, branch.output_scale, c.dim, x);
    }
  });
}

bool Decoder::recur(const Step& step, uint32_t layer, const Operand& normed, StepTransfers& transfers) {
  const PackedLayer& weights = model_.layers()[layer];
  const RowSets::Set& set = sets_.set(set_);
  recurrent_.multiply(weights, normed, row_count());
  uint32_t in_cache = cache_layer(layer);
  for (const CacheLayers::Part& part : cache_layers_.parts()) {
    if (!await_transfers(step, in_cache, transfers)) return false;
    recurrent_.run(step, weights, set, part, in_cache, transfers);
    transfers.pass(layer_written(in_cache));
    transfers.pass(layer_attended(in_cache));
    ++in_cache;
  }
  recurrent_.finish(weights, set, transfers, attended_.data(), attended_stride_);
  if (sets_.leaves(layer)) next_set(step, layer, transfers);
  return true;
}

bool Decoder::await_transfers(const Step& step, uint32_t cache_layer, StepTransfers& transfers) {
  if (!transfers.waits_before(cache_layer)) return true;
  if (transfers.wait_before(cache_layer)) leave_out_deferred(step, transfers);
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
  const auto has_left = [&](auto gives) {
    const auto slice = std::find_if(step.slices.begin(), step.slices.end(), gives);
    return transfers.deferred(static_cast<uint32_t>(slice - step.slices.begin()));
  };
  std::erase_if(scored_, [&](const ScoredToken& t) {
    return has_left([&](const StepSlice& s) { return s.seq == t.seq && s.scores; });
  });
  std::erase_if(hidden_, [&](const HiddenRow& h) {
    return has_left([&](const StepSlice& s) { return s.seq == h.seq && s.gives_hidden(h.position); });
  });
}

void Decoder::leave_out_tiles(const Step& step, const StepTransfers& transfers) {
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    if (transfers.deferred(s)) attention_.leave_out(s);
  }
}

void Decoder::leave_out_of_attention(const Step& step, const StepTransfers& transfers) {
  if (!transfers.any_deferred()) return;
  leave_out_tiles(step, transfers);
  const int64_t stride = attended_stride_;
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

void Decoder::make_qkv(const PackedLayer& layer, const Operand& normed) {
  if (model_.spec().is_latent()) {
    latent_.multiply(layer, normed, row_count());
    latent_.make_qkv(layer, row_count(), qkv_.data());
  } else {
    products_.multiply(layer.qkv, normed, row_count(), qkv_.data(), layer.qkv.n, false);
  }
}

int64_t Decoder::most_attended_stride() const {
  const ModelSpec& c = model_.spec();
  return row_stride(std::max(c.attended_dim(), c.recurrent.values()));
}

Operand Decoder::attended_input(const PackedLayer& layer) {
  const ModelSpec& c = model_.spec();
  const int64_t stride = attended_stride_;
  if (c.output_gate && !(mutant(Mutant::kOutputGateLeftOut) && row_count() == 1)) {
    products_.for_rows(row_count(), [&](Share mine, int) {
      for (int64_t r = mine.begin; r < mine.end; ++r) {
        float* attended = attended_.data() + r * stride;
        kernels_.sigmoid_mul(qkv_.data() + (r + 1) * c.qkv_dim() - c.gate_dim(), attended, c.gate_dim(),
                             attended);
      }
    });
  }
  if (model_.spec().is_latent()) return latent_.make_values(layer, attended_.data(), stride, row_count());
  return products_.take_rows(layer.attn_output, attended_.data(), row_count());
}

bool Decoder::attend(const Step& step, uint32_t layer, StepTransfers& transfers) {
  const bool remote = attention_.awaits_answers(layer);
  if (remote) {
    remote_.ask(step, layer, rows_, qkv_.data(), attention_.leaf_rows_of_thread(layer), transfers);
  }
  const std::vector<float>& sinks = model_.layers()[layer].sinks;
  const AttentionPass::Output out = {attended_.data(), attended_stride_,
                                     sinks.empty() ? nullptr : sinks.data()};
  attention_.run(step, layer, cache_layer(layer), qkv_.data(), out, pool_);
  if (remote) {
    if (remote_.wait(transfers)) leave_out_deferred(step, transfers);
    attention_.merge_answers(layer, remote_, out, pool_);
  }
  transfers.pass(layer_attended(cache_layer(layer)));
  return !transfers.all_deferred();
}

void Decoder::write(const Step& step, uint32_t layer, const Operand& normed, StepTransfers& transfers) {
  if (!sets_.leaves(layer)) prepare_attention(step, layer);
  const bool some_deferred = transfers.any_deferred();
  products_.for_rows(row_count(), [&](Share mine, int) {
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      if (some_deferred && transfers.deferred(rows_[static_cast<size_t>(r)].slice)) continue;
      rotate_and_write(step, layer, r);
    }
    if (!step.x_writes.empty()) x_rows_.write(step, layer, sets_.set(set_), normed, transfers, mine);
  });
  if (!step.projections.empty()) projector_.run(step, layer, transfers, pool_);
  transfers.pass(layer_written(cache_layer(layer)));
}

void Decoder::rotate_and_write(const Step& step, uint32_t layer, int64_t r) {
  const ModelSpec& c = model_.spec();
  const HeadShape heads = c.heads_of(layer);
  const int64_t width = c.qkv_dim_of(static_cast<int32_t>(layer));
  const StepRow& row = rows_[static_cast<size_t>(r)];
  float* q = qkv_.data() + r * width;
  float* k = q + heads.q_dim();
  const int64_t position = mutant(Mutant::kWrongPosition) ? r : row.position;
  finisher_.finish_q(layer, position, q);
  finisher_.finish_kv(layer, position, k);
  const KvPlanes planes =
      step.planes(geometry_, step.slices[row.slice], geometry_.block_of(row.position), cache_layer(layer));
  kernels_.write_kv(frames_[layer], /*layer=*/0, row.position % geometry_.block_tokens, k, k + heads.kv_dim(),
                    device_memory_ + planes.k, device_memory_ + planes.v);
}

void Decoder::mix_experts(const PackedLayer& layer) {
  const int64_t dim = model_.spec().dim;
  products_.for_rows(row_count(), [&](Share mine, int) {
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      normalise(layer.ffn_norm, x_.data() + r * dim, experts_.row(r));
    }
  });
  experts_.run(layer.experts, row_count());
  add_branch(layer.ffn_branch, &layer.experts);
}

void Decoder::make_ffn_in(const PackedLayer& layer) {
  const NormWeights& norm = model_.spec().parallel ? layer.attn_norm : layer.ffn_norm;
  const Operand normed = normed_input(norm, layer.ffn_in);
  products_.multiply(layer.ffn_in, normed, row_count(), ffn_in_.data(), layer.ffn_in.n, false);
}

void Decoder::feed_forward(const PackedLayer& layer) {
  if (layer.experts.present()) return mix_experts(layer);
  make_ffn_in(layer);
  finish_feed_forward(layer);
}

void Decoder::finish_feed_forward(const PackedLayer& layer) {
  const Operand activated = products_.make_rows(layer.ffn_down, row_count(), [&](int64_t row, float* out) {
    activate(layer, ffn_in_.data() + row * layer.ffn_in.n, out);
  });
  add_to_residual(layer.ffn_down, activated, layer.ffn_branch);
}

void Decoder::activate(const PackedLayer& layer, const float* row, float* out) const {
  const ModelSpec& c = model_.spec();
  if (c.gated) {
    activate_gated(kernels_, c.activation, row, c.ffn_dim, out);
  } else {
    if (!layer.ffn_in_bias.empty()) {
      kernels_.add(row, layer.ffn_in_bias.data(), c.ffn_dim, out);
      row = out;
    }
    for (int64_t i = 0; i < c.ffn_dim; ++i) out[i] = row[i] > 0 ? row[i] : 0.0F;
  }
}

Decoder::LogitRow Decoder::use_of(const Step& step, const StepRow& row, size_t& samples,
                                  size_t& scores) const {
  const StepSlice& slice = step.slices[row.slice];
  if (slice.samples && row.position + 1 == slice.tokens.end) return {LogitRow::Use::kSample, samples++};
  if (slice.scores_row(row.position)) return {LogitRow::Use::kScore, scores++};
  return {};
}

void Decoder::keep_hidden(const Step& step) {
  const std::vector<StepRow>& rows = sets_.last().rows;
  const auto row_of = [&](int64_t r) -> const StepRow& { return rows[static_cast<size_t>(r)]; };
  std::vector<int64_t> kept;
  for (const int64_t r : logit_rows_) {
    if (step.slices[row_of(r).slice].gives_hidden(row_of(r).position)) kept.push_back(r);
  }
  KV_CHECK(kept.size() == hidden_.size(), "{} rows, {} places", kept.size(), hidden_.size());
  products_.for_rows(static_cast<int64_t>(kept.size()), [&](Share mine, int) {
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const int64_t r = kept[mutant(Mutant::kHiddenOfBatch) ? 0 : static_cast<size_t>(i)];
      normalise(model_.output_norm(), x_.data() + r * model_.spec().dim,
                hidden_[static_cast<size_t>(i)].row.data());
    }
  });
  size_t samples = 0, scores = 0;
  std::erase_if(logit_rows_, [&](int64_t r) {
    return !options_.tap_all_rows && use_of(step, row_of(r), samples, scores).use == LogitRow::Use::kNone;
  });
}

// Final norm, logits and sampling, for kLogitRows rows at a time.
void Decoder::sample_rows(const Step& step) {
  using Use = LogitRow::Use;
  const ModelSpec& c = model_.spec();
  size_t samples = 0, scores = 0;
  for (size_t begin = 0; begin < logit_rows_.size(); begin += kLogitRows) {
    const auto count = static_cast<int64_t>(std::min<size_t>(kLogitRows, logit_rows_.size() - begin));
    const int64_t* of = logit_rows_.data() + begin;
    const Operand normed = products_.make_rows(model_.output(), count, [&](int64_t i, float* out) {
      normalise(model_.output_norm(), x_.data() + of[i] * c.dim, out);
    });
    products_.multiply(model_.output(), normed, count, logits_.data(), c.vocab_size, false);
    const auto row_of = [&](int64_t i) -> const StepRow& {
      return sets_.last().rows[static_cast<size_t>(of[i])];
    };
    const auto logits_of = [&](int64_t i) {
      return std::span<float>(logits_.data() + i * c.vocab_size, static_cast<size_t>(c.vocab_size));
    };
    std::array<LogitRow, kLogitRows> uses{};
    for (int64_t i = 0; i < count; ++i) {
      uses[static_cast<size_t>(i)] = use_of(step, row_of(i), samples, scores);
    }
    pool_.for_each(count, [&](Share mine, int thread) {
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        finish_logits(logits_of(i).data());
        const auto [use, place] = uses[static_cast<size_t>(i)];
        if (use == Use::kNone) continue;
        try {
          sample_row(step, row_of(i), use, place, logits_of(i), samplers_[static_cast<size_t>(thread)]);
        } catch (const std::bad_alloc&) {
          sampler_failed_ = true;
        }
      }
    });
    if (sampler_failed_.exchange(false)) throw std::bad_alloc();
    for (int64_t i = 0; tap_ && i < count; ++i) {
      if (uses[static_cast<size_t>(i)].use == Use::kScore && !options_.tap_all_rows) continue;
      tap_(step.slices[row_of(i).slice].seq, row_of(i).position, logits_of(i));
    }
  }
}

void Decoder::sample_row(const Step& step, const StepRow& row, LogitRow::Use use, size_t place,
                         std::span<const float> logits, Sampler& sampler) {
  const StepSlice& slice = step.slices[row.slice];
  std::span<const Token> history = step.history_of(slice);
  if (use == LogitRow::Use::kScore) {
    const Token next = history[row.position + (mutant(Mutant::kScoredOneLate) ? 0 : 1)];
    ScoredToken scored = sampler.score(logits, next, slice.sampling.prompt_logprobs);
    scored.seq = slice.seq;
    scored.position = row.position + 1;
    scored_[place] = std::move(scored);
    return;
  }
  sampled_[place] =
      sampler.sample(logits, slice.sampling, row.position + 1, history, slice.seq, masks_.of(row.slice));
}

void Decoder::finish_logits(float* logits) const {
  const ModelSpec& c = model_.spec();
  if (c.logit_scale != 1) kernels_.scale(logits, c.logit_scale, c.vocab_size, logits);
  if (mutant(Mutant::kLogitsUncapped) && logit_rows_.size() == 1) return;
  if (c.logit_cap != 0) kernels_.cap(logits, c.logit_cap, c.vocab_size, logits);
}

}  // namespace kvasir
