// A tokenizer's description out of the files that Hugging Face's tokenizers and transformers write.
#pragma once

#include <string_view>

#include "base/status.h"
#include "model/tokenizers/tokenizer_data.h"

namespace kvasir {

// The texts of the files: views. Empty where a model has none.
struct TokenizerFiles {
  std::string_view tokenizer;          // tokenizer.json
  std::string_view tokenizer_config;   // tokenizer_config.json
  std::string_view generation_config;  // generation_config.json: which tokens end an output
  std::string_view chat_template;      // chat_template.jinja, which goes before the one in the configuration
  std::string_view vocab;              // vocab.json and
  std::string_view merges;             // merges.txt, of GPT-2's kind: used where there is no tokenizer.json
};

// What Tokenizer::create() and the chat template need, the same as a GGUF file of the model says. Of a
// normalizer and a pre-tokenizer it knows the kinds that byte pair encoding uses; regular expressions are
// recognised by their text (split_patterns.h). `origin` names the folder in messages. kUnsupported: a part
// that would make other tokens, named in the message. kCorrupt: what is no JSON or has the wrong shape.
// kNotFound: neither tokenizer.json nor vocab.json with merges.txt.
Result<TokenizerData> read_tokenizer_json(const TokenizerFiles& files, std::string_view origin);

}  // namespace kvasir
