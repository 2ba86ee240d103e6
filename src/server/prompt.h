// From a checked request to what the engine takes: template, tokens, lengths.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model/marked_text.h"
#include "model/tokenizer.h"
#include "server/api_error.h"
#include "server/api_request.h"
#include "server/backend.h"
#include "server/metrics_text.h"

namespace kvasir {

// What a server that is ready serves. The pointers outlive the server.
struct ModelService {
  Backend* backend = nullptr;
  const Tokenizer* tokenizer = nullptr;
  // Renders the messages, ending where the assistant is to speak; what the messages say is plain in it.
  // Thread-safe; empty: the model has no chat template.
  std::function<Result<MarkedText>(std::span<const ApiMessage>)> render_chat;
  // What /metrics shows beside the engine's. Thread-safe; may be empty.
  std::function<std::vector<OutsideMetric>()> outside_metrics = {};
  // What requests that do not say `parse_special` mean.
  bool parse_special = false;
};

struct PreparedRequest {
  ApiRequest api;                              // its messages and prompts are gone
  std::vector<GenerationRequest> generations;  // one per prompt, each a choice
};

// Templates and tokenises. Messages and prompts are text: where they spell a control token, that is text,
// too, unless the request asks for `parse_special`; control tokens come from the chat template alone. Time
// linear in the text, so never on the I/O thread. Thread-safe. 400: a prompt that is empty or too long, a
// template that refuses the messages, ids beyond the vocabulary, more log-probabilities than an answer in one
// piece may have. A text that is too long whatever its tokens are is refused before it is tokenised, and
// n_prompt_tokens is then what it has at the least. Once `abandoned` (may be null) is true it ends soon, with
// an error that nobody reads.
std::variant<PreparedRequest, ApiError> prepare_request(const ModelService& service, ApiRequest request,
                                                        const std::atomic<bool>* abandoned = nullptr);

// Log-probabilities of an answer that is not streamed, and so held and written as a whole: the alternatives
// of a token and the token itself, over all tokens that may come and all prompts.
inline constexpr uint64_t kMaxHeldLogprobs = 512 * 1024;

}  // namespace kvasir
