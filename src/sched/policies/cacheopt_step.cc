#include "sched/policies/cacheopt_step.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/units.h"
#include "sched/mechanisms/chunk_prefills.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/embed.h"
#include "sched/mechanisms/pending_time.h"
#include "sched/mechanisms/preemption_order.h"
#include "sched/mechanisms/prefill_time.h"
#include "sched/mechanisms/refused.h"
#include "sched/mechanisms/share_excess.h"

namespace kvasir {
namespace {

// Bounds of a request that has none: so it is served at some time, before newer ones that have tighter
// bounds.
constexpr uint32_t kDefaultTtftMs = 60'000;
constexpr uint32_t kDefaultTbtMs = 2'000;

// One step's plan. Lengths in tokens, memory in cells of the device.
class CacheOptStep {
 public:
  CacheOptStep(const View& view, const CacheOptOptions& options, const OutputEstimate& estimate,
               Nanos longest_step, PlanBuilder& builder)
      : view_(view),
        options_(options),
        estimate_(estimate),
        longest_step_(longest_step),
        builder_(builder),
        groups_(view.geometry.groups()) {
    for (const SeqView& seq : view.running)
      (needs_room(seq) ? returned_ : going_on_).push_back(request(seq, false));
    waiting_.reserve(view.waiting.size());
    for (const SeqView& seq : view.waiting) waiting_.push_back(request(seq, true));
    for (auto* all : {&returned_, &going_on_, &waiting_}) in_order(*all);
    for (const SeqView& seq : view.running) decodes_ += seq.decoding();
    for (const Claim& claim : view.claims) owed_[claim.creditor] += claim.cells;
  }

  void plan() {
    if (options_.select_by_slo) {
      serve_critical();
      if (options_.preempt_when_short) serve_failures();
    } else {
      serve_returned_in_order();
    }
    go_on();
    keep_reserve();
    if (options_.select_by_slo) {
      share_what_is_left();
    } else {
      admit_in_order();
    }
    if (builder_.idle()) give_up_reserve();
  }

 private:
  struct Request {
    const SeqView* seq;
    bool waits;
    bool late;        // its bound cannot be kept any more; false without one
    Nanos left;       // RT: until its next token is due; below 0 where that is past
    uint32_t demand;  // M: tokens of prompt and estimated output
  };

  // ---------------------------------------------------------------- requests

  Request request(const SeqView& seq, bool waits) const {
    return {&seq, waits, pends_too_long(seq, view_.now), time_left(seq),
            seq.prompt_tokens + estimate_.output(seq)};
  }
  uint32_t rest_of(const SeqView& seq) const { return estimate_.rest(seq); }
  // For one that was preempted, the bound on the gap between two tokens holds.
  Nanos time_left(const SeqView& seq) const {
    if (seq.in_flight > 0) return from_millis(bound_of(seq.slo.tbt_ms, kDefaultTbtMs));
    if (seq.first_token_time == 0) {
      return seq.arrival + from_millis(bound_of(seq.slo.ttft_ms, kDefaultTtftMs)) - view_.now;
    }
    return seq.last_token_time + from_millis(bound_of(seq.slo.tbt_ms, kDefaultTbtMs)) - view_.now;
  }
  static uint32_t bound_of(uint32_t ms, uint32_t otherwise) { return ms > 0 ? ms : otherwise; }
  static Nanos from_millis(uint32_t ms) { return ms * kNanosPerMilli; }

  // It must be in the next step, or it misses its bound, or has missed it.
  bool critical(Nanos left) const {
    return left - longest_step_ < options_.epsilon && (left >= 0 || options_.late == Late::kCritical);
  }
  bool critical(const Request& r) const {
    const bool preempted = r.waits && r.seq->first_token_time > 0;
    return critical(r.left) && !(preempted && options_.preempt_for == PreemptFor::kFirstTokens);
  }

  void in_order(std::vector<Request>& requests) const {
    const auto behind = [&](const Request& r) { return r.late && options_.late == Late::kLast; };
    std::sort(requests.begin(), requests.end(), [&](const Request& a, const Request& b) {
      if (options_.select_by_slo) {
        if (behind(a) != behind(b)) return behind(b);
        if (a.left != b.left) return a.left < b.left;
      }
      return std::pair(a.seq->arrival, raw(a.seq->id)) < std::pair(b.seq->arrival, raw(b.seq->id));
    });
  }

