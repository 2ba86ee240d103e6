// A generation request to the engine, and the events of its output.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "contract/pooling.h"
#include "contract/slo.h"
#include "contract/step.h"
#include "engine/request_timeline.h"

namespace kvasir {

enum class RequestId : uint64_t {};
constexpr uint64_t raw(RequestId id) {
  return static_cast<uint64_t>(id);
}

// What a request of this priority is worth beside others, for policies that weigh: 2^-priority, within 1/16
// and 16.
float weight_of(int32_t priority);

// Whose request it is, of the tenants that share an engine: for fairness, and for the places in the queue.
struct Tenant {
  uint32_t id = 0;   // 0: that of all requests that name none
  float weight = 1;  // the share of service that it may claim beside others; above 0
  // Of the places in the queue that no other tenant takes, the share that it may take; in (0, 1]. Below 1
  // some places stay free for others, however many it sends (Choudhury and Hahne, "Dynamic queue length
  // thresholds", 1998).
  float queue_share = 1;
};

// By what its clients and operators know a request: for the log.
struct RequestLabel {
  std::string id;
  std::string key;  // the name of its API key
};

struct GenerationRequest {
  std::vector<Token> prompt;       // at least one token
  SamplingParams sampling;         // with prompt_logprobs the whole prompt is computed, cached or not
  uint32_t max_tokens = 0;         // the most to generate; 0: up to the model's length
  std::vector<Token> stop_tokens;  // generation ends with any of these (it is reported like any token)
  int32_t priority = 0;            // lower is more urgent, under a policy that reads it
  std::string cache_salt;          // prefixes are shared only between requests with the same salt
  Slo slo;
  uint32_t output_tokens_hint = 0;  // the output length that the client announces; 0: none
  Tenant tenant;
  // Of the prompt: OutputEvent::embedding. With kMean the whole prompt is computed, cached or not.
  Pooling pooling = Pooling::kNone;
  // Rows that are computed for a peer (engine/peer_prompts.h): no client of this instance waits for them.
  bool for_peer = false;
  std::shared_ptr<RequestTimeline> timeline;  // null: not recorded
  std::shared_ptr<const RequestLabel> label;  // null: it has none
};

// Places in the queue for requests of a tenant that come later. Used by one thread.
class QueuePlaces {
 public:
  // `give_back`: so many places, for prompts of so many tokens in all.
  using GiveBack = std::function<void(uint64_t requests, uint64_t prompt_tokens)>;

  // There are none yet.
  explicit QueuePlaces(GiveBack give_back) : give_back_(std::move(give_back)) {}
  ~QueuePlaces() {
    if (requests_ > 0) give_back_(requests_, prompt_tokens_);
  }
  QueuePlaces(const QueuePlaces&) = delete;
  QueuePlaces& operator=(const QueuePlaces&) = delete;

  void got(uint64_t requests, uint64_t prompt_tokens) {
    requests_ += requests;
    prompt_tokens_ += prompt_tokens;
  }
  // A request with such a prompt has got one of them. REQUIRES: it was one of those that they are for
  void used(uint64_t prompt_tokens) {
    --requests_;
    prompt_tokens_ -= prompt_tokens;
  }

 private:
  uint64_t requests_ = 0;
  uint64_t prompt_tokens_ = 0;
  const GiveBack give_back_;
};

enum class FinishReason : uint8_t {
  kStop,    // a stop token
  kLength,  // max_tokens, or the model's length
  kAbort,   // cancelled, or the engine stopped
  kError,   // see OutputEvent::error
};
const char* name(FinishReason reason);

struct OutputToken {
  Token id = 0;
  float logprob = 0;              // only if sampling.logprobs >= 0
  std::vector<TokenLogprob> top;  // sampling.logprobs of them
};

// A token of the prompt, as the model sees it behind those before it.
struct PromptToken {
  Token id = 0;
  float logprob = 0;
  uint32_t rank = 1;              // 1 + the number of tokens that are more likely
  std::vector<TokenLogprob> top;  // sampling.prompt_logprobs of them
};

// One event carries the tokens of one step. Exactly one event, the last, has `finish`.
struct OutputEvent {
  std::vector<OutputToken> tokens;
  // With the first token, if sampling.prompt_logprobs >= 0: all tokens of the prompt but the first.
  std::vector<PromptToken> prompt;
  // With the first token, if asked for and the executor computes hidden rows: [dim].
  std::vector<float> embedding;
  std::optional<FinishReason> finish;
  std::string error;                  // one line for the client, with kError
  bool try_again = false;             // with kError: memory was missing; a retry may succeed
  uint32_t cached_prompt_tokens = 0;  // prompt tokens whose K and V were cached
};

// Called on the engine's thread: must return at once (hand the event to another thread), and must not call
// the engine. While there is no memory for an event it waits: it must not throw.
class OutputSink {
 public:
  virtual ~OutputSink() = default;
  virtual void on_output(OutputEvent event) = 0;
};

}  // namespace kvasir
