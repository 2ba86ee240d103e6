// A tokenizer of bytes and scripts.
#include "server/test_service.h"

#include "support/tiny_llama.h"

namespace kvasir::test {

Tokenizer byte_tokenizer(std::vector<int32_t> more_ends, const std::vector<std::string>& controls) {
  TinyVocabulary vocabulary = make_tiny_vocabulary(259);
  TokenizerData data;
  data.split = find_pretokenizer("smollm").value().split;
  data.tokens = std::move(vocabulary.tokens);
  data.token_types = std::move(vocabulary.types);
  data.merges = std::move(vocabulary.merges);
  for (const std::string& control : controls) {
    data.tokens.push_back(control);
    data.token_types.push_back(static_cast<int32_t>(TokenType::kControl));
  }
  data.eos = kEndToken;
  data.more_ends = std::move(more_ends);
  Result<Tokenizer> tokenizer = Tokenizer::create(std::move(data));
  KV_CHECK(tokenizer.ok(), "{}", tokenizer.status().message());
  return std::move(tokenizer).value();
}

FakeBackend::Script say(std::string text) {
  return [text = std::move(text)](const GenerationRequest&, size_t index) {
    return index < text.size() ? token_of(text[index]) : kEndToken;
  };
}

FakeBackend::Script repeat(std::string text) {
  return [text = std::move(text)](const GenerationRequest&, size_t index) {
    return token_of(text[index % text.size()]);
  };
}

Result<MarkedText> render_test_chat(const ApiRequest& request) {
  std::string text;
  for (const ApiMessage& m : request.messages) {
    if (m.content == "forbidden")
      return error(ErrorCode::kInvalidArgument, "the template refuses this message");
    if (m.content == "explode") throw std::runtime_error("a fault of ours");
    text += m.role + ": " + m.content + "|";
  }
  if (request.tool_choice != ToolChoice::kNone) {
    for (const ApiTool& tool : request.tools) text += "tool " + tool.name + "|";
  }
  return MarkedText(text + "assistant:");
}

}  // namespace kvasir::test
