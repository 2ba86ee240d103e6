// POST /v1/chat/completions.
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
  // OpenAI's newer name of the system role. No chat template has it.
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

// Makes text directly: JSON values for every token of a long answer would take many times the memory.
std::string chat_token(const Tokenizer& tokenizer, Token id, std::optional<float> logprob) {
  const std::string_view bytes = token_bytes(tokenizer, id);
  std::string list;
  for (const char c : bytes) {
    fmt::format_to(std::back_inserter(list), "{}{}", list.empty() ? "" : ",", static_cast<uint8_t>(c));
  }
  return fmt::format(R"("token":{},"logprob":{},"bytes":[{}])", dump_json(replace_invalid_utf8(bytes)),
                     logprob_json(logprob), list);
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

class ChatWriter final : public OpenAiWriter {
 public:
  ChatWriter(const Tokenizer& tokenizer, const ApiRequest& request)
      : OpenAiWriter(tokenizer, request, "chatcmpl-", {"chat.completion", "chat.completion.chunk"}) {}

  std::string first_event(size_t choice, const Usage&) override {
    return choice_event(choice, R"("delta":{"role":"assistant","content":""})", "null", "");
  }

 private:
  std::string whole_text(const std::string& text) const override {
    return fmt::format(R"("message":{{"role":"assistant","content":{},"refusal":null}})", dump_json(text));
  }
  std::string delta_text(const TextDelta& delta) const override {
    if (delta.empty()) return R"("delta":{})";
    return fmt::format(R"("delta":{{"content":{}}})", dump_json(delta.text));
  }
  std::string logprobs_list(const TextDelta& delta) const override {
    return chat_logprobs(tokenizer_, delta);
  }
  bool prompt_logprobs_in_choice() const override { return false; }
};

}  // namespace

void set_messages(ApiRequest& request, const json& messages, JsonFields& errors) {
  if (!messages.is_array() || messages.empty()) {
    return errors.fail("messages", "'messages' must be a list of at least one message");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    auto message = read_message(messages[i], i);
    if (auto* e = std::get_if<ApiError>(&message)) return errors.fail(std::move(*e));
    request.messages.push_back(std::get<ApiMessage>(std::move(message)));
  }
}

std::unique_ptr<AnswerWriter> make_chat_writer(const Tokenizer& tokenizer, const ApiRequest& request) {
  return std::make_unique<ChatWriter>(tokenizer, request);
}

void handle_chat(Exchange& exchange) {
  generate(exchange, {parse_chat_request, make_chat_writer});
}

}  // namespace kvasir
