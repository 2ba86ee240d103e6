// One HTTP request and the ways to answer it, as a handler sees them: no sockets, no HTTP framing.
#pragma once

#include <atomic>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "contract/slo.h"
#include "server/exchange_record.h"
#include "server/http_message.h"
#include "server/keys/key_usage.h"
#include "server/request_head.h"

namespace kvasir {

class ServerContext;

// The views are valid until the answer is complete. Work on another thread needs copies.
struct Request {
  std::string_view method;
  std::string_view target;  // as sent, with its query
  std::string parameter;    // what stands in the path for the '*' of the endpoint, percent-decoded
  HeaderList headers;
  Caller caller;     // set for endpoints that need a key; its name() is for logs
  Slo slo;           // of the x-slo-* headers; set only for endpoints that need the model
  std::string body;  // empty once run_on_worker() has taken it

  // The first header of this name, in upper or lower case; empty if there is none.
  std::string_view header(std::string_view name) const { return find_header(headers, name); }
};

// Where an answer goes. Used on the I/O thread.
class ResponseChannel {
 public:
  virtual ~ResponseChannel() = default;
  // The whole answer. REQUIRES: no answer has begun.
  virtual void respond(const HttpResponse& response) = 0;
  // Sends the head of an event stream. `last_words`: events that end it, in place of the rest, where a fault
  // leaves no memory for others. REQUIRES: no answer has begun.
  virtual void begin_stream(std::string_view last_words) = 0;
  // Appends to the stream. REQUIRES: begin_stream() was called, end_stream() was not; !bytes.empty()
  virtual void stream(std::string_view bytes) = 0;
  virtual void end_stream() = 0;
  // Bytes that the client has not taken yet.
  virtual size_t unsent_bytes() const = 0;
  // Closes the connection because the client does not read.
  virtual void abandon_slow_reader() = 0;
  // What the logs and traces will say of the request. REQUIRES: its answer is not complete
  virtual ExchangeRecord& record() = 0;
  // Ends this exchange after an internal fault, whether or not its answer has begun.
  virtual void on_failure(const std::exception& what) = 0;
};

// What makes an answer over time on the I/O thread, such as a Generation.
class Activity {
 public:
  virtual ~Activity() = default;
  // All bytes streamed so far were sent.
  virtual void on_drained() = 0;
  // The server drains. What would go on without end ends its answer; others run to their end.
  virtual void on_server_drains() {}
  // The answer is complete, or the client has disconnected. The channel must not be used any more.
  virtual void abort() = 0;
};

// Used on the I/O thread. A handler answers before it returns, or calls run_on_worker() or attach().
class Exchange : public ResponseChannel {
 public:
  // The rest of the request's handling, on the I/O thread.
  using Then = std::function<void(Exchange&)>;
  // Runs on a worker's thread, so it must not use the exchange. `abandoned` becomes true when the client has
  // disconnected; the work should then end soon. What it returns runs on the I/O thread, unless the exchange
  // has ended. REQUIRES: it returns something to run. If it throws, the answer is 500.
  using Work = std::function<Then(std::string body, const std::atomic<bool>& abandoned)>;

  virtual const Request& request() const = 0;
  virtual const ServerContext& server() const = 0;
  // What the request counts for its key, from its head on. Before a lease of its prompts and choices is
  // made, this one ends.
  virtual KeyLease& key_lease() = 0;
  // Queues `work` and gives it the body. Long bodies have a worker of their own, and so has work that takes
  // long. If the client disconnects before the work begins, the work and the body are dropped. REQUIRES: no
  // other work is queued or running.
  virtual void run_on_worker(Work work, bool takes_long) = 0;
  void run_on_worker(Work work) { run_on_worker(std::move(work), /*takes_long=*/false); }
  // Keeps `activity` until the answer is complete or the client disconnects, then aborts it.
  // REQUIRES: nothing is attached.
  virtual void attach(std::shared_ptr<Activity> activity) = 0;
};

}  // namespace kvasir
