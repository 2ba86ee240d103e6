// Apt-Serve (Gao et al., SIGMOD 2025): the request that has been waiting for its next token for the longest,
// by the byte that it takes, goes first; and where memory is short a request's history is kept as X, which is
// smaller than K and V and is projected again in each step.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/chunk_prefills.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/hidden_cache.h"
#include "sched/mechanisms/hybrid_knapsack.h"
#include "sched/mechanisms/pending_time.h"
#include "sched/mechanisms/refused.h"
#include "sched/mechanisms/swap_or_recompute.h"
#include "sched/policies/apt_serve_options.h"
#include "sched/policies/apt_serve_section5.h"
#include "sched/policies/apt_serve_values.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// One step's plan. Where it goes beyond the paper, docs/policies/apt-serve.md says why: a request that is
// kept as X sits out while its token costs too much, and its upgrade competes with the queue for room; no
// more are kept as X than `hidden_share` allows, and none that had a token before unless `to_x` says so.
class AptServeStep {
 public:
  // `becoming_x`: those that wait because they change from K and V to X.
  AptServeStep(const View& view, const AptServeOptions& options, std::vector<SeqId>& becoming_x,
               PlanBuilder& builder)
      : view_(view),
        options_(options),
        becoming_x_(becoming_x),
        builder_(builder),
        block_bytes_(view.geometry.kv_block_bytes()),
        running_(by_arrival(view.running)),
        values_(view, options.decay) {
    for (const SeqView& seq : view.running) {
      if (held_as_x(seq)) count_hidden(seq);
    }
    for (const auto* all : {&view.waiting, &view.running}) {
      for (const SeqView& seq : *all) {
        if (seq.slo.tbt_ms > 0) least_gap_s_ = std::min(least_gap_s_, seq.slo.tbt_ms / 1e3);
      }
    }
    find_those_becoming_x();
  }

  void plan() {
    if (options_.coalesce) {
      const uint32_t preempted = decode();
      prefill_on();
      prefill_as_x();
      if (preempted == 0) admit();
    } else if (!any_prefilling(view_) && prefill_as_x()) {
      admit();
    } else if (any_prefilling(view_) || !prefills_first() || !admit()) {
      decode();
      prefill_on();
    }
    if (builder_.idle()) decode_one_as_x();
  }

 private:
  bool prefills_first() const { return !options_.adaptive || waiting_is_more_urgent(view_); }

  // ---------------------------------------------------------------- values

  // Equation 8, and `switch_cost`. x_bytes: 0 if it cannot be kept as X.
  HybridCandidate candidate(const SeqView& seq, uint64_t kv_bytes, uint64_t x_bytes) const {
    const bool counts = seq.decoding() && counts_switches();
    return values_.candidate(seq, kv_bytes, x_bytes, counts ? recompute_seconds(view_, seq) : 0);
  }

  bool switches_running() const { return options_.adaptive && options_.to_x >= SwitchToX::kRunning; }
  bool counts_switches() const { return switches_running() && options_.switch_cost; }

  void count_hidden(const SeqView& seq) {
    hidden_claims_ += values_.kv_bytes(seq);
    hidden_s_ += values_.x_seconds(seq);
  }

  // Whether it may be kept as X: it has no token yet unless `to_x` allows that, a step can project it however
  // long it becomes, all that are kept as X can be projected often enough for their bounds, and there will
  // soon be room for their K and V.
  bool may_be_hidden(const SeqView& seq) const {
    if (!options_.hidden || !view_.geometry.has(Form::kX)) return false;
    if (seq.first_token_time > 0 && options_.to_x == SwitchToX::kNone) return false;
    const auto claims = static_cast<double>(hidden_claims_ + values_.kv_bytes(seq));
    return claims <= options_.hidden_share * static_cast<double>(values_.device_bytes()) &&
           hidden_s_ + values_.x_seconds(seq) <= options_.all_share * least_gap_s_ &&
           builder_.passes_ring(seq) && !builder_.kv_placement(seq).streams;
  }

