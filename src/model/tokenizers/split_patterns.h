// The splitting patterns that are known, by their text and by the names that GGUF gives them.
#pragma once

#include <optional>
#include <string_view>

#include "base/status.h"
#include "model/tokenizers/splitter.h"

namespace kvasir {

// The stage that cuts like Hugging Face's Split with this regular expression, which is not interpreted but
// recognised by its parts; nothing if it has others.
std::optional<SplitStage> parse_split_pattern(std::string_view regex);

// GPT-2's own pattern.
SplitRules gpt2_split();

// What the key tokenizer.ggml.pre stands for.
struct Pretokenizer {
  SplitRules split;
  bool ignore_merges =
      false;         // a word that is in the vocabulary is that token, whatever the merges would make of it
  bool nfc = false;  // text is composed (Unicode's normal form C) first
  bool add_bos = false;  // where the file does not say
};
// kUnsupported names what is not known.
Result<Pretokenizer> find_pretokenizer(std::string_view name);
// The first name that stands for these rules, whatever it says about add_bos; empty: none does.
std::string_view name_of_pretokenizer(const SplitRules& split, bool ignore_merges, bool nfc);

}  // namespace kvasir
