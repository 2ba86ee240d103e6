// UCX's objects, made and released in the order that UCX wants.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/transport/socket_address.h"
#include "cluster/transport/transport_options.h"

namespace kvasir {

// Not thread-safe; it may move to another thread between calls.
class UcxWorker {
 public:
  // Looks up the devices of `listen` where the options name none.
  static Result<std::unique_ptr<UcxWorker>> make(const TransportOptions& options,
                                                 const SocketAddress& listen);
  // REQUIRES: every endpoint is closed
  ~UcxWorker();
  UcxWorker(const UcxWorker&) = delete;
  UcxWorker& operator=(const UcxWorker&) = delete;

  // progress() calls `accept` for each incoming connection. Returns the port. `argument` outlives this.
  Result<uint16_t> listen(const SocketAddress& at, ucp_listener_conn_callback_t accept, void* argument);
  // Stops a listener in two steps, because UCX 1.13.1 crashes if an accepted connection identifies itself
  // after the listener is gone. First step: accepts no more connections. Other endpoints of UCX are
  // untouched.
  void stop_listening();
  // Second step: cuts the accepted connections; call it until it returns that none is left. They may still
  // call `accept`.
  bool cut_accepted();
  void reject(ucp_conn_request_h request);
  Status set_handler(unsigned id, ucp_am_recv_callback_t handler, void* argument);

  // True: something happened.
  bool progress() { return ucp_worker_progress(worker_) != 0; }
  // Sleeps until UCX has work, `wake_fd` can be read, or `timeout` has passed.
  void sleep(int wake_fd, Nanos timeout);
  ucp_worker_h get() const { return worker_; }

 private:
  UcxWorker() = default;

  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  SocketAddress listening_at_;
  std::vector<int> stopped_;  // UCX's own sockets
  int event_fd_ = -1;         // UCX's own
};

// "ucx 1.13.1"
std::string ucx_version();

}  // namespace kvasir