  // ---------------------------------------------------------------- from K and V to X

  // Whether one that runs with K and V may be prefilled again as X.
  bool may_switch(const SeqView& seq) const {
    return has_kv(seq) && seq.held(Form::kX, Tier::kDevice) == 0 && !builder_.has_rows(seq.id) &&
           !builder_.preempted(seq.id) && builder_.can_stop(seq) && may_be_hidden(seq);
  }

  // It gives up its K and V; the next prefill step computes its history again as X. The last one that runs
  // keeps what it has.
  bool switch_to_x(const SeqView& seq) {
    if (builder_.running_seqs() <= 1 || !may_switch(seq)) return false;
    count_hidden(seq);
    builder_.because({Cause::kBecomesX, seq.id});
    builder_.preempt_and_drop(seq);
    becoming_x_.push_back(seq.id);
    return true;
  }

  // Those that still wait, and are not late: one that is late waits as the others do.
  void find_those_becoming_x() {
    std::vector<SeqId> left;
    for (const SeqView& seq : view_.waiting) {
      if (!becomes_x(seq) || pends_too_long(seq, view_.now)) continue;
      left.push_back(seq.id);
      count_hidden(seq);
    }
    becoming_x_ = std::move(left);
  }
  bool becomes_x(const SeqView& seq) const {
    return std::find(becoming_x_.begin(), becoming_x_.end(), seq.id) != becoming_x_.end();
  }

  // By this plan; it may have got no rows.
  bool was_admitted(const SeqView& seq) const {
    return std::find(admitted_as_x_.begin(), admitted_as_x_.end(), seq.id) != admitted_as_x_.end();
  }

  // True if any of them is prefilled. One for which there is no room, although no cells are about to become
  // free, waits as the others do from the next step on.
  bool prefill_as_x() {
    const uint32_t before = builder_.planned_tokens();
    wanted_ = blocks_wanted(view_, builder_);
    for (const SeqView& seq : view_.waiting) {
      if (!becomes_x(seq)) continue;
      const uint32_t left = seq.known_tokens - seq.cached_tokens;
      const uint32_t rows = options_.coalesce ? chunk(left, /*as_x=*/true) : left;
      if (!fits_budget(rows)) continue;
      const bool admitted = has_room_as_x(view_, seq, rows, spare_blocks(), builder_) &&
                            builder_.admit(seq, admission_as_x(view_, 0));
      if (admitted) admitted_as_x_.push_back(seq.id);
      const bool has_rows = admitted && builder_.prefill(seq, rows, rows_as_x(view_)) > 0;
      if (has_rows || builder_.coming_cells() <= 0) std::erase(becoming_x_, seq.id);
    }
    return builder_.planned_tokens() > before;
  }

  // ---------------------------------------------------------------- prefills

  // The order in which waiting requests are to be admitted, and in which forms. Sets `to_switch_`.
  HybridChoice choose_waiting() {
    uint64_t kept = spare_blocks() * block_bytes_;
    std::vector<HybridCandidate> candidates;
    candidates.reserve(view_.waiting.size() + view_.running.size());
    for (const SeqView& seq : view_.waiting) {
      if (becomes_x(seq) || was_admitted(seq)) {
        if (becomes_x(seq)) kept += bytes_as_x(view_.geometry, seq);
        candidates.emplace_back();
        continue;
      }
      const uint64_t kv = bytes_as_kv(view_.geometry, seq);
      if (builder_.kv_placement(seq).streams) {
        // It needs two blocks at a time, which shall not raise its value by the byte.
        HybridCandidate c = candidate(seq, kv, 0);
        c.kv_bytes = std::min(kv, 2 * block_bytes_);
        c.value *= static_cast<double>(c.kv_bytes) / static_cast<double>(std::max<uint64_t>(kv, 1));
        candidates.push_back(c);
        continue;
      }
      candidates.push_back(candidate(seq, kv, may_be_hidden(seq) ? bytes_as_x(view_.geometry, seq) : 0));
    }
    for (const SeqView& seq : view_.running) {
      if (!held_as_x(seq) || builder_.preempted(seq.id)) continue;
      if (seq.decoding()) {
        // One that is kept as X gets its K and V before those that are worth less.
        if (builder_.has_rows(seq.id)) continue;
        HybridCandidate c = candidate(seq, upgrade_bytes(seq), 0);
        c.value = c.penalty;
        candidates.push_back(c);
      } else {
        // It has no promise for the rest of its prompt's X.
        const uint64_t rest = bytes_as_x(view_.geometry, seq);
        kept += rest - std::min(rest, values_.held_bytes(seq));
      }
    }
    uint64_t free = free_bytes(view_, builder_);
    free -= std::min(free, kept);
    const size_t first = candidates.size();
    std::vector<const SeqView*> stay;
    if (options_.to_x == SwitchToX::kForQueue) stay = add_those_that_stay(candidates, free);
    HybridChoice choice = choose_batch(candidates, free);
    for (size_t i = stay.size(); i-- > 0;) {
      if (choice.forms[first + i] == HybridForm::kNone) to_switch_.push_back(stay[i]);
    }
    return choice;
  }

