#include "apps/simulate/outcome.h"

#include <algorithm>
#include <utility>

#include "apps/bench/attainment.h"
#include "apps/bench/stats.h"
#include "base/units.h"

namespace kvasir {
namespace {

double share(double part, double whole) {
  return whole > 0 ? part / whole : 0;
}

uint64_t moved(const LinkStats& link, Tier from, Tier to) {
  return link.bytes[index_of(from)][index_of(to)];
}

// Over all requests: one that was never preempted counts as 0.
Distribution preempted_ms(const SimulationOutcome& o) {
  std::vector<double> values(std::max(o.load.records.size(), o.preempted_s.size()), 0);
  std::transform(o.preempted_s.begin(), o.preempted_s.end(), values.begin(),
                 [](double seconds) { return 1e3 * seconds; });
  return describe(std::move(values), {99});
}

// From sending to the last token, divided by the tokens, in the mean of the completed requests: what the
// literature calls the normalised latency.
double normalised_latency_ms(const SimulationOutcome& o) {
  double sum = 0, count = 0;
  for (const RequestRecord& r : o.load.records) {
    if (r.state != RequestRecord::State::kCompleted || r.output_tokens == 0) continue;
    sum += e2el_ms(r) / static_cast<double>(r.output_tokens);
    ++count;
  }
  return share(sum, count);
}

void add_peer_figures(const SimulationOutcome& o, std::vector<EngineFigure>& out) {
  const SimulationOutcome::Peers& p = *o.peers;
  const PeerSums& s = p.sums;
  const double gib = static_cast<double>(p.cell_bytes) / static_cast<double>(kGiB);
  const auto bytes = [](uint64_t count) { return static_cast<double>(count) / static_cast<double>(kGiB); };
  const double device_s = o.instances * to_seconds(o.load.duration);
  out.push_back({"borrowed_gib", "Borrowed at the most (GiB):", gib * s.most_borrowed});
  out.push_back({"granted_gib", "Borrowed in all (GiB):", gib * static_cast<double>(s.granted)});
  if (s.computed > 0) {
    out.push_back(
        {"computed_gib", "Borrowed with computed KV (GiB):", gib * static_cast<double>(s.computed)});
  }
  out.push_back({"recalled_gib", "Called back (GiB):", gib * static_cast<double>(s.recalled)});
  out.push_back({"lost_gib", "Lost at peers (GiB):", gib * static_cast<double>(s.lost)});
  out.push_back({"copied_gib", "K and V copied between peers (GiB):", bytes(p.copied_bytes)});
  out.push_back({"shipped_gib", "Queries and answers (GiB):", bytes(s.shipped_bytes)});
  out.push_back({"fetched_gib", "Fetched instead (GiB):", bytes(s.fetched_bytes)});
  out.push_back(
      {"answers_waited", "Time that steps wait for answers (%):", 100 * share(s.waited_s, device_s)});
  out.push_back({"served", "Device time for peers (%):", 100 * share(s.served_s, device_s)});
  out.push_back({"settlements", "Cycles of debts settled:", static_cast<double>(p.settlements), true});
  out.push_back({"messages", "", static_cast<double>(p.messages), true});
}

std::vector<EngineFigure> engine_figures(const SimulationOutcome& o) {
  const EngineSums& s = o.sums;
  const auto plans = static_cast<double>(s.plans);
  const Distribution preempted = preempted_ms(o);
  std::vector<EngineFigure> out = {
      {"mean_queue_ms", "Mean time in the queue (ms):", 1e3 * o.mean_queue_s},
      {"mean_prefill_ms", "Mean time from there to the first token (ms):", 1e3 * o.mean_prefill_s},
      {"mean_preempted_ms", "Mean time preempted (ms):", preempted.mean},
      {"p99_preempted_ms", "P99 time preempted (ms):", preempted.percentiles.front()},
      {"mean_normalised_latency_ms", "Mean E2EL / output token (ms):", normalised_latency_ms(o)},
      {"time_in_steps",
       "Time in steps (%):", 100 * share(o.busy_s, o.instances * to_seconds(o.load.duration))},
      {"steps", "Steps:", static_cast<double>(o.steps), true},
      {"mean_step_tokens", "Mean tokens of a step:", share(static_cast<double>(s.rows), plans)},
      {"mean_decode_batch", "Mean decodes of a step:", share(static_cast<double>(s.decodes), plans)},
      {"mean_running_requests", "Mean running requests:", share(s.running_seconds, s.seconds)},
      {"time_at_batch_limit", "Time at the batch limit (%):", 100 * share(s.seconds_at_limit, s.seconds)},
      {"mean_kv_allocated", "Mean KV memory allocated (%):", 100 * share(s.allocated, plans)},
      {"mean_kv_promised", "Of it promised, not used (%):", 100 * share(s.promised, plans)},
      {"preemptions_swapped", "Preemptions by swapping:", static_cast<double>(o.preemptions_swapped), true},
      {"computed_again_tokens", "Tokens recomputed:", static_cast<double>(o.tokens_computed_again), true},
      {"projected_tokens", "", static_cast<double>(o.tokens_projected), true},
      {"deferred_rows", "", static_cast<double>(o.rows_deferred), true},
  };
  if (o.cost_error) out.push_back({"cost_error_ratio", "", *o.cost_error});
  if (o.peers) add_peer_figures(o, out);
  if (!o.has_link) return out;
  constexpr double kGib = static_cast<double>(kGiB);
  const auto offloaded = static_cast<double>(moved(o.link, Tier::kDevice, Tier::kHost) +
                                             moved(o.link, Tier::kDevice, Tier::kDisk));
  const auto loaded = static_cast<double>(moved(o.link, Tier::kHost, Tier::kDevice) +
                                          moved(o.link, Tier::kDisk, Tier::kDevice));
  out.push_back({"offloaded_gib", "Offloaded (GiB):", offloaded / kGib});
  out.push_back({"loaded_gib", "Loaded back (GiB):", loaded / kGib});
  // Of both directions together, each of which can be busy all the time.
  out.push_back({"link_busy", "Link busy (% of both ways):",
                 50 * share(o.link.busy_s, o.instances * to_seconds(o.load.duration))});
  out.push_back({"stalled_s", "Steps waited for the link (s):", o.seconds_stalled});
  return out;
}

// What holds from one sample to the next, averaged over the slices of the run.
std::vector<double> averages(const std::vector<EngineSample>& samples, Nanos duration,
                             const std::function<double(const EngineSample&)>& value) {
  std::vector<double> out(kCurveSlices, 0);
  const double width = static_cast<double>(duration) / static_cast<double>(kCurveSlices);
  for (size_t i = 0; i < samples.size(); ++i) {
    const double from = static_cast<double>(samples[i].at) / width;
    const Nanos next = i + 1 < samples.size() ? samples[i + 1].at : duration;
    const double to = static_cast<double>(next) / width;
    const double v = value(samples[i]);
    for (auto slice = static_cast<size_t>(from); slice < kCurveSlices && static_cast<double>(slice) < to;
         ++slice) {
      const double low = std::max(from, static_cast<double>(slice));
      out[slice] += v * (std::min(to, static_cast<double>(slice + 1)) - low);
    }
  }
  return out;
}

std::vector<EngineLine> engine_lines(const SimulationOutcome& o) {
  std::vector<EngineLine> out;
  if (o.load.duration <= 0) return out;
  const auto add = [&](const char* chart, const std::string& name, auto value, bool always = true) {
    std::vector<double> values = averages(o.samples, o.load.duration, value);
    const bool any = std::any_of(values.begin(), values.end(), [](double v) { return v > 0; });
    if (any || always) out.push_back({chart, name, std::move(values)});
  };
  add("Requests in the engine", "running", [](const EngineSample& s) { return double(s.running); });
  add("Requests in the engine", "waiting", [](const EngineSample& s) { return double(s.waiting); });
  add("Tokens of a step", "all", [](const EngineSample& s) { return double(s.rows); });
  add("Tokens of a step", "decodes", [](const EngineSample& s) { return double(s.decodes); });
  for (Form form : kAllForms) {
    for (Tier tier : kAllTiers) {
      add(
          "Memory held by requests, GiB", fmt::format("{} on the {}", name(form), name(tier)),
          [=](const EngineSample& s) {
            return static_cast<double>(s.bytes[index_of(form)][index_of(tier)]) / static_cast<double>(kGiB);
          },
          form == Form::kKv && tier == Tier::kDevice);
    }
  }
  if (o.has_link) {
    add("Queued on the link, MiB", "bytes", [](const EngineSample& s) {
      return static_cast<double>(s.link_queue_bytes) / static_cast<double>(kMiB);
    });
  }
  return out;
}

}  // namespace

RunResult run_result(const RunKey& key, SimulationOutcome outcome, const BenchConfig& config) {
  RunResult out;
  out.key = key;
  out.summary = summarise(outcome.load, config);
  out.summary.preemptions = static_cast<double>(outcome.preemptions);
  out.summary.engine = engine_figures(outcome);
  for (size_t i = 0; i < kCauses; ++i) {
    if (outcome.decisions[i] == 0) continue;
    out.summary.decisions.emplace_back(name(static_cast<Cause>(i)), outcome.decisions[i]);
  }
  out.curves = curves_of(outcome.load);
  out.curves.engine = engine_lines(outcome);
  out.outcome = std::move(outcome.load);
  if (!config.options.save_detailed) out.outcome.records.clear();
  return out;
}

}  // namespace kvasir
