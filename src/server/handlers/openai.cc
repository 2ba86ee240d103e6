// What the requests and the answers of both of OpenAI's endpoints share. Texts are whole UTF-8 characters;
// invalid bytes are replaced.
#include "server/handlers/openai.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/tokenizers/utf8.h"
#include "server/handlers/grammar_fields.h"
#include "server/http_message.h"

namespace kvasir {
namespace {

using nlohmann::json;

std::string usage_json(const Usage& usage) {
  return dump_json({{"prompt_tokens", usage.prompt_tokens},
                    {"completion_tokens", usage.completion_tokens},
                    {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                    {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}},
                    {"completion_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}}});
}

std::string choice_json(size_t index, std::string_view text, std::string_view logprobs,
                        const std::string& finish_reason, std::string_view more = {}) {
  return fmt::format(R"({{"index":{},{},"logprobs":{},"finish_reason":{}{}}})", index, text, logprobs,
                     finish_reason.empty() ? "null" : dump_json(finish_reason), more);
}

}  // namespace

std::optional<std::vector<Token>> token_list(const json& list) {
  std::vector<Token> tokens;
  tokens.reserve(list.size());
  for (const json& item : list) {
    const std::optional<int64_t> id = whole_number(item);
    if (!id || *id < 0 || *id > INT32_MAX) return std::nullopt;
    tokens.push_back(static_cast<Token>(*id));
  }
  return tokens;
}

std::variant<ApiRequest, ApiError> parse_chat_request(std::string_view body, const ApiRequest& defaults) {
  return read_request(body, ApiKind::kChat, defaults);
}

std::variant<ApiRequest, ApiError> parse_completion_request(std::string_view body,
                                                            const ApiRequest& defaults) {
  ApiRequest request = defaults;
  request.default_max_tokens = 16;  // OpenAI's
  return read_request(body, ApiKind::kCompletion, std::move(request));
}

std::string_view token_bytes(const Tokenizer& tokenizer, Token id) {
  Result<std::string_view> bytes = tokenizer.token_bytes(id);
  return bytes.ok() ? *bytes : std::string_view();
}

double finite_logprob(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

std::string logprob_json(std::optional<float> logprob) {
  return logprob ? fmt::format("{}", finite_logprob(*logprob)) : "null";
}

OpenAiWriter::OpenAiWriter(const Tokenizer& tokenizer, const ApiRequest& request, const char* id_prefix,
                           ObjectNames objects)
    : tokenizer_(tokenizer),
      objects_(objects),
      prompt_logprobs_(request.prompt_logprobs),
      want_logprobs_(request.sampling.logprobs >= 0),
      include_usage_(request.include_usage),
      id_(id_prefix + random_hex_id()),
      model_(dump_json(request.model)),
      created_(static_cast<int64_t>(std::time(nullptr))) {}

std::string OpenAiWriter::head(const char* object) const {
  return fmt::format(R"({{"id":"{}","object":"{}","created":{},"model":{},)", id_, object, created_, model_);
}

std::string OpenAiWriter::prompt_logprobs(const FinishedChoice& choice) const {
  if (prompt_logprobs_ < 0) return {};
  const auto entry = [this](Token id, float logprob, uint32_t rank) {
    return fmt::format(R"("{}":{{"logprob":{},"rank":{},"decoded_token":{}}})", id, finite_logprob(logprob),
                       rank, dump_json(replace_invalid_utf8(token_bytes(tokenizer_, id))));
  };
  std::string out = R"(,"prompt_logprobs":[null)";
  for (const PromptToken& t : choice.prompt) {
    out += ",{" + entry(t.id, t.logprob, t.rank);
    for (size_t i = 0; i < t.top.size() && i < static_cast<size_t>(prompt_logprobs_); ++i) {
      if (t.top[i].token == t.id) continue;
      out += "," + entry(t.top[i].token, t.top[i].logprob, static_cast<uint32_t>(i + 1));
    }
    out += "}";
  }
  return out + "]";
}

std::string OpenAiWriter::choice_event(size_t index, std::string_view text, std::string_view logprobs,
                                       const std::string& finish_reason) const {
  return server_sent_event(fmt::format(R"({}"choices":[{}]{}}})", head(objects_.chunk),
                                       choice_json(index, text, logprobs, finish_reason),
                                       include_usage_ ? R"(,"usage":null)" : ""));
}

std::string OpenAiWriter::delta_event(size_t choice, const TextDelta& delta,
                                      const std::string& finish_reason) {
  // The last chunk has the lists even if they are empty, so that an output without tokens has the same
  // log-probabilities whether it is streamed or not.
  const bool none = delta.logprobs.empty() && finish_reason.empty();
  const std::vector<std::string> texts = delta_texts(delta);
  std::string events;
  if (choice >= opened_.size()) opened_.resize(choice + 1);
  if (!opened_[choice]) {
    opened_[choice] = true;
    const std::string opening = opening_text();
    if (!opening.empty()) events = choice_event(choice, opening, "null", "");
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    const bool last = i + 1 == texts.size();
    events += choice_event(choice, texts[i], none || i > 0 ? "null" : logprobs(delta),
                           last ? finish_reason : std::string());
  }
  return events;
}

std::string OpenAiWriter::usage_event(const Usage& usage) {
  if (!include_usage_) return {};
  return server_sent_event(
      fmt::format(R"({}"choices":[],"usage":{}}})", head(objects_.chunk), usage_json(usage)));
}

std::string OpenAiWriter::error_event(const ApiError& error) {
  return server_sent_event(error_json(error));
}

std::string OpenAiWriter::last_words(const ApiError& error) const {
  return server_sent_event(error_json(error)) + server_sent_event("[DONE]");
}

std::string OpenAiWriter::last_event() {
  return server_sent_event("[DONE]");
}

std::string OpenAiWriter::whole(const std::vector<FinishedChoice>& choices, const Usage& usage) {
  std::string list;
  const bool in_choice = prompt_logprobs_in_choice();
  for (size_t i = 0; i < choices.size(); ++i) {
    const FinishedChoice& c = choices[i];
    if (i > 0) list += ',';
    list += choice_json(i, whole_text(c.all), logprobs(c.all), c.finish_reason,
                        in_choice ? prompt_logprobs(c) : std::string());
  }
  return fmt::format(R"({}"choices":[{}],"usage":{}{}}})", head(objects_.whole), list, usage_json(usage),
                     in_choice ? std::string() : prompt_logprobs(choices.front()));
}

}  // namespace kvasir
