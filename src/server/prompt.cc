// Template, tokens, lengths, seed.
#include "server/prompt.h"

#include <algorithm>
#include <random>
#include <utility>

#include "server/outputs/output_plan.h"
#include "server/prompt_bound.h"

namespace kvasir {
namespace {

uint64_t random_seed() {
  std::random_device device;
  return (static_cast<uint64_t>(device()) << 32) | device();
}

}  // namespace

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

namespace {

// `least`: prompt_tokens is a lower bound.
ApiError too_long(size_t prompt_tokens, bool least, uint32_t max_model_len) {
  ApiError e;
  e.message = fmt::format(
      "the prompt has {}{} tokens, and this model's context length is {} tokens with at least one of them "
      "generated; shorten the prompt",
      least ? "at least " : "", prompt_tokens, max_model_len);
  e.code = "context_length_exceeded";
  e.n_prompt_tokens = prompt_tokens;
  e.n_ctx = max_model_len;
  return e;
}

constexpr size_t kMaxChoices = 128;

// The field that an error of the prompt is about.
const char* prompt_field(const ApiRequest& request) {
  return request.messages.empty() ? request.prompts_field.c_str() : request.messages_field.c_str();
}

// Turns the prompts of one request into tokens.
class Encoder {
 public:
  // With `most_tokens`, texts that surely have as many are refused before they are tokenised.
  Encoder(const ModelService& service, const ApiRequest& request, const std::atomic<bool>* abandoned,
          size_t most_tokens)
      : service_(service),
        tokenizer_(*service.tokenizer),
        most_tokens_(most_tokens),
        field_(prompt_field(request)),
        parse_special_(request.parse_special.value_or(service.parse_special)),
        abandoned_(abandoned) {}

  std::variant<MarkedText, ApiError> render(const ApiRequest& request) const {
    if (!service_.render_chat) {
      return bad_field(field_, "this model has no chat template; use /v1/completions");
    }
    if (auto e = client_left()) return *std::move(e);
    Result<MarkedText> text = service_.render_chat(request);
    // Whatever the error is, the same messages would cause it again, so it is the client's.
    if (!text.ok()) return bad_field(field_, text.status().message());
    return std::move(text).value();
  }

  std::variant<std::vector<Token>, ApiError> chat(const MarkedText& text) const { return encode(text, {}); }

  std::variant<std::vector<Token>, ApiError> completion(PromptInput& prompt, bool add_special = true) const {
    if (auto* ids = std::get_if<std::vector<Token>>(&prompt)) {
      if (auto e = check_ids(*ids, tokenizer_, field_)) return *std::move(e);
      return std::move(*ids);
    }
    std::vector<Token> tokens;
    if (add_special && tokenizer_.add_bos() && tokenizer_.bos()) tokens.push_back(*tokenizer_.bos());
    return encode(MarkedText(std::get<std::string>(std::move(prompt))), std::move(tokens));
  }

 private:
  // A text with fewer bytes for each token that fits is cheap enough to tokenise.
  static constexpr size_t kCheapBytesPerToken = 8;

  std::variant<std::vector<Token>, ApiError> encode(const MarkedText& text, std::vector<Token> tokens) const {
    if (auto e = client_left()) return *std::move(e);
    if (text.size() / kCheapBytesPerToken >= most_tokens_) {
      const size_t least = tokens.size() + least_tokens(tokenizer_, text.text());
      if (least >= most_tokens_) {
        ApiError e = too_long(least, true, static_cast<uint32_t>(most_tokens_));
        e.param = field_;
        return e;
      }
    }
    const std::vector<Token> encoded =
        parse_special_ ? tokenizer_.encode(text.text(), /*parse_special=*/true) : tokenizer_.encode(text);
    tokens.insert(tokens.end(), encoded.begin(), encoded.end());
    return tokens;
  }

  std::optional<ApiError> client_left() const {
    if (abandoned_ == nullptr || !abandoned_->load(std::memory_order_relaxed)) return std::nullopt;
    ApiError e;
    e.status = 499;
    e.message = "the client has left";
    return e;
  }

