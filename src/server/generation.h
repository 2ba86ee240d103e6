// One generating request, from its submission to the last byte of its answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "server/backend.h"
#include "server/choice_stream.h"
#include "server/http_message.h"
#include "server/prompt.h"
#include "server/response_writer.h"

namespace kvasir {

// Where the answer goes. Used on the I/O thread.
class ResponseChannel {
 public:
  virtual ~ResponseChannel() = default;
  // The whole answer at once. REQUIRES: no answer has begun.
  virtual void respond(const HttpResponse& response) = 0;
  // Sends the head of an event stream. REQUIRES: no answer has begun.
  virtual void begin_stream() = 0;
  // Appends to the stream. REQUIRES: begin_stream() was called, end_stream() was not.
  virtual void stream(std::string_view bytes) = 0;
  virtual void end_stream() = 0;
  // Bytes that the client has not taken yet.
  virtual size_t unsent_bytes() const = 0;
  // The client does not read: gives up on it.
  virtual void abandon_slow_reader() = 0;
  // The answer failed by a fault of ours, at whatever point: ends this exchange, and nothing else.
  virtual void on_failure(const char* what) = 0;
};

struct StreamLimits {
  // Above this many unsent bytes, what arrives is gathered into fewer, larger events.
  size_t gather_bytes = 64 * 1024;
  // Gathered bytes at which a client that does not read is given up.
  size_t max_gathered_bytes = 1024 * 1024;
};

// Runs a function on the I/O thread, later. Thread-safe; may be called after the server has stopped, and then
// does nothing.
using PostToIo = std::function<void(std::function<void()>)>;

// Lives on the I/O thread; the engine knows only its sinks, which may outlive it.
class Generation : public std::enable_shared_from_this<Generation> {
 public:
  // REQUIRES: the service's objects outlive the sinks; the channel outlives this or abort() was called.
  Generation(const ModelService& service, PreparedRequest request, std::string model, PostToIo post,
             const StreamLimits& limits, ResponseChannel* channel);

  // Submits every choice, then begins the stream; if one of them is refused, answers with that error.
  void start();
  // The channel has become empty.
  void on_drained();
  // The answer is not wanted any more: cancels what still runs and never uses the channel again.
  void abort();

 private:
  class Sink;
  struct Choice {
    ChoiceStream text;
    RequestId id{};
    TextDelta delta;  // not sent yet; without streaming, everything
    std::string finish_reason;
    bool finished = false;  // finish_reason is set
    bool reported = false;  // and was sent
  };

  Status add_choices();
  void receive(size_t index, OutputEvent event);
  void on_event(size_t index, OutputEvent event);
  void apply(Choice& choice, OutputEvent& event);
  void finish_choice(Choice& choice, const char* reason);
  void fail(const ApiError& error);
  void flush();
  void maybe_finish();
  void send_event(const std::string& json);
  size_t gathered_bytes() const;
  Usage usage() const;

  const ModelService service_;
  PreparedRequest request_;
  const PostToIo post_;
  const StreamLimits limits_;
  const bool stream_;
  const ResponseWriter writer_;
  ResponseChannel* channel_;  // null: done
  std::vector<Choice> choices_;
  uint64_t prompt_tokens_ = 0;
  std::vector<uint32_t> cached_by_choice_;
};

}  // namespace kvasir
