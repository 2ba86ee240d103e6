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
  uint32_t peer_blocks = 0;
  LayerSet covered;    // layer groups whose history rows may read: on the device, staged or coming
  LayerSet on_device;  // those of them that are not staged
  bool tail_resident = true;
  std::array<uint32_t, kTiers> promised{};
  std::array<std::array<bool, kTiers>, kForms> dropped{};
  bool cells_dropped = false;  // some, and not all: it is not to run in this plan
  LayerSet written_through;    // groups that rows of this plan write to a slower tier, and which tokens
  Interval written_tokens;
  uint32_t adopted = 0;      // cells of KV on the device
  uint32_t x_elsewhere = 0;  // blocks of which X comes over a link
  Interval again;            // tokens and layer groups that are computed again
  LayerSet again_groups;
  bool goes_on = false;  // has rows that go on from its history
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
        ledgers_{CellLedger(view, Tier::kDevice), CellLedger(view, Tier::kHost),
                 CellLedger(view, Tier::kDisk)},
        reserved_(view.reserved_cells) {
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
    KV_RETURN_IF_ERROR(promises_kept(plan));
    for (const auto& [id, s] : seqs_) {
      if (!s.again.empty() && !s.goes_on)
        return broken("sequence {}: computes again what no row reads", raw(id));
    }
    for (Tier tier : kAllTiers) {
      for (Form form : {Form::kKv, Form::kX, Form::kH}) {
        if (ledger(tier).available(form) < 0) {
          return broken("takes {} cells of {} more than are free, idle or given up on the {} tier",
                        -ledger(tier).available(form), name(form), name(tier));
        }
      }
    }
    if (view_.scratch_tokens > 0 && row_count_ > view_.scratch_tokens) {
      return broken("has {} rows, there is memory for the activations of {}", row_count_,
                    view_.scratch_tokens);
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
    state.peer_blocks = s.peer_blocks;
    state.covered = state.on_device = s.resident() ? all_ : s.device_groups;
    state.tail_resident = s.tail_resident;
    state.promised = s.promised_cells;
    seqs_.emplace(s.id, state);
  }

  CellLedger& ledger(Tier tier) { return ledgers_[index_of(tier)]; }

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
    for (Tier tier : kAllTiers) ledger(tier).end_promise(s.promised[index_of(tier)]);
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
    if (view_.budget(c.tier).per_slab[index_of(c.form)] == 0) {
      return broken("sequence {}: {} of {} on {}: there is no such memory", raw(c.seq), name(c.verb),
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

  // Gives up cells at once: all of a form and tier, of a sequence that does not run; or full blocks, when the
  // rows of this plan have read them.
  Status drop_now(const CopyChange& c) {
    SeqState* s = find(c.seq);
    KV_RETURN_IF_ERROR(rectangle(c, s));
    bool& dropped = s->dropped[index_of(c.form)][index_of(c.tier)];
    if (s->view->blocks == 0 || dropped) {
      return broken("drops cells of sequence {}, which has none", raw(c.seq));
    }
    const uint32_t own = s->view->own(c.form, c.tier);
    // Beyond its history, since that is not all that it gives up: it begins anew.
    const bool whole = c.tokens.begin == 0 && c.tokens.end > s->ready && c.layers == all_;
    if (whole && s->running) return broken("drops cells of sequence {}, which goes on running", raw(c.seq));
    if (!whole) {
      if (c.tokens.end % view_.geometry.block_tokens != 0 || c.tokens.end > s->view->ready_tokens) {
        return broken("sequence {}: drops [{}, {}) of {}, not whole blocks", raw(c.seq), c.tokens.begin,
                      c.tokens.end, s->view->ready_tokens);
      }
      const uint32_t named = view_.geometry.blocks_for(c.tokens.size()) * c.layers.count();
      ledger(c.tier).give_up_later(std::min(named, own), c.form);
      s->cells_dropped |= !s->running;
      return {};
    }
    give_back_promises(*s);
    ledger(c.tier).give_up(own, c.form);
    dropped = true;
    bool anything = false;
    for (Form form : {Form::kKv, Form::kX, Form::kH}) {
      for (Tier tier : kAllTiers) {
        anything |= s->view->held(form, tier) > 0 && !s->dropped[index_of(form)][index_of(tier)];
      }
    }
    s->cells_dropped = anything;
    if (anything) return {};
    s->ready = 0;
    s->blocks = s->resident = s->peer_blocks = 0;
    s->covered = s->on_device = all_;
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
    ledger(c.tier).give_up_later(std::min(named, s->view->own(c.form, c.tier)), c.form);
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
        if (c.tier != view_.slower_tier() || c.form != Form::kKv) {
          return broken("sequence {}: writes {} through to {}", raw(c.seq), name(c.form), name(c.tier));
        }
        s.written_through |= c.layers;
        s.written_tokens = c.tokens;
        return {};  // the rows take the cells
      case Trigger::kWhenReady:
        return broken("sequence {}: adds when ready", raw(c.seq));
      case Trigger::kBeforeLayer:
        if (c.tier != Tier::kDevice || c.form != Form::kKv) {
          return broken("sequence {}: rows wait for a copy of {} on {}", raw(c.seq), name(c.form),
                        name(c.tier));
        }
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
    const uint32_t adopted = c.form == Form::kKv && c.tier == Tier::kDevice ? s.adopted : 0;
    const uint32_t cells =
        cells_to_add(view_.geometry, *s.view, s.blocks, c.tokens, c.layers, c.tier, tail, c.form, adopted);
    ledger(c.tier).find(cells, c.form);
    if (c.form != Form::kKv) {
      ledger(c.tier).take(cells, c.form);
      return {};
    }
    take(s, c.tier, cells);
    if (c.tier == Tier::kDevice && c.tokens.begin < s.ready - s.ready % view_.geometry.block_tokens) {
      s.peer_blocks -= std::min(s.peer_blocks, view_.geometry.blocks_of_leaves(c.tokens));
    }
    if (c.tier == Tier::kDevice && c.trigger == Trigger::kBeforeLayer) {
      const uint32_t full =
          s.tail_resident ? s.ready / view_.geometry.block_tokens * view_.geometry.block_tokens : s.ready;
      if (c.tokens.begin == 0 && c.tokens.end >= full) {
        s.covered |= c.layers;
        s.on_device |= c.layers;
        if (s.on_device == all_) {
          if (s.view->x_elsewhere()) s.x_elsewhere = s.blocks - s.resident;
          s.resident = s.blocks;
        }
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
    // The counts of what is cached are of all of it.
    if (a.tokens != s->view->cached_tokens) {
      return broken("sequence {} adopts {} of {} cached tokens", raw(a.seq), a.tokens,
                    s->view->cached_tokens);
    }
    s->ready = a.tokens;
    s->blocks = s->resident = a.tokens / view_.geometry.block_tokens;
    s->covered = s->on_device = all_;
    const uint32_t there = s->view->cached_resident_cells;
    const uint32_t elsewhere = s->blocks * groups_ - there;
    s->adopted = there;
    if (elsewhere > 0) {
      s->resident = 0;
      s->covered = s->on_device = {};
      if (view_.geometry.has(Form::kX) && view_.total_cells(view_.slower_tier()) > 0)
        s->x_elsewhere = s->blocks;
    }
    for (Tier tier : kAllTiers) {
      const auto idle = [&](Form form) { return s->view->cached_idle[index_of(form)][index_of(tier)]; };
      ledger(tier).adopt(tier == Tier::kDevice ? there : elsewhere, idle(Form::kKv));
      if (view_.geometry.has(Form::kX)) ledger(tier).adopt(elsewhere, idle(Form::kX), Form::kX);
    }
    return {};
  }

  Status promise(const Promise& p) {
    uint32_t& reserved = reserved_[index_of(p.tier)];
    if (p.kind == Promise::Kind::kReserve) {
      if (p.cells > reserved) {
        ledger(p.tier).take(p.cells - reserved);
      } else {
        ledger(p.tier).end_promise(reserved - p.cells);
      }
      reserved = p.cells;
      return {};
    }
    SeqState* s = find(p.owner);
    if (!s) return broken("promises cells to sequence {}, which is not there", raw(p.owner));
    uint32_t& promised = s->promised[index_of(p.tier)];
    switch (p.kind) {
      case Promise::Kind::kReserve:
        break;
      case Promise::Kind::kOwn:
        ledger(p.tier).take(p.cells);
        promised += p.cells;
        break;
      case Promise::Kind::kFromReserve:
        if (p.cells > reserved) {
          return broken("promises sequence {} {} cells of a reserve of {}", raw(p.owner), p.cells, reserved);
        }
        reserved -= p.cells;
        promised += p.cells;
        break;
      case Promise::Kind::kLoan:
        KV_RETURN_IF_ERROR(loan(p));
        promised += p.cells;
        break;
      case Promise::Kind::kRelease:
        if (p.from == p.owner || !find(p.from)) {
          return broken("promises sequence {} what {} releases", raw(p.owner), raw(p.from));
        }
        break;
    }
    return {};
  }

  Status loan(const Promise& p) {
    SeqState* host = find(p.from);
    if (!host || p.from == p.owner) {
      return broken("lends sequence {} cells of sequence {}", raw(p.owner), raw(p.from));
    }
    uint32_t& left = host->promised[index_of(p.tier)];
    if (p.cells > left) {
      return broken("lends {} cells of the {} promised to sequence {}", p.cells, left, raw(p.from));
    }
    if (p.due_tokens <= host->view->known_tokens) {
      return broken("lends cells of sequence {} until {} tokens, it has {}", raw(p.from), p.due_tokens,
                    host->view->known_tokens);
    }
    left -= p.cells;
    return {};
  }

  // The parties to promises between several run; whose loan is due does not go on.
  Status promises_kept(const StepPlan& plan) {
    for (const Promise& p : plan.promises) {
      if (p.kind == Promise::Kind::kReserve || p.kind == Promise::Kind::kOwn) continue;
      const bool loan = p.kind == Promise::Kind::kLoan;
      if (!find(p.owner)->running || (loan && !find(p.from)->running)) {
        return broken("a promise of {} cells to sequence {}{}, and not all of them run", p.cells,
                      raw(p.owner), loan ? fmt::format(" from sequence {}", raw(p.from)) : "");
      }
    }
    for (const Claim& claim : view_.claims) {
      if (claim.due_tokens == 0 || claim.called) continue;
      const auto guest = seqs_.find(claim.debtor);
      const auto host = seqs_.find(claim.creditor);
      if (guest == seqs_.end() || host == seqs_.end() || !guest->second.running) continue;
      if (!host->second.running || host->second.view->known_tokens < claim.due_tokens) continue;
      return broken("sequence {} keeps {} cells of sequence {}, due at {} tokens, and runs",
                    raw(claim.debtor), claim.cells, raw(claim.creditor), claim.due_tokens);
    }
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
    row_count_ += r.tokens.size();
    if (s->cells_dropped) return broken("drops cells of sequence {} and runs it", raw(r.seq));
    if (r.kind == RowKind::kRecompute && r.tokens.begin < s->ready) return rows_again(r, *s);
    if (r.tokens.begin != s->ready) {
      return broken("sequence {}: rows begin at {}, the history ends at {}", raw(r.seq), r.tokens.begin,
                    s->ready);
    }
    if (r.layers != all_) return broken("sequence {}: rows pass all layers", raw(r.seq));
    KV_RETURN_IF_ERROR(writes(r));
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
    if (s->goes_on) return broken("sequence {}: rows in two parts", raw(r.seq));
    if (!s->running) {
      s->running = true;
      ++running_;
    }
    const RowNeeds needs(view_.geometry, s->blocks, s->resident, r.tokens.end, r.writes, s->written_through);
    const uint32_t b = view_.geometry.block_tokens;
    const Interval through = {s->blocks * b, r.tokens.end / b * b};
    const bool exact = (s->written_through & r.writes.kv).empty() && s->written_tokens == through;
    if (!s->written_through.empty() && !exact) {
      return broken("sequence {}: of what its rows write, {} layer groups go to a slower tier, {} stay",
                    raw(r.seq), s->written_through.count(), r.writes.kv.count());
    }
    take(*s, Tier::kDevice, needs.device_cells);
    take(*s, view_.slower_tier(), needs.slow_cells);
    ledger(Tier::kDevice).take(needs.x_cells, Form::kX);
    ledger(Tier::kDevice).take(needs.h_cells, Form::kH);
    const uint32_t away = s->blocks - s->resident;
    const uint32_t lacking = away - std::min(away, s->peer_blocks);
    const uint32_t x_elsewhere = s->view->x_elsewhere() ? std::max(lacking, s->x_elsewhere) : s->x_elsewhere;
    staged_blocks_ +=
        needs.stage_blocks - away + history_stage_blocks(view_.geometry, *s->view, lacking, x_elsewhere);
    s->blocks += needs.new_blocks;
    s->resident += needs.new_blocks - (r.writes.kv == all_ ? 0 : needs.full_blocks);
    s->ready = r.tokens.end;
    s->goes_on = true;
    return {};
  }

  // What rows keep, of forms that there are.
  Status writes(const Rows& r) const {
    if (!(r.writes.kv - all_).empty() || !(r.writes.x - all_).empty() || !(r.writes.h - all_).empty()) {
      return broken("sequence {}: rows keep layer groups that there are not", raw(r.seq));
    }
    if ((!r.writes.x.empty() && !view_.geometry.has(Form::kX)) ||
        (!r.writes.h.empty() && !view_.geometry.has(Form::kH))) {
      return broken("sequence {}: rows keep a form for which there is no memory", raw(r.seq));
    }
    return {};
  }

  // Rows that compute dropped cells again.
  Status rows_again(const Rows& r, SeqState& s) {
    const uint32_t b = view_.geometry.block_tokens;
    if (r.tokens.begin % b != 0 || r.tokens.end % b != 0 || r.tokens.end > s.ready || r.samples) {
      return broken("sequence {}: computes [{}, {}) of {} again, not whole blocks", raw(r.seq),
                    r.tokens.begin, r.tokens.end, s.ready);
    }
    // Else the end of the history would not tell these rows from those that go on from it.
    if (s.goes_on) return broken("sequence {}: computes again behind the rows that go on", raw(r.seq));
    LayerSet run;
    bool begun = false;
    uint32_t first = 0;
    r.layers.for_each([&](uint32_t g) {
      if (!begun) first = g;
      begun = true;
      run.add(g);
    });
    const uint32_t end = first + r.layers.count();
    if (!begun || end > groups_ || !r.layers.contains(end - 1) ||
        (first != 0 && first != s.view->restart_group)) {
      return broken("sequence {}: computes again from layer group {} on, {} of them", raw(r.seq), first,
                    r.layers.count());
    }
    if (!s.again.empty()) return broken("sequence {}: computes again twice", raw(r.seq));
    KV_RETURN_IF_ERROR(writes(r));
    const Writes& w = r.writes;
    if (!((w.kv | w.x | w.h) - r.layers).empty()) {
      return broken("sequence {}: keeps layer groups that are not computed again", raw(r.seq));
    }
    s.again = r.tokens;
    s.again_groups = run;
    const uint32_t blocks = r.tokens.size() / b;
    ledger(Tier::kDevice).take(blocks * w.kv.count());
    ledger(Tier::kDevice).take(blocks * w.x.count(), Form::kX);
    ledger(Tier::kDevice).take(blocks * w.h.count(), Form::kH);
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
    const SeqView& v = *s.view;
    if (!v.dropped.empty() && s.blocks > 0) {
      bool covered = s.again.begin <= v.dropped.begin && s.again.end >= v.dropped.end;
      for (uint32_t g = v.dropped_first_group; g < v.dropped_end_group; ++g)
        covered &= s.again_groups.contains(g);
      if (!covered) {
        return broken("sequence {}: of its history [{}, {}) is dropped, and not computed again", raw(r.seq),
                      v.dropped.begin, v.dropped.end);
      }
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
  std::array<CellLedger, kTiers> ledgers_;
  std::array<uint32_t, kTiers> reserved_;
  std::unordered_map<SeqId, SeqState> seqs_;
  uint32_t staged_blocks_ = 0;
  uint64_t row_count_ = 0;
  size_t running_ = 0;
};

}  // namespace

bool comes_back(const View& view) {
  return view.peers.lent > 0 && (!view.running.empty() || !view.peers.nobody_lends);
}

bool yields_to_peer(const View& view) {
  return view.running.empty() && !view.waiting.empty() &&
         std::all_of(view.waiting.begin(), view.waiting.end(),
                     [&](const SeqView& s) { return view.peers.left_to_older(s.arrival) > 0; });
}

// Preemptions, copies and drops move the work forward too: they cannot be repeated for ever, and blocks that
// two sequences shared and gave up are counted as free only in the next view.
bool stands_still(const View& view, const StepPlan& plan) {
  const bool work = !view.running.empty() || !view.waiting.empty();
  // So does a reserve that becomes smaller.
  for (const Promise& p : plan.promises) {
    if (p.kind == Promise::Kind::kReserve && p.cells < view.reserved_cells[index_of(p.tier)]) return false;
  }
  // A peer may still lend what is lacking, or give back what it has on loan.
  if (comes_back(view) || yields_to_peer(view)) return false;
  if (view.peers.asked > 0 || (plan.borrow_cells > 0 && !view.peers.nobody_lends)) return false;
  return work && view.steps_in_flight == 0 && view.transfers_in_flight == 0 && plan.rows.empty() &&
         plan.failures.empty() && plan.preemptions.empty() && plan.copies.empty();
}

Status check_plan(const View& view, const StepPlan& plan) {
  return Checker(view).check(plan);
}

}  // namespace kvasir
