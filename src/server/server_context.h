// What the connections of one server share. Internal to src/server.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "server/body_reservation.h"
#include "server/generation.h"
#include "server/prompt.h"
#include "server/server.h"
#include "server/worker.h"

namespace kvasir {

class Connection;

// Used on the I/O thread, except where it says otherwise.
class ServerContext {
 public:
  explicit ServerContext(ServerOptions server_options)
      : options(std::move(server_options)), counters(std::make_shared<HttpCounters>()) {}
  virtual ~ServerContext() = default;

  const ServerOptions options;
  const std::shared_ptr<HttpCounters> counters;
  PostToIo post;        // set before the first connection
  int64_t created = 0;  // seconds since 1970, when the server started
  bool draining = false;

  // Null while the model loads. The pointee never changes; a worker may keep the pointer.
  std::shared_ptr<const ModelService> service;

  // On a worker's thread, soon; `bytes` decides which one. The job must not throw.
  void run_on_worker(uint64_t bytes, std::function<void()> job) {
    (bytes >= options.limits.long_body_bytes ? long_worker_ : short_worker_).post(std::move(job));
  }
  void stop_workers() {
    short_worker_.stop();
    long_worker_.stop();
  }

  // Requests that generate, until their answers are sent, for wait_idle().
  virtual void request_started() = 0;
  virtual void request_ended() = 0;
  // The connection is closed; it may be destroyed once its handlers have run.
  virtual void forget(Connection* connection) = 0;

 private:
  Worker short_worker_;
  Worker long_worker_;
};

}  // namespace kvasir
