// The character classes come from ICU. A stage only ever looks to the end of its piece.
#include "model/tokenizers/splitter.h"

#include <unicode/uchar.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>

#include "model/tokenizers/utf8.h"

namespace kvasir {

namespace {

// ICU's masks of general categories, and a bit above them for white space.
using CharMask = uint32_t;
constexpr CharMask kWhite = CharMask{1} << 31;
constexpr CharMask kUpperMask = U_GC_LU_MASK | U_GC_LT_MASK | U_GC_LM_MASK | U_GC_LO_MASK | U_GC_M_MASK;
constexpr CharMask kLowerMask = U_GC_LL_MASK | U_GC_LM_MASK | U_GC_LO_MASK | U_GC_M_MASK;

CharMask look_up(char32_t c) {
  const auto code = static_cast<UChar32>(c);
  return U_GET_GC_MASK(code) | (u_isUWhiteSpace(code) ? kWhite : 0);
}

CharMask mask_of(char32_t c) {
  static const std::array<CharMask, 128> ascii = [] {
    std::array<CharMask, 128> masks{};
    for (char32_t i = 0; i < 128; ++i) masks[i] = look_up(i);
    return masks;
  }();
  return c < 128 ? ascii[c] : look_up(c);
}

struct Range {
  char32_t first;
  char32_t last;
};
constexpr Range kDeepseekLetters[] = {
    {0x41, 0x5A},       {0x61, 0x7A},       {0xB5, 0xB5},       {0xC0, 0xD6},       {0xD8, 0xF6},
    {0xF8, 0x1BA},      {0x1BC, 0x1BF},     {0x1C4, 0x293},     {0x295, 0x2AF},     {0x370, 0x373},
    {0x376, 0x377},     {0x37B, 0x37D},     {0x37F, 0x37F},     {0x386, 0x386},     {0x388, 0x38A},
    {0x38C, 0x38C},     {0x38E, 0x3A1},     {0x3A3, 0x3F5},     {0x3F7, 0x481},     {0x48A, 0x52F},
    {0x531, 0x556},     {0x10A0, 0x10C5},   {0x13A0, 0x13F5},   {0x13F8, 0x13FD},   {0x1C90, 0x1CBA},
    {0x1CBD, 0x1CBF},   {0x1D00, 0x1D2B},   {0x1D6B, 0x1D77},   {0x1D79, 0x1D9A},   {0x1E00, 0x1F15},
    {0x1F18, 0x1F1D},   {0x1F20, 0x1F45},   {0x1F48, 0x1F4D},   {0x1F50, 0x1F57},   {0x1F59, 0x1F59},
    {0x1F5B, 0x1F5B},   {0x1F5D, 0x1F5D},   {0x1F5F, 0x1F7D},   {0x1F80, 0x1FB4},   {0x1FB6, 0x1FBC},
    {0x1FBE, 0x1FBE},   {0x1FC2, 0x1FC4},   {0x1FC6, 0x1FCC},   {0x1FD0, 0x1FD3},   {0x1FD6, 0x1FDB},
    {0x1FE0, 0x1FEC},   {0x1FF2, 0x1FF4},   {0x1FF6, 0x1FFC},   {0x2102, 0x2102},   {0x2107, 0x2107},
    {0x210A, 0x2113},   {0x2115, 0x2115},   {0x2119, 0x211D},   {0x2124, 0x2124},   {0x2126, 0x2126},
    {0x2128, 0x2128},   {0x212A, 0x212D},   {0x212F, 0x2134},   {0x2139, 0x2139},   {0x213C, 0x213F},
    {0x2145, 0x2149},   {0x214E, 0x214E},   {0x2183, 0x2184},   {0x2C00, 0x2C7B},   {0x2C7E, 0x2CE4},
    {0x2CEB, 0x2CEE},   {0x2CF2, 0x2CF3},   {0xA640, 0xA66D},   {0xA680, 0xA69B},   {0xA722, 0xA76F},
    {0xA771, 0xA787},   {0xA78B, 0xA78E},   {0xAB70, 0xABBF},   {0xFB00, 0xFB06},   {0xFB13, 0xFB17},
    {0xFF21, 0xFF3A},   {0xFF41, 0xFF5A},   {0x10400, 0x1044F}, {0x104B0, 0x104D3}, {0x104D8, 0x104FB},
    {0x10C80, 0x10CB2}, {0x10CC0, 0x10CF2}, {0x118A0, 0x118DF}, {0x1E900, 0x1E943}};
constexpr Range kDeepseekSymbols[] = {{'!', '/'},       {':', '~'},       {0xFF01, 0xFF0F},
                                      {0xFF1A, 0xFF5E}, {0x2018, 0x201F}, {0x3000, 0x3002}};
constexpr std::u32string_view kBloomBreaks = U"(|.,!?…。，、।۔،)";

template <size_t kCount>
bool in_ranges(const Range (&ranges)[kCount], char32_t c) {
  return std::any_of(std::begin(ranges), std::end(ranges),
                     [c](const Range& r) { return c >= r.first && c <= r.last; });
}

bool is_ascii_punctuation(char32_t c) {
  return c < 128 && (mask_of(c) & (U_GC_P_MASK | U_GC_S_MASK)) != 0;
}

bool is_ascii_letter(char32_t c) {
  return c < 128 && (mask_of(c) & U_GC_L_MASK) != 0;
}

bool is_line_end(char32_t c) {
  return c == '\r' || c == '\n';
}

bool is_in(CharSet set, char32_t c) {
  switch (set) {
    case CharSet::kLetter:
      return (mask_of(c) & U_GC_L_MASK) != 0;
    case CharSet::kNumber:
      return (mask_of(c) & U_GC_N_MASK) != 0;
    case CharSet::kAsciiDigit:
      return c >= '0' && c <= '9';
    case CharSet::kPunctuation:
      return (mask_of(c) & U_GC_P_MASK) != 0;
    case CharSet::kAnyPunctuation:
      return (mask_of(c) & U_GC_P_MASK) != 0 || is_ascii_punctuation(c);
    case CharSet::kNoBacktick:
      return c != '`' && ((mask_of(c) & U_GC_P_MASK) != 0 || is_ascii_punctuation(c));
    case CharSet::kSpace:
      return (mask_of(c) & kWhite) != 0;
    case CharSet::kLineEnd:
      return is_line_end(c);
    case CharSet::kNewline:
      return c == '\n';
    case CharSet::kHanKana:
      return (c >= 0x4E00 && c <= 0x9FA5) || (c >= 0x3040 && c <= 0x30FF);
    case CharSet::kHanHangul:
      return (c >= 0x0800 && c <= 0x9FA5) || (c >= 0xAC00 && c <= 0xD7FF);
    case CharSet::kDeepseekLetter:
      return in_ranges(kDeepseekLetters, c);
    case CharSet::kDeepseekSymbol:
      return in_ranges(kDeepseekSymbols, c);
    case CharSet::kNoBloomBreak:
      return (mask_of(c) & kWhite) == 0 && kBloomBreaks.find(c) == std::u32string_view::npos;
  }
  return false;
}

// One piece of text. Positions are bytes from its beginning; match() gives where the match that begins at a
// position ends, or the position itself if there is none.
class Piece {
 public:
  explicit Piece(std::string_view text) : text_(text) {}

