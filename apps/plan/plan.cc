#include "apps/plan/plan.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <utility>

#include "apps/bench/result_file.h"
#include "apps/plan/page.h"
#include "apps/plan/plan_json.h"
#include "apps/plan/prices.h"
#include "apps/plan/what_if.h"
#include "apps/plan/words.h"

namespace kvasir {
namespace {

constexpr double kLeastOfCapacity = 0.02, kMostOfCapacity = 8, kStartOfCapacity = 0.8;
// Another device is asked only the policies that were near the best of the first one.
constexpr size_t kPoliciesElsewhere = 3;
constexpr double kShareElsewhere = 0.35;

// Says what is being done: on a terminal in one line that is drawn over, else in lines of their own.
class Speaker {
 public:
  Speaker(std::ostream& err, bool shown, bool terminal) : err_(err), shown_(shown), terminal_(terminal) {}
  ~Speaker() { clear(); }
  Speaker(const Speaker&) = delete;
  Speaker& operator=(const Speaker&) = delete;

  void say(const std::string& what) {
    if (!shown_) return;
    err_ << (terminal_ ? "\r\x1b[K" : "") << "planning: " << what << (terminal_ ? "" : "\n") << std::flush;
  }
  void clear() {
    if (shown_ && terminal_) err_ << "\r\x1b[K" << std::flush;
  }

