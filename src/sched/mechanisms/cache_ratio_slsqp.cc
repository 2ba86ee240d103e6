#include <nlopt.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "base/check.h"
#include "sched/mechanisms/cache_ratio.h"

namespace kvasir {
namespace {

constexpr int kMostEvaluations = 100;
// (b / B, r)
constexpr std::array<std::array<double, 2>, 5> kStarts = {
    {{0.5, 0.5}, {0, 0}, {1.0 / 3, 0}, {2.0 / 3, 0}, {1, 0}}};
constexpr double kStopRelative = 1e-9;
constexpr double kWhole = 1e-6;  // of a request

// A value, and what it gains for each unit of b and of r.
struct Slope {
  double value = 0, by_b = 0, by_r = 0;
};
Slope operator+(Slope a, Slope b) {
  return {a.value + b.value, a.by_b + b.by_b, a.by_r + b.by_r};
}
Slope operator*(double k, Slope a) {
  return {k * a.value, k * a.by_b, k * a.by_r};
}
Slope operator*(Slope a, Slope b) {
  return {a.value * b.value, a.value * b.by_b + a.by_b * b.value, a.value * b.by_r + a.by_r * b.value};
}
Slope greater(Slope a, Slope b) {
  return a.value >= b.value ? a : b;
}

// The problem with a real b. The solver's variables and constraints are scaled to about 1: x = (b / B, r).
class RelaxedRatio {
 public:
  explicit RelaxedRatio(const RatioProblem& problem) : problem_(problem), sums_(problem.lengths.size() + 1) {
    for (size_t i = 0; i < problem.lengths.size(); ++i) {
      const double length = problem.lengths[i];
      const double free =
          problem.held_back.empty() ? length : length - std::min(problem.held_back[i], length);
      const double prompts_s = problem.prompts_s.empty() ? 0 : problem.prompts_s[i];
      const std::array<double, kSums> terms = {1, length, free, free * free, prompts_s};
      for (size_t k = 0; k < kSums; ++k) sums_[i + 1][k] = sums_[i][k] + terms[k];
    }
    const double first = seconds(1, 0).value;
    if (first > 0) scale_ = 1 / first;
  }

  bool fits(uint32_t requests, double ratio) const {
    const std::array<double, 2> x = {requests / all(), ratio};
    std::array<double, kMostBounds> values{};
    const uint32_t n = constraints(x.data(), values.data(), nullptr);
    return std::all_of(values.begin(), values.begin() + n, [](double v) { return v <= kStopRelative; });
  }

  double all() const { return static_cast<double>(problem_.lengths.size()); }

  // T / b, Equation 5, in units of that of the first request without any r.
  double objective(const double* x, double* gradient) const {
    const double b = b_of(x);
    const Slope inverse{1 / b, -1 / (b * b), 0};
    const Slope value = scale_ * (inverse * seconds(b, x[1]));
    write(value, gradient);
    return value.value;
  }

  // Those of the bounds that are there; each is met at 0 or less.
  uint32_t constraints(const double* x, double* values, double* gradients) const {
    const double b = b_of(x);
    const Slope left{x[1], 0, 1};
    const Slope length = sum(kLength, b), free = sum(kFree, b), gone = left * free;
    uint32_t n = 0;
    const auto within = [&](Slope used, double bound) {
      if (bound == kUnbounded) return;
      const double unit = bound > 0 ? 1 / bound : 1;
      const Slope value = unit * (used + Slope{-bound, 0, 0});
      if (values != nullptr) values[n] = value.value;
      if (values != nullptr && gradients != nullptr) write(value, gradients + size_t{2} * n);
      ++n;
    };
    within(length + (problem_.overhead - 1) * gone, problem_.device_tokens);
    within(seconds(b, x[1]), problem_.most_seconds);
    within(gone, problem_.passing_tokens);
    within((1 - problem_.again_share) * gone, problem_.slower_tokens);
    within(problem_.again_share * gone, problem_.again_tokens);
    return n;
  }

 private:
  static constexpr size_t kMostBounds = 5;
  enum : size_t { kRequest, kLength, kFree, kFreeSquare, kPrompts, kSums };

