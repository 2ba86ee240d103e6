#include "apps/simulate/times_fit.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "sched/beliefs/cost_fit.h"
#include "sched/beliefs/normal_equations.h"

namespace kvasir {
namespace {

constexpr int kMostSweeps = 50'000;
constexpr double kEnough = 1e-12;  // of the largest change in a sweep, in units of the observations' time
constexpr double kIdleFactor = 20;

// Of sorted values; 0 of none.

bool usable(const TimedLoad& o) {
  return o.seconds > 0 && std::isfinite(o.seconds) && o.weight > 0;
}

// Normal equations of weighted least squares, solved for x >= 0 one coordinate after the other. A change
// counts times its column's length: then one bound serves all.
class Sums {
 public:
  explicit Sums(size_t terms) : n_(terms), a_(terms * terms), b_(terms) {}

  void add(const std::vector<double>& terms, double value, double weight) {
    for (size_t i = 0; i < n_; ++i) {
      if (terms[i] == 0) continue;
      b_[i] += weight * terms[i] * value;
      for (size_t j = 0; j < n_; ++j) a_[i * n_ + j] += weight * terms[i] * terms[j];
    }
  }

  std::vector<double> solve() const {
    std::vector<double> x(n_), scale(n_);
    for (size_t i = 0; i < n_; ++i) scale[i] = std::sqrt(a_[i * n_ + i]);
    for (int sweep = 0; sweep < kMostSweeps; ++sweep) {
      double change = 0;
      for (size_t i = 0; i < n_; ++i) {
        if (scale[i] == 0) continue;
        double gradient = b_[i];
        for (size_t j = 0; j < n_; ++j) gradient -= a_[i * n_ + j] * x[j];
        const double next = std::max(0.0, x[i] + gradient / a_[i * n_ + i]);
        change = std::max(change, std::abs(next - x[i]) * scale[i]);
        x[i] = next;
      }
      if (change < kEnough) break;
    }
    return x;
  }

 private:
  const size_t n_;
  std::vector<double> a_, b_;
};

TimeCurve curve_up_to(std::vector<double> knots, double most) {
  while (knots.size() > 1 && knots.back() >= most) knots.pop_back();
  TimeCurve out;
  out.slopes.resize(knots.size());
  out.knots = std::move(knots);
  return out;
}

}  // namespace

MeasuredTables tables_to_fit(const std::vector<TimedLoad>& seen) {
  double rows = 0, sampled = 0, pairs = 0, spans = 0, contexts = 0;
  for (const TimedLoad& o : seen) {
    double r = o.load.decode_rows, p = 0, s = 0;
    for (const StepLoad::Chunk& c : o.load.chunks) {
      r += c.rows * c.passed;
      p += c.pairs() * c.attended;
      s += (c.history + c.rows) * c.attended;
    }
    rows = std::max(rows, r);
    pairs = std::max(pairs, p);
    spans = std::max(spans, s);
    sampled = std::max(sampled, o.load.sampled);
    contexts = std::max(contexts, o.load.decode_context);
  }
  MeasuredTables t;
  t.rows = curve_up_to({0, 1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024}, rows);
  t.sampled = curve_up_to({0, 1, 2, 4, 8, 16, 32}, sampled);
  t.pairs = curve_up_to({0, 4096, 32'768, 262'144, 1'048'576}, pairs);
  t.spans = curve_up_to({0, 1024, 4096}, spans);
  t.contexts = curve_up_to({0, 256, 1024, 4096, 16'384}, contexts);
  return t;
}

void fit_times(const std::vector<TimedLoad>& seen, MeasuredTables& tables) {
  Sums sums(coefficients(tables).size());
  for (const TimedLoad& o : seen) {
    if (usable(o)) sums.add(measured_terms(tables, o.load), o.seconds, o.weight / (o.seconds * o.seconds));
  }
  set_coefficients(tables, sums.solve());
}

FitError error_of(const MeasuredTables& tables, const std::vector<TimedLoad>& seen) {
  const MeasuredTimes times(tables);
  std::vector<double> errors;
  for (const TimedLoad& o : seen) {
    if (usable(o)) errors.push_back(std::abs(times.executor_seconds(o.load) - o.seconds) / o.seconds);
  }
  return summary_of(std::move(errors));
}

double quantile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(std::lround(share * static_cast<double>(values.size() - 1)))];
}

FitError held_out_error(const std::vector<TimedLoad>& seen) {
  std::vector<TimedLoad> kept, held;
  for (size_t i = 0; i < seen.size(); ++i) (i % 5 == 4 ? held : kept).push_back(seen[i]);
  MeasuredTables tables = tables_to_fit(kept);
  fit_times(kept, tables);
  return error_of(tables, held);
}

TimeNoise noise_of(const MeasuredTables& tables, const std::vector<TimedLoad>& seen) {
  const MeasuredTimes times(tables);
  std::vector<double> logs;
  double took = 0, fitted = 0;
  for (const TimedLoad& o : seen) {
    const double expected = times.executor_seconds(o.load);
    if (!usable(o) || expected <= 0) continue;
    logs.push_back(std::log(o.seconds / expected));
    took += o.seconds;
    fitted += expected;
  }
  if (logs.empty()) return {};
  TimeNoise out;
  out.mean = took / fitted;
  // A normal distribution has 80 % within 1.2816 deviations.
  out.deviation = (quantile(logs, 0.9) - quantile(logs, 0.1)) / (2 * 1.2816);
  out.p99 = std::exp(quantile(logs, 0.99) - quantile(logs, 0.5));
  out.expected_p99 = std::exp(2.3263 * out.deviation);
  return out;
}

void scale_times(MeasuredTables& tables, double factor) {
  std::vector<double> values = coefficients(tables);
  for (double& v : values) v *= factor;
  set_coefficients(tables, values);
}

void fit_engine(const std::vector<EngineGap>& gaps, MeasuredTables& tables) {
  std::vector<double> all;
  for (const EngineGap& g : gaps) all.push_back(g.seconds);
  const double longest = kIdleFactor * quantile(std::move(all), 0.5);
  NormalEquations<2> sums;
  for (const EngineGap& g : gaps) {
    if (g.seconds <= longest) sums.add({1, g.sequences}, g.seconds, 1);
  }
  const auto fitted = sums.solve();
  tables.engine_step_s = fitted[0];
  tables.engine_sequence_s = fitted[1];
}

}  // namespace kvasir
