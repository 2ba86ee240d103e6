// The requests in the loop, and their places in the two lists of the View.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.h"
#include "base/pooled_map.h"
#include "contract/view.h"
#include "engine/pooled_rows.h"
#include "engine/request.h"

namespace kvasir {

struct LiveRequest {
  enum class State : uint8_t {
    kWaiting,
    kHeld,  // it would wait, but FairGate holds it back: it is in no list
    kRunning,
    kEnding,  // its last token is being sampled: it is in no list, since a policy has nothing to decide
  };

  SeqId id{};
  SamplingParams sampling;
  std::vector<Token> stop_tokens;
  std::shared_ptr<OutputSink> sink;
  std::shared_ptr<RequestTimeline> timeline;  // null: not recorded
  std::shared_ptr<const RequestLabel> label;  // null: it has none
  State state = State::kWaiting;
  int32_t priority = 0;
  float weight = 1;
  Slo slo;
  uint32_t output_tokens_hint = 0;
  Tenant tenant;
  bool for_peer = false;
  LengthPrediction predicted;
  std::vector<float> hidden;        // PromptFeatures::hidden
  PooledRows pooled;                // of the prompt, as far as its rows are there
  std::vector<PromptToken> scored;  // of the prompt from its second token on, as far as they are scored
  Nanos arrival = 0;
  bool queued = true;  // it has never run
  bool seen = false;   // a plan could have run it, while requests of several tenants waited
  Nanos first_run = 0;
  Nanos first_token = 0;
  Nanos last_token = 0;
  uint32_t prompt_tokens = 0;
  uint32_t max_total_tokens = 0;
  uint32_t generated = 0;
  uint32_t late_gaps = 0;           // gaps between its tokens that were longer than slo.tbt_ms
  uint32_t sampling_in_flight = 0;  // its sampling rows in steps that have not ended
  uint32_t in_flight = 0;           // steps in flight with rows of it
  uint32_t preemptions = 0;
  uint16_t deferrals = 0;            // without progress between them
  uint32_t ready_when_deferred = 0;  // tokens that were ready after the last good step before these
  uint32_t cached_prompt_tokens = 0;
  struct Progress {                    // see StandstillWatch
    uint32_t furthest_tokens = 0;      // the most that were ready at any time
    uint64_t when_preempted = 0;       // the progress of all requests when it was last preempted
    uint32_t preemptions_in_vain = 0;  // in a row, without progress of any request between them
  } progress;

  uint32_t known_tokens() const { return prompt_tokens + generated + sampling_in_flight; }
};

// A line of the log about the request, which names it and its key. Throws nothing.
void log_request(LogLevel level, const LiveRequest& live, std::string_view message);

// Keeps view.running in the order in which requests began to run, and view.waiting by (arrival, id). Used by
// the engine's thread.
class LiveRequests {
 public:
  // The view outlives it. Nothing else adds or removes entries of the two lists.
  explicit LiveRequests(View& view) : view_(view) {}

  // If it throws for want of memory, nothing has changed.
  LiveRequest& add(std::unique_ptr<LiveRequest> live);
  void remove(LiveRequest& live);
  // Null: there is no such request.
  LiveRequest* find(SeqId id);
  // Calls f(LiveRequest&) for each, in no particular order.
  template <typename F>
  void for_each(const F& f) {
    for (const auto& [id, live] : by_id_) f(*live);
  }
  bool empty() const { return by_id_.empty(); }
  size_t size() const { return by_id_.size(); }
  std::vector<SeqId> ids() const;  // ascending

  // Moves a request to the list of its new state, where its entry has only id and arrival.
  void set_state(LiveRequest& live, LiveRequest::State state);
  // The same for many at once, from waiting to held and back. They keep their order among those that wait.
  // REQUIRES: they are in the state that they leave.
  void hold(std::span<LiveRequest* const> requests);
  void release(std::span<LiveRequest* const> requests);
  size_t held() const { return held_; }

  // The request's entry in the view. REQUIRES: it waits or runs.
  SeqView& view_of(LiveRequest& live);
  // The request of view.running[i].
  LiveRequest& running(size_t i) { return *running_[i]; }

 private:
  static SeqView line_of(const LiveRequest& live);
  void enter(LiveRequest& live);
  void leave(LiveRequest& live);
  size_t waiting_place(const LiveRequest& live) const;

  View& view_;
  PooledMap<SeqId, std::unique_ptr<LiveRequest>> by_id_;
  std::vector<LiveRequest*> running_;  // in the order of view_.running
  size_t held_ = 0;                    // of them in the state kHeld
};

}  // namespace kvasir
