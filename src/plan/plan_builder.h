// Builds a plan that will commit. Every call is accounted with the committer's own arithmetic. A call that
// does not fit is refused here, where the policy can still choose an alternative.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "contract/step_plan.h"
#include "contract/view.h"
#include "plan/admission.h"
#include "plan/kv_placement.h"
#include "plan/plan_state.h"

namespace kvasir {

// The cells that rows keep. The defaults suit a policy that does not decide this itself.
struct RowOptions {
  // Layer groups in which full blocks keep K and V on the device. Default: all, or those that streaming keeps
  // there.
  std::optional<LayerSet> kv{};
  // Layer groups in which X is kept on the device, block by block, from a block's first row on.
  LayerSet x{};
  // Layer groups in which K and V of full blocks go to the slower tier as they are written. Default: all
  // except those of `kv` and `x`. A cell in none of the three sets is dropped.
  std::optional<LayerSet> slower{};
  // Layer groups in which recomputed cells are kept on the device afterwards.
  Writes restore{};
};

// Lives for one call of Policy::plan(). The View must outlive it.
//
// Placement of K and V: a sequence that can become larger than the device tier *streams*. Its full blocks go
// to the slower tier (the host, or the disk if there is no host) as they are written, and are staged layer by
// layer in every step. Its last block stays on the device, and so do some of its layer groups if the slower
// tier is too small for all of them; where cells can be borrowed, only its first blocks go (KvPlacement). A
// policy can override this placement with RowOptions.
class PlanBuilder {
 public:
  explicit PlanBuilder(const View& view);

  // Cells of a form that are not held, not promised and not taken by this plan.
  int64_t available_cells(Tier tier = Tier::kDevice, Form form = Form::kKv) const {
    return ledger(tier).available(form);
  }
  // The same in blocks of all layer groups.
  int64_t available_blocks() const { return available_cells() / groups_; }
  // Device cells, given up by this plan or earlier, that become free when the steps and transfers in flight
  // and those of this plan have ended: a policy may wait for them instead of preempting.
  int64_t coming_cells() const { return ledger(Tier::kDevice).coming(); }
  int64_t coming_blocks() const { return coming_cells() / groups_; }
  uint32_t planned_tokens() const { return planned_tokens_; }
  // Blocks of one layer for which the stage ring still has room after the rows planned so far.
  uint32_t stage_room() const {
    return view_.stage_blocks - std::min(view_.stage_blocks, state_.staged_blocks());
  }
  // The work of the rows planned so far: view.costs.step_seconds(work()) estimates their time.
  const StepWork& work() const { return work_; }
  // Number of sequences that run after this plan is applied.
  uint32_t running_seqs() const {
    return state_.running() + static_cast<uint32_t>(admitted_without_rows_.size());
  }

  // The default placement of the K and V of a sequence.
  KvPlacement kv_placement(const SeqView& seq) const;
  // The stage ring can pass its whole history at its maximum length, so the history needs no device frames.
  bool passes_ring(const SeqView& seq) const {
    return view_.capacity().passing(view_.geometry.blocks_for(seq.max_total_tokens)) <= view_.stage_blocks;
  }
  // True if only memory can keep rows of a running sequence out of this step. Otherwise it waits for a
  // transfer or for room in the stage ring, and preempting other sequences would not help it.
  bool can_run(const SeqView& seq) const;

  // Admits a waiting sequence. It adopts its cached blocks, or brings the cells that it holds elsewhere back
  // to the device, and is promised the blocks of all its known tokens, or of more (if it streams, room on the
  // slower tier for its maximum length). False, and nothing is planned, if fewer than spare_blocks would be
  // left, if memory is missing, or if the limit of running sequences or the stall budget is reached.
  // REQUIRES: it waits, and this plan has not named it yet.
  bool admit(const SeqView& seq, const AdmitOptions& options = {});

  // Plans the next tokens to compute, at most `max_tokens`; the last known token samples. Returns the number
  // of tokens planned: fewer if memory or the stall budget is short, possibly 0. Cells that are not on the
  // device are staged or projected from X; additional rows recompute dropped cells. REQUIRES: the sequence
  // runs, or was admitted by this plan; it has no rows in this plan yet.
  uint32_t prefill(const SeqView& seq, uint32_t max_tokens, const RowOptions& options = {});

