// vLLM whose preempted sequences wait in the slower tier as hidden states for some layers and as K and V for
// the others (HCache, Gao et al., EuroSys 2025, as eLLM's authors compare themselves with it).
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "sched/batch_policy.h"
#include "sched/mechanisms/admit_prompts.h"
#include "sched/mechanisms/batch_bound.h"
#include "sched/mechanisms/continue_running.h"
#include "sched/mechanisms/decode_or_preempt.h"
#include "sched/mechanisms/hidden_cache.h"
#include "sched/mechanisms/refused.h"
#include "sched/mechanisms/restore_split.h"
#include "sched/mechanisms/swap_in.h"
#include "sched/mechanisms/turn_alone.h"
#include "sched/policy_settings.h"

namespace kvasir {
namespace {

// docs/policies/hcache.md has them by the names that users give them.
struct HcacheOptions {
  // Of the layer groups, the share that is kept as X; below 0: as what is believed of costs makes best.
  double x_share = -1;
  BatchRule batch;
};

// Whether copies in form X are of use: they are smaller, and there is a tier to keep them and a ring through
// which they come back.
bool may_keep_x(const View& view) {
  const CacheGeometry& g = view.geometry;
  const size_t x = index_of(Form::kX);
  return g.has(Form::kX) && g.piece_bytes(Form::kX) < g.piece_bytes(Form::kKv) && view.stage_blocks > 0 &&
         view.device.per_slab[x] > 0 && view.total_cells(view.slower_tier()) > 0 &&
         view.budget(view.slower_tier()).per_slab[x] > 0;
}

// The first layer groups are kept as X: while they are projected the link brings the K and V of the others.
// Sequences older than the decision keep all groups as X, since X is written as tokens are computed.
struct XGroups {
  bool decided = false;
  uint32_t count = 0;
  uint64_t first_seq = 0;  // from this id on

  LayerSet of(const SeqView& seq, uint32_t groups) const {
    return LayerSet::all(decided && raw(seq.id) >= first_seq ? std::min(count, groups) : groups);
  }
};

// One step's plan. A sequence is *whole* while it has X of all of its blocks, in the groups that are kept as
// X, on the device or in the slower tier: then it can leave as X. X of full blocks leaves the device in the
// background.
class HcacheStep {
 public:
  HcacheStep(const View& view, const HcacheOptions& options, const XGroups& x, PlanBuilder& builder)
      : view_(view),
        options_(options),
        x_(x),
        builder_(builder),
        groups_(view.geometry.groups()),
        block_(view.geometry.block_tokens),
        running_(by_arrival(view.running)),
        keeps_x_(may_keep_x(view)) {}

  void plan() {
    const bool swapped = any_swapped_out(view_);
    if (!swapped && !any_prefilling(view_) && admit()) return save_x();
    for (const SeqView* seq : running_) {
      if (is_half_restored(*seq) && seq->in_flight == 0) restore(*seq);
    }
    const uint32_t preempted = decode_or_preempt(
        running_, builder_,
        [&](const SeqView& seq, const SeqView& other) {
          builder_.because(preempted_for_token(Cause::kArrivedLast, seq, other));
          preempt(seq);
        },
        [&](const SeqView& seq) { return decode(seq); });
    prefill_on();
    if (swapped && preempted == 0) {
      swap_in(view_, may_join(view_, swapped, options_.batch),
              admission_watermark(view_) + blocks_wanted(view_, builder_), builder_,
              [&](const SeqView& seq) { return writes_of(seq); });
    }
    save_x();
  }

  // Gives a half restored sequence that was deferred too often a step of its own, as take_turn_alone() does
  // for others.
  void restore_alone() {
    for (const SeqView* seq : running_) {
      if (seq->deferrals < kDeferralsBeforeTurn || !is_half_restored(*seq) || seq->in_flight > 0) continue;
      if (restore(*seq) && builder_.has_rows(seq->id)) return;
    }
  }

 private:
  // ---------------------------------------------------------------- X

  bool can_be_x(const SeqView& seq) const {
    return keeps_x_ && builder_.passes_ring(seq) && !builder_.kv_placement(seq).streams;
  }
  uint32_t x_elsewhere(const SeqView& seq) const {
    return seq.held(Form::kX, Tier::kHost) + seq.held(Form::kX, Tier::kDisk);
  }
  uint32_t x_cells(const SeqView& seq) const { return seq.held(Form::kX, Tier::kDevice) + x_elsewhere(seq); }
  // The groups in which it is whole, or none.
  LayerSet whole_groups(const SeqView& seq) const {
    if (!can_be_x(seq)) return {};
    const LayerSet groups = x_.of(seq, groups_);
    const uint32_t dead = seq.dead_blocks * (groups & view_.geometry.windowed).count();
    return x_cells(seq) >= seq.blocks * groups.count() - dead ? groups : LayerSet{};
  }
  RowOptions writes_of(const SeqView& seq) const {
    RowOptions rows;
    rows.x = whole_groups(seq);
    return rows;
  }

