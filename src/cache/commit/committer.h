// Applies plans: the only code that allocates and frees for a plan, and that arms transfers.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "base/pooled_map.h"
#include "cache/commit/step_stager.h"
#include "cache/sequences/kv_cache.h"
#include "contract/step.h"
#include "contract/step_plan.h"

namespace kvasir {

// Used by the engine's thread. The cache and the link outlive it.
class Committer {
 public:
  // link: null if the device is the only tier.
  Committer(KvCache& cache, Link* link);

  // Applies the plan and resolves its rows to frames, token ids, transfers and waits. The step is indexed.
  // Failures and preemptions end the promises of their sequences; the engine does the rest. Transfers
  // that may begin at once are started; those that depend on the step's progress through the layers are among
  // its transfers. The caller fills in the slices' sampling parameters and the patience. A plan without rows
  // gives a step without slices, which must not be submitted. REQUIRES: check_plan() accepts the plan for
  // the present view.
  Step apply(const StepPlan& plan, StepId id);

  // Called when the oldest step has ended. Returns the sequences whose rows do not count: deferred, or
  // spoilt.
  std::vector<SeqId> step_ended(const StepResult& result);

  // Reports ended transfers to the cache, and cancels transfers in the link that are no longer needed.
  void drain_transfers();

  // Starts to copy blocks that no sequence references to slower tiers.
  void save_idle();

 private:
  using Projected = PooledMap<SeqId, std::vector<KvCache::Cell>>;
  // Places in the plan's lists of copies and rows, by sequence.
  struct PlanBySeq {
    std::vector<std::pair<SeqId, uint32_t>> copies, rows;
  };

  void drop_first(const StepPlan& plan);
  void change_copies(const StepPlan& plan, Projected& projected);
  void drop_last(const StepPlan& plan);
  void start(std::vector<Transfer> transfers);
  void add_slice(const Rows& rows, Step& step);
  // X that the rows of a slice leave in cells of their sequence, or in frames that become cells.
  void write_x(const Rows& rows, Step& step, uint32_t slice);
  void wait_for_fills(Step& step, uint32_t slice);
  std::vector<SeqId> written_elsewhere(const StepPlan& plan) const;
  bool lacks_frames(const Projected& projected, SeqId seq) const;
  SeqScratch scratch_of(const StepPlan& plan, const PlanBySeq& of_seq, const Projected& projected,
                        uint32_t slice, const Step& step);

  KvCache& cache_;
  Link* const link_;
  StepStager stager_;
};

}  // namespace kvasir
