// POST /v1/completions.
#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/tokenizers/utf8.h"
#include "server/handlers/generate.h"
#include "server/handlers/openai.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr size_t kMaxPrompts = 128;

// A token as a key: its text, or its bytes if they are not valid UTF-8.
std::string token_key(const Tokenizer& tokenizer, Token id) {
  const std::string_view bytes = token_bytes(tokenizer, id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string key = "bytes:";
  for (const char c : bytes) key += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  return key;
}

std::string completion_logprobs(const Tokenizer& tokenizer, const TextDelta& delta) {
  std::string tokens, logprobs, tops, offsets;
  for (const LogprobEntry& entry : delta.logprobs) {
    const char* comma = &entry == &delta.logprobs.front() ? "" : ",";
    const std::string key = token_key(tokenizer, entry.id);
    // Two tokens may have the same text, and then share a key.
    json top;  // null where the token has none
    if (entry.logprob) top[key] = finite_logprob(*entry.logprob);
    for (const TokenLogprob& t : entry.top) top[token_key(tokenizer, t.token)] = finite_logprob(t.logprob);
    tokens += comma + dump_json(key);
    tops += comma + dump_json(top);
    fmt::format_to(std::back_inserter(logprobs), "{}{}", comma, logprob_json(entry.logprob));
    fmt::format_to(std::back_inserter(offsets), "{}{}", comma, entry.char_offset);
  }
  return fmt::format(R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
                     tokens, logprobs, tops, offsets);
}

class CompletionWriter final : public OpenAiWriter {
 public:
  CompletionWriter(const Tokenizer& tokenizer, const ApiRequest& request)
      : OpenAiWriter(tokenizer, request, "cmpl-", {"text_completion", "text_completion"}) {}

 private:
  std::string whole_text(const TextDelta& all) const override {
    return fmt::format(R"("text":{})", dump_json(all.text));
  }
  std::vector<std::string> delta_texts(const TextDelta& delta) const override { return {whole_text(delta)}; }
  std::string logprobs_list(const TextDelta& delta) const override {
    return completion_logprobs(tokenizer_, delta);
  }
  bool prompt_logprobs_in_choice() const override { return true; }
};

}  // namespace

std::optional<std::vector<PromptInput>> read_prompts(const json& prompt, size_t most) {
  std::vector<PromptInput> prompts;
  if (prompt.is_string()) {
    prompts.emplace_back(prompt.get<std::string>());
    return prompts;
  }
  if (!prompt.is_array() || prompt.empty()) return std::nullopt;
  if (prompt[0].is_number()) {
    auto tokens = token_list(prompt);
    if (!tokens) return std::nullopt;
    prompts.emplace_back(*std::move(tokens));
    return prompts;
  }
  if (prompt.size() > most) return std::nullopt;
  for (const json& item : prompt) {
    if (item.is_string()) {
      prompts.emplace_back(item.get<std::string>());
    } else if (item.is_array() && !item.empty()) {
      auto tokens = token_list(item);
      if (!tokens) return std::nullopt;
      prompts.emplace_back(*std::move(tokens));
    } else {
      return std::nullopt;
    }
  }
  return prompts;
}

void set_prompt(ApiRequest& request, const json& prompt, JsonFields& errors) {
  std::optional<std::vector<PromptInput>> prompts = read_prompts(prompt, kMaxPrompts);
  if (!prompts) {
    return errors.fail("prompt",
                       fmt::format("'prompt' must be a string, a list of token ids, or a list of at "
                                   "most {} of either, and not empty",
                                   kMaxPrompts));
  }
  request.prompts = *std::move(prompts);
}

std::unique_ptr<AnswerWriter> make_completion_writer(const Tokenizer& tokenizer, const ApiRequest& request) {
  return std::make_unique<CompletionWriter>(tokenizer, request);
}

void handle_completions(Exchange& exchange) {
  generate(exchange, {parse_completion_request, make_completion_writer, "text_completion"});
}

}  // namespace kvasir
