// Named workloads: distributions of lengths that match what the papers state of theirs, without their data.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/lengths.h"
#include "base/status.h"

namespace kvasir {

// A point of a quantile function: this share of the lengths is at most `tokens`.
struct Knot {
  double share = 0;
  double tokens = 0;
};

// Where there are knots, the quantile function is linear between them; they begin at share 0 and end at 1.
// Else the logarithm is normal, and what lies outside [min, max] is drawn again.
struct LengthModel {
  std::span<const Knot> knots = {};
  double log_mean = 0;
  double log_deviation = 0;
  int64_t min = 1;
  int64_t max = 1;
};

struct Workload {
  // How the two lengths come together.
  enum class Joined {
    kFree,           // independently
    kRedraw,         // both are drawn again while their sum is above max_total
    kCutPrompt,      // a prompt is cut where the sum is above max_total
    kPromptIsTotal,  // the prompt's model is that of the sum; the output is at most half of it
    kHalfOfTotal,    // likewise, and the output is even from 1 to half of it, whatever its model
  };
  std::string name;
  std::string source;   // the paper, and its table, figure or section
  std::string matched;  // the figures that it is matched to
  std::string assumed;  // what the paper leaves open
  LengthModel prompt;
  LengthModel output;
  Joined joined = Joined::kFree;
  int64_t max_total = 0;  // tokens

  // The lengths of request `number`: they depend on seed and number alone.
  Lengths draw(uint64_t seed, int64_t number) const;
};

// kNotFound lists what there is, in one line.
Result<Workload> find_workload(std::string_view name);

// Of the registry, in the order of the documentation; a number or a parameter in capitals.
std::vector<std::string> workload_names();

}  // namespace kvasir