  // Those that run with K and V, the latest arrival first: what they would free as X is room, which they take
  // by what the switch would cost all requests, unless others are worth more by the byte.
  std::vector<const SeqView*> add_those_that_stay(std::vector<HybridCandidate>& candidates, uint64_t& room) {
    std::vector<const SeqView*> stay;
    const uint64_t claims = hidden_claims_;
    const double seconds = hidden_s_;
    for (auto i = running_.rbegin(); i != running_.rend(); ++i) {
      const SeqView& seq = **i;
      const uint64_t bytes = bytes_freed_as_x(view_.geometry, seq);
      if (bytes == 0 || pends_too_long(seq, view_.now) || !may_switch(seq)) continue;
      double cost = values_.requests() * values_.x_seconds(seq);
      if (options_.switch_cost) cost += values_.requests() * recompute_seconds(view_, seq);
      candidates.push_back({std::max(cost, 2 * values_.floor() * static_cast<double>(bytes)), 0, bytes, 0});
      room += bytes;
      stay.push_back(&seq);
      count_hidden(seq);  // all of them may become X
    }
    hidden_claims_ = claims;
    hidden_s_ = seconds;
    return stay;
  }

  // Switches those that are to make room, until what is free, or becomes free when the steps in flight end,
  // is enough for a waiting request.
  void make_room_for(const SeqView& seq, bool as_x) {
    const uint64_t bytes =
        as_x ? bytes_as_x(view_.geometry, seq) + block_bytes_ : bytes_as_kv(view_.geometry, seq);
    for (; !to_switch_.empty(); to_switch_.pop_back()) {
      const uint64_t there = free_bytes(view_, builder_) + coming_bytes();
      if (there >= bytes + spare_blocks() * block_bytes_) return;
      switch_to_x(*to_switch_.back());
    }
  }
  // Of what earlier plans and this one give up.
  uint64_t coming_bytes() const {
    return static_cast<uint64_t>(std::max<int64_t>(builder_.coming_cells(), 0)) *
           view_.geometry.kv_cell_bytes();
  }
  uint64_t upgrade_bytes(const SeqView& seq) const {
    return cells_to_upgrade(view_, seq) * view_.geometry.kv_cell_bytes();
  }
  uint32_t spare_blocks() const {
    return builder_.running_seqs() == 0 ? 0 : admission_watermark(view_) + wanted_;
  }

