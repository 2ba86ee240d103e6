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
  explicit CacheOptPolicy(const CacheOptOptions& options) : options_(options), steps_(options.longest_ever) {}

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

// Of every setting what the paper has, where the default is ours.
CacheOptOptions as_printed() {
  CacheOptOptions o;
  o.padding.padding = Padding::kHoeffding;
  o.confidence.fixed = 0.9;
  o.share_as_printed = true;
  o.preempt_when_short = true;
  o.cut_to_gap = false;
  o.embed = Embedding::kAlways;
  o.proactive_by_end = true;
  o.longest_ever = true;
  return o;
}

// A setting of two words: whether it is the first.
bool is_first(PolicySettings& settings, std::string_view key, bool otherwise, std::string_view first,
              std::string_view second) {
  return settings.word(key, otherwise ? first : second, {first, second}) == first;
}

void read_padding(PolicySettings& settings, CacheOptOptions& o) {
  const std::string_view otherwise = o.padding.padding == Padding::kHoeffding ? "hoeffding" : "quantile";
  const std::string padding =
      settings.word("padding", otherwise, {"quantile", "hoeffding", "share", "tokens"});
  o.padding.padding = padding == "hoeffding" ? Padding::kHoeffding
                      : padding == "share"   ? Padding::kShare
                      : padding == "tokens"  ? Padding::kTokens
                                             : Padding::kQuantile;
  o.padding.survival = settings.flag("survival", o.padding.survival);
  o.padding.share = settings.number("share", o.padding.share, 0, 10);
  o.padding.tokens = settings.whole("tokens", o.padding.tokens, 0, 1u << 20);
  o.padding.least = settings.whole("unit", o.padding.least, 1, 1024);
  o.confidence.fixed = settings.number("confidence", o.confidence.fixed, 0, 0.999);
  o.confidence.most = settings.number("alpha", o.confidence.most, 0.01, 100);
  o.confidence.falling = settings.number("beta", o.confidence.falling, 0, 1e6);
}

void read_selection(PolicySettings& settings, CacheOptOptions& o) {
  o.select_by_slo = is_first(settings, "select", o.select_by_slo, "slo", "fcfs");
  const std::string preempt_for = settings.word("preempt-for", "first", {"running", "first", "all"});
  if (preempt_for == "running") o.preempt_for = PreemptFor::kRunning;
  if (preempt_for == "all") o.preempt_for = PreemptFor::kAll;
  const std::string late = settings.word("late", "critical", {"last", "first", "critical"});
  if (late == "last") o.late = Late::kLast;
  if (late == "first") o.late = Late::kFirst;
  o.epsilon = Nanos{settings.whole("epsilon", 0, 0, 60'000)} * kNanosPerMilli;
  o.share_as_printed = is_first(settings, "excess", o.share_as_printed, "weight", "cut");
  o.preempt_when_short = is_first(settings, "short", o.preempt_when_short, "preempt", "sit");
  o.cut_to_gap = is_first(settings, "chunks", o.cut_to_gap, "gap", "budget");
  o.longest_ever = is_first(settings, "longest", o.longest_ever, "ever", "recent");
}

}  // namespace

std::unique_ptr<BatchPolicy> make_cacheopt(PolicySettings& settings) {
  CacheOptOptions o = settings.flag("letter", false) ? as_printed() : CacheOptOptions();
  read_padding(settings, o);
  read_selection(settings, o);
  const std::string embed =
      settings.word("embed", o.embed == Embedding::kAlways ? "always" : "short", {"off", "always", "short"});
  o.embed = embed == "off" ? Embedding::kOff : embed == "always" ? Embedding::kAlways : Embedding::kWhenShort;
  o.buffer_tokens = settings.whole("buffer", o.buffer_tokens, 0, 4096);
  o.proactive_steps = settings.whole("proactive", o.proactive_steps, 0, 1024);
  o.proactive_by_end = is_first(settings, "within", o.proactive_by_end, "end", "room");
  o.reserve_tokens = settings.whole("reserve", o.reserve_tokens, 0, 1u << 20);
  o.reserve_share = settings.number("reserve-share", o.reserve_share, 0, 0.25);
  o.victim_by_slo = is_first(settings, "victim", o.victim_by_slo, "slo", "fcfs");
  const std::string strategy = settings.word("preempt", "cheaper", {"cheaper", "recompute", "swap"});
  if (strategy == "recompute") o.strategy = PreemptionStrategy::kRecompute;
  if (strategy == "swap") o.strategy = PreemptionStrategy::kSwap;
  return std::make_unique<CacheOptPolicy>(o);
}

}  // namespace kvasir
