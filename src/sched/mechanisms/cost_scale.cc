#include "sched/mechanisms/cost_scale.h"

#include <fmt/format.h>

#include <sstream>
#include <utility>

namespace kvasir {
namespace {

constexpr double kKept = 1 - 1.0 / 64;  // of older steps, for each new one
constexpr double kFewestSteps = 8;
constexpr double kWrong = 4;
constexpr uint64_t kLearnt = 256;  // steps

}  // namespace

bool CostScale::begin(Nanos now, bool any_run, uint64_t steps_seen) {
  if (prior_steps_ == UINT64_MAX) prior_steps_ = steps_seen;
  if (steps_seen - prior_steps_ >= kLearnt) return std::exchange(factor_, 1) != 1;
  if (pending_s_ <= 0 || now <= since_ || !any_run) return false;
  measured_s_ = kKept * measured_s_ + to_seconds(now - since_);
  believed_s_ = kKept * believed_s_ + pending_s_;
  steps_ = kKept * steps_ + 1;
  pending_s_ = 0;
  if (steps_ < kFewestSteps) return false;
  const double ratio = measured_s_ / believed_s_;
  if (ratio <= kWrong * factor_ && ratio >= factor_ / kWrong) return false;
  factor_ = ratio;
  return true;
}

void CostScale::end(Nanos now, double believed_s) {
  since_ = now;
  pending_s_ = believed_s;
}

std::string CostScale::save() const {
  return fmt::format("{} {} {} {} {} {} {}", since_, pending_s_, measured_s_, believed_s_, steps_, factor_,
                     prior_steps_);
}

Status CostScale::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  CostScale read;
  if (!(in >> read.since_ >> read.pending_s_ >> read.measured_s_ >> read.believed_s_ >> read.steps_ >>
        read.factor_ >> read.prior_steps_) ||
      !(read.factor_ > 0)) {
    return error(ErrorCode::kCorrupt, "not the scale of believed costs: '{}'", text);
  }
  *this = read;
  return {};
}

}  // namespace kvasir
