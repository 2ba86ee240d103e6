// A view after the entries of a plan. Only this class defines what an entry requires, takes and gives up.
//
// PlanBuilder applies entries to it and takes back those that do not fit. check_plan() applies a whole plan.
// Tests compare it with the result of the committer.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "base/pooled_map.h"
#include "base/status.h"
#include "contract/interval.h"
#include "contract/layer_set.h"
#include "contract/step_plan.h"
#include "contract/view.h"
#include "plan/cell_ledger.h"

namespace kvasir {

// Used by one thread. The view outlives it.
class PlanState {
 public:
  // A sequence after the entries applied so far. Its rows do not change the fields before `has_rows`, so
  // entries may come in any order.
  struct Seq {
    explicit Seq(const SeqView& seq, bool runs, const LayerSet& all);

    const SeqView* view;
    bool was_running;
    bool running;
    bool failed = false;
    bool stopped = false;    // this plan fails or preempts it, or drops all its cells
    bool bound = false;      // party to a promise of this plan with another sequence
    bool releases = false;   // it gives up copies once other copies are ready
    uint32_t ready_tokens;   // its history: [0, ready_tokens)
    uint32_t blocks;         // in its block table
    uint32_t resident;       // of those: on the device in every layer group
    uint32_t peer_blocks;    // of the others: need no staging (SeqView::peer_blocks)
    LayerSet device_groups;  // every block is on the device, or arrives before its layer
    LayerSet staged_groups;
    bool tail_resident;
    uint32_t adopted_device_cells = 0;  // KV cells; the view does not count them yet
    uint32_t x_elsewhere = 0;           // blocks whose X arrives over a link if rows run
    std::array<uint32_t, kTiers> promised;
    // `dropped_all`: it drops all copies in this form on this tier. `partly_dropped`: because of its drops it
    // cannot run in this plan.
    std::array<std::array<bool, kTiers>, kForms> dropped_all{};
    bool partly_dropped = false;
    // Cells that its rows write to the slower tier instead of keeping them on the device.
    LayerSet written_through;
    Interval through_tokens;

    // Its rows: those that extend its history, and those that restore dropped cells.
    bool has_rows = false;
    uint32_t new_blocks = 0;
    Interval restored;
    LayerSet restored_groups;
  };

  explicit PlanState(const View& view);

  // Applies one entry. An error names the rule that the entry breaks, with its numbers; the state is then
  // unusable. Capacity is a rule of all entries together, not of one: see fits().
  Status apply(const Failure& failure);
  Status apply(const Preemption& preemption);
  Status apply(const Adoption& adoption);
  Status apply(const CopyChange& change);
  Status apply(const Promise& promise);
  Status apply(const Rows& rows);

  // The rules for the plan as a whole: cells, scratch and stage ring suffice, not too many sequences run,
  // restored cells are read, and no running sequence keeps a loan that is due.
  Status check_totals() const;
  // The tier has all the cells that the plan takes there.
  bool fits(Tier tier) const { return ledger(tier).fits(); }
  // The stage ring has all the blocks per layer that the plan takes.
  bool fits_stage_ring() const { return totals_.staged_blocks <= view_.stage_blocks; }

  // --- The state. REQUIRES, for seq(): the sequence belongs to the view.
  Seq& seq(const SeqView& seq);
  const Seq* find(SeqId id) const;  // null: neither an entry nor a query has named it
  CellLedger& ledger(Tier tier) { return totals_.ledgers[index_of(tier)]; }
  const CellLedger& ledger(Tier tier) const { return totals_.ledgers[index_of(tier)]; }
  uint32_t reserved(Tier tier) const { return totals_.reserved[index_of(tier)]; }
  uint32_t staged_blocks() const { return totals_.staged_blocks; }
  uint32_t rows() const { return totals_.rows; }
  uint32_t running() const { return totals_.running; }
  // Blocks per layer that pass through the stage ring for its history when its rows run.
  uint32_t history_stage_blocks(const Seq& seq) const;

  // --- Taking entries back.
  struct Totals {
    std::array<CellLedger, kTiers> ledgers;
    std::array<uint32_t, kTiers> reserved{};
    uint32_t staged_blocks = 0;
    uint32_t rows = 0;
    uint32_t running = 0;
  };
  const Totals& totals() const { return totals_; }
  // Restores an earlier state. `seq` replaces the state of its sequence.
  void reset(const Totals& totals) { totals_ = totals; }
  void reset(const Seq& seq) {
    const auto [there, is_new] = seqs_.try_emplace(seq.view->id, seq);
    if (!is_new) *there = seq;
  }

 private:
  Seq* known(SeqId id);  // null: the view has no such sequence, or it failed
  void take(Seq& s, Tier tier, uint32_t cells);
  void end_promises(Seq& s);
  Status drop_all(const CopyChange& c, Seq& s);
  Status drop(const CopyChange& c, Seq& s);
  Status stage(const CopyChange& c, Seq& s) const;
  Status add(const CopyChange& c, Seq& s);
  Status write_through(const CopyChange& c, Seq& s) const;
  Status lend(const Promise& p);
  Status check_writes(const Rows& r) const;
  Status restore(const Rows& r, Seq& s);
  Status go_on(const Rows& r, Seq& s);
  Status check_history(const Rows& r, const Seq& s) const;
  Status check_loans() const;

  const View& view_;
  const uint32_t groups_;
  const LayerSet all_;
  Totals totals_;
  PooledMap<SeqId, Seq> seqs_;
  // Index of the view's sequences by id, built at the first lookup by id alone.
  struct Place {
    const SeqView* view = nullptr;
    bool running = false;
  };
  PooledMap<SeqId, Place> index_;
};

}  // namespace kvasir
