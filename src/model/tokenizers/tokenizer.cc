// Construction of the tables, and decoding. The merging of pairs is in tokenizer_encode.cc.
#include "model/tokenizers/tokenizer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <functional>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "model/files/gguf.h"
#include "model/tokenizers/utf8.h"

namespace kvasir {

namespace {

// GPT-2 spells bytes as printable characters: those that print well in Latin-1 as themselves, the other 68
// as U+0100 upwards, in order.
bool prints_as_itself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || byte >= 0xAE;
}

struct ByteAlphabet {
  std::array<char32_t, 256> of_byte{};
  std::unordered_map<char32_t, unsigned char> to_byte;
};

ByteAlphabet make_byte_alphabet() {
  ByteAlphabet alphabet;
  char32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const char32_t c = prints_as_itself(byte) ? static_cast<char32_t>(byte) : next++;
    alphabet.of_byte[static_cast<size_t>(byte)] = c;
    alphabet.to_byte[c] = static_cast<unsigned char>(byte);
  }
  return alphabet;
}

// False if the token is not spelled in the alphabet: its bytes are then its text.
bool append_spelled_bytes(const ByteAlphabet& alphabet, std::string_view token, std::string* out) {
  const size_t before = out->size();
  for (size_t i = 0; i < token.size();) {
    const Utf8Step step = decode_utf8(token, i);
    const auto byte = alphabet.to_byte.find(step.code_point);
    if (step.state != Utf8State::kComplete || byte == alphabet.to_byte.end()) {
      out->resize(before);
      return false;
    }
    out->push_back(static_cast<char>(byte->second));
    i += step.length;
  }
  return true;
}

bool is_literal(TokenType type) {
  return type == TokenType::kControl || type == TokenType::kUnknown || type == TokenType::kUserDefined;
}

// How SentencePiece spells a space, and a byte that no piece covers.
constexpr std::string_view kSpaceMark = "\u2581";

std::optional<unsigned char> parse_byte_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned int value = 0;
  const auto parsed = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
  if (parsed.ec != std::errc() || parsed.ptr != token.data() + 5) return std::nullopt;
  return static_cast<unsigned char>(value);
}

void append_unmarked(std::string_view token, std::string* out) {
  for (size_t i = 0; i < token.size();) {
    const bool space = token.substr(i).starts_with(kSpaceMark);
    out->push_back(space ? ' ' : token[i]);
    i += space ? kSpaceMark.size() : 1;
  }
}

}  // namespace

Result<Tokenizer> Tokenizer::create(TokenizerData data) {
  Tokenizer tokenizer;
  tokenizer.model_ = data.model;
  tokenizer.split_ = std::move(data.split);
  tokenizer.nfc_ = data.nfc;
  tokenizer.fuse_unknown_ = data.fuse_unknown;
  tokenizer.space_prefix_ = data.space_prefix;
  tokenizer.ignore_merges_ = data.ignore_merges;
  KV_RETURN_IF_ERROR(tokenizer.load_tokens(&data));
  KV_RETURN_IF_ERROR(tokenizer.load_bytes());
  KV_RETURN_IF_ERROR(data.model == TokenizerModel::kPieces ? tokenizer.load_scores(data.scores)
                                                           : tokenizer.load_merges(data.merges));
  if (data.ignore_merges) tokenizer.load_words();
  KV_RETURN_IF_ERROR(tokenizer.load_ids(data));
  tokenizer.chat_template_ = std::move(data.chat_template);
  return tokenizer;
}

Status Tokenizer::load_tokens(TokenizerData* data) {
  const size_t vocab = data->tokens.size();
  if (vocab == 0 || vocab > size_t{1} << 30) {
    return error(ErrorCode::kCorrupt, "the vocabulary has {} entries; the model's files are damaged", vocab);
  }
  if (!data->token_types.empty() && data->token_types.size() != vocab) {
    return error(ErrorCode::kCorrupt,
                 "the types of tokens have {} entries for {} tokens; the model's files are damaged",
                 data->token_types.size(), vocab);
  }
  tokens_ = std::move(data->tokens);
  types_.assign(vocab, TokenType::kNormal);
  for (size_t i = 0; i < data->token_types.size(); ++i) {
    const int32_t type = data->token_types[i];
    if (type < 1 || type > 6) {
      return error(ErrorCode::kCorrupt, "token {} has the unknown type {}; the model's files are damaged", i,
                   type);
    }
    types_[i] = static_cast<TokenType>(type);
  }
  token_ids_.reserve(vocab);
  for (size_t i = 0; i < vocab; ++i) token_ids_.emplace(tokens_[i], static_cast<int32_t>(i));
  return Status();
}

