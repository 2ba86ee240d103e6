// One request that generates text, from its submission to the last byte of its answer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/answer_writer.h"
#include "server/backend.h"
#include "server/choice_stream.h"
#include "server/exchange.h"
#include "server/outputs/output_parser.h"
#include "server/prompt.h"

namespace kvasir {

struct StreamLimits {
  // Above this many unsent bytes, tokens are gathered into fewer and larger events.
  size_t gather_bytes = 64 * 1024;
  // At this many gathered bytes the connection of a client that does not read is closed.
  size_t max_gathered_bytes = 1024 * 1024;
};

// Runs a function on the I/O thread, later. Thread-safe. After the server has stopped it does nothing.
using PostToIo = std::function<void(std::function<void()>)>;

// Used on the I/O thread. The engine has only its sinks, which may outlive it.
class Generation final : public Activity, public std::enable_shared_from_this<Generation> {
 public:
  // `lease`: of the caller's key, whose use is counted there.
  // REQUIRES: the service's objects outlive the sinks; the channel is valid until abort() or the end of the
  // answer.
  Generation(const ModelService& service, PreparedRequest request, std::unique_ptr<AnswerWriter> writer,
             PostToIo post, const StreamLimits& limits, ResponseChannel* channel, KeyLease lease = {});

  // Begins the stream, if the queue has places for all choices; if not, answers with the error. The first
  // choice of each prompt is submitted, and the others when it has computed the prompt.
  void start();
  void on_drained() override;
  // Also cancels the choices that still run.
  void abort() override;

 private:
  class Sink;
  struct Choice {
    ChoiceStream text;
    std::unique_ptr<OutputParser> parser = {};  // null: all text is content
    std::vector<Token> echoed = {};             // the prompt, until it has been added to the text
    bool submitted = false;
    RequestId id{};
    TextDelta delta = {};  // not sent yet; everything if the answer is not streamed
    std::string finish_reason = {};
    bool finished = false;  // finish_reason is set
    bool reported = false;  // finish_reason was sent
    std::vector<PromptToken> prompt = {};
    uint64_t reasoning_tokens = 0;
    double logprob = 0;  // the sum of its tokens', where they are asked for
  };

  Status add_choices();
  // What the request asks for, and what came of it so far.
  void begin_record() const;
  void complete_record() const;
  // The first of the choices of one prompt is submitted first; the others follow when it has computed the
  // prompt, which they then find in the cache.
  bool leads(size_t choice) const { return choice % request_.api.candidates() == 0; }
  void follow(size_t leader);
  // False: the backend has refused it, and the answer is an error.
  bool submit(size_t choice);
  void refuse(const Status& status);
  void receive(size_t index, OutputEvent event);
  void on_event(size_t index, OutputEvent event);
  void apply(Choice& choice, OutputEvent& event);
  // Adds text and log-probabilities to the choice's delta.
  static void add(Choice& choice, TextDelta piece);
  void finish_choice(Choice& choice, const char* reason);
  void fail(const ApiError& error);
  void flush();
  void maybe_finish();
  // Indices of the choices of the answer: all, or the best of each prompt.
  std::vector<size_t> ranked() const;
  void send(const std::string& event);
  size_t gathered_bytes() const;
  Usage usage() const;

  const ModelService service_;
  PreparedRequest request_;
  const PostToIo post_;
  const StreamLimits limits_;
  const bool stream_;
  const std::unique_ptr<AnswerWriter> writer_;
  const MonotonicClock clock_;
  KeyLease lease_;
  ResponseChannel* channel_;  // null: the answer is complete or aborted
  std::vector<Choice> choices_;
  std::unique_ptr<QueuePlaces> places_;  // null: there is one choice
  bool begun_ = false;                   // the leaders were accepted; the head of a stream goes out
  uint64_t prompt_tokens_ = 0;
  std::vector<uint32_t> cached_by_choice_;
};

// Why an output ended without being complete, if it did. REQUIRES: event.finish
std::optional<ApiError> failure_of(const OutputEvent& event);

}  // namespace kvasir
