#include "sched/policies/distkv.h"

#include <algorithm>

#include "contract/plan_builder.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/borrow_ahead.h"
#include "sched/mechanisms/break_standstill.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/spill_to_peers.h"
#include "sched/mechanisms/turn_alone.h"

namespace kvasir {
namespace {

// As `vllm`, first come, first served. What lies at peers is attended there: PlanBuilder and committer see to
// that for every policy. This one decides what is to lie there, and how much is borrowed when.
class DistkvPolicy final : public Policy {
 public:
  DistkvPolicy(BorrowAhead rule, bool spill) : rule_(rule), spill_(spill) {}

  StepPlan plan(const View& view) override {
    PlanBuilder builder(view);
    borrow_ahead(view, rule_, builder);
    if (take_turn_alone(view, builder)) return builder.take();
    const uint32_t soon = cells_needed_soon(view, rule_);
    if (!view.peers.in_recalled.empty()) bring_home(view, soon, builder);
    if (spill_) make_room(view, soon, builder);
    if (anyone_prefilling(view) || !admit_prompts(view, builder)) {
      continue_running(by_arrival(view.running), builder, PreemptBy::kRecompute);
    }
    break_standstill(view, builder);
    return builder.take();
  }

 private:
  static void make_room(const View& view, uint32_t soon, PlanBuilder& builder) {
    const int64_t free = std::max<int64_t>(0, view.device.available_cells());
    int64_t coming = view.device.coming[index_of(Form::kKv)];
    for (const SeqView& seq : view.running) coming += seq.leaving_cells;
    if (free + coming >= soon || view.host.available_cells() <= 0) return;
    spill_to_peers(view, static_cast<uint32_t>(soon - free - coming), builder);
  }

  const BorrowAhead rule_;
  const bool spill_;
};

}  // namespace

std::unique_ptr<Policy> make_distkv_policy(PolicySettings& settings) {
  const auto ahead = settings.whole("ahead", 256, 0, 1 << 20);
  return std::make_unique<DistkvPolicy>(BorrowAhead{ahead}, settings.flag("spill", true));
}

}  // namespace kvasir
