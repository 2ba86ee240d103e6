// The greedy choice of a batch (Definition 1) decides alone, in every step, over all waiting requests or over
// all that run:
//
//   chosen in the form that it has       it has its token in this step
//   chosen in the other form             its cache is discarded; a prefill of its own computes it again, in
//                                        that form, with a token at its end
//   not chosen                           it is preempted: its cache is discarded, and it waits
//
// The room of a prefill step is the device less the K and V of all that run, those kept as X included; that
// of a decode step is the device. What is not in the paper is in docs/policies/apt-serve.md, "Section 5 to
// the letter".
#include "sched/policies/apt_serve_section5.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/hidden_cache.h"
#include "sched/mechanisms/hybrid_knapsack.h"
#include "sched/mechanisms/pending_time.h"
#include "sched/mechanisms/refused.h"
#include "sched/policies/apt_serve_values.h"

namespace kvasir {
namespace {

// A request whose cache was discarded, and the form in which it is to be computed again. One that is to have
// K and V stays listed while it is held as X nevertheless, since it has adopted X of cached blocks.
struct FormChange {
  SeqId seq{};
  HybridForm form = HybridForm::kNone;
};

class Section5Step {
 public:
  Section5Step(const View& view, const PaperRules& rules, std::vector<FormChange>& changes,
               PlanBuilder& builder)
      : view_(view),
        rules_(rules),
        changes_(changes),
        builder_(builder),
        running_(by_arrival(view.running)),
        values_(view, rules.decay) {
    std::erase_if(changes_, [&](const FormChange& c) { return !is_open(c); });
  }

  void plan() {
    if (any_prefilling(view_)) {  // it was cut short
      decode();
      prefill_on();
    } else if (!compute_again() && !(waiting_is_more_urgent(view_) && admit())) {
      decode();
    }
  }

 private:
  // ---------------------------------------------------------------- changes of the form

  bool is_open(const FormChange& change) const {
    const auto is_it = [&](const SeqView& s) { return s.id == change.seq; };
    if (std::any_of(view_.waiting.begin(), view_.waiting.end(), is_it)) return true;
    return change.form == HybridForm::kKv &&
           std::any_of(view_.running.begin(), view_.running.end(),
                       [&](const SeqView& s) { return is_it(s) && held_as_x(s); });
  }
  HybridForm change_of(const SeqView& seq) const {
    const auto it =
        std::find_if(changes_.begin(), changes_.end(), [&](const FormChange& c) { return c.seq == seq.id; });
    return it == changes_.end() ? HybridForm::kNone : it->form;
  }
  void forget_change(const SeqView& seq) {
    std::erase_if(changes_, [&](const FormChange& c) { return c.seq == seq.id; });
  }

  // A prefill step for those whose cache was discarded. True if it has rows. One for which there is no room,
  // although no cells are about to become free, waits as the others do from now on.
  bool compute_again() {
    for (const SeqView& seq : view_.waiting) {
      const HybridForm form = change_of(seq);
      if (form == HybridForm::kNone || !fits_budget(rows_of(seq))) continue;
      const bool as_x = form == HybridForm::kX;
      const Answer answer = admit_one(seq, as_x);
      if (answer == Answer::kAdmitted ? as_x : builder_.coming_cells() <= 0) {
        forget_change(seq);
      } else if (answer == Answer::kRefused) {
        refused(view_, seq, admission(as_x), builder_);
      }
    }
    return builder_.planned_tokens() > 0;
  }

  // ---------------------------------------------------------------- prefill steps

  // Whether X of it is possible at all: a step can project it however long it becomes.
  bool may_be_x(const SeqView& seq) const {
    return rules_.hidden && view_.geometry.has(Form::kX) && builder_.passes_ring(seq) && !streams(seq);
  }
  bool streams(const SeqView& seq) const { return builder_.kv_placement(seq).streams; }

  // Where X costs the others so much that it is worth less by the byte than K and V, "its hidden cache usage
  // is avoided", also where K and V do not fit.
  HybridCandidate candidate(const SeqView& seq, uint64_t kv) const {
    HybridCandidate c = values_.candidate(seq, kv, may_be_x(seq) ? bytes_as_x(view_.geometry, seq) : 0);
    const auto by_the_byte = [](double value, uint64_t bytes) { return value / static_cast<double>(bytes); };
    if (c.x_bytes > 0 && by_the_byte(c.value - c.penalty, c.x_bytes) < by_the_byte(c.value, kv))
      c.x_bytes = 0;
    return c;
  }

