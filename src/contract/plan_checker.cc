#include "contract/plan_checker.h"

#include <algorithm>
#include <unordered_map>

#include "contract/cell_ledger.h"

namespace kvasir {
namespace {

// A sequence as the plan has left it so far.
struct SeqState {
  const SeqView* view = nullptr;
  bool was_running = false;
  bool running = false;
  bool failed = false;
  uint32_t ready = 0;
  uint32_t blocks = 0;
  uint32_t resident = 0;
  LayerSet covered;  // layer groups whose history rows may read: on the device, staged or coming
  bool tail_resident = true;
  std::array<uint32_t, kTiers> promised{};
  std::array<bool, kTiers> dropped{};
  LayerSet written_through;  // groups that rows of this plan write to the host, and which tokens of them
  Interval written_tokens;
  bool through_ring = false;  // some of its rows did
};

template <typename... Args>
Status broken(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorCode::kInvalidArgument, "plan: {}", fmt::format(format, std::forward<Args>(args)...));
}

class Checker {
 public:
  explicit Checker(const View& view)
      : view_(view),
        groups_(view.geometry.groups()),
        all_(LayerSet::all(groups_)),
        device_(view, Tier::kDevice),
        host_(view, Tier::kHost) {
    seqs_.reserve(view.running.size() + view.waiting.size());
    for (const auto& s : view.running) add(s, true);
    for (const auto& s : view.waiting) add(s, false);
    running_ = view.running.size();
  }

  Status check(const StepPlan& plan) {
    for (const auto& f : plan.failures) KV_RETURN_IF_ERROR(failure(f));
    for (const auto& p : plan.preemptions) KV_RETURN_IF_ERROR(preemption(p));
    for (const auto& a : plan.adoptions) KV_RETURN_IF_ERROR(adoption(a));
    for (const auto& c : plan.copies) {
      if (c.verb == Verb::kDrop && c.trigger == Trigger::kNow) KV_RETURN_IF_ERROR(drop_now(c));
    }
    for (const auto& p : plan.promises) KV_RETURN_IF_ERROR(promise(p));
    for (const auto& c : plan.copies) {
      if (c.verb != Verb::kDrop || c.trigger != Trigger::kNow) KV_RETURN_IF_ERROR(copy(c));
    }
    for (const auto& r : plan.rows) KV_RETURN_IF_ERROR(rows(r));
    for (Tier tier : {Tier::kDevice, Tier::kHost}) {
      if (ledger(tier).available() < 0) {
        return broken("takes {} cells more than are free, idle or given up on the {} tier",
                      -ledger(tier).available(), name(tier));
      }
    }
    if (staged_blocks_ > view_.stage_blocks) {
      return broken("stages {} blocks of a layer, the ring has room for {}", staged_blocks_,
                    view_.stage_blocks);
    }
    // One whose last rows did not count runs again, though its place may have been given away.
    if (running_ > std::max<size_t>(view_.limits.max_num_seqs, view_.running.size())) {
      return broken("{} sequences would run, the limit is {}", running_, view_.limits.max_num_seqs);
    }
    if (stands_still(view_, plan)) {
      return broken("{} running and {} waiting sequences, but nothing runs and nothing fails",
                    view_.running.size(), view_.waiting.size());
    }
    return {};
  }

 private:
  void add(const SeqView& s, bool running) {
    SeqState state;
    state.view = &s;
    state.was_running = state.running = running;
    state.ready = s.ready_tokens;
    state.blocks = s.blocks;
    state.resident = s.resident_blocks;
    state.covered = s.resident() ? all_ : s.device_groups;
    state.tail_resident = s.tail_resident;
    state.promised = s.promised_cells;
    seqs_.emplace(s.id, state);
  }

  CellLedger& ledger(Tier tier) { return tier == Tier::kHost ? host_ : device_; }

  SeqState* find(SeqId id) {
    auto it = seqs_.find(id);
    return it == seqs_.end() || it->second.failed ? nullptr : &it->second;
  }

