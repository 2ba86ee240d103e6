#include "sched/mechanisms/step_correction.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace kvasir {
namespace {

constexpr double kNewest = 0.1;
constexpr double kForgotten = 0.001;  // of a step without partial histories
// One step that something else has held up, or a clock that stands, says nothing.
constexpr double kLeastFactor = 0.25, kGreatestFactor = 4;

bool plausible(double factor) {
  return factor >= kLeastFactor && factor <= kGreatestFactor;
}

}  // namespace

void StepCorrection::begin(Nanos now, bool any_run) {
  if (predicted_s_ <= 0 || now <= since_ || !any_run) return;
  auto& [whole, partial] = factors_;
  const double measured = std::clamp(to_seconds(now - since_) / predicted_s_, kLeastFactor, kGreatestFactor);
  if (kind_ == StepKind::kPartial) {
    partial += kNewest * (measured - partial);
    return;
  }
  whole += kNewest * (measured - whole);
  partial += kForgotten * (whole - partial);
}

void StepCorrection::end(Nanos now, StepKind kind, double predicted_s) {
  since_ = now;
  kind_ = kind;
  predicted_s_ = predicted_s;
}

std::string StepCorrection::save() const {
  return fmt::format("{} {} {} {} {}", since_, kind_ == StepKind::kPartial ? 1 : 0, predicted_s_, factors_[0],
                     factors_[1]);
}

Status StepCorrection::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  StepCorrection read;
  int partial = 0;
  if (!(in >> read.since_ >> partial >> read.predicted_s_ >> read.factors_[0] >> read.factors_[1]) ||
      partial < 0 || partial > 1 || !plausible(read.factors_[0]) || !plausible(read.factors_[1])) {
    return error(ErrorCode::kCorrupt, "not the state of a step's correction: '{}'", text);
  }
  read.kind_ = partial == 1 ? StepKind::kPartial : StepKind::kWhole;
  *this = read;
  return {};
}

}  // namespace kvasir
