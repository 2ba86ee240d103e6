// JSON out. Texts are whole UTF-8 characters here; whatever is not is replaced, never an error.
#include "server/response_writer.h"

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "model/utf8.h"

namespace kvasir {
namespace {

using nlohmann::json;

std::string dump(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 429:
      return "rate_limit_error";
    case 500:
      return "server_error";
    case 501:
      return "not_implemented_error";
    case 503:
      return "service_unavailable_error";
    default:
      return "invalid_request_error";
  }
}

json model_object(const std::string& name, int64_t created, uint32_t max_model_len) {
  json model = {{"id", name}, {"object", "model"}, {"created", created}, {"owned_by", "kvasir"}};
  if (max_model_len > 0) model["max_model_len"] = max_model_len;
  return model;
}

// JSON has no infinity; this is what clients of the peers know.
double finite(float logprob) {
  return std::isfinite(logprob) ? static_cast<double>(logprob) : -9999.0;
}

std::string_view bytes_of(const Tokenizer& tokenizer, Token id) {
  Result<std::string_view> bytes = tokenizer.token_bytes(id);
  return bytes.ok() ? *bytes : std::string_view();
}

// As text at once: a tree of values for every token of a long answer would be many times as large.
std::string chat_token(const Tokenizer& tokenizer, Token id, float logprob) {
  const std::string_view bytes = bytes_of(tokenizer, id);
  std::string list;
  for (const char c : bytes) {
    fmt::format_to(std::back_inserter(list), "{}{}", list.empty() ? "" : ",", static_cast<uint8_t>(c));
  }
  return fmt::format(R"("token":{},"logprob":{},"bytes":[{}])", dump(replace_invalid_utf8(bytes)),
                     finite(logprob), list);
}

// A token as a key: its text, or its bytes where they are not text by themselves.
std::string token_key(const Tokenizer& tokenizer, Token id) {
  const std::string_view bytes = bytes_of(tokenizer, id);
  if (is_valid_utf8(bytes)) return std::string(bytes);
  std::string key = "bytes:";
  for (const char c : bytes) key += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
  return key;
}

std::string chat_logprobs(const Tokenizer& tokenizer, const TextDelta& delta) {
  std::string out = R"({"content":[)";
  for (const LogprobEntry& entry : delta.logprobs) {
    if (&entry != &delta.logprobs.front()) out += ',';
    out += "{" + chat_token(tokenizer, entry.id, entry.logprob) + R"(,"top_logprobs":[)";
    for (const TokenLogprob& top : entry.top) {
      if (&top != &entry.top.front()) out += ',';
      out += "{" + chat_token(tokenizer, top.token, top.logprob) + "}";
    }
    out += "]}";
  }
  return out + R"(],"refusal":null})";
}

std::string completion_logprobs(const Tokenizer& tokenizer, const TextDelta& delta) {
  std::string tokens, logprobs, tops, offsets;
  for (const LogprobEntry& entry : delta.logprobs) {
    const char* comma = &entry == &delta.logprobs.front() ? "" : ",";
    const std::string key = token_key(tokenizer, entry.id);
    // Two tokens may have one text; a key stands once.
    json top = {{key, finite(entry.logprob)}};
    for (const TokenLogprob& t : entry.top) top[token_key(tokenizer, t.token)] = finite(t.logprob);
    tokens += comma + dump(key);
    tops += comma + dump(top);
    fmt::format_to(std::back_inserter(logprobs), "{}{}", comma, finite(entry.logprob));
    fmt::format_to(std::back_inserter(offsets), "{}{}", comma, entry.char_offset);
  }
  return fmt::format(R"({{"tokens":[{}],"token_logprobs":[{}],"top_logprobs":[{}],"text_offset":[{}]}})",
                     tokens, logprobs, tops, offsets);
}

std::string usage_json(const Usage& usage) {
  return dump({{"prompt_tokens", usage.prompt_tokens},
               {"completion_tokens", usage.completion_tokens},
               {"total_tokens", usage.prompt_tokens + usage.completion_tokens},
               {"prompt_tokens_details", {{"cached_tokens", usage.cached_tokens}}}});
}

std::string reason_json(const std::string& reason) {
  return reason.empty() ? "null" : dump(reason);
}

}  // namespace

