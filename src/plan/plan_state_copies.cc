// PlanState: adding and dropping copies.
#include <algorithm>

#include "plan/broken_rule.h"
#include "plan/plan_state.h"

namespace kvasir {

Status PlanState::apply(const CopyChange& c) {
  Seq* s = known(c.seq);
  if (!s) return broken_rule("changes copies of sequence {}, which is not there", raw(c.seq));
  if (view_.budget(c.tier).per_slab[index_of(c.form)] == 0) {
    return broken_rule("sequence {}: {} of {} on {}: there is no such memory", raw(c.seq), name(c.verb),
                       name(c.form), name(c.tier));
  }
  if (c.verb == Verb::kDropAll) return drop_all(c, *s);
  if (c.layers.empty() || !(c.layers - all_).empty()) {
    return broken_rule("sequence {}: {} of {} layer groups, there are {}", raw(c.seq), name(c.verb),
                       c.layers.count(), groups_);
  }
  if (c.tokens.empty() || c.tokens.begin % view_.geometry.block_tokens != 0) {
    return broken_rule("sequence {}: {} of [{}, {}): a block has {} tokens", raw(c.seq), name(c.verb),
                       c.tokens.begin, c.tokens.end, view_.geometry.block_tokens);
  }
  switch (c.verb) {
    case Verb::kStage:
      return stage(c, *s);
    case Verb::kAdd:
      return add(c, *s);
    case Verb::kDrop:
    case Verb::kDropAll:
      break;
  }
  return drop(c, *s);
}

// A sequence that does not run gives up all copies of a form on a tier. Without any copy it starts over.
Status PlanState::drop_all(const CopyChange& c, Seq& s) {
  bool& dropped = s.dropped_all[index_of(c.form)][index_of(c.tier)];
  if (s.view->blocks == 0 || dropped) {
    return broken_rule("drops cells of sequence {}, which has none", raw(c.seq));
  }
  if (s.running) return broken_rule("drops cells of sequence {}, which goes on running", raw(c.seq));
  if (c.trigger != Trigger::kNow || !c.tokens.empty() || !c.layers.empty()) {
    return broken_rule("sequence {}: drops all, but only some of it or not at once", raw(c.seq));
  }
  end_promises(s);
  ledger(c.tier).give_up(s.view->own(c.form, c.tier), c.form);
  dropped = s.stopped = true;
  s.partly_dropped = false;
  for (Form form : {Form::kKv, Form::kX}) {
    for (Tier tier : kAllTiers) {
      s.partly_dropped |= s.view->held(form, tier) > 0 && !s.dropped_all[index_of(form)][index_of(tier)];
    }
  }
  if (s.partly_dropped) return {};
  s.ready_tokens = 0;
  s.blocks = s.resident = s.peer_blocks = 0;
  s.device_groups = all_;
  s.tail_resident = true;
  return {};
}

// Drops copies once other copies are ready, or whole blocks once the rows of this plan have read them.
Status PlanState::drop(const CopyChange& c, Seq& s) {
  if (c.trigger != Trigger::kWhenReady && c.trigger != Trigger::kNow) {
    return broken_rule("sequence {}: a drop {}", raw(c.seq), name(c.trigger));
  }
  if (c.trigger == Trigger::kNow) {
    if (s.view->blocks == 0 || s.dropped_all[index_of(c.form)][index_of(c.tier)]) {
      return broken_rule("drops cells of sequence {}, which has none", raw(c.seq));
    }
    if (c.tokens.end % view_.geometry.block_tokens != 0 || c.tokens.end > s.view->ready_tokens) {
      return broken_rule("sequence {}: drops [{}, {}) of {}, not whole blocks", raw(c.seq), c.tokens.begin,
                         c.tokens.end, s.view->ready_tokens);
    }
    s.partly_dropped |= !s.running;
  } else {
    s.releases = true;
  }
  const uint32_t named = c.blocks(view_.geometry.block_tokens, c.gives_up_tail()).size() * c.layers.count();
  ledger(c.tier).give_up_later(std::min(named, s.view->own(c.form, c.tier)), c.form);
  return {};
}

Status PlanState::stage(const CopyChange& c, Seq& s) const {
  if (c.tier != Tier::kDevice || c.trigger != Trigger::kBeforeLayer) {
    return broken_rule("sequence {}: stages on {} ({})", raw(c.seq), name(c.tier), name(c.trigger));
  }
  if (c.tokens != Interval{0, s.ready_tokens}) {
    return broken_rule("sequence {}: stages [{}, {}) of a history of {}", raw(c.seq), c.tokens.begin,
                       c.tokens.end, s.ready_tokens);
  }
  s.staged_groups |= c.layers;
  return {};
}

// The cells that it takes are counted with the rows that write them.
Status PlanState::write_through(const CopyChange& c, Seq& s) const {
  if (c.tier != view_.slower_tier() || c.form != Form::kKv) {
    return broken_rule("sequence {}: writes {} through to {}", raw(c.seq), name(c.form), name(c.tier));
  }
  s.written_through |= c.layers;
  s.through_tokens = c.tokens;
  return {};
}

Status PlanState::add(const CopyChange& c, Seq& s) {
  if (c.trigger == Trigger::kAfterLayerWrites) return write_through(c, s);
  if (c.trigger == Trigger::kWhenReady) return broken_rule("sequence {}: adds when ready", raw(c.seq));
  const bool before_layer = c.trigger == Trigger::kBeforeLayer;
  if (before_layer && (c.tier != Tier::kDevice || c.form != Form::kKv)) {
    return broken_rule("sequence {}: rows wait for a copy of {} on {}", raw(c.seq), name(c.form),
                       name(c.tier));
  }
  if (s.blocks == 0) return broken_rule("copies cells of sequence {}, which has none", raw(c.seq));
  if (c.tokens.end > s.ready_tokens) {
    return broken_rule("sequence {}: copies [{}, {}) of a history of {}", raw(c.seq), c.tokens.begin,
                       c.tokens.end, s.ready_tokens);
  }
  const bool device_kv = c.tier == Tier::kDevice && c.form == Form::kKv;
  const uint32_t cells =
      cells_to_add(view_.geometry, *s.view, s.blocks, c, /*stops=*/s.was_running && !s.running,
                   device_kv ? s.adopted_device_cells : 0);
  ledger(c.tier).find(cells, c.form);
  if (c.form != Form::kKv) {
    ledger(c.tier).take(cells, c.form);
    return {};
  }
  take(s, c.tier, cells);
  if (!device_kv) return {};
  const uint32_t full = s.ready_tokens - s.ready_tokens % view_.geometry.block_tokens;
  if (c.tokens.begin < full) {
    s.peer_blocks -= std::min(s.peer_blocks, view_.geometry.blocks_of_leaves(c.tokens));
  }
  // Rows wait for cells that arrive before their layers, so those cells are not staged as well.
  if (!before_layer || s.has_rows) return {};
  if (c.tokens.begin == 0 && c.tokens.end >= (s.tail_resident ? full : s.ready_tokens)) {
    s.device_groups |= c.layers;
    if (s.device_groups == all_) {
      if (s.view->x_elsewhere()) s.x_elsewhere = s.blocks - s.resident;
      s.resident = s.blocks;
    }
  }
  if (c.tokens.end == s.ready_tokens && c.layers == all_) s.tail_resident = true;
  return {};
}

}  // namespace kvasir
