#include "exec/gpu/step_image.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/check.h"
#include "base/mutant.h"
#include "base/random.h"
#include "base/units.h"
#include "ops/gpu/reference.h"

namespace kvasir {
namespace {

using namespace ops::gpu;

// Rows of a piece of work: with fewer a leaf is read more often, with more there are fewer pieces. No bit
// depends on it.
constexpr int32_t kMostRowsOfWork = 64;
// Parts of the image begin at multiples of it.
constexpr uint64_t kPartAlignment = 256;

DrawPlace draw_of(const SamplingParams& sampling, uint32_t position) {
  DrawPlace draw = {};
  draw.top_p = 1;
  draw.factor = ops::reference::draw_factor(sampling.temperature);
  draw.top_k = sampling.top_k;
  draw.top_p = static_cast<double>(sampling.top_p);
  draw.bits = random_bits(sampling.seed, 0, position);
  return draw;
}

// Of one layer, as attention of a window sees it: each window once.
std::vector<int32_t> windows_of(const ModelSpec& spec) {
  std::vector<int32_t> windows;
  for (const LayerSpec& layer : spec.layer_specs) windows.push_back(layer.window);
  std::sort(windows.begin(), windows.end());
  windows.erase(std::unique(windows.begin(), windows.end()), windows.end());
  return windows;
}

}  // namespace

StepImage::StepImage(const GpuModel& model) : model_(model), windows_(windows_of(model.spec)) {}

void StepImage::lay_out(const Step& step, const CacheGeometry& geometry, const StepImage* earlier) {
  const bool has_x = !step.x_writes.empty() || !step.projections.empty();
  KV_CHECK(step.remote.empty() && (!has_x || geometry.has(Form::kX)),
           "step {} has {} writes of X, {} projections and {} remote runs", raw(step.id),
           step.x_writes.size(), step.projections.size(), step.remote.size());
  layers_per_group_ = geometry.layers_per_group;
  kv_ = {};
  kv_.groups = step.groups;
  kv_.block_tokens = geometry.block_tokens;
  staged_ = step.staged;
  slices_.clear();
  for (const StepSlice& slice : step.slices) {
    slices_.push_back({nullptr, slice.staged_blocks.begin, slice.staged_blocks.end, slice.first_staged, 0});
  }
  add_rows(step, earlier);
  add_uses(step);
  x_runs_.clear();
  add_x_writes(step);
  plan_projections(step);
  plan_attention();
  parts_.clear();
  bytes_ = 0;
  add_part(slices_);
  staged_at_ = add_part(staged_);
  rows_at_.clear();
  for (const auto& rows : rows_) rows_at_.push_back(add_part(rows));
  for (Work& work : work_) work.at = add_part(work.plan.work);
  x_runs_at_ = add_part(x_runs_);
  logit_rows_at_ = add_part(logit_rows_);
  draws_at_ = add_part(draws_);
  hidden_at_ = add_part(hidden_rows_);
}

size_t StepImage::sampling_row_of(SeqId seq) const {
  const auto found =
      std::lower_bound(sampling_rows_.begin(), sampling_rows_.end(), std::pair(seq, size_t{0}));
  KV_CHECK(found != sampling_rows_.end() && found->first == seq,
           "seq={}: the step before samples nothing for it", raw(seq));
  return found->second;
}

void StepImage::add_rows(const Step& step, const StepImage* earlier) {
  const auto layers = static_cast<uint32_t>(model_.spec.layers);
  const auto end_of = [&](uint32_t s) { return std::min(step.slices[s].end_layer, layers); };
  order_.resize(step.slices.size());
  std::iota(order_.begin(), order_.end(), 0U);
  std::stable_sort(order_.begin(), order_.end(),
                   [&](uint32_t a, uint32_t b) { return end_of(a) > end_of(b); });
  first_row_.assign(step.slices.size(), 0);
  rows_.resize(windows_.size());
  rows_[0].clear();
  staying_.assign(layers, 0);
  refers_to_earlier_ = false;
  for (const uint32_t s : order_) {
    const StepSlice& slice = step.slices[s];
    KV_CHECK(end_of(s) > 0 && (end_of(s) == layers ||
                               (!slice.samples && !slice.scores && slice.hidden_from >= slice.tokens.end)),
             "seq={}: rows pass {} layers of {}", raw(slice.seq), end_of(s), layers);
    first_row_[s] = static_cast<uint32_t>(rows_[0].size());
    for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p) {
      const Token token = step.token_ids[slice.first_token + (p - slice.tokens.begin)];
      rows_[0].push_back({token, p, s, model_.query_factor(p), 0});
    }
    if (slice.last_token_by_reference && rows_[0].back().token < 0) {
      KV_CHECK(earlier != nullptr, "seq={}: its last token is of a step that is not there", raw(slice.seq));
      rows_[0].back().token = -1 - static_cast<int32_t>(earlier->sampling_row_of(slice.seq));
      refers_to_earlier_ = true;
    }
    for (uint32_t layer = 0; layer < layers; ++layer) {
      if (end_of(s) > layer + 1 || end_of(s) == layers)
        staying_[layer] = static_cast<int32_t>(rows_[0].size());
    }
  }
  for (size_t w = 1; w < windows_.size(); ++w) rows_[w] = rows_[0];
}