  // ---------------------------------------------------------------- memory

  // One that streams has no allocation of its own to use up.
  bool needs_room(const SeqView& seq) const {
    return wants_block(view_, seq) && !builder_.kv_placement(seq).streams;
  }
  uint32_t cells_for(uint32_t tokens) const {
    return view_.geometry.most_cells(view_.geometry.blocks_for(tokens));
  }
  // It waits, and this plan has not admitted it yet.
  bool outside(const Request& r) const { return r.waits && !builder_.has_rows(r.seq->id); }
  // Held and promised. What one that waits holds elsewhere is to come back.
  uint32_t allocated(const Request& r) const {
    const SeqView& seq = *r.seq;
    const uint32_t dead = seq.dead_cells(view_.geometry);
    if (!outside(r)) return builder_.blocks(seq) * groups_ - dead + builder_.promised(seq);
    const uint32_t here = seq.kv_cells(Tier::kDevice);
    return here - std::min(here, seq.leaving_cells) + builder_.promised(seq) + seq.cached_in_use();
  }
  // Cells that it lacks for so many tokens.
  uint32_t missing(const Request& r, uint32_t tokens) const {
    const uint32_t all = cells_for(tokens);
    return all - std::min(all, allocated(r));
  }
  // Cells that it lacks for its demand, beside those that others owe it: lent, or to be released.
  uint32_t unfulfilled(const Request& r) const {
    const uint32_t cells = missing(r, r.demand);
    const auto owed = owed_.find(r.seq->id);
    return owed == owed_.end() ? cells : cells - std::min(cells, owed->second);
  }
  // Tokens that a running request can have before it needs more.
  uint32_t room_left(const Request& r) const {
    const CacheGeometry& g = view_.geometry;
    const uint32_t blocks =
        std::max(g.blocks_within(allocated(r)), (allocated(r) + r.seq->dead_cells(g)) / groups_);
    const uint32_t has = blocks * g.block_tokens;
    return has - std::min(has, r.seq->known_tokens);
  }
  int64_t free_cells() const { return std::max<int64_t>(0, builder_.available_cells()); }
  // The basic need: its prompt, or what it has, and a unit beyond.
  uint32_t basic_tokens(const SeqView& seq) const {
    return std::min(seq.known_tokens + options_.padding.least,
                    std::max(seq.known_tokens, seq.max_total_tokens));
  }

  static uint32_t rows_to_compute(const SeqView& seq) {
    const uint32_t cached = seq.blocks > 0 ? 0 : seq.cached_tokens;
    return seq.tokens_to_compute() - std::min(seq.tokens_to_compute() - 1, cached);
  }
  // Rows of a prompt for which the step has room beside the decodes that are still to come, and, unless it is
  // urgent, as many as the bounds of those allow; at least a block, or the prompt would never end.
  uint32_t chunk_for(const SeqView& seq, bool urgent) const {
    const uint32_t room = chunk_room(view_, builder_, view_.limits.long_prefill_token_threshold);
    const uint32_t rows = std::min(rows_to_compute(seq), room - std::min(room, decodes_to_come()));
    return urgent ? rows : rows_in_time(seq.ready_tokens, rows);
  }
  uint32_t rows_in_time(uint32_t history, uint32_t rows) const {
    if (!options_.cut_to_gap || !view_.costs.known() || rows == 0 || tightest_left() <= 0) return rows;
    const double seconds = to_seconds(tightest_left());
    const uint32_t in_time = prefill_rows_within(view_.costs, builder_.work(), seconds, history, rows);
    return std::max(in_time, std::min(rows, view_.geometry.block_tokens));
  }
  uint32_t decodes_to_come() const {
    const uint32_t planned = static_cast<uint32_t>(builder_.work().decode_rows);
    return decodes_ - std::min(decodes_, planned);
  }
  // How long the step may take for those that decode in it. 0: there is no bound.
  Nanos tightest_left() const {
    if (tightest_ != kNotCounted) return tightest_;
    Nanos least = std::numeric_limits<Nanos>::max();
    for (const auto* all : {&going_on_, &returned_}) {
      for (const Request& r : *all) {
        if (r.seq->decoding() && r.seq->slo.tbt_ms > 0 && r.left > 0) least = std::min(least, r.left);
      }
    }
    return tightest_ = least == std::numeric_limits<Nanos>::max() ? 0 : least;
  }

  // ---------------------------------------------------------------- embedding

