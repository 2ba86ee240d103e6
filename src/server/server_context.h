// What the connections of one server share. Internal to src/server.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "server/api_error.h"
#include "server/browser_rules.h"
#include "server/endpoints.h"
#include "server/generation.h"
#include "server/http_counters.h"
#include "server/keys/key_ring.h"
#include "server/prompt.h"
#include "server/response_store.h"
#include "server/server.h"
#include "server/unknown_fields.h"
#include "server/worker.h"

namespace kvasir {

class Connection;

// Used on the I/O thread. Workers may read `options`.
class ServerContext {
 public:
  explicit ServerContext(ServerOptions server_options,
                         std::shared_ptr<HttpCounters> shared_counters = std::make_shared<HttpCounters>(),
                         std::shared_ptr<KeyRing> key_ring = nullptr)
      : options(std::move(server_options)),
        counters(std::move(shared_counters)),
        keys(key_ring ? std::move(key_ring) : std::make_shared<KeyRing>(all_keys(options), clock.now())),
        responses(options.limits.responses_store_bytes, options.limits.responses_store_entries) {}
  virtual ~ServerContext() = default;

  const ServerOptions options;
  const std::shared_ptr<HttpCounters> counters;  // thread-safe
  const MonotonicClock clock;
  const std::shared_ptr<KeyRing> keys;  // of both ports

  // Set before the first connection.
  std::span<const Endpoint> endpoints = all_endpoints();
  PostToIo post;
  int64_t created = 0;  // seconds since 1970, when the server started

  mutable std::string openapi;  // the page of this port's endpoints, once it was asked for

  BrowserRules browsers;

  bool leaving = false;   // announce_end() was called: answers close their connections
  bool draining = false;  // drain() was called
  // Lets the whole server drain, and says how many requests still run. Empty except on the admin port.
  std::function<size_t()> begin_drain;
  // Thread-safe.
  mutable UnknownFields unknown_fields;
  mutable ResponseStore responses;
  // Null while the model loads. The pointee never changes; a worker may keep the pointer.
  std::shared_ptr<const ModelService> service;

  // 503 while the model loads or the server drains, and from a failure() on.
  std::optional<ApiError> not_ready() const;
  // 503 if ModelService::failure says so.
  std::optional<ApiError> failure() const;
  // 503 if clients and balancers should choose another server, though this one may still serve: what
  // not_ready() says, and from the moment on at which the end is announced, and what ModelService::unready
  // says.
  std::optional<ApiError> unready() const;
  // Whether connections are closed after their answers.
  bool ends() const { return leaving || draining; }
  // 404 unless `model` is empty or one of those that are served. Thread-safe.
  std::optional<ApiError> unknown_model(const std::string& model) const;

  // Each kind of work has a worker of its own, so that none waits for what takes longer.
  enum class Work : uint8_t { kShort, kLongBody, kTakesLong };
  // The job must not throw.
  void run_on_worker(Work kind, std::function<void()> job) {
    workers_[static_cast<size_t>(kind)].post(std::move(job));
  }
  void stop_workers() {
    for (Worker& worker : workers_) worker.stop();
  }

  // The requests that wait_idle() waits for: from the start of their work until their answers are sent.
  virtual void request_started() = 0;
  virtual void request_ended() = 0;
  // What a connection waits for its client to do. While it does, it may be closed to make way for another.
  enum class Waits : uint8_t {
    kNot,
    kForRequest,  // to send the head of one
    kForBody,     // to send the rest of it
    kForReader,   // to take its complete answer, of which `kept_bytes` are in memory
  };
  // To say one of the last two again says that the client got on.
  virtual void set_waiting(Connection* connection, Waits waits, uint64_t kept_bytes) {
    (void)connection;
    (void)waits;
    (void)kept_bytes;
  }
  // The connection is closed; it may be destroyed once its completion handlers have run.
  virtual void forget(Connection* connection) = 0;

 private:
  std::array<Worker, 3> workers_;  // by kind
};

}  // namespace kvasir
