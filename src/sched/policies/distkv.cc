// Infinite-LLM's DistKV-LLM: vLLM's scheduling over the memory of all instances.
//
// Source: Lin et al., "Infinite-LLM: Efficient LLM Service for Long Context with DistAttention and
// Distributed KVCache", arXiv 2401.02669v1. docs/policies/distkv.md has the paper beside the code.
#include <algorithm>

#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/borrow_ahead.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/spill_to_peers.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// As `vllm`, first come, first served. What lies at peers is attended there: PlanBuilder and committer see to
// that for every policy. This one decides what is to lie there, and how much is borrowed when.
//
// Settings:
//   ahead  tokens of every running sequence for which there is to be room before it is needed: 256
//   spill  off: only what can never fit on the device goes to peers; on: also the oldest of long histories,
//          when the device fills up, before any sequence is preempted (on)
class DistkvPolicy final : public BatchPolicy {
 public:
  DistkvPolicy(BorrowAhead rule, bool spill) : rule_(rule), spill_(spill) {}

 private:
  void begin_step(const View& view, PlanBuilder& builder) override { borrow_ahead(view, rule_, builder); }

  void plan_batch(const View& view, PlanBuilder& builder) override {
    const uint32_t soon = cells_needed_soon(view, rule_);
    if (!view.peers.in_recalled.empty()) bring_home(view, soon, builder);
    if (spill_) make_room(view, soon, builder);
    if (any_prefilling(view) || !admit_prompts(view, builder)) {
      continue_running(by_arrival(view.running), builder, PreemptBy::kRecompute);
    }
  }

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

std::unique_ptr<BatchPolicy> make_distkv(PolicySettings& settings) {
  const auto ahead = settings.whole("ahead", 256, 0, 1 << 20);
  return std::make_unique<DistkvPolicy>(BorrowAhead{ahead}, settings.flag("spill", true));
}

}  // namespace kvasir