 private:
  std::ostream& err_;
  const bool shown_, terminal_;
};

Status check(const PlanOptions& options) {
  const BenchOptions& b = options.simulate.bench;
  if (b.goodput.empty() && b.slo.empty() && b.slo_classes.empty() && b.relative_slo.empty()) {
    return error(ErrorCode::kInvalidArgument,
                 "--slo: say which bounds requests have to meet, as --slo ttft:1000 tbt:200, or --goodput "
                 "ttft:1000 p99_tbt:200, or --slo-class");
  }
  if (!b.relative_slo.empty() && b.slo_reference.empty()) {
    return error(ErrorCode::kInvalidArgument, "--relative-slo: give --slo-reference, too");
  }
  return {};
}

// Of the system that the options say, as one.
uint32_t cards_of(const SimulateOptions& options) {
  return options.tensor_parallel * options.pipeline_parallel * std::max(1u, options.instances);
}

// The load that has to be carried; 0: none was given.
Result<double> load_of(const SimulateOptions& options, std::optional<double> capacity) {
  if (options.bench.request_rate.empty()) return 0.0;
  KV_ASSIGN_OR_RETURN(const auto specs, parse_rates("--request-rate", options.bench.request_rate));
  KV_ASSIGN_OR_RETURN(const auto rates, resolve_rates("--request-rate", specs, capacity));
  if (rates.size() != 1 || !std::isfinite(rates.front())) {
    return error(ErrorCode::kInvalidArgument,
                 "--request-rate {}: give the one load that has to be carried, in requests per second",
                 options.bench.request_rate);
  }
  return rates.front();
}

SearchSettings search_settings(const PlanOptions& options, double capacity) {
  SearchSettings out;
  out.percent = options.percent;
  out.start = kStartOfCapacity * capacity;
  out.least = kLeastOfCapacity * capacity;
  out.most = kMostOfCapacity * capacity;
  const BenchOptions& b = options.simulate.bench;
  out.seeds.clear();
  for (int64_t i = 0; i < b.seeds; ++i) out.seeds.push_back(b.seed + static_cast<uint64_t>(i));
  return out;
}

// One device, with the table as it comes.
Status find_policies(const PlanOptions& options, Trials& trials, const SearchSettings& settings,
                     Speaker& speaker, std::ostream& out, PlanAnswer& answer) {
  out << policy_header(trials.policies());
  RateSearch search(
      settings, trials.policies().size(), [&](const std::vector<TrialKey>& keys) { return trials.run(keys); },
      [&](const std::string& what) { speaker.say(what); },
      [&](const FoundRate& found) {
        speaker.clear();
        out << policy_row(trials.policies(), found) << std::flush;
      });
  KV_ASSIGN_OR_RETURN(const std::vector<FoundRate> found, search.search());
  for (const FoundRate& one : found) {
    PlannedPolicy policy{trials.policies()[one.policy], one, {}};
    if (one.end == FoundRate::End::kMet) policy.usage = trials.usage(one.policy, one.low);
    answer.policies.push_back(std::move(policy));
  }
  answer.seeds = settings.seeds.size();
  answer.percent = options.percent;
  if (const PlannedPolicy* best = answer.best()) {
    std::tie(answer.run_requests, answer.run_seconds) = trials.length_at(best->found.at());
  }
  answer.runs = search.runs();
  answer.simulated = trials.simulated();
  return {};
}

PlannedDevice plan_device(const PlanOptions& options, const std::vector<std::string>& policies,
                          const std::string& device) {
  PlannedDevice out;
  out.name = device;
  SimulateOptions o = options.simulate;
  o.device = device;
  o.policies = policies;
  o.runtime.kv_cache_memory_bytes = 0;  // the other one's
  out.cards = cards_of(o);
  const auto search = [&]() -> Status {
    const double effort = kShareElsewhere * options.effort;
    KV_ASSIGN_OR_RETURN(const std::unique_ptr<Trials> trials, Trials::make(o, effort));
    // As many seeds as the first device has: a device's number is counted by the lower end of the interval.
    const SearchSettings settings = search_settings(options, trials->capacity());
    RateSearch rates(settings, policies.size(),
                     [&](const std::vector<TrialKey>& keys) { return trials->run(keys); });
    KV_ASSIGN_OR_RETURN(const std::vector<FoundRate> found, rates.search());
    out.rate = found.front().at();
    out.half_width = found.front().half_width;
    out.policy = policies[found.front().policy];
    if (out.rate <= 0) out.failed = "no rate is met";
    return {};
  };
  if (const Status status = search(); !status.ok()) out.failed = status.message();
  return out;
}

// The first device and the others, of the flags and of the prices.
void plan_devices(const PlanOptions& options, const Prices& prices, Speaker& speaker, PlanAnswer& answer) {
  std::vector<std::string> names = {options.simulate.device};
  for (const std::string& name : options.devices) names.push_back(name);
  for (const auto& [name, price] : prices) names.push_back(name);
  // Where no policy meets a rate here, which are near the best is not known.
  std::vector<std::string> policies;
  for (const PlannedPolicy& p : answer.policies) {
    if (answer.best() && policies.size() < kPoliciesElsewhere) policies.push_back(p.name);
  }
  if (policies.empty()) policies = options.simulate.policies;
  if (names.size() == 1 && answer.load == 0) return;
  for (const std::string& name : names) {
    const auto same = [&](const PlannedDevice& d) { return d.name == name; };
    if (std::any_of(answer.devices.begin(), answer.devices.end(), same)) continue;
    PlannedDevice one;
    if (const PlannedPolicy* best = answer.best(); name == options.simulate.device) {
      one.name = name;
      one.cards = answer.cards;
      if (best) {
        one.policy = best->name;
        one.rate = best->found.at();
        one.half_width = best->found.half_width;
      } else {
        one.failed = answer.failed.empty() ? "no rate is met" : answer.failed;
      }
    } else {
      speaker.say(fmt::format("{}: {} policies", name, policies.size()));
      one = plan_device(options, policies, name);
    }
    for (const auto& [priced, price] : prices) {
      if (priced == name) one.price = price;
    }
    answer.devices.push_back(std::move(one));
  }
}

void describe(const PlanOptions& options, const Trials& trials, PlanAnswer& answer) {
  const Study& study = trials.study();
  answer.model = study.system().model;
  answer.device = study.system().device;
  answer.workload = study.config().options.dataset_name;
  answer.bounds = bounds_in_words(study.config());
  answer.capacity = trials.capacity();
  answer.residence_s = trials.residence_s();
  answer.longest_bound_s = trials.longest_bound_s();
  answer.cards = cards_of(options.simulate);
  answer.settings = {
      {"model", answer.model},
      {"device", answer.device},
      {"memory", study.system().memory},
      {"workload", answer.workload},
      {"arrival burstiness (1: Poisson)", fmt::format("{:g}", arrival_shape(options.simulate.bench))},
      {"length predictor", options.simulate.length_predictor},
      {"engine overhead", options.simulate.engine_overhead},
      {"effort", fmt::format("{:g}", options.effort)}};
}

Status write_files(const PlanOptions& options, const PlanAnswer& answer, std::ostream& out) {
  if (!options.json.empty()) {
    KV_RETURN_IF_ERROR(write_text(options.json, plan_json(answer), "--json"));
    out << fmt::format("Answer written to {}\n", options.json);
  }
  if (!options.html.empty()) {
    KV_RETURN_IF_ERROR(write_text(options.html, plan_page(answer), "--html"));
    out << fmt::format("Report written to {}\n", options.html);
  }
  if (!options.svg.empty()) {
    KV_RETURN_IF_ERROR(write_charts(options.svg, plan_charts(answer)));
    out << fmt::format("Charts written to {}\n", options.svg);
  }
  return {};
}

// The device that was asked for holds no request of this model: the others are asked alone.
Result<PlanAnswer> plan_elsewhere(const PlanOptions& options, const Prices& prices, const Status& why,
                                  Speaker& speaker, PlanAnswer answer, std::ostream& out) {
  const BenchOptions& b = options.simulate.bench;
  KV_ASSIGN_OR_RETURN(const BenchConfig config, check_load_options(b));
  const Result<double> load = load_of(options.simulate, std::nullopt);
  if (!load.ok()) return why;  // a multiple of a capacity that is not there
  answer.load = *load;
  answer.model = options.simulate.model;
  answer.device = options.simulate.device;
  answer.workload = b.dataset_name;
  answer.bounds = bounds_in_words(config);
  answer.percent = options.percent;
  answer.cards = cards_of(options.simulate);
  answer.failed = why.message();
  plan_devices(options, prices, speaker, answer);
  speaker.clear();
  out << answer_text(answer) << std::flush;
  KV_RETURN_IF_ERROR(write_files(options, answer, out));
  return answer;
}

}  // namespace

int64_t PlannedDevice::systems(double load) const {
  const double each = sure_rate();
  return each > 0 && load > 0 ? static_cast<int64_t>(std::ceil(load / each - 1e-9)) : 0;
}

const PlannedPolicy* PlanAnswer::best() const {
  return policies.empty() || !policies.front().found.best ? nullptr : &policies.front();
}

Result<PlanAnswer> plan(const PlanOptions& given, std::ostream& out, std::ostream& err, bool terminal) {
  KV_RETURN_IF_ERROR(check(given));
  Prices prices;
  if (!given.prices.empty()) {
    KV_ASSIGN_OR_RETURN(prices, read_prices(given.prices));
  }
  PlanOptions options = given;
  if (int64_t& seeds = options.simulate.bench.seeds; seeds == 0) {
    seeds = static_cast<int64_t>(seeds_of(options.effort));
  }
  PlanAnswer answer;
  Speaker speaker(err, options.simulate.bench.progress, terminal);
  PolicyChoice choice = choose_policies(options.simulate);
  options.simulate.policies = choice.policies;
  answer.left_out = std::move(choice.left_out);
  for (const std::string& policy : options.simulate.policies) {
    const std::string lacks = what_policy_lacks(options.simulate, policy);
    if (!lacks.empty()) answer.lacking.push_back({policy, lacks});
  }
  speaker.say("the capacity");
  Result<std::unique_ptr<Trials>> made = Trials::make(options.simulate, options.effort);
  if (!made.ok() && made.status().code() == ErrorCode::kExhausted &&
      !(options.devices.empty() && prices.empty())) {
    return plan_elsewhere(options, prices, made.status(), speaker, std::move(answer), out);
  }
  KV_RETURN_IF_ERROR(made.status());
  const std::unique_ptr<Trials> trials = *std::move(made);
  KV_ASSIGN_OR_RETURN(answer.load, load_of(options.simulate, trials->capacity()));
  describe(options, *trials, answer);
  speaker.clear();
  out << question_text(answer, options.percent) << std::flush;
  const SearchSettings settings = search_settings(options, trials->capacity());
  KV_RETURN_IF_ERROR(find_policies(options, *trials, settings, speaker, out, answer));
  const PlannedPolicy* best = answer.best();
  if (best && best->found.end == FoundRate::End::kMet && options.what_if) {
    const auto changes = changes_of(options.simulate, best->name, best->usage, trials->study());
    KV_ASSIGN_OR_RETURN(answer.what_ifs,
                        try_changes(changes, options.simulate, best->name, settings, best->found.rate,
                                    options.effort, [&](const std::string& what) { speaker.say(what); }));
  }
  plan_devices(options, prices, speaker, answer);
  speaker.clear();
  out << '\n' << answer_text(answer) << std::flush;
  KV_RETURN_IF_ERROR(write_files(options, answer, out));
  return answer;
}

int run_plan(const PlanOptions& options) {
  return run_plan(options, std::cout, std::cerr, ::isatty(STDERR_FILENO) == 1);
}

int run_plan(const PlanOptions& options, std::ostream& out, std::ostream& err, bool terminal) {
  const Status status = plan(options, out, err, terminal).status();
  if (status.ok()) return 0;
  err << fmt::format("kvasir plan: {}\n", status.message());
  return 1;
}

}  // namespace kvasir
