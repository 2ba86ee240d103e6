// Byte pair encoding, as Hugging Face's tokenizers runs it, and SentencePiece's, as llama.cpp does.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "model/tokenizers/marked_text.h"
#include "model/tokenizers/splitter.h"
#include "model/tokenizers/tokenizer_data.h"

namespace kvasir {

// Immutable after create(), and so thread-safe.
class Tokenizer {
 public:
  // kCorrupt: sizes, ids, scores or merges that contradict each other.
  static Result<Tokenizer> create(TokenizerData data);

  Tokenizer(Tokenizer&&) = default;
  Tokenizer& operator=(Tokenizer&&) = default;
  Tokenizer(const Tokenizer&) = delete;  // token_ids_ looks into tokens_
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Never adds a beginning-of-sequence token: see add_bos(). With `parse_special`, the text of control and
  // unknown tokens becomes these tokens; without it they are ordinary text. User-defined tokens are always
  // found. Ill-formed UTF-8 counts as U+FFFD. Of byte-level models, a byte that the vocabulary has no token
  // for is dropped and its neighbours become adjacent, as in the original; of others, a character without a
  // token becomes the tokens of its bytes, or else the unknown token. O(n log n) in the longest word.
  // REQUIRES: text.size() < 2^30.
  std::vector<int32_t> encode(std::string_view text, bool parse_special) const;
  // A rendered chat template: control and unknown tokens are found where all their text is trusted, and
  // nowhere else. Marks change nothing but that: text without such tokens gives the same ids whatever is
  // trusted in it. In ill-formed UTF-8 nothing is trusted.
  std::vector<int32_t> encode(const MarkedText& text) const;

  // The bytes that a token stands for; valid as long as the tokenizer. They need not be whole characters.
  // Where U+2581 stands for a space, a token that begins a word begins with one here. kInvalidArgument: an id
  // outside the vocabulary.
  Result<std::string_view> token_bytes(int32_t id) const;

  // The text of `ids`, ill-formed bytes replaced by U+FFFD. kInvalidArgument: an id outside the vocabulary.
  Result<std::string> decode(std::span<const int32_t> ids, bool skip_special) const;

  // Control and unknown tokens: what a reader does not want to see. False for ids outside the vocabulary.
  bool is_special(int32_t id) const;
  // The tokens that end an output: eos, eot and others, each once.
  std::span<const int32_t> ends() const { return ends_; }
  bool is_end(int32_t id) const;

  int32_t vocab_size() const { return static_cast<int32_t>(tokens_.size()); }
  std::optional<int32_t> bos() const { return bos_; }
  std::optional<int32_t> eos() const { return eos_; }
  std::optional<int32_t> eot() const { return eot_; }
  std::optional<int32_t> unk() const { return unk_; }
  std::optional<int32_t> pad() const { return pad_; }
  // Where encode() puts a space that decode() gives back.
  SpacePrefix space_prefix() const { return space_prefix_; }
  // Whether the tokens of a text stand for no fewer bytes than it has (but for bytes of byte-level models
  // that have no token).
  bool keeps_length() const;
  // Whether the model wants bos() before a plain prompt. A chat template writes its own.
  bool add_bos() const { return add_bos_; }
  // The token with which the model wants a text to end of which an embedding is made.
  std::optional<int32_t> closing() const { return closing_; }
  const std::optional<std::string>& chat_template() const { return chat_template_; }

  // The token as the vocabulary spells it. REQUIRES: 0 <= id < vocab_size()
  const std::string& token_text(int32_t id) const { return tokens_[static_cast<size_t>(id)]; }
  std::optional<int32_t> find_token(std::string_view text) const;

 private:
  // (left, right) -> the merged token, and how early the pair is merged. Open addressing.
  class MergeTable {
   public:
    struct Merge {
      int32_t rank = -1;  // -1: this pair does not merge
      int32_t token = -1;
    };
    void reserve(size_t merges);
    void insert(int32_t left, int32_t right, Merge merge);
    Merge find(int32_t left, int32_t right) const;

   private:
    struct Slot {
      uint64_t key = ~uint64_t{0};
      Merge merge;
    };
    size_t slot_of(uint64_t key) const;
    std::vector<Slot> slots_;
  };

  struct Scratch;
  struct SpecialMatch {
    int32_t token = -1;
    size_t length = 0;
  };

  Tokenizer() = default;
  Status load_tokens(TokenizerData* data);
  Status load_bytes();
  Status load_merges(const std::vector<std::string>& merges);
  Status load_scores(const std::vector<float>& scores);
  Status load_ids(const TokenizerData& data);
  void load_words();
  void sort_literals();
  bool is_text(int32_t id) const;
  int32_t find_text(std::string_view text) const;
  std::vector<int32_t> encode_ranges(std::string_view text, std::span<const Interval> trusted) const;
  SpecialMatch match_special(std::string_view text, size_t position, size_t trusted_end) const;
  void encode_plain(std::string_view text, bool first, Scratch* scratch, std::vector<int32_t>* out) const;
  std::string with_spaces(std::string_view text, bool first) const;
  void encode_word(std::string_view word, Scratch* scratch, std::vector<int32_t>* out) const;
  void begin_symbols(std::string_view word, Scratch* scratch) const;
  void merge_symbols(Scratch* scratch) const;
  void emit(std::string_view word, const Scratch& scratch, std::vector<int32_t>* out) const;
  void emit_unknown(std::string_view character, bool* fuse, std::vector<int32_t>* out) const;

  TokenizerModel model_ = TokenizerModel::kByteBpe;
  SplitRules split_;
  bool ignore_merges_ = false;
  bool nfc_ = false;
  bool fuse_unknown_ = true;
  SpacePrefix space_prefix_ = SpacePrefix::kNone;
  std::vector<std::string> tokens_;
  std::vector<TokenType> types_;
  std::unordered_map<std::string_view, int32_t> token_ids_;
  std::string bytes_;                    // the bytes of all tokens, one after the other
  std::vector<uint32_t> byte_begin_;     // [vocab + 1]: where a token's bytes begin in bytes_
  std::array<int32_t, 256> byte_token_;  // the token of a single byte, or -1
  // Of kPieces: characters of pieces that are no tokens themselves, as ids from vocab_size() on.
  std::unordered_map<std::string, int32_t> inner_characters_;
  std::unordered_map<std::string_view, int32_t> words_;  // bytes to token; empty unless ignore_merges_
  MergeTable merges_;
  // The tokens that are found in text as they are, by their texts, and where those that begin with a byte
  // begin.
  std::vector<int32_t> literals_;
  std::array<uint32_t, 257> literals_from_{};
  std::vector<bool> strips_left_, strips_right_;  // [vocab]
  std::vector<int32_t> ends_;
  std::optional<int32_t> bos_, eos_, eot_, unk_, pad_;
  bool add_bos_ = false;
  std::optional<int32_t> closing_;
  std::optional<std::string> chat_template_;
};

}  // namespace kvasir
