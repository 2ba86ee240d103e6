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

// Lives for one call of Policy::plan(). The View must outlive it.
//
// Where K and V stay: a sequence that can become larger than the device tier *streams*. Its full blocks go
// to the host as they are written, and are staged layer by layer in every step; its last block is on the
// device, and, where the host is too small for the rest, some of its layer groups. Policies need not know.
// One that wants to decide itself which layer groups keep their blocks on the device says so with `keep`.
class PlanBuilder {
 public:
  explicit PlanBuilder(const View& view);

  // Blocks, of all layer groups, that nobody holds, is promised, or was given by this plan.
  int64_t available_blocks() const { return device_.available() / groups_; }
  // Blocks, given up by this plan or before, that come free when the steps and transfers in flight, and those
  // of this plan, have ended: who needs one may wait for it instead of preempting.
  int64_t coming_blocks() const { return device_.coming() / groups_; }
  uint32_t planned_tokens() const { return planned_tokens_; }
  // Sequences that will run when this plan has been applied.
  uint32_t running_seqs() const { return running_seqs_; }

  // Where the K and V of a sequence live if the policy does not say otherwise.
  Residence residence(const SeqView& seq) const;
  // Nothing but memory keeps rows of a running sequence out of this step. Otherwise it waits for a transfer,
  // or the stage ring is taken: preempting others would not help it.
  bool can_run(const SeqView& seq) const;

  // Admits a waiting sequence: it adopts what is cached, or brings back to the device what it holds
  // elsewhere, and is promised the blocks of all its known tokens (if it streams, room on the host for all
  // that it can become). False, and nothing is planned, where fewer than `spare_blocks` blocks would be left,
  // something is missing, or the limit of running sequences or the stall budget is reached.
  // REQUIRES: it waits, and this plan has not named it yet.
  bool admit(const SeqView& seq, uint32_t spare_blocks = 0);

  // Plans the next tokens to compute, at most `max_tokens`; the last known token samples. Returns how many:
  // fewer where memory or the stall budget ends, 0 if none. Cells that are not on the device are staged.
  // REQUIRES: the sequence runs, or was admitted by this plan; it has no rows in this plan yet.
  uint32_t prefill(const SeqView& seq, uint32_t max_tokens, std::optional<LayerSet> keep = std::nullopt);

  // Plans the newest token. False, and nothing is planned, if there is no block for it, or it cannot run.
  // REQUIRES: seq.decoding(), as for prefill().
  bool decode(const SeqView& seq, std::optional<LayerSet> keep = std::nullopt);

  // The sequence goes back to waiting and gives up its cells, to be recomputed on resumption.
  // REQUIRES: it runs, and has no rows and no copies in this plan.
  void preempt_and_drop(const SeqView& seq);

  // The sequence goes back to waiting and keeps its cells; what is left of its promise ends.
  // REQUIRES: it runs and has no rows in this plan.
  void preempt_and_keep(const SeqView& seq);

  // The sequence goes back to waiting; its cells are copied to the host where they are not there already, and
  // leave the device as they are. False, and nothing is planned, if the host has no room.
  // REQUIRES: as for preempt_and_drop().
  bool preempt_and_offload(const SeqView& seq);

  // A waiting sequence gives up the cells that it kept, on every tier, with its promise.
  // REQUIRES: it waits, and this plan has not named it yet.
  void drop_waiting(const SeqView& seq);

  // Adds copies of full blocks in `tokens`, in these layer groups, on a tier, as `trigger` says. False, and
  // nothing is planned, if that tier has no room for them.
  // REQUIRES: the sequence runs, or waits and holds cells; trigger is kNow, kBackground or, for the device,
  // kBeforeLayer.
  bool add_copies(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier, Trigger trigger);
  // Gives up copies on a tier, each as soon as another copy of its cell is ready. Those without another stay.
  void release(const SeqView& seq, Interval tokens, const LayerSet& layers, Tier tier);

  // The sequence ends with an error for its client.
  void fail(const SeqView& seq, std::string reason);

  // Nothing is planned that moves the work forward.
  bool idle() const {
    return plan_.rows.empty() && plan_.preemptions.empty() && plan_.copies.empty() && plan_.failures.empty();
  }
  bool has_rows(SeqId id) const;
  bool preempted(SeqId id) const;

  StepPlan take() { return std::move(plan_); }

 private:
  struct Touched {
    uint32_t ready_tokens = 0;
    uint32_t blocks = 0;
    uint32_t resident = 0;  // blocks on the device in every group
    LayerSet device_groups;
    bool tail_resident = true;
    std::array<uint32_t, kTiers> promised{};
    bool has_rows = false;
    bool gone = false;
  };
  Touched& state(const SeqView& seq);
  Touched& touch(const SeqView& seq);
  bool take(Touched& t, Tier tier, uint32_t cells);
  CellLedger& ledger(Tier tier) { return tier == Tier::kHost ? host_ : device_; }
  void leave_running(const SeqView& seq);
  void drop_cells(const SeqView& seq);
  bool admit_with(const SeqView& seq, uint32_t adopted, uint32_t spare_blocks);
  bool bring_back(const SeqView& seq, uint32_t spare_blocks);
  void promise(const SeqView& seq, Touched& t, Tier tier, uint32_t cells);
  uint32_t prefill_room() const;
  uint32_t host_cells_to_come(const SeqView& seq) const;
  void copy_change(const SeqView& seq, Verb verb, Interval tokens, const LayerSet& layers, Tier tier,
                   Trigger trigger);
  LayerSet kept(const SeqView& seq, const std::optional<LayerSet>& keep) const;
  // Plans [ready, end). False if the cells are not there.
  bool add_rows(const SeqView& seq, uint32_t end, RowKind kind, const LayerSet& keep);
  void plan_copies_of_rows(const SeqView& seq, const Touched& before, uint32_t end, const LayerSet& keep);

  const View& view_;
  const uint32_t groups_;
  const LayerSet all_layers_;
  StepPlan plan_;
  std::unordered_map<SeqId, Touched> touched_;
  CellLedger device_;
  CellLedger host_;
  uint32_t planned_tokens_ = 0;
  uint32_t planned_prefill_ = 0;
  uint32_t staged_blocks_ = 0;
  uint32_t running_seqs_ = 0;
  bool decodes_run_ = false;
};

}  // namespace kvasir