  // Puts it into the promise of another one, if it fits there. True if that is settled: it has rows, or was
  // admitted without getting any.
  bool embed(const Request& r, bool urgent) {
    const SeqView& seq = *r.seq;
    if (options_.embed == Embedding::kOff || builder_.kv_placement(seq).streams) return false;
    if (r.waits && (seq.blocks > 0 || builder_.running_seqs() >= view_.limits.max_num_seqs)) return false;
    const uint32_t cells = missing(r, r.demand);
    if (cells == 0 || (options_.embed == Embedding::kWhenShort && free_cells() >= cells)) return false;
    const uint32_t rows = r.waits ? chunk_for(seq, urgent) : 1;
    if (rows == 0 || (!r.waits && !builder_.can_run(seq))) return false;
    if (!hosts_) hosts_.emplace(view_, builder_);
    const Host host = hosts_->find(seq, cells, rest_of(seq), options_.buffer_tokens);
    if (host.seq == nullptr) return false;
    if (r.waits) {
      if (!builder_.admit_guest(*host.seq, seq, cells, host.due_tokens)) return false;
      start(seq, rows);
    } else {
      if (!builder_.lend(*host.seq, seq, cells, host.due_tokens)) return false;
      builder_.decode(seq);
      promise_changed(seq);
    }
    promise_changed(*host.seq);
    return true;
  }

  // Of one that runs.
  void promise_changed(const SeqView& seq) {
    if (hosts_) hosts_->update(seq);
  }

  // Of one that this plan has admitted.
  bool start(const SeqView& seq, uint32_t rows) {
    if (seq.decoding()) return builder_.decode(seq);
    return builder_.prefill(seq, rows) > 0;
  }

  // ---------------------------------------------------------------- critical requests

  // Basic needs, the largest first: of others' promises, of what is free, and then at the cost of those that
  // have time.
  void serve_critical() {
    std::vector<std::pair<uint32_t, const Request*>> by_need;
    for (const auto* all : {&returned_, &waiting_}) {
      for (const Request& r : *all) {
        if (critical(r)) by_need.emplace_back(missing(r, basic_tokens(*r.seq)), &r);
      }
    }
    std::stable_sort(by_need.begin(), by_need.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& [cells, r] : by_need) {
      if (builder_.preempted(r->seq->id) || embed(*r, /*urgent=*/true)) continue;
      serve_basic(*r, /*may_preempt=*/!r->waits || options_.preempt_for != PreemptFor::kRunning);
      if (!r->waits) promise_changed(*r->seq);
    }
  }

  void serve_basic(const Request& r, bool may_preempt) {
    const SeqView& seq = *r.seq;
    if (r.waits && builder_.running_seqs() >= view_.limits.max_num_seqs) return;
    const uint32_t rows = r.waits ? chunk_for(seq, /*urgent=*/true) : 1;
    if (rows == 0 || (!r.waits && !builder_.can_run(seq))) return;
    if (builder_.kv_placement(seq).streams) {
      if (builder_.admit(seq)) start(seq, rows);
      return;
    }
    const uint32_t cells = missing(r, basic_tokens(seq));
    const bool short_of_it = free_cells() < cells;
    if (short_of_it && !r.waits && builder_.draw_reserve(seq, groups_)) {
      builder_.decode(seq);
      return;
    }
    if (short_of_it && may_preempt) make_room_for(r, cells);
    if (builder_.preempted(seq.id)) return;
    if (r.waits) {
      const AdmitOptions basic{.total_tokens = basic_tokens(seq)};
      if (builder_.admit(seq, basic)) {
        start(seq, rows);
      } else {
        refused(view_, seq, basic, builder_);
      }
    } else if (builder_.promise_own(seq, cells) || builder_.available_cells() >= groups_) {
      builder_.decode(seq);
    }
  }

  // Those that have used up their room, and have time: the basic need, of others' promises, of what is free,
  // or at the cost of the first in the order, which may be the request itself (Section 3.4).
  void serve_failures() {
    for (const Request& r : returned_) {
      const SeqView& seq = *r.seq;
      if (critical(r) || builder_.preempted(seq.id) || !builder_.can_run(seq)) continue;
      if (!embed(r, /*urgent=*/false)) serve_basic(r, /*may_preempt=*/true);
      promise_changed(seq);
    }
  }