  const ModelService& service_;
  const Tokenizer& tokenizer_;
  const size_t most_tokens_;
  const char* const field_;
  const bool parse_special_;
  const std::atomic<bool>* const abandoned_;
};

// Each text's tokens at the beginning of a text and, if they are as many, behind a space.
std::vector<std::vector<Token>> encode_bad_words(const Tokenizer& tokenizer,
                                                 const std::vector<std::string>& words) {
  std::vector<std::vector<Token>> out;
  for (const std::string& word : words) {
    const std::string bare = word.substr(std::min(word.find_first_not_of(' '), word.size()));
    std::vector<Token> plain = tokenizer.encode(bare, /*parse_special=*/false);
    std::vector<Token> spaced = tokenizer.encode(" " + bare, /*parse_special=*/false);
    const bool differs = !plain.empty() && spaced.size() == plain.size() && spaced[0] != plain[0];
    if (!plain.empty()) out.push_back(std::move(plain));
    if (differs) out.push_back(std::move(spaced));
  }
  return out;
}

std::shared_ptr<const LogitRules> make_rules(const Tokenizer& tokenizer, const ApiRequest& request) {
  LogitRules rules = request.rules;
  rules.bad_words = encode_bad_words(tokenizer, request.bad_words);
  if (rules.min_tokens > 0) {
    rules.ends = request.stop_token_ids;
    rules.ends.insert(rules.ends.end(), tokenizer.ends().begin(), tokenizer.ends().end());
  }
  return rules.empty() ? nullptr : std::make_shared<const LogitRules>(std::move(rules));
}

// A generation without its prompt, seed and length.
GenerationRequest base_generation(const Tokenizer& tokenizer, const ApiRequest& request) {
  GenerationRequest g;
  g.sampling = request.sampling;
  g.sampling.rules = make_rules(tokenizer, request);
  if (request.ranks()) g.sampling.logprobs = std::max(g.sampling.logprobs, 0);
  g.stop_tokens = request.stop_token_ids;
  if (!request.ignore_eos) {
    g.stop_tokens.insert(g.stop_tokens.end(), tokenizer.ends().begin(), tokenizer.ends().end());
  }
  g.cache_salt = request.cache_salt;
  g.priority = request.priority.value_or(0);
  g.slo = request.slo;
  g.output_tokens_hint = request.output_tokens_hint;
  return g;
}

// Only the sampler knows the forced length: it draws the end token there. To the rest of the engine the
// output ends like any other.
std::optional<ApiError> force_length(const Tokenizer& tokenizer, const ApiRequest& request, uint32_t room,
                                     GenerationRequest& g) {
  const uint32_t tokens = request.forced_output_tokens;
  if (tokens == 0) return std::nullopt;
  const std::optional<Token> end = tokenizer.eos() ? tokenizer.eos() : tokenizer.eot();
  if (!end)
    return bad_field("forced_output_tokens",
                     "'forced_output_tokens': the model has no token that ends an output");
  if (tokens > room) {
    return bad_field("forced_output_tokens",
                     fmt::format("'forced_output_tokens' is {}, but at most {} fit", tokens, room));
  }
  g.sampling.forced_end = static_cast<uint32_t>(g.prompt.size()) + tokens - 1;
  g.sampling.end_token = *end;
  g.stop_tokens = {*end};
  if (!request.max_tokens) g.max_tokens = room;
  return std::nullopt;
}

// Of a prompt that leaves no room for a token, or has none.
std::optional<ApiError> check_length(const char* field, const std::vector<Token>& prompt,
                                     uint32_t max_model_len) {
  if (prompt.empty()) return bad_field(field, "the prompt is empty");
  if (prompt.size() < max_model_len) return std::nullopt;
  ApiError e = too_long(prompt.size(), false, max_model_len);
  e.param = field;
  return e;
}

std::optional<ApiError> add_generation(const Tokenizer& tokenizer, const ApiRequest& request,
                                       const GenerationRequest& base, std::vector<Token> prompt,
                                       uint32_t max_model_len, std::vector<GenerationRequest>& out) {
  if (auto e = check_length(prompt_field(request), prompt, max_model_len)) return e;
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
  // With 0, the one token that the engine must generate is not shown.
  g.max_tokens = std::max(1U, std::min(room, request.max_tokens.value_or(request.default_max_tokens)));
  if (request.rules.min_tokens > g.max_tokens) {
    return bad_field("min_tokens", fmt::format("'min_tokens' is {}, but at most {} tokens are generated",
                                               request.rules.min_tokens, g.max_tokens));
  }
  if (auto e = force_length(tokenizer, request, room, g)) return e;
  for (uint32_t choice = 0; choice < request.candidates(); ++choice) {
    // Choices of one request differ: by the client's seed, too.
    g.sampling.seed = request.seed ? *request.seed + choice : random_seed();
    out.push_back(g);
  }
  return std::nullopt;
}

std::optional<ApiError> check_logprobs(const ApiRequest& request,
                                       const std::vector<GenerationRequest>& generations) {
  const auto of_prompt = static_cast<uint64_t>(int64_t{request.sampling.prompt_logprobs} + 1);
  const auto per_token = request.stream ? 0 : static_cast<uint64_t>(request.sampling.logprobs + 1);
  uint64_t tokens = 0, prompt_values = 0;
  for (const GenerationRequest& g : generations) {
    tokens += g.max_tokens;
    prompt_values += g.prompt.size() * of_prompt;
  }
  if (prompt_values > kMaxHeldLogprobs) {
    return bad_field(
        request.prompt_logprobs >= 0 ? "prompt_logprobs" : "logprobs",
        fmt::format("the prompts have {} log-probabilities, and an answer has at most {}; ask for "
                    "fewer, or send fewer prompts at once",
                    prompt_values, kMaxHeldLogprobs));
  }
  if (tokens * per_token <= kMaxHeldLogprobs) return std::nullopt;
  return bad_field(
      "logprobs",
      fmt::format("'logprobs': up to {} tokens with {} log-probabilities each, and an answer that is not "
                  "streamed has at most {} in all; lower '{}' or the log-probabilities, or set 'stream'",
                  tokens, per_token, kMaxHeldLogprobs, request.max_tokens_field));
}

}  // namespace

std::variant<PreparedRequest, ApiError> prepare_request(const ModelService& service, ApiRequest request,
                                                        const std::atomic<bool>* abandoned) {
  const Tokenizer& tokenizer = *service.tokenizer;
  if (auto e = check_ids(request.stop_token_ids, tokenizer, "stop_token_ids")) return *std::move(e);
  for (const auto& [id, bias] : request.rules.bias) {
    if (auto e = check_ids({id}, tokenizer, "logit_bias")) return *std::move(e);
  }
  const size_t prompts = std::max<size_t>(request.prompts.size(), 1);
  if (prompts * request.candidates() > kMaxChoices) {
    const char* field = request.ranks() ? "best_of" : "n";
    return bad_field(
        field, fmt::format("'{}' is {} for each of {} prompts, but an answer has at most {} choices", field,
                           request.candidates(), prompts, kMaxChoices));
  }
  const uint32_t max_model_len = service.backend->max_model_len();
  const Encoder encoder(service, request, abandoned, max_model_len);
  PreparedRequest prepared;
  MarkedText chat;
  if (!request.messages.empty()) {
    if (auto e = check_outputs(service.formats, request)) return *std::move(e);
    auto rendered = encoder.render(request);
    if (auto* e = std::get_if<ApiError>(&rendered)) return std::move(*e);
    chat = std::get<MarkedText>(std::move(rendered));
    prepared.output = plan_output(service.formats, chat.text(), request);
  }
  const GenerationRequest base = base_generation(tokenizer, request);
  const auto add = [&](std::variant<std::vector<Token>, ApiError> tokens) -> std::optional<ApiError> {
    if (auto* e = std::get_if<ApiError>(&tokens)) return std::move(*e);
    return add_generation(tokenizer, request, base, std::get<std::vector<Token>>(std::move(tokens)),
                          max_model_len, prepared.generations);
  };
  if (!request.messages.empty()) {
    if (auto e = add(encoder.chat(chat))) return *std::move(e);
  }
  for (PromptInput& prompt : request.prompts) {
    if (auto e = add(encoder.completion(prompt))) return *std::move(e);
  }
  if (auto e = check_logprobs(request, prepared.generations)) return *std::move(e);
  request.messages = {};
  request.prompts = {};
  prepared.api = std::move(request);
  return prepared;
}

std::variant<std::vector<GenerationRequest>, ApiError> prepare_embeddings(
    const ModelService& service, ApiRequest request, const std::atomic<bool>* abandoned) {
  const Tokenizer& tokenizer = *service.tokenizer;
  const uint32_t max_model_len = service.backend->max_model_len();
  const Encoder encoder(service, request, abandoned, max_model_len);
  std::vector<GenerationRequest> out;
  for (PromptInput& prompt : request.prompts) {
    const bool is_text = std::holds_alternative<std::string>(prompt);
    auto encoded = encoder.completion(prompt);
    auto* tokens = std::get_if<std::vector<Token>>(&encoded);
    if (tokens != nullptr && is_text && tokenizer.closing()) tokens->push_back(*tokenizer.closing());
    std::optional<ApiError> wrong;
    if (auto* e = std::get_if<ApiError>(&encoded)) wrong = std::move(*e);
    if (!wrong) wrong = check_length(prompt_field(request), *tokens, max_model_len);
    if (wrong && request.prompts.size() > 1) {
      wrong->message = fmt::format("input {}: {}", out.size(), wrong->message);
    }
    if (wrong) return *std::move(wrong);
    GenerationRequest& g = out.emplace_back();
    g.prompt = std::move(*tokens);
    g.sampling.temperature = 0;
    g.max_tokens = 1;  // it is not part of the answer
    g.cache_salt = request.cache_salt;
    g.priority = request.priority.value_or(0);
    g.slo = request.slo;
    g.pooling = service.pooling;
  }
  return out;
}

std::variant<std::vector<Token>, ApiError> tokenize_prompt(const ModelService& service, ApiRequest request,
                                                           bool add_special,
                                                           const std::atomic<bool>* abandoned) {
  const Encoder encoder(service, request, abandoned, SIZE_MAX);
  if (request.messages.empty()) return encoder.completion(request.prompts.front(), add_special);
  if (auto e = check_outputs(service.formats, request)) return *std::move(e);
  auto rendered = encoder.render(request);
  if (auto* e = std::get_if<ApiError>(&rendered)) return std::move(*e);
  auto tokens = encoder.chat(std::get<MarkedText>(rendered));
  const Tokenizer& tokenizer = *service.tokenizer;
  auto* ids = std::get_if<std::vector<Token>>(&tokens);
  if (ids != nullptr && add_special && tokenizer.add_bos() && tokenizer.bos()) {
    ids->insert(ids->begin(), *tokenizer.bos());
  }
  return tokens;
}

}  // namespace kvasir
