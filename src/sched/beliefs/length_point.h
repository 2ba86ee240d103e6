// From what weights say of a request to the length that is predicted, and whether what they say holds.
//
// With y = log(output tokens), and `linear` what the weights say of y - m:
//
//   log point = m + g linear + log s
//
//   m  the mean of y so far (it forgets, over some 2,000 requests)
//   g  how much of `linear` has proved true: the regression of y - m on it over requests that the weights had
//   not
//      yet learnt, within [0, 1]. Features that say nothing are found out by it, and the mean is what is left
//   s  the sum of true lengths over the sum of exp(m + g linear), likewise: the mean of exp(y) is not exp of
//   the
//      mean of y, and policies that replace E[X] by the point need it unbiased
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "contract/length_predictor.h"
#include "sched/beliefs/text_fields.h"

namespace kvasir {

// A mean that forgets; the first ones count evenly.
struct ForgettingMean {
  double value = 0;
  double count = 0;
  void add(double x, double memory);
};

// Log-odds become odds.
double squash(double z);

// Used by one thread.
class LengthPoint {
 public:
  static constexpr double kLargestError = 2;  // logarithms that one request can teach

  bool known() const { return sums_.log_length.count > 0; }
  // REQUIRES: known()
  uint32_t tokens(double linear) const;
  // From the log-odds that the truth is beyond the point; nothing before it has been seen to hold.
  Deviation direction(double z) const;

  // A request of which the weights said `linear` has had so many tokens. Returns what they should have said,
  // less what they did, within kLargestError.
  double finished(double linear, uint32_t output_tokens);
  // Of those errors, squared: what one request says is worth so little.
  double noise() const;
  // The truth lay on that side of a point, of which the log-odds were z.
  void direction_was(double z, bool longer);

  void save(std::string& out) const;
  // False: not what save() wrote.
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
    ForgettingMean direction_held;    // of directions that were told, 1 where the truth lay there
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
