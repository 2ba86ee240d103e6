#include "sched/mechanisms/memory_peak.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

// One need in forty is greater.
constexpr double kDeviations = 2;

bool longer(double a, double b) {
  return a > b;
}

// P(rest <= steps), even from the 5 % quantile to as far beyond the mean. The three lengths would not do
// here: of requests that may end at any time, a third would be believed to end at once.
double ended_by(const OutputRest& rest, double steps) {
  const double half = rest.mean - rest.least;
  if (half <= 0) return steps >= rest.mean ? 1 : 0;
  return std::clamp((steps - rest.least) / (2 * half), 0.0, 1.0);
}

}  // namespace

// The need at a time, of the lengths that reach it.
struct MemoryPeak::Need {
  double all_owned = 0, all = 0;                            // of requests that may reach it
  double owned = 0, count = 0;                              // P_j owned_j, and P_j
  double spread = 0, spread_owned = 0, spread_squares = 0;  // P_j (1 - P_j), times owned_j, times its square

  void add(const Length& length) {
    if (length.shorter == kLengths - 1) {
      all_owned += length.owned;
      all += 1;
    }
    owned += length.owned / kLengths;
    count += 1.0 / kLengths;
    // P_j is 1/3, 2/3 and 1 in turn, and P_j (1 - P_j) 2/9, 2/9 and 0.
    const double more = (length.shorter - 1) * 2.0 / 9;
    spread += more;
    spread_owned += more * length.owned;
    spread_squares += more * length.owned * length.owned;
  }
  double after(double steps) const {
    const double variance = spread_squares + steps * (2 * spread_owned + steps * spread);
    const double likely = owned + count * steps + kDeviations * std::sqrt(std::max(0.0, variance));
    return std::min(likely, all_owned + all * steps);
  }
};

// mean + c sd, mean, mean - c sd have that variance with c = sqrt(3/2). None is below a step; then the others
// are as much shorter, so that the mean stays.
std::array<MemoryPeak::Length, MemoryPeak::kLengths> MemoryPeak::lengths_of(const Request& request) {
  const double mean = std::max(1.0, request.rest.mean);
  const double spread = std::sqrt(1.5 * std::max(0.0, request.rest.square - mean * mean));
  const double shortest = std::max(1.0, mean - spread);
  const double middle = std::max(1.0, (3 * mean - shortest - spread) / 2);
  const double longest = 3 * mean - shortest - middle;
  return {{{request.owned, longest, 2}, {request.owned, middle, 1}, {request.owned, shortest, 0}}};
}

MemoryPeak::MemoryPeak(std::span<const Request> requests) {
  lengths_.reserve(kLengths * requests.size());
  rests_.reserve(requests.size());
  for (const Request& r : requests) {
    rests_.push_back(r.rest);
    for (const Length& length : lengths_of(r)) lengths_.push_back(length);
  }
  std::sort(lengths_.begin(), lengths_.end(),
            [](const Length& a, const Length& b) { return longer(a.steps, b.steps); });
}

void MemoryPeak::add(const Request& request) {
  rests_.push_back(request.rest);
  for (const Length& length : lengths_of(request)) {
    const auto at = std::upper_bound(lengths_.begin(), lengths_.end(), length.steps,
                                     [](double steps, const Length& l) { return longer(steps, l.steps); });
    lengths_.insert(at, length);
  }
}

double MemoryPeak::with(const Request& request) const {
  Need need;
  double peak = 0;
  const auto added = lengths_of(request);
  auto next = added.begin();
  for (auto it = lengths_.begin(); it != lengths_.end() || next != added.end();) {
    const bool own = it == lengths_.end() || (next != added.end() && next->steps >= it->steps);
    const Length& length = own ? *next++ : *it++;
    need.add(length);
    const bool last = (it == lengths_.end() || it->steps < length.steps) &&
                      (next == added.end() || next->steps < length.steps);
    if (last) peak = std::max(peak, need.after(length.steps));
  }
  return peak;
}

double MemoryPeak::ending_within(double steps) const {
  double ends = 0;
  for (const OutputRest& rest : rests_) ends += ended_by(rest, steps);
  return ends;
}

}  // namespace kvasir