// What each token stands for, and the tokens that are found in text as they are.
Status Tokenizer::load_bytes() {
  const ByteAlphabet alphabet = make_byte_alphabet();
  byte_begin_.reserve(tokens_.size() + 1);
  byte_token_.fill(-1);
  for (size_t i = 0; i < tokens_.size(); ++i) {
    const std::string& token = tokens_[i];
    const auto id = static_cast<int32_t>(i);
    if (bytes_.size() + token.size() > UINT32_MAX) {
      return error(ErrorCode::kCorrupt, "the tokens are longer than 4 GiB; the model's files are damaged");
    }
    byte_begin_.push_back(static_cast<uint32_t>(bytes_.size()));
    if (is_literal(types_[i]) && !token.empty()) literals_.push_back(id);
    if (model_ == TokenizerModel::kByteBpe) {
      if (is_literal(types_[i]) || !append_spelled_bytes(alphabet, token, &bytes_)) bytes_.append(token);
    } else if (types_[i] == TokenType::kByte) {
      const auto byte = parse_byte_token(token);
      if (!byte) {
        return error(ErrorCode::kCorrupt, "token {} ({}) is said to be a byte and is none", i,
                     gguf_quoted(token));
      }
      bytes_.push_back(static_cast<char>(*byte));
      byte_token_[*byte] = id;
    } else if (types_[i] == TokenType::kControl) {
      bytes_.append(token);
    } else {
      append_unmarked(token, &bytes_);
    }
  }
  byte_begin_.push_back(static_cast<uint32_t>(bytes_.size()));
  sort_literals();
  if (model_ != TokenizerModel::kByteBpe) return Status();
  for (size_t byte = 0; byte < 256; ++byte) {
    std::string spelled;
    append_utf8(alphabet.of_byte[byte], &spelled);
    byte_token_[byte] = find_token(spelled).value_or(-1);
  }
  return Status();
}

Status Tokenizer::load_merges(const std::vector<std::string>& merges) {
  merges_.reserve(merges.size());
  std::string merged;
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string_view line = merges[rank];
    bool known = false;
    size_t space = line.find(' ', 1);
    if (space == std::string_view::npos) {
      return error(ErrorCode::kCorrupt, "merge {} ({}) is not two tokens; the model's files are damaged",
                   rank, gguf_quoted(line));
    }
    // A token of text can have a space within, but not so many that a hostile file could ask for any time.
    constexpr int kMostSpaces = 64;
    int tries = 0;
    for (; !known && space != std::string_view::npos && tries < kMostSpaces; ++tries) {
      const auto left = find_token(line.substr(0, space));
      const auto right = find_token(line.substr(space + 1));
      merged.assign(line.substr(0, space)).append(line.substr(space + 1));
      const auto whole = find_token(merged);
      known = left && right && whole;
      if (known) merges_.insert(*left, *right, {static_cast<int32_t>(rank), *whole});
      space = line.find(' ', space + 1);
    }
    if (!known) {
      return error(ErrorCode::kCorrupt, "merge {} ({}) names a token that is not in the vocabulary", rank,
                   gguf_quoted(line));
    }
  }
  return Status();
}