  // M for a prefill step: the device less the K and V of all that run, and of those that are computed again.
  uint64_t room_beside_running() const {
    uint64_t room = free_bytes(view_, builder_), missing = 0;
    for (const SeqView& seq : view_.running) {
      const uint64_t has =
          values_.held_bytes(seq) + uint64_t{seq.promised(Tier::kDevice)} * view_.geometry.kv_cell_bytes();
      if (!streams(seq)) missing += values_.kv_bytes(seq) - std::min(values_.kv_bytes(seq), has);
    }
    for (const SeqView& seq : view_.waiting) {
      if (change_of(seq) != HybridForm::kNone) missing += values_.kv_bytes(seq);
    }
    return room - std::min(room, missing);
  }

  bool admit() {
    std::vector<HybridCandidate> candidates;
    candidates.reserve(view_.waiting.size());
    for (const SeqView& seq : view_.waiting) {
      if (change_of(seq) != HybridForm::kNone) {
        candidates.emplace_back();  // no candidate: it has its room
        continue;
      }
      const uint64_t kv = bytes_as_kv(view_.geometry, seq);
      HybridCandidate c = candidate(seq, kv);
      if (streams(seq)) {
        // It needs two blocks at a time, which shall not raise its value by the byte.
        c.kv_bytes = std::min(kv, 2 * view_.geometry.kv_block_bytes());
        c.value *= static_cast<double>(c.kv_bytes) / static_cast<double>(std::max<uint64_t>(kv, 1));
      }
      candidates.push_back(c);
    }
    const HybridChoice choice = choose_batch(candidates, room_beside_running());
    for (uint32_t i : choice.order) {
      const SeqView& seq = view_.waiting[i];
      const bool as_x = choice.forms[i] == HybridForm::kX;
      if (admit_one(seq, as_x) == Answer::kRefused) refused(view_, seq, admission(as_x), builder_);
    }
    return builder_.planned_tokens() > 0;
  }

  uint32_t rows_of(const SeqView& seq) const { return seq.known_tokens - seq.cached_tokens; }
  bool fits_budget(uint32_t rows) const {
    return builder_.planned_tokens() == 0 ||
           builder_.planned_tokens() + rows <= view_.limits.max_num_batched_tokens;
  }
  AdmitOptions admission(bool as_x) const {
    return as_x ? admission_as_x(view_, /*spare_blocks=*/0) : AdmitOptions{};
  }

  enum class Answer { kAdmitted, kRefused, kNotAsked };

  Answer admit_one(const SeqView& seq, bool as_x) {
    const uint32_t rows = rows_of(seq);
    if (!fits_budget(rows) || (as_x && !has_room_as_x(view_, seq, rows, /*spare_blocks=*/0, builder_))) {
      return Answer::kNotAsked;
    }
    if (!builder_.admit(seq, admission(as_x))) return Answer::kRefused;
    const bool has_rows = builder_.prefill(seq, rows, as_x ? rows_as_x(view_) : RowOptions{}) > 0;
    return has_rows ? Answer::kAdmitted : Answer::kNotAsked;
  }

  // Goes on with prompts that were cut short.
  void prefill_on() {
    for (const SeqView* seq : running_) {
      if (seq->decoding() || builder_.has_rows(seq->id) || builder_.preempted(seq->id)) continue;
      const bool as_x = goes_on_as_x(*seq, builder_) && change_of(*seq) != HybridForm::kKv;
      uint32_t rows = seq->tokens_to_compute();
      if (as_x) rows = std::min(rows, rows_with_x_cells(view_, *seq, builder_));
      if (rows == 0) continue;
      builder_.prefill(*seq, rows, as_x ? rows_as_x(view_) : RowOptions{});
      if (!as_x) give_up_needless_x(view_, *seq, builder_);
    }
  }

  // ---------------------------------------------------------------- decode steps

  void decode() {
    std::vector<const SeqView*> candidates, order;
    for (const SeqView* seq : running_) {
      if (seq->decoding() && !streams(*seq)) candidates.push_back(seq);
    }
    const HybridChoice choice = choose_running(candidates);
    for (uint32_t i = 0; i < candidates.size(); ++i) apply(*candidates[i], choice.forms[i]);
    const auto next = [&](const SeqView& seq) {
      if (!builder_.preempted(seq.id)) order.push_back(&seq);
    };
    for (uint32_t i : choice.order) next(*candidates[i]);
    for (uint32_t i = 0; i < candidates.size(); ++i) {
      if (choice.forms[i] == HybridForm::kNone) next(*candidates[i]);  // the last one that runs
    }
    for (const SeqView* seq : running_) {
      if (seq->decoding() && streams(*seq)) next(*seq);
    }
    for (const SeqView* seq : running_) {
      if (!seq->decoding()) next(*seq);
    }
    // The choice counts bytes, and those of steps in flight: a block may be missing nevertheless.
    const auto preempt = [&](const SeqView& seq, const SeqView& other) {
      const Cause cause = seq.decoding() ? Cause::kLeastValue : Cause::kPromptIsBegun;
      builder_.because(preempted_for_token(cause, seq, other));
      forget_change(seq);
      builder_.preempt_and_drop(seq);
    };
    for (const SeqView* seq : order) upgrade(*seq);
    decode_or_preempt(order, builder_, preempt, [&](const SeqView& seq) {
      if (builder_.has_rows(seq.id)) return true;
      return goes_on_as_x(seq, builder_) ? decode_as_x(view_, seq, builder_)
                                         : decode_as_kv(view_, seq, builder_);
    });
  }

