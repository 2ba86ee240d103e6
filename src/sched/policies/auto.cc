// One policy for all loads (docs/policies/auto.md): as many requests as possible meet all of their bounds;
// those without bounds end as early as possible on average, and none of them is slowed much more than the
// others; and then throughput.
#include <cmath>

#include "sched/batch_policy.h"
#include "sched/mechanisms/worthwhile_gap.h"
#include "sched/policies/auto_requests.h"
#include "sched/policies/auto_state.h"
#include "sched/policies/auto_step.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

class AutoPolicy final : public BatchPolicy {
 public:
  explicit AutoPolicy(const AutoOptions& options) : options_(options) {}

  std::string save_state() const override { return state_.save(); }
  Status restore_state(std::string_view state) override { return state_.restore(state); }

 private:
  const View& corrected(const View& view) override {
    const bool any_run = !view.running.empty();
    state_.margins.begin(view.now, any_run);
    if (state_.scale.begin(view.now, any_run, view.costs.steps_seen)) state_.margins = {};
    // Unless plan_batch() has a step to measure.
    state_.margins.end(view.now, 0, 0);
    state_.scale.end(view.now, 0);
    if (state_.scale.factor() == 1) return view;
    scaled_ = view;
    scaled_.costs = view.costs.scaled(state_.scale.factor());
    return scaled_;
  }

  void begin_step(const View& view, PlanBuilder& builder) override {
    state_.arriving.observe(view);
    state_.forget_ended(view);
    state_.returns.begin(view.next_step);
    if (options_.survival) state_.rest.observe(view);
    if (options_.give_up) give_up_gaps(view, builder);
  }

  void give_up_gaps(const View& view, PlanBuilder& builder) {
    const DeviceLimits limits{device_tokens(view), static_cast<double>(view.limits.max_num_seqs),
                              gap_without_bounds(view.costs)};
    const double least_gap_s =
        worthwhile_gap(state_.arriving, view.costs, state_.margins, limits, state_.least_gap_s);
    if (least_gap_s != state_.least_gap_s) {
      builder.because(std::isinf(least_gap_s) ? Reason{.cause = Cause::kNoGap}
                                              : Reason{.cause = Cause::kLeastGap, .a = least_gap_s});
    }
    state_.least_gap_s = least_gap_s;
  }

  void plan_batch(const View& view, PlanBuilder& builder) override {
    const bool measurable = plan_auto_step(view, options_, state_, builder);
    if (!measurable || !view.costs.known()) return;
    const StepWork& work = builder.work();
    const double believed_s = view.costs.step_seconds(work);
    state_.margins.end(view.now, work.prefill_rows, believed_s);
    state_.scale.end(view.now, believed_s / state_.scale.factor());
  }

  const AutoOptions options_;
  AutoState state_;
  View scaled_;  // the one by which the step is planned, where costs are corrected
};

}  // namespace

std::unique_ptr<BatchPolicy> make_auto(PolicySettings& settings) {
  AutoOptions o;
  o.order = settings.flag("order", o.order);
  o.victims = settings.flag("victims", o.victims);
  o.batch = settings.flag("batch", o.batch);
  o.growth = settings.flag("growth", o.growth);
  o.margins = settings.flag("margins", o.margins);
  o.survival = settings.flag("survival", o.survival);
  o.give_up = settings.flag("give-up", o.give_up);
  o.make_way = settings.flag("make-way", o.make_way);
  o.sit_out = settings.flag("sit-out", o.sit_out);
  o.away = settings.flag("away", o.away);
  return std::make_unique<AutoPolicy>(o);
}

}  // namespace kvasir