  // The X of full blocks goes to the slower tier; where there is no X of the whole sequence, it is given up.
  void save_x() {
    if (!keeps_x_) return;
    for (const SeqView* seq : running_) {
      if (builder_.preempted(seq->id) || seq->transfers > 0 || x_cells(*seq) == 0) continue;
      if (!save_one(*seq) && seq->resident()) give_up_x(*seq);
    }
  }
  bool save_one(const SeqView& seq) {
    const LayerSet groups = whole_groups(seq);
    if (groups.empty()) return false;
    const uint32_t full = seq.ready_tokens / block_;
    const uint32_t cells = seq.held(Form::kX, Tier::kDevice);
    const uint32_t tail = seq.ready_tokens % block_ == 0 ? 0 : groups.count();
    if (cells <= tail) return true;
    const uint32_t blocks = std::min(full, ceil_div(cells - tail, view_.geometry.lasting_in(groups)));
    const Interval fresh = {(full - blocks) * block_, full * block_};
    const Tier to = view_.slower_tier();
    if (!builder_.add_copies(seq, fresh, groups, to, Trigger::kBackground, Form::kX)) return false;
    builder_.release(seq, {0, full * block_}, groups, Tier::kDevice, Form::kX);
    return true;
  }
  void give_up_x(const SeqView& seq) {
    for (Tier tier : kAllTiers) {
      if (seq.held(Form::kX, tier) == 0) continue;
      builder_.release(seq, {0, seq.ready_tokens}, LayerSet::all(groups_), tier, Form::kX);
    }
  }

  // ---------------------------------------------------------------- prompts

  bool admit() {
    const uint32_t awaited = awaited_blocks(view_);
    for (const SeqView* seq : may_join(view_, /*swapped=*/false, options_.batch)) {
      if (!admit_one(*seq, awaited)) break;
    }
    return builder_.planned_tokens() > 0;
  }

  // False: the requests behind it are not admitted either.
  bool admit_one(const SeqView& seq, uint32_t awaited) {
    const uint32_t tokens = seq.known_tokens - seq.cached_tokens;
    const uint32_t planned = builder_.planned_tokens();
    if (planned > 0 && planned + tokens > view_.limits.max_num_batched_tokens) return false;
    const bool alone = builder_.running_seqs() == 0;
    const uint32_t spare = (alone ? 0 : admission_watermark(view_)) + awaited;
    // There is no X of a prefix that it adopts.
    RowOptions rows;
    if (can_be_x(seq) && seq.cached_tokens == 0) rows.x = x_.of(seq, groups_);
    const uint64_t room = uint64_t{static_cast<uint32_t>(std::max<int64_t>(builder_.available_cells(), 0))};
    if (!rows.x.empty() && cells_with_x(seq, rows.x) + spare * groups_ > room) {
      // Its X takes room until it has left: wait for that, if there can be enough.
      if (!alone && cells_with_x(seq, rows.x) <= view_.total_cells(Tier::kDevice)) return false;
      rows.x = {};
    }
    if (!builder_.admit(seq, {spare})) return refused(view_, seq, {spare}, builder_);
    if (builder_.prefill(seq, tokens, rows) == 0 && !rows.x.empty()) builder_.prefill(seq, tokens);
    return true;
  }

  // In cells of K and V, what it takes with X beside them.
  uint64_t cells_with_x(const SeqView& seq, const LayerSet& x) const {
    const CacheGeometry& g = view_.geometry;
    const uint64_t blocks = g.blocks_for(seq.known_tokens);
    return blocks * groups_ + ceil_div(blocks * x.count() * g.cell_bytes(Form::kX), g.kv_cell_bytes());
  }

  // Goes on with prompts that were cut short.
  void prefill_on() {
    for (const SeqView* seq : running_) {
      if (seq->decoding() || builder_.has_rows(seq->id) || builder_.preempted(seq->id)) continue;
      if (is_half_restored(*seq)) continue;
      prefill(*seq);
    }
  }
  void prefill(const SeqView& seq) {
    const uint32_t tokens = seq.tokens_to_compute();
    const RowOptions rows = writes_of(seq);
    if (!rows.x.empty()) {
      const int64_t cells = std::max<int64_t>(builder_.available_cells(Tier::kDevice, Form::kX), 0);
      const int64_t end = (seq.blocks + cells / rows.x.count()) * block_;
      const int64_t room = std::clamp<int64_t>(end - seq.ready_tokens, 0, tokens);
      if (room > 0 && builder_.prefill(seq, static_cast<uint32_t>(room), rows) > 0) return;
      if (view_.transfers_in_flight > 0 || view_.steps_in_flight > 0) return;
    }
    builder_.prefill(seq, tokens);
  }

  // ---------------------------------------------------------------- decodes

