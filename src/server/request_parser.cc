// The schema of /v1/chat/completions and /v1/completions.
#include "server/request_parser.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "server/json_fields.h"
#include "server/slo_fields.h"
#include "server/unsupported_fields.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr size_t kMaxStops = 16;
constexpr size_t kMaxStopBytes = 1024;
constexpr size_t kMaxStopTokens = 128;
constexpr size_t kMaxPrompts = 128;
constexpr int64_t kMaxLogprobs = 20;
constexpr size_t kMaxSaltBytes = 1024;

// Tokens of a list; nothing if any of it is not a token id. Whether the vocabulary has it is seen later.
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

// What both endpoints share.
void read_common(JsonFields& fields, ApiRequest& request) {
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

std::string at(size_t index, const char* field) {
  return fmt::format("messages[{}].{}", index, field);
}

// The text of a message's content: a string, or parts that are all text, one per line.
std::variant<std::string, ApiError> read_content(const json& content, size_t index) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    return bad_field(at(index, "content"),
                     fmt::format("'{}' must be a string or a list of text parts", at(index, "content")));
  }
  std::string text;
  for (size_t p = 0; p < content.size(); ++p) {
    const std::string name = fmt::format("{}[{}]", at(index, "content"), p);
    const json& part = content[p];
    if (part.is_string()) {
      text += (p == 0 ? "" : "\n") + part.get<std::string>();
      continue;
    }
    const json type = part.is_object() ? part.value("type", json()) : json();
    if (!type.is_string()) return bad_field(name, fmt::format("'{}' must be an object with a 'type'", name));
    if (type != "text") {
      const std::string shown = type.get<std::string>().substr(0, 40);
      return bad_field(
          name + ".type",
          fmt::format("'{}.type' is '{}': only parts of type 'text' are supported", name, shown));
    }
    const json value = part.value("text", json());
    if (!value.is_string()) return bad_field(name + ".text", fmt::format("'{}.text' must be a string", name));
    text += (p == 0 ? "" : "\n") + value.get<std::string>();
  }
  return text;
}

std::variant<ApiMessage, ApiError> read_message(const json& message, size_t index) {
  const std::string name = fmt::format("messages[{}]", index);
  if (!message.is_object()) return bad_field(name, fmt::format("'{}' must be an object", name));
  const json role = message.value("role", json());
  if (!role.is_string()) return bad_field(at(index, "role"), fmt::format("'{}.role' must be a string", name));
  ApiMessage out;
  out.role = role.get<std::string>();
  // OpenAI's newer name of the same thing, which no template knows.
  if (out.role == "developer") out.role = "system";
  if (out.role != "system" && out.role != "user" && out.role != "assistant") {
    return bad_field(at(index, "role"),
                     fmt::format("'{}.role' is '{}': it must be system, developer, user or assistant", name,
                                 out.role.substr(0, 40)));
  }
  for (const char* field : {"name", "tool_calls", "function_call", "audio"}) {
    const json value = message.value(field, json());
    if (!value.is_null() && !(value.is_array() && value.empty())) {
      return bad_field(at(index, field), fmt::format("'{}' is not supported", at(index, field)));
    }
  }
  auto content = read_content(message.value("content", json()), index);
  if (auto* e = std::get_if<ApiError>(&content)) return std::move(*e);
  out.content = std::get<std::string>(std::move(content));
  return out;
}

std::variant<ApiRequest, ApiError> parse_chat(const json& body) {
  ApiRequest request;
  request.kind = ApiKind::kChat;
  JsonFields fields(body);
  read_common(fields, request);
  if (const auto max = fields.integer("max_completion_tokens", 1, INT32_MAX)) {
    request.max_tokens = static_cast<uint32_t>(*max);
    request.max_tokens_field = "max_completion_tokens";
  }
  const bool logprobs = fields.boolean("logprobs", false);
  const auto top = fields.integer("top_logprobs", 0, kMaxLogprobs);
  if (logprobs) request.sampling.logprobs = static_cast<int32_t>(top.value_or(0));
  if (!logprobs && top.value_or(0) > 0) {
    fields.fail("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true");
  }
  const json* messages = fields.find("messages");
  if (messages == nullptr || !messages->is_array() || messages->empty()) {
    fields.fail("messages", "'messages' must be a list of at least one message");
  }
  if (fields.error()) return *fields.error();
  for (size_t i = 0; i < messages->size(); ++i) {
    auto message = read_message((*messages)[i], i);
    if (auto* e = std::get_if<ApiError>(&message)) return std::move(*e);
    request.messages.push_back(std::get<ApiMessage>(std::move(message)));
  }
  return request;
}

// A string; a list of token ids; a list of strings; a list of lists of token ids.
std::optional<std::vector<PromptInput>> read_prompts(const json& prompt) {
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
  if (prompt.size() > kMaxPrompts) return std::nullopt;
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

std::variant<ApiRequest, ApiError> parse_completion(const json& body) {
  ApiRequest request;
  request.kind = ApiKind::kCompletion;
  JsonFields fields(body);
  read_common(fields, request);
  if (const auto logprobs = fields.integer("logprobs", 0, kMaxLogprobs)) {
    request.sampling.logprobs = static_cast<int32_t>(*logprobs);
  }
  request.default_max_tokens = 16;  // OpenAI's
  const json* prompt = fields.find("prompt");
  std::optional<std::vector<PromptInput>> prompts;
  if (prompt != nullptr) prompts = read_prompts(*prompt);
  if (!prompts) {
    fields.fail("prompt", fmt::format("'prompt' must be a string, a list of token ids, or a list of at most "
                                      "{} of either, and not empty",
                                      kMaxPrompts));
  }
  if (fields.error()) return *fields.error();
  request.prompts = *std::move(prompts);
  return request;
}

}  // namespace

std::variant<ApiRequest, ApiError> parse_request(ApiKind kind, std::string_view body) {
  auto parsed = parse_json_object(body);
  if (auto* e = std::get_if<ApiError>(&parsed)) return std::move(*e);
  const json& root = std::get<json>(parsed);
  if (auto e = find_unsupported_field(root, kind)) return *std::move(e);
  return kind == ApiKind::kChat ? parse_chat(root) : parse_completion(root);
}

}  // namespace kvasir