std::string error_json(const ApiError& error) {
  json body = {
      {"message", error.message}, {"type", error_type(error.status)}, {"param", nullptr}, {"code", nullptr}};
  if (!error.param.empty()) body["param"] = error.param;
  if (!error.code.empty()) body["code"] = error.code;
  if (error.n_prompt_tokens) body["n_prompt_tokens"] = *error.n_prompt_tokens;
  if (error.n_ctx) body["n_ctx"] = *error.n_ctx;
  return dump({{"error", std::move(body)}});
}

std::string models_json(const std::vector<std::string>& names, int64_t created, uint32_t max_model_len) {
  json list = json::array();
  for (const std::string& name : names) list.push_back(model_object(name, created, max_model_len));
  return dump({{"object", "list"}, {"data", std::move(list)}});
}

std::string model_json(const std::string& name, int64_t created, uint32_t max_model_len) {
  return dump(model_object(name, created, max_model_len));
}

std::string version_json(const std::string& version) {
  return dump({{"version", version}});
}

ResponseWriter::ResponseWriter(const Tokenizer* tokenizer, ApiKind kind, std::string id, int64_t created,
                               std::string model, bool want_logprobs, bool include_usage)
    : tokenizer_(tokenizer),
      kind_(kind),
      want_logprobs_(want_logprobs),
      include_usage_(include_usage),
      id_(std::move(id)),
      model_(dump(model)),
      created_(created) {}

std::string ResponseWriter::head(bool chunk) const {
  const char* object = kind_ == ApiKind::kCompletion ? "text_completion"
                       : chunk                       ? "chat.completion.chunk"
                                                     : "chat.completion";
  return fmt::format(R"({{"id":"{}","object":"{}","created":{},"model":{},)", id_, object, created_, model_);
}

std::string ResponseWriter::logprobs_json(const TextDelta& delta) const {
  if (!want_logprobs_) return "null";
  return kind_ == ApiKind::kChat ? chat_logprobs(*tokenizer_, delta)
                                 : completion_logprobs(*tokenizer_, delta);
}

std::string ResponseWriter::role_chunk(size_t choice) const {
  return fmt::format(
      R"({}"choices":[{{"index":{},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}]{}}})",
      head(true), choice, include_usage_ ? R"(,"usage":null)" : "");
}

std::string ResponseWriter::delta_chunk(size_t choice, const TextDelta& delta,
                                        const std::string& finish_reason) const {
  // The last chunk has the lists even if they are empty: an output without a token is then the same, streamed
  // or not.
  const bool none = delta.logprobs.empty() && finish_reason.empty();
  const std::string logprobs = none ? "null" : logprobs_json(delta);
  const char* usage = include_usage_ ? R"(,"usage":null)" : "";
  if (kind_ == ApiKind::kCompletion) {
    return fmt::format(R"({}"choices":[{{"index":{},"text":{},"logprobs":{},"finish_reason":{}}}]{}}})",
                       head(true), choice, dump(delta.text), logprobs, reason_json(finish_reason), usage);
  }
  const std::string content = delta.empty() ? "{}" : fmt::format(R"({{"content":{}}})", dump(delta.text));
  return fmt::format(R"({}"choices":[{{"index":{},"delta":{},"logprobs":{},"finish_reason":{}}}]{}}})",
                     head(true), choice, content, logprobs, reason_json(finish_reason), usage);
}

std::string ResponseWriter::usage_chunk(const Usage& usage) const {
  return fmt::format(R"({}"choices":[],"usage":{}}})", head(true), usage_json(usage));
}

std::string ResponseWriter::full(const std::vector<FinishedChoice>& choices, const Usage& usage) const {
  std::string list;
  for (size_t i = 0; i < choices.size(); ++i) {
    const FinishedChoice& c = choices[i];
    const std::string text = dump(c.all.text);
    const std::string body =
        kind_ == ApiKind::kCompletion
            ? fmt::format(R"("text":{})", text)
            : fmt::format(R"("message":{{"role":"assistant","content":{},"refusal":null}})", text);
    list += fmt::format(R"({}{{"index":{},{},"logprobs":{},"finish_reason":{}}})", i == 0 ? "" : ",", i, body,
                        logprobs_json(c.all), reason_json(c.finish_reason));
  }
  return fmt::format(R"({}"choices":[{}],"usage":{}}})", head(false), list, usage_json(usage));
}

}  // namespace kvasir
