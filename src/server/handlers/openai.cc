// What the requests and the answers of both of OpenAI's endpoints share. Texts are whole UTF-8 characters;
// invalid bytes are replaced.
#include "server/handlers/openai.h"

#include <fmt/format.h>

#include <cmath>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/http_message.h"
#include "server/slo_fields.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxStopTokens = 128;
constexpr size_t kMaxSaltBytes = 1024;

void read_stop(JsonFields& fields, ApiRequest& request) {
  if (const json* stop = fields.find("stop")) {
    const json list = stop->is_string() ? json::array({*stop}) : *stop;
    bool ok = list.is_array() && list.size() <= kMaxStops;
    for (size_t i = 0; ok && i < list.size(); ++i) {
      ok = list[i].is_string();
      if (!ok) break;
      request.stop.push_back(list[i].get<std::string>());
      ok = !request.stop.back().empty() && request.stop.back().size() <= kMaxStopBytes;
    }
    if (!ok) {
      fields.fail("stop", fmt::format("'stop' must be a string or a list of at most {} strings, none of them "
                                      "empty or longer than {} bytes",
                                      kMaxStops, kMaxStopBytes));
    }
  }
  if (const json* ids = fields.find("stop_token_ids")) {
    std::optional<std::vector<Token>> tokens;
    if (ids->is_array() && ids->size() <= kMaxStopTokens) tokens = token_list(*ids);
    if (!tokens) {
      fields.fail("stop_token_ids",
                  fmt::format("'stop_token_ids' must be a list of at most {} token ids", kMaxStopTokens));
      return;
    }
    request.stop_token_ids = *std::move(tokens);
  }
}

void read_sampling(JsonFields& fields, ApiRequest& request) {
  SamplingParams& s = request.sampling;
  s.temperature = static_cast<float>(fields.number("temperature", 0, 2).value_or(1));
  s.top_p = static_cast<float>(fields.number("top_p", 0, 1, true).value_or(1));
  // A top_p so small that it is 0 as a float still keeps the most likely token.
  if (s.top_p <= 0) s.top_p = 1e-30f;
  const int64_t top_k = fields.integer("top_k", -1, INT32_MAX).value_or(0);
  s.top_k = top_k < 0 ? 0 : static_cast<int32_t>(top_k);
  if (const json* seed = fields.find("seed")) {
    if (seed->is_number_unsigned()) {
      request.seed = seed->get<uint64_t>();
    } else if (const std::optional<int64_t> whole = whole_number(*seed)) {
      request.seed = static_cast<uint64_t>(*whole);
    } else {
      fields.fail("seed", "'seed' must be a whole number of at most 64 bits");
    }
  }
}