  // False: there is no room for it.
  bool decode(const SeqView& seq) {
    if (builder_.has_rows(seq.id)) return true;
    if (is_half_restored(seq)) return seq.in_flight > 0 || restore(seq);
    const RowOptions rows = writes_of(seq);
    if (builder_.decode(seq, rows)) return true;
    if (rows.x.empty()) return false;
    if (view_.running.size() == 1) return builder_.decode(seq);  // no other makes room
    // Room for X comes free as the X of others leaves.
    return builder_.available_cells() >= groups_ && view_.device.coming[index_of(Form::kX)] > 0;
  }

  void preempt(const SeqView& seq) {
    if (!builder_.preempt_and_offload(seq, whole_groups(seq))) builder_.preempt_and_drop(seq);
  }

  // It came back in a step that did not wait for it, or whose end is not known yet: there are no K and V of
  // what it has as X.
  bool is_half_restored(const SeqView& seq) const {
    return !seq.resident() && can_be_x(seq) && seq.x_elsewhere();
  }
  // Brings it back once more. False, and nothing is planned, where there is no room.
  bool restore(const SeqView& seq) {
    if (seq.stalled || seq.tail_busy) return true;
    const bool memory = view_.scratch_tokens == 0 || builder_.planned_tokens() < view_.scratch_tokens;
    if (!memory || builder_.stage_room() < seq.blocks + 1) return true;
    if (builder_.available_cells() < cells_to_upgrade(view_, seq)) return false;
    const LayerSet all = LayerSet::all(groups_);
    if (!builder_.add_copies(seq, {0, seq.ready_tokens}, all, Tier::kDevice, Trigger::kBeforeLayer)) {
      return false;
    }
    const RowOptions rows = writes_of(seq);
    if (!seq.decoding()) {
      prefill(seq);
    } else if (!builder_.decode(seq, rows)) {
      builder_.decode(seq);
    }
    return true;
  }

  const View& view_;
  const HcacheOptions& options_;
  const XGroups& x_;
  PlanBuilder& builder_;
  const uint32_t groups_;
  const uint32_t block_;
  const std::vector<const SeqView*> running_;  // by arrival
  const bool keeps_x_;
};

class HcachePolicy final : public BatchPolicy {
 public:
  explicit HcachePolicy(const HcacheOptions& options) : options_(options) {}

  bool keeps_x() const override { return options_.x_share != 0; }

  // How many layer groups are kept as X, and from which request on.
  std::string save_state() const override {
    return x_.decided ? fmt::format("{} {}", x_.count, x_.first_seq) : std::string();
  }
  Status restore_state(std::string_view state) override {
    x_ = {};
    if (state.empty()) return {};
    const char* const end = state.data() + state.size();
    const auto count = std::from_chars(state.data(), end, x_.count);
    const bool space = count.ec == std::errc() && count.ptr != end && *count.ptr == ' ';
    const auto first = space ? std::from_chars(count.ptr + 1, end, x_.first_seq) : count;
    if (!space || first.ec != std::errc() || first.ptr != end) {
      x_ = {};
      return error(ErrorCode::kInvalidArgument, "'{}' is not how many layers are kept as X", state);
    }
    x_.decided = true;
    return {};
  }

 private:
  void begin_step(const View& view, PlanBuilder& builder) override {
    if (!x_.decided && may_keep_x(view)) decide(view);
    HcacheStep(view, options_, x_, builder).restore_alone();
  }

  void plan_batch(const View& view, PlanBuilder& builder) override {
    HcacheStep(view, options_, x_, builder).plan();
  }

  void decide(const View& view) {
    if (options_.x_share >= 0) {
      const auto share = static_cast<uint32_t>(std::lround(options_.x_share * view.geometry.groups()));
      x_ = {true, options_.x_share > 0 ? std::max(1u, share) : 0, 0};
      return;
    }
    RestoreCost cost;
    cost.projected_token_s = view.costs.projected_token_s;
    cost.link_s_per_byte =
        view.costs.links[index_of(view.slower_tier())][index_of(Tier::kDevice)].seconds_per_byte;
    if (cost.projected_token_s <= 0 || cost.link_s_per_byte <= 0) return;
    x_ = {true, groups_kept_as_x(view.geometry, cost), 0};
    for (const auto* all : {&view.waiting, &view.running}) {
      for (const SeqView& seq : *all) {
        if (seq.blocks > 0) x_.first_seq = std::max(x_.first_seq, raw(seq.id) + 1);
      }
    }
  }

  const HcacheOptions options_;
  XGroups x_;
};

}  // namespace

std::unique_ptr<BatchPolicy> make_hcache(PolicySettings& settings) {
  HcacheOptions o;
  o.x_share = settings.number("x-share", o.x_share, 0, 1);
  o.batch = batch_rule(settings);
  return std::make_unique<HcachePolicy>(o);
}

}  // namespace kvasir
