// The work that arrives, by the gap between two tokens that its requests allow; over the last half minute.
#pragma once

#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/view.h"

namespace kvasir {

// Requests whose allowed_gap() is alike: within a quarter of an octave. Each with an exponential weight.
struct GapClass {
  double gap_s = std::numeric_limits<double>::infinity();  // the least of them
  double requests = 0;
  double worth = 0;  // the sum of their weights
  double prompt_tokens = 0;
  double output_tokens = 0;  // predicted
};

// Watches the waiting queue. Deterministic in the views that it has seen.
class ArrivingWork {
 public:
  // Once for each plan.
  void observe(const View& view);
  // The least gap first, those without a bound last.
  const std::vector<GapClass>& classes() const { return classes_; }
  // A weight divided by this is a rate per second.
  double seconds() const;
  double prompt_tokens_per_s() const;

  std::string save() const;
  Status restore(std::string_view text);

 private:
  void decay_to(Nanos now);
  GapClass& class_of(double gap_s);

  uint64_t newest_ = 0;  // of the ids seen
  Nanos first_ = 0;      // 0: no request has arrived yet
  Nanos last_ = 0;
  std::vector<GapClass> classes_;
};

}  // namespace kvasir
