// Which experts a row passes through, and what each of them weighs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/architectures/model_spec.h"
#include "ops/cpu/kernels.h"

namespace kvasir {

struct ChosenExpert {
  int32_t id = 0;
  float weight = 0;
};

// Chooses from a router's scores. Of one thread: it has memory for one row.
//
// The probability of an expert is p = exp(score - maximum), by a softmax, or p = 1 / (1 + exp(-score)), by a
// sigmoid. The best experts are those of the best scores (of a sigmoid in groups: p), or, where there is a
// bias, of the best sums of probability (of a softmax: p divided by the sum of all) and bias; ties go to the
// lower id, and what is not a number is worst. Weights are p divided by: of a softmax, the sum of the chosen
// p in order of their ids, where renormalised, or else of all p, as softmax_stats() sums; of a sigmoid, the
// sum of the chosen p and 1e-20, or nothing. Then they are scaled.
class ExpertChooser {
 public:
  // Throws std::bad_alloc. The kernels and the spec outlive it.
  ExpertChooser(const ops::Kernels& kernels, const ExpertSpec& spec);

  // scores: [count]; they are overwritten. bias: [count], or empty. chosen: [used], in order of ids.
  void choose(std::span<float> scores, std::span<const float> bias, std::span<ChosenExpert> chosen);
  // 1 / (1 + exp(-score)).
  float sigmoid(float score) const;

 private:
  // The ids of the `count` best of `values`, in no order, to the front of order_.
  void order_best(std::span<float> values, int32_t count);
  // What is outside the best groups becomes -infinity.
  void keep_best_groups(std::span<float> values);
  void sigmoids(std::span<const float> scores, std::span<float> out) const;

  const ops::Kernels* kernels_;
  const ExpertSpec* spec_;
  std::vector<float> p_;        // [count]
  std::vector<float> groups_;   // [groups]
  std::vector<int32_t> order_;  // [count]
};

}  // namespace kvasir
