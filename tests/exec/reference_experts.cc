// A mixture of experts: every score, the choice, and the sum in the order of experts.
#include <algorithm>
#include <cmath>
#include <functional>

#include "exec/reference_decoder.h"
#include "exec/reference_math.h"
#include "ops/numerics.h"

namespace kvasir::test {
namespace {

std::vector<float> of_expert(const std::vector<float>& all, size_t expert, size_t experts) {
  const auto width = static_cast<std::ptrdiff_t>(all.size() / experts);
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(expert) * width;
  return {begin, begin + width};
}

}  // namespace

std::vector<float> ReferenceDecoder::scores(const WeightMatrix& router, const std::vector<float>& x) const {
  std::vector<float> out;
  std::vector<float> row(x.size());
  for (int64_t i = 0; i < router.rows; ++i) {
    ops::dequantize_row(router.type, router.data + static_cast<uint64_t>(i) * router.row_bytes(),
                        router.columns, row.data());
    float sum = 0;
    for (size_t k = 0; k < x.size(); ++k) sum = std::fma(x[k], row[k], sum);
    out.push_back(sum);
  }
  return out;
}

std::vector<float> ReferenceDecoder::expert_weights(const ExpertWeights& experts,
                                                    const std::vector<float>& x) const {
  const ExpertSpec& spec = file_.spec().experts;
  const auto count = static_cast<size_t>(spec.count);
  std::vector<float> score = scores(experts.router, x);
  add(score, experts.router_bias);
  std::vector<float> p, choice;
  float divisor = 1;
  if (spec.gating == Gating::kSoftmax) {
    const float max = *std::max_element(score.begin(), score.end());
    float lanes[16] = {};
    for (size_t i = 0; i < count; ++i) {
      p.push_back(exp_of(score[i] - max));
      lanes[i % 16] = lanes[i % 16] + p[i];
    }
    divisor = tree_add(lanes, 16);
    choice = score;
  } else {
    for (const float s : score) p.push_back(1.0f / (1.0f + exp_of(-s)));
    choice = spec.groups_used < spec.groups ? p : score;
  }
  if (!experts.selection_bias.empty()) {
    for (size_t i = 0; i < count; ++i) choice[i] = p[i] / divisor + experts.selection_bias[i];
  }
  // Groups by the sum of their two best, or of a softmax by the best, then experts: of equal ones the first.
  const size_t groups = static_cast<size_t>(spec.groups), size = count / groups;
  std::vector<bool> open(count, groups == 1);
  for (int32_t n = 0; n < spec.groups_used && groups > 1; ++n) {
    size_t best = groups;
    float most = 0;
    for (size_t g = 0; g < groups; ++g) {
      std::vector<float> in(choice.begin() + static_cast<std::ptrdiff_t>(g * size),
                            choice.begin() + static_cast<std::ptrdiff_t>((g + 1) * size));
      std::sort(in.begin(), in.end(), std::greater<>());
      const float worth = spec.gating == Gating::kSoftmax ? in[0] : in[0] + in[1];
      if (!open[g * size] && (best == groups || worth > most)) {
        best = g;
        most = worth;
      }
    }
    for (size_t i = 0; i < size; ++i) open[best * size + i] = true;
  }
  std::vector<bool> chosen(count);
  for (int32_t n = 0; n < spec.used; ++n) {
    size_t best = count;
    for (size_t i = 0; i < count; ++i) {
      if (open[i] && !chosen[i] && (best == count || choice[i] > choice[best])) best = i;
    }
    chosen[best] = true;
  }
  if (spec.renormalise) {
    float sum = 0;
    for (size_t i = 0; i < count; ++i) sum = chosen[i] ? sum + p[i] : sum;
    divisor = spec.gating == Gating::kSoftmax ? sum : 1e-20f + sum;
  }
  std::vector<float> out(count, 0.0f);
  for (size_t i = 0; i < count; ++i) {
    if (chosen[i]) out[i] = p[i] / divisor * spec.weight_scale;
  }
  return out;
}

std::vector<float> ReferenceDecoder::mix_experts(const ExpertWeights& experts,
                                                 const std::vector<float>& x) const {
  const std::vector<float> weights = expert_weights(experts, x);
  std::vector<float> out(x.size(), 0.0f);
  const auto add_scaled = [&out](const std::vector<float>& y, float weight) {
    for (size_t i = 0; i < out.size(); ++i) out[i] = std::fma(weight, y[i], out[i]);
  };
  for (size_t e = 0; e < weights.size(); ++e) {
    if (weights[e] == 0) continue;
    const Biases biases = {of_expert(experts.gate_bias, e, weights.size()),
                           of_expert(experts.up_bias, e, weights.size()),
                           of_expert(experts.down_bias, e, weights.size())};
    std::vector<float> input = x;
    const bool weighs_input = file_.spec().experts.weighs_inputs;
    for (float& f : input) f = weighs_input ? f * weights[e] : f;
    add_scaled(gated(experts.gate[e], experts.up[e], experts.down[e], input, biases),
               weighs_input ? 1 : weights[e]);
  }
  if (!experts.shared_up.present()) return out;
  const float weight =
      experts.shared_router.present() ? 1.0f / (1.0f + exp_of(-scores(experts.shared_router, x)[0])) : 1.0f;
  add_scaled(gated(experts.shared_gate, experts.shared_up, experts.shared_down, x), weight);
  return out;
}

}  // namespace kvasir::test
