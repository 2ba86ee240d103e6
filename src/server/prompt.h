// From a checked request to requests for the engine: template, tokens, lengths.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model/tokenizers/marked_text.h"
#include "model/tokenizers/tokenizer.h"
#include "server/api_error.h"
#include "server/api_request.h"
#include "server/backend.h"
#include "server/metrics_text.h"
#include "server/outputs/output_format.h"

namespace kvasir {

class GrammarCompiler;
class LiveMap;

// What a server serves once the model is loaded. The pointees outlive the server.
struct ModelService {
  Backend* backend = nullptr;  // null: no model is served, and there are no endpoints that need one
  const Tokenizer* tokenizer = nullptr;
  // Renders the messages and tools of a request, and the beginning of the assistant's turn. The text of the
  // request is marked as plain. Thread-safe; empty: the model has no chat template.
  std::function<Result<MarkedText>(const ApiRequest&)> render_chat;
  std::string_view chat_template = {};  // its source; empty: there is none
  // Further metrics for /metrics. Thread-safe; may be empty.
  std::function<std::vector<OutsideMetric>()> outside_metrics = {};
  // The answer of /cluster/status. Thread-safe; empty: the instance is in no cluster.
  std::function<std::string()> cluster_status = {};
  // Who watches the engine's cache joins it. Null: it cannot be watched.
  LiveMap* map = nullptr;
  // Why requests should go to another server for now, in plain words; "": they need not. Thread-safe, returns
  // at once; may be empty.
  std::function<std::string()> unready = {};
  // Why requests cannot be served until the process is restarted; else as `unready`.
  std::function<std::string()> failure = {};
  // The default of ApiRequest::parse_special.
  bool parse_special = false;
  // What requests have that do not say otherwise: how the model is meant to be sampled.
  ApiRequest defaults = {};
  // How the model writes calls of tools and what it thinks.
  OutputFormats formats = {};
  // Of the tokenizer. Null: outputs cannot be held to a grammar.
  std::shared_ptr<GrammarCompiler> grammars = {};
  // How hidden rows become embeddings. kNone: there are none.
  Pooling pooling = Pooling::kNone;
  uint32_t embedding_size = 0;  // values of an embedding
};

struct PreparedRequest {
  ApiRequest api;                              // without its messages and prompts
  std::vector<GenerationRequest> generations;  // ApiRequest::candidates() per prompt
  OutputPlan output = {};                      // of a chat: how calls and reasoning are found
};

// Applies the chat template and tokenises. Only the template's own text may become control tokens, unless the
// request asks for `parse_special`. Takes time linear in the text, so it does not run on the I/O thread.
// Thread-safe. 400: a prompt that is empty or too long, a template that refuses the messages, ids beyond the
// vocabulary, more log-probabilities than an answer that is not streamed may have. A text that is too long
// whatever its tokens are is refused before it is tokenised; n_prompt_tokens is then a lower bound. Once
// `abandoned` (may be null) is true it ends soon, with an error that is not sent. The grammar of the result
// holds nothing until add_constraints() (prompt_grammar.h).
std::variant<PreparedRequest, ApiError> prepare_request(const ModelService& service, ApiRequest request,
                                                        const std::atomic<bool>* abandoned = nullptr);

// A request to the engine for the embedding of each prompt. A text begins and ends with the special tokens
// that the model wants. Threads and errors as above; those of one prompt of several name it.
std::variant<std::vector<GenerationRequest>, ApiError> prepare_embeddings(
    const ModelService& service, ApiRequest request, const std::atomic<bool>* abandoned = nullptr);

// The tokens of the request's messages, or of its one prompt; they may be more than fit the model.
// `add_special`: begin with the beginning-of-sequence token that the model wants before a plain prompt.
// Errors and threads as above.
std::variant<std::vector<Token>, ApiError> tokenize_prompt(const ModelService& service, ApiRequest request,
                                                           bool add_special,
                                                           const std::atomic<bool>* abandoned = nullptr);

// 400 for the first of the ids that the vocabulary does not have.
std::optional<ApiError> check_ids(const std::vector<Token>& ids, const Tokenizer& tokenizer,
                                  const char* field);

// The most log-probabilities of an answer that is not streamed, because it is held in memory: for each prompt
// and each token that may be generated, the token's own and those of its alternatives.
inline constexpr uint64_t kMaxHeldLogprobs = 512 * 1024;

}  // namespace kvasir
