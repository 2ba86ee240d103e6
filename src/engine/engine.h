// The step loop: drain what has happened, plan, commit, run, publish. Nothing else.
//
// One thread runs the loop, either the caller's (step()) or the engine's own (start()). submit(), cancel()
// and the draining calls may come from any thread; the loop alone touches the cache and the policy.
#pragma once

#include <condition_variable>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cache/committer.h"
#include "contract/executor.h"
#include "contract/lending.h"
#include "contract/policy.h"
#include "contract/view.h"
#include "engine/beliefs.h"
#include "engine/live_requests.h"
#include "engine/metrics.h"
#include "engine/plan_log.h"
#include "engine/queue_pace.h"
#include "engine/request.h"
#include "engine/stall_budget.h"

namespace kvasir {

// So many preemptions of one request in a row, between which no request came further than it ever was, are a
// standstill. Policies preempt one request for another, which then makes progress; so two or three in a row
// would be many.
constexpr uint32_t kPreemptionsInVain = 8;

struct EngineOptions {
  CacheOptions cache;
  PlanLimits limits;
  uint32_t max_model_len = 0;  // prompt and output of one request, in tokens
  // What one step may make running decodes wait, for transfers or beside a long prefill; 0: no bound.
  Nanos max_decode_stall = 0;
  uint32_t max_num_queued_reqs = 1024;  // accepted and never yet run
  uint64_t max_num_queued_tokens = 0;   // prompt tokens of those; 0: no bound
  // Requests with a bound on TTFT are refused at once where the queue, at its pace so far, would take more
  // than a quarter of that; their own prompts, and the ups and downs of the queue, need the rest. An answer
  // that comes too late takes room from one that could come in time.
  bool refuse_late = false;
  // Rows of a step for whose activations the executor has memory; 0: it grows with the step, as the CPU's
  // does (a policy may let a long prompt pass at once).
  uint32_t scratch_tokens = 0;
  // How long requests wait for memory that no peer lends before the first of them makes do with what is
  // there, or fails.
  Nanos borrow_patience = 3 * kNanosPerSecond;
  // And how long before it fails. Meanwhile it gives back what is too little, so that others that wait for
  // the same memory can have it, and asks again.
  Nanos borrow_timeout = 120 * kNanosPerSecond;

  // Judges every plan by its view; a plan that breaks a rule is our bug and ends the process.
  bool check_plans = true;
  // Counts the whole map again after every step: slow, for tests.
  bool check_integrity = false;
};

class Engine {
 public:
  // The longest request that the cache, all its tiers together, can hold when it holds nothing else, in
  // tokens.
  static uint32_t longest_fit(const CacheOptions& cache);

  // All that is given but the policy outlives the engine; `log` may be null, `link` where there is no tier
  // but the device's, and `lending` where no peer is dealt with. REQUIRES: 0 < max_model_len <=
  // longest_fit(options.cache); the executor's depth is 1 or 2.
  Engine(const EngineOptions& options, std::unique_ptr<Policy> policy, Executor& executor, const Clock& clock,
         PlanLog* log = nullptr, Link* link = nullptr, const Beliefs& beliefs = {},
         Lending* lending = nullptr);
  // Stops.
  ~Engine();

  // Queues a request. The sink hears of it until its event with `finish`.
  // kInvalidArgument: it can never fit; the message names the largest length that does.
  // kExhausted: the queue is full. kUnavailable: the engine is draining.
  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<OutputSink> sink);

  // Ends a request soon, and reports `reason`: kAbort, or kStop where the caller has found the end in the
  // text. Unknown or finished requests are ignored.
  void cancel(RequestId id, FinishReason reason = FinishReason::kAbort);

  // Runs the loop on a thread of the engine's until stop().
  void start();
  // No new requests from now on; those accepted go on.
  void drain();
  // Waits until every request that was accepted has ended, or for `timeout`; true when so.
  // REQUIRES: start() was called, or the timeout is 0.
  bool wait_idle(Nanos timeout);
  // Ends every request that is left with kAbort, and the thread.
  void stop();

  // The prefixes that a disk tier holds from before can be found from now on. Returns their blocks.
  // REQUIRES: before start() and the first step()
  size_t restore_prefixes(std::span<const DiskEntry> cells);
  // What the disk tier holds of prefixes once this one has stopped. Before that, what came to be needed by
  // nobody goes on being copied there, for `patience` at the most. REQUIRES: stop() was called
  std::vector<DiskEntry> save_prefixes(Nanos patience);

  // One turn of the loop, for those who bring their own thread. False: there is nothing to do. A turn in
  // which every request waits for a transfer does nothing, and is true.
  bool step();

  const EngineOptions& options() const { return options_; }
  const EngineMetrics& metrics() const { return metrics_; }
  // Brings metrics().link up to date. Any thread.
  void observe_link();
  // For tests, between steps: no frame is lost and every reference counted.
  Status check_integrity() const { return cache_.check_integrity(); }

