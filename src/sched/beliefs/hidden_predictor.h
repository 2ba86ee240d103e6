// Learns output lengths from the served model's own state: the row of the prompt's last token after the last
// norm (PromptFeatures::hidden), once the prefill has ended. Before that it predicts as OnlinePredictor.
//
// Source: Shen, Sen and Tanaka, Mitigating KV Cache Competition to Enhance User Experience in LLM Inference
// (2025), Section 3.2 and Figure 10: a linear layer on the hidden row gives the length. A binary classifier
// on the row and the output of that layer gives the direction in which the truth deviates. Training has two
// steps: first the length (learn_length), then the direction (learn), on requests that the first step has not
// seen. Here:
//
//   z       the row's elements, centred and scaled by the mean and deviation of the first 64 rows (those
//           that were not all the same), clamped to 5 deviations
//
//   x       z projected on kDirections fixed random directions (z itself if it is no longer), the log of the
//           prompt's length, temperature, top_p
//
//   length  w . x of y - m (LengthPoint), by recursive least squares
//
//   longer  the log-odds v . (x, w . x), likewise, by Newton's steps
//
// The row is that of the last token only, not a mean over the prompt, so it is the same bit for bit in every
// batch, in chunks or not, with a cached prefix or without. The row may be no better than the cheap features,
// so the predictor uses the one with the smaller recent error.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "contract/length_predictor.h"
#include "sched/beliefs/least_squares.h"
#include "sched/beliefs/length_classes.h"
#include "sched/beliefs/length_point.h"
#include "sched/beliefs/online_predictor.h"

namespace kvasir {

class HiddenPredictor final : public LengthPredictor {
 public:
  static constexpr size_t kDirections = 256;

  HiddenPredictor();

  LengthPrediction predict(const PromptFeatures& features) override;
  bool reads_hidden() const override { return true; }
  // Takes residuals against current predictions, by both the cheap features and the row.
  void learn(const PromptFeatures& features, const LengthPrediction& predicted,
             uint32_t output_tokens) override;
  // An output that was cut off beyond the point counts with its length so far, a lower bound of the truth.
  void learn_at_least(const PromptFeatures& features, const LengthPrediction& predicted,
                      uint32_t output_tokens) override;
  // The classes of OnlinePredictor, followed by those of the row.
  const std::vector<LengthClass>& classes() const override { return all_classes_; }

  // The first step of training: the length only, without directions and residuals.
  void learn_length(const PromptFeatures& features, uint32_t output_tokens);

  std::string save() const override;
  Status load(std::string_view text) override;

 private:
  static constexpr size_t kRowsToScale = 64;
  static constexpr size_t kPlain = 3;  // features besides the row

  // For each element of the row: the sums over the first rows, and then mean and deviation.
  struct Scale {
    std::vector<double> mean;
    std::vector<double> square;   // sum of squares about the mean
    std::vector<float> last;      // row; not saved
    std::vector<double> inverse;  // of the deviations; empty until there are enough rows
    uint64_t rows = 0;
    bool known() const { return !inverse.empty(); }
    void finish();
  };

  // True if the row has the known width, or is the first row.
  bool reads(const PromptFeatures& features) const;
  void begin(size_t width);
  void add_to_scale(std::span<const float> row);
  // x, followed by a place for w . x.
  std::span<double> read(const PromptFeatures& features);
  // x with w . x in its place.
  std::span<const double> with_length(std::span<double> x, double linear) const;
  bool row_is_better() const;
  LengthPrediction from_row(std::span<double> x) const;
  void learn_direction(std::span<const double> x, bool longer);
  // Learns from a request whose row is read: its length, or a lower bound of it.
  void learn_from_row(const PromptFeatures& features, uint32_t output_tokens);
  void compare(double error_before, double error_row);
  void gather_classes();

  OnlinePredictor before_;
  Scale scale_;
  std::vector<float> signs_;  // [width][kDirections]; empty: the row is not projected
  RecursiveLeastSquares length_{0, 1};
  RecursiveLeastSquares direction_{0, 1};
  LengthPoint point_;
  LengthClasses classes_;
  ForgettingMean error_before_;  // in tokens
  ForgettingMean error_row_;
  std::vector<LengthClass> all_classes_;
  std::vector<double> x_;  // scratch
};

}  // namespace kvasir
