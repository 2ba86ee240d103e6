#include "plan/plan_state.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "plan/broken_rule.h"

namespace kvasir {

PlanState::Seq::Seq(const SeqView& seq, bool runs, const LayerSet& all)
    : view(&seq),
      was_running(runs),
      running(runs),
      ready_tokens(seq.ready_tokens),
      blocks(seq.blocks),
      resident(seq.resident_blocks),
      peer_blocks(seq.peer_blocks),
      device_groups(seq.resident() ? all : seq.device_groups),
      tail_resident(seq.tail_resident),
      promised(seq.promised_cells) {}

PlanState::PlanState(const View& view)
    : view_(view),
      groups_(view.geometry.groups()),
      all_(LayerSet::all(groups_)),
      totals_{{CellLedger(view, Tier::kDevice), CellLedger(view, Tier::kHost), CellLedger(view, Tier::kDisk)},
              view.reserved_cells,
              0,
              0,
              static_cast<uint32_t>(view.running.size())} {
  seqs_.reserve(view.running.size());
}

// ---------------------------------------------------------------- sequences

PlanState::Seq& PlanState::seq(const SeqView& seq) {
  if (Seq* const known = seqs_.find(seq.id)) return *known;
  const std::vector<SeqView>& running = view_.running;
  const bool runs = !running.empty() && std::less_equal<>()(&running.front(), &seq) &&
                    std::less_equal<>()(&seq, &running.back());
  return *seqs_.try_emplace(seq.id, seq, runs, all_).first;
}

const PlanState::Seq* PlanState::find(SeqId id) const {
  return seqs_.find(id);
}

PlanState::Seq* PlanState::known(SeqId id) {
  Seq* seq = seqs_.find(id);
  if (!seq) {
    if (index_.empty()) {
      index_.reserve(view_.running.size() + view_.waiting.size());
      for (const SeqView& s : view_.running) index_[s.id] = {&s, true};
      for (const SeqView& s : view_.waiting) index_[s.id] = {&s, false};
    }
    const Place* const place = index_.find(id);
    if (!place) return nullptr;
    seq = seqs_.try_emplace(id, *place->view, place->running, all_).first;
  }
  return seq->failed ? nullptr : seq;
}

// Takes KV cells, first from those promised to the sequence.
void PlanState::take(Seq& s, Tier tier, uint32_t cells) {
  uint32_t& promised = s.promised[index_of(tier)];
  const uint32_t drawn = std::min(cells, promised);
  promised -= drawn;
  ledger(tier).take(cells - drawn);
}

void PlanState::end_promises(Seq& s) {
  for (Tier tier : kAllTiers) ledger(tier).end_promise(s.promised[index_of(tier)]);
  s.promised = {};
}

Status PlanState::apply(const Failure& f) {
  Seq* s = known(f.seq);
  if (!s) return broken_rule("fails sequence {}, which is not there", raw(f.seq));
  if (f.reason.empty()) return broken_rule("fails sequence {} without a reason", raw(f.seq));
  end_promises(*s);
  if (s->running) --totals_.running;
  s->failed = s->stopped = true;
  s->running = false;
  return {};
}

Status PlanState::apply(const Preemption& p) {
  Seq* s = known(p.seq);
  if (!s || !s->running) return broken_rule("preempts sequence {}, which does not run", raw(p.seq));
  end_promises(*s);
  s->running = false;
  s->stopped = true;
  --totals_.running;
  return {};
}

Status PlanState::apply(const Adoption& a) {
  Seq* s = known(a.seq);
  if (!s || s->was_running) return broken_rule("sequence {} adopts but does not wait", raw(a.seq));
  if (s->ready_tokens != 0 || s->blocks != 0)
    return broken_rule("sequence {} adopts beside cells it holds", raw(a.seq));
  const SeqView& v = *s->view;
  if (a.tokens == 0 || a.tokens > v.cached_tokens || a.tokens % view_.geometry.block_tokens != 0) {
    return broken_rule("sequence {} adopts {} tokens, {} are cached, a block has {}", raw(a.seq), a.tokens,
                       v.cached_tokens, view_.geometry.block_tokens);
  }
  // The counts of cached cells cover the whole cached prefix.
  if (a.tokens != v.cached_tokens) {
    return broken_rule("sequence {} adopts {} of {} cached tokens", raw(a.seq), a.tokens, v.cached_tokens);
  }
  s->ready_tokens = a.tokens;
  s->blocks = s->resident = a.tokens / view_.geometry.block_tokens;
  s->device_groups = all_;
  const uint32_t there = v.cached_resident_cells;
  const uint32_t dead = view_.geometry.dead_blocks(a.tokens) * view_.geometry.windowed.count();
  const uint32_t elsewhere = s->blocks * groups_ - dead - there;
  s->adopted_device_cells = there;
  if (elsewhere > 0) {
    const bool rest_is_here = v.attended && elsewhere == v.cached_peer_blocks * groups_;
    s->resident = rest_is_here ? s->blocks - v.cached_peer_blocks : 0;
    s->peer_blocks = v.cached_peer_blocks;
    s->device_groups = {};
    if (view_.geometry.has(Form::kX) && view_.total_cells(view_.slower_tier()) > 0)
      s->x_elsewhere = s->blocks;
  }
  for (Tier tier : kAllTiers) {
    const auto idle = [&](Form form) { return v.cached_idle[index_of(form)][index_of(tier)]; };
    ledger(tier).adopt(tier == Tier::kDevice ? there : elsewhere, idle(Form::kKv));
    if (view_.geometry.has(Form::kX)) ledger(tier).adopt(elsewhere, idle(Form::kX), Form::kX);
  }
  return {};
}

// ---------------------------------------------------------------- promises

Status PlanState::apply(const Promise& p) {
  uint32_t& reserved = totals_.reserved[index_of(p.tier)];
  if (p.kind == Promise::Kind::kReserve) {
    if (p.cells > reserved) {
      ledger(p.tier).take(p.cells - reserved);
    } else {
      ledger(p.tier).end_promise(reserved - p.cells);
    }
    reserved = p.cells;
    return {};
  }
  Seq* s = known(p.owner);
  if (!s) return broken_rule("promises cells to sequence {}, which is not there", raw(p.owner));
  if (p.cells == 0) return broken_rule("promises no cells to sequence {}", raw(p.owner));
  switch (p.kind) {
    case Promise::Kind::kReserve:
      return {};
    case Promise::Kind::kOwn:
      ledger(p.tier).take(p.cells);
      s->promised[index_of(p.tier)] += p.cells;
      return {};
    case Promise::Kind::kFromReserve:
      if (p.cells > reserved) {
        return broken_rule("promises sequence {} {} cells of a reserve of {}", raw(p.owner), p.cells,
                           reserved);
      }
      reserved -= p.cells;
      break;
    case Promise::Kind::kLoan:
      KV_RETURN_IF_ERROR(lend(p));
      break;
    case Promise::Kind::kRelease: {
      Seq* of = p.from == p.owner ? nullptr : known(p.from);
      if (!of) {
        return broken_rule("promises sequence {} what {} releases", raw(p.owner), raw(p.from));
      }
      of->bound = s->bound = true;
      return {};
    }
  }
  s->promised[index_of(p.tier)] += p.cells;
  s->bound = true;
  return {};
}

// The lender's side of a loan.
Status PlanState::lend(const Promise& p) {
  Seq* host = p.from == p.owner ? nullptr : known(p.from);
  if (!host) return broken_rule("lends sequence {} cells of sequence {}", raw(p.owner), raw(p.from));
  uint32_t& left = host->promised[index_of(p.tier)];
  if (p.cells > left) {
    return broken_rule("lends {} cells of the {} promised to sequence {}", p.cells, left, raw(p.from));
  }
  if (p.due_tokens <= host->view->known_tokens) {
    return broken_rule("lends cells of sequence {} until {} tokens, it has {}", raw(p.from), p.due_tokens,
                       host->view->known_tokens);
  }
  left -= p.cells;
  host->bound = true;
  return {};
}

// ---------------------------------------------------------------- the whole

Status PlanState::check_totals() const {
  for (const auto& [id, s] : seqs_) {
    if (!s.restored.empty() && !s.has_rows)
      return broken_rule("sequence {}: recomputes what no row reads", raw(id));
  }
  for (Tier tier : kAllTiers) {
    for (Form form : {Form::kKv, Form::kX}) {
      const int64_t available = ledger(tier).available(form);
      if (available < 0) {
        return broken_rule("takes {} cells of {} more than are free, idle or given up on the {} tier",
                           -available, name(form), name(tier));
      }
    }
  }
  if (view_.scratch_tokens > 0 && totals_.rows > view_.scratch_tokens) {
    return broken_rule("has {} rows, there is memory for the activations of {}", totals_.rows,
                       view_.scratch_tokens);
  }
  if (!fits_stage_ring()) {
    return broken_rule("stages {} blocks of a layer, the ring has room for {}", totals_.staged_blocks,
                       view_.stage_blocks);
  }
  // A sequence whose last rows did not count (deferred or spoilt) runs again, even if its place was given
  // away.
  if (totals_.running > std::max<size_t>(view_.limits.max_num_seqs, view_.running.size())) {
    return broken_rule("{} sequences would run, the limit is {}", totals_.running, view_.limits.max_num_seqs);
  }
  return check_loans();
}

// A sequence with a loan that is due does not run.
Status PlanState::check_loans() const {
  const auto running = [&](SeqId id, uint32_t* known_tokens) {
    const Seq* s = find(id);
    if (s) {
      *known_tokens = s->view->known_tokens;
      return s->running;
    }
    const auto it = std::find_if(view_.running.begin(), view_.running.end(),
                                 [&](const SeqView& v) { return v.id == id; });
    if (it == view_.running.end()) return false;
    *known_tokens = it->known_tokens;
    return true;
  };
  for (const Claim& claim : view_.claims) {
    if (claim.due_tokens == 0 || claim.called) continue;
    uint32_t guest = 0, host = 0;
    if (!running(claim.debtor, &guest) || !running(claim.creditor, &host) || host < claim.due_tokens)
      continue;
    return broken_rule("sequence {} keeps {} cells of sequence {}, due at {} tokens, and runs",
                       raw(claim.debtor), claim.cells, raw(claim.creditor), claim.due_tokens);
  }
  return {};
}

}  // namespace kvasir
