// Bodies of the endpoints that take fields, through their parsers.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string_view>
#include <variant>

#include "base/check.h"
#include "model/grammar/grammar_limits.h"
#include "server/handlers/anthropic.h"
#include "server/handlers/embeddings.h"
#include "server/handlers/openai.h"
#include "server/handlers/responses.h"
#include "server/handlers/tokenize.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir;
  const std::string_view body(reinterpret_cast<const char*>(data), size);
  static ResponseStore store(1 << 16, 4);
  ResponseContext context;
  context.store = &store;
  const std::function<std::variant<ApiRequest, ApiError>()> parsers[] = {
      [&] { return parse_chat_request(body); },
      [&] { return parse_completion_request(body); },
      [&] { return parse_messages_request(body); },
      [&] { return parse_count_tokens_request(body); },
      [&] { return parse_responses_request(body, {}, context); },
      [&] { return parse_detokenize_request(body); },
      [&] { return parse_embeddings_request(body); },
      [&]() -> std::variant<ApiRequest, ApiError> {
        auto parsed = parse_tokenize_request(body);
        if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
        return std::get<TokenizeRequest>(std::move(parsed)).api;
      },
  };
  for (const auto& parse : parsers) {
    const auto parsed = parse();
    if (const auto* e = std::get_if<ApiError>(&parsed)) {
      KV_CHECK(!e->message.empty() && e->status >= 400, "an error without a message");
      continue;
    }
    const auto& request = std::get<ApiRequest>(parsed);
    (void)check_size(request.grammar);
    KV_CHECK(request.prompts.size() + request.messages.size() > 0, "nothing to do was accepted");
    KV_CHECK(request.sampling.temperature >= 0 && request.sampling.temperature <= 2, "temperature {}",
             request.sampling.temperature);
    KV_CHECK(request.sampling.top_p > 0 && request.sampling.top_p <= 1, "top_p {}", request.sampling.top_p);
  }
  return 0;
}
