#include "apps/simulate/goodput_bound.h"

#include <algorithm>
#include <functional>
#include <limits>

#include "apps/simulate/most_in_time.h"

namespace kvasir {
namespace {

constexpr size_t kSlots = 256;
constexpr double kInfiniteTime = std::numeric_limits<double>::infinity();

double seconds_of_millis(uint32_t millis) {
  return millis / 1e3;
}

double first_token_by(const SimulatedRequest& r) {
  return r.slo.ttft_ms > 0 ? to_seconds(r.arrival) + seconds_of_millis(r.slo.ttft_ms) : kInfiniteTime;
}

double last_token_by(const SimulatedRequest& r) {
  double by = kInfiniteTime;
  if (r.slo.e2el_ms > 0) by = to_seconds(r.arrival) + seconds_of_millis(r.slo.e2el_ms);
  double gap = kInfiniteTime;
  if (r.slo.tbt_ms > 0) gap = std::min(gap, seconds_of_millis(r.slo.tbt_ms));
  if (r.slo.tpot_ms > 0) gap = std::min(gap, seconds_of_millis(r.slo.tpot_ms));
  if (r.output_tokens <= 1) return std::min(by, first_token_by(r));
  return std::min(by, first_token_by(r) + (r.output_tokens - 1) * gap);
}

// Whether it would meet its bounds if it were alone, in steps that take no longer than these.
bool can_be_in_time(const SimulatedRequest& r, const CostModel& c) {
  const double first_s = c.step_s + c.prefill_row_s * r.prompt_tokens;
  const double steps = std::max(0.0, r.output_tokens - 1.0);
  const auto steps_s = [&](double n) {
    return n * (c.step_s + c.decode_row_s) + c.context_s * n * (r.prompt_tokens + (n + 1) / 2);
  };
  const auto within = [](double s, uint32_t millis) {
    return millis == 0 || s <= seconds_of_millis(millis) * (1 + 1e-9);
  };
  if (!within(first_s, r.slo.ttft_ms) || !within(first_s + steps_s(steps), r.slo.e2el_ms)) return false;
  if (steps == 0) return true;
  return within(steps_s(steps) - steps_s(steps - 1), r.slo.tbt_ms) &&
         within(steps_s(steps) / steps, r.slo.tpot_ms);
}

}  // namespace

CostModel least_costs(const StepTimes& times, const CostModel& believed, double tokens) {
  struct Point {
    double decodes, context;
  };
  std::vector<Point> grid = {{0, 0}};
  for (double decodes : {1.0, 4.0, 16.0, 64.0, 128.0, 256.0}) {
    for (double context : {64.0, 256.0, 1024.0, 4096.0}) {
      if (decodes * context <= tokens) grid.push_back({decodes, decodes * context});
    }
  }
  const auto seconds = [&](const Point& at, double rows) {
    StepLoad load;
    load.decode_rows = load.sampled = at.decodes;
    load.decode_context = at.context;
    if (rows > 0) load.chunks.push_back({.rows = rows});
    return times.seconds(load);
  };
  double ratio = kInfiniteTime, row_s = kInfiniteTime;
  for (const Point& at : grid) {
    if (at.decodes > 0) {
      ratio = std::min(ratio, seconds(at, 0) / believed.decode_seconds(at.decodes, at.context));
    }
  }
  CostModel out;
  out.step_s = ratio * believed.weights_s(1);  // no step that decodes reads fewer experts than one row does
  out.decode_row_s = ratio * believed.decode_row_s;
  out.context_s = ratio * believed.context_s;
  for (const Point& at : grid) {
    const double least_s = out.step_s + out.decode_row_s * at.decodes + out.context_s * at.context;
    for (double rows : {16.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0}) {
      row_s = std::min(row_s, (seconds(at, rows) - least_s) / rows);
    }
  }
  out.prefill_row_s = std::max(row_s, 0.0);
  return out;
}

double attainable_share(const std::vector<SimulatedRequest>& requests, const BoundedDevice& d) {
  if (requests.empty()) return 1;
  const CostModel& c = d.costs;
  const double full_s = c.decode_seconds(d.max_num_seqs, d.tokens);
  const double memory = c.step_s / std::max(1.0, d.tokens + d.staged_per_s * full_s);
  const double slot = c.step_s / std::max(1.0, d.max_num_seqs);
  const auto prompt_s = [&](const SimulatedRequest& r) { return c.prefill_row_s * r.prompt_tokens; };
  const auto decode_s = [&](const SimulatedRequest& r, double per_token, double per_row) {
    const double p = r.prompt_tokens, steps = std::max(0.0, r.output_tokens - 1.0);
    return (per_token + c.context_s) * steps * (p + (steps + 1) / 2) + (per_row + c.decode_row_s) * steps;
  };
  const auto by_memory = [&](const SimulatedRequest& r) { return prompt_s(r) + decode_s(r, memory, 0); };
  const auto by_slots = [&](const SimulatedRequest& r) { return prompt_s(r) + decode_s(r, 0, slot); };
  const auto by_gap = [&](const SimulatedRequest& r) {
    const double s = c.step_s, gap = seconds_of_millis(r.slo.tbt_ms);
    if (gap == 0 || r.output_tokens <= 1) return prompt_s(r) + decode_s(r, 0, 0);
    return gap <= s ? kInfiniteTime : prompt_s(r) + decode_s(r, 0, 0) * gap / (gap - s);
  };
  const auto most = [&](const std::function<double(const SimulatedRequest&)>& cost,
                        double (*by)(const SimulatedRequest&)) {
    std::vector<WindowJob> jobs;
    jobs.reserve(requests.size());
    for (const SimulatedRequest& r : requests) {
      if (!can_be_in_time(r, c)) continue;
      jobs.push_back({to_seconds(r.arrival), by(r), cost(r)});
    }
    return most_in_time(std::move(jobs), kSlots, d.instances) / static_cast<double>(requests.size());
  };
  return std::min({most(by_memory, last_token_by), most(by_slots, last_token_by), most(by_gap, last_token_by),
                   most(prompt_s, first_token_by)});
}

}  // namespace kvasir
