// Makes plans so: the only code that allocates and frees on behalf of a plan, and that arms transfers.
#pragma once

#include <unordered_map>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/stage_ring.h"
#include "contract/step.h"
#include "contract/step_plan.h"

namespace kvasir {

// Used by the engine's thread. The cache and the link outlive it.
class Committer {
 public:
  // link: null where there is no tier but the device's.
  Committer(KvCache& cache, Link* link);

  // Applies the plan and resolves its rows to frames, token ids, transfers and waits. A preemption ends what
  // is left of promises; otherwise failures and preemptions change no cell, and are the engine's. What has to
  // move at once is started, what depends on the step's passage is among its firings. The caller fills in the
  // slices' sampling parameters and the patience. A plan without rows gives a step without slices, which is
  // not to be submitted. REQUIRES: check_plan() accepts the plan for the view of this moment.
  Step apply(const StepPlan& plan, StepId id);

  // The oldest step has ended. Returns the sequences whose rows count for nothing: deferred, or spoilt.
  std::vector<SeqId> step_ended(const StepResult& result);

  // Tells the map of transfers that have ended, and the link of those that nobody wants any more.
  void drain_transfers();

 private:
  // What rows of one slice need beyond frames on the device.
  struct Scratch {
    uint32_t slice = 0;
    std::span<const BlockId> blocks;
    std::vector<LayerSet> lacking;      // by block: groups without a frame
    std::vector<LayerSet> from_rows;    // of those: written by rows of this step, and bound for the host
    std::vector<LayerSet> from_frames;  // with a frame, written by this step, and bound for the host, too
  };

  void change_copies(const StepPlan& plan);
  void start(std::vector<Transfer> transfers);
  void add_slice(const Rows& rows, Step& step);
  void wait_for_fills(Step& step, uint32_t slice);
  // through: the changes of the plan that rows write to the host.
  bool needs_scratch(const std::vector<const CopyChange*>& through, SeqId seq) const;
  Scratch scratch_of(const std::vector<const CopyChange*>& through, Step& step, uint32_t slice);
  void stage_layer(Step& step, const Scratch& scratch, uint32_t layer);
  void write_back_frames(Step& step, const Scratch& scratch, uint32_t layer);
  void fire(Step& step, StepMoment moment, const Scratch& scratch, TransferPriority priority,
            std::vector<KvCache::Use>& uses, Transfer& transfer);

  KvCache& cache_;
  Link* const link_;
  StageRing ring_;
};

}  // namespace kvasir
