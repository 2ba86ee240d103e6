// Builds a plan that will commit: every call is accounted with the committer's own arithmetic, and what does
// not fit is refused here, where the policy can still choose something else.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>

#include "contract/cell_ledger.h"
#include "contract/residence.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

// What rows leave behind; the defaults serve a policy that does not care.
struct RowOptions {
  // Layer groups of which full blocks keep K and V on the device. Default: all, or what streaming leaves
  // there.
  std::optional<LayerSet> kv{};
  // Those of which X and H are kept on the device, block by block, from a block's first row on.
  LayerSet x{};
  LayerSet h{};
  // Those of which the K and V of full blocks go to the slower tier as they are written. Default: all but
  // those of `kv` and `x`. A cell that is in none of them is dropped.
  std::optional<LayerSet> slower{};
  // Of dropped cells that are computed again, those that are kept on the device from then on.
  Writes restore{};
};

// What an admission asks for.
struct AdmitOptions {
  uint32_t spare_blocks = 0;  // that it leaves to others
  uint32_t total_tokens = 0;  // the length that room is promised for; at least what is known is
  // The layer groups of which it is promised room for full blocks on the device, as its rows are to be
  // planned (RowOptions::kv); for the others it is promised room on the slower tier. What is cached or held
  // there stays there then, and is staged. Default: all, or what streaming leaves on the device.
  std::optional<LayerSet> kv{};
  // Those of which X is to be kept instead of K and V (RowOptions::x): no room for them is promised anywhere,
  // since there are no promises of X. What is cached in these groups stays in the form that it has.
  // REQUIRES: `kv` is given, and has none of them
  LayerSet x{};
};

// Lives for one call of Policy::plan(). The View must outlive it.
//
// Where K and V stay: a sequence that can become larger than the device tier *streams*. Its full blocks go
// to the slower tier (the host, or the disk where there is no host) as they are written, and are staged layer
// by layer in every step; its last block is on the device, and, where the slower tier is too small for the
// rest, some of its layer groups. Policies need not know. One that wants to decide itself says so with
// RowOptions.
class PlanBuilder {
 public:
  explicit PlanBuilder(const View& view);

  // Cells of a form that nobody holds, is promised, or was given by this plan.
  int64_t available_cells(Tier tier = Tier::kDevice, Form form = Form::kKv) const {
    return ledger(tier).available(form);
  }
  // Blocks of them, of all layer groups.
  int64_t available_blocks() const { return available_cells() / groups_; }
  // Cells of the device, given up by this plan or before, that come free when the steps and transfers in
  // flight, and those of this plan, have ended: who needs some may wait for them instead of preempting.
  int64_t coming_cells() const { return ledger(Tier::kDevice).coming(); }
  int64_t coming_blocks() const { return coming_cells() / groups_; }
  uint32_t planned_tokens() const { return planned_tokens_; }
  // Blocks of a layer for which the stage ring has room beside the rows so far.
  uint32_t stage_room() const { return view_.stage_blocks - std::min(view_.stage_blocks, staged_blocks_); }
  // What the rows so far do: view.costs.step_seconds(work()) is what they are believed to take.
  const StepWork& work() const { return work_; }
  // Sequences that will run when this plan has been applied.
  uint32_t running_seqs() const { return running_seqs_; }

  // Where the K and V of a sequence live if the policy does not say otherwise.
  Residence residence(const SeqView& seq) const;
  // The ring can pass all of its history, however long it becomes: it may be without frames on the device.
  bool passes_ring(const SeqView& seq) const {
    return view_.capacity().passing(view_.geometry.blocks_for(seq.max_total_tokens)) <= view_.stage_blocks;
  }
  // Nothing but memory keeps rows of a running sequence out of this step. Otherwise it waits for a transfer,
  // or the stage ring is taken: preempting others would not help it.
  bool can_run(const SeqView& seq) const;

  // Admits a waiting sequence: it adopts what is cached, or brings back to the device what it holds
  // elsewhere, and is promised the blocks of all its known tokens, or of more (if it streams, room on the
  // slower tier for all that it can become). False, and nothing is planned, where fewer blocks would be left
  // than are to be spared, something is missing, or the limit of running sequences or the stall budget is
  // reached. REQUIRES: it waits, and this plan has not named it yet.
  bool admit(const SeqView& seq, const AdmitOptions& options = {});

  // Plans the next tokens to compute, at most `max_tokens`; the last known token samples. Returns how many:
  // fewer where memory or the stall budget ends, 0 if none. Cells that are not on the device are staged,
  // or projected from X; those that were dropped are computed again by rows of their own.
  // REQUIRES: the sequence runs, or was admitted by this plan; it has no rows in this plan yet.
  uint32_t prefill(const SeqView& seq, uint32_t max_tokens, const RowOptions& options = {});