  // Preempts those that have time, in order, until so many cells are free or will come free; none where all
  // of them together would not make enough.
  void make_room_for(const Request& r, uint32_t cells) {
    // Cells that are coming serve one of those that wait for them.
    const auto room = [&] { return builder_.available_cells() + builder_.coming_cells() - awaited_; };
    const int64_t missing = cells - room();
    if (missing > 0) {
      const std::vector<const SeqView*> victims = victims_for(r, missing);
      if (victims.empty()) return;
      for (const SeqView* victim : victims) {
        if (room() >= cells) break;
        builder_.because(why_preempted(*victim, *r.seq, cells));
        preempt_by(options_.strategy, view_, *victim, builder_);
        promise_changed(*victim);
      }
    }
    if (builder_.available_cells() < cells && !builder_.preempted(r.seq->id)) awaited_ += cells;
  }

  Reason why_preempted(const SeqView& victim, const SeqView& other, uint32_t cells) const {
    const double blocks = ceil_div(cells, groups_);
    if (!options_.victim_by_slo) return {Cause::kArrivedLast, victim.id, other.id, blocks};
    return {Cause::kFirstInOrder, victim.id, other.id, blocks, static_cast<double>(estimate_.rest(victim))};
  }

  // Those that are to give up that many cells; none where all together have fewer.
  std::vector<const SeqView*> victims_for(const Request& r, int64_t cells) {
    if (!victims_known_) list_victims();
    std::vector<const SeqView*> chosen;
    auto kept = victims_.begin();
    auto it = kept;
    for (; cells > 0 && it != victims_.end(); ++it) {
      const SeqView* victim = *it;
      // By arrival none is preempted for a request that came later.
      if (!options_.victim_by_slo && !r.waits && !came_after(*victim, *r.seq)) break;
      if (!builder_.can_stop(*victim)) continue;  // nor later in this plan
      *kept++ = victim;
      const uint32_t gives = victim->own_kv_cells(Tier::kDevice) + builder_.promised(*victim);
      // It comes first itself: only one that has time is in this list and asks.
      if (victim->id == r.seq->id && options_.preempt_when_short && builder_.running_seqs() > 1) {
        return {victim};
      }
      if (gives == 0 || victim->id == r.seq->id) continue;
      chosen.push_back(victim);
      cells -= gives;
    }
    victims_.erase(kept, it);
    return cells > 0 ? std::vector<const SeqView*>() : chosen;
  }
  static bool came_after(const SeqView& a, const SeqView& b) {
    return std::pair(a.arrival, raw(a.id)) > std::pair(b.arrival, raw(b.id));
  }

  void list_victims() {
    victims_known_ = true;
    victims_ = cacheopt_victims(view_, options_, estimate_);
    std::erase_if(victims_, [&](const SeqView* s) { return critical(time_left(*s)); });
  }

  // ---------------------------------------------------------------- all others

  void go_on() {
    for (const Request& r : going_on_) {
      if (r.seq->decoding() && !builder_.preempted(r.seq->id) && builder_.decode(*r.seq)) {
        promise_changed(*r.seq);
      }
    }
    for (const Request& r : going_on_) prefill_on(*r.seq);
  }

  void prefill_on(const SeqView& seq) {
    if (seq.decoding() || builder_.has_rows(seq.id) || builder_.preempted(seq.id)) return;
    const uint32_t rows = chunk_for(seq, /*urgent=*/false);
    if (rows > 0 && builder_.prefill(seq, rows) > 0) promise_changed(seq);
  }

  // What was drawn of the reserve comes back as room becomes free.
  void keep_reserve() {
    const double share = options_.reserve_share * view_.total_cells(Tier::kDevice);
    const uint32_t wanted =
        (options_.reserve_tokens > 0 ? cells_for(options_.reserve_tokens) : 0) + static_cast<uint32_t>(share);
    // Where none runs it would only keep the first one out.
    builder_.set_reserve(builder_.running_seqs() == 0 ? 0 : std::min(wanted, most_reserved()));
  }
  // Nothing can go on and nothing is under way: a running request that lacks what the reserve holds has had
  // an allocation failure, for which the reserve is there (Section 3.3.3). It is filled again as room becomes
  // free.
  void give_up_reserve() {
    if (view_.steps_in_flight > 0 || view_.transfers_in_flight > 0 || builder_.reserve() == 0) return;
    builder_.set_reserve(0);
    go_on();
    for (const Request& r : returned_) {
      if (!builder_.preempted(r.seq->id)) serve_basic(r, /*may_preempt=*/false);
    }
  }
  uint32_t most_reserved() const { return view_.total_cells(Tier::kDevice) / 4; }

