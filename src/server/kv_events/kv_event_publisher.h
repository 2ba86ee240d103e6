// Publishes what the engine tells of its prefix cache over ZeroMQ, as vLLM's ZmqEventPublisher does.
//
// PUB: frames [topic, sequence, payload], see kv_event_codec.h. ROUTER: a request [sequence] gets the kept
// messages from that one on as [sequence, payload] each, then [-1, ""].
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/status.h"
#include "server/kv_events/kv_event_queue.h"
#include "server/kv_events/kv_events_config.h"
#include "server/kv_events/replay_buffer.h"
#include "server/metrics_text.h"

namespace kvasir {

// All functions are thread-safe. A thread of its own has the sockets; nothing here waits for it but the
// destructor.
class KvEventPublisher {
 public:
  // Payloads that can be replayed have at most so many bytes together.
  static constexpr uint64_t kMaxReplayBytes = uint64_t{64} << 20;

  // `block_tokens`: those of a block. kInvalidArgument, kIo: an endpoint that cannot be used.
  static Result<std::unique_ptr<KvEventPublisher>> start(const KvEventsConfig& config, uint32_t block_tokens);
  // Publishes what is queued.
  ~KvEventPublisher();

  CacheEventSink& sink() { return queue_; }
  // Where subscribers connect: the addresses of the sockets, with the ports that the system has chosen.
  const std::string& endpoint() const { return endpoint_; }
  const std::string& replay_endpoint() const { return replay_endpoint_; }  // empty: there is none
  std::vector<OutsideMetric> metrics() const;

 private:
  class Sockets;

  KvEventPublisher(const KvEventsConfig& config, uint32_t block_tokens);
  void run();
  void wake();
  void send(const KvEventQueue::Batch& batch);
  void answer_replay();

  const uint32_t block_tokens_;
  const std::string topic_;
  std::string endpoint_, replay_endpoint_;
  int wake_fd_ = -1;  // an eventfd
  std::unique_ptr<Sockets> sockets_;
  KvEventQueue queue_;
  ReplayBuffer kept_;  // used by the thread
  std::atomic<uint64_t> batches_{0}, replays_{0}, kept_bytes_{0};
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace kvasir