  // Where the part that begins at `begin` ends: a match, or what lies before the next match.
  template <typename Stage>
  size_t part_end(const Stage& stage, size_t begin) const {
    size_t end = match(stage, begin);
    if (end > begin) return end;
    end = begin + char_at(begin).length;
    while (end < text_.size() && match(stage, end) == end) end += char_at(end).length;
    return end;
  }

  size_t part_end(const RunStage& stage, size_t begin) const {
    if (stage.at_end) return trailing_run(stage.set, begin);
    return part_end<RunStage>(stage, begin);
  }

 private:
  struct Char {
    char32_t code = 0;
    CharMask mask = 0;
    size_t length = 0;  // 0: there is no more
    bool is(CharMask of) const { return (mask & of) != 0; }
  };

  Char char_at(size_t at) const {
    if (at >= text_.size()) return {};
    const Utf8Step step = decode_utf8(text_, at);
    return {step.code_point, mask_of(step.code_point), step.length};
  }

  // The end of the longest run of characters for which `fits`, at most `most` of them.
  template <typename Fits>
  size_t run_end(size_t at, const Fits& fits, uint32_t most = UINT32_MAX) const {
    for (uint32_t n = 0; n < most; ++n) {
      const Char c = char_at(at);
      if (c.length == 0 || !fits(c)) break;
      at += c.length;
    }
    return at;
  }
  size_t mask_run(size_t at, CharMask mask) const {
    return run_end(at, [mask](const Char& c) { return c.is(mask); });
  }