// A pair merges if its union is a piece, and the rank of the merge is that of the piece's score. So every way
// to cut a piece in two becomes an entry of the table, and pieces need no search of their own.
Status Tokenizer::load_scores(const std::vector<float>& scores) {
  if (scores.size() != tokens_.size()) {
    return error(ErrorCode::kCorrupt, "there are {} scores for {} tokens; the model's files are damaged",
                 scores.size(), tokens_.size());
  }
  std::vector<float> ranks;
  size_t characters = 0;
  for (size_t i = 0; i < scores.size(); ++i) {
    if (!std::isfinite(scores[i])) {
      return error(ErrorCode::kCorrupt, "token {} has a score that is no number", i);
    }
    ranks.push_back(scores[i]);
    characters += std::min<size_t>(tokens_[i].size(), 64);
  }
  std::sort(ranks.begin(), ranks.end(), std::greater<>());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  const auto part = [&](std::string_view text, bool one_character) -> int32_t {
    if (const int32_t id = find_text(text); id >= 0 || !one_character) return id;
    const auto fresh = static_cast<int32_t>(tokens_.size() + inner_characters_.size());
    return inner_characters_.emplace(text, fresh).first->second;
  };
  std::vector<std::tuple<int32_t, int32_t, MergeTable::Merge>> found;
  found.reserve(std::min(characters, tokens_.size() * 2));
  for (int32_t id = 0; id < vocab_size(); ++id) {
    const std::string_view token = token_text(id);
    if (!is_text(id) || find_text(token) != id) continue;
    // Each way to cut it is looked up: a piece of any length would take any time.
    constexpr size_t kMostBytes = 1024;
    if (token.size() > kMostBytes) {
      return error(ErrorCode::kCorrupt,
                   "token {} has {} bytes, more than any piece; the model's files are damaged", id,
                   token.size());
    }
    const auto rank = static_cast<int32_t>(
        std::lower_bound(ranks.begin(), ranks.end(), scores[static_cast<size_t>(id)], std::greater<>()) -
        ranks.begin());
    const size_t first = decode_utf8(token, 0).length;
    for (size_t cut = first; cut < token.size();) {
      const size_t length = decode_utf8(token, cut).length;
      const int32_t left = part(token.substr(0, cut), cut == first);
      const int32_t right = left < 0 ? -1 : part(token.substr(cut), cut + length == token.size());
      if (right >= 0) found.emplace_back(left, right, MergeTable::Merge{rank, id});
      cut += length;
    }
  }
  merges_.reserve(found.size());
  for (const auto& [left, right, merge] : found) merges_.insert(left, right, merge);
  return Status();
}

Status Tokenizer::load_ids(const TokenizerData& data) {
  const auto check = [this](const char* name, std::optional<int32_t> id) {
    if (!id || (*id >= 0 && *id < vocab_size())) return Status();
    return error(ErrorCode::kCorrupt, "the {} token {} is outside the vocabulary of {}", name, *id,
                 vocab_size());
  };
  KV_RETURN_IF_ERROR(check("bos", bos_ = data.bos));
  KV_RETURN_IF_ERROR(check("eos", eos_ = data.eos));
  KV_RETURN_IF_ERROR(check("eot", eot_ = data.eot));
  KV_RETURN_IF_ERROR(check("unknown", unk_ = data.unk));
  KV_RETURN_IF_ERROR(check("padding", pad_ = data.pad));
  KV_RETURN_IF_ERROR(check("closing", closing_ = data.closing));
  add_bos_ = data.add_bos && data.bos.has_value();
  std::vector<int32_t> ends = data.more_ends;
  if (eot_) ends.insert(ends.begin(), *eot_);
  if (eos_) ends.insert(ends.begin(), *eos_);
  // Of gpt-oss: a call of a tool ends an output, too, and its GGUF files do not say so.
  const auto call = find_token("<|call|>"), answered = find_token("<|return|>");
  if (call && answered && is_special(*call) && is_special(*answered)) {
    ends.insert(ends.end(), {*call, *answered});
  }
  for (const int32_t id : ends) {
    if (!is_end(id)) ends_.push_back(id);
  }
  for (const int32_t id : ends_) KV_RETURN_IF_ERROR(check("ending", id));
  strips_left_.resize(tokens_.size());
  strips_right_.resize(tokens_.size());
  for (const int32_t id : data.strips_left) {
    KV_RETURN_IF_ERROR(check("stripping", id));
    strips_left_[static_cast<size_t>(id)] = true;
  }
  for (const int32_t id : data.strips_right) {
    KV_RETURN_IF_ERROR(check("stripping", id));
    strips_right_[static_cast<size_t>(id)] = true;
  }
  return Status();
}