  // The solver may try a point that is not a number: then one request, whose value is finite, and it turns
  // back.
  double b_of(const double* x) const { return std::isnan(x[0]) ? 1.0 : std::clamp(x[0] * all(), 1.0, all()); }
  void write(Slope slope, double* gradient) const {
    if (gradient == nullptr) return;
    gradient[0] = slope.by_b * all();
    gradient[1] = slope.by_r;
  }
  Slope sum(size_t which, double b) const {
    const size_t below = std::min(static_cast<size_t>(b), problem_.lengths.size() - 1);
    const double step = sums_[below + 1][which] - sums_[below][which];
    return {sums_[below][which] + (b - static_cast<double>(below)) * step, step, 0};
  }
  Slope seconds(double b, double r) const {
    const Slope left{r, 0, 1}, again = problem_.again_share * left;
    const Slope free = sum(kFree, b);
    const auto of = [&](const LoadSeconds& c) {
      return Slope{c.step_s, 0, 0} + c.request_s * sum(kRequest, b) + c.context_s * sum(kLength, b) +
             c.again_token_s * (again * free) + c.again_square_s * (again * again * sum(kFreeSquare, b));
    };
    const Slope staged = (1 - problem_.again_share) * (left * free);
    const Slope link =
        staged.value > 0 ? Slope{problem_.staging_s, 0, 0} + problem_.staged_token_s * staged : Slope{};
    return greater(greater(of(problem_.cost.compute), of(problem_.cost.memory)), link) + sum(kPrompts, b);
  }

  const RatioProblem& problem_;
  std::vector<std::array<double, kSums>> sums_;  // of the first b requests
  double scale_ = 1;
};

double relaxed_objective(unsigned, const double* x, double* gradient, void* relaxed) {
  return static_cast<const RelaxedRatio*>(relaxed)->objective(x, gradient);
}
void relaxed_constraints(unsigned, double* values, unsigned, const double* x, double* gradients,
                         void* relaxed) {
  static_cast<const RelaxedRatio*>(relaxed)->constraints(x, values, gradients);
}

// The solver's point made one that fits: it may be out of its bounds by rounding, or because nothing was
// found. As many requests or fewer, and its own r where that fits, or else the least.
RatioChoice repaired(const RatioProblem& problem, const RelaxedRatio& relaxed, uint32_t requests,
                     double ratio) {
  for (uint32_t b = requests, fewer = 1; b > 0; b -= std::min(b, fewer), fewer *= 2) {
    const double least = least_ratio(problem, b);
    if (least < 0) continue;
    for (double r : {std::max(least, ratio), least}) {
      const double seconds = ratio_seconds(problem, b, r);
      if (seconds <= problem.most_seconds && (r == least || relaxed.fits(b, r))) return {b, r, seconds};
    }
  }
  return {};
}

}  // namespace

RatioChoice choose_ratio_slsqp(const RatioProblem& problem) {
  const auto all = static_cast<uint32_t>(problem.lengths.size());
  if (least_ratio(problem, std::min(all, 1U)) < 0 || all == 0) return {};
  RelaxedRatio relaxed(problem);
  const std::unique_ptr<nlopt_opt_s, decltype(&nlopt_destroy)> solver(nlopt_create(NLOPT_LD_SLSQP, 2),
                                                                      &nlopt_destroy);
  KV_CHECK(solver != nullptr, "the solver has no memory");
  const std::array<double, 2> lower = {1.0 / all, 0}, upper = {1, std::min(1.0, problem.greatest_ratio)};
  std::array<double, 2> unused{};
  nlopt_set_lower_bounds(solver.get(), lower.data());
  nlopt_set_upper_bounds(solver.get(), upper.data());
  nlopt_set_min_objective(solver.get(), relaxed_objective, &relaxed);
  nlopt_add_inequality_mconstraint(solver.get(), relaxed.constraints(unused.data(), nullptr, nullptr),
                                   relaxed_constraints, &relaxed, nullptr);
  nlopt_set_ftol_rel(solver.get(), kStopRelative);
  nlopt_set_xtol_rel(solver.get(), kStopRelative);
  nlopt_set_maxeval(solver.get(), kMostEvaluations);
  // The sums have a kink at each request, at which a search may stay: the best of some.
  RatioChoice best;
  for (const std::array<double, 2>& start : kStarts) {
    std::array<double, 2> x = {std::max(start[0], lower[0]), start[1] * upper[1]};
    double value = 0;
    nlopt_optimize(solver.get(), x.data(), &value);  // whatever it says of itself, x is judged by what it is
    if (!std::isfinite(x[0]) || !std::isfinite(x[1])) continue;
    // A b that is whole but for the solver's rounding is that.
    const double b = std::clamp(std::floor(x[0] * all + kWhole), 1.0, static_cast<double>(all));
    const RatioChoice found = repaired(problem, relaxed, static_cast<uint32_t>(b), x[1]);
    if (found.requests * best.seconds > best.requests * found.seconds || best.requests == 0) best = found;
  }
  return best;
}

}  // namespace kvasir
