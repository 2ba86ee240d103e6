// Turns the output of a linear model into a predicted length, and measures how good that output is.
//
// With y = log(output tokens), and `linear` the model's estimate of y - m:
//
//   log point = m + g linear + log s
//
//   m  the mean of y so far (it forgets, over some 2,000 requests)
//   g  the regression of y - m on `linear`, over requests that the weights had not learnt yet, within [0, 1].
//      If the features are useless it goes to 0, and the mean remains
//   s  the sum of true lengths over the sum of exp(m + g linear), over the same requests: the mean of
//      exp(y) is not exp of the mean of y, and policies that replace E[X] by the point need it unbiased
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "contract/length_predictor.h"
#include "sched/beliefs/text_fields.h"

namespace kvasir {

// An exponential mean; the first values have equal weights.
struct ForgettingMean {
  double value = 0;
  double count = 0;
  void add(double x, double memory);
};

// Turns log-odds into a probability.
double squash(double z);

// Used by one thread.
class LengthPoint {
 public:
  static constexpr double kLargestError = 2;  // the largest error in y that one request can teach

  bool known() const { return sums_.log_length.count > 0; }
  // REQUIRES: known()
  uint32_t tokens(double linear) const;
  // From the log-odds that the truth is above the point. kUnknown until directions have proved right.
  Deviation direction(double z) const;

  // A request with the estimate `linear` had `output_tokens`. Returns the error, y - m - linear, clamped to
  // kLargestError.
  double finished(double linear, uint32_t output_tokens);
  // The mean square of those errors: the noise of one observation.
  double noise() const;
  // The truth was above the point (`longer`) or not, where the log-odds were z.
  void direction_was(double z, bool longer);

  void save(std::string& out) const;
  // False: save() did not write it.
  bool load(TextFields& in);

 private:
  // In the order in which they are saved.
  struct Sums {
    double finished = 0;
    ForgettingMean log_length;        // m
    ForgettingMean linear_by_rest;    // of linear (y - m)
    ForgettingMean linear_by_linear;  // of linear^2
    ForgettingMean square_rest;       // of (y - m - linear)^2
    ForgettingMean length;            // of exp(y)
    ForgettingMean uncorrected;       // of exp(m + g linear)
    ForgettingMean direction_held;    // of directions that were predicted: 1 if right, else 0
    std::array<ForgettingMean*, 7> means() {
      return {&log_length, &linear_by_rest, &linear_by_linear, &square_rest,
              &length,     &uncorrected,    &direction_held};
    }
  };

  double gain() const;
  double correction() const;
  double log_point(double linear) const;
  Deviation told(double z) const;

  Sums sums_;
};

}  // namespace kvasir
