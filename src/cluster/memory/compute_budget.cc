#include "cluster/memory/compute_budget.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvasir {

ComputeBudget::ComputeBudget(double share, int threads, Nanos burst, Nanos now)
    : threads_(threads), burst_s_(to_seconds(burst)), share_(0), level_s_(burst_s_), since_(now) {
  KV_CHECK(threads > 0 && burst >= 0, "threads={} burst={}", threads, burst);
  set_share(share, now);
}

void ComputeBudget::set_share(double share, Nanos now) {
  KV_CHECK(share >= 0 && share <= 1, "share={}", share);
  level_s_ = filled(now);
  since_ = std::max(since_, now);
  share_ = share;
}

void ComputeBudget::spend(Nanos worked, Nanos now) {
  level_s_ = filled(now) - to_seconds(worked);
  since_ = std::max(since_, now);
}

double ComputeBudget::filled(Nanos now) const {
  const double passed = to_seconds(std::max<Nanos>(now - since_, 0));
  return std::min(burst_s_, level_s_ + passed * share_ * threads_);
}

Nanos ComputeBudget::ready_at(Nanos now) const {
  if (share_ >= 1) return now;
  if (share_ <= 0) return INT64_MAX;
  const double level = filled(now);
  if (level >= 0) return now;
  // A nanosecond more than it takes, so that rounding never makes a waiter wake up early for nothing.
  return now + static_cast<Nanos>(std::ceil(-level / (share_ * threads_) * 1e9)) + 1;
}

Nanos ComputeBudget::done_at(Nanos work, Nanos now) const {
  if (share_ <= 0) return INT64_MAX;
  const double owed = share_ >= 1 ? 0 : std::min(filled(now), 0.0);
  return now + from_seconds((to_seconds(work) - owed) / (share_ * threads_));
}

}  // namespace kvasir
