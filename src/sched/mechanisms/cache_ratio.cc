#include "sched/mechanisms/cache_ratio.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {
namespace {

// A sum of some hundred lengths is right to about this share: b / T that differ by less are equal.
constexpr double kRatioRounding = 1e-12;

// Of the first b requests, in tokens.
struct RatioSums {
  double requests = 0;
  double lengths = 0;
  double held_back = 0;
  double free = 0;  // of what may leave the device
  double free_squares = 0;
  double prompts_s = 0;

  void add(const RatioProblem& problem, uint32_t i) {
    const double length = problem.lengths[i];
    const double held = problem.held_back.empty() ? 0 : std::min(problem.held_back[i], length);
    requests += 1;
    lengths += length;
    held_back += held;
    free += length - held;
    free_squares += (length - held) * (length - held);
    if (!problem.prompts_s.empty()) prompts_s += problem.prompts_s[i];
  }
};

void check_ratio_problem(const RatioProblem& problem, uint32_t requests) {
  KV_CHECK(requests <= problem.lengths.size(), "requests={} of {}", requests, problem.lengths.size());
  KV_CHECK(problem.held_back.empty() || problem.held_back.size() == problem.lengths.size(),
           "held_back={} lengths={}", problem.held_back.size(), problem.lengths.size());
  KV_CHECK(problem.prompts_s.empty() || problem.prompts_s.size() == problem.lengths.size(),
           "prompts_s={} lengths={}", problem.prompts_s.size(), problem.lengths.size());
  KV_CHECK(problem.again_share >= 0 && problem.again_share <= 1, "again_share={}", problem.again_share);
}

RatioSums ratio_sums(const RatioProblem& problem, uint32_t requests) {
  check_ratio_problem(problem, requests);
  RatioSums sums;
  for (uint32_t i = 0; i < requests; ++i) sums.add(problem, i);
  return sums;
}

double seconds_with(const RatioProblem& problem, const RatioSums& sums, double ratio) {
  const double again = problem.again_share * ratio;
  const double staged = (1 - problem.again_share) * ratio * sums.free;
  const double computation = problem.cost.seconds(
      {sums.requests, sums.lengths, again * sums.free, again * again * sums.free_squares});
  const double link = staged > 0 ? problem.staging_s + staged * problem.staged_token_s : 0;
  return std::max(computation, link) + sums.prompts_s;
}

// The greatest r with `share` of r * `tokens` within `bound`.
double ratio_within(double bound, double share, double tokens) {
  return share * tokens > 0 ? bound / (share * tokens) : kUnbounded;
}

// What is kept is held_back + free (1 - r) + overhead free r, all <= device_tokens. With an overhead of one
// or more nothing is gained by letting tokens go: then r = 0 fits, or none does.
double least_with(const RatioProblem& problem, const RatioSums& sums) {
  const double excess = sums.held_back + sums.free - problem.device_tokens;
  const double gain = (1 - problem.overhead) * sums.free;  // tokens of room for r = 1
  if (excess > 0 && gain <= 0) return -1;
  const double least = excess > 0 ? excess / gain : 0;
  const double most =
      std::min({1.0, problem.greatest_ratio, ratio_within(problem.passing_tokens, 1, sums.free),
                ratio_within(problem.slower_tokens, 1 - problem.again_share, sums.free),
                ratio_within(problem.again_tokens, problem.again_share, sums.free)});
  return least <= most ? least : -1;
}

}  // namespace

double ratio_seconds(const RatioProblem& problem, uint32_t requests, double ratio) {
  return seconds_with(problem, ratio_sums(problem, requests), ratio);
}

double least_ratio(const RatioProblem& problem, uint32_t requests) {
  return least_with(problem, ratio_sums(problem, requests));
}

RatioChoice choose_ratio(const RatioProblem& problem) {
  const auto all = static_cast<uint32_t>(problem.lengths.size());
  check_ratio_problem(problem, all);
  RatioChoice best;
  RatioSums sums;
  // Another request makes the least r greater, what bounds r from above smaller, and T greater: behind the
  // first b that does not fit none does.
  for (uint32_t b = 1; b <= all; ++b) {
    sums.add(problem, b - 1);
    const double ratio = least_with(problem, sums);
    if (ratio < 0) break;
    const double seconds = seconds_with(problem, sums, ratio);
    if (seconds > problem.most_seconds) break;
    // b / seconds against the best, without quotients: seconds may be 0 where nothing is known.
    if (best.requests == 0 || b * best.seconds * (1 + kRatioRounding) >= best.requests * seconds) {
      best = {b, ratio, seconds};
    }
  }
  return best;
}

}  // namespace kvasir
