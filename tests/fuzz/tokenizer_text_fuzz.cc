// Texts from anywhere through tokenizers of bytes that work, one for each way to split that has a name: each
// token is one that there is, and together they stand for the text, also when they arrive one by one.
//
// The first byte of the input chooses the tokenizer, the rest is the text.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "model/tokenizers/detokenizer.h"
#include "model/tokenizers/marked_text.h"
#include "model/tokenizers/split_patterns.h"
#include "model/tokenizers/tokenizer.h"
#include "model/tokenizers/utf8.h"

namespace {

using namespace kvasir;

// The 256 bytes as GPT-2 spells them, some merges, a control token and a user's own.
Tokenizer make_tokenizer(const char* pretokenizer) {
  TokenizerData data;
  const Pretokenizer pre = find_pretokenizer(pretokenizer).value();
  data.split = pre.split;
  data.ignore_merges = pre.ignore_merges;
  char32_t next = 0x100;
  for (char32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte > 0x20 && byte < 0x7F) || (byte > 0xA0 && byte != 0xAD);
    std::string token;
    append_utf8(printable ? byte : next++, &token);
    data.tokens.push_back(token);
  }
  data.merges = {"a b", "b c", "a bc", "1 2", "Ġ a", "Ġ Ġ", "Ċ Ċ", "Ã ¼", "' s"};
  for (const char* token : {"ab", "bc", "abc", "12", "Ġa", "ĠĠ", "ĊĊ", "Ã¼", "'s", "<s>", "[x]"}) {
    data.tokens.emplace_back(token);
  }
  data.token_types.assign(data.tokens.size(), static_cast<int32_t>(TokenType::kNormal));
  data.token_types[data.tokens.size() - 2] = static_cast<int32_t>(TokenType::kControl);
  data.token_types[data.tokens.size() - 1] = static_cast<int32_t>(TokenType::kUserDefined);
  return Tokenizer::create(std::move(data)).value();
}

const std::vector<Tokenizer>& tokenizers() {
  static const std::vector<Tokenizer> all = [] {
    std::vector<Tokenizer> made;
    for (const char* name : {"gpt-2", "llama-bpe", "qwen2", "smollm", "deepseek-llm", "gpt-4o", "tekken"}) {
      made.push_back(make_tokenizer(name));
    }
    return made;
  }();
  return all;
}

void check(const Tokenizer& tokenizer, std::string_view text, bool parse_special) {
  const std::vector<int32_t> ids = tokenizer.encode(text, parse_special);
  StreamDetokenizer stream(&tokenizer, /*skip_special=*/false);
  std::string streamed;
  for (const int32_t id : ids) {
    KV_CHECK(id >= 0 && id < tokenizer.vocab_size(), "token {}", id);
    KV_CHECK(parse_special || !tokenizer.is_special(id), "a control token from a client's text");
    streamed += stream.push(id).value();
  }
  streamed += stream.finish();
  const std::string whole = replace_invalid_utf8(text);
  KV_CHECK(tokenizer.decode(ids, /*skip_special=*/false).value() == whole, "another text of {} tokens",
           ids.size());
  KV_CHECK(streamed == whole, "another text of {} tokens, one by one", ids.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Tokenizer& tokenizer = tokenizers()[data[0] % tokenizers().size()];
  check(tokenizer, text, /*parse_special=*/false);
  check(tokenizer, text, /*parse_special=*/true);
  KV_CHECK(tokenizer.encode(MarkedText(std::string(text))) == tokenizer.encode(text, false),
           "marks change plain text");
  return 0;
}
