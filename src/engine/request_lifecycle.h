// The life of a request: it arrives, waits, runs, may be preempted, gets tokens, and ends. Its sink hears of
// every token, and of the end once.
#pragma once

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cache/sequences/kv_cache.h"
#include "contract/cost_model.h"
#include "contract/ids.h"
#include "contract/step.h"
#include "contract/step_plan.h"
#include "engine/belief_keeper.h"
#include "engine/inbox.h"
#include "engine/live_requests.h"
#include "engine/metrics_recorder.h"
#include "engine/request.h"
#include "engine/standstill_watch.h"
#include "engine/view_keeper.h"

namespace kvasir {

// What the engine remembers of a step that was submitted and has not ended.
struct SubmittedStep {
  // Its rows of one sequence, but for those that compute dropped cells again: they are no progress.
  struct Member {
    SeqId seq;
    RowKind kind;
    uint32_t rows;
    bool samples;
  };
  std::vector<Member> members;
  uint32_t rows_again = 0;  // rows that compute dropped cells again
  StepWork work;
};

// Used by the engine's thread. It changes the states of requests and adds and removes their sequences in the
// cache; what sequences hold there is the committer's.
class RequestLifecycle {
 public:
  // What a request's changes concern. All of it outlives the lifecycle.
  struct Parts {
    const Clock& clock;
    Inbox& inbox;
    KvCache& cache;
    LiveRequests& requests;
    ViewKeeper& view;
    BeliefKeeper& beliefs;
    StandstillWatch& watch;
    MetricsRecorder& metrics;
  };
  RequestLifecycle(const Parts& parts, uint32_t max_model_len) : p_(parts), max_model_len_(max_model_len) {}

  void arrive(Arrival arrival);
  // Ends a request and tells its sink; with tokens that the sink has not heard of. `why`, `try_again`: see
  // OutputEvent.
  void end(LiveRequest& live, FinishReason reason, std::vector<OutputToken> tokens = {}, std::string why = {},
           bool try_again = false);

  // A plan made at `now` was committed: requests fail, wait, or run as it says.
  void apply(const StepPlan& plan, Nanos now);

  // The oldest step has ended, and is no longer in flight.
  void leave_flight(const SubmittedStep& step);
  // It failed: so do its requests.
  void fail(const SubmittedStep& step, const Status& status);
  // It gave these tokens. void_rows: sequences whose rows count for nothing, and will be planned again.
  void publish(const SubmittedStep& step, std::span<SampledToken> sampled, std::span<const SeqId> void_rows,
               Nanos now);

  // Sequences have lost copies (KvCache::take_cut_back()): what the steps in flight sample of them counts for
  // nothing. Those tokens are not known, and will be planned again.
  void cut_back(std::deque<SubmittedStep>& in_flight);

 private:
  void preempt(SeqId id, const StepPlan& plan);
  void adopt(const Adoption& adoption);
  void run(const Rows& rows, Nanos now);
  void add_token(LiveRequest& live, SampledToken& sampled, Nanos now);

  const Parts p_;
  const uint32_t max_model_len_;
};

}  // namespace kvasir