  // Plans the newest token. False, and nothing is planned, if there is no block for it or it cannot run.
  // REQUIRES: seq.decoding(), as for prefill().
  bool decode(const SeqView& seq, const RowOptions& options = {});

  // The sequence goes back to waiting and gives up its cells, to be recomputed on resumption.
  // REQUIRES: it runs, and has no rows and no copies in this plan.
  void preempt_and_drop(const SeqView& seq);

  // The sequence goes back to waiting and keeps its cells; the rest of its promise ends.
  // REQUIRES: it runs and has no rows in this plan.
  void preempt_and_keep(const SeqView& seq);

  // The sequence goes back to waiting. It keeps X and gives up K and V on every tier, including those of the
  // partly filled block. REQUIRES: it runs, and has no rows and no copies in this plan.
  void preempt_and_keep_x(const SeqView& seq);

  // The sequence goes back to waiting. Its cells are copied to the slower tier unless they are already there,
  // and leave the device as the copies become ready. Full blocks are copied as X in the layer groups `as_x`,
  // and as K and V in the others; X of a partly filled block stays where it is. False, and nothing is
  // planned, if that tier has no room. REQUIRES: as for preempt_and_drop(); it holds X of every block in
  // `as_x`, of the last blocks on the device and of those before them on the slower tier.
  bool preempt_and_offload(const SeqView& seq, const LayerSet& as_x = {});

  // A waiting sequence gives up the cells that it kept on every tier, and its promise.
  // REQUIRES: it waits, and this plan has not named it yet.
  void drop_waiting(const SeqView& seq);

  // Adds copies of full blocks in `tokens`, in these layer groups, to a tier, at `trigger`. False, and
  // nothing is planned, if that tier has no room for them. Where only X exists, KV is projected from it if
  // the trigger is kBeforeLayer and the sequence has rows in this plan. REQUIRES: the sequence runs, or waits
  // and holds cells; trigger is kNow, kBackground or, for KV on the device, kBeforeLayer.
  bool add_copies(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier, Trigger trigger,
                  Form form = Form::kKv);
  // Gives up copies on a tier, each once another copy that yields K and V is ready. A copy without such
  // another copy stays.
  void release(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier, Form form = Form::kKv);
  // Gives up copies of full blocks once the rows of this plan have read them, even the last copies: those
  // cells are dropped, and recomputed in every step that needs them. REQUIRES: the sequence runs, or waits
  // and holds cells.
  void drop(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier, Form form = Form::kKv);

  // Promises (View::claims, Promise::Kind), in KV cells (blocks of one layer group), in addition to those of
  // admit(). False, and nothing is planned, if there are too few cells. The owner runs or was admitted by
  // this plan. The same plan may not end or preempt a party to a promise between two sequences (can_stop()).
  //
  // Promises the sequence more of the available cells.
  bool promise_own(const SeqView& seq, uint32_t cells, Tier tier = Tier::kDevice);
  // Sets the shared reserve to `cells`, or as close to it as there is room. Returns the new size.
  uint32_t set_reserve(uint32_t cells, Tier tier = Tier::kDevice);
  uint32_t reserve(Tier tier = Tier::kDevice) const { return state_.reserved(tier); }
  // Promises cells of the shared reserve.
  bool draw_reserve(const SeqView& seq, uint32_t cells, Tier tier = Tier::kDevice);
  // Lends the guest cells from the rest of the host's own promise, until the host's known length reaches
  // `due_tokens`. From then on the guest may not run (recall_loans() preempts it), and the host has its cells
  // in the next step.
  // REQUIRES: both run, or were admitted by this plan; due_tokens > host.known_tokens
  bool lend(const SeqView& host, const SeqView& guest, uint32_t cells, uint32_t due_tokens,
            Tier tier = Tier::kDevice);
  // Lends cells to a waiting sequence, and admits it with them. False, and nothing is planned, if either is
  // impossible. REQUIRES: the host runs, or was admitted by this plan; as for lend() and admit()
  bool admit_guest(const SeqView& host, const SeqView& guest, uint32_t cells, uint32_t due_tokens,
                   const AdmitOptions& options = {});
  // Promises cells that become free when `of` ends or is preempted.
  void promise_release(const SeqView& of, const SeqView& seq, uint32_t cells, Tier tier = Tier::kDevice);
  // This plan may still preempt, drop or fail the sequence: it has no rows and no promises with others in it.
  bool can_stop(const SeqView& seq) const;
  // Blocks in its block table, including those that rows of this plan begin.
  uint32_t blocks(const SeqView& seq) const;
  // Cells still promised to a sequence, including those promised by this plan.
  uint32_t promised(const SeqView& seq, Tier tier = Tier::kDevice) const;

