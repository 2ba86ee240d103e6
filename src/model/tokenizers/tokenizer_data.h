// A tokenizer as the files of a model describe it, before anything is checked. read_tokenizer_data() makes it
// from a GGUF file, read_tokenizer_json() from the files of Hugging Face; Tokenizer::create() checks it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/tokenizers/split_patterns.h"
#include "model/tokenizers/splitter.h"

namespace kvasir {

// The values of tokenizer.ggml.token_type.
enum class TokenType : int32_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

enum class TokenizerModel : uint8_t {
  kByteBpe,  // pairs of bytes, spelled in the printable alphabet of GPT-2, are merged by rank
  kTextBpe,  // pairs of characters are merged by rank; U+2581 stands for a space
  kPieces,   // SentencePiece: the pair whose union has the best score is merged; U+2581 stands for a space
};

// Where text gets a space before it, in models in which U+2581 stands for one.
enum class SpacePrefix : uint8_t {
  kNone,
  kAlways,       // before each stretch of text between special tokens
  kUnlessThere,  // the same, unless it begins with a space
  kFirst,        // before the text, unless it begins with a space or a special token
};

struct TokenizerData {
  TokenizerModel model = TokenizerModel::kByteBpe;
  SplitRules split = gpt2_split();
  bool ignore_merges = false;  // a word that is in the vocabulary is that token
  bool nfc = false;            // text between special tokens is brought into Unicode's normal form C
  SpacePrefix space_prefix = SpacePrefix::kNone;
  bool fuse_unknown = true;  // characters without a token that are neighbours become one unknown token

  std::vector<std::string> tokens;   // [vocab]
  std::vector<int32_t> token_types;  // [vocab] or empty: all normal
  std::vector<float> scores;         // [vocab], of kPieces only
  std::vector<std::string> merges;   // "left right", best first; not of kPieces
  // Tokens that take the white space before or after them along.
  std::vector<int32_t> strips_left;
  std::vector<int32_t> strips_right;

  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::optional<int32_t> eot;      // ends a turn, where that is not eos
  std::vector<int32_t> more_ends;  // further tokens that end an output
  std::optional<int32_t> unk;
  std::optional<int32_t> pad;
  bool add_bos = false;
  std::optional<int32_t> closing;  // ends a text of which an embedding is wanted
  std::optional<std::string> chat_template;
};

// Gives the vocabulary as many entries as the embedding has rows, as files of Hugging Face may have more or
// fewer: tokens without a row go, with what refers to them, and rows without a token get unused ones.
// kCorrupt: so many rows are without a token (more than 65,536), or there is none, that the two do not belong
// together.
Status fit_vocabulary(TokenizerData* data, size_t rows);

}  // namespace kvasir