  size_t match(const RunStage& stage, size_t at) const;
  size_t match(const WordStage& stage, size_t at) const;
  size_t contraction(size_t at, bool any_case) const;
  size_t letters(const WordStage& stage, size_t at) const;
  size_t cased_letters(const WordStage& stage, size_t at) const;
  std::optional<size_t> cased_run(size_t at) const;
  size_t others(const WordStage& stage, size_t at) const;
  size_t white(const WordStage& stage, size_t at) const;
  size_t trailing_run(CharSet set, size_t begin) const;

  std::string_view text_;
};

size_t Piece::match(const RunStage& stage, size_t at) const {
  const auto fits = [&](const Char& c) { return is_in(stage.set, c.code); };
  size_t begin = at;
  const Char first = char_at(at);
  const bool may_lead = (stage.lead == RunStage::Lead::kSpace && first.code == ' ') ||
                        (stage.lead == RunStage::Lead::kWhite && first.is(kWhite));
  if (may_lead) {
    const Char second = char_at(at + first.length);
    if (second.length > 0 && fits(second)) begin += first.length;
  }
  const size_t end = run_end(begin, fits, stage.max);
  if (stage.min > 1 && run_end(begin, fits, stage.min - 1) == end) return at;
  return end == begin ? at : end;
}

// Where the run of `set` that ends the piece begins, or the piece's end if `begin` is in it or there is none.
size_t Piece::trailing_run(CharSet set, size_t begin) const {
  size_t run = text_.size();
  while (run > begin) {
    size_t last = run - 1;
    while (last > begin && (static_cast<unsigned char>(text_[last]) & 0xC0) == 0x80) --last;
    if (!is_in(set, char_at(last).code)) break;
    run = last;
  }
  return run == begin ? text_.size() : run;
}

size_t Piece::match(const WordStage& stage, size_t at) const {
  const bool any_case = stage.contractions == WordStage::Contractions::kAny;
  if (any_case || stage.contractions == WordStage::Contractions::kLower) {
    const size_t end = contraction(at, any_case);
    if (end > at) return end;
  }
  if (const size_t end = letters(stage, at); end > at) return end;
  if (stage.digits > 0) {
    const size_t begin = at + (stage.digits_after_space && text_[at] == ' ' ? 1 : 0);
    const auto is_number = [](const Char& c) { return c.is(U_GC_N_MASK); };
    if (const size_t end = run_end(begin, is_number, stage.digits); end > begin) return end;
  }
  if (const size_t end = others(stage, at); end > at) return end;
  return white(stage, at);
}

size_t Piece::contraction(size_t at, bool any_case) const {
  if (text_[at] != '\'') return at;
  const auto letter_at = [&](size_t position, size_t* length) -> char32_t {
    const Char c = char_at(position);
    *length = c.length;
    if (any_case && c.code >= 'A' && c.code <= 'Z') return c.code + ('a' - 'A');
    // The long s folds to s.
    return any_case && c.code == 0x17F ? 's' : c.code;
  };
  size_t length = 0;
  size_t second_length = 0;
  const char32_t first = letter_at(at + 1, &length);
  if (length == 0) return at;
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return at + 1 + length;
  const char32_t second = letter_at(at + 1 + length, &second_length);
  const bool pair =
      (first == 'r' && second == 'e') || (first == 'v' && second == 'e') || (first == 'l' && second == 'l');
  return pair ? at + 1 + length + second_length : at;
}

size_t Piece::letters(const WordStage& stage, size_t at) const {
  if (stage.letters == WordStage::Letters::kCased) return cased_letters(stage, at);
  CharMask letter = U_GC_L_MASK | (stage.marks_join ? CharMask{U_GC_M_MASK} : 0);
  const Char first = char_at(at);
  const Char second = char_at(at + first.length);
  bool leads = false;
  switch (stage.letters) {
    case WordStage::Letters::kAfterSpace:
      leads = first.code == ' ';
      break;
    case WordStage::Letters::kAfterAny:
    case WordStage::Letters::kCased:
      leads = !is_line_end(first.code) && !first.is(U_GC_L_MASK | U_GC_N_MASK);
      break;
    case WordStage::Letters::kAfterMark:
      if (is_ascii_punctuation(first.code) && is_ascii_letter(second.code)) {
        return run_end(at + first.length, [](const Char& c) { return is_ascii_letter(c.code); });
      }
      letter = U_GC_L_MASK | U_GC_M_MASK;
      leads = !is_line_end(first.code) && !first.is(U_GC_L_MASK | U_GC_P_MASK | U_GC_S_MASK);
      break;
  }
  if (leads && second.is(letter)) return mask_run(at + first.length, letter);
  return mask_run(at, letter);
}

// U*W+ at `at`, as a regular expression engine finds it.
std::optional<size_t> Piece::cased_run(size_t at) const {
  const size_t upper_end = mask_run(at, kUpperMask);
  const size_t end = mask_run(upper_end, kLowerMask);
  if (end > upper_end) return end;
  // U* gives characters back, from its end, until one of them can begin W+.
  size_t last_both = upper_end;
  for (size_t i = at; i < upper_end;) {
    const Char c = char_at(i);
    if (c.is(kLowerMask)) last_both = i;
    i += c.length;
  }
  if (last_both == upper_end) return std::nullopt;
  return last_both + char_at(last_both).length;
}

size_t Piece::cased_letters(const WordStage& stage, size_t at) const {
  const Char first = char_at(at);
  const bool leads = !is_line_end(first.code) && !first.is(U_GC_L_MASK | U_GC_N_MASK);
  const size_t after = at + first.length;
  std::optional<size_t> end;
  if (leads) end = cased_run(after);
  if (!end) end = cased_run(at);
  if (!end) {
    // Nothing of lower case: U+ with the character before it, or without.
    const size_t begin = leads && char_at(after).is(kUpperMask) ? after : at;
    const size_t upper_end = mask_run(begin, kUpperMask);
    if (upper_end == begin) return at;
    end = upper_end;
  }
  if (stage.contractions != WordStage::Contractions::kSuffix || *end >= text_.size()) return *end;
  return contraction(*end, true);
}

size_t Piece::others(const WordStage& stage, size_t at) const {
  const bool listed = stage.letters == WordStage::Letters::kAfterMark;
  const CharMask no = kWhite | U_GC_L_MASK | U_GC_N_MASK | (stage.marks_join ? CharMask{U_GC_M_MASK} : 0);
  const size_t begin = at + (text_[at] == ' ' ? 1 : 0);
  const size_t end =
      run_end(begin, [&](const Char& c) { return listed ? c.is(U_GC_P_MASK | U_GC_S_MASK) : !c.is(no); });
  if (end == begin) return at;
  if (stage.tail == WordStage::Tail::kNone) return end;
  const bool slash = stage.tail == WordStage::Tail::kLineEndsSlash;
  return run_end(end, [slash](const Char& c) { return is_line_end(c.code) || (slash && c.code == '/'); });
}

// \s*[\r\n]+ | \s+(?!\S) | \s+: to the last line end; else all of the run if nothing follows it, otherwise
// all but its last character, which the next word may take as its leading space; a run of one goes alone.
size_t Piece::white(const WordStage& stage, size_t at) const {
  size_t last = at;
  size_t after_line_end = at;
  size_t end = at;
  while (true) {
    const Char c = char_at(end);
    if (!c.is(kWhite)) break;
    last = end;
    end += c.length;
    if (is_line_end(c.code)) after_line_end = end;
  }
  if (stage.line_ends && after_line_end > at) return after_line_end;
  return end == text_.size() || last == at ? end : last;
}

}  // namespace

WordSplitter::WordSplitter(const SplitRules& rules, std::string_view text)
    : rules_(rules), text_(text), rests_(std::max<size_t>(rules.size(), 1)) {
  rests_[0] = {0, text.size()};
}

bool WordSplitter::next(std::string_view* word) {
  size_t stage = rests_.size();
  while (stage > 0 && rests_[stage - 1].at == rests_[stage - 1].end) --stage;
  if (stage == 0) return false;
  for (--stage;; ++stage) {
    Rest& rest = rests_[stage];
    const size_t begin = rest.at;
    rest.at = rest.end;
    if (stage < rules_.size()) {
      const Piece piece(text_.substr(begin, rest.end - begin));
      rest.at = begin + std::visit([&](const auto& s) { return piece.part_end(s, 0); }, rules_[stage]);
    }
    if (stage + 1 >= rests_.size()) {
      *word = text_.substr(begin, rest.at - begin);
      return true;
    }
    rests_[stage + 1] = {begin, rest.at};
  }
}

}  // namespace kvasir