  // True if any prompt is prefilled.
  bool admit() {
    const uint32_t before = builder_.planned_tokens();
    wanted_ = blocks_wanted(view_, builder_);
    if (options_.adaptive) {
      const HybridChoice choice = choose_waiting();
      for (uint32_t i : choice.order) {
        if (i >= view_.waiting.size()) continue;
        const SeqView& seq = view_.waiting[i];
        const bool as_x = choice.forms[i] == HybridForm::kX;
        if (admit_one(seq, as_x) == Answer::kRefused) refused(view_, seq, admission(as_x), builder_);
      }
    } else {
      for (const SeqView& seq : view_.waiting) {
        if (was_admitted(seq)) continue;
        const Answer as_kv = admit_one(seq, /*as_x=*/false);
        if (as_kv == Answer::kAdmitted || admit_one(seq, /*as_x=*/true) == Answer::kAdmitted) continue;
        if (as_kv == Answer::kRefused) refused(view_, seq, admission(/*as_x=*/false), builder_);
        break;
      }
    }
    return builder_.planned_tokens() > before;
  }

  AdmitOptions admission(bool as_x) const {
    return as_x ? admission_as_x(view_, spare_blocks()) : AdmitOptions{.spare_blocks = spare_blocks()};
  }

  enum class Answer { kAdmitted, kRefused, kNotAsked };

  // Unless it is admitted, nothing is planned for it; kRefused: by builder_.admit(). One that is admitted and
  // gets no rows is not in the plan (PlanBuilder::take()).
  Answer admit_one(const SeqView& seq, bool as_x) {
    if (as_x && !may_be_hidden(seq)) return Answer::kNotAsked;
    const uint32_t left = seq.known_tokens - seq.cached_tokens;
    const uint32_t rows = options_.coalesce ? chunk(left, as_x) : left;
    if (!fits_budget(rows)) return Answer::kNotAsked;
    // Other requests do not give up memory for one that cannot be admitted with it either.
    if (seq.stalled || seq.tail_busy || (as_x && !ring_passes_as_x(view_, seq, rows, builder_)))
      return Answer::kNotAsked;
    make_room_for(seq, as_x);
    if (as_x && !has_room_as_x(view_, seq, rows, spare_blocks(), builder_)) return Answer::kNotAsked;
    if (!builder_.admit(seq, admission(as_x))) return Answer::kRefused;
    const uint32_t planned = builder_.prefill(seq, rows, as_x ? rows_as_x(view_) : RowOptions{});
    if (planned > 0 && as_x) count_hidden(seq);
    return Answer::kAdmitted;
  }

  // Whether a step may have these rows of a prompt, too.
  bool fits_budget(uint32_t rows) const {
    if (rows == 0) return false;
    return options_.coalesce || builder_.planned_tokens() == 0 ||
           builder_.planned_tokens() + rows <= view_.limits.max_num_batched_tokens;
  }
  // Rows that the budget of a step leaves; of one kept as X they end with a block, which would have both
  // forms otherwise.
  uint32_t chunk(uint32_t left, bool as_x) const {
    const uint32_t room = chunk_room(view_, builder_, view_.limits.long_prefill_token_threshold);
    if (left <= room) return left;
    return as_x ? room / view_.geometry.block_tokens * view_.geometry.block_tokens : room;
  }

  // Goes on with prompts that were cut short.
  void prefill_on() {
    for (const SeqView* seq : running_) {
      if (seq->decoding() || builder_.has_rows(seq->id) || builder_.preempted(seq->id)) continue;
      const bool as_x = goes_on_as_x(*seq, builder_);
      uint32_t rows = seq->tokens_to_compute();
      if (options_.coalesce) rows = chunk(rows, as_x);
      if (as_x) rows = std::min(rows, rows_with_x_cells(view_, *seq, builder_));
      if (rows == 0) continue;
      builder_.prefill(*seq, rows, as_x ? rows_as_x(view_) : RowOptions{});
      if (!as_x) give_up_needless_x(view_, *seq, builder_);
    }
  }

  // ---------------------------------------------------------------- decodes

