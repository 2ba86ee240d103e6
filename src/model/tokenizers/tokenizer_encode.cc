// Text to tokens: special tokens first, then words, then the merging of pairs inside a word.
#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"
#include "model/tokenizers/tokenizer.h"
#include "model/tokenizers/unicode.h"
#include "model/tokenizers/utf8.h"

namespace kvasir {

// What a word needs while its pairs are merged; kept between words so that it is allocated once per text.
struct Tokenizer::Scratch {
  struct Symbol {
    int32_t token;  // -1: swallowed by the symbol before it
    int32_t previous;
    int32_t next;    // -1: the last one
    uint32_t begin;  // its place in the word
  };
  struct Candidate {
    int32_t rank;
    int32_t position;  // of the left symbol
    int32_t token;     // what the pair becomes
    // std::*_heap keeps the largest first: the best is the lowest rank, then the leftmost.
    bool operator<(const Candidate& other) const {
      return rank != other.rank ? rank > other.rank : position > other.position;
    }
  };
  std::vector<Symbol> symbols;
  std::vector<Candidate> heap;
};

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool parse_special) const {
  KV_CHECK(text.size() < size_t{1} << 30, "a text of {} bytes", text.size());
  std::string mended;
  if (!is_valid_utf8(text)) {
    mended = replace_invalid_utf8(text);
    text = mended;
  }
  const Interval all{0, static_cast<uint32_t>(text.size())};
  return encode_ranges(text, parse_special ? std::span(&all, 1) : std::span<const Interval>());
}

std::vector<int32_t> Tokenizer::encode(const MarkedText& text) const {
  if (!is_valid_utf8(text.text())) return encode(text.text(), /*parse_special=*/false);
  KV_CHECK(text.size() < size_t{1} << 30, "a text of {} bytes", text.size());
  if (mutant(Mutant::kTextMakesControl)) return encode(text.text(), /*parse_special=*/true);
  return encode_ranges(text.text(), text.trusted_ranges());
}

namespace {

// Without the white space at its beginning or at its end.
std::string_view trim_space(std::string_view text, bool at_begin) {
  while (!text.empty()) {
    size_t at = at_begin ? 0 : text.size() - 1;
    while (at > 0 && !at_begin && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80) --at;
    const Utf8Step step = decode_utf8(text, at);
    if (!is_white_space(step.code_point)) break;
    if (at_begin) {
      text.remove_prefix(step.length);
    } else {
      text.remove_suffix(step.length);
    }
  }
  return text;
}

}  // namespace

// `trusted`: where control and unknown tokens are looked for; ascending ranges of bytes that do not touch.
std::vector<int32_t> Tokenizer::encode_ranges(std::string_view text,
                                              std::span<const Interval> trusted) const {
  std::vector<int32_t> out;
  Scratch scratch;
  size_t plain_begin = 0;
  for (size_t i = 0; i < text.size();) {
    while (!trusted.empty() && trusted.front().end <= i) trusted = trusted.subspan(1);
    const bool here = !trusted.empty() && trusted.front().begin <= i;
    const SpecialMatch match = match_special(text, i, here ? trusted.front().end : i);
    if (match.token < 0) {
      ++i;
      continue;
    }
    size_t plain_end = i;
    i += match.length;
    const auto token = static_cast<size_t>(match.token);
    if (strips_left_[token])
      plain_end = plain_begin + trim_space(text.substr(plain_begin, plain_end - plain_begin), false).size();
    if (strips_right_[token]) i = text.size() - trim_space(text.substr(i), true).size();
    encode_plain(text.substr(plain_begin, plain_end - plain_begin), plain_begin == 0, &scratch, &out);
    out.push_back(match.token);
    plain_begin = i;
  }
  encode_plain(text.substr(plain_begin), plain_begin == 0, &scratch, &out);
  return out;
}

// The longest special token that begins at `position`: control and unknown ones, and those that end an output
// (which some files call user-defined), only if they end by `trusted_end`.
Tokenizer::SpecialMatch Tokenizer::match_special(std::string_view text, size_t position,
                                                 size_t trusted_end) const {
  SpecialMatch best;
  const auto first = static_cast<unsigned char>(text[position]);
  auto begin = literals_.begin() + literals_from_[first];
  auto end = literals_.begin() + literals_from_[size_t{first} + 1];
  // Those from begin to end start with the first `length` bytes of the text; the shortest comes first.
  for (size_t length = 1; begin != end; ++length) {
    const int32_t token = *begin;
    if (token_text(token).size() == length) {
      const bool plain = !is_special(token) && !is_end(token);
      if (position + length <= trusted_end || plain) best = {token, length};
      if (++begin == end) break;
    }
    if (position + length == text.size()) break;
    const auto byte = static_cast<unsigned char>(text[position + length]);
    const auto byte_of = [&](int32_t id) { return static_cast<unsigned char>(token_text(id)[length]); };
    begin = std::partition_point(begin, end, [&](int32_t id) { return byte_of(id) < byte; });
    end = std::partition_point(begin, end, [&](int32_t id) { return byte_of(id) == byte; });
  }
  return best;
}

