#include "sched/mechanisms/aged_priority.h"

#include <algorithm>

namespace kvasir {
namespace {

bool later(const RankedSeq& a, const RankedSeq& b) {
  return b.rank < a.rank;
}

std::vector<RankedSeq> ranked(const std::vector<SeqView>& sequences, Nanos per_level) {
  std::vector<RankedSeq> out;
  out.reserve(sequences.size());
  for (const SeqView& s : sequences) out.push_back({rank_of(s, per_level), &s});
  return out;
}

}  // namespace

Rank rank_of(const SeqView& seq, Nanos per_level) {
  if (per_level == 0) return {seq.priority, seq.arrival, raw(seq.id)};
  const int32_t levels = std::clamp(seq.priority, -kMostLevels, kMostLevels);
  return {seq.arrival + levels * per_level, seq.arrival, raw(seq.id)};
}

std::vector<const SeqView*> by_rank(const std::vector<SeqView>& sequences, Nanos per_level) {
  std::vector<RankedSeq> all = ranked(sequences, per_level);
  const auto earlier = [](const RankedSeq& a, const RankedSeq& b) { return a.rank < b.rank; };
  if (!std::is_sorted(all.begin(), all.end(), earlier)) std::sort(all.begin(), all.end(), earlier);
  std::vector<const SeqView*> out;
  out.reserve(all.size());
  for (const RankedSeq& r : all) out.push_back(r.seq);
  return out;
}

RankQueue::RankQueue(const std::vector<SeqView>& sequences, Nanos per_level)
    : heap_(ranked(sequences, per_level)) {
  std::make_heap(heap_.begin(), heap_.end(), later);
}

void RankQueue::pop() {
  std::pop_heap(heap_.begin(), heap_.end(), later);
  heap_.pop_back();
}

}  // namespace kvasir
