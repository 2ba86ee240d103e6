#include "apps/plan/what_if.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/units.h"
#include "sched/registry.h"

namespace kvasir {
namespace {

constexpr double kStep = 0.03;      // between rates that are told apart here
constexpr double kShare = 0.35;     // of the effort of the question itself
constexpr double kHostMemory = 4;   // size of a host tier that is not there, in KV memories
constexpr double kSlotsMatter = 1;  // percent of the time
constexpr size_t kMostSeeds = 2;

// Those that are made for a tier behind the device, and one that takes what there is.
std::vector<std::string> offloading_policies(const std::string& best) {
  std::vector<std::string> out = {best};
  for (const std::string& name : policy_names()) {
    if (policy_traits(name).offloads && name != best) out.push_back(name);
  }
  return out;
}

std::string changed_tokens(uint32_t from, uint32_t to) {
  return fmt::format("--max-num-batched-tokens {} in place of {}", to, from);
}

Result<FoundRate> best_rate(const SimulateOptions& options, const SearchSettings& settings, double effort,
                            const TrialsKnown& known, std::string& policy) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<Trials> trials, Trials::make(options, effort, known));
  RateSearch search(settings, options.policies.size(),
                    [&](const std::vector<TrialKey>& keys) { return trials->run(keys); });
  KV_ASSIGN_OR_RETURN(const std::vector<FoundRate> found, search.search());
  policy = options.policies[found.front().policy];
  return found.front();
}

}  // namespace

std::vector<Change> changes_of(const SimulateOptions& options, const std::string& policy,
                               const RunUsage& usage, const Study& study) {
  std::vector<Change> out;
  SimulateOptions same = options;
  same.policies = {policy};
  const auto add = [&](WhatIf::Of of, std::string what, const std::function<void(SimulateOptions&)>& change) {
    Change one{of, std::move(what), same};
    change(one.options);
    out.push_back(std::move(one));
  };
  const uint64_t memory = study.system().kv_cache_bytes;
  add(WhatIf::Of::kMemory,
      fmt::format("twice the KV memory ({} in place of {})", format_bytes(2 * memory), format_bytes(memory)),
      [](SimulateOptions& o) { o.changes.memory *= 2; });
  if (options.runtime.kv_offloading_bytes == 0) {
    const uint64_t host =
        kGiB * static_cast<uint64_t>(std::ceil(kHostMemory * static_cast<double>(memory) / double(kGiB)));
    add(WhatIf::Of::kHostTier, fmt::format("a host tier of {} (--kv-offloading-size)", format_bytes(host)),
        [&](SimulateOptions& o) {
          o.runtime.kv_offloading_bytes = host;
          o.policies = offloading_policies(policy);
          // As many groups as show what a tier is good for: more only make simulations slow.
          if (o.runtime.kv_layer_group == 0) {
            o.runtime.kv_layer_group = std::max(1u, (study.system().layers + 3) / 4);
          }
        });
  } else {
    add(WhatIf::Of::kLink, "twice the speed of the link to the host",
        [](SimulateOptions& o) { o.changes.link *= 2; });
  }
  if (usage.slots_full > kSlotsMatter) {
    add(WhatIf::Of::kSlots,
        fmt::format("--max-num-seqs {} in place of {}", 2 * options.runtime.max_num_seqs,
                    options.runtime.max_num_seqs),
        [](SimulateOptions& o) { o.runtime.max_num_seqs *= 2; });
  }
  if (names_host_device(options.device)) {
    add(WhatIf::Of::kSpeed, "steps in half the time", [](SimulateOptions& o) { o.changes.speed *= 2; });
  } else {
    add(WhatIf::Of::kArithmetic, "twice the arithmetic",
        [](SimulateOptions& o) { o.changes.arithmetic *= 2; });
    add(WhatIf::Of::kBandwidth, "twice the bandwidth of the device's memory",
        [](SimulateOptions& o) { o.changes.bandwidth *= 2; });
  }
  const Result<EngineOptions> engine = study.engine(policy);
  if (!engine.ok()) return out;
  const uint32_t tokens = engine->limits.max_num_batched_tokens;
  if (tokens / 2 >= options.runtime.max_num_seqs) {
    add(WhatIf::Of::kFewerTokens, changed_tokens(tokens, tokens / 2),
        [&](SimulateOptions& o) { o.runtime.max_num_batched_tokens = tokens / 2; });
  }
  add(WhatIf::Of::kMoreTokens, changed_tokens(tokens, 2 * tokens),
      [&](SimulateOptions& o) { o.runtime.max_num_batched_tokens = 2 * tokens; });
  return out;
}

Result<std::vector<WhatIf>> try_changes(const std::vector<Change>& changes, const SimulateOptions& options,
                                        const std::string& policy, const SearchSettings& settings,
                                        double rate, double effort,
                                        const std::function<void(const std::string&)>& say) {
  const double own = kShare * effort;
  SearchSettings narrow = settings;
  narrow.step = kStep;
  narrow.seeds.resize(std::min(kMostSeeds, narrow.seeds.size()));
  narrow.start = rate;
  SimulateOptions base_options = options;
  base_options.policies = {policy};
  if (say) say("the same system, by shorter runs");
  std::string ignored;
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<Trials> whole, Trials::make(base_options, own));
  const TrialsKnown known{whole->capacity(), whole->residence_s()};
  KV_ASSIGN_OR_RETURN(const FoundRate base, best_rate(base_options, narrow, own, known, ignored));
  std::vector<WhatIf> out;
  if (base.at() <= 0) return out;
  narrow.start = base.at() * (1 + kStep);
  narrow.only_above_start = true;
  for (const Change& change : changes) {
    if (say) say(change.what);
    WhatIf one;
    one.of = change.of;
    one.what = change.what;
    one.policy = policy;
    const Result<FoundRate> found = best_rate(change.options, narrow, own, known, one.policy);
    if (!found.ok()) {
      one.failed = found.status().message();
    } else if (found->at() > 0) {
      one.rate = found->at();
      one.gain = found->at() / base.at() - 1;
    } else {
      one.gain = 0;
      one.rate = base.at();
      one.policy = policy;
    }
    out.push_back(std::move(one));
  }
  std::stable_sort(out.begin(), out.end(), [](const WhatIf& a, const WhatIf& b) {
    if (a.failed.empty() != b.failed.empty()) return a.failed.empty();
    return a.gain > b.gain;
  });
  return out;
}

}  // namespace kvasir