// `first`: the text begins the whole.
void Tokenizer::encode_plain(std::string_view text, bool first, Scratch* scratch,
                             std::vector<int32_t>* out) const {
  if (text.empty()) return;
  std::string changed;
  if (nfc_ && compose_utf8(text, &changed)) text = changed;
  if (model_ != TokenizerModel::kByteBpe) text = changed = with_spaces(text, first);
  WordSplitter splitter(split_, text);
  std::string_view word;
  while (splitter.next(&word)) encode_word(word, scratch, out);
}

// Spaces become marks, and there is one more where the model wants it.
std::string Tokenizer::with_spaces(std::string_view text, bool first) const {
  constexpr std::string_view kMark = "\u2581";
  const bool begins = text.front() == ' ' || text.starts_with(kMark);
  const bool prefix = space_prefix_ == SpacePrefix::kAlways ||
                      (space_prefix_ == SpacePrefix::kUnlessThere && !begins) ||
                      (space_prefix_ == SpacePrefix::kFirst && first && !begins);
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  if (prefix) out.append(kMark);
  for (const char c : text) {
    if (c == ' ') {
      out.append(kMark);
    } else {
      out.push_back(c);
    }
  }
  return out;
}

void Tokenizer::encode_word(std::string_view word, Scratch* scratch, std::vector<int32_t>* out) const {
  if (ignore_merges_) {
    const auto whole = words_.find(word);
    if (whole != words_.end()) {
      out->push_back(whole->second);
      return;
    }
  }
  begin_symbols(word, scratch);
  if (scratch->symbols.empty()) return;
  scratch->symbols.back().next = -1;
  merge_symbols(scratch);
  emit(word, *scratch, out);
}

// A byte-level model begins with bytes, the others with characters.
void Tokenizer::begin_symbols(std::string_view word, Scratch* scratch) const {
  auto& symbols = scratch->symbols;
  symbols.clear();
  for (size_t i = 0; i < word.size();) {
    const bool bytes = model_ == TokenizerModel::kByteBpe;
    const size_t length = bytes ? 1 : decode_utf8(word, i).length;
    int32_t token =
        bytes ? byte_token_[static_cast<unsigned char>(word[i])] : find_text(word.substr(i, length));
    if (token < 0 && !bytes) {
      const auto inner = inner_characters_.find(std::string(word.substr(i, length)));
      // One past the others: it merges with nothing.
      token = inner != inner_characters_.end()
                  ? inner->second
                  : vocab_size() + static_cast<int32_t>(inner_characters_.size());
    }
    const auto here = static_cast<int32_t>(symbols.size());
    if (token >= 0) symbols.push_back({token, here - 1, here + 1, static_cast<uint32_t>(i)});
    i += length;
  }
}

void Tokenizer::merge_symbols(Scratch* scratch) const {
  auto& symbols = scratch->symbols;
  auto& heap = scratch->heap;
  heap.clear();
  auto candidate_at = [&](int32_t left) -> Scratch::Candidate {
    const Scratch::Symbol& a = symbols[static_cast<size_t>(left)];
    const MergeTable::Merge merge = merges_.find(a.token, symbols[static_cast<size_t>(a.next)].token);
    return {merge.rank, left, merge.token};
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) {
    const Scratch::Candidate candidate = candidate_at(static_cast<int32_t>(i));
    if (candidate.rank >= 0) heap.push_back(candidate);
  }
  std::make_heap(heap.begin(), heap.end());

  auto consider = [&](int32_t left) {
    const Scratch::Candidate candidate = candidate_at(left);
    if (candidate.rank < 0) return;
    heap.push_back(candidate);
    std::push_heap(heap.begin(), heap.end());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end());
    const Scratch::Candidate best = heap.back();
    heap.pop_back();
    Scratch::Symbol& left = symbols[static_cast<size_t>(best.position)];
    if (left.token < 0 || left.next < 0) continue;
    // A candidate is out of date when its pair has changed since. The original asks only whether the pair of
    // today makes the same token, so this does too.
    if (candidate_at(best.position).token != best.token) continue;

    Scratch::Symbol& right = symbols[static_cast<size_t>(left.next)];
    left.token = best.token;
    left.next = right.next;
    right.token = -1;
    if (left.next >= 0) {
      symbols[static_cast<size_t>(left.next)].previous = best.position;
      consider(best.position);
    }
    if (left.previous >= 0) consider(left.previous);
  }
}

void Tokenizer::emit(std::string_view word, const Scratch& scratch, std::vector<int32_t>* out) const {
  bool fuse = false;  // the last token is an unknown one that takes the next character in
  for (int32_t i = 0; i >= 0;) {
    const Scratch::Symbol& symbol = scratch.symbols[static_cast<size_t>(i)];
    if (symbol.token < vocab_size()) {
      out->push_back(symbol.token);
      fuse = false;
    } else {
      // What never merged is one character.
      emit_unknown(word.substr(symbol.begin, decode_utf8(word, symbol.begin).length), &fuse, out);
    }
    i = symbol.next;
  }
}

void Tokenizer::emit_unknown(std::string_view character, bool* fuse, std::vector<int32_t>* out) const {
  const auto has_token = [this](char c) { return byte_token_[static_cast<unsigned char>(c)] >= 0; };
  if (std::all_of(character.begin(), character.end(), has_token)) {
    for (const char c : character) out->push_back(byte_token_[static_cast<unsigned char>(c)]);
    *fuse = false;
  } else if (unk_ && !*fuse) {
    out->push_back(*unk_);
    *fuse = fuse_unknown_;
  }
}

}  // namespace kvasir
