#include "sched/mechanisms/availability_forecast.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvasir {
namespace {

// Decode steps until its end, by the median of its class or by `survival`; 0: not known.
uint32_t steps_left(const View& view, const SeqView& seq, const RestOfOutput* survival) {
  const uint32_t bound = seq.max_total_tokens - std::min(seq.max_total_tokens, seq.known_tokens);
  if (seq.predicted.output_tokens == 0 || seq.predicted.length_class >= view.length_classes.size()) return 0;
  if (survival) return static_cast<uint32_t>(std::ceil(survival->of(seq).mean));
  const LengthClass& c = view.length_classes[seq.predicted.length_class];
  const uint32_t median = c.median_tokens > 0 ? c.median_tokens : seq.predicted.output_tokens;
  const uint32_t whole = seq.prompt_tokens + median;
  return whole > seq.known_tokens ? std::min(whole - seq.known_tokens, std::max(bound, 1u)) : 0;
}

}  // namespace

uint32_t cells_begun(const View& view, const SeqView& seq, uint32_t stages) {
  const CacheGeometry& g = view.geometry;
  const uint32_t most = g.blocks_for(std::max(seq.max_total_tokens, seq.known_tokens));
  const uint32_t needs = std::min(g.blocks_for(seq.known_tokens + stages * g.block_tokens), most);
  return (needs - std::min(needs, seq.blocks)) * g.groups();
}

AvailabilityForecast::AvailabilityForecast(const View& view, const PlanBuilder& builder, uint32_t stages,
                                           const RestOfOutput* survival)
    : available_(stages + 1) {
  KV_CHECK(stages > 0, "stages={}", stages);
  const CacheGeometry& g = view.geometry;
  const uint32_t groups = g.groups();
  // In the stage that ends before each t.
  std::vector<int64_t> allocated(stages + 1), released(stages + 1);
  for (const SeqView& seq : view.running) {
    // Of the sequences that are not on the device, those that stream decode too, and take one block at a
    // time.
    if (!seq.resident()) {
      if (builder.kv_placement(seq).streams) allocated[1] += std::min(groups, cells_begun(view, seq, stages));
      continue;
    }
    const uint32_t left = steps_left(view, seq, survival);
    const uint32_t ends_in = left == 0 ? UINT32_MAX : ceil_div(left, g.block_tokens);
    const uint32_t grows_until = std::min(ends_in, stages);
    const uint32_t most = g.blocks_for(std::max(seq.max_total_tokens, seq.known_tokens));
    uint32_t has = seq.blocks + seq.promised(Tier::kDevice) / groups;
    int64_t grown = 0;
    for (uint32_t t = 1; t <= grows_until; ++t) {
      const uint32_t length = seq.known_tokens + t * g.block_tokens;
      const uint32_t needs = std::min(g.blocks_for(length), most);
      if (needs <= has) continue;
      allocated[t] += int64_t{needs - has} * groups;
      grown += int64_t{needs - has} * groups;
      has = needs;
    }
    if (ends_in <= stages) {
      const uint32_t own = seq.own_kv_cells(Tier::kDevice);
      released[ends_in] += own - std::min(own, seq.leaving_cells) + seq.promised(Tier::kDevice) + grown;
    }
  }
  available_[0] = least_ = builder.available_cells() + builder.coming_cells();
  for (uint32_t t = 1; t <= stages; ++t) {
    const int64_t before_released = available_[t - 1] - allocated[t];
    least_ = std::min(least_, before_released);
    available_[t] = before_released + released[t];
  }
}

}  // namespace kvasir
