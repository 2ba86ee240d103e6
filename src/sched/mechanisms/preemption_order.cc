#include "sched/mechanisms/preemption_order.h"

#include <algorithm>
#include <array>
#include <tuple>

namespace kvasir {
namespace {

constexpr std::array<uint32_t, 3> kTbtBounds = {200, 500, 2000};  // ms
constexpr uint32_t kTokensOfClass = 128;

struct Rank {
  // Ascending: the first is preempted first.
  std::tuple<uint32_t, uint32_t, uint32_t, Nanos, uint64_t> key;
  const SeqView* seq;
};

}  // namespace

uint32_t tbt_class(const Slo& slo) {
  if (slo.tbt_ms == 0) return kTbtBounds.size();
  const auto* at = std::lower_bound(kTbtBounds.begin(), kTbtBounds.end(), slo.tbt_ms);
  return static_cast<uint32_t>(at - kTbtBounds.begin());
}

uint32_t length_class_of(uint32_t tokens) {
  return tokens / kTokensOfClass;
}

std::vector<const SeqView*> preemption_order(const View& view,
                                             const std::function<uint32_t(const SeqView&)>& rest) {
  std::vector<Rank> ranks;
  ranks.reserve(view.running.size());
  for (const SeqView& s : view.running) {
    ranks.push_back({{~tbt_class(s.slo), ~length_class_of(rest(s)), length_class_of(s.ready_tokens),
                      -s.arrival, ~raw(s.id)},
                     &s});
  }
  std::sort(ranks.begin(), ranks.end(), [](const Rank& a, const Rank& b) { return a.key < b.key; });
  std::vector<const SeqView*> out;
  out.reserve(ranks.size());
  for (const Rank& r : ranks) out.push_back(r.seq);
  return out;
}

}  // namespace kvasir