  // Plans the newest token. False, and nothing is planned, if there is no block for it, or it cannot run.
  // REQUIRES: seq.decoding(), as for prefill().
  bool decode(const SeqView& seq, const RowOptions& options = {});

  // The sequence goes back to waiting and gives up its cells, to be recomputed on resumption.
  // REQUIRES: it runs, and has no rows and no copies in this plan.
  void preempt_and_drop(const SeqView& seq);

  // The sequence goes back to waiting and keeps its cells; what is left of its promise ends.
  // REQUIRES: it runs and has no rows in this plan.
  void preempt_and_keep(const SeqView& seq);

  // The sequence goes back to waiting; it keeps X (and H), and gives up K and V on every tier, with the rows
  // of the block that is not full. REQUIRES: it runs, and has no rows and no copies in this plan.
  void preempt_and_keep_x(const SeqView& seq);

  // The sequence goes back to waiting; its cells are copied to the slower tier where they are not there
  // already, and leave the device as they are. Full blocks go as X in the layer groups `as_x`, and as K and V
  // in the others; X of a block that is not full stays where it is. False, and nothing is planned, if that
  // tier has no room. REQUIRES: as for preempt_and_drop(); it holds X of every block in `as_x`, of the last
  // ones on the device and of those before in the slower tier
  bool preempt_and_offload(const SeqView& seq, const LayerSet& as_x = {});

  // A waiting sequence gives up the cells that it kept, on every tier, with its promise.
  // REQUIRES: it waits, and this plan has not named it yet.
  void drop_waiting(const SeqView& seq);

  // Adds copies of full blocks in `tokens`, in these layer groups, on a tier, as `trigger` says. False, and
  // nothing is planned, if that tier has no room for them. KV of which there is only X is made from it if the
  // trigger is kBeforeLayer and the sequence has rows in this plan.
  // REQUIRES: the sequence runs, or waits and holds cells; trigger is kNow, kBackground or, for KV on the
  // device, kBeforeLayer.
  bool add_copies(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier, Trigger trigger,
                  Form form = Form::kKv);
  // Gives up copies on a tier, each as soon as another is ready from which K and V can be had (of H: another
  // of H). Those without another stay.
  void release(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier, Form form = Form::kKv);
  // Gives up copies of full blocks when this plan's rows have read them, also the last ones: those cells are
  // dropped, and computed again in every step that needs them.
  // REQUIRES: the sequence runs, or waits and holds cells.
  void drop(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier, Form form = Form::kKv);

  // Promises (View::claims, Promise::Kind), in cells of KV: blocks of one layer group. Beside what admit()
  // promises. False, and nothing is planned, where there are not so many. The owner runs or was admitted by
  // this plan. Who is a party to a promise with others may not be ended or preempted by the same plan
  // (can_stop()).
  //
  // Keeps more room for the sequence, of what nobody needs.
  bool promise_own(const SeqView& seq, uint32_t cells, Tier tier = Tier::kDevice);
  // The shared reserve becomes `cells`, or as near to that as there is room. Returns what it is then.
  uint32_t set_reserve(uint32_t cells, Tier tier = Tier::kDevice);
  uint32_t reserve(Tier tier = Tier::kDevice) const { return reserved_[index_of(tier)]; }
  // Of the shared reserve.
  bool draw_reserve(const SeqView& seq, uint32_t cells, Tier tier = Tier::kDevice);
  // Of what is left of the host's own promise, until the host's known length is `due_tokens`. Once that is so
  // the guest may not run (recall_loans() preempts it), and the host has its cells in the next step.
  // REQUIRES: both run, or were admitted by this plan; due_tokens > host.known_tokens
  bool lend(const SeqView& host, const SeqView& guest, uint32_t cells, uint32_t due_tokens,
            Tier tier = Tier::kDevice);
  // Lends so to a sequence that waits, and admits it with that. False, and nothing is planned, where either
  // cannot be. REQUIRES: the host runs, or was admitted by this plan; as for lend() and admit()
  bool admit_guest(const SeqView& host, const SeqView& guest, uint32_t cells, uint32_t due_tokens,
                   const AdmitOptions& options = {});
  // Of what comes free when `of` ends or is preempted.
  void promise_release(const SeqView& of, const SeqView& seq, uint32_t cells, Tier tier = Tier::kDevice);
  // This plan may still preempt it, drop it or let it fail: it has no rows and no promises with others in it.
  bool can_stop(const SeqView& seq) const;
  // Blocks that its table names, with those that rows of this plan begin.
  uint32_t blocks(const SeqView& seq) const;
  // What is left of the promises to a sequence, those of this plan included.
  uint32_t promised(const SeqView& seq, Tier tier = Tier::kDevice) const;