void Tokenizer::load_words() {
  for (int32_t id = 0; id < vocab_size(); ++id) {
    if (!is_text(id)) continue;
    const auto i = static_cast<size_t>(id);
    words_.emplace(std::string_view(bytes_).substr(byte_begin_[i], byte_begin_[i + 1] - byte_begin_[i]), id);
  }
}

bool Tokenizer::is_text(int32_t id) const {
  const TokenType type = types_[static_cast<size_t>(id)];
  return type == TokenType::kNormal || type == TokenType::kUserDefined || type == TokenType::kUnused;
}

// The token of this text that merging may make, or -1.
int32_t Tokenizer::find_text(std::string_view text) const {
  const auto found = token_ids_.find(text);
  return found != token_ids_.end() && is_text(found->second) ? found->second : -1;
}

bool Tokenizer::keeps_length() const {
  return !nfc_ && std::find(strips_left_.begin(), strips_left_.end(), true) == strips_left_.end() &&
         std::find(strips_right_.begin(), strips_right_.end(), true) == strips_right_.end() &&
         (model_ == TokenizerModel::kByteBpe ||
          std::find(byte_token_.begin(), byte_token_.end(), -1) == byte_token_.end());
}

// Of those with the same text the first counts.
void Tokenizer::sort_literals() {
  const auto text = [this](int32_t id) -> std::string_view { return token_text(id); };
  std::sort(literals_.begin(), literals_.end(), [&](int32_t a, int32_t b) {
    const int order = text(a).compare(text(b));
    return order != 0 ? order < 0 : a < b;
  });
  const auto same = [&](int32_t a, int32_t b) { return text(a) == text(b); };
  literals_.erase(std::unique(literals_.begin(), literals_.end(), same), literals_.end());
  for (const int32_t id : literals_)
    ++literals_from_[static_cast<unsigned char>(text(id).front()) + size_t{1}];
  for (size_t byte = 0; byte < 256; ++byte) literals_from_[byte + 1] += literals_from_[byte];
}

Result<std::string_view> Tokenizer::token_bytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) {
    return error(ErrorCode::kInvalidArgument, "token {} is outside the vocabulary of {}", id, vocab_size());
  }
  const auto i = static_cast<size_t>(id);
  return std::string_view(bytes_).substr(byte_begin_[i], byte_begin_[i + 1] - byte_begin_[i]);
}

Result<std::string> Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    KV_ASSIGN_OR_RETURN(const std::string_view piece, token_bytes(id));
    if (!(skip_special && is_special(id))) bytes.append(piece);
  }
  return replace_invalid_utf8(bytes);
}

bool Tokenizer::is_special(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return false;
  const TokenType type = types_[static_cast<size_t>(id)];
  return type == TokenType::kControl || type == TokenType::kUnknown;
}

bool Tokenizer::is_end(int32_t id) const {
  return std::find(ends_.begin(), ends_.end(), id) != ends_.end();
}

std::optional<int32_t> Tokenizer::find_token(std::string_view text) const {
  const auto found = token_ids_.find(text);
  if (found == token_ids_.end()) return std::nullopt;
  return found->second;
}

void Tokenizer::MergeTable::reserve(size_t merges) {
  size_t slots = 16;
  while (slots < merges * 2) slots *= 2;
  slots_.assign(slots, Slot());
}

size_t Tokenizer::MergeTable::slot_of(uint64_t key) const {
  // The multiplier spreads the two small ids over the high bits, which are then folded down.
  const uint64_t mixed = key * 0x9E3779B97F4A7C15ull;
  size_t slot = static_cast<size_t>(mixed ^ (mixed >> 32)) & (slots_.size() - 1);
  while (slots_[slot].key != key && slots_[slot].key != ~uint64_t{0}) slot = (slot + 1) & (slots_.size() - 1);
  return slot;
}

void Tokenizer::MergeTable::insert(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = (static_cast<uint64_t>(left) << 32) | static_cast<uint32_t>(right);
  slots_[slot_of(key)] = {key, merge};
}

Tokenizer::MergeTable::Merge Tokenizer::MergeTable::find(int32_t left, int32_t right) const {
  const uint64_t key = (static_cast<uint64_t>(left) << 32) | static_cast<uint32_t>(right);
  const Slot& slot = slots_[slot_of(key)];
  return slot.key == key ? slot.merge : Merge();
}

}  // namespace kvasir
