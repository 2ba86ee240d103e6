// Learns output lengths while serving: a linear function of cheap features of the prompt.
//
// It estimates y - m (LengthPoint) by w . x. Each weight of the hashed features has a variance that falls
// with its observations, and takes its share of an error by this variance (a Kalman filter without
// covariances).
//
// Features: the prompt's length, the share of distinct tokens, temperature and top_p; and, hashed into 16,384
// buckets, the first and the last 8 tokens by place, and the sets of the first and the last 64 tokens.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "contract/length_predictor.h"
#include "sched/beliefs/length_classes.h"
#include "sched/beliefs/length_point.h"
#include "sched/beliefs/text_fields.h"

namespace kvasir {

class OnlinePredictor final : public LengthPredictor {
 public:
  OnlinePredictor();

  // Predicts nothing until a request has ended.
  LengthPrediction predict(const PromptFeatures& features) override;
  void learn(const PromptFeatures& features, const LengthPrediction& predicted,
             uint32_t output_tokens) override;
  // An output that was cut off gives a lower bound of the truth: a point below it was wrong by at least the
  // difference. Residuals and means are not updated.
  void learn_at_least(const PromptFeatures& features, const LengthPrediction& predicted,
                      uint32_t output_tokens) override;
  const std::vector<LengthClass>& classes() const override { return classes_.classes(); }

  std::string save() const override;
  Status load(std::string_view text) override;
  // The same, as a part of another predictor's text. False: the text is wrong, and this object is unusable.
  void save_fields(std::string& out) const;
  bool load_fields(TextFields& in);

 private:
  static constexpr size_t kBuckets = 1 << 14;

  struct Feature {
    uint32_t index = 0;
    float value = 0;
    float variance = 0;  // the initial variance of its weight
  };
  struct Linear {
    std::vector<float> weights = std::vector<float>(kBuckets);
    std::vector<float> learnt = std::vector<float>(kBuckets);  // 1 - variance / initial variance
    double of(const std::vector<Feature>& x) const;
    // w . x was too small by `error`, whose variance is `noise`.
    void correct(const std::vector<Feature>& x, double error, double noise);
  };
  const std::vector<Feature>& read(const PromptFeatures& features);
  void learn_direction(const std::vector<Feature>& x, double z, bool longer);
  void save_linear(std::string_view name, const Linear& linear, std::string& out) const;
  static bool load_linear(TextFields& in, std::string_view name, Linear& linear);

  Linear length_;     // w
  Linear direction_;  // of the log-odds that the truth is beyond the point
  LengthPoint point_;
  LengthClasses classes_;
  std::vector<Feature> scratch_;
};

}  // namespace kvasir
