#include "apps/plan/rate_search.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "apps/bench/stats.h"

namespace kvasir {
namespace {

constexpr double kUp = 1.2, kDown = 1.5;  // from one rate of the elimination to the next
constexpr double kLevel = 0.02;           // no difference that matters
constexpr double kMostLevel = 0.1;        // beyond it no interval makes two rates level
constexpr int kLooksBelow = 3;            // grid points
constexpr int kMostTurns = 12;
constexpr double kOnPoint = 1e-6;  // so near it is a grid point

double mean(const std::vector<double>& values) {
  return mean_interval(values).mean;
}

}  // namespace

double margin_of(const Trial& trial, const SearchSettings& settings) {
  return std::min(trial.attained - settings.percent, settings.most_growth - trial.growth);
}

RateSearch::RateSearch(SearchSettings settings, size_t policies, RunTrials run,
                       std::function<void(const std::string&)> say,
                       std::function<void(const FoundRate&)> found)
    : settings_(std::move(settings)),
      policies_(policies),
      run_(std::move(run)),
      say_(std::move(say)),
      found_(std::move(found)),
      seen_(policies) {}

Result<std::vector<Trial>> RateSearch::run(const std::vector<TrialKey>& keys) {
  runs_ += keys.size();
  return run_(keys);
}

double RateSearch::rate(int k) const {
  return origin_ * std::pow(1 + settings_.step, k);
}

double RateSearch::point_of(double rate) const {
  return std::log(rate / origin_) / std::log1p(settings_.step);
}

double RateSearch::margin(size_t policy, int k, size_t seed) const {
  return margin_of(trials_.at({policy, k, seed}), settings_);
}

// Short runs with one seed.
Status RateSearch::try_all(const std::vector<size_t>& policies, double rate) {
  std::vector<TrialKey> keys;
  for (size_t p : policies) keys.push_back({p, rate, settings_.seeds.front(), false});
  KV_ASSIGN_OR_RETURN(const std::vector<Trial> trials, run(keys));
  for (size_t i = 0; i < policies.size(); ++i) {
    Seen& seen = seen_[policies[i]];
    const double margin = margin_of(trials[i], settings_);
    seen.margin_last = margin;
    if (margin >= 0) {
      seen.met = rate;
      seen.margin_met = margin;
    } else if (seen.missed == 0 || rate < seen.missed) {
      seen.missed = rate;
      seen.margin_missed = margin;
    }
  }
  return {};
}

// Climbs while some policy meets the rate; those that miss by far what others meet do not come along.
Status RateSearch::eliminate() {
  std::vector<size_t> active(policies_);
  std::iota(active.begin(), active.end(), size_t{0});
  double rate = settings_.start;
  bool climbed = false, came_down = false;
  for (;;) {
    if (say_) say_(fmt::format("{:.4g} requests/s: {} policies, short runs", rate, active.size()));
    KV_RETURN_IF_ERROR(try_all(active, rate));
    const auto margin = [&](size_t p) { return seen_[p].margin_last; };
    std::stable_sort(active.begin(), active.end(), [&](size_t a, size_t b) { return margin(a) > margin(b); });
    const double best = margin(active.front());
    if (best >= 0) {
      candidates_.clear();
      for (size_t p : active) {
        if (margin(p) >= -settings_.far) candidates_.push_back(p);
      }
      origin_ = rate;
      climbed = true;
      if (came_down || rate * kUp > settings_.most) return {};
      active = candidates_;
      rate *= kUp;
      continue;
    }
    if (climbed) return {};
    if (settings_.only_above_start && best >= -settings_.far) {
      // So near that long runs must tell.
      candidates_ = {active.front()};
      origin_ = rate;
      return {};
    }
    if (settings_.only_above_start || rate / kDown < settings_.least) {
      none_ = true;
      return {};
    }
    came_down = true;
    rate /= kDown;
  }
}

Status RateSearch::ensure(size_t policy, int k, size_t seeds) {
  std::vector<TrialKey> keys;
  std::vector<size_t> which;
  for (size_t s = 0; s < std::min(seeds, settings_.seeds.size()); ++s) {
    if (trials_.count({policy, k, s}) > 0) continue;
    keys.push_back({policy, rate(k), settings_.seeds[s], true});
    which.push_back(s);
  }
  if (keys.empty()) return {};
  KV_ASSIGN_OR_RETURN(const std::vector<Trial> trials, run(keys));
  for (size_t i = 0; i < keys.size(); ++i) trials_[{policy, k, which[i]}] = trials[i];
  return {};
}

// Two seeds decide where both are far on one side.
Result<bool> RateSearch::met(size_t policy, int k, bool all_seeds) {
  KV_RETURN_IF_ERROR(ensure(policy, k, 2));
  const size_t two = std::min<size_t>(2, settings_.seeds.size());
  double least = margin(policy, k, 0), most = least;
  for (size_t s = 1; s < two; ++s) {
    least = std::min(least, margin(policy, k, s));
    most = std::max(most, margin(policy, k, s));
  }
  if (!all_seeds && most < -settings_.far) return false;
  if (!all_seeds && least >= settings_.far / 2) return true;
  KV_RETURN_IF_ERROR(ensure(policy, k, settings_.seeds.size()));
  double sum = 0;
  for (size_t s = 0; s < settings_.seeds.size(); ++s) sum += margin(policy, k, s);
  return sum >= 0;
}

// At what the best one meets, and a little below.
Result<bool> RateSearch::is_far_behind(size_t policy, int k) {
  for (const int at : {k, k - kLooksBelow}) {
    KV_RETURN_IF_ERROR(ensure(policy, at, 2));
    for (size_t s = 0; s < std::min<size_t>(2, settings_.seeds.size()); ++s) {
      if (margin(policy, at, s) >= -settings_.far) return false;
    }
  }
  return true;
}

int RateSearch::first_guess(size_t policy) const {
  const Seen& seen = seen_[policy];
  if (seen.met <= 0) return 0;
  double guess = seen.met;
  if (seen.missed > seen.met) {
    const double share = seen.margin_met / std::max(1e-9, seen.margin_met - seen.margin_missed);
    guess = seen.met + share * (seen.missed - seen.met);
  }
  return static_cast<int>(std::floor(point_of(guess)));
}

// Two neighbours on the grid, the first of which is met by all seeds' mean and the second is not; nothing:
// `out` says why there are none.
Result<std::optional<std::pair<int, int>>> RateSearch::bracket(size_t policy, int from, FoundRate& out) {
  const int bottom = std::min(0, static_cast<int>(std::ceil(point_of(settings_.least) - kOnPoint)));
  const int top = std::max(0, static_cast<int>(std::floor(point_of(settings_.most) + kOnPoint)));
  std::optional<int> low, high;
  int at = from, stride = 1;
  for (int turn = 0; turn < 4 * kMostTurns; ++turn) {
    at = std::clamp(at, bottom, top);
    const bool close = at == bottom || at == top || (low && high && *high - *low <= 2);
    KV_ASSIGN_OR_RETURN(const bool is_met, met(policy, at, close));
    (is_met ? low : high) = at;
    if (at == (is_met ? top : bottom)) {
      out.end = is_met ? FoundRate::End::kAlways : FoundRate::End::kNone;
      (is_met ? out.low : out.high) = rate(at);
      out.rate = out.low;
      return std::optional<std::pair<int, int>>();
    }
    // A point that all seeds decide otherwise than two did: what lies beyond it counts no more.
    if (is_met && high && *high <= at) high.reset();
    if (!is_met && low && *low >= at) low.reset();
    if (low && high && *high - *low == 1) {
      KV_ASSIGN_OR_RETURN(const bool low_holds, met(policy, *low, true));
      KV_ASSIGN_OR_RETURN(const bool high_holds, met(policy, *high, true));
      if (low_holds && !high_holds) return std::optional(std::pair{*low, *high});
      stride = 1;
      if (!low_holds) {
        high = low;
        low.reset();
      } else {
        low = high;
        high.reset();
      }
    }
    if (low && high) {
      at = (*low + *high) / 2;
    } else {
      at = low ? *low + stride : *high - stride;
      stride *= 2;
    }
  }
  // Attainment that does not fall with the rate: the last pair must do.
  const int k = low.value_or(high.value_or(from));
  KV_RETURN_IF_ERROR(ensure(policy, k, settings_.seeds.size()));
  KV_RETURN_IF_ERROR(ensure(policy, k + 1, settings_.seeds.size()));
  return std::optional(std::pair{k, k + 1});
}

std::vector<double> RateSearch::attained(size_t policy, int k) const {
  std::vector<double> out;
  for (size_t s = 0; s < settings_.seeds.size(); ++s) out.push_back(trials_.at({policy, k, s}).attained);
  return out;
}

// Where each seed's margin passes 0, on the line through its two neighbours.
void RateSearch::cross(size_t policy, int low, int high, FoundRate& out) const {
  for (size_t s = 0; s < settings_.seeds.size(); ++s) {
    const double a = margin(policy, low, s), b = margin(policy, high, s);
    double steps = a >= 0 ? 1 : 0;
    if (a - b > 0.1) steps = std::clamp(a / (a - b), -2.0, 3.0);
    out.by_seed.push_back(rate(low) * std::pow(1 + settings_.step, steps));
  }
  const MeanInterval interval = mean_interval(out.by_seed);
  out.end = FoundRate::End::kMet;
  out.rate = interval.mean;
  out.half_width = interval.half_width;
  out.low = rate(low);
  out.high = rate(high);
  const MeanInterval at_low = mean_interval(attained(policy, low));
  out.attained_low = at_low.mean;
  out.half_low = at_low.half_width;
  out.attained_high = mean(attained(policy, high));
}

// best: the grid point that the best policy so far meets.
Result<FoundRate> RateSearch::refine(size_t policy, std::optional<int> best) {
  FoundRate out;
  out.policy = policy;
  if (best) {
    KV_ASSIGN_OR_RETURN(const bool behind, is_far_behind(policy, *best));
    if (behind) {
      out.high = rate(*best - kLooksBelow);
      out.low = seen_[policy].met < out.high ? seen_[policy].met : 0;
      return out;
    }
  }
  KV_ASSIGN_OR_RETURN(const auto found, bracket(policy, best.value_or(first_guess(policy)), out));
  if (found) cross(policy, found->first, found->second, out);
  return out;
}

Result<std::vector<FoundRate>> RateSearch::search() {
  KV_RETURN_IF_ERROR(eliminate());
  std::vector<FoundRate> out;
  const auto add = [&](FoundRate one) {
    out.push_back(std::move(one));
    if (found_) found_(out.back());
  };
  std::optional<int> best;
  double best_rate = 0;
  for (size_t i = 0; i < candidates_.size(); ++i) {
    if (say_) say_(fmt::format("long runs: policy {} of {}", i + 1, candidates_.size()));
    KV_ASSIGN_OR_RETURN(FoundRate one, refine(candidates_[i], best));
    if (one.end == FoundRate::End::kMet && one.rate > best_rate) {
      best_rate = one.rate;
      best = static_cast<int>(std::lround(point_of(one.low)));
    }
    add(std::move(one));
  }
  for (size_t p = 0; p < policies_; ++p) {
    if (std::find(candidates_.begin(), candidates_.end(), p) != candidates_.end()) continue;
    FoundRate one;
    one.policy = p;
    one.end = none_ ? FoundRate::End::kNone : FoundRate::End::kBehind;
    one.low = seen_[p].met;
    one.high = seen_[p].missed;
    add(std::move(one));
  }
  rank(out);
  return out;
}

void rank(std::vector<FoundRate>& found) {
  const auto order = [](const FoundRate& f) {
    switch (f.end) {
      case FoundRate::End::kAlways:
        return 0;
      case FoundRate::End::kMet:
        return 1;
      case FoundRate::End::kBehind:
        return 2;
      case FoundRate::End::kNone:
        return 3;
    }
    return 4;
  };
  std::stable_sort(found.begin(), found.end(), [&](const FoundRate& a, const FoundRate& b) {
    if (order(a) != order(b)) return order(a) < order(b);
    return a.at() > b.at();
  });
  if (found.empty() || order(found.front()) > 1) return;
  found.front().best = true;
  for (size_t i = 1; i < found.size(); ++i) {
    FoundRate& other = found[i];
    const FoundRate& best = found.front();
    if (other.end != best.end) continue;
    if (best.end == FoundRate::End::kAlways) {
      other.level = true;
      continue;
    }
    std::vector<double> differences;
    for (size_t s = 0; s < std::min(best.by_seed.size(), other.by_seed.size()); ++s) {
      differences.push_back(best.by_seed[s] - other.by_seed[s]);
    }
    const MeanInterval d = mean_interval(differences);
    other.level =
        d.mean <= kLevel * best.rate || (d.mean <= kMostLevel * best.rate && d.mean <= d.half_width);
  }
}

}  // namespace kvasir