  // The sequence ends with an error for its client. REQUIRES: it has no rows and no copies in this plan, and
  // no promises with others (can_stop()).
  void fail(const SeqView& seq, std::string reason);

  // --- Memory of peers.
  void borrow(uint32_t cells) { plan_.borrow_cells += cells; }
  bool borrows() const { return plan_.borrow_cells > 0; }
  void give_back(uint32_t cells) { plan_.return_cells += cells; }
  // Cells of the slower tier that it may still need in addition to those that it holds or is promised. A
  // sequence that streams needs all blocks of its maximum length there except the last.
  uint32_t slower_cells_to_come(const SeqView& seq) const;

  void set_hints(const ExecutionHints& hints) { plan_.hints = hints; }
  // Says why something was planned, or was not.
  void because(const Reason& reason) { plan_.reasons.push_back(reason); }

  // True if the plan contains nothing that makes progress.
  bool idle() const;
  bool has_rows(SeqId id) const;
  bool preempted(SeqId id) const;
  // The sequence gives up copies once other copies are ready.
  bool releases(SeqId id) const;

  // Returns the plan, without admissions that got no rows: their promises would keep cells from other
  // sequences for no benefit.
  StepPlan take();

 private:
  // Tentative entries: removed again unless they are kept.
  class Trial;
  // The cells that the rows of a sequence keep, with every default filled in.
  struct RowPlacement {
    Writes writes;
    LayerSet slower;
    Writes restore;
    // Of a streaming sequence: its first tokens, whose full blocks leave the device in these groups.
    uint32_t away_tokens = 0;
    LayerSet leaving;
  };

  uint32_t away_blocks(const PlanState::Seq& s, const KvPlacement& where) const;
  const CellLedger& ledger(Tier tier) const { return state_.ledger(tier); }
  bool has_memory(Tier tier, Form form) const { return view_.budget(tier).per_slab[index_of(form)] > 0; }
  // The state of a sequence that this plan has not stopped and that has no rows.
  PlanState::Seq& movable(const SeqView& seq);
  // Adds an entry to the plan. REQUIRES: it breaks no rule; a broken rule is a defect of the builder.
  void add(Failure failure);
  void add(Preemption preemption);
  void add(Adoption adoption);
  void add(CopyChange change);
  void add(Promise promise);
  void add(Rows rows);
  bool admit(const SeqView& seq, const Admission& admission, uint32_t spare_blocks);
  void promise(const SeqView& seq, uint32_t cells, Tier tier);
  void stop_running(const SeqView& seq);
  void drop_cells(const SeqView& seq, bool keep_x);
  void keep_for_creditors(const SeqView& seq);
  bool admitted_in_vain(SeqId id) const;
  uint32_t prefill_room() const;
  bool waits_too_long_for(const SeqView& seq) const;
  uint32_t scratch_room(const SeqView& seq) const;
  bool try_copies(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier, Trigger trigger,
                  Form form);
  RowPlacement placement(const PlanState::Seq& s, const RowOptions& options) const;
  // Plans tokens [ready, end). False if cells are missing.
  bool add_rows(const SeqView& seq, uint32_t end, RowKind kind, const RowPlacement& place);
  void copies_for_rows(const SeqView& seq, uint32_t end, const RowPlacement& place);
  void restore_dropped(const SeqView& seq, const Writes& keep);
  void move_full_blocks_away(const SeqView& seq, const RowPlacement& place);
  void count_work(const SeqView& seq, const Rows& rows);
  double projected_tokens(const SeqView& seq) const;

  const View& view_;
  const uint32_t groups_;
  const LayerSet all_layers_;
  const Tier slower_;
  StepPlan plan_;
  PlanState state_;
  std::vector<SeqId> admitted_without_rows_;
  StepWork work_;
  uint32_t planned_tokens_ = 0;  // counted against max_num_batched_tokens
  uint32_t planned_prefill_ = 0;
  bool decodes_run_ = false;
};

}  // namespace kvasir
