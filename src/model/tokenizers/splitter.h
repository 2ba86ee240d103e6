// Cuts text into the words inside which byte pairs are merged.
//
// Every tokenizer has a regular expression, or several that are applied one after the other, each inside the
// pieces of the one before. Nearly all of them are made of the same parts, so they are parameters of two
// kinds of stage here: a general regular expression engine is slower and can be made to backtrack without
// end.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>
#include <vector>

namespace kvasir {

// Sets of characters that a stage can isolate. L, N, P, S and M are Unicode's general categories.
enum class CharSet : uint8_t {
  kLetter,          // \p{L}
  kNumber,          // \p{N}
  kAsciiDigit,      // [0-9]
  kPunctuation,     // \p{P}
  kAnyPunctuation,  // P and the symbols of ASCII, as Hugging Face's Punctuation has them
  kNoBacktick,      // the same without `: [\p{P}\$\+<=>\^~\|]
  kSpace,           // \s
  kLineEnd,         // [\r\n]
  kNewline,         // \n
  kHanKana,         // [一-龥぀-ゟ゠-ヿ]
  kHanHangul,       // [一-龥ࠀ-一가-퟿]
  kDeepseekLetter,  // the letters that DeepSeek LLM lists: those with case
  kDeepseekSymbol,  // [!-/:-~！-／：-～‘-‟　-。]
  kNoBloomBreak,    // [^(\s|.,!?…。，、।۔،)]
};

// Isolates runs of a set: [set]{min,max}, perhaps with one character of white space before it.
struct RunStage {
  enum class Lead : uint8_t { kNone, kSpace /* " ?" */, kWhite /* \s? */ };
  CharSet set = CharSet::kNumber;
  uint32_t min = 1;
  uint32_t max = UINT32_MAX;
  Lead lead = Lead::kNone;
  bool at_end = false;  // only the run that ends the piece

  bool operator==(const RunStage&) const = default;
};

// The family of GPT-2's pattern: alternatives in this order, contractions | letters | digits | others | white
// space.
struct WordStage {
  enum class Contractions : uint8_t {
    kNone,
    kLower,   // 's|'t|'re|'ve|'m|'ll|'d
    kAny,     // the same in either case
    kSuffix,  // in either case, at the end of letters
  };
  enum class Letters : uint8_t {
    kAfterSpace,  //  ?\p{L}+
    kAfterAny,    // [^\r\n\p{L}\p{N}]?\p{L}+
    kCased,       // [^\r\n\p{L}\p{N}]?U*W+ | [^\r\n\p{L}\p{N}]?U+W*, U={Lu,Lt,Lm,Lo,M}, W={Ll,Lm,Lo,M}
    kAfterMark,   // [ASCII punctuation][A-Za-z]+ | [^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+
  };
  enum class Tail : uint8_t { kNone, kLineEnds /* [\r\n]* */, kLineEndsSlash /* [\r\n/]* */ };

  Contractions contractions = Contractions::kLower;
  Letters letters = Letters::kAfterSpace;
  bool marks_join = false;       // \p{M} counts as a letter
  uint32_t digits = UINT32_MAX;  // \p{N}{1,digits}; 0: no such alternative
  bool digits_after_space = true;
  Tail tail = Tail::kNone;  // of the others
  bool line_ends = false;   // \s*[\r\n]+ goes before other white space

  bool operator==(const WordStage&) const = default;
};

using SplitStage = std::variant<RunStage, WordStage>;
// In order. Without any the text is one word.
using SplitRules = std::vector<SplitStage>;

// Yields the words of one text from left to right; together they are the text. O(stages × length).
// Not thread-safe; it owns neither the rules nor the text.
class WordSplitter {
 public:
  // REQUIRES: text is valid UTF-8; rules and text outlive the splitter.
  WordSplitter(const SplitRules& rules, std::string_view text);

  // False at the end of the text; otherwise *word is not empty.
  bool next(std::string_view* word);

 private:
  // What a stage has still to cut: bytes of the text.
  struct Rest {
    size_t at = 0;
    size_t end = 0;
  };

  const SplitRules& rules_;
  const std::string_view text_;
  std::vector<Rest> rests_;  // [stage]
};

}  // namespace kvasir
