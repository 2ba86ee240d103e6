// One request for embeddings, from its submission to its answer.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/exchange.h"
#include "server/generation.h"
#include "server/keys/key_usage.h"
#include "server/prompt.h"

namespace kvasir {

struct PreparedEmbeddings {
  std::string model;                      // as the answer names it
  bool base64 = false;                    // little-endian f32, not a list of numbers
  std::vector<GenerationRequest> inputs;  // each with a pooling, and one token to generate
};

// Used on the I/O thread. The inputs run some at a time, so that one request does not fill the queue; the
// answer has them in their order, each with length 1.
class EmbeddingJob final : public Activity, public std::enable_shared_from_this<EmbeddingJob> {
 public:
  // REQUIRES: as of Generation.
  EmbeddingJob(const ModelService& service, PreparedEmbeddings request, PostToIo post,
               ResponseChannel* channel, KeyLease lease = {});

  void start();
  void on_drained() override {}
  // Also cancels the inputs that still run.
  void abort() override;

 private:
  class Sink;
  static constexpr size_t kAtOnce = 64;
  enum class State : uint8_t { kWaits, kRuns, kDone };
  struct Input {
    State state = State::kWaits;
    RequestId id{};
    std::string embedding = {};  // as JSON
  };

  void submit_more();
  void receive(size_t index, OutputEvent event);
  void on_event(size_t index, OutputEvent& event);
  void fail(const ApiError& error);
  void answer();

  const ModelService service_;
  PreparedEmbeddings request_;
  const PostToIo post_;
  ResponseChannel* channel_;  // null: the answer is complete or aborted
  std::vector<Input> inputs_;
  size_t next_ = 0;  // the first input that waits
  size_t running_ = 0;
  uint64_t prompt_tokens_ = 0;
  KeyLease lease_;
};

// The vector divided by its length, as a JSON list or, with `base64`, as a JSON string of its bytes. A vector
// of zeros stays. Empty: a value is not finite.
std::string embedding_json(std::vector<float> vector, bool base64);

}  // namespace kvasir
