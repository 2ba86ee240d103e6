// A tokenizer.json from anywhere: reading it must end in a tokenizer that works, or in an error.
//
// The input is the file, and after a zero byte a tokenizer_config.json.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "model/tokenizers/tokenizer.h"
#include "model/tokenizers/tokenizer_json.h"
#include "model/tokenizers/utf8.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t split = input.find('\0');
  kvasir::TokenizerFiles files;
  files.tokenizer = input.substr(0, split);
  if (split != std::string_view::npos) files.tokenizer_config = input.substr(split + 1);
  auto read = kvasir::read_tokenizer_json(files, "fuzz");
  if (!read.ok()) return 0;
  const auto tokenizer = kvasir::Tokenizer::create(std::move(read).value());
  if (!tokenizer.ok()) return 0;
  const auto ids = tokenizer->encode(" ab aB's 123\u00e9e\u0301 \U0001F600\n\n<s></s>", true);
  const auto text = tokenizer->decode(ids, false);
  KV_CHECK(text.ok() && kvasir::is_valid_utf8(*text), "{} tokens", ids.size());
  return 0;
}
