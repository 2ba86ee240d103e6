#include "exec/cpu/expert_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/mutant.h"

namespace kvasir {
namespace {

constexpr float kNever = -std::numeric_limits<float>::infinity();

// Of at least two: their sum, or the best one alone.
float worth_of_group(std::span<const float> values, bool of_two) {
  float first = kNever, second = kNever;
  for (const float value : values) {
    if (value > first) {
      second = first;
      first = value;
    } else if (value > second) {
      second = value;
    }
  }
  return of_two ? first + second : first;
}

}  // namespace

ExpertChooser::ExpertChooser(const ops::Kernels& kernels, const ExpertSpec& spec)
    : kernels_(&kernels),
      spec_(&spec),
      p_(static_cast<size_t>(spec.count)),
      groups_(static_cast<size_t>(spec.groups)),
      order_(static_cast<size_t>(spec.count)) {}

void ExpertChooser::choose(std::span<float> scores, std::span<const float> bias,
                           std::span<ChosenExpert> chosen) {
  const auto count = static_cast<int64_t>(scores.size());
  const bool softmax = spec_->gating == Gating::kSoftmax;
  float max = 0, sum = 1;
  if (softmax) {
    kernels_->softmax_stats(scores.data(), count, &max, &sum);
    kernels_->exp_shifted(scores.data(), max, count, p_.data());
  } else {
    sigmoids(scores, p_);
    // Large scores have the same sigmoid.
    if (!bias.empty() || spec_->groups_used < spec_->groups) std::copy(p_.begin(), p_.end(), scores.begin());
  }
  for (size_t i = 0; i < bias.size(); ++i) scores[i] = p_[i] / sum + bias[i];
  if (spec_->groups_used < spec_->groups) keep_best_groups(scores);
  order_best(scores, spec_->used);
  std::sort(order_.begin(), order_.begin() + spec_->used);
  float divisor = softmax ? sum : 1;
  if (spec_->renormalise) {
    divisor = softmax ? 0 : 1e-20F;
    float chosen_sum = 0;
    for (size_t i = 0; i < chosen.size(); ++i) chosen_sum += p_[static_cast<size_t>(order_[i])];
    divisor += chosen_sum;
  }
  for (size_t i = 0; i < chosen.size(); ++i) {
    const auto id = static_cast<size_t>(order_[i]);
    const float p = mutant(Mutant::kBiasWeighs) && !bias.empty() ? scores[id] : p_[id];
    chosen[i] = {order_[i], p / divisor * spec_->weight_scale};
  }
}

void ExpertChooser::order_best(std::span<float> values, int32_t count) {
  for (float& value : values) {
    if (std::isnan(value)) value = kNever;
  }
  const auto end = order_.begin() + static_cast<std::ptrdiff_t>(values.size());
  std::iota(order_.begin(), end, 0);
  const bool higher = mutant(Mutant::kTiesByHigherId);
  std::nth_element(order_.begin(), order_.begin() + count - 1, end, [&](int32_t a, int32_t b) {
    const float left = values[static_cast<size_t>(a)], right = values[static_cast<size_t>(b)];
    return left > right || (left == right && (higher ? a > b : a < b));
  });
}

void ExpertChooser::keep_best_groups(std::span<float> values) {
  const size_t size = values.size() / groups_.size();
  const bool of_two = spec_->gating == Gating::kSigmoid;
  for (size_t g = 0; g < groups_.size(); ++g) {
    groups_[g] = worth_of_group(values.subspan(g * size, size), of_two);
  }
  order_best(groups_, spec_->groups_used);
  for (size_t i = static_cast<size_t>(spec_->groups_used); i < groups_.size(); ++i) {
    const auto dropped = values.subspan(static_cast<size_t>(order_[i]) * size, size);
    std::fill(dropped.begin(), dropped.end(), kNever);
  }
}

void ExpertChooser::sigmoids(std::span<const float> scores, std::span<float> out) const {
  const auto count = static_cast<int64_t>(scores.size());
  kernels_->scale(scores.data(), -1, count, out.data());
  kernels_->exp_shifted(out.data(), 0, count, out.data());
  for (float& value : out) value = 1 / (1 + value);
}

float ExpertChooser::sigmoid(float score) const {
  float out = 0;
  sigmoids({&score, 1}, {&out, 1});
  return out;
}

}  // namespace kvasir