  void take(SeqState& s, Tier tier, uint32_t cells) {
    uint32_t& promised = s.promised[static_cast<size_t>(tier)];
    const uint32_t drawn = std::min(cells, promised);
    promised -= drawn;
    ledger(tier).take(cells - drawn);
  }

  // Promises to a sequence that stops running come back.
  void give_back_promises(SeqState& s) {
    for (Tier tier : {Tier::kDevice, Tier::kHost}) {
      ledger(tier).end_promise(s.promised[static_cast<size_t>(tier)]);
    }
    s.promised = {};
  }

  Status failure(const Failure& f) {
    SeqState* s = find(f.seq);
    if (!s) return broken("fails sequence {}, which is not there", raw(f.seq));
    if (f.reason.empty()) return broken("fails sequence {} without a reason", raw(f.seq));
    give_back_promises(*s);
    if (s->running) --running_;
    s->failed = true;
    s->running = false;
    return {};
  }

  Status preemption(const Preemption& p) {
    SeqState* s = find(p.seq);
    if (!s || !s->running) return broken("preempts sequence {}, which does not run", raw(p.seq));
    give_back_promises(*s);
    s->running = false;
    --running_;
    return {};
  }

  // What is true of every copy change.
  Status rectangle(const CopyChange& c, const SeqState* s) const {
    if (!s) return broken("changes copies of sequence {}, which is not there", raw(c.seq));
    if (c.form != Form::kKv || c.tier == Tier::kDisk) {
      return broken("sequence {}: {} of {} on {}: there is KV on device and host", raw(c.seq), name(c.verb),
                    name(c.form), name(c.tier));
    }
    if (c.layers.empty() || !(c.layers - all_).empty()) {
      return broken("sequence {}: {} of {} layer groups, there are {}", raw(c.seq), name(c.verb),
                    c.layers.count(), groups_);
    }
    if (c.tokens.empty() || c.tokens.begin % view_.geometry.block_tokens != 0) {
      return broken("sequence {}: {} of [{}, {}): a block has {} tokens", raw(c.seq), name(c.verb),
                    c.tokens.begin, c.tokens.end, view_.geometry.block_tokens);
    }
    return {};
  }

  Status drop_now(const CopyChange& c) {
    SeqState* s = find(c.seq);
    KV_RETURN_IF_ERROR(rectangle(c, s));
    bool& dropped = s->dropped[static_cast<size_t>(c.tier)];
    if (s->view->blocks == 0 || dropped) {
      return broken("drops cells of sequence {}, which has none", raw(c.seq));
    }
    if (s->running) return broken("drops cells of sequence {}, which goes on running", raw(c.seq));
    if (c.tokens.begin != 0 || c.tokens.end < s->ready || c.layers != all_) {
      return broken("sequence {}: drops [{}, {}) x{} of [0, {}) x{}: what is kept has no use", raw(c.seq),
                    c.tokens.begin, c.tokens.end, c.layers.count(), s->ready, groups_);
    }
    give_back_promises(*s);
    ledger(c.tier).give_up(s->view->own_kv_cells(c.tier));
    dropped = true;
    s->ready = 0;
    s->blocks = s->resident = 0;
    s->covered = all_;
    s->tail_resident = true;
    return {};
  }

  Status copy(const CopyChange& c) {
    SeqState* s = find(c.seq);
    KV_RETURN_IF_ERROR(rectangle(c, s));
    switch (c.verb) {
      case Verb::kStage:
        return stage(c, *s);
      case Verb::kAdd:
        return addition(c, *s);
      case Verb::kDrop:
        break;
    }
    if (c.trigger != Trigger::kWhenReady) {
      return broken("sequence {}: a drop {}", raw(c.seq), name(c.trigger));
    }
    const uint32_t named = view_.geometry.blocks_for(c.tokens.size()) * c.layers.count();
    ledger(c.tier).give_up_later(std::min(named, s->view->own_kv_cells(c.tier)));
    return {};
  }

