// What is certain depends on the bytes alone, never on where tokens end.
#include "model/tokenizers/detokenizer.h"

#include <algorithm>
#include <utility>

#include "model/tokenizers/utf8.h"

namespace kvasir {

Result<std::string> StreamDetokenizer::push(int32_t token) {
  KV_ASSIGN_OR_RETURN(const std::string_view bytes, tokenizer_->token_bytes(token));
  const bool hidden = skip_special_ && tokenizer_->is_special(token) &&
                      std::find(shown_.begin(), shown_.end(), token) == shown_.end();
  if (hidden) return std::string();
  pending_.append(bytes);

  std::string out;
  size_t position = 0;
  while (position < pending_.size()) {
    const Utf8Step step = decode_utf8(pending_, position);
    if (step.state == Utf8State::kIncomplete) break;
    append_utf8(step.code_point, &out);
    position += step.length;
  }
  pending_.erase(0, position);
  return out;
}

std::string StreamDetokenizer::finish() {
  const std::string rest = std::exchange(pending_, std::string());
  return replace_invalid_utf8(rest);
}

}  // namespace kvasir
