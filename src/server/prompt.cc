// Template, tokens, lengths, seed.
#include "server/prompt.h"

#include <random>
#include <utility>

namespace kvasir {
namespace {

uint64_t random_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

std::optional<ApiError> check_ids(const std::vector<Token>& ids, const Tokenizer& tokenizer,
                                  const char* field) {
  for (const Token id : ids) {
    if (id < 0 || id >= tokenizer.vocab_size()) {
      return bad_field(field, fmt::format("'{}' has token id {}, but the vocabulary ends at {}", field, id,
                                          tokenizer.vocab_size() - 1));
    }
  }
  return std::nullopt;
}

ApiError too_long(size_t prompt_tokens, uint32_t max_model_len) {
  ApiError e;
  e.message = fmt::format(
      "the prompt has {} tokens, and this model's context length is {} tokens with at least one of them "
      "generated; shorten the prompt",
      prompt_tokens, max_model_len);
  e.code = "context_length_exceeded";
  e.n_prompt_tokens = prompt_tokens;
  e.n_ctx = max_model_len;
  return e;
}

std::variant<std::vector<Token>, ApiError> chat_tokens(const ModelService& service,
                                                       const ApiRequest& request) {
  if (!service.render_chat) {
    return bad_field("messages", "this model has no chat template; use /v1/completions");
  }
  Result<std::string> text = service.render_chat(request.messages);
  if (!text.ok()) {
    // Whatever it is, also a bound of the interpreter, the same messages will not do better the next time.
    return bad_field("messages", text.status().message());
  }
  return service.tokenizer->encode(*text, /*parse_special=*/true);
}

std::variant<std::vector<Token>, ApiError> completion_tokens(const Tokenizer& tokenizer,
                                                             PromptInput& prompt) {
  if (auto* ids = std::get_if<std::vector<Token>>(&prompt)) {
    if (auto e = check_ids(*ids, tokenizer, "prompt")) return *std::move(e);
    return std::move(*ids);
  }
  std::vector<Token> tokens;
  if (tokenizer.add_bos() && tokenizer.bos()) tokens.push_back(*tokenizer.bos());
  const std::vector<Token> encoded = tokenizer.encode(std::get<std::string>(prompt), /*parse_special=*/true);
  tokens.insert(tokens.end(), encoded.begin(), encoded.end());
  return tokens;
}

// Everything of a generation but its prompt.
GenerationRequest base_generation(const Tokenizer& tokenizer, const ApiRequest& request) {
  GenerationRequest g;
  g.sampling = request.sampling;
  g.sampling.seed = request.seed ? *request.seed : random_seed();
  g.stop_tokens = request.stop_token_ids;
  if (!request.ignore_eos) {
    if (tokenizer.eos()) g.stop_tokens.push_back(*tokenizer.eos());
    if (tokenizer.eot() && tokenizer.eot() != tokenizer.eos()) g.stop_tokens.push_back(*tokenizer.eot());
  }
  g.priority = request.priority;
  g.cache_salt = request.cache_salt;
  return g;
}

std::optional<ApiError> add_generation(const ApiRequest& request, const GenerationRequest& base,
                                       std::vector<Token> prompt, uint32_t max_model_len,
                                       std::vector<GenerationRequest>& out) {
  const char* field = request.kind == ApiKind::kChat ? "messages" : "prompt";
  if (prompt.empty()) return bad_field(field, "the prompt is empty");
  if (prompt.size() >= max_model_len) {
    ApiError e = too_long(prompt.size(), max_model_len);
    e.param = field;
    return e;
  }
  const auto room = static_cast<uint32_t>(max_model_len - prompt.size());
  if (request.max_tokens.value_or(1) > room) {
    ApiError e = bad_field(
        request.max_tokens_field,
        fmt::format("'{}' is {}, but the prompt has {} tokens and the context length is {}: "
                    "at most {} fit",
                    request.max_tokens_field, *request.max_tokens, prompt.size(), max_model_len, room));
    e.code = "context_length_exceeded";
    e.n_prompt_tokens = prompt.size();
    e.n_ctx = max_model_len;
    return e;
  }
  GenerationRequest g = base;
  g.prompt = std::move(prompt);
  g.max_tokens = request.max_tokens.value_or(room);
  out.push_back(std::move(g));
  return std::nullopt;
}

}  // namespace

std::variant<PreparedRequest, ApiError> prepare_request(const ModelService& service, ApiRequest request) {
  const Tokenizer& tokenizer = *service.tokenizer;
  if (auto e = check_ids(request.stop_token_ids, tokenizer, "stop_token_ids")) return *std::move(e);
  const uint32_t max_model_len = service.backend->max_model_len();
  const GenerationRequest base = base_generation(tokenizer, request);
  PreparedRequest prepared;
  const auto add = [&](std::variant<std::vector<Token>, ApiError> tokens) -> std::optional<ApiError> {
    if (auto* e = std::get_if<ApiError>(&tokens)) return std::move(*e);
    return add_generation(request, base, std::get<std::vector<Token>>(std::move(tokens)), max_model_len,
                          prepared.generations);
  };
  if (request.kind == ApiKind::kChat) {
    if (auto e = add(chat_tokens(service, request))) return *std::move(e);
  } else {
    for (PromptInput& prompt : request.prompts) {
      if (auto e = add(completion_tokens(tokenizer, prompt))) return *std::move(e);
    }
  }
  request.messages = {};
  request.prompts = {};
  prepared.api = std::move(request);
  return prepared;
}

}  // namespace kvasir