  // Divides what is not promised among critical requests, for more than their basic need, those that returned
  // without room, those that will in a few steps, and as many waiting ones as the step has rows for.
  void share_what_is_left() {
    std::vector<const Request*> sharers;
    std::vector<MemoryDemand> demands;
    int64_t room = free_cells();
    const auto join = [&](const Request& r, uint32_t least) {
      const uint32_t wanted = std::max(least, unfulfilled(r));
      if (wanted == 0) return;
      sharers.push_back(&r);
      demands.push_back({wanted, least, weight_of(r)});
      room -= least;
    };
    bool short_of_room = false;
    for (const Request& r : returned_) {
      const SeqView& seq = *r.seq;
      if (builder_.preempted(seq.id)) continue;
      if (builder_.has_rows(seq.id)) {
        join(r, 0);
      } else if (builder_.can_run(seq) && !embed(r, /*urgent=*/false)) {
        const uint32_t least = missing(r, basic_tokens(seq));
        if (least <= room) {
          join(r, least);
        } else if (builder_.draw_reserve(seq, groups_)) {
          builder_.decode(seq);
          promise_changed(seq);
        } else {
          short_of_room = true;
        }
      }
    }
    for (const Request& r : going_on_) {
      if (options_.proactive_steps == 0 || !r.seq->decoding() || builder_.preempted(r.seq->id)) continue;
      const uint32_t steps = options_.proactive_by_end ? rest_of(*r.seq) : room_left(r);
      if (!builder_.kv_placement(*r.seq).streams && steps <= options_.proactive_steps) join(r, 0);
    }
    // A running request without room goes before those that wait.
    const uint32_t most = chunk_room(view_, builder_, 0);
    uint32_t rows_left = short_of_room ? 0 : rows_in_time(0, most - std::min(most, decodes_to_come()));
    uint32_t seqs = builder_.running_seqs();
    for (const Request& r : waiting_) {
      const SeqView& seq = *r.seq;
      if (builder_.has_rows(seq.id)) {
        if (!builder_.kv_placement(seq).streams) join(r, 0);
        continue;
      }
      if (rows_left == 0 || seqs >= view_.limits.max_num_seqs) continue;
      if (builder_.kv_placement(seq).streams) {
        const uint32_t rows = chunk_for(seq, /*urgent=*/false);
        if (rows == 0 || !builder_.admit(seq)) {
          rows_left = 0;
          continue;
        }
        start(seq, rows);
      } else if (!embed(r, /*urgent=*/false)) {
        const uint32_t least = missing(r, basic_tokens(seq));
        if (least > room) {
          rows_left = 0;
          continue;
        }
        join(r, least);
      }
      rows_left -= std::min(rows_left, rows_to_compute(seq));
      ++seqs;
    }
    const auto available = static_cast<uint64_t>(free_cells());
    const std::vector<uint32_t> given =
        options_.share_as_printed ? share_by_weight(demands, available) : share_excess(demands, available);
    for (size_t i = 0; i < sharers.size(); ++i) give(*sharers[i], given[i], demands[i]);
  }

  // Slack times expected output: a request that can wait and has much to come is cut most. A late one may
  // wait for as long as one without a bound, unless it is to come first. As printed it is slack times prompt.
  double weight_of(const Request& r) const {
    const Nanos slack = r.late && options_.late == Late::kLast ? from_millis(kDefaultTtftMs) : r.left;
    const uint32_t length = options_.share_as_printed ? r.seq->prompt_tokens : rest_of(*r.seq);
    return std::max(0.0, to_seconds(slack)) * static_cast<double>(length);
  }

  void give(const Request& r, uint32_t share, const MemoryDemand& demand) {
    const SeqView& seq = *r.seq;
    // In whole blocks.
    const uint32_t cells = std::max(share / groups_ * groups_, demand.least);
    if (outside(r)) {
      const uint32_t rows = chunk_for(seq, /*urgent=*/false);
      const CacheGeometry& g = view_.geometry;
      const uint32_t most = g.blocks_for(std::max(seq.known_tokens, seq.max_total_tokens));
      const uint32_t blocks = std::min(g.blocks_within(allocated(r) + cells), most);
      if (rows == 0 || !builder_.admit(seq, {.total_tokens = blocks * g.block_tokens})) return;
      if (!start(seq, rows)) return;
    } else {
      if (!builder_.promise_own(seq, cells)) return;
      if (!builder_.has_rows(seq.id) && !builder_.decode(seq)) return;
    }
    if (cells < demand.wanted) claim_release(r, demand.wanted - cells);
  }

