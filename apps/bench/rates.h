// The rates of a command's runs, as --request-rate writes them.
#pragma once

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvasir {

// Requests per second, or a multiple of what the device can serve.
struct RateSpec {
  double value = std::numeric_limits<double>::infinity();  // infinite: all at once, or a trace's own arrivals
  bool of_capacity = false;

  std::string text() const;  // "2", "0.5x", "inf"
  friend bool operator==(const RateSpec&, const RateSpec&) = default;
};

// A list of numbers, "inf", and ranges first:last:step with both ends, as "1,2", "1:8:0.5", "0.5x,1x" and
// "0.5x:1.3x:0.1x", where x says multiples of the capacity. Values of a range are rounded to 12 digits.
// kInvalidArgument names `flag` and the part at fault: no number, below 1e-6 or above 1e9, a range that
// descends or whose step is not above 0 or mixes both units, more than 1,000 points in all, or none.
Result<std::vector<RateSpec>> parse_rates(std::string_view flag, std::string_view text);

// Requests per second. `capacity` is that of the device for the workload; unset: unknown.
// kInvalidArgument names the first multiple when the capacity is unknown. REQUIRES: capacity, if set, is
// finite and above 0
Result<std::vector<double>> resolve_rates(std::string_view flag, const std::vector<RateSpec>& rates,
                                          std::optional<double> capacity);

}  // namespace kvasir