  // First the upgrades, then the others by falling value by the byte. Those that are to become X, prompts
  // that are not done, and then requests that were not chosen, are preempted first. Returns how many were
  // preempted.
  uint32_t decode() {
    std::vector<const SeqView*> decoding, order;
    for (const SeqView* seq : running_) {
      if (seq->decoding() && !builder_.preempted(seq->id)) decoding.push_back(seq);
    }
    const HybridChoice choice = choose_running(decoding);
    uint32_t switched = 0;
    for (uint32_t i : choice.order) {
      if (choice.forms[i] == HybridForm::kX && switches_running() && switch_to_x(*decoding[i])) ++switched;
    }
    const auto is_left = [&](const SeqView& s) {
      return !builder_.has_rows(s.id) && !builder_.preempted(s.id);
    };
    wanted_ = blocks_wanted(view_, builder_);
    order.reserve(running_.size());
    for (uint32_t i : choice.order) {
      if (choice.forms[i] == HybridForm::kKv && held_as_x(*decoding[i]) && upgrade(*decoding[i])) {
        order.push_back(decoding[i]);
      }
    }
    for (uint32_t i : choice.order) {
      if (options_.adaptive && is_left(*decoding[i])) order.push_back(decoding[i]);
    }
    for (uint32_t i = 0; i < decoding.size(); ++i) {
      const bool chosen = options_.adaptive && choice.forms[i] != HybridForm::kNone;
      if (!chosen && is_left(*decoding[i])) order.push_back(decoding[i]);
    }
    std::copy_if(running_.begin(), running_.end(), std::back_inserter(order),
                 [](const SeqView* seq) { return !seq->decoding(); });
    const auto preempt = [&](const SeqView& seq, const SeqView& other) {
      const Cause least = options_.adaptive ? Cause::kLeastValue : Cause::kArrivedLast;
      builder_.because(preempted_for_token(seq.decoding() ? least : Cause::kPromptIsBegun, seq, other));
      builder_.preempt_and_drop(seq);
    };
    return switched +
           decode_or_preempt(order, builder_, preempt, [&](const SeqView& s) { return decode_one(s); });
  }

  // Cells that several hold count for each of them, as they do in what each needs.
  HybridChoice choose_running(const std::vector<const SeqView*>& decoding) const {
    std::vector<HybridCandidate> candidates;
    candidates.reserve(decoding.size());
    const bool switches = switches_running();
    uint64_t room = free_bytes(view_, builder_);
    if (switches) room += coming_bytes();
    for (const SeqView* seq : decoding) {
      room += values_.held_bytes(*seq);
      const bool x_fits = held_as_x(*seq) || (switches && may_switch(*seq));
      const uint64_t x = x_fits ? bytes_as_x(view_.geometry, *seq) : 0;
      candidates.push_back(candidate(*seq, values_.kv_bytes(*seq), x));
    }
    return choose_batch(candidates, room);
  }
  // Whether it fits into the share of a step that projections may take; one of them always does.
  bool may_be_projected(const SeqView& seq) const {
    return projected_s_ == 0 ||
           projected_s_ + projection_seconds(view_, seq) <= options_.step_share * least_gap_s_;
  }

  bool upgrade(const SeqView& seq) {
    const bool memory = view_.scratch_tokens == 0 || builder_.planned_tokens() < view_.scratch_tokens;
    const uint32_t spare = builder_.running_seqs() == 1 ? 0 : spare_blocks() - wants_block(view_, seq);
    if (!memory || !may_be_projected(seq) || !upgrade_to_kv(view_, seq, spare, builder_)) return false;
    projected_s_ += projection_seconds(view_, seq);
    return builder_.decode(seq);
  }

  // False: there is no block for it.
  bool decode_one(const SeqView& seq) {
    if (builder_.has_rows(seq.id)) return true;
    if (!goes_on_as_x(seq, builder_)) return decode_as_kv(view_, seq, builder_);
    // It sits out while its token would cost the others more than it has waited.
    const double waited = values_.pending(seq);
    const bool due = seq.slo.tbt_ms > 0 && waited > options_.step_share * seq.slo.tbt_ms / 1e3;
    const bool costs_too_much = !due && waited < values_.requests() * projection_seconds(view_, seq);
    if (costs_too_much || !may_be_projected(seq)) return true;
    if (!decode_as_x(view_, seq, builder_)) return false;
    projected_s_ += projection_seconds(view_, seq);
    return true;
  }

