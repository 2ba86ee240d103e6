// POST /v1/messages and /v1/messages/count_tokens.
#include "server/handlers/anthropic.h"

#include <fmt/format.h>

#include <utility>

#include "server/handlers/generate.h"
#include "server/server_context.h"

namespace kvasir {

void handle_messages(Exchange& exchange) {
  generate(exchange, {parse_messages_request, make_messages_writer});
}

void handle_count_tokens(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  answer_on_worker(
      exchange,
      [&server, caller = exchange.request().caller](
          const ModelService& service, std::string body,
          const std::atomic<bool>& abandoned) -> std::variant<std::string, ApiError> {
        auto parsed = parse_count_tokens_request(body);
        body = {};
        if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
        auto& request = std::get<ApiRequest>(parsed);
        if (auto e = check_parsed(server, request, caller)) return *std::move(e);
        auto tokens = tokenize_prompt(service, std::move(request), /*add_special=*/false, &abandoned);
        if (auto* e = std::get_if<ApiError>(&tokens)) return std::move(*e);
        return fmt::format(R"({{"input_tokens":{}}})", std::get<std::vector<Token>>(tokens).size());
      });
}

}  // namespace kvasir
