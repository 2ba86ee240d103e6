// PlanState: rows, and the history that they need.
#include <algorithm>

#include "plan/broken_rule.h"
#include "plan/plan_state.h"

namespace kvasir {

Status PlanState::apply(const Rows& r) {
  Seq* s = known(r.seq);
  if (!s) return broken_rule("has rows of sequence {}, which is not there", raw(r.seq));
  if (s->was_running && !s->running) return broken_rule("preempts sequence {} and runs it", raw(r.seq));
  if (r.tokens.empty() || r.tokens.end > s->view->known_tokens) {
    return broken_rule("sequence {}: rows [{}, {}) of {} known tokens", raw(r.seq), r.tokens.begin,
                       r.tokens.end, s->view->known_tokens);
  }
  if (s->partly_dropped) return broken_rule("drops cells of sequence {} and runs it", raw(r.seq));
  KV_RETURN_IF_ERROR(check_writes(r));
  totals_.rows += r.tokens.size();
  return r.kind == RowKind::kRestore ? restore(r, *s) : go_on(r, *s);
}

// Rows may keep only forms that the device has.
Status PlanState::check_writes(const Rows& r) const {
  if (!(r.writes.kv - all_).empty() || !(r.writes.x - all_).empty()) {
    return broken_rule("sequence {}: rows keep layer groups that there are not", raw(r.seq));
  }
  if (!r.writes.x.empty() && !view_.geometry.has(Form::kX)) {
    return broken_rule("sequence {}: rows keep a form for which there is no memory", raw(r.seq));
  }
  return {};
}

// Rows that recompute dropped cells of the history.
Status PlanState::restore(const Rows& r, Seq& s) {
  // The step runs them first.
  if (s.has_rows) return broken_rule("sequence {}: recomputes behind the rows that go on", raw(r.seq));
  const uint32_t b = view_.geometry.block_tokens;
  if (r.tokens.begin % b != 0 || r.tokens.end % b != 0 || r.tokens.end > s.ready_tokens || r.samples) {
    return broken_rule("sequence {}: recomputes [{}, {}) of {}, not whole blocks", raw(r.seq), r.tokens.begin,
                       r.tokens.end, s.ready_tokens);
  }
  const uint32_t groups = r.layers.count();
  if (groups == 0 || r.layers != LayerSet::all(groups) || groups > groups_) {
    return broken_rule("sequence {}: recomputes {} layer groups, which are not the first ones", raw(r.seq),
                       groups);
  }
  if (!s.restored.empty()) return broken_rule("sequence {}: recomputes twice", raw(r.seq));
  if (!((r.writes.kv | r.writes.x) - r.layers).empty()) {
    return broken_rule("sequence {}: keeps layer groups that are not recomputed", raw(r.seq));
  }
  s.restored = r.tokens;
  s.restored_groups = r.layers;
  const uint32_t blocks = r.tokens.size() / b;
  ledger(Tier::kDevice).take(blocks * r.writes.kv.count());
  ledger(Tier::kDevice).take(blocks * r.writes.x.count(), Form::kX);
  return {};
}

// Rows that extend the history.
Status PlanState::go_on(const Rows& r, Seq& s) {
  if (s.has_rows) return broken_rule("sequence {}: rows in two parts", raw(r.seq));
  if (r.tokens.begin != s.ready_tokens) {
    return broken_rule("sequence {}: rows begin at {}, the history ends at {}", raw(r.seq), r.tokens.begin,
                       s.ready_tokens);
  }
  if (r.layers != all_) return broken_rule("sequence {}: rows pass all layers", raw(r.seq));
  if (r.samples && r.tokens.end != s.view->known_tokens) {
    return broken_rule("sequence {}: samples at {}, but {} tokens are known", raw(r.seq), r.tokens.end,
                       s.view->known_tokens);
  }
  if (r.kind == RowKind::kDecode && r.tokens.size() != 1) {
    return broken_rule("sequence {}: decodes {} tokens", raw(r.seq), r.tokens.size());
  }
  if ((r.kind == RowKind::kPrefill) != (r.tokens.begin < s.view->prompt_tokens)) {
    return broken_rule("sequence {}: {} at {}, its prompt has {} tokens", raw(r.seq), name(r.kind),
                       r.tokens.begin, s.view->prompt_tokens);
  }
  KV_RETURN_IF_ERROR(check_history(r, s));
  const RowNeeds needs(view_.geometry, s.blocks, s.resident, r.tokens.end, r.writes, s.written_through);
  const uint32_t b = view_.geometry.block_tokens;
  const Interval through = {s.blocks * b, r.tokens.end / b * b};
  const bool exact = (s.written_through & r.writes.kv).empty() && s.through_tokens == through;
  if (!s.written_through.empty() && !exact) {
    return broken_rule("sequence {}: of what its rows write, {} layer groups go to a slower tier, {} stay",
                       raw(r.seq), s.written_through.count(), r.writes.kv.count());
  }
  take(s, Tier::kDevice, needs.device_cells);
  take(s, view_.slower_tier(), needs.slow_cells);
  ledger(Tier::kDevice).take(needs.x_cells, Form::kX);
  totals_.staged_blocks += needs.stage_blocks - (s.blocks - s.resident) + history_stage_blocks(s);
  s.new_blocks = needs.new_blocks;
  s.has_rows = true;
  if (!s.running) ++totals_.running;
  s.running = true;
  return {};
}

uint32_t PlanState::history_stage_blocks(const Seq& s) const {
  const uint32_t away = s.blocks - s.resident;
  const uint32_t missing = away - std::min(away, s.peer_blocks);
  const uint32_t x_elsewhere = s.view->x_elsewhere() ? std::max(missing, s.x_elsewhere) : s.x_elsewhere;
  return kvasir::history_stage_blocks(view_.geometry, *s.view, missing, x_elsewhere);
}

// The cells that the rows read, and the partly filled block that they continue.
Status PlanState::check_history(const Rows& r, const Seq& s) const {
  const LayerSet covered = s.device_groups | s.staged_groups;
  if (covered != all_ && s.resident < s.blocks) {
    return broken_rule(
        "sequence {}: of its history [0, {}), {} of {} layer groups are neither on the device nor staged",
        raw(r.seq), s.ready_tokens, (all_ - covered).count(), groups_);
  }
  const SeqView& v = *s.view;
  if (!v.dropped.empty() && s.blocks > 0) {
    bool restored = s.restored.begin <= v.dropped.begin && s.restored.end >= v.dropped.end;
    for (uint32_t g = v.dropped_first_group; g < v.dropped_end_group; ++g)
      restored &= s.restored_groups.contains(g);
    if (!restored) {
      return broken_rule("sequence {}: of its history [{}, {}) is dropped, and not recomputed", raw(r.seq),
                         v.dropped.begin, v.dropped.end);
    }
  }
  if (!s.tail_resident) {
    return broken_rule("sequence {}: rows go on in a block that is not on the device", raw(r.seq));
  }
  if (v.tail_busy) {
    return broken_rule("sequence {}: rows write into a block that is being copied", raw(r.seq));
  }
  return {};
}

}  // namespace kvasir
