// Learns output lengths while it serves: a linear function of cheap features of the prompt.
//
// With y = log(output tokens), a request with features x is believed to have
//
//   log point = m + g (w . x) + log s
//
//   m  the mean of y so far (it forgets, over some 2,000 requests)
//   w  weights of the hashed features, learnt on y - m. Each has a variance that falls with what was learnt
//   of
//      it, and takes its share of an error by it (a Kalman filter without covariances)
//   g  how much of w . x has proved true: the regression of y - m on w . x over requests that w had not yet
//      learnt, within [0, 1]. Features that say nothing are found out by it, and the mean is what is left
//   s  the sum of true lengths over the sum of exp(m + g (w . x)), likewise: the mean of exp(y) is not exp of
//      the mean of y, and policies that replace E[X] by the point need it unbiased
//
// Features: the prompt's length, the share of distinct tokens, temperature and top_p; and hashed into 16,384
// buckets the first and the last 8 tokens by place, and the sets of the first and the last 64 tokens. Nothing
// else is read.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contract/length_predictor.h"
#include "sched/beliefs/length_classes.h"

namespace kvasir {

class OnlinePredictor final : public LengthPredictor {
 public:
  OnlinePredictor();

  // Nothing is predicted before a request has ended.
  LengthPrediction predict(const PromptFeatures& features) override;
  void learn(const PromptFeatures& features, const LengthPrediction& predicted,
             uint32_t output_tokens) override;
  // Of a length that was cut it is known that the truth is beyond: where the point is not, the point was
  // wrong, by that much at least. Residuals and means hear nothing of it.
  void learn_at_least(const PromptFeatures& features, const LengthPrediction& predicted,
                      uint32_t output_tokens) override;
  const std::vector<LengthClass>& classes() const override { return classes_.classes(); }

  std::string save() const override;
  Status load(std::string_view text) override;

 private:
  static constexpr size_t kBuckets = 1 << 14;

  struct Feature {
    uint32_t index = 0;
    float value = 0;
    float variance = 0;  // of its weight, at first
  };
  struct Linear {
    std::vector<float> weights = std::vector<float>(kBuckets);
    std::vector<float> learnt = std::vector<float>(kBuckets);  // 1 - variance / variance at first
    double of(const std::vector<Feature>& x) const;
    // w . x was too small by `error`, give or take the square root of `noise`.
    void correct(const std::vector<Feature>& x, double error, double noise);
  };
  // A mean that forgets; the first ones count evenly.
  struct Mean {
    double value = 0;
    double count = 0;
    void add(double x, double memory);
  };
  // Everything that is learnt beside weights and classes, in the order in which it is saved.
  struct Sums {
    double finished = 0;
    Mean log_length;        // m
    Mean linear_by_rest;    // of (w . x) (y - m)
    Mean linear_by_linear;  // of (w . x)^2
    Mean square_rest;       // of (y - m - w . x)^2
    Mean length;            // of exp(y)
    Mean uncorrected;       // of exp(m + g (w . x))
    Mean direction_held;    // of directions that were told, 1 where the truth lay there
    std::array<Mean*, 7> means() {
      return {&log_length, &linear_by_rest, &linear_by_linear, &square_rest,
              &length,     &uncorrected,    &direction_held};
    }
  };

  static double squash(double z);
  const std::vector<Feature>& read(const PromptFeatures& features);
  double gain() const;
  double correction() const;
  double log_point(double linear) const;
  Deviation told_direction(double z) const;
  void learn_direction(const std::vector<Feature>& x, double z, bool longer);
  void save_linear(std::string_view name, const Linear& linear, std::string& out) const;
  static bool load_linear(TextFields& in, std::string_view name, Linear& linear);

  Linear length_;     // w
  Linear direction_;  // of the log-odds that the truth is beyond the point
  Sums sums_;
  LengthClasses classes_;
  std::vector<Feature> scratch_;
};

}  // namespace kvasir
