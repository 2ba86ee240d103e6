// A server in the test's own process whose every answer is scripted, byte by byte if need be.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace kvasir {

struct FakeRequest {
  std::string method;
  std::string path;
  std::string body;
  std::string authorization;
  int64_t number = 0;  // of the POSTs, from 0 in the order of arrival
};

// Blocking; used by the thread of its connection. Writing to a client that has gone away does nothing.
class FakeConnection {
 public:
  virtual ~FakeConnection() = default;
  virtual void raw(std::string_view bytes) = 0;
  // Returns when the client has closed the connection.
  virtual void hold() = 0;

  void answer(int status, std::string_view type, std::string_view body);
  // The head of a chunked event stream; then one chunk of the encoding each; then its end.
  void begin_stream();
  void chunk(std::string_view bytes);
  void end_stream() { raw("0\r\n\r\n"); }
};

// One thread for each connection; the connection is closed when the script returns.
class FakeServer {
 public:
  using Script = std::function<void(const FakeRequest&, FakeConnection&)>;

  // Listens on an ephemeral port of the loopback. GET /v1/models is answered with the model "fake/tiny"
  // unless script_models is set; all else goes to the script, which may run on many threads at once.
  explicit FakeServer(Script script, bool script_models = false);
  // Waits for the scripts in progress.
  ~FakeServer();

  std::string base_url() const;
  std::string port() const;
  int64_t posts() const;
  // The most POSTs whose scripts ran at once.
  int64_t max_concurrent() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// A chunk of /v1/completions with this text, as an event.
std::string text_event(std::string_view text);
// The chunk with the finish_reason, and the one with the usage, and [DONE].
std::string finish_event();
std::string usage_event(int64_t prompt_tokens, int64_t completion_tokens);
inline constexpr std::string_view kDoneEvent = "data: [DONE]\n\n";

// Streams `chunks` chunks at once, with usage of 7 prompt tokens and `chunks` completion tokens.
void stream_plainly(FakeConnection& connection, int64_t chunks);

}  // namespace kvasir
