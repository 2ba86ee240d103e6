// From a checked request to what the engine takes: template, tokens, lengths.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model/tokenizer.h"
#include "server/api_error.h"
#include "server/api_request.h"
#include "server/backend.h"

namespace kvasir {

// What a server that is ready serves. The pointers outlive the server.
struct ModelService {
  Backend* backend = nullptr;
  const Tokenizer* tokenizer = nullptr;
  // Renders the messages, ending where the assistant is to speak. Thread-safe; empty: the model has no chat
  // template.
  std::function<Result<std::string>(std::span<const ApiMessage>)> render_chat;
};

struct PreparedRequest {
  ApiRequest api;                              // its messages and prompts are gone
  std::vector<GenerationRequest> generations;  // one per prompt, each a choice
};

// Templates and tokenises: time linear in the text, so never on the I/O thread. Thread-safe.
// 400: a prompt that is empty or too long, a template that refuses the messages, ids beyond the vocabulary.
std::variant<PreparedRequest, ApiError> prepare_request(const ModelService& service, ApiRequest request);

}  // namespace kvasir