void read_stream_options(JsonFields& fields, ApiRequest& request) {
  const json* options = fields.find("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) return fields.fail("stream_options", "'stream_options' must be an object");
  if (!request.stream) {
    return fields.fail("stream_options", "'stream_options' is only allowed when 'stream' is true");
  }
  JsonFields inner(*options);
  request.include_usage = inner.boolean("include_usage", false);
  if (inner.error()) {
    return fields.fail("stream_options.include_usage",
                       "'stream_options.include_usage' must be true or false");
  }
  for (const char* field : {"include_obfuscation", "continuous_usage_stats"}) {
    const json* value = inner.find(field);
    if (value == nullptr || *value == false) continue;
    const std::string name = std::string("stream_options.") + field;
    return fields.fail(name.c_str(), fmt::format("'{}' is not supported; leave it out", name));
  }
}

std::string usage_json(const Usage& usage) {
  return dump_json({{"prompt_tokens", usage.prompt_tokens},
                    {"completion_tokens", usage.completion_tokens},
                    {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
                    {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}});
}

std::string choice_json(size_t index, std::string_view text, std::string_view logprobs,
                        const std::string& finish_reason) {
  return fmt::format(R"({{"index":{},{},"logprobs":{},"finish_reason":{}}})", index, text, logprobs,
                     finish_reason.empty() ? "null" : dump_json(finish_reason));
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

std::variant<json, ApiError> parse_openai_object(std::string_view body, ApiKind kind) {
  auto parsed = parse_json_object(body);
  if (const json* root = std::get_if<json>(&parsed)) {
    if (auto e = find_unsupported_field(*root, kind)) return *std::move(e);
  }
  return parsed;
}

void read_common_fields(JsonFields& fields, ApiRequest& request) {
  request.model = fields.string("model").value_or("");
  request.stream = fields.boolean("stream", false);
  read_stream_options(fields, request);
  read_sampling(fields, request);
  read_stop(fields, request);
  request.ignore_eos = fields.boolean("ignore_eos", false);
  if (fields.find("parse_special") != nullptr) request.parse_special = fields.boolean("parse_special", false);
  request.cache_salt = fields.string("cache_salt").value_or("");
  if (request.cache_salt.size() > kMaxSaltBytes) {
    fields.fail("cache_salt", fmt::format("'cache_salt' must be at most {} bytes long", kMaxSaltBytes));
  }
  if (const auto max = fields.integer("max_tokens", 1, INT32_MAX)) {
    request.max_tokens = static_cast<uint32_t>(*max);
  }
  request.priority = static_cast<int32_t>(fields.integer("priority", INT32_MIN, INT32_MAX).value_or(0));
  if (const json* slo = fields.find("slo")) {
    if (auto e = read_slo_field(*slo, request.slo)) fields.fail(*std::move(e));
  }
  request.forced_output_tokens =
      static_cast<uint32_t>(fields.integer("forced_output_tokens", 1, INT32_MAX).value_or(0));
  request.output_tokens_hint =
      static_cast<uint32_t>(fields.integer("output_tokens_hint", 1, INT32_MAX).value_or(0));
}

std::string_view token_bytes(const Tokenizer& tokenizer, Token id) {
  Result<std::string_view> bytes = tokenizer.token_bytes(id);
  return bytes.ok() ? *bytes : std::string_view();
}

double finite_logprob(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

OpenAiWriter::OpenAiWriter(const Tokenizer& tokenizer, const ApiRequest& request, const char* id_prefix,
                           ObjectNames objects)
    : tokenizer_(tokenizer),
      objects_(objects),
      want_logprobs_(request.sampling.logprobs >= 0),
      include_usage_(request.include_usage),
      id_(id_prefix + random_hex_id()),
      model_(dump_json(request.model)),
      created_(static_cast<int64_t>(std::time(nullptr))) {}

std::string OpenAiWriter::head(const char* object) const {
  return fmt::format(R"({{"id":"{}","object":"{}","created":{},"model":{},)", id_, object, created_, model_);
}

std::string OpenAiWriter::choice_event(size_t index, std::string_view text, std::string_view logprobs,
                                       const std::string& finish_reason) const {
  return server_sent_event(fmt::format(R"({}"choices":[{}]{}}})", head(objects_.chunk),
                                       choice_json(index, text, logprobs, finish_reason),
                                       include_usage_ ? R"(,"usage":null)" : ""));
}

std::string OpenAiWriter::delta_event(size_t choice, const TextDelta& delta,
                                      const std::string& finish_reason) const {
  // The last chunk has the lists even if they are empty, so that an output without tokens has the same
  // log-probabilities whether it is streamed or not.
  const bool none = delta.logprobs.empty() && finish_reason.empty();
  return choice_event(choice, delta_text(delta), none ? "null" : logprobs(delta), finish_reason);
}

std::string OpenAiWriter::usage_event(const Usage& usage) const {
  if (!include_usage_) return {};
  return server_sent_event(
      fmt::format(R"({}"choices":[],"usage":{}}})", head(objects_.chunk), usage_json(usage)));
}

std::string OpenAiWriter::error_event(const ApiError& error) const {
  return server_sent_event(error_json(error));
}

std::string OpenAiWriter::last_event() const {
  return server_sent_event("[DONE]");
}

std::string OpenAiWriter::whole(const std::vector<FinishedChoice>& choices, const Usage& usage) const {
  std::string list;
  for (size_t i = 0; i < choices.size(); ++i) {
    const FinishedChoice& c = choices[i];
    if (i > 0) list += ',';
    list += choice_json(i, whole_text(c.all.text), logprobs(c.all), c.finish_reason);
  }
  return fmt::format(R"({}"choices":[{}],"usage":{}}})", head(objects_.whole), list, usage_json(usage));
}

}  // namespace kvasir
