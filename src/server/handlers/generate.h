// What all endpoints that generate text do, whatever their schema.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "server/answer_writer.h"
#include "server/api_request.h"
#include "server/exchange.h"

namespace kvasir {

struct ModelService;

// The schema of an endpoint that generates.
struct GenerationSchema {
  // On a worker's thread.
  std::function<std::variant<ApiRequest, ApiError>(std::string_view body, const ApiRequest& defaults)> parse;
  // Writes the answer to a request whose `model` is set. On the I/O thread. The tokenizer outlives the
  // writer.
  std::function<std::unique_ptr<AnswerWriter>(const Tokenizer& tokenizer, const ApiRequest& request)>
      make_writer;
  const char* operation = "chat";  // see GenerationRecord
};

// A worker parses the body and makes the prompts; then a Generation submits them and answers.
// REQUIRES: the endpoint needs the model and has a body.
void generate(Exchange& exchange, const GenerationSchema& schema);

// A request by its schema's `parse`, checked, also for what the caller's key may say, with its model's name
// and its bounds. On a worker's thread.
std::variant<ApiRequest, ApiError> parse_request(
    const ServerContext& server, const ModelService& service,
    const std::function<std::variant<ApiRequest, ApiError>(std::string_view, const ApiRequest&)>& parse,
    const Caller& caller, std::string_view body, const Slo& header_slo);
// On the I/O thread: whose the requests are, for the engine. `candidates` of them in a row have one prompt.
// 429: they are beyond the bounds of the key, which counts so many in progress.
std::optional<ApiError> charge(const ServerContext& server, const Caller& caller,
                               std::vector<GenerationRequest>& generations, size_t candidates,
                               uint32_t in_progress);
// Answers with the error.
Exchange::Then refuse(const ApiError& error);

// What every request is checked for once it is parsed: notes unknown fields; 404 for an unknown model.
// On a worker's thread.
std::optional<ApiError> check_parsed(const ServerContext& server, const ApiRequest& request,
                                     const Caller& caller);

// Answers with the JSON, or the error, that `make` returns on a worker's thread. REQUIRES: as generate()
using MakeAnswer = std::function<std::variant<std::string, ApiError>(
    const ModelService& service, std::string body, const std::atomic<bool>& abandoned)>;
void answer_on_worker(Exchange& exchange, MakeAnswer make);

}  // namespace kvasir
