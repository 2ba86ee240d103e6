#include "apps/profile/full_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

void print_fit_error(const char* of, const FitError& e) {
  fmt::print("{:<40} mean {:.1f} %, 95 % within {:.1f} %, worst {:.1f} % ({})\n", of, 100 * e.mean,
             100 * e.p95, 100 * e.worst, e.observations);
}

void print_curve(const char* what, const TimeCurve& c) {
  fmt::print("{:<10}", what);
  for (size_t i = 0; i < c.knots.size(); ++i) fmt::print(" {:g}: {:.4g}", c.knots[i], 1e6 * c.slopes[i]);
  fmt::print("\n");
}

void print_device(const HostDevice& d) {
  const MeasuredTables& t = d.tables;
  fmt::print("\nmicroseconds: step {:.1f}, chunk {:.1f}, decode {:.1f}, token and layer from X {:.3f}\n",
             1e6 * t.step_s, 1e6 * t.chunk_s, 1e6 * t.decode_s, 1e6 * t.projected_s);
  fmt::print("microseconds for one more, from so many on:\n");
  print_curve("rows", t.rows);
  print_curve("sampled", t.sampled);
  print_curve("pairs", t.pairs);
  print_curve("spans", t.spans);
  print_curve("contexts", t.contexts);
  fmt::print("engine: {:.1f} us a step, {:.2f} us a sequence; a request beside its steps: {:.2f} ms\n",
             1e6 * t.engine_step_s, 1e6 * t.engine_sequence_s, 1e3 * d.request_s);
  print_fit_error("error, medians of made steps:", d.fit);
  print_fit_error("error, a fifth of these held out:", d.held_out);
  print_fit_error("error, single steps of an engine:", d.engine_steps);
  fmt::print(
      "steps of the engine took {:.3f} times what made ones say; noise {:.3f}, its 99th percentile "
      "{:.2f} times the median (a lognormal has {:.2f})\n",
      d.tail.mean, d.noise, d.tail.p99, d.tail.expected_p99);
}

}  // namespace

void fit_host_device(const std::vector<ProfiledStep>& grid, const ServedLoad& served, HostDevice& device) {
  std::vector<TimedLoad> medians;
  for (const ProfiledStep& s : grid) medians.push_back({s.load, s.median(), 1});
  device.held_out = held_out_error(medians);
  // The single steps and those of the served load have equal weights.
  std::vector<TimedLoad> all = medians;
  for (TimedLoad o : served.steps) {
    o.weight = static_cast<double>(medians.size()) / static_cast<double>(served.steps.size());
    all.push_back(std::move(o));
  }
  MeasuredTables tables = tables_to_fit(all);
  fit_times(all, tables);
  device.fit = error_of(tables, medians);
  device.tail = noise_of(tables, served.steps);
  device.noise = device.tail.deviation;
  // A factor of mean 1 is drawn for each simulated step.
  if (!served.steps.empty()) scale_times(tables, device.tail.mean);
  device.engine_steps = error_of(tables, served.steps);
  fit_engine(served.gaps, tables);
  // Without the engine's time, which a simulated request's first step already includes.
  device.request_s =
      std::max(0.0, quantile(served.request_s, 0.5) - tables.engine_step_s - tables.engine_sequence_s);
  device.tables = std::move(tables);
  const MeasuredTimes times(device.tables);
  fmt::print("{:<40} {:>5} {:>10} {:>9} {:>10} {:>8}\n", "step", "runs", "median ms", "80 % in", "fitted ms",
             "error");
  for (const ProfiledStep& s : grid) {
    const double fitted = times.executor_seconds(s.load), median = s.median();
    const double spread = quantile(s.seconds, 0.9) - quantile(s.seconds, 0.1);
    fmt::print("{:<40} {:>5} {:>10.3f} {:>8.1f}% {:>10.3f} {:>+7.1f}%\n", s.what, s.seconds.size(),
               1e3 * median, 100 * spread / median, 1e3 * fitted, 100 * (fitted / median - 1));
  }
  print_device(device);
}

}  // namespace kvasir
