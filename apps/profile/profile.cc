#include "apps/profile/profile.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <utility>

#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "apps/profile/full_profile.h"
#include "apps/profile/measure.h"
#include "apps/profile/subject.h"
#include "base/units.h"
#include "runtime/cost_profile.h"
#include "runtime/device_limits.h"

namespace kvasir {
namespace {

constexpr double kSeconds = 25, kFullSeconds = 120;
constexpr double kShareOfLinks = 0.2;  // of the time, if there are any links
constexpr double kShareOfFullLinks = 0.1;
constexpr double kShareOfGrid = 0.55;  // of the rest; what is left is for the served load
// Of a CPU's memory, for steps.
constexpr uint64_t kStepMemory = 512 * kMiB, kFullStepMemory = 2 * kGiB;

void print_error(const char* of, const FitError& e) {
  fmt::print("{} fit error: mean {:.1f} %, 95 % {:.1f} %, worst {:.1f} % ({} medians)\n", of, 100 * e.mean,
             100 * e.p95, 100 * e.worst, e.observations);
}

void print_steps(const std::vector<ProfiledStep>& steps, const CostModel& c) {
  fmt::print("{:<34} {:>5} {:>12} {:>12} {:>8}\n", "step", "runs", "median ms", "fitted ms", "error");
  for (const ProfiledStep& s : steps) {
    const double fitted = c.step_seconds(s.work);
    fmt::print("{:<34} {:>5} {:>12.3f} {:>12.3f} {:>+7.1f}%\n", s.what, s.seconds.size(), 1e3 * s.median(),
               1e3 * fitted, 100 * (fitted / s.median() - 1));
  }
}

void print_costs(const CostModel& c) {
  fmt::print("\n{:<20} {:>14}\n", "coefficient", "microseconds");
  const auto line = [](const char* name, double seconds, const char* per) {
    fmt::print("{:<20} {:>14.6f}  {}\n", name, 1e6 * seconds, per);
  };
  line("step_s", c.step_s, "per step");
  line("prefill_row_s", c.prefill_row_s, "per row of prefill or recomputation");
  line("pair_s", c.pair_s, "per pair of such a row and a position");
  line("decode_row_s", c.decode_row_s, "per decode");
  line("context_s", c.context_s, "per token of context of a decode");
  line("projected_token_s", c.projected_token_s, "per token and layer projected from X");
  if (c.expert_share > 0) line("experts_s", c.experts_s, "to read all experts");
  if (c.above_knee_s > 0) {
    line("above_knee_s", c.above_knee_s,
         fmt::format("more, per row beyond the first {:.0f} of a step", c.knee_rows).c_str());
  }
  fmt::print("\nprefill of s tokens:        {:.3f} ms + {:.3f} us s + {:.6f} us s^2\n", 1e3 * c.step_s,
             1e6 * (c.prefill_row_s + c.pair_s / 2), 1e6 * c.pair_s / 2);
  fmt::print("decode:                     {:.3f} ms + {:.6f} us sum of contexts + {:.3f} us batch\n",
             1e3 * c.step_s, 1e6 * c.context_s, 1e6 * c.decode_row_s);
  fmt::print("recomputation of a token:   {:.3f} us at position 0, {:.3f} us at 1024\n",
             1e6 * (c.prefill_row_s + c.pair_s), 1e6 * (c.prefill_row_s + 1025 * c.pair_s));
}

std::string direction_name(Tier from, Tier to) {
  return fmt::format("{}->{}", name(from), name(to));
}

// Fits each link, and prints it. A link between device and disk stands also for host and disk: each piece of
// either goes through main memory, and the disk is the slower end.
void fit_links(const RuntimeOptions& options, const std::vector<ProfiledTransfer>& links,
               CostProfile& profile) {
  for (const ProfiledTransfer& t : links) {
    LinkCost cost;
    const FitError e = fit_link(t.seen, cost);
    profile.links[direction_name(t.from, t.to)] = e;
    profile.costs.links[index_of(t.from)][index_of(t.to)] = cost;
    const bool disk = t.from == Tier::kDisk || t.to == Tier::kDisk;
    if (t.from == Tier::kDisk) profile.costs.links[index_of(t.from)][index_of(Tier::kHost)] = cost;
    if (t.to == Tier::kDisk) profile.costs.links[index_of(Tier::kHost)][index_of(t.to)] = cost;
    const double speed = cost.seconds_per_byte > 0 ? 1e-9 / cost.seconds_per_byte : 0;
    fmt::print("{:<27} {:.2f} GB/s, {:.1f} us a transfer{} (fit error {:.1f} %, worst {:.1f} %)\n",
               direction_name(t.from, t.to) + ":", speed, 1e6 * cost.latency_s,
               !disk && options.link_gbytes_per_s > 0 ? ", emulated" : "", 100 * e.mean, 100 * e.worst);
  }
}

Status keep(const ProfileOptions& options, const CostFingerprint& here, const CostProfile& profile) {
  Status first;
  for (const std::string& path : {options.output, default_profile_path(here)}) {
    if (path.empty()) continue;
    const Status status = save_profile(profile, path);
    if (status.ok()) fmt::print("written to {}\n", path);
    if (first.ok()) first = status;
  }
  return first;
}

int64_t seconds_since_1970() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

Status measure(const ProfileOptions& options) {
  const RuntimeOptions& runtime = options.runtime;
  KV_ASSIGN_OR_RETURN(const Subject s, open_subject(runtime, kStepMemory));
  if (options.output.empty() && default_profile_path(s.here).empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "there is no place for the result: give --output, or set XDG_CACHE_HOME or HOME");
  }
  fmt::print("{}: {}\n\n", runtime.model_path, s.here.text);
  const MonotonicClock clock;
  const Nanos time = from_seconds(options.seconds > 0 ? options.seconds : kSeconds), begin = clock.now();
  const double links_share = s.has_slower_tier() ? kShareOfLinks : 0;
  const Nanos links_end = begin + static_cast<Nanos>(links_share * static_cast<double>(time));
  KV_ASSIGN_OR_RETURN(const std::vector<ProfiledTransfer> links, measure_links(s, clock, links_end));
  KV_ASSIGN_OR_RETURN(const std::vector<ProfiledStep> steps, measure_steps(s, clock, begin + time));
  CostProfile profile;
  profile.costs.expert_share = s.file->spec().expert_share();
  profile.fingerprint = s.here.text;
  profile.measured_at = seconds_since_1970();
  std::vector<StepObservation> medians;
  for (const ProfiledStep& step : steps) medians.push_back({step.work, step.median()});
  profile.steps = fit_steps(medians, profile.costs);
  print_steps(steps, profile.costs);
  print_costs(profile.costs);
  fit_links(runtime, links, profile);
  print_error("step", profile.steps);
  return keep(options, s.here, profile);
}

Status measure_fully(const ProfileOptions& options) {
  const RuntimeOptions& runtime = options.runtime;
  if (options.truth.empty()) {
    return error(ErrorCode::kInvalidArgument, "--full needs --truth FILE: where should the result go?");
  }
  if (is_on_gpu(runtime)) {
    return error(
        ErrorCode::kUnsupported,
        "--full: the simulator learns the times of a CPU; leave it out, and costs on the GPU are measured "
        "for the policies of serve, or give --device cpu");
  }
  KV_ASSIGN_OR_RETURN(const Subject s, open_subject(runtime, kFullStepMemory));
  fmt::print("{}: {}\n\n", runtime.model_path, s.here.text);
  HostDevice device;
  device.model = model_name_of(runtime.model_path);
  device.fingerprint = s.here.text;
  device.measured_at = seconds_since_1970();
  device.threads = compute_threads(runtime);
  device.geometry = s.layout;
  device.geometry.x_bytes_per_token_layer = s.engine.cache.geometry.x_bytes_per_token_layer;
  device.max_model_len = static_cast<uint32_t>(s.file->spec().context_length);
  device.vocab_size = static_cast<int32_t>(s.file->spec().vocab_size);
  const MonotonicClock clock;
  const double seconds = options.seconds > 0 ? options.seconds : kFullSeconds;
  const double links_s = s.has_slower_tier() ? kShareOfFullLinks * seconds : 0;
  const Nanos begin = clock.now();
  KV_ASSIGN_OR_RETURN(const std::vector<ProfiledTransfer> transfers,
                      measure_links(s, clock, begin + from_seconds(links_s)));
  const double steps_s = kShareOfGrid * (seconds - links_s);
  KV_ASSIGN_OR_RETURN(const std::vector<ProfiledStep> grid,
                      measure_grid(s, clock, begin + from_seconds(links_s + steps_s)));
  KV_ASSIGN_OR_RETURN(const ServedLoad served, measure_served(s, clock, seconds - links_s - steps_s));
  fit_host_device(grid, served, device);
  CostProfile links;
  fit_links(runtime, transfers, links);
  device.links = links.costs.links;
  KV_RETURN_IF_ERROR(save_host_device(device, options.truth));
  fmt::print("written to {}\n", options.truth);
  return {};
}

}  // namespace

void add_profile_flags(CLI::App& app, ProfileOptions& options) {
  app.add_option("--seconds", options.seconds,
                 "Seconds to measure for, after loading the model (default: 25, or 120 with --full)")
      ->check(between(0.5, 3600.0));
  app.add_option("--output", options.output,
                 "A second file for the result (default: only the cache folder, where serve looks)")
      ->type_name(kFileType);
  CLI::Option* truth =
      app.add_option("--truth", options.truth, "File for the result of --full")->type_name(kFileType);
  app.add_flag("--full", options.full,
               "Measure this machine for `kvasir simulate --device FILE` instead of for the policies of "
               "serve, whose beliefs stay as they are")
      ->needs(truth);
  truth->needs("--full");
  add_runtime_flags(app, options.runtime);
}

int run_profile(const ProfileOptions& options) {
  const Status status = options.full ? measure_fully(options) : measure(options);
  return status.ok() ? 0 : report_failure("profile", status.message());
}

}  // namespace kvasir
