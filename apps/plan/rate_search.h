// Finds, for each policy, the highest request rate at which enough requests meet their bounds in steady
// state.
//
// `RunTrials` makes the runs: the search decides which policy runs at which rate with which
// seed. All policies get the same seeds, so that differences between them are not differences of the load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "base/status.h"

namespace kvasir {

// What a run says of steady state.
struct Trial {
  double attained = 0;  // percent of the judged requests that met all of their bounds
  double growth = 0;    // percent of the arrivals by which the number of requests in the system grew
};

struct TrialKey {
  size_t policy = 0;  // an index
  double rate = 0;    // requests per second
  uint64_t seed = 0;
  bool whole = true;  // else a short run, of which the search eliminates
  friend bool operator<(const TrialKey& a, const TrialKey& b) {
    return std::tie(a.policy, a.rate, a.seed, a.whole) < std::tie(b.policy, b.rate, b.seed, b.whole);
  }
};

// One trial for each key, in their order. The same keys always have the same trials.
using RunTrials = std::function<Result<std::vector<Trial>>(const std::vector<TrialKey>&)>;

struct SearchSettings {
  double percent = 90;     // of the requests that must meet their bounds
  double most_growth = 3;  // see Trial::growth: beyond, the rate is not sustained whatever is attained
  double start = 1;        // the first rate that is tried
  double least = 0.01;     // below it no rate is tried; `most` likewise
  double most = 100;
  double step = 0.02;  // between rates that are told apart, relative
  std::vector<uint64_t> seeds = {0, 1, 2};
  // Points of attainment by which a policy must miss what others meet, to be eliminated by short runs.
  double far = 10;
  // The start is a question of its own: a policy that misses there is not tried at lower rates.
  bool only_above_start = false;
};

// What was found of one policy.
struct FoundRate {
  enum class End {
    kMet,     // `rate` is where attainment falls below what is asked
    kBehind,  // it meets `low` (0: not known), misses `high`, and others are far ahead
    kNone,    // not even the least rate is met
    kAlways   // even the greatest rate is met: nothing bounds it there
  };
  size_t policy = 0;
  End end = End::kBehind;
  double rate = 0;              // the mean over the seeds
  double half_width = 0;        // of its 95 % interval by Student's t
  std::vector<double> by_seed;  // in the order of the seeds
  double low = 0, high = 0;     // tried rates: the highest that was met, the lowest that was not
  double attained_low = 0, attained_high = 0;  // percent, mean over the seeds
  double half_low = 0;                         // of the 95 % interval of attained_low
  // Of those that are met: the best, or not to be told from it by these seeds.
  bool best = false, level = false;

  double at() const { return end == End::kBehind ? low : rate; }
};

// Percentage points by which a trial is better than what is asked; below 0: it misses.
double margin_of(const Trial& trial, const SearchSettings& settings);

class RateSearch {
 public:
  // `say` is told in a few words what is done next; `found` each policy as soon as its rate is known, though
  // not yet which are level. Both may be null.
  RateSearch(SearchSettings settings, size_t policies, RunTrials run,
             std::function<void(const std::string&)> say = {},
             std::function<void(const FoundRate&)> found = {});

  // The best first; those with no rate last. An error is that of a run.
  Result<std::vector<FoundRate>> search();
  size_t runs() const { return runs_; }

 private:
  struct Seen {                  // of a policy, by short runs
    double met = 0, missed = 0;  // the highest rate, the lowest one above it; 0: none
    double margin_met = 0, margin_missed = 0, margin_last = 0;
  };
  Result<std::vector<Trial>> run(const std::vector<TrialKey>& keys);
  Status eliminate();
  Status try_all(const std::vector<size_t>& policies, double rate);
  Result<FoundRate> refine(size_t policy, std::optional<int> best);
  Status ensure(size_t policy, int k, size_t seeds);
  Result<bool> met(size_t policy, int k, bool all_seeds);
  Result<bool> is_far_behind(size_t policy, int k);
  Result<std::optional<std::pair<int, int>>> bracket(size_t policy, int from, FoundRate& out);
  int first_guess(size_t policy) const;
  double margin(size_t policy, int k, size_t seed) const;
  double rate(int k) const;
  double point_of(double rate) const;  // on the grid, between whose points it may lie
  std::vector<double> attained(size_t policy, int k) const;
  void cross(size_t policy, int low, int high, FoundRate& out) const;

  const SearchSettings settings_;
  const size_t policies_;
  const RunTrials run_;
  const std::function<void(const std::string&)> say_;
  const std::function<void(const FoundRate&)> found_;
  size_t runs_ = 0;
  std::vector<Seen> seen_;
  std::vector<size_t> candidates_;                           // after elimination, the most promising first
  double origin_ = 0;                                        // the rate of grid point 0
  bool none_ = false;                                        // no policy met any rate
  std::map<std::tuple<size_t, int, size_t>, Trial> trials_;  // by policy, grid point, index of the seed
};

// Marks the best and those that are level with it: whose rates, seed by seed, differ from its by no more than
// 2 % or than the differences' own interval. Sorts the best first.
void rank(std::vector<FoundRate>& found);

}  // namespace kvasir
