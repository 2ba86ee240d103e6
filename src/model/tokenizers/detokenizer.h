// Tokens to text as they arrive: only whole characters leave.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/tokenizers/tokenizer.h"

namespace kvasir {

// One per output stream. Not thread-safe. Whatever the tokens are and however they are split, the pieces
// together are what Tokenizer::decode gives for all of them at once.
class StreamDetokenizer {
 public:
  // `shown`: special tokens that have their text all the same. REQUIRES: the tokenizer outlives this.
  explicit StreamDetokenizer(const Tokenizer* tokenizer, bool skip_special = true,
                             std::vector<int32_t> shown = {})
      : tokenizer_(tokenizer), skip_special_(skip_special), shown_(std::move(shown)) {}

  // The text that is certain now, possibly empty: a character that is not complete waits (at most 3 bytes).
  // kInvalidArgument: an id outside the vocabulary; the state is as before.
  Result<std::string> push(int32_t token);

  // The end of the stream: what waits can no longer become a character, so it is U+FFFD or nothing.
  std::string finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::vector<int32_t> shown_;
  std::string pending_;  // a well-formed beginning of one character
};

}  // namespace kvasir
