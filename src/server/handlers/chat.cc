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

// Under both of its names: clients read one or the other.
std::string reasoning_members(const std::string& reasoning) {
  const std::string text = dump_json(reasoning);
  return fmt::format(R"("reasoning":{0},"reasoning_content":{0})", text);
}

class ChatWriter final : public OpenAiWriter {
 public:
  ChatWriter(const Tokenizer& tokenizer, const ApiRequest& request)
      : OpenAiWriter(tokenizer, request, "chatcmpl-", {"chat.completion", "chat.completion.chunk"}) {}

 private:
  std::string opening_text() const override { return R"("delta":{"role":"assistant","content":""})"; }
  std::string whole_text(const TextDelta& all) const override {
    // Without text there is null, as clients expect it beside calls.
    const bool none = all.text.empty() && !(all.tool_calls.empty() && all.reasoning.empty());
    std::string calls;
    for (const ToolCallDelta& call : all.tool_calls) {
      calls += calls.empty() ? R"(,"tool_calls":[)" : ",";
      calls += fmt::format(R"({{"id":{},"type":"function","function":{{"name":{},"arguments":{}}}}})",
                           dump_json(call.id), dump_json(call.name), dump_json(call.arguments));
    }
    if (!calls.empty()) calls += "]";
    return fmt::format(R"("message":{{"role":"assistant","content":{}{}{},"refusal":null}})",
                       none ? "null" : dump_json(all.text),
                       all.reasoning.empty() ? "" : "," + reasoning_members(all.reasoning), calls);
  }
  std::vector<std::string> delta_texts(const TextDelta& delta) const override {
    std::vector<std::string> out;
    const auto add = [&](const std::string& members) {
      out.push_back(fmt::format(R"("delta":{{{}}})", members));
    };
    if (!delta.reasoning.empty()) add(reasoning_members(delta.reasoning));
    if (!delta.text.empty()) add(R"("content":)" + dump_json(delta.text));
    for (const ToolCallDelta& call : delta.tool_calls) {
      if (!call.id.empty()) {
        add(fmt::format(
            R"("tool_calls":[{{"index":{},"id":{},"type":"function","function":{{"name":{},"arguments":""}}}}])",
            call.index, dump_json(call.id), dump_json(call.name)));
      }
      if (call.arguments.empty()) continue;
      add(fmt::format(R"("tool_calls":[{{"index":{},"function":{{"arguments":{}}}}}])", call.index,
                      dump_json(call.arguments)));
    }
    // Log-probabilities without text have a chunk, too.
    if (out.empty()) add(delta.empty() ? "" : R"("content":"")");
    return out;
  }
  std::string logprobs_list(const TextDelta& delta) const override {
    return chat_logprobs(tokenizer_, delta);
  }
  bool prompt_logprobs_in_choice() const override { return false; }
};

}  // namespace

std::unique_ptr<AnswerWriter> make_chat_writer(const Tokenizer& tokenizer, const ApiRequest& request) {
  return std::make_unique<ChatWriter>(tokenizer, request);
}

void handle_chat(Exchange& exchange) {
  generate(exchange, {parse_chat_request, make_chat_writer});
}

}  // namespace kvasir
