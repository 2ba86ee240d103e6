#include "apps/plan/words.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "apps/bench/goals.h"
#include "base/units.h"

namespace kvasir {
namespace {

// Below it a gain is no more than runs differ by.
constexpr double kGain = 0.05;

std::string duration_text(double millis) {
  if (millis >= 1000) return fmt::format("{:g} s", millis / 1e3);
  return fmt::format("{:g} ms", millis);
}

const char* goal_words(Goal::Key key) {
  switch (key) {
    case Goal::Key::kTtft:
      return "time to the first token (TTFT)";
    case Goal::Key::kTpot:
      return "mean time per output token (TPOT)";
    case Goal::Key::kP99Tbt:
      return "99th percentile of a request's gaps between tokens (TBT)";
    case Goal::Key::kMaxTbt:
      return "every gap between tokens (TBT)";
    case Goal::Key::kE2el:
      return "whole request (E2EL)";
  }
  return "";
}

std::vector<std::string> goals_in_words(const std::vector<Goal>& goals) {
  std::vector<std::string> out;
  for (const Goal& goal : goals) {
    out.push_back(goal.millis == kOwnBound
                      ? fmt::format("{} within each request's own bound", goal_words(goal.key))
                      : fmt::format("{} at most {}", goal_words(goal.key), duration_text(goal.millis)));
  }
  return out;
}

size_t name_width(const std::vector<std::string>& policies) {
  size_t width = 6;
  for (const std::string& name : policies) width = std::max(width, name.size());
  return width;
}

const WhatIf* find(const PlanAnswer& answer, WhatIf::Of of) {
  for (const WhatIf& one : answer.what_ifs) {
    if (one.of == of && one.failed.empty()) return &one;
  }
  return nullptr;
}

const char* resource(WhatIf::Of of) {
  switch (of) {
    case WhatIf::Of::kMemory:
    case WhatIf::Of::kHostTier:
      return "the KV memory";
    case WhatIf::Of::kSlots:
      return "the requests that may run at once (--max-num-seqs)";
    case WhatIf::Of::kArithmetic:
      return "the device's arithmetic";
    case WhatIf::Of::kBandwidth:
      return "the bandwidth of the device's memory";
    case WhatIf::Of::kSpeed:
      return "the time of steps";
    case WhatIf::Of::kLink:
      return "the link to the host";
    case WhatIf::Of::kFewerTokens:
    case WhatIf::Of::kMoreTokens:
      return "the tokens of a step (--max-num-batched-tokens)";
  }
  return "";
}

std::string shares(const RunUsage& u) {
  std::string out = fmt::format(
      "over whole runs at that rate, requests wait for memory or a slot {:.0f} % of the time, {:.0f} % "
      "of the KV memory is allocated, the device is in a step {:.0f} % of the time",
      u.limited, u.memory, u.busy);
  if (u.link_busy > 0) out += fmt::format(", the link to the host is busy {:.0f} %", u.link_busy);
  out += fmt::format(
      "; in their judged part, all slots are taken {:.0f} % of the time, steps are full of tokens {:.0f} %",
      u.slots_full, u.tokens_full);
  return out;
}

// At the rate that is not met.
std::string missed_text(const FoundRate& f, double percent) {
  const std::string share = fmt::format("{:.1f} %", f.attained_high);
  return f.attained_high < percent ? share : share + ", but the queue grows, or single seeds miss by far";
}

std::string best_sentence(const PlanAnswer& a, const PlannedPolicy& best) {
  const FoundRate& f = best.found;
  if (f.end == FoundRate::End::kAlways) {
    return fmt::format(
        "Nothing was found that is too much: {} meets the bounds at {} requests/s, {:.1f} times what the "
        "system serves when requests always wait. Tighten the bounds.",
        best.name, rate_text(f.rate), f.rate / std::max(1e-12, a.capacity));
  }
  std::string out = fmt::format(
      "Highest rate: {} requests/s under {}, with {:g} % of the requests meeting all bounds in steady state",
      rate_text(f.rate), best.name, a.percent);
  if (a.seeds < 2) {
    out += " (one seed, so no interval: --seeds 3 gives one).";
  } else if (f.half_width > 0) {
    out += fmt::format(" (95 % interval {} to {}, {} seeds).", rate_text(f.rate - f.half_width),
                       rate_text(f.rate + f.half_width), a.seeds);
  } else {
    out += fmt::format(" ({} seeds, all with this rate).", a.seeds);
  }
  out += fmt::format(" At {} requests/s {} of them do, at {} {}.", rate_text(f.low),
                     attained_text(f.attained_low, f.half_low, a.seeds), rate_text(f.high),
                     missed_text(f, a.percent));
  out += fmt::format(" That is {:.2f} times what the system serves when requests always wait ({}).",
                     f.rate / std::max(1e-12, a.capacity), rate_text(a.capacity));
  return out;
}

std::string level_sentence(const PlanAnswer& a) {
  std::vector<std::string> level;
  std::string next;
  for (const PlannedPolicy& p : a.policies) {
    if (p.found.level) level.push_back(fmt::format("{} ({})", p.name, rate_text(p.found.at())));
    if (!p.found.best && !p.found.level && next.empty() && p.found.at() > 0) {
      next = fmt::format("{} with {}", p.name, found_text(p.found));
    }
  }
  std::string out =
      level.empty() ? "No other policy is level with it"
                    : fmt::format("Level with it, as far as these seeds tell: {}", fmt::join(level, ", "));
  if (!next.empty()) out += fmt::format("; then comes {}", next);
  return out + ".";
}

std::string help_sentence(const PlanAnswer& a) {
  if (a.what_ifs.empty()) return "";
  const WhatIf& most = a.what_ifs.front();
  if (!most.failed.empty() || most.gain < kGain) {
    return "What would help most: none of the changes that were tried gains 5 %. What remains are looser "
           "bounds, shorter requests or more devices.";
  }
  std::string out = fmt::format("What would help most: {}, {}", most.what, gain_text(most.gain));
  if (a.best() && most.policy != a.best()->name) out += fmt::format(" (under {})", most.policy);
  for (size_t i = 1; i < a.what_ifs.size(); ++i) {
    const WhatIf& other = a.what_ifs[i];
    if (!other.failed.empty() || other.gain < kGain) break;
    out += fmt::format("{} {}, {}", i == 1 ? "; then" : ";", other.what, gain_text(other.gain));
  }
  return out + ".";
}

// Of those that have a price and carry the load; null: none.
const PlannedDevice* cheapest_for_load(const PlanAnswer& a) {
  const PlannedDevice* cheapest = nullptr;
  for (const PlannedDevice& d : a.devices) {
    if (!d.failed.empty() || !d.price || d.systems(a.load) == 0) continue;
    const auto cost = [&](const PlannedDevice& x) {
      return *x.price * static_cast<double>(x.cards_for(a.load));
    };
    if (!cheapest || cost(d) < cost(*cheapest)) cheapest = &d;
  }
  return cheapest;
}

// By which rate the number of devices is counted.
std::string counted_by(const PlannedDevice& d, size_t seeds) {
  const std::string takes =
      fmt::format(" {} is counted with {} requests/s, ", d.cards > 1 ? "Each system" : "Each device",
                  rate_text(d.sure_rate()));
  if (seeds < 2) return takes + "the rate of one seed: others may meet less.";
  return takes + (d.half_width > 0 ? "the lower end of the interval." : "the rate of every seed.");
}

// Which other device does where the one that was asked for does not.
std::string elsewhere_sentence(const PlanAnswer& a) {
  if (a.load > 0) {
    const PlannedDevice* cheapest = cheapest_for_load(a);
    for (const PlannedDevice& d : a.devices) {
      if (d.failed.empty() && d.systems(a.load) > 0 &&
          (!cheapest || (!cheapest->price && d.cards_for(a.load) < cheapest->cards_for(a.load)))) {
        cheapest = &d;
      }
    }
    if (!cheapest) return "";
    std::string out = fmt::format("For {} requests/s: {} of {} under {}", rate_text(a.load),
                                  count_of(static_cast<uint64_t>(cheapest->cards_for(a.load)), "device"),
                                  cheapest->name, cheapest->policy);
    if (cheapest->price) {
      out += fmt::format(", {:.2f} an hour, the cheapest in the table",
                         *cheapest->price * static_cast<double>(cheapest->cards_for(a.load)));
    }
    return out + "." + counted_by(*cheapest, a.seeds);
  }
  const PlannedDevice* fastest = nullptr;
  for (const PlannedDevice& d : a.devices) {
    if (d.failed.empty() && (!fastest || d.rate > fastest->rate)) fastest = &d;
  }
  return fastest ? fmt::format("{} meets the bounds at {} requests/s under {}.", fastest->name,
                               rate_text(fastest->rate), fastest->policy)
                 : "";
}

std::string load_sentence(const PlanAnswer& a) {
  if (a.load <= 0) return "";
  const PlannedDevice* cheapest = cheapest_for_load(a);
  for (const PlannedDevice& d : a.devices) {
    if (&d != &a.devices.front() || !d.failed.empty()) continue;
    if (d.systems(a.load) == 0) {
      return fmt::format(
          "How many devices {} requests/s take cannot be said: the interval of the rate reaches zero. Give "
          "more "
          "--seeds or --effort.",
          rate_text(a.load));
    }
    std::string out = fmt::format("For {} requests/s: {} of {}", rate_text(a.load),
                                  count_of(static_cast<uint64_t>(d.cards_for(a.load)), "device"), d.name);
    if (d.cards > 1)
      out += fmt::format(" ({} of {} each)", count_of(static_cast<uint64_t>(d.systems(a.load)), "system"),
                         d.cards);
    if (d.price) {
      out += fmt::format(", {:.2f} an hour", *d.price * static_cast<double>(d.cards_for(a.load)));
    }
    if (cheapest && cheapest != &d) {
      out += fmt::format("; cheapest in the table: {} of {}, {:.2f} an hour",
                         count_of(static_cast<uint64_t>(cheapest->cards_for(a.load)), "device"),
                         cheapest->name, *cheapest->price * static_cast<double>(cheapest->cards_for(a.load)));
    } else if (cheapest && a.devices.size() > 1) {
      out += ", the cheapest in the table";
    }
    return out + "." + counted_by(d, a.seeds) + " It serves by itself, so the load must be spread evenly.";
  }
  return "";
}

std::string device_table(const PlanAnswer& a) {
  if (a.devices.empty()) return "";
  const bool priced = std::any_of(a.devices.begin(), a.devices.end(),
                                  [](const PlannedDevice& d) { return d.price.has_value(); });
  size_t width = 6;
  for (const PlannedDevice& d : a.devices) width = std::max(width, d.name.size());
  std::string out = fmt::format("{:<{}}  {:>16}  {:<12}", "device", width, "highest rate", "policy");
  if (a.load > 0) out += fmt::format("  {:>8}", "devices");
  if (priced) out += fmt::format("  {:>10}{}", "an hour", a.load > 0 ? "" : " each");
  if (priced) out += fmt::format("  {:>20}", "per 1,000 requests");
  out += '\n';
  for (const PlannedDevice& d : a.devices) {
    if (!d.failed.empty()) {
      out += fmt::format("{:<{}}  {}\n", d.name, width, d.failed);
      continue;
    }
    out += fmt::format("{:<{}}  {:>16}  {:<12}", d.name, width, rate_text(d.rate, d.half_width), d.policy);
    const bool counted = a.load <= 0 || d.systems(a.load) > 0;
    if (a.load > 0) out += fmt::format("  {:>8}", counted ? fmt::format("{}", d.cards_for(a.load)) : "?");
    if (d.price && counted) {
      const double an_hour = *d.price * static_cast<double>(a.load > 0 ? d.cards_for(a.load) : d.cards);
      const double served = 3.6 * (a.load > 0 ? a.load : d.rate);  // thousands an hour
      out += fmt::format("  {:>10.2f}{}  {:>20.3f}", an_hour, a.load > 0 ? "" : "     ", an_hour / served);
    } else if (priced) {
      out += fmt::format("  {:>10}{}  {:>20}", "no price", a.load > 0 ? "" : "     ", "-");
    }
    out += '\n';
  }
  return out;
}

std::string what_if_table(const PlanAnswer& a) {
  if (a.what_ifs.empty()) return "";
  std::string out = "What if, each by itself, by runs (gains below 5 % are within what runs differ by):\n";
  for (const WhatIf& w : a.what_ifs) {
    if (!w.failed.empty()) {
      out += fmt::format("  {:<58}  not tried: {}\n", w.what, w.failed);
    } else {
      out += fmt::format("  {:<58}  {:>8}  {} requests/s under {}\n", w.what, gain_text(w.gain),
                         rate_text(w.rate), w.policy);
    }
  }
  return out;
}

}  // namespace

std::string rate_text(double rate) {
  if (rate <= 0) return "0";
  const int digits = std::max(0, 2 - static_cast<int>(std::floor(std::log10(rate))));
  return fmt::format("{:.{}f}", rate, std::min(digits, 6));
}

std::string rate_text(double rate, double half) {
  if (half <= 0) return rate_text(rate);
  const int digits = std::max(0, 2 - static_cast<int>(std::floor(std::log10(std::max(rate, 1e-9)))));
  return fmt::format("{:.{}f} +- {:.{}f}", rate, std::min(digits, 6), half, std::min(digits, 6));
}

std::string attained_text(double percent, double half, size_t seeds) {
  return seeds < 2 ? fmt::format("{:.1f} %", percent) : fmt::format("{:.1f} +- {:.1f} %", percent, half);
}

std::string gain_text(double gain) {
  if (std::abs(gain) < 0.005) return "no gain";
  return fmt::format("{:+.0f} %", 100 * gain);
}

std::string found_text(const FoundRate& f) {
  switch (f.end) {
    case FoundRate::End::kMet:
      return rate_text(f.rate, f.half_width);
    case FoundRate::End::kAlways:
      return "above " + rate_text(f.rate);
    case FoundRate::End::kBehind:
      return f.low > 0 ? fmt::format("{} to {}", rate_text(f.low), rate_text(f.high))
                       : "below " + rate_text(f.high);
    case FoundRate::End::kNone:
      return "none";
  }
  return "";
}

std::vector<std::string> bounds_in_words(const BenchConfig& config) {
  if (config.classes.empty()) return goals_in_words(config.goals);
  std::vector<std::string> out;
  for (const SloClass& one : config.classes) {
    const std::vector<std::string> goals = goals_in_words(one.goals);
    const std::string share = one.share ? fmt::format(" ({:g} % of the requests)", 100 * *one.share) : "";
    out.push_back(fmt::format("{}{}: {}", one.name, share,
                              goals.empty() ? "no bounds" : fmt::format("{}", fmt::join(goals, ", "))));
  }
  return out;
}

std::string question_text(const PlanAnswer& a, double percent) {
  std::string out = fmt::format("{} on {}, {}. {:g} % of the requests must meet:\n", a.model, a.device,
                                a.workload, percent);
  for (const std::string& bound : a.bounds) out += fmt::format("  {}\n", bound);
  for (const auto& [key, value] : a.settings) {
    if (key == "memory") out += value + "\n";
  }
  out += fmt::format(
      "served when requests always wait: {} requests/s; a request is then in the system for {:.3g} s\n",
      rate_text(a.capacity), a.residence_s);
  for (const LeftOutPolicy& p : a.left_out) out += fmt::format("left out: {} {}\n", p.policy, p.why);
  for (const LeftOutPolicy& p : a.lacking) out += runs_without(p) + "\n";
  return out;
}

std::string policy_header(const std::vector<std::string>& policies) {
  return fmt::format("\n{:<{}}  {:>18}  {:>18}  {:>24}\n", "policy", name_width(policies), "highest rate, /s",
                     "met at a rate of", "and not at");
}

std::string policy_row(const std::vector<std::string>& policies, const FoundRate& f) {
  std::string met, missed;
  if (f.end == FoundRate::End::kMet) {
    met = fmt::format("{} ({:.1f} %)", rate_text(f.low), f.attained_low);
    missed = fmt::format("{} ({:.1f} %)", rate_text(f.high), f.attained_high);
  } else if (f.end == FoundRate::End::kBehind) {
    missed = "far behind: no long runs";
  }
  return fmt::format("{:<{}}  {:>18}  {:>18}  {:>24}\n", policies[f.policy], name_width(policies),
                     found_text(f), met, missed);
}

Binding binding_of(const PlanAnswer& a) {
  const PlannedPolicy* best = a.best();
  if (!best || best->found.end != FoundRate::End::kMet) return {"nothing that was found", ""};
  const RunUsage& u = best->usage;
  Binding out;
  const WhatIf* most = nullptr;
  for (const WhatIf::Of of :
       {WhatIf::Of::kMemory, WhatIf::Of::kSlots, WhatIf::Of::kArithmetic, WhatIf::Of::kBandwidth,
        WhatIf::Of::kLink, WhatIf::Of::kFewerTokens, WhatIf::Of::kMoreTokens}) {
    const WhatIf* one = find(a, of);
    if (one && (!most || one->gain > most->gain)) most = one;
  }
  // Steps of half the time free memory and slots in half the time, too: they bind where nothing else does.
  const WhatIf* speed = find(a, WhatIf::Of::kSpeed);
  if (speed && (!most || most->gain < std::max(kGain, speed->gain / 2))) most = speed;
  if (most && most->gain >= kGain) {
    out.word = resource(most->of);
    out.evidence = fmt::format("more of it gains most ({}); ", gain_text(most->gain));
  } else if (most) {
    out.word = "the bounds: no single resource, doubled, gains 5 %";
  } else if (u.slots_full > 50) {
    out.word = resource(WhatIf::Of::kSlots);
  } else if (u.limited > 30) {
    out.word = resource(WhatIf::Of::kMemory);
  } else {
    out.word = "the time of steps";
  }
  out.evidence += shares(u);
  return out;
}

std::vector<std::string> answer_paragraphs(const PlanAnswer& a) {
  const PlannedPolicy* best = a.best();
  if (!best) {
    std::vector<std::string> out = {a.failed.empty()
                                        ? fmt::format("No rate is met: even at a fiftieth of what the system "
                                                      "serves when requests always wait ({} "
                                                      "requests/s) fewer than {:g} % of the requests meet "
                                                      "all bounds under any policy. Loosen the "
                                                      "bounds, or take a faster device.",
                                                      rate_text(a.capacity), a.percent)
                                        : fmt::format("{} cannot serve {}: {}", a.device, a.model, a.failed)};
    if (const std::string other = elsewhere_sentence(a); !other.empty()) out.push_back(other);
    return out;
  }
  std::vector<std::string> out = {best_sentence(a, *best)};
  if (best->found.end == FoundRate::End::kAlways) return out;
  out.push_back(level_sentence(a));
  const Binding binding = binding_of(a);
  out.push_back(fmt::format("What binds: {}; {}.", binding.word, binding.evidence));
  for (const std::string& sentence : {help_sentence(a), load_sentence(a)}) {
    if (!sentence.empty()) out.push_back(sentence);
  }
  std::string runs = fmt::format(
      "Each long run has {} requests, of which {:.0f} s are judged, {:.0f} times what a request is in the "
      "full system; its beginning and end are cut off. {} runs of these policies, {} requests in all.",
      a.run_requests, a.run_seconds, a.run_seconds / std::max(1e-9, a.residence_s), a.runs, a.simulated);
  if (a.run_seconds < 4 * a.residence_s || a.run_seconds < 3 * a.longest_bound_s) {
    runs += " That is short: a rate a little too high may pass. Give more --effort.";
  }
  out.push_back(std::move(runs));
  return out;
}

std::string answer_text(const PlanAnswer& a) {
  std::string out;
  for (const std::string& paragraph : answer_paragraphs(a)) out += paragraph + "\n";
  const std::string changes = what_if_table(a), devices = device_table(a);
  if (!changes.empty()) out += "\n" + changes;
  if (!devices.empty()) out += "\n" + devices;
  return out;
}

}  // namespace kvasir
