#include "apps/profile.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <utility>

#include "apps/cost_profile.h"
#include "apps/flags.h"
#include "apps/profile_machine.h"
#include "apps/runtime_parts.h"

namespace kvasir {
namespace {

constexpr double kShareOfLinks = 0.2;  // of the time, where there are any

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

// Fits each link, and prints it. What was measured of the device's memory holds for the host's: both are main
// memory here, and the disk is the slower end.
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

Status measure(const ProfileOptions& options) {
  const RuntimeOptions& runtime = options.runtime;
  KV_RETURN_IF_ERROR(check_limits(runtime));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFile> file, ModelFile::open(runtime.model_path));
  Decoder::Options decoder;
  KV_ASSIGN_OR_RETURN(decoder.kv_type, kv_type_from(runtime.kv_cache_dtype));
  KV_ASSIGN_OR_RETURN(decoder.activation, activation_from(runtime.activation_type));
  KV_ASSIGN_OR_RETURN(const CacheGeometry layout, make_geometry(runtime, file->config(), decoder.kv_type));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<PackedModel> model,
                      PackedModel::make(*file, static_cast<uint32_t>(file->config().context_length)));
  file->release_pages();
  const CostFingerprint here =
      cost_fingerprint(runtime, *model, numerics_of(*model, decoder.activation, decoder.kv_type));
  if (options.output.empty() && default_profile_path(here).empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "there is no place for the result: give --output, or set XDG_CACHE_HOME or HOME");
  }
  fmt::print("{}: {}\n\n", runtime.model_path, here.text);
  const MonotonicClock clock;
  const Nanos time = from_seconds(options.seconds), begin = clock.now();
  const bool linked = runtime.kv_offloading_bytes + runtime.kv_offloading_disk_bytes > 0;
  const Nanos links_end = begin + static_cast<Nanos>(linked ? kShareOfLinks * static_cast<double>(time) : 0);
  KV_ASSIGN_OR_RETURN(const std::vector<ProfiledTransfer> links,
                      measure_links(runtime, layout, clock, links_end));
  KV_ASSIGN_OR_RETURN(const std::vector<ProfiledStep> steps,
                      measure_steps(runtime, *model, layout, decoder, clock, begin + time));
  CostProfile profile;
  profile.fingerprint = here.text;
  profile.measured_at =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch())
          .count();
  std::vector<StepObservation> medians;
  for (const ProfiledStep& s : steps) medians.push_back({s.work, s.median()});
  profile.steps = fit_steps(medians, profile.costs);
  print_steps(steps, profile.costs);
  print_costs(profile.costs);
  fit_links(runtime, links, profile);
  print_error("step", profile.steps);
  return keep(options, here, profile);
}

}  // namespace

void add_profile_flags(CLI::App& app, ProfileOptions& options) {
  add_runtime_flags(app, options.runtime);
  app.add_option("--seconds", options.seconds, "Seconds to measure for, beside loading the model")
      ->capture_default_str()
      ->check(CLI::Range(0.5, 3600.0));
  app.add_option("--output", options.output,
                 "File that gets the result too (default: only the cache folder, where serve looks)");
}

int run_profile(const ProfileOptions& options) {
  const Status status = measure(options);
  return status.ok() ? 0 : report_failure("profile", status.message());
}

}  // namespace kvasir