 private:
  struct Arrival {
    SeqId seq;
    GenerationRequest request;
    std::shared_ptr<OutputSink> sink;
    Nanos at;
  };

  // What a step runs of one sequence.
  struct Member {
    SeqId seq;
    RowKind kind;
    uint32_t rows;
    bool samples;
  };
  struct Submitted {
    std::vector<Member> members;
    uint32_t rows_again = 0;  // that compute dropped cells
    StepWork work;
  };

  // Its own frames, for peers.
  class OwnCells final : public LendableCells {
   public:
    explicit OwnCells(KvCache& cache) : cache_(cache) {}
    std::vector<Frame> take(uint32_t cells) override;
    void give_back(std::span<const Frame> frames) override;
    uint32_t free_cells() const override;
    uint32_t total_cells() const override;

   private:
    KvCache& cache_;
  };

  void run();
  void drain_inbox();
  void deal_with_peers();
  bool waits_for_peers();
  MemoryClaim claim_own(const StepPlan& plan);
  void ask_peers(const StepPlan& plan);
  bool submit_next();
  void publish(StepResult result);

  StepPlan make_plan();
  void fail_head(StepPlan& plan);
  void break_cycle(StepPlan& plan);
  void count_in_vain(LiveRequest& live);
  void note_progress(LiveRequest& live);
  void apply_failures(const StepPlan& plan);
  void apply_states(const StepPlan& plan);
  void count_hits(const Adoption& adoption);
  void publish_token(LiveRequest& live, SampledToken& sampled, Nanos now);
  void finish(LiveRequest& live, FinishReason reason, std::vector<OutputToken> tokens, std::string why,
              bool try_again = false);
  void count_attainment(const LiveRequest& live, FinishReason reason, Nanos now);
  void began_to_run();
  void leave_queue(LiveRequest& live);
  void refresh(LiveRequest& live, SeqView& view) const;
  void refresh_waiting(SeqId id);
  void observe(const Submitted& step, const StepResult& result);
  PromptFeatures features_of(const LiveRequest& live) const;
  void predict_length(LiveRequest& live);
  bool wants_hidden(const LiveRequest& live, const StepSlice& slice) const;
  void learn_length(const LiveRequest& live, FinishReason reason);
  void learn_costs(const Submitted& step, const StepResult& result);
  void refresh_costs();
  void void_cut_back();
  void set_patience(Step& step) const;
  void count_partial_histories(const StepPlan& plan);
  void wait_for_transfer();
  void update_gauges();

  const EngineOptions options_;
  const std::unique_ptr<Policy> policy_;
  Executor& executor_;
  const Clock& clock_;
  PlanLog* const log_;
  Link* const link_;
  Lending* const lending_;
  const Beliefs beliefs_;
  EngineMetrics metrics_;
  std::mutex link_metrics_mutex_;  // so that no counter of metrics_.link goes back

  // Guarded by mutex_.
  mutable std::mutex mutex_;
  std::condition_variable wake_;  // something arrived
  std::condition_variable idle_;  // live_reqs_ fell to 0
  std::vector<Arrival> arrivals_;
  std::vector<std::pair<SeqId, FinishReason>> cancels_;
  uint64_t next_id_ = 1;
  uint64_t queued_reqs_ = 0;      // accepted and never yet run
  uint64_t queued_tokens_ = 0;    // their prompts
  QueuePace pace_;                // at which they begin to run
  uint64_t live_reqs_ = 0;        // accepted and not finished
  uint64_t transfers_ended_ = 0;  // the link has told of so many
  uint64_t peers_called_ = 0;     // that a turn has something to do
  bool draining_ = false;
  bool stopping_ = false;

  // Owned by the loop's thread.
  KvCache cache_;
  Committer committer_;
  LiveRequests requests_;
  View view_;
  StallBudget stall_;
  bool turned_idle_ = false;     // the last turn did nothing but wait for transfers, or for peers
  uint64_t transfers_seen_ = 0;  // of transfers_ended_, before the last turn
  uint64_t peers_heard_ = 0;     // of peers_called_, likewise
  uint32_t borrow_next_ = 0;     // cells that the last plan wants to borrow
  uint32_t recall_next_ = 0;     // of those lent, that it lacks
  Nanos refused_since_ = 0;      // peers lend nothing; 0: they do, or were not asked
  SeqId stuck_{};                // the first request, which waits for peers' memory alone
  Nanos stuck_since_ = 0;        // since when; 0: it does not
  MemoryClaim own_claim_;        // what a request needs of what is, or could be, lent
  MemoryClaim lacking_;          // what one lacks of peers' memory
  Nanos ask_again_at_ = 0;       // of peers, who are asked for nothing before; 0: they may be

  uint64_t next_step_ = 1;
  uint64_t progress_ = 0;            // times that a request came further than it ever was
  std::deque<Submitted> in_flight_;  // steps

  std::thread thread_;  // touched by start() and stop() only
};

}  // namespace kvasir
