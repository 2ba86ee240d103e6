// Learns output lengths from what the served model itself makes of a prompt: the row of its last token behind
// the last norm (PromptFeatures::hidden), once the prefill has been done. Before that, as OnlinePredictor.
//
// Source: Shen, Sen and Tanaka, Mitigating KV Cache Competition to Enhance User Experience in LLM Inference
// (2025), Section 3.2 and Figure 10: a linear layer on the hidden row gives the length, a binary classifier
// on the row and what that layer says gives the direction in which the truth deviates. Both are trained in
// two steps: the length first (learn_length), then, on predictions of requests that the first had not seen,
// the direction (learn). Here:
//
//   z       the row's elements, centred and scaled by what the first 64 rows had that were not all the same,
//           within 5 deviations
//
//   x       z on kDirections fixed random directions (all of z where it is no longer), log prompt length,
//           temperature, top_p
//
//   length  w . x of y - m (LengthPoint), by recursive least squares
//
//   longer  the log-odds v . (x, w . x), likewise, by Newton's steps
//
// The row is that of the last token alone, and not a mean over the prompt, so that it is the same bit for bit
// in every batch, in chunks or not, with a prefix found in the cache or computed. Whether the row says more
// than the cheap features is not taken for granted: whichever of the two was nearer to the truth of late,
// predicts.
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
  // Residuals are of what would be predicted now, so that both the cheap features' and the row's are known of
  // each request.
  void learn(const PromptFeatures& features, const LengthPrediction& predicted,
             uint32_t output_tokens) override;
  // Of a length that was cut beyond the point, what there was of it counts as the truth, which is no less.
  void learn_at_least(const PromptFeatures& features, const LengthPrediction& predicted,
                      uint32_t output_tokens) override;
  // Those of OnlinePredictor, and behind them those of the row.
  const std::vector<LengthClass>& classes() const override { return all_classes_; }

  // The first step of training: what the length is, and nothing of directions and residuals.
  void learn_length(const PromptFeatures& features, uint32_t output_tokens);

  std::string save() const override;
  Status load(std::string_view text) override;

 private:
  static constexpr size_t kRowsToScale = 64;
  static constexpr size_t kPlain = 3;  // features that are not of the row

  // Of each element of the row: sums of the first rows, and then what they come to.
  struct Scale {
    std::vector<double> mean;
    std::vector<double> square;   // sum of squares about the mean
    std::vector<float> last;      // row; not saved
    std::vector<double> inverse;  // of the deviations; empty until the rows are there
    uint64_t rows = 0;
    bool known() const { return !inverse.empty(); }
    void finish();
  };

  // True: the row is of the width that is known, or the first one.
  bool reads(const PromptFeatures& features) const;
  void begin(size_t width);
  void add_to_scale(std::span<const float> row);
  // x, and a place for w . x behind it.
  std::span<double> read(const PromptFeatures& features);
  // x with w . x in its place.
  std::span<const double> with_length(std::span<double> x, double linear) const;
  bool row_is_better() const;
  LengthPrediction from_row(std::span<double> x) const;
  void learn_direction(std::span<const double> x, bool longer);
  // Of one whose row is read: what it became, or of which it is known that it is no less.
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
