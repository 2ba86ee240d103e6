// Makes plans so: the only code that allocates and frees on behalf of a plan, and that arms transfers.
#pragma once

#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "cache/kv_cache.h"
#include "cache/step_stager.h"
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

  // Starts to copy what came to be needed by nobody to slower tiers.
  void save_idle();

 private:
  using Projected = std::unordered_map<SeqId, std::vector<KvCache::Cell>>;

  bool gives_up_all(const CopyChange& change) const;
  void drop_first(const StepPlan& plan);
  Projected change_copies(const StepPlan& plan);
  void drop_last(const StepPlan& plan);
  void start(std::vector<Transfer> transfers);
  void add_slice(const Rows& rows, Step& step);
  // X and H that the rows of a slice leave in cells of their sequence, or in frames that it fills.
  void write_forms(const Rows& rows, Step& step, uint32_t slice);
  void wait_for_fills(Step& step, uint32_t slice);
  std::unordered_set<SeqId> written_elsewhere(const StepPlan& plan) const;
  bool lacks_frames(const Projected& projected, SeqId seq) const;
  SeqScratch scratch_of(const StepPlan& plan, const Projected& projected, uint32_t slice, const Step& step);

  KvCache& cache_;
  Link* const link_;
  StepStager stager_;
};

}  // namespace kvasir
