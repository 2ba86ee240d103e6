// Priorities that age, so that no request waits for ever.
//
// Source: vLLM's priority scheduling orders by (priority, time of arrival), the lower value first. There, a
// request with a high value waits for as long as lower ones arrive. The ageing is ours: a level of priority
// is worth a fixed head start in time,
//
//   effective priority of i at time t = p_i - (t - a_i) / A,
//
// Since t is common to all, the key a_i + A * p_i gives the same order. It does not change with time, so no
// two sequences change places while they wait.
//
//   symbol   here                  unit
//   p_i      SeqView::priority     levels, clamped to [-kMostLevels, kMostLevels]
//   a_i      SeqView::arrival      ns
//   A        `per_level`           ns a level; 0: no ageing, strict priority
//
// No request that arrives later than a_i + A * (p_i - p_least) comes before i, where p_least is the lowest
// priority value in use. So only a finite number of requests come before i.
#pragma once

#include <cstdint>
#include <tuple>
#include <vector>

#include "base/clock.h"
#include "contract/view.h"

namespace kvasir {

// The default of A, in seconds.
constexpr double kAgeingSeconds = 10;

// Levels are clamped to this. Otherwise a client could send a number whose head start no wait can make up
// for. With ten seconds a level the greatest head start is below three hours.
constexpr int32_t kMostLevels = 1000;

// The lower rank goes first. `first` is the key, or without ageing the priority itself; ties are broken by
// arrival, then by id.
struct Rank {
  int64_t first = 0;
  Nanos arrival = 0;
  uint64_t id = 0;
  friend bool operator<(const Rank& a, const Rank& b) {
    return std::tie(a.first, a.arrival, a.id) < std::tie(b.first, b.arrival, b.id);
  }
};
Rank rank_of(const SeqView& seq, Nanos per_level);

struct RankedSeq {
  Rank rank;
  const SeqView* seq = nullptr;
};

// The sequences in the order of their ranks.
std::vector<const SeqView*> by_rank(const std::vector<SeqView>& sequences, Nanos per_level);

// Gives the first few of many sequences by rank: building it takes linear time, each pop() logarithmic time.
// The sequences outlive it.
class RankQueue {
 public:
  RankQueue(const std::vector<SeqView>& sequences, Nanos per_level);
  bool empty() const { return heap_.empty(); }
  // REQUIRES: !empty()
  const RankedSeq& front() const { return heap_.front(); }
  void pop();

 private:
  std::vector<RankedSeq> heap_;
};

}  // namespace kvasir
