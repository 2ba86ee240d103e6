// /tokenize and /detokenize, as vLLM has them. Internal to src/server and its tests.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "model/tokenizers/tokenizer.h"
#include "server/api_error.h"
#include "server/api_request.h"

namespace kvasir {

struct TokenizeRequest {
  ApiRequest api;  // has messages, or one prompt
  bool add_special_tokens = true;
  bool return_token_strs = false;
};

// Pure, thread-safe. 400: a field is wrong; neither or both of `prompt` and `messages`.
std::variant<TokenizeRequest, ApiError> parse_tokenize_request(std::string_view body);
// The tokens are the request's one prompt. The vocabulary is checked later.
std::variant<ApiRequest, ApiError> parse_detokenize_request(std::string_view body);

// {"count", "max_model_len", "tokens", "token_strs"}; the last is null unless asked for.
// REQUIRES: every token is in the vocabulary.
std::string tokenize_answer(const Tokenizer& tokenizer, const std::vector<Token>& tokens,
                            uint32_t max_model_len, bool with_strs);

}  // namespace kvasir
