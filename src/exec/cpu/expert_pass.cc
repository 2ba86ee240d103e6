#include "exec/cpu/expert_pass.h"

#include <algorithm>

#include "base/mutant.h"
#include "exec/cpu/gated_activation.h"
#include "exec/cpu/product.h"

namespace kvasir {

ExpertPass::ExpertPass(const ModelSpec& spec, const ops::Kernels& kernels, ProductRunner& products,
                       int threads)
    : spec_(spec),
      experts_(spec.experts),
      kernels_(kernels),
      products_(products),
      stride_(row_stride(spec.dim)) {
  if (!spec.has_experts()) return;
  choosers_.assign(static_cast<size_t>(threads), ExpertChooser(kernels, experts_));
  first_slot_.resize(static_cast<size_t>(experts_.count) + 1);
}

void ExpertPass::grow(int64_t rows) {
  if (!spec_.has_experts()) return;
  const auto n = static_cast<size_t>(rows), slots = n * static_cast<size_t>(experts_.used);
  const auto dim = static_cast<size_t>(spec_.dim), shared = static_cast<size_t>(experts_.shared_ffn_dim);
  normed_.resize(n * static_cast<size_t>(stride_));
  scores_.resize(n * (static_cast<size_t>(experts_.count) + 1));
  shared_weight_.resize(n);
  chosen_.resize(slots);
  slot_of_.resize(slots);
  row_of_.resize(slots);
  expert_of_.resize(slots);
  weight_of_.resize(slots);
  in_.resize(slots * 2 * static_cast<size_t>(experts_.ffn_dim));
  down_.resize(slots * dim);
  shared_in_.resize(n * 2 * shared);
  if (shared > 0) shared_down_.resize(n * dim);
  products_.grow_buckets(static_cast<size_t>(experts_.count));
}

OperandBuffers::Extent ExpertPass::extent(int64_t rows) const {
  if (!spec_.has_experts()) return {0, 1};
  return {rows * experts_.used, std::max(spec_.dim, experts_.ffn_dim)};
}

uint64_t ExpertPass::bytes() const {
  const size_t floats = normed_.size() + scores_.size() + shared_weight_.size() + in_.size() + down_.size() +
                        shared_in_.size() + shared_down_.size();
  return floats * sizeof(float) +
         chosen_.size() * (sizeof(ChosenExpert) + 2 * sizeof(int64_t) + sizeof(int32_t) + sizeof(float));
}

// Besides full blocks each expert has one at most.
int64_t ExpertPass::most_items(const PackedExperts& experts, int64_t rows) const {
  const int64_t slots = rows * experts_.used;
  const int64_t blocks = Product::block_count(slots) + std::min<int64_t>(slots, experts_.count);
  return std::max(
      {slots, blocks * Product::panel_count(experts.in[0]), blocks * Product::panel_count(experts.down[0])});
}

bool ExpertPass::weighs_inputs(int64_t rows) const {
  return experts_.weighs_inputs && !(mutant(Mutant::kOutputsWeighed) && rows == 1);
}

void ExpertPass::run(const PackedExperts& experts, int64_t rows) {
  choose(experts, rows);
  fill_buckets(rows);
  const int64_t slots = rows * experts_.used, dim = spec_.dim;
  const Operand input = products_.make_rows(experts.in[0], slots, [&](int64_t slot, float* to) {
    const float* x = row(row_of_[static_cast<size_t>(slot)]);
    if (weighs_inputs(rows)) {
      kernels_.scale(x, weight_of_[static_cast<size_t>(slot)], dim, to);
    } else {
      std::copy_n(x, dim, to);
    }
  });
  products_.multiply(input, experts.in, first_slot_, in_.data());
  const Operand activated = products_.make_rows(
      experts.down[0], slots, [&](int64_t slot, float* to) { activate_slot(experts, slot, to); });
  products_.multiply(activated, experts.down, first_slot_, down_.data());
  if (experts.has_shared()) run_shared(experts, rows);
}

void ExpertPass::choose(const PackedExperts& experts, int64_t rows) {
  Operand plain;
  plain.x = normed_.data();
  plain.stride = stride_;
  std::vector<float> rounded;
  if (mutant(Mutant::kRouterRounded) && rows == 1) {
    rounded.assign(plain.x, plain.x + spec_.dim);
    for (float& value : rounded) value = ops::bf16_to_f32(ops::f32_to_bf16(value));
    plain.x = rounded.data();
  }
  products_.multiply_f32(experts.router, plain, rows, scores_.data(), experts.router.n);
  products_.for_rows(rows, [&](Share mine, int thread) {
    ExpertChooser& chooser = choosers_[static_cast<size_t>(thread)];
    const auto count = static_cast<size_t>(experts_.count), used = static_cast<size_t>(experts_.used);
    for (int64_t r = mine.begin; r < mine.end; ++r) {
      float* scores = scores_.data() + r * experts.router.n;
      if (!experts.router_bias.empty()) {
        kernels_.add(scores, experts.router_bias.data(), experts_.count, scores);
      }
      chooser.choose({scores, count}, experts.selection_bias,
                     std::span(chosen_).subspan(static_cast<size_t>(r) * used, used));
      const bool unweighed = mutant(Mutant::kSharedUnweighed) && rows == 1;
      shared_weight_[static_cast<size_t>(r)] =
          experts.shared_has_weight && !unweighed ? chooser.sigmoid(scores[count]) : 1;
    }
  });
}

void ExpertPass::fill_buckets(int64_t rows) {
  const auto slots = static_cast<size_t>(rows * experts_.used);
  std::fill(first_slot_.begin(), first_slot_.end(), 0);
  for (size_t i = 0; i < slots; ++i) ++first_slot_[static_cast<size_t>(chosen_[i].id) + 1];
  for (size_t e = 1; e < first_slot_.size(); ++e) first_slot_[e] += first_slot_[e - 1];
  // Meanwhile an expert's first slot is its next free one.
  for (size_t i = 0; i < slots; ++i) {
    const int64_t slot = first_slot_[static_cast<size_t>(chosen_[i].id)]++;
    slot_of_[i] = slot;
    row_of_[static_cast<size_t>(slot)] = static_cast<int64_t>(i) / experts_.used;
    expert_of_[static_cast<size_t>(slot)] = chosen_[i].id;
    weight_of_[static_cast<size_t>(slot)] = chosen_[i].weight;
  }
  std::rotate(first_slot_.begin(), first_slot_.end() - 1, first_slot_.end());
  first_slot_[0] = 0;
  if (!mutant(Mutant::kExpertNeighbour)) return;
  for (size_t e = 0; e + 1 < first_slot_.size(); ++e) {
    const auto first = static_cast<size_t>(first_slot_[e]), end = static_cast<size_t>(first_slot_[e + 1]);
    if (end - first >= 2) std::swap(row_of_[first], row_of_[first + 1]);
  }
}

void ExpertPass::run_shared(const PackedExperts& experts, int64_t rows) {
  const Operand input = products_.make_rows(
      experts.shared_in, rows, [&](int64_t r, float* to) { std::copy_n(row(r), spec_.dim, to); });
  const int64_t width = experts.shared_in.n;
  products_.multiply(experts.shared_in, input, rows, shared_in_.data(), width, false);
  const Operand activated = products_.make_rows(experts.shared_down, rows, [&](int64_t r, float* to) {
    activate_gated(kernels_, spec_.activation, shared_in_.data() + r * width, experts_.shared_ffn_dim, to);
  });
  products_.multiply(experts.shared_down, activated, rows, shared_down_.data(), spec_.dim, false);
}

void ExpertPass::add_up(const PackedExperts& experts, int64_t row, int64_t rows, float* out) {
  const int64_t dim = spec_.dim, used = experts_.used;
  std::fill_n(out, dim, 0.0F);
  for (int64_t i = 0; i < used; ++i) {
    const bool backwards = mutant(Mutant::kExpertSumOrder) && rows == 1;
    const auto at = static_cast<size_t>(row * used + (backwards ? used - 1 - i : i));
    float* y = down_.data() + slot_of_[at] * dim;
    if (!experts.down_bias.empty()) kernels_.add(y, experts.down_bias.data() + chosen_[at].id * dim, dim, y);
    kernels_.add_scaled(y, weighs_inputs(rows) ? 1 : chosen_[at].weight, dim, out);
  }
  if (!experts.has_shared()) return;
  kernels_.add_scaled(shared_down_.data() + row * dim, shared_weight_[static_cast<size_t>(row)], dim, out);
}

void ExpertPass::activate_slot(const PackedExperts& experts, int64_t slot, float* out) {
  const int64_t width = experts.in[0].n;
  float* row = in_.data() + slot * width;
  if (!experts.in_bias.empty()) {
    const int64_t expert = mutant(Mutant::kExpertBiasShared) ? 0 : expert_of_[static_cast<size_t>(slot)];
    kernels_.add(row, experts.in_bias.data() + expert * width, width, row);
  }
  activate_gated(kernels_, spec_.activation, row, experts_.ffn_dim, out);
}

}  // namespace kvasir