  // A step without rows would be worse than one that pays for a projection.
  void decode_one_as_x() {
    for (const SeqView* seq : running_) {
      if (seq->decoding() && held_as_x(*seq) && builder_.can_run(*seq) &&
          decode_as_x(view_, *seq, builder_)) {
        return;
      }
    }
  }

  const View& view_;
  const AptServeOptions& options_;
  std::vector<SeqId>& becoming_x_;
  PlanBuilder& builder_;
  const uint64_t block_bytes_;
  const std::vector<const SeqView*> running_;  // by arrival
  const AptServeValues values_;
  uint32_t wanted_ = 0;                    // blocks that decodes are about to begin
  uint64_t hidden_claims_ = 0;             // of all that are kept as X: bytes of their K and V,
  double hidden_s_ = 0;                    // and what projecting them takes
  double projected_s_ = 0;                 // and those of this step
  std::vector<SeqId> admitted_as_x_;       // of those that become X
  std::vector<const SeqView*> to_switch_;  // to X, for the queue; the last one first
  double least_gap_s_ = std::numeric_limits<double>::infinity();  // between two tokens, of all requests
};

class AptServePolicy final : public BatchPolicy {
 public:
  explicit AptServePolicy(const AptServeOptions& options) : options_(options) {}

  bool keeps_x() const override { return options_.hidden; }

  // Those that are becoming X.
  std::string save_state() const override {
    std::string out;
    for (SeqId id : becoming_x_) out += fmt::format("{}{}", out.empty() ? "" : " ", raw(id));
    return out;
  }
  Status restore_state(std::string_view state) override {
    std::istringstream in{std::string(state)};
    std::vector<SeqId> ids;
    for (uint64_t id = 0; in >> id;) ids.push_back(SeqId{id});
    if (!in.eof()) return error(ErrorCode::kInvalidArgument, "'{}' names no requests that become X", state);
    becoming_x_ = std::move(ids);
    return {};
  }

 private:
  void plan_batch(const View& view, PlanBuilder& builder) override {
    AptServeStep(view, options_, becoming_x_, builder).plan();
  }

  const AptServeOptions options_;
  std::vector<SeqId> becoming_x_;
};

std::unique_ptr<BatchPolicy> make_with(PolicySettings& settings, bool coalesce) {
  AptServeOptions o;
  o.coalesce = coalesce;
  o.hidden = settings.flag("hidden", o.hidden);
  o.adaptive = settings.word("order", "adaptive", {"adaptive", "fcfs"}) == "adaptive";
  o.hidden_share = settings.number("hidden-share", o.hidden_share, 0, 1);
  o.step_share = settings.number("step-share", o.step_share, 0.01, 1);
  o.all_share = settings.number("all-share", o.all_share, 0.01, 1);
  const std::string to_x = settings.word("to-x", "off", {"off", "returning", "running", "queue"});
  o.to_x = to_x == "returning" ? SwitchToX::kReturning
           : to_x == "running" ? SwitchToX::kRunning
           : to_x == "queue"   ? SwitchToX::kForQueue
                               : SwitchToX::kNone;
  o.switch_cost = settings.flag("switch-cost", o.switch_cost);
  settings.needs("switch-cost", {"to-x"});
  o.decay = settings.number("decay", o.decay, 0, 1);
  return std::make_unique<AptServePolicy>(o);
}

}  // namespace

std::unique_ptr<BatchPolicy> make_apt_serve(PolicySettings& settings) {
  if (settings.word("rules", "ours", {"ours", "paper"}) == "ours")
    return make_with(settings, /*coalesce=*/false);
  PaperRules rules;
  rules.hidden = settings.flag("hidden", rules.hidden);
  rules.decay = settings.number("decay", rules.decay, 0, 1);
  return make_apt_serve_by_section5(rules);
}

std::unique_ptr<BatchPolicy> make_apt_serve_s(PolicySettings& settings) {
  return make_with(settings, /*coalesce=*/true);
}

}  // namespace kvasir
