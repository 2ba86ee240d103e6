// What all endpoints that generate text do, whatever their schema.
#pragma once

#include <memory>
#include <string_view>
#include <variant>

#include "server/answer_writer.h"
#include "server/api_request.h"
#include "server/exchange.h"

namespace kvasir {

// The schema of an endpoint that generates.
struct GenerationSchema {
  // On a worker's thread.
  std::variant<ApiRequest, ApiError> (*parse)(std::string_view body, const ApiRequest& defaults);
  // Writes the answer to a request whose `model` is set. The tokenizer outlives the writer.
  std::unique_ptr<AnswerWriter> (*make_writer)(const Tokenizer& tokenizer, const ApiRequest& request);
};

// A worker parses the body and makes the prompts; then a Generation submits them and answers.
// REQUIRES: the endpoint needs the model and has a body.
void generate(Exchange& exchange, const GenerationSchema& schema);

}  // namespace kvasir