  // M: the device, less what is computed again and what prompts that were cut short hold or are promised.
  HybridChoice choose_running(const std::vector<const SeqView*>& running) const {
    uint64_t room = free_bytes(view_, builder_) + coming_bytes(), taken = 0;
    std::vector<HybridCandidate> candidates;
    candidates.reserve(running.size());
    for (const SeqView* seq : running) {
      room += values_.held_bytes(*seq);
      candidates.push_back(candidate(*seq, values_.kv_bytes(*seq)));
    }
    for (const SeqView& seq : view_.waiting) {
      const HybridForm form = change_of(seq);
      if (form == HybridForm::kKv) taken += values_.kv_bytes(seq);
      if (form == HybridForm::kX) taken += bytes_as_x(view_.geometry, seq);
    }
    return choose_batch(candidates, room - std::min(room, taken));
  }
  uint64_t coming_bytes() const {
    return static_cast<uint64_t>(std::max<int64_t>(builder_.coming_cells(), 0)) *
           view_.geometry.kv_cell_bytes();
  }

  // What the choice says of one that runs. The last one that runs is not left out.
  void apply(const SeqView& seq, HybridForm form) {
    const HybridForm has = held_as_x(seq) ? HybridForm::kX : HybridForm::kKv;
    if (form == has || !builder_.can_stop(seq)) return;
    if (form == HybridForm::kNone) {
      if (builder_.running_seqs() <= 1) return;
      builder_.because({Cause::kNotChosen, seq.id});
      forget_change(seq);
    } else {
      if (change_of(seq) == form) return;  // that was done: upgrade()
      builder_.because({form == HybridForm::kX ? Cause::kBecomesX : Cause::kBecomesKv, seq.id});
      changes_.push_back({seq.id, form});
    }
    builder_.preempt_and_drop(seq);
  }

  // One that is to have K and V and has adopted X in place of what was discarded: it keeps what this step
  // projects, if there is room beside the blocks that other decodes begin.
  void upgrade(const SeqView& seq) {
    if (change_of(seq) != HybridForm::kKv || !seq.decoding() || !held_as_x(seq)) return;
    const bool memory = view_.scratch_tokens == 0 || builder_.planned_tokens() < view_.scratch_tokens;
    const uint32_t others = blocks_wanted(view_, builder_) - (wants_block(view_, seq) ? 1 : 0);
    if (memory && upgrade_to_kv(view_, seq, others, builder_)) builder_.decode(seq);
  }

  const View& view_;
  const PaperRules& rules_;
  std::vector<FormChange>& changes_;
  PlanBuilder& builder_;
  const std::vector<const SeqView*> running_;  // by arrival
  const AptServeValues values_;
};

class AptServeBySection5 final : public BatchPolicy {
 public:
  explicit AptServeBySection5(const PaperRules& rules) : rules_(rules) {}

  bool keeps_x() const override { return rules_.hidden; }

  // The changes of the form that are not done: "7 kv 9 x".
  std::string save_state() const override {
    std::string out;
    for (const FormChange& c : changes_) {
      out +=
          fmt::format("{}{} {}", out.empty() ? "" : " ", raw(c.seq), c.form == HybridForm::kX ? "x" : "kv");
    }
    return out;
  }
  Status restore_state(std::string_view state) override {
    std::istringstream in{std::string(state)};
    std::vector<FormChange> changes;
    std::string form;
    for (uint64_t id = 0; in >> id;) {
      if (!(in >> form) || (form != "x" && form != "kv")) {
        in.setstate(std::ios::badbit);
        break;
      }
      changes.push_back({SeqId{id}, form == "x" ? HybridForm::kX : HybridForm::kKv});
    }
    if (!in.eof() || in.bad()) {
      return error(ErrorCode::kInvalidArgument, "'{}' names no requests and the forms that they get", state);
    }
    changes_ = std::move(changes);
    return {};
  }

 private:
  void plan_batch(const View& view, PlanBuilder& builder) override {
    Section5Step(view, rules_, changes_, builder).plan();
  }

  const PaperRules rules_;
  std::vector<FormChange> changes_;
};

}  // namespace

std::unique_ptr<BatchPolicy> make_apt_serve_by_section5(const PaperRules& rules) {
  return std::make_unique<AptServeBySection5>(rules);
}

}  // namespace kvasir
