// How an endpoint that generates writes its answers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/choice_stream.h"

namespace kvasir {

struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  uint64_t cached_tokens = 0;
  uint64_t reasoning_tokens = 0;  // of completion_tokens, up to the mark that ends the reasoning
};

// One choice of an answer that is not streamed.
struct FinishedChoice {
  TextDelta all;
  std::string finish_reason;
  std::vector<PromptToken> prompt = {};  // with ApiRequest::prompt_logprobs: all of it but the first token
};

// Writes the answer to one request, whole or as a stream: one object for each answer, used on the I/O thread,
// so it may count and remember. An event is ready to be sent, as server_sent_event() makes it; several may
// stand one after the other, and an empty string sends nothing.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;
  // The body of an answer that is not streamed. Called once, and then nothing else is.
  virtual std::string whole(const std::vector<FinishedChoice>& choices, const Usage& usage) = 0;

  // Opens a choice. Called once for each, before all other events. `usage` has the tokens of the prompts.
  virtual std::string first_event(size_t choice, const Usage& usage) = 0;
  // `finish_reason` is empty except in the choice's last delta.
  virtual std::string delta_event(size_t choice, const TextDelta& delta,
                                  const std::string& finish_reason) = 0;
  // After the last delta of the last choice.
  virtual std::string usage_event(const Usage& usage) = 0;
  virtual std::string error_event(const ApiError& error) = 0;
  // Events that say this error and end the stream, wherever it is by then. May be called at any time.
  virtual std::string last_words(const ApiError& error) const = 0;
  // Ends the stream, also after an error.
  virtual std::string last_event() = 0;
};

}  // namespace kvasir
