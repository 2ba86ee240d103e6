// POST /tokenize and /detokenize, GET /tokenizer_info.
#include "server/handlers/tokenize.h"

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "server/handlers/generate.h"
#include "server/handlers/request_fields.h"
#include "server/server_context.h"

namespace kvasir {

using nlohmann::json;

namespace {

// 400: more tokens than a request can have. `what`: the words before their number.
std::optional<ApiError> check_count(size_t tokens, const ModelService& service, const char* field,
                                    const char* what) {
  const uint32_t most = service.backend->max_model_len();
  if (tokens <= most) return std::nullopt;
  return bad_field(field,
                   fmt::format("{} {} tokens, but this model's context length is {}", what, tokens, most));
}

}  // namespace

std::variant<TokenizeRequest, ApiError> parse_tokenize_request(std::string_view body) {
  auto parsed = parse_json_object(body);
  if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
  JsonFields fields(*std::get<JsonTree>(parsed), body);
  TokenizeRequest request;
  read_request_fields(fields, *std::get<JsonTree>(parsed), ApiKind::kTokenize, request.api);
  if (fields.error()) return *fields.error();
  const bool chat = !request.api.messages.empty();
  if (chat != request.api.prompts.empty()) {
    return bad_field("prompt", "give either 'prompt' or 'messages': the text, or the messages, to tokenise");
  }
  request.add_special_tokens = fields.boolean("add_special_tokens", !chat);
  request.return_token_strs = fields.boolean("return_token_strs", false);
  return request;
}

std::variant<ApiRequest, ApiError> parse_detokenize_request(std::string_view body) {
  return read_request(body, ApiKind::kDetokenize, {});
}

// Makes text directly: JSON values for every token of a long text would take many times the memory.
std::string tokenize_answer(const Tokenizer& tokenizer, const std::vector<Token>& tokens,
                            uint32_t max_model_len, bool with_strs) {
  std::string strs;
  if (with_strs) {
    strs = "[";
    for (const Token id : tokens) {
      if (strs.size() > 1) strs += ',';
      strs += dump_json(tokenizer.token_text(id));
    }
    strs += ']';
  }
  return fmt::format(R"({{"count":{},"max_model_len":{},"tokens":[{}],"token_strs":{}}})", tokens.size(),
                     max_model_len, fmt::join(tokens, ","), with_strs ? strs : "null");
}

void handle_tokenize(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  answer_on_worker(exchange,
                   [&server, caller = exchange.request().caller](
                       const ModelService& service, std::string body,
                       const std::atomic<bool>& abandoned) -> std::variant<std::string, ApiError> {
                     auto parsed = parse_tokenize_request(body);
                     body = {};
                     if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
                     auto& request = std::get<TokenizeRequest>(parsed);
                     const char* field = request.api.prompts.empty() ? "messages" : "prompt";
                     if (auto e = check_parsed(server, request.api, caller)) return *std::move(e);
                     auto tokens = tokenize_prompt(service, std::move(request.api),
                                                   request.add_special_tokens, &abandoned);
                     if (auto* e = std::get_if<ApiError>(&tokens)) return std::move(*e);
                     const auto& ids = std::get<std::vector<Token>>(tokens);
                     if (auto e = check_count(ids.size(), service, field, "the prompt has")) {
                       return *std::move(e);
                     }
                     return tokenize_answer(*service.tokenizer, ids, service.backend->max_model_len(),
                                            request.return_token_strs);
                   });
}

void handle_detokenize(Exchange& exchange) {
  const ServerContext& server = exchange.server();
  answer_on_worker(exchange,
                   [&server, caller = exchange.request().caller](
                       const ModelService& service, const std::string& body,
                       const std::atomic<bool>&) -> std::variant<std::string, ApiError> {
                     auto parsed = parse_detokenize_request(body);
                     if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
                     const auto& request = std::get<ApiRequest>(parsed);
                     if (auto e = check_parsed(server, request, caller)) return *std::move(e);
                     const auto& tokens = std::get<std::vector<Token>>(request.prompts.front());
                     if (auto e = check_count(tokens.size(), service, "tokens", "'tokens' has")) {
                       return *std::move(e);
                     }
                     if (auto e = check_ids(tokens, *service.tokenizer, "tokens")) return *std::move(e);
                     const Result<std::string> text =
                         service.tokenizer->decode(tokens, /*skip_special=*/false);
                     if (!text.ok()) return api_error(text.status());
                     return R"({"prompt":)" + dump_json(*text) + "}";
                   });
}

// What vLLM gives of a tokenizer_config.json and clients of theirs read, such as lm-eval.
void handle_tokenizer_info(Exchange& exchange) {
  const ModelService& service = *exchange.server().service;
  const Tokenizer& tokenizer = *service.tokenizer;
  const auto text_of = [&](std::optional<int32_t> id) {
    return id ? json(tokenizer.token_text(*id)) : json();
  };
  const json info = {{"tokenizer_class", "PreTrainedTokenizerFast"},  // that of transformers for any of them
                     {"bos_token", text_of(tokenizer.bos())},
                     {"eos_token", text_of(tokenizer.eos())},
                     {"unk_token", text_of(tokenizer.unk())},
                     {"pad_token", text_of(tokenizer.pad())},
                     {"add_bos_token", tokenizer.add_bos()},
                     {"model_max_length", service.backend->max_model_len()},
                     {"chat_template", service.chat_template.empty() ? json() : json(service.chat_template)}};
  exchange.respond(json_response(dump_json(info)));
}

}  // namespace kvasir