void StepImage::add_uses(const Step& step) {
  uses_.clear();
  sampling_rows_.clear();
  logit_rows_.clear();
  draws_.clear();
  hidden_uses_.clear();
  hidden_rows_.clear();
  for (uint32_t s = 0; s < step.slices.size(); ++s) {
    const StepSlice& slice = step.slices[s];
    for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p) {
      const auto row = static_cast<int32_t>(first_row_[s] + (p - slice.tokens.begin));
      const bool samples = slice.samples && p + 1 == slice.tokens.end;
      if (slice.gives_hidden(p)) {
        hidden_uses_.push_back({s, p});
        hidden_rows_.push_back(row);
      }
      if (!samples && !slice.scores_row(p)) continue;
      if (samples) sampling_rows_.emplace_back(slice.seq, uses_.size());
      uses_.push_back({s, slice.seq, p, samples});
      logit_rows_.push_back(row);
      draws_.push_back(draw_of(slice.sampling, p + 1));
    }
  }
  std::sort(sampling_rows_.begin(), sampling_rows_.end());
}

void StepImage::add_x_writes(const Step& step) {
  x_writes_.clear();
  if (step.x_writes.empty()) return;
  const uint32_t block = kv_.block_tokens;
  for (uint32_t group = 0; group < kv_.groups; ++group) {
    const size_t first = x_runs_.size();
    for (const XWrite& write : step.x_writes_in(group)) {
      const StepSlice& slice = step.slices[write.slice];
      const Interval tokens = {std::max(slice.tokens.begin, write.block * block),
                               std::min(slice.tokens.end, (write.block + 1) * block)};
      KV_CHECK(tokens.begin < tokens.end, "seq={}: no rows in block {}", raw(slice.seq), write.block);
      const uint32_t row = first_row_[write.slice] + (tokens.begin - slice.tokens.begin);
      x_runs_.push_back({write.to,
                         {KvPlace::kAbsent, KvPlace::kAbsent},
                         tokens.begin,
                         tokens.size(),
                         static_cast<int32_t>(row),
                         write.slice});
    }
    x_writes_.push_back({group, first, x_runs_.size() - first, 0});
  }
}

// A pass has the tokens of several blocks, and may end in the middle of one.
void StepImage::plan_projections(const Step& step) {
  projections_.clear();
  projected_rows_ = 0;
  const auto most = static_cast<uint32_t>(std::max(rows(), most_projected_));
  for (uint32_t layer = 0; layer < staying_.size() && !step.projections.empty(); ++layer) {
    uint32_t rows = most;  // of the last pass: the first projection begins one
    for (const KvProjection& p : step.projections_in(layer)) {
      const uint32_t at = p.first_position % kv_.block_tokens;
      KV_CHECK(at + p.tokens <= kv_.block_tokens, "step {}: a projection of tokens [{}, +{})", raw(step.id),
               p.first_position, p.tokens);
      for (uint32_t done = 0, count = 0; done < p.tokens; done += count) {
        if (rows == most) {
          projections_.push_back({layer, x_runs_.size(), 0, 0});
          rows = 0;
        }
        count = std::min(p.tokens - done, most - rows);
        const uint32_t position = (mutant(Mutant::kXWrongPosition) ? at : p.first_position) + done;
        x_runs_.push_back({p.x, {p.to.k, p.to.v}, position, count, static_cast<int32_t>(rows), p.slice});
        rows += count;
        Runs& pass = projections_.back();
        ++pass.count;
        pass.rows = rows;
        projected_rows_ = std::max<int64_t>(projected_rows_, rows);
      }
    }
  }
}