  Status stage(const CopyChange& c, SeqState& s) {
    if (c.tier != Tier::kDevice || c.trigger != Trigger::kBeforeLayer) {
      return broken("sequence {}: stages on {} ({})", raw(c.seq), name(c.tier), name(c.trigger));
    }
    if (c.tokens != Interval{0, s.ready}) {
      return broken("sequence {}: stages [{}, {}) of a history of {}", raw(c.seq), c.tokens.begin,
                    c.tokens.end, s.ready);
    }
    s.covered |= c.layers;
    return {};
  }

  Status addition(const CopyChange& c, SeqState& s) {
    switch (c.trigger) {
      case Trigger::kAfterLayerWrites:
        if (c.tier == Tier::kDevice) return broken("sequence {}: writes through to the device", raw(c.seq));
        s.written_through |= c.layers;
        s.written_tokens = c.tokens;
        return {};  // the rows take the cells
      case Trigger::kWhenReady:
        return broken("sequence {}: adds when ready", raw(c.seq));
      case Trigger::kBeforeLayer:
        if (c.tier != Tier::kDevice)
          return broken("sequence {}: rows wait for a copy on {}", raw(c.seq), name(c.tier));
        break;
      case Trigger::kNow:
      case Trigger::kBackground:
        break;
    }
    if (s.blocks == 0) return broken("copies cells of sequence {}, which has none", raw(c.seq));
    if (c.tokens.end > s.ready) {
      return broken("sequence {}: copies [{}, {}) of a history of {}", raw(c.seq), c.tokens.begin,
                    c.tokens.end, s.ready);
    }
    // Of a sequence that stops running the last block is copied though it is not full.
    const bool tail = c.tier == Tier::kDevice || (s.was_running && !s.running);
    take(s, c.tier, cells_to_add(view_.geometry, *s.view, s.blocks, c.tokens, c.layers, c.tier, tail));
    if (c.tier == Tier::kDevice && c.trigger == Trigger::kBeforeLayer) {
      if (c.tokens == Interval{0, s.ready}) {
        s.covered |= c.layers;
        if (s.covered == all_) s.resident = s.blocks;
      }
      if (c.tokens.end == s.ready && c.layers == all_) s.tail_resident = true;
    }
    return {};
  }

  Status adoption(const Adoption& a) {
    SeqState* s = find(a.seq);
    if (!s || s->was_running) return broken("sequence {} adopts but does not wait", raw(a.seq));
    if (s->ready != 0 || s->blocks != 0)
      return broken("sequence {} adopts beside cells it holds", raw(a.seq));
    if (a.tokens == 0 || a.tokens > s->view->cached_tokens || a.tokens % view_.geometry.block_tokens != 0) {
      return broken("sequence {} adopts {} tokens, {} are cached, a block has {}", raw(a.seq), a.tokens,
                    s->view->cached_tokens, view_.geometry.block_tokens);
    }
    s->ready = a.tokens;
    s->blocks = s->resident = a.tokens / view_.geometry.block_tokens;
    s->covered = all_;
    device_.adopt(s->blocks * groups_, std::min(s->blocks, s->view->cached_idle_blocks) * groups_);
    return {};
  }

  Status promise(const Promise& p) {
    SeqState* s = find(p.owner);
    if (!s) return broken("promises cells to sequence {}, which is not there", raw(p.owner));
    if (p.tier == Tier::kDisk)
      return broken("promises cells on {} to sequence {}", name(p.tier), raw(p.owner));
    ledger(p.tier).take(p.cells);
    s->promised[static_cast<size_t>(p.tier)] += p.cells;
    return {};
  }

