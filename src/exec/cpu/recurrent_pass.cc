#include "exec/cpu/recurrent_pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "base/mutant.h"
#include "base/units.h"
#include "ops/det_math.h"

namespace kvasir {
namespace {

// Units of a matrix that a thread takes at once: as many as the kernel has in registers.
constexpr int32_t kUnitsAtOnce = 4;
// Units of the convolution likewise: 256 channels.
constexpr int32_t kConvolutionUnitsAtOnce = 16;

// ln(1 + exp(x)), and x itself where that is the same.
float softplus(float x) {
  return x > 20.0F ? x : static_cast<float>(ops::det_log(1.0 + ops::det_exp(static_cast<double>(x))));
}

}  // namespace

RecurrentPass::RecurrentPass(const PackedModel& model, const ops::Kernels& kernels,
                             const CacheGeometry& geometry, ProductRunner& products, std::byte* device_memory,
                             ThreadPool& pool)
    : model_(model),
      kernels_(kernels),
      geometry_(geometry),
      products_(products),
      device_memory_(device_memory),
      pool_(pool) {
  const ModelSpec& c = model.spec();
  if (!c.is_recurrent()) return;
  // q / (|q| sqrt(keys)) and k / |k|, as the RMSNorm of the kernels gives them: it divides by |q| /
  // sqrt(keys).
  const auto keys = static_cast<float>(c.recurrent.key_dim);
  query_norm_.assign(static_cast<size_t>(c.recurrent.key_dim), 1.0F / keys);
  key_norm_.assign(static_cast<size_t>(c.recurrent.key_dim), 1.0F / std::sqrt(keys));
  const int64_t most = std::max(kUnitsAtOnce * CacheLayers::matrix_unit_floats(c.recurrent),
                                kConvolutionUnitsAtOnce * CacheLayers::convolution_unit_floats(c.recurrent));
  states_.assign(static_cast<size_t>(pool.size()), std::vector<float>(static_cast<size_t>(most)));
}

void RecurrentPass::grow(int64_t rows) {
  const ModelSpec& c = model_.spec();
  if (!c.is_recurrent()) return;
  const auto n = static_cast<size_t>(rows);
  inputs_.resize(n * static_cast<size_t>(c.recurrent.inputs()));
  gates_.resize(n * static_cast<size_t>(2 * c.recurrent.value_heads));
  values_.resize(n * static_cast<size_t>(c.recurrent.values()));
}

int64_t RecurrentPass::most_items(int64_t rows) const {
  const RecurrentSpec& r = model_.spec().recurrent;
  return rows * std::max(r.channels(), r.values()) / CacheLayers::kUnitValues;
}

void RecurrentPass::multiply(const PackedLayer& layer, const Operand& normed, int64_t rows) {
  width_ = layer.qkv.n;
  products_.multiply(layer.qkv, normed, rows, inputs_.data(), width_, false);
}

// A sequence may have several slices: those that restore come first, and the others go on from there.
void RecurrentPass::lay_out(const Step& step, const RowSets::Set& set, const StepTransfers& transfers) {
  runs_.clear();
  chains_.clear();
  const auto count = static_cast<uint32_t>(step.slices.size());
  const bool some_restore = std::any_of(step.slices.begin(), step.slices.end(),
                                        [](const StepSlice& s) { return s.kind == RowKind::kRestore; });
  std::vector<uint8_t> done(count, 0);
  for (uint32_t s = 0; s < count; ++s) {
    if (done[s] != 0 || transfers.deferred(s)) continue;
    const size_t first = runs_.size();
    for (uint32_t other = s; other < (some_restore ? count : s + 1); ++other) {
      if (step.slices[other].seq != step.slices[s].seq) continue;
      done[other] = 1;
      const auto begin = static_cast<int64_t>(set.first_row[other]);
      const auto end = other + 1 < set.first_row.size() ? static_cast<int64_t>(set.first_row[other + 1])
                                                        : static_cast<int64_t>(set.rows.size());
      for (int64_t row = begin; row < end;) {
        const uint32_t position = set.rows[static_cast<size_t>(row)].position;
        const int64_t in_block = geometry_.block_tokens - position % geometry_.block_tokens;
        const int64_t rows = std::min(end - row, in_block);
        runs_.push_back({other, row, rows, position});
        row += rows;
      }
    }
    if (runs_.size() > first) chains_.push_back({first, runs_.size()});
  }
}

const std::byte* RecurrentPass::source(const Step& step, const Run& run, uint32_t cache_layer) const {
  if (run.position == 0) return nullptr;
  uint32_t from = run.position - 1;
  if (mutant(Mutant::kStateOfOtherBlock) && from >= geometry_.block_tokens) from -= geometry_.block_tokens;
  const KvPlanes planes =
      step.planes(geometry_, step.slices[run.slice], geometry_.block_of(from), cache_layer);
  KV_CHECK(planes.present(), "seq={} position={} layer={}: there is no state",
           raw(step.slices[run.slice].seq), run.position, cache_layer);
  return device_memory_ + planes.k;
}

// Where the state behind the run goes. Rows that restore write only the cells for which the step has a place:
// the others are dead, or are there already with the same bytes, and other sequences may have them.
std::byte* RecurrentPass::target(const Step& step, const Run& run, uint32_t cache_layer) const {
  const StepSlice& slice = step.slices[run.slice];
  const uint32_t block = geometry_.block_of(run.position);
  if (slice.kind == RowKind::kRestore && !step.is_staged(slice, block, cache_layer)) return nullptr;
  const KvPlanes planes = step.planes(geometry_, slice, block, cache_layer);
  KV_CHECK(planes.present(), "seq={} block={} layer={}: no place for a state", raw(slice.seq), block,
           cache_layer);
  return device_memory_ + planes.k;
}

template <typename Advance>
void RecurrentPass::follow(const Step& step, const Chain& chain, uint32_t cache_layer, uint64_t offset,
                           int64_t floats, float* state, const Advance& advance) const {
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  uint32_t reached = UINT32_MAX;  // the position that follows
  for (size_t i = chain.first; i < chain.end; ++i) {
    const Run& run = runs_[i];
    if (run.position != reached) {
      if (const std::byte* from = source(step, run, cache_layer)) {
        std::memcpy(state, from + offset, bytes);
      } else {
        std::memset(state, 0, bytes);
      }
    }
    advance(state, run);
    reached = run.position + static_cast<uint32_t>(run.rows);
    if (std::byte* to = target(step, run, cache_layer)) std::memcpy(to + offset, state, bytes);
  }
}

void RecurrentPass::make_gates(const PackedLayer& layer, int64_t rows) {
  const RecurrentSpec& r = model_.spec().recurrent;
  const float epsilon =
      1e-6F / static_cast<float>(r.key_dim);  // of the sum, as the kernel adds it to the mean
  products_.for_rows(rows, [&](Share mine, int) {
    for (int64_t row = mine.begin; row < mine.end; ++row) {
      float* q = inputs_.data() + row * width_;
      float* k = q + r.keys();
      for (int64_t h = 0; h < r.key_heads; ++h, q += r.key_dim, k += r.key_dim) {
        kernels_.rms_norm(q, query_norm_.data(), r.key_dim, epsilon, q);
        kernels_.rms_norm(k, key_norm_.data(), r.key_dim, epsilon, k);
      }
      const float* b = inputs_.data() + row * width_ + r.channels() + r.values();
      const float* a = b + r.value_heads;
      float* decay = gates_.data() + row * 2 * r.value_heads;
      for (int32_t h = 0; h < r.value_heads; ++h) {
        const auto i = static_cast<size_t>(h);
        const float time = softplus(a[h] + layer.recurrence.dt_bias[i]);
        decay[h] = static_cast<float>(ops::det_exp(static_cast<double>(layer.recurrence.rate[i] * time)));
        if (mutant(Mutant::kDecayLeftOut) && rows == 1) decay[h] = 1;
        decay[r.value_heads + h] = static_cast<float>(1.0 / (1.0 + ops::det_exp(-static_cast<double>(b[h]))));
      }
    }
  });
}

void RecurrentPass::run(const Step& step, const PackedLayer& layer, const RowSets::Set& set,
                        const CacheLayers::Part& part, uint32_t cache_layer, const StepTransfers& transfers) {
  const RecurrentSpec& r = model_.spec().recurrent;
  lay_out(step, set, transfers);
  const auto chains = static_cast<int64_t>(chains_.size());
  const int64_t small = CacheLayers::convolution_unit_floats(r), large = CacheLayers::matrix_unit_floats(r);
  if (!part.convolution.empty()) {
    const int64_t groups = ceil_div<int64_t>(part.convolution.size(), kConvolutionUnitsAtOnce);
    pool_.for_each(chains * groups, [&](Share mine, int thread) {
      for (int64_t i = mine.begin; i < mine.end; ++i) {
        const int64_t first = i % groups * kConvolutionUnitsAtOnce;
        const int64_t units = std::min<int64_t>(kConvolutionUnitsAtOnce, part.convolution.size() - first);
        follow(step, chains_[static_cast<size_t>(i / groups)], cache_layer,
               static_cast<uint64_t>(first * small) * sizeof(float), units * small,
               states_[static_cast<size_t>(thread)].data(), [&](float* state, const Run& run) {
                 if (mutant(Mutant::kConvolutionForgets) && run.row == 0)
                   std::fill_n(state, units * small, 0.0F);
                 for (int64_t u = 0; u < units; ++u) {
                   const int64_t channel = (part.convolution.begin + first + u) * CacheLayers::kUnitValues;
                   ops::ConvolutionArgs args;
                   args.x = inputs_.data() + run.row * width_ + channel;
                   args.stride = width_;
                   args.rows = run.rows;
                   args.weights = layer.recurrence.convolution.data() + channel;
                   args.weights_stride = r.channels();
                   args.taps = r.taps;
                   args.history = state + u * small;
                   kernels_.convolve(args);
                 }
               });
      }
    });
    if (int64_t{part.convolution.end} * CacheLayers::kUnitValues == r.channels()) {
      make_gates(layer, static_cast<int64_t>(set.rows.size()));
    }
  }
  if (part.matrices.empty()) return;
  // Groups of units of one head.
  struct Group {
    int64_t unit, units;
  };
  std::vector<Group> groups;
  const int64_t per_head = r.value_dim / CacheLayers::kUnitValues;
  for (int64_t u = part.matrices.begin; u < part.matrices.end;) {
    const int64_t end =
        std::min<int64_t>({part.matrices.end, (u / per_head + 1) * per_head, u + kUnitsAtOnce});
    groups.push_back({u, end - u});
    u = end;
  }
  const auto group_count = static_cast<int64_t>(groups.size());
  const uint64_t behind = static_cast<uint64_t>(part.convolution.size() * small) * sizeof(float);
  pool_.for_each(chains * group_count, [&](Share mine, int thread) {
    for (int64_t i = mine.begin; i < mine.end; ++i) {
      const Group& group = groups[static_cast<size_t>(i % group_count)];
      const uint64_t offset =
          behind + static_cast<uint64_t>((group.unit - part.matrices.begin) * large) * sizeof(float);
      const int64_t head = group.unit / per_head, key_head = r.key_head_of(head);
      const int64_t value = group.unit * CacheLayers::kUnitValues;
      follow(step, chains_[static_cast<size_t>(i / group_count)], cache_layer, offset, group.units * large,
             states_[static_cast<size_t>(thread)].data(), [&](float* state, const Run& run) {
               const float* inputs = inputs_.data() + run.row * width_;
               ops::DeltaRuleArgs args;
               args.q = inputs + key_head * r.key_dim;
               args.k = inputs + r.keys() + key_head * r.key_dim;
               args.v = inputs + 2 * r.keys() + value;
               args.stride = width_;
               args.decay = gates_.data() + run.row * 2 * r.value_heads + head;
               args.beta = args.decay + r.value_heads;
               args.gate_stride = int64_t{2} * r.value_heads;
               args.rows = run.rows;
               args.keys = r.key_dim;
               args.units = group.units;
               args.state = state;
               args.out = values_.data() + run.row * r.values() + value;
               args.out_stride = r.values();
               kernels_.delta_rule(args);
             });
    }
  });
}

void RecurrentPass::finish(const PackedLayer& layer, const RowSets::Set& set, const StepTransfers& transfers,
                           float* out, int64_t stride) {
  const ModelSpec& c = model_.spec();
  const RecurrentSpec& r = c.recurrent;
  products_.for_rows(static_cast<int64_t>(set.rows.size()), [&](Share mine, int) {
    for (int64_t row = mine.begin; row < mine.end; ++row) {
      float* to = out + row * stride;
      if (transfers.deferred(set.rows[static_cast<size_t>(row)].slice)) {
        std::fill_n(to, stride, 0.0F);
        continue;
      }
      const float* values = values_.data() + row * r.values();
      for (int64_t v = 0; v < r.values(); v += r.value_dim) {
        kernels_.rms_norm(values + v, layer.recurrence.norm.data(), r.value_dim, c.norm_epsilon, to + v);
      }
      const float* z = inputs_.data() + row * width_ + r.channels();
      kernels_.silu_mul(z, to, r.values(), to);
    }
  });
}

}  // namespace kvasir
