// What is left of an output, given that it has lived so long.
//
// Source: TRAIL (arXiv 2410.01035) predicts the remaining length again as a request lives; SageSched (arXiv
// 2603.07917) schedules by distributions instead of points. Here the distribution is that of the residuals of
// requests that were predicted alike (LengthClass), conditioned on survival:
//
//   r = E[O - g | O > g],   m2 = E[(O - g)^2 | O > g],   O = point + residual
//
//   symbol   here                              unit
//   g        output tokens so far              tokens
//   point    LengthPrediction::output_tokens   tokens
//   O        the whole output                  tokens
//
// The residuals are linear between the 13 quantiles. Below the first is a point mass, and above the last a
// tail as wide as one of the exponential distribution with the same last two quantiles. Since O > g is the
// same as residual > g - point, one table by g - point serves all requests of a class.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "contract/length_predictor.h"
#include "contract/view.h"

namespace kvasir {

// Tokens; each at least 1, and at most what the sequence's maximum length leaves.
struct OutputRest {
  double mean = 1;
  double square = 1;  // the mean of the square
  double least = 1;   // the 5 % quantile
};

// Of a residual R, given that R > above: R - above. Empty: no residual is so large. REQUIRES:
// alike.finished > 0
std::optional<OutputRest> residual_beyond(const LengthClass& alike, double above);

// Tables for the classes of a view. A cache: it says the same whatever was asked before.
class RestOfOutput {
 public:
  // Call it for each view before the next calls: it renews the tables of classes that have changed.
  void observe(const View& view);
  // By the class where at least 20 requests of it have ended; else by the point; for a sequence that has
  // outlived either, or has no prediction, half of its output so far and at least 8.
  OutputRest of(const SeqView& seq) const;
  // The whole output that is expected of it: what is there, and the mean of what is left, in whole tokens.
  uint32_t output(const SeqView& seq) const;

 private:
  // At `at[i] = from + i * width`, and linear between; before `from` nothing is conditioned away.
  struct Table {
    LengthClass made_of;
    double from = 0;
    double width = 1;
    std::vector<OutputRest> at;
  };
  static Table make(const LengthClass& alike);
  static std::optional<OutputRest> look_up(const Table& table, double above);

  std::vector<Table> tables_;
};

}  // namespace kvasir
