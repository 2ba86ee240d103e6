#include "sched/mechanisms/longest_step.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <utility>

namespace kvasir {
namespace {

constexpr uint32_t kStepsCounted = 256;

}  // namespace

void LongestStep::begin(Nanos now, bool any_run) {
  if (since_ == 0 || now <= since_ || !any_run) return;
  now_ = std::max(now_, now - since_);
  if (of_all_ || ++counted_ < kStepsCounted) return;
  before_ = std::exchange(now_, 0);
  counted_ = 0;
}

void LongestStep::end(Nanos now, bool rows) {
  since_ = rows ? now : 0;
}

std::string LongestStep::save() const {
  return fmt::format("{} {} {} {}", since_, now_, before_, counted_);
}

Status LongestStep::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  LongestStep read(of_all_);
  if (!(in >> read.since_ >> read.now_ >> read.before_ >> read.counted_)) {
    return error(ErrorCode::kCorrupt, "not the state of a longest step: '{}'", text);
  }
  *this = read;
  return {};
}

}  // namespace kvasir
