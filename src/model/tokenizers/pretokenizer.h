// Cuts text into the words inside which byte pairs are merged.
//
// The cut is that of the GPT-2 pattern
//   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
// written as a hand-made automaton, because a general regular expression engine is slower and can be made to
// backtrack. "smollm" first isolates every numeric code point (categories Nd, Nl and No), so that the
// pattern never sees across one: in "a  1" the two spaces stay together.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/status.h"

namespace kvasir {

enum class PretokenizerKind {
  kGpt2,    // the pattern alone: "gpt-2", "default"
  kSmollm,  // every digit on its own, then the pattern: "smollm"
};

// The kind that a model file's `tokenizer.ggml.pre` names. kUnsupported names what is not known.
Result<PretokenizerKind> parse_pretokenizer(std::string_view name);

// Yields the words of one text from left to right; together they are the text. Linear in the text's length.
// Not thread-safe; it does not own the text.
class WordSplitter {
 public:
  // REQUIRES: text is valid UTF-8 and outlives the splitter.
  WordSplitter(PretokenizerKind kind, std::string_view text) : kind_(kind), text_(text) {}

  // False at the end of the text; otherwise *word is not empty.
  bool next(std::string_view* word);

 private:
  size_t end_of_word(size_t begin) const;
  size_t end_of_space(size_t begin) const;

  const PretokenizerKind kind_;
  const std::string_view text_;
  size_t position_ = 0;
};

}  // namespace kvasir
