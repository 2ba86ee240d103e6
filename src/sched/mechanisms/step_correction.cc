#include "sched/mechanisms/step_correction.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace kvasir {
namespace {

constexpr double kNewest = 0.1;
// One step that something else has held up, or a clock that stands, says nothing.
constexpr double kLeastFactor = 0.25, kGreatestFactor = 4;

}  // namespace

void StepCorrection::begin(Nanos now) {
  if (foretold_s_ <= 0 || now <= since_) return;
  const double measured = std::clamp(to_seconds(now - since_) / foretold_s_, kLeastFactor, kGreatestFactor);
  factor_ += kNewest * (measured - factor_);
}

void StepCorrection::end(Nanos now, double foretold_s) {
  since_ = now;
  foretold_s_ = foretold_s;
}

std::string StepCorrection::save() const {
  return fmt::format("{} {} {}", since_, foretold_s_, factor_);
}

Status StepCorrection::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  StepCorrection read;
  if (!(in >> read.since_ >> read.foretold_s_ >> read.factor_)) {
    return error(ErrorCode::kCorrupt, "not the state of a step's correction: '{}'", text);
  }
  *this = read;
  return {};
}

}  // namespace kvasir