void StepImage::plan_attention() {
  work_.clear();
  records_ = 0;
  for (size_t w = 0; w < windows_.size(); ++w) {
    // Passes end at the same rows whatever the count: a row has one first_record, which all counts share.
    const std::vector<int32_t> ends = pass_ends(rows_[w], windows_[w], most_records_);
    for (size_t layer = 0; layer < staying_.size(); ++layer) {
      const int32_t count = staying_[layer];
      if (count == 0 || (layer > 0 && count == staying_[layer - 1])) continue;
      for (size_t pass = 0; pass < ends.size() && (pass == 0 || ends[pass - 1] < count); ++pass) {
        add_work(w, count, pass == 0 ? 0 : ends[pass - 1], std::min(ends[pass], count));
      }
    }
  }
}

void StepImage::add_work(size_t w, int32_t count, int32_t first, int32_t end) {
  const std::span<RowPlace> rows =
      std::span(rows_[w]).subspan(static_cast<size_t>(first), static_cast<size_t>(end - first));
  Work work = {windows_[w], count, first, end, w, plan_leaves(rows, windows_[w], kMostRowsOfWork), 1, 0};
  for (LeafWork& piece : work.plan.work) {
    piece.first_row += first;
    work.most_rows = std::max(work.most_rows, static_cast<int32_t>(piece.rows));
  }
  records_ = std::max(records_, work.plan.records);
  work_.push_back(std::move(work));
}

uint64_t StepImage::passes_with_many_queries() const {
  const ModelSpec& spec = model_.spec;
  uint64_t passes = 0;
  for (size_t i = 0; i < work_.size(); ++i) {
    const bool many =
        ops::gpu::LeafArgs::has_many_queries(work_[i].most_rows, spec.heads / spec.kv_heads, spec.head_dim);
    passes |= uint64_t{many ? 1U : 0U} << i;
  }
  return passes;
}

template <typename T>
uint64_t StepImage::add_part(const std::vector<T>& list) {
  const uint64_t at = bytes_;
  parts_.push_back({list.data(), list.size() * sizeof(T), at});
  bytes_ = round_up(at + list.size() * sizeof(T), kPartAlignment);
  return at;
}

void StepImage::pack(std::byte* to) const {
  for (const Part& part : parts_) {
    if (part.bytes > 0) std::memcpy(to + part.at, part.from, part.bytes);
  }
}

GpuStep StepImage::step_at(const std::byte* device) const {
  GpuStep step;
  step.count = static_cast<int32_t>(rows());
  step.rows = reinterpret_cast<const RowPlace*>(device + rows_at_[0]);
  step.kv = kv_;
  step.kv.slices = reinterpret_cast<const SlicePlace*>(device);
  step.kv.staged = reinterpret_cast<const KvPlace*>(device + staged_at_);
  step.layers_per_group = layers_per_group_;
  step.staying = staying_;
  const auto* const runs = reinterpret_cast<const XRun*>(device + x_runs_at_);
  for (const Runs& writes : x_writes_) {
    step.x_writes.push_back({runs + writes.first, static_cast<int32_t>(writes.count)});
  }
  for (const Runs& pass : projections_) {
    step.projections.push_back(
        {pass.layer, runs + pass.first, static_cast<int32_t>(pass.count), static_cast<int32_t>(pass.rows)});
  }
  for (const Work& work : work_) {
    step.attention.push_back({work.window, work.count, work.first, work.end,
                              reinterpret_cast<const RowPlace*>(device + rows_at_[work.rows]),
                              reinterpret_cast<const LeafWork*>(device + work.at),
                              static_cast<int32_t>(work.plan.work.size()), work.most_rows});
  }
  return step;
}

GpuLogits StepImage::logits_at(const std::byte* device, size_t first, size_t count, int32_t* tokens) const {
  return {reinterpret_cast<const int32_t*>(device + logit_rows_at_) + first, static_cast<int32_t>(count),
          reinterpret_cast<const DrawPlace*>(device + draws_at_) + first, tokens + first};
}

const int32_t* StepImage::hidden_at(const std::byte* device) const {
  return reinterpret_cast<const int32_t*>(device + hidden_at_);
}

}  // namespace kvasir
