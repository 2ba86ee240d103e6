// A backend that generates by script, for tests of the server without a model.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/backend.h"

namespace kvasir::test {

// Thread-safe. A thread of its own turns in rounds and gives every request that is not held one token each
// round, as the engine's steps do.
class FakeBackend final : public Backend {
 public:
  // The token that follows after `index` others.
  using Script = std::function<Token(const GenerationRequest& request, size_t index)>;

  explicit FakeBackend(Script script, uint32_t max_model_len = 4096);
  ~FakeBackend() override;

  Result<RequestId> submit(GenerationRequest request, std::shared_ptr<OutputSink> sink) override;
  // As the submissions of all of them together.
  Result<std::unique_ptr<QueuePlaces>> reserve(std::span<const GenerationRequest> requests) override;
  Result<RequestId> submit_in(QueuePlaces& places, GenerationRequest request,
                              std::shared_ptr<OutputSink> sink) override;
  void cancel(RequestId id, FinishReason reason) override;
  Nanos silent_for() const override { return silent_for_; }
  uint32_t max_model_len() const override { return max_model_len_; }
  const EngineMetrics& metrics() const override { return metrics_; }
  std::vector<std::pair<std::string, std::string>> cache_config() const override {
    return {{"block_size", "64"}};
  }

  // What silent_for() says from now on.
  void set_silent_for(Nanos time) { silent_for_ = time; }
  // While held, no request makes progress.
  void hold(bool held);
  void set_round_time(Nanos time);
  // Every submission from the `after`th on gets this; success lifts it.
  void refuse(Status status, size_t after = 0);
  // Ends every request with this, at once.
  void end_all(FinishReason reason, const std::string& error);

  // What has happened so far.
  std::vector<GenerationRequest> submitted() const;
  std::vector<uint64_t> cancelled() const;
  uint64_t tokens_emitted() const;
  size_t live() const;
  // Waits until the condition holds; false after 10 s.
  bool wait_for(const std::function<bool(const FakeBackend&)>& condition) const;

 private:
  struct Live {
    GenerationRequest request;
    std::shared_ptr<OutputSink> sink;
    size_t emitted = 0;
    std::optional<FinishReason> cancelled;
  };
  void run();
  // True when the request has ended.
  bool advance(Live& live);
  void count_finish(FinishReason reason) { ++metrics_.finished[static_cast<size_t>(reason)]; }

  const Script script_;
  const uint32_t max_model_len_;
  EngineMetrics metrics_;
  std::atomic<Nanos> silent_for_{0};

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::map<uint64_t, Live> live_;
  std::vector<GenerationRequest> submitted_;
  std::vector<uint64_t> cancelled_;
  std::optional<Status> refusal_;
  size_t refuse_after_ = 0;
  uint64_t tokens_emitted_ = 0;
  uint64_t next_id_ = 1;
  Nanos round_time_ = 0;
  bool held_ = false;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace kvasir::test
