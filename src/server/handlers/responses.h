// OpenAI's schema of /v1/responses. Internal to src/server and its tests.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "server/answer_writer.h"
#include "server/api_request.h"
#include "server/json_fields.h"
#include "server/response_store.h"

namespace kvasir {

// What an answer needs beside the ApiRequest: made by the parser, read by the writer.
struct ResponseContext {
  ResponseContext() = default;
  ResponseContext(ResponseContext&&) = default;
  ~ResponseContext() { clear_json(echo); }

  std::string owner;                 // StoredResponse::owner
  ResponseStore* store = nullptr;    // outlives the answer
  bool keep = true;                  // the answer goes into the store
  nlohmann::json echo;               // the members of the response that repeat the request
  std::vector<ApiMessage> messages;  // StoredResponse::messages, without the answer
};

// A request over the defaults: the conversation of `previous_response_id` goes before the input. `context`
// has owner and store. Thread-safe. 400: a field is wrong, or the store has no such response.
std::variant<ApiRequest, ApiError> parse_responses_request(std::string_view body, const ApiRequest& defaults,
                                                           ResponseContext& context);

// Answers to `request`, as a `response` or as its events.
std::unique_ptr<AnswerWriter> make_responses_writer(const ApiRequest& request,
                                                    std::shared_ptr<const ResponseContext> context);

// Setters of the table of fields; null counts as a wrong value.
void set_instructions(ApiRequest& request, std::string instructions);
void set_input(ApiRequest& request, const nlohmann::json& input, JsonFields& errors);
void set_responses_tools(ApiRequest& request, const nlohmann::json& tools, JsonFields& errors);
// REQUIRES: the tools are set.
void set_responses_tool_choice(ApiRequest& request, const nlohmann::json& choice, JsonFields& errors);
void set_text(ApiRequest& request, const nlohmann::json& text, JsonFields& errors);
void set_reasoning(ApiRequest& request, const nlohmann::json& reasoning, JsonFields& errors);
// Checks the value only.
void check_metadata(ApiRequest& request, const nlohmann::json& metadata, JsonFields& errors);

}  // namespace kvasir
