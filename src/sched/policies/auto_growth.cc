#include "sched/policies/auto_growth.h"

#include <algorithm>
#include <vector>

#include "base/units.h"

namespace kvasir {
namespace {

// A request can rely on memory that others give up where at least so many are believed to end before its
// first token is due. With fewer, whether one ends in time is chance, and memory would stay idle meanwhile.
constexpr double kEnoughEnds = 6;

// Its bounds begin with its first token: it is no later for having waited.
bool may_wait(const Slo& slo) {
  return slo.tpot_ms > 0 && slo.ttft_ms == 0 && slo.e2el_ms == 0;
}

}  // namespace

AutoGrowth::AutoGrowth(const View& view, const AutoRequests& requests, const PlanBuilder& builder,
                       uint32_t spare_blocks)
    : view_(view), requests_(requests) {
  const double block_tokens = view.geometry.block_tokens;
  const uint32_t groups = view.geometry.groups();
  std::vector<MemoryPeak::Request> counted;
  double blocks = static_cast<double>(builder.available_blocks() + builder.coming_blocks()) - spare_blocks;
  for (const AutoRequest& r : requests.running) {
    if (builder.preempted(r.seq->id)) continue;
    const double owned = r.seq->own_kv_cells(Tier::kDevice) + r.seq->promised(Tier::kDevice);
    blocks += owned / groups;
    if (counts(r)) counted.push_back({owned / groups * block_tokens, r.rest});
  }
  peak_ = MemoryPeak(counted);
  room_ = std::max(0.0, blocks) * block_tokens;
}

bool AutoGrowth::counts(const AutoRequest& r) {
  return !r.late && ((r.bounded && r.seq->slo.tbt_ms > 0) || may_wait(r.seq->slo));
}

double AutoGrowth::owned_if_admitted(const AutoRequest& r) const {
  const SeqView& seq = *r.seq;
  const uint32_t idle = seq.cached_idle[static_cast<size_t>(Form::kKv)][static_cast<size_t>(Tier::kDevice)];
  const uint32_t shared =
      (seq.cached_resident_cells - std::min(idle, seq.cached_resident_cells)) / view_.geometry.groups();
  const uint32_t all = view_.geometry.blocks_for(seq.known_tokens);
  return static_cast<double>(all - std::min(all, shared)) * view_.geometry.block_tokens;
}

double AutoGrowth::peak_with(const AutoRequest& r) const {
  return peak_.with({owned_if_admitted(r), r.rest});
}

bool AutoGrowth::outgrown_by(const AutoRequest& r) const {
  if (!counts(r)) return false;
  if (r.seq->decoding() || !may_wait(r.seq->slo)) {
    // From its arrival on, but of one that was preempted: its next token is due within a gap.
    const double age_s = r.seq->decoding() ? 0 : to_seconds(view_.now - r.seq->arrival);
    const double steps = (r.left_s + age_s) / requests_.step_s();
    if (peak_.ending_within(steps) < kEnoughEnds) return false;
  }
  return peak_with(r) > room_;
}

void AutoGrowth::add(const AutoRequest& r) {
  if (counts(r)) peak_.add({owned_if_admitted(r), r.rest});
}

}  // namespace kvasir
