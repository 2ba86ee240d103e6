// The rate of arrivals as a share of the rate that the device can serve.
//
// Source: CacheOpt, Section 3.2, Equation 4: confidence falls as the rate of arrivals grows,
//
//   c = alpha / (1 + beta lambda).
//
// Its lambda is in requests a second, so a beta is valid for one device and one load only. Here lambda is
// divided by the capacity, the rate that the device can serve according to the cost model:
//
//   symbol    here                          unit
//   lambda    ArrivalLoad::rate()           requests a second, over the last half minute or so
//   capacity  ArrivalLoad::capacity()       requests a second: of the mean length, as many at once as fit
//   alpha     ConfidenceOptions::most       (0, 1)
//   beta      ConfidenceOptions::falling    of lambda / capacity
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"
#include "contract/view.h"

namespace kvasir {

struct ConfidenceOptions {
  double fixed = 0;  // above 0: the confidence, at any load
  double most = 0.9;
  double falling = 0.1;
};

// Equation 4. `load`: arrivals by the capacity. Within [0, 0.999].
double confidence_at(double load, const ConfidenceOptions& options);

// Watches the waiting queue. Deterministic in the views that it has seen.
class ArrivalLoad {
 public:
  // Once for each plan.
  void observe(const View& view);
  double rate() const;
  // 0: the costs are unknown, or no request has arrived yet.
  double capacity(const View& view) const;
  // rate() by capacity(); 0 where that is 0.
  double load(const View& view) const;

  std::string save() const;
  Status restore(std::string_view text);

 private:
  void decay_to(Nanos now);

  uint64_t newest_ = 0;  // of the ids seen
  Nanos first_ = 0;      // 0: no request has arrived yet
  Nanos last_ = 0;
  double arrivals_ = 0;  // exponentially weighted, as are the sums of their lengths
  double prompt_tokens_ = 0;
  double output_tokens_ = 0;
};

}  // namespace kvasir