  Status rows(const Rows& r) {
    SeqState* s = find(r.seq);
    if (!s) return broken("has rows of sequence {}, which is not there", raw(r.seq));
    if (s->was_running && !s->running) return broken("preempts sequence {} and runs it", raw(r.seq));
    if (r.tokens.empty() || r.tokens.end > s->view->known_tokens) {
      return broken("sequence {}: rows [{}, {}) of {} known tokens", raw(r.seq), r.tokens.begin, r.tokens.end,
                    s->view->known_tokens);
    }
    if (r.tokens.begin != s->ready) {
      return broken("sequence {}: rows begin at {}, the history ends at {}", raw(r.seq), r.tokens.begin,
                    s->ready);
    }
    if (r.layers != all_ || !(r.writes.kv - all_).empty() || !r.writes.x.empty() ||
        r.writes.tier != Tier::kDevice) {
      return broken("sequence {}: rows pass all layers and write KV on the device", raw(r.seq));
    }
    if (r.samples && r.tokens.end != s->view->known_tokens) {
      return broken("sequence {}: samples at {}, but {} tokens are known", raw(r.seq), r.tokens.end,
                    s->view->known_tokens);
    }
    if (r.kind == RowKind::kDecode && r.tokens.size() != 1) {
      return broken("sequence {}: decodes {} tokens", raw(r.seq), r.tokens.size());
    }
    if ((r.kind == RowKind::kPrefill) != (r.tokens.begin < s->view->prompt_tokens)) {
      return broken("sequence {}: {} at {}, its prompt has {} tokens", raw(r.seq), name(r.kind),
                    r.tokens.begin, s->view->prompt_tokens);
    }
    KV_RETURN_IF_ERROR(history(r, *s));
    if (!s->running) {
      s->running = true;
      ++running_;
    }
    const RowNeeds needs(view_.geometry, s->blocks, s->resident, r.tokens.end, r.writes.kv);
    if (s->through_ring) {
      return broken("sequence {}: rows follow on rows of this step that are kept on the host", raw(r.seq));
    }
    const uint32_t b = view_.geometry.block_tokens;
    const Interval through = {s->blocks * b, r.tokens.end / b * b};
    const bool exact = s->written_through == all_ - r.writes.kv && s->written_tokens == through;
    if (needs.host_cells > 0 ? !exact : !s->written_through.empty()) {
      return broken("sequence {}: rows keep {} of {} layer groups on the device, and the others nowhere",
                    raw(r.seq), r.writes.kv.count(), groups_);
    }
    s->through_ring = needs.host_cells > 0;
    take(*s, Tier::kDevice, needs.device_cells);
    take(*s, Tier::kHost, needs.host_cells);
    staged_blocks_ += needs.stage_blocks;
    s->blocks += needs.new_blocks;
    s->resident += needs.new_blocks - (r.writes.kv == all_ ? 0 : needs.full_blocks);
    s->ready = r.tokens.end;
    return {};
  }

  // What the rows read and the block that they go on writing.
  Status history(const Rows& r, const SeqState& s) const {
    if (s.covered != all_ && s.resident < s.blocks) {
      return broken(
          "sequence {}: of its history [0, {}), {} of {} layer groups are neither on the device nor "
          "staged",
          raw(r.seq), s.ready, (all_ - s.covered).count(), groups_);
    }
    if (!s.tail_resident) {
      return broken("sequence {}: rows go on in a block that is not on the device", raw(r.seq));
    }
    if (s.view->tail_busy) {
      return broken("sequence {}: rows write into a block that is being copied", raw(r.seq));
    }
    return {};
  }

  const View& view_;
  const uint32_t groups_;
  const LayerSet all_;
  CellLedger device_;
  CellLedger host_;
  std::unordered_map<SeqId, SeqState> seqs_;
  uint32_t staged_blocks_ = 0;
  size_t running_ = 0;
};

}  // namespace

// Preemptions, copies and drops move the work forward too: they cannot be repeated for ever, and blocks that
// two sequences shared and gave up are counted as free only in the next view.
bool stands_still(const View& view, const StepPlan& plan) {
  const bool work = !view.running.empty() || !view.waiting.empty();
  return work && view.steps_in_flight == 0 && view.transfers_in_flight == 0 && plan.rows.empty() &&
         plan.failures.empty() && plan.preemptions.empty() && plan.copies.empty();
}

Status check_plan(const View& view, const StepPlan& plan) {
  return Checker(view).check(plan);
}

}  // namespace kvasir
