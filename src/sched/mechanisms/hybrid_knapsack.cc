#include "sched/mechanisms/hybrid_knapsack.h"

#include <algorithm>
#include <optional>

namespace kvasir {
namespace {

struct Addition {
  double density = 0;
  double value = 0;
  uint64_t bytes = 0;
  uint32_t candidate = 0;
  HybridForm form = HybridForm::kNone;  // that the candidate has then
  HybridForm from = HybridForm::kNone;
};

double by_the_byte(double value, uint64_t bytes) {
  return value / static_cast<double>(std::max<uint64_t>(bytes, 1));
}

// Up to two for each candidate.
std::vector<Addition> additions_of(std::span<const HybridCandidate> candidates, uint64_t room) {
  std::vector<Addition> out;
  out.reserve(2 * candidates.size());
  for (uint32_t i = 0; i < candidates.size(); ++i) {
    const HybridCandidate& c = candidates[i];
    const double as_x = c.value - c.penalty;
    const bool kv_fits = c.value > 0 && c.kv_bytes <= room;
    const bool x_fits = as_x > 0 && c.x_bytes > 0 && c.x_bytes < c.kv_bytes && c.x_bytes <= room;
    const double whole = by_the_byte(c.value, c.kv_bytes);
    if (x_fits && (!kv_fits || by_the_byte(as_x, c.x_bytes) >= whole)) {
      const double density = by_the_byte(as_x, c.x_bytes);
      out.push_back({density, as_x, c.x_bytes, i, HybridForm::kX, HybridForm::kNone});
      if (!kv_fits) continue;
      const uint64_t more = c.kv_bytes - c.x_bytes;
      // Never before what it builds on, however the quotients are rounded.
      const double of_more = std::min(density, by_the_byte(c.penalty, more));
      out.push_back({of_more, c.penalty, more, i, HybridForm::kKv, HybridForm::kX});
    } else if (kv_fits) {
      out.push_back({whole, c.value, c.kv_bytes, i, HybridForm::kKv, HybridForm::kNone});
    }
  }
  // Stable: of equals the earlier candidate, and its upgrade behind it.
  std::stable_sort(out.begin(), out.end(),
                   [](const Addition& a, const Addition& b) { return a.density > b.density; });
  return out;
}

// Takes what fits into `left`, in order. The candidate of the first addition that does not fit, if there is
// one.
std::optional<uint32_t> fill(const std::vector<Addition>& additions, uint64_t left, HybridChoice& choice) {
  std::optional<uint32_t> misfit;
  for (const Addition& a : additions) {
    HybridForm& form = choice.forms[a.candidate];
    if (form != a.from) continue;  // what it builds on did not fit, or it is there
    if (a.bytes > left) {
      if (!misfit) misfit = a.candidate;
      continue;
    }
    left -= a.bytes;
    choice.value += a.value;
    form = a.form;
    if (a.from == HybridForm::kNone) choice.order.push_back(a.candidate);
  }
  return misfit;
}

}  // namespace

HybridChoice choose_batch(std::span<const HybridCandidate> candidates, uint64_t room) {
  const std::vector<Addition> additions = additions_of(candidates, room);
  HybridChoice by_density;
  by_density.forms.resize(candidates.size(), HybridForm::kNone);
  const std::optional<uint32_t> misfit = fill(additions, room, by_density);
  if (!misfit) return by_density;
  const HybridCandidate& c = candidates[*misfit];
  const bool as_kv = c.kv_bytes <= room;
  const double alone = as_kv ? c.value : c.value - c.penalty;
  if (alone <= by_density.value) return by_density;
  HybridChoice out;
  out.forms.resize(candidates.size(), HybridForm::kNone);
  out.forms[*misfit] = as_kv ? HybridForm::kKv : HybridForm::kX;
  out.order = {*misfit};
  out.value = alone;
  fill(additions, room - (as_kv ? c.kv_bytes : c.x_bytes), out);
  return out;
}

}  // namespace kvasir
