// HTTP/1.1 requests and timers on one thread: hundreds of answers are followed as their bytes come in.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

// Where requests go. `prefix` has no slash at its end; a request's path follows it.
struct HttpTarget {
  std::string host;  // a name or an address, IPv6 without brackets
  std::string port;
  std::string prefix;
  std::string authority() const;  // "host:port", for the Host header and for messages
};

// "http://host[:port][/prefix]". kUnsupported for https, kInvalidArgument for what is no such URL.
Result<HttpTarget> parse_base_url(std::string_view url);

struct HttpRequest {
  std::string method;   // GET or POST
  std::string path;     // after the target's prefix
  std::string body;     // JSON
  std::string api_key;  // sent as a bearer token unless empty. REQUIRES: no control characters
  Nanos timeout = 60 * kNanosPerSecond;  // from send to the end of the answer
};

// Follows one answer. Every call is on the loop's thread.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // The headers of the answer are in; not called when there is no answer.
  virtual void on_head(int status, std::string_view content_type) = 0;
  // The next bytes of the body. Return false to stop reading: on_end(ok) follows.
  virtual bool on_body(std::string_view bytes) = 0;
  // Once for each request, unless the loop is stopped before. kUnavailable: no connection, or it broke;
  // kExhausted: the timeout; kCorrupt: not HTTP.
  virtual void on_end(const Status& status) = 0;
};

// Not thread-safe: everything is called by the thread that constructs it and calls run(). Each request has a
// connection of its own, which is closed after the answer.
class HttpLoop {
 public:
  explicit HttpLoop(HttpTarget target);
  ~HttpLoop();
  HttpLoop(const HttpLoop&) = delete;
  HttpLoop& operator=(const HttpLoop&) = delete;

  // Looks the host's addresses up, and blocks for it. To be called before the first send. kUnavailable when
  // there are none.
  Status resolve();

  // Starts a request: the connection is begun in the next turn of the loop.
  void send(HttpRequest request, std::shared_ptr<HttpHandler> handler);
  // Calls f at the given time of MonotonicClock, or in the next turn of the loop when that has passed.
  void call_at(Nanos when, std::function<void()> f);
  // Calls f at the first SIGINT or SIGTERM, while the loop lives. To be called at most once.
  void on_interrupt(std::function<void()> f);

  // Runs until stop() is called or nothing is left to wait for. May be called once.
  void run();
  // Makes run() return after the current call; requests in flight are given up without on_end.
  void stop();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

struct HttpReply {
  int status = 0;
  std::string body;
};

// One GET, blocking; a body above max_bytes is cut there. Errors as HttpHandler::on_end and HttpLoop::resolve
// say.
Result<HttpReply> http_get(const HttpTarget& target, const std::string& path, const std::string& api_key,
                           Nanos timeout, size_t max_bytes);

}  // namespace kvasir
