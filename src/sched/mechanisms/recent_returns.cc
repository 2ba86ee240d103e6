#include "sched/mechanisms/recent_returns.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>
#include <utility>

namespace kvasir {
namespace {

constexpr uint64_t kStepsKept = 8;

}  // namespace

void RecentReturns::begin(StepId step) {
  now_ = raw(step);
  std::erase_if(returns_, [&](const Return& r) { return r.step + kStepsKept <= now_; });
}

void RecentReturns::note(SeqId id) {
  std::erase_if(returns_, [&](const Return& r) { return r.id == raw(id); });
  returns_.push_back({raw(id), now_});
}

bool RecentReturns::just_returned(SeqId id, double rest_steps) const {
  const auto at =
      std::find_if(returns_.begin(), returns_.end(), [&](const Return& r) { return r.id == raw(id); });
  return at != returns_.end() && static_cast<double>(now_ - at->step) < rest_steps;
}

std::string RecentReturns::save() const {
  std::string out = fmt::format("{}", now_);
  for (const Return& r : returns_) fmt::format_to(std::back_inserter(out), " {} {}", r.id, r.step);
  return out;
}

Status RecentReturns::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  RecentReturns read;
  bool good = static_cast<bool>(in >> read.now_);
  for (Return r; good && in >> r.id;) {
    good = static_cast<bool>(in >> r.step) && r.step <= read.now_ &&
           (read.returns_.empty() || read.returns_.back().step <= r.step);
    read.returns_.push_back(r);
  }
  if (!good || !in.eof()) {
    return error(ErrorCode::kCorrupt, "not the requests that have just returned: '{}'", text);
  }
  *this = std::move(read);
  return {};
}

}  // namespace kvasir