  // Promises it what another request frees that is believed to end before this one has used up what it has;
  // of those, the one that ends last.
  void claim_release(const Request& r, uint32_t cells) {
    if (!ends_known_) list_ends();
    const auto after = std::upper_bound(ends_.begin(), ends_.end(), room_left(r),
                                        [](uint32_t steps, const End& end) { return steps < end.steps; });
    for (auto it = after; it != ends_.begin();) {
      End& end = *--it;
      if (end.cells < cells || end.seq->id == r.seq->id) continue;
      builder_.promise_release(*end.seq, *r.seq, cells);
      end.cells = 0;  // they are promised now
      return;
    }
  }
  // None is preempted after that.
  void list_ends() {
    ends_known_ = true;
    std::vector<SeqId> owing;
    for (const Claim& claim : view_.claims) owing.push_back(claim.debtor);
    std::sort(owing.begin(), owing.end());
    for (const SeqView& seq : view_.running) {
      if (!seq.decoding() || builder_.preempted(seq.id)) continue;
      if (std::binary_search(owing.begin(), owing.end(), seq.id)) continue;
      ends_.push_back({rest_of(seq), seq.own_kv_cells(Tier::kDevice), &seq});
    }
    std::stable_sort(ends_.begin(), ends_.end(),
                     [](const End& a, const End& b) { return a.steps < b.steps; });
  }

  // ---------------------------------------------------------------- without a choice by bounds (/RSA)

  void serve_returned_in_order() {
    for (const Request& r : returned_) {
      if (!builder_.preempted(r.seq->id)) serve_basic(r, /*may_preempt=*/true);
    }
  }

  // Each with all that it is believed to need, while there is room for it.
  void admit_in_order() {
    for (const Request& r : waiting_) {
      const SeqView& seq = *r.seq;
      const uint32_t rows = chunk_for(seq, /*urgent=*/true);
      if (rows == 0) return;
      if (!builder_.admit(seq, {.total_tokens = r.demand})) {
        refused(view_, seq, {.total_tokens = r.demand}, builder_);
        return;
      }
      start(seq, rows);
    }
  }

  static constexpr Nanos kNotCounted = -1;

  struct End {
    uint32_t steps;  // until then, as it is believed
    uint32_t cells;  // that it frees
    const SeqView* seq;
  };

  const View& view_;
  const CacheOptOptions& options_;
  const OutputEstimate& estimate_;
  const Nanos longest_step_;
  PlanBuilder& builder_;
  const uint32_t groups_;
  std::vector<Request> returned_;             // running, and have used up what they had: N_r and N_r'
  std::vector<Request> going_on_;             // running, with room
  std::vector<Request> waiting_;              // N_w, N_w' and those behind
  std::unordered_map<SeqId, uint32_t> owed_;  // cells of claims, by creditor
  std::optional<Hosts> hosts_;                // as the plan is now; made at the first use
  bool victims_known_ = false;
  std::vector<const SeqView*> victims_;  // in order; without those that are known not to be preempted
  bool ends_known_ = false;
  std::vector<End> ends_;  // of those that decode and owe nothing, the first to end at the front
  int64_t awaited_ = 0;    // of the cells that are coming, those that are waited for
  uint32_t decodes_ = 0;
  mutable Nanos tightest_ = kNotCounted;
};

}  // namespace

void plan_cacheopt_step(const View& view, const CacheOptOptions& options, const OutputEstimate& estimate,
                        Nanos longest_step, PlanBuilder& builder) {
  CacheOptStep(view, options, estimate, longest_step, builder).plan();
}

std::vector<const SeqView*> cacheopt_victims(const View& view, const CacheOptOptions& options,
                                             const OutputEstimate& estimate) {
  if (options.victim_by_slo) {
    return preemption_order(view, [&](const SeqView& s) { return estimate.rest(s); });
  }
  std::vector<const SeqView*> out = by_arrival(view.running);
  std::reverse(out.begin(), out.end());
  return out;
}

}  // namespace kvasir
