#include "sched/mechanisms/stretch.h"

#include <fmt/format.h>

#include <sstream>

namespace kvasir {
namespace {

constexpr uint32_t kQuietPlans = 256;  // until half the factor is tried

}  // namespace

void Stretch::observe(bool dropped, double most) {
  if (dropped) {
    if (2 * factor_ <= most) factor_ *= 2;
    quiet_ = 0;
    return;
  }
  if (factor_ == 1 || ++quiet_ < kQuietPlans) return;
  factor_ /= 2;
  quiet_ = 0;
}

std::string Stretch::save() const {
  return fmt::format("{} {}", factor_, quiet_);
}

Status Stretch::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  Stretch read;
  if (!(in >> read.factor_ >> read.quiet_) || !(read.factor_ >= 1)) {
    return error(ErrorCode::kCorrupt, "not the state of a stretch: '{}'", text);
  }
  *this = read;
  return {};
}

}  // namespace kvasir
