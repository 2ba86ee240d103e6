// The life of a request: it arrives, waits, runs, may be preempted, gets tokens, and ends. Its sink gets
// every token, and the end once.
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
#include "engine/fair_gate.h"
#include "engine/inbox.h"
#include "engine/live_requests.h"
#include "engine/metrics_recorder.h"
#include "engine/request.h"
#include "engine/standstill_watch.h"
#include "engine/view_keeper.h"

namespace kvasir {

// The engine's record of a step that was submitted and has not ended.
struct SubmittedStep {
  // Its rows of one sequence, without rows that recompute dropped cells: those are no progress.
  struct Member {
    SeqId seq;
    RowKind kind;
    uint32_t rows;
    bool samples;
  };
  std::vector<Member> members;
  uint32_t rows_again = 0;  // rows that recompute dropped cells
  StepWork work;
};

// Used by the engine's thread. It changes the states of requests, and adds and removes their sequences in the
// cache. The committer changes what sequences hold there.
class RequestLifecycle {
 public:
  // The parts of the engine that it changes. They outlive it.
  struct Parts {
    const Clock& clock;
    Inbox& inbox;
    KvCache& cache;
    LiveRequests& requests;
    ViewKeeper& view;
    BeliefKeeper& beliefs;
    StandstillWatch& watch;
    MetricsRecorder& metrics;
    FairGate& gate;
  };
  RequestLifecycle(const Parts& parts, uint32_t max_model_len) : p_(parts), max_model_len_(max_model_len) {}

  // Without memory for it, the request fails.
  void arrive(Arrival arrival);
  // Ends a request and tells its sink by `event`, which may have tokens that the sink did not get yet. `why`,
  // `try_again`: see OutputEvent.
  void end(LiveRequest& live, FinishReason reason, OutputEvent event = {}, std::string why = {},
           bool try_again = false);

  // Memory was missing in the middle of a change: ends all requests with an error, whatever the cache and the
  // view have of them. Nothing else may be called afterwards.
  void abandon();

  // A plan made at `now` was committed: applies its failures, preemptions and admissions to the requests.
  void apply(const StepPlan& plan, Nanos now);

  // Removes the step, which has ended, from its requests' counts of steps in flight.
  void leave_flight(const SubmittedStep& step);
  // Fails requests whose keys and values cannot be copied between the tiers.
  void fail_for_copies();
  // The step failed: fails its requests.
  void fail(const SubmittedStep& step, const Status& status);
  // What the step gave. void_rows: sequences whose rows do not count, and will be planned again.
  void publish(const SubmittedStep& step, StepResult& result, std::span<const SeqId> void_rows, Nanos now);

  // Sequences have lost copies (KvCache::take_cut_back()): tokens that steps in flight sample for them do not
  // count, and will be planned again.
  void cut_back(std::deque<SubmittedStep>& in_flight);

 private:
  void admit(Arrival& arrival);
  void fail_for_memory(OutputSink& sink);
  void preempt(SeqId id, const StepPlan& plan, Nanos now);
  void adopt(const Adoption& adoption);
  void run(const Rows& rows, Nanos now);
  void add_score(LiveRequest& live, ScoredToken& scored);
  void add_hidden(LiveRequest& live, HiddenRow& hidden);
  void add_token(LiveRequest& live, SampledToken& sampled, Nanos now);

  const Parts p_;
  const uint32_t max_model_len_;
};

}  // namespace kvasir
