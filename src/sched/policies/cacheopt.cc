// CacheOpt (Shen, Sen and Tanaka, 2025): room is promised by padded predictions, lent while its owner has not
// come to it, and given first to requests whose bounds on latency leave no time.
//
// Sources and readings: docs/policies/cacheopt.md.
#include <fmt/format.h>

#include <algorithm>

#include "sched/batch_policy.h"
#include "sched/mechanisms/longest_step.h"
#include "sched/mechanisms/recall_loans.h"
#include "sched/policies/cacheopt_step.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

class CacheOptPolicy final : public BatchPolicy {
 public:
  explicit CacheOptPolicy(const CacheOptOptions& options) : options_(options) {}

  std::string save_state() const override { return fmt::format("{}; {}", load_.save(), steps_.save()); }
  Status restore_state(std::string_view state) override {
    const size_t semicolon = state.find(';');
    if (semicolon == std::string_view::npos) return Policy::restore_state(state);
    KV_RETURN_IF_ERROR(load_.restore(state.substr(0, semicolon)));
    return steps_.restore(state.substr(semicolon + 1));
  }

 private:
  void begin_step(const View& view, PlanBuilder& builder) override {
    load_.observe(view);
    steps_.begin(view.now, !view.running.empty());
    steps_.end(view.now, /*rows=*/true);  // unless plan_batch() finds that it has none
    recall_loans(view, builder);
  }

  void plan_batch(const View& view, PlanBuilder& builder) override {
    plan_cacheopt_step(view, options_, estimate(view), steps_.longest(), builder);
    steps_.end(view.now, builder.planned_tokens() > 0);
  }

  std::vector<const SeqView*> in_order(const View& view) const override {
    std::vector<const SeqView*> order = cacheopt_victims(view, options_, estimate(view));
    std::reverse(order.begin(), order.end());
    return order;
  }

  OutputEstimate estimate(const View& view) const {
    return {view, confidence_at(load_.load(view), options_.confidence), options_.padding};
  }

  const CacheOptOptions options_;
  ArrivalLoad load_;
  LongestStep steps_;
};

}  // namespace

std::unique_ptr<BatchPolicy> make_cacheopt(PolicySettings& settings) {
  CacheOptOptions o;
  const std::string padding = settings.word("padding", "quantile", {"quantile", "hoeffding", "share"});
  if (padding == "hoeffding") o.padding.padding = Padding::kHoeffding;
  if (padding == "share") o.padding.padding = Padding::kShare;
  o.padding.survival = settings.flag("survival", o.padding.survival);
  o.padding.share = settings.number("share", o.padding.share, 0, 10);
  o.padding.least = settings.whole("unit", o.padding.least, 1, 1024);
  o.confidence.fixed = settings.number("confidence", o.confidence.fixed, 0, 0.999);
  o.confidence.most = settings.number("alpha", o.confidence.most, 0.01, 100);
  o.confidence.falling = settings.number("beta", o.confidence.falling, 0, 1e6);
  o.select_by_slo = settings.word("select", "slo", {"slo", "fcfs"}) == "slo";
  o.preempt_for_waiting = settings.word("preempt-for", "running", {"running", "all"}) == "all";
  o.late_first = settings.word("late", "last", {"last", "first"}) == "first";
  const std::string embed = settings.word("embed", "short", {"off", "always", "short"});
  if (embed == "off") o.embed = Embedding::kOff;
  if (embed == "always") o.embed = Embedding::kAlways;
  o.buffer_tokens = settings.whole("buffer", o.buffer_tokens, 0, 4096);
  o.proactive_steps = settings.whole("proactive", o.proactive_steps, 0, 1024);
  o.reserve_tokens = settings.whole("reserve", o.reserve_tokens, 0, 1u << 20);
  o.reserve_share = settings.number("reserve-share", o.reserve_share, 0, 0.25);
  o.victim_by_slo = settings.word("victim", "slo", {"slo", "fcfs"}) == "slo";
  const std::string strategy = settings.word("preempt", "cheaper", {"cheaper", "recompute", "swap"});
  if (strategy == "recompute") o.strategy = PreemptionStrategy::kRecompute;
  if (strategy == "swap") o.strategy = PreemptionStrategy::kSwap;
  return std::make_unique<CacheOptPolicy>(o);
}

}  // namespace kvasir
