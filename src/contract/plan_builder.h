// Builds a plan that will commit: every call is accounted with the committer's own arithmetic, and what does
// not fit is refused here, where the policy can still choose something else.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>

#include "contract/block_ledger.h"
#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

// Lives for one call of Policy::plan(). The View must outlive it.
class PlanBuilder {
 public:
  explicit PlanBuilder(const View& view);

  // Blocks that nobody holds, is promised, or was given by this plan.
  int64_t available_blocks() const { return ledger_.available(); }
  // Blocks, given up by this plan or before, that come free when the steps in flight have ended: who needs
  // one may wait for it instead of preempting.
  int64_t coming_blocks() const { return ledger_.coming(); }
  uint32_t planned_tokens() const { return planned_tokens_; }
  // Sequences that will run when this plan has been applied.
  uint32_t running_seqs() const { return running_seqs_; }

  // Admits a waiting sequence: it adopts what is cached and is promised the blocks of all its known tokens.
  // One that still holds cells goes on from them. False, and nothing is planned, where fewer than
  // `spare_blocks` blocks would be left or the limit of running sequences is reached.
  // REQUIRES: it waits, and this plan has not named it yet.
  bool admit(const SeqView& seq, uint32_t spare_blocks = 0);

  // Plans the next tokens to compute, at most `max_tokens`; the last known token samples. Returns how many:
  // fewer where memory ends, 0 if none.
  // REQUIRES: the sequence runs, or was admitted by this plan; it has no rows in this plan yet.
  uint32_t prefill(const SeqView& seq, uint32_t max_tokens);

  // Plans the newest token. False, and nothing is planned, if there is no block for it.
  // REQUIRES: seq.decoding(), as for prefill().
  bool decode(const SeqView& seq);

  // The sequence goes back to waiting and gives up its cells, to be recomputed on resumption.
  // REQUIRES: it runs and has no rows in this plan.
  void preempt_and_drop(const SeqView& seq);

  // The sequence goes back to waiting and keeps its cells; what is left of its promise ends.
  // REQUIRES: it runs and has no rows in this plan.
  void preempt_and_keep(const SeqView& seq);

  // A waiting sequence gives up the cells that it kept, with its promise.
  // REQUIRES: it waits, and this plan has not named it yet.
  void drop_waiting(const SeqView& seq);

  // The sequence ends with an error for its client.
  void fail(const SeqView& seq, std::string reason);

  bool has_rows(SeqId id) const;
  bool preempted(SeqId id) const;

  StepPlan take() { return std::move(plan_); }

 private:
  struct Touched {
    uint32_t ready_tokens = 0;
    uint32_t blocks = 0;
    uint32_t promised = 0;
    bool has_rows = false;
    bool gone = false;
  };
  Touched& touch(const SeqView& seq);
  void leave_running(const SeqView& seq);
  void drop_cells(const SeqView& seq);
  // Plans [ready, end). False if the blocks are not there.
  bool add_rows(const SeqView& seq, uint32_t end, RowKind kind);

  const View& view_;
  const LayerSet all_layers_;
  StepPlan plan_;
  std::unordered_map<SeqId, Touched> touched_;
  BlockLedger ledger_;
  uint32_t planned_tokens_ = 0;
  uint32_t running_seqs_ = 0;
};

}  // namespace kvasir
