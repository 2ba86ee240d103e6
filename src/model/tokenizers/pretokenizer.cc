// The character classes come from ICU; below U+0080 they are decided here, which is most of most text.
#include "model/tokenizers/pretokenizer.h"

#include <unicode/uchar.h>

#include "model/tokenizers/utf8.h"

namespace kvasir {

namespace {

enum class CharClass { kLetter, kNumber, kSpace, kOther };

CharClass classify(char32_t c) {
  if (c < 0x80) {
    const char32_t lower = c | 0x20;
    if (lower >= 'a' && lower <= 'z') return CharClass::kLetter;
    if (c >= '0' && c <= '9') return CharClass::kNumber;
    if (c == ' ' || (c >= '\t' && c <= '\r')) return CharClass::kSpace;
    return CharClass::kOther;
  }
  const auto code = static_cast<UChar32>(c);
  const uint32_t category = U_GET_GC_MASK(code);
  if (category & U_GC_L_MASK) return CharClass::kLetter;
  if (category & U_GC_N_MASK) return CharClass::kNumber;
  return u_isUWhiteSpace(code) ? CharClass::kSpace : CharClass::kOther;
}

struct Char {
  CharClass kind;
  size_t end;  // offset after it
};

Char char_at(std::string_view text, size_t position) {
  const Utf8Step step = decode_utf8(text, position);
  return {classify(step.code_point), position + step.length};
}

// The length of 's, 't, 're, 've, 'm, 'll or 'd at `position`, else 0. Lower case only, as in the pattern.
size_t contraction_length(std::string_view text, size_t position) {
  const std::string_view rest = text.substr(position, 3);
  if (rest.size() < 2 || rest[0] != '\'') return 0;
  const char c = rest[1];
  if (c == 's' || c == 't' || c == 'm' || c == 'd') return 2;
  const std::string_view pair = rest.substr(1);
  return pair == "re" || pair == "ve" || pair == "ll" ? 3 : 0;
}

}  // namespace

Result<PretokenizerKind> parse_pretokenizer(std::string_view name) {
  if (name == "smollm") return PretokenizerKind::kSmollm;
  if (name == "gpt-2" || name == "default") return PretokenizerKind::kGpt2;
  return error(ErrorCode::kUnsupported,
               "pre-tokenizer '{}' is not supported; use a model whose tokenizer.ggml.pre is smollm or gpt-2",
               name);
}

bool WordSplitter::next(std::string_view* word) {
  if (position_ >= text_.size()) return false;
  const size_t end = end_of_word(position_);
  *word = text_.substr(position_, end - position_);
  position_ = end;
  return true;
}

size_t WordSplitter::end_of_word(size_t begin) const {
  if (const size_t length = contraction_length(text_, begin)) return begin + length;

  const bool digits_alone = kind_ == PretokenizerKind::kSmollm;
  const Char head = char_at(text_, begin);
  if (head.kind == CharClass::kNumber && digits_alone) return head.end;

  // " ?" of the pattern: one U+0020 may lead the run, but never a lone digit.
  Char run = head;
  if (head.kind == CharClass::kSpace) {
    if (text_[begin] != ' ' || head.end == text_.size()) return end_of_space(begin);
    run = char_at(text_, head.end);
    if (run.kind == CharClass::kSpace) return end_of_space(begin);
    if (run.kind == CharClass::kNumber && digits_alone) return head.end;
  }
  size_t end = run.end;
  while (end < text_.size()) {
    const Char c = char_at(text_, end);
    if (c.kind != run.kind) break;
    end = c.end;
  }
  return end;
}

// "\s+(?!\S)|\s+": all of the run if nothing follows it, otherwise all but its last character, which the next
// word may take as its leading space; a run of one goes alone.
size_t WordSplitter::end_of_space(size_t begin) const {
  size_t last = begin;
  size_t end = begin;
  CharClass after = CharClass::kSpace;
  while (end < text_.size()) {
    const Char c = char_at(text_, end);
    after = c.kind;
    if (after != CharClass::kSpace) break;
    last = end;
    end = c.end;
  }
  // An isolated digit ends its neighbour's text, so the run before it counts as the last of its text.
  const bool at_end =
      after == CharClass::kSpace || (after == CharClass::kNumber && kind_ == PretokenizerKind::kSmollm);
  return at_end || last == begin ? end : last;
}

}  // namespace kvasir