  // The sequence ends with an error for its client. REQUIRES: it has no rows and no copies in this plan, and
  // no promises with others (can_stop()).
  void fail(const SeqView& seq, std::string reason);

  // --- Memory of peers.
  void borrow(uint32_t cells) { plan_.borrow_cells += cells; }
  bool borrows() const { return plan_.borrow_cells > 0; }
  void give_back(uint32_t cells) { plan_.return_cells += cells; }
  // Cells of the slower tier that it may still need beside those that it holds or is promised: of a sequence
  // that streams, at its greatest length all but the last block.
  uint32_t slower_cells_to_come(const SeqView& seq) const;

  void set_hints(const ExecutionHints& hints) { plan_.hints = hints; }

  // Nothing is planned that moves the work forward.
  bool idle() const;
  bool has_rows(SeqId id) const;
  bool preempted(SeqId id) const;
  // It gives up copies as soon as others are ready.
  bool releases(SeqId id) const;

  // The plan. Admissions that got no rows are not in it: what they were promised would be kept from others
  // for nothing.
  StepPlan take();

 private:
  struct Touched {
    uint32_t ready_tokens = 0;
    uint32_t blocks = 0;
    uint32_t resident = 0;     // blocks on the device in every group
    uint32_t peer_blocks = 0;  // of the others, those that need no staging
    LayerSet device_groups;
    bool tail_resident = true;
    uint32_t x_elsewhere = 0;  // blocks of which X comes over a link if rows are planned
    std::array<uint32_t, kTiers> promised{};
    bool in_promises = false;  // a party to a promise of this plan with others
    bool admitted = false;
    bool has_rows = false;
    bool gone = false;
    bool releases = false;
  };
  // What the rows of a sequence leave behind, every default filled in.
  struct Placement {
    Writes writes;
    LayerSet slower;
    Writes restore;
  };
  Touched& state(const SeqView& seq);
  Touched& touch(const SeqView& seq);
  bool take(Touched& t, Tier tier, uint32_t cells);
  CellLedger& ledger(Tier tier) { return ledgers_[index_of(tier)]; }
  const CellLedger& ledger(Tier tier) const { return ledgers_[index_of(tier)]; }
  bool admitted_in_vain(SeqId id) const;
  void leave_running(const SeqView& seq);
  void drop_cells(const SeqView& seq, bool keep_x);
  bool admit_with(const SeqView& seq, uint32_t adopted, const AdmitOptions& options);
  bool bring_back(const SeqView& seq, const AdmitOptions& options);
  // Of the device, beside what the admission takes itself.
  int64_t spare_cells(const SeqView& seq, const AdmitOptions& options) const;
  uint32_t blocks_asked(const SeqView& seq, const AdmitOptions& options) const;
  struct FreshCells {
    uint32_t device = 0;
    uint32_t slower = 0;
  };
  FreshCells fresh_cells(const SeqView& seq, const AdmitOptions& options, uint32_t blocks) const;
  void promise(const SeqView& seq, Touched& t, Tier tier, uint32_t cells);
  void end_own_promises(const SeqView& seq, Touched& t);
  Touched& party(const SeqView& seq);
  void keep_for_creditors(const SeqView& seq);
  uint32_t prefill_room() const;
  bool waits_too_long_for(const SeqView& seq) const;
  uint32_t scratch_room(const SeqView& seq) const;
  uint32_t stage_blocks(const SeqView& seq, const Touched& t) const;
  bool covers_history(const Interval& tokens, const Touched& t) const;
  void copy_change(const SeqView& seq, Verb verb, Interval tokens, const LayerSet& layers, Form form,
                   Tier tier, Trigger trigger);
  Placement placement(const SeqView& seq, const RowOptions& options) const;
  // Plans [ready, end). False if the cells are not there.
  bool add_rows(const SeqView& seq, uint32_t end, RowKind kind, const Placement& place);
  double projected_tokens(const SeqView& seq) const;
  void compute_again(const SeqView& seq, const Writes& restore);
  void plan_copies_of_rows(const SeqView& seq, const Touched& before, uint32_t end, const Placement& place);

  const View& view_;
  const uint32_t groups_;
  const LayerSet all_layers_;
  const Tier slower_;
  StepPlan plan_;
  std::unordered_map<SeqId, Touched> touched_;
  std::array<CellLedger, kTiers> ledgers_;
  std::array<uint32_t, kTiers> reserved_;
  StepWork work_;
  uint32_t planned_tokens_ = 0;  // against max_num_batched_tokens
  uint32_t planned_prefill_ = 0;
  uint32_t planned_rows_ = 0;  // all of them
  uint32_t staged_blocks_ = 0;
  uint32_t running_seqs_ = 0;
  bool decodes_run_ = false;
};

}  // namespace kvasir
