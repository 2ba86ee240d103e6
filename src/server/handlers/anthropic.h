// Anthropic's schema: /v1/messages and /v1/messages/count_tokens. Internal to src/server and its tests.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <variant>

#include "server/answer_writer.h"
#include "server/api_request.h"
#include "server/json_fields.h"

namespace kvasir {

// Requests: the fields of request_fields.h over the defaults. Pure, thread-safe; these throw nothing but
// bad_alloc.
std::variant<ApiRequest, ApiError> parse_messages_request(std::string_view body,
                                                          const ApiRequest& defaults = {});
std::variant<ApiRequest, ApiError> parse_count_tokens_request(std::string_view body);

// Answers to `request`, as a `message` or as its events.
std::unique_ptr<AnswerWriter> make_messages_writer(const Tokenizer& tokenizer, const ApiRequest& request);

// {"type":"error","error":{"type","message"}}
std::string anthropic_error_json(const ApiError& error);

// Setters of the table of fields; null counts as a wrong value.
void set_system(ApiRequest& request, const nlohmann::json& system, JsonFields& errors);
void set_anthropic_messages(ApiRequest& request, const nlohmann::json& messages, JsonFields& errors);
void set_stop_sequences(ApiRequest& request, const nlohmann::json& list, JsonFields& errors);
void set_anthropic_tools(ApiRequest& request, const nlohmann::json& tools, JsonFields& errors);
// REQUIRES: the tools are set.
void set_anthropic_tool_choice(ApiRequest& request, const nlohmann::json& choice, JsonFields& errors);
void set_thinking(ApiRequest& request, const nlohmann::json& thinking, JsonFields& errors);
void set_output_config(ApiRequest& request, const nlohmann::json& config, JsonFields& errors);

}  // namespace kvasir
