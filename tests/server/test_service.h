// A tokenizer of bytes and a fake backend, put together as a service.
#pragma once

#include <memory>
#include <string>

#include "model/tokenizers/tokenizer.h"
#include "server/fake_backend.h"
#include "server/prompt.h"

namespace kvasir::test {

constexpr Token kEndToken = 2;
constexpr Token kFirstByteToken = 3;

// Ids 0, 1, 2 are <|endoftext|>, <|im_start|>, <|im_end|> (which ends a generation); 3 + b is the byte b.
// `more_ends` end one, too. Behind the bytes come `controls`, which are control tokens.
Tokenizer byte_tokenizer(std::vector<int32_t> more_ends = {}, const std::vector<std::string>& controls = {});

// The token of controls[i].
inline Token control_token(size_t i) {
  return kFirstByteToken + 256 + static_cast<Token>(i);
}

inline Token token_of(char c) {
  return kFirstByteToken + static_cast<uint8_t>(c);
}

// Says `text`, byte by byte, then kEndToken for ever.
FakeBackend::Script say(std::string text);
// Says `text` over and over.
FakeBackend::Script repeat(std::string text);

// "user: hello|tool f|assistant:" where the function f is offered, or an error if a message says "forbidden".
Result<MarkedText> render_test_chat(const ApiRequest& request);

struct TestService {
  explicit TestService(FakeBackend::Script script, uint32_t max_model_len = 4096)
      : tokenizer(byte_tokenizer()), backend(std::move(script), max_model_len) {}
  ModelService service() {
    ModelService out{&backend, &tokenizer, render_test_chat};
    out.formats = formats;
    return out;
  }

  Tokenizer tokenizer;
  FakeBackend backend;
  OutputFormats formats;
};

}  // namespace kvasir::test
