// Construction of the tables, and decoding. The merging of pairs is in tokenizer_encode.cc.
#include "model/tokenizers/tokenizer.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
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

}  // namespace

Result<Tokenizer> Tokenizer::create(TokenizerData data) {
  if (data.model != "gpt2") {
    return error(ErrorCode::kUnsupported,
                 "tokenizer model '{}' is not supported; use a model whose tokenizer.ggml.model is gpt2",
                 data.model);
  }
  Tokenizer tokenizer;
  KV_ASSIGN_OR_RETURN(tokenizer.kind_, parse_pretokenizer(data.pre));
  KV_RETURN_IF_ERROR(tokenizer.load_tokens(&data));
  KV_RETURN_IF_ERROR(tokenizer.load_merges(data.merges));
  tokenizer.bos_ = data.bos;
  tokenizer.eos_ = data.eos;
  tokenizer.eot_ = data.eot;
  tokenizer.unk_ = data.unk;
  tokenizer.pad_ = data.pad;
  tokenizer.add_bos_ = data.add_bos && data.bos.has_value();
  tokenizer.chat_template_ = std::move(data.chat_template);
  KV_RETURN_IF_ERROR(tokenizer.check_ids());
  return tokenizer;
}

Status Tokenizer::load_tokens(TokenizerData* data) {
  const size_t vocab = data->tokens.size();
  if (vocab == 0 || vocab > size_t{1} << 30) {
    return error(ErrorCode::kCorrupt, "tokenizer.ggml.tokens has {} entries; the model file is damaged",
                 vocab);
  }
  if (!data->token_types.empty() && data->token_types.size() != vocab) {
    return error(ErrorCode::kCorrupt,
                 "tokenizer.ggml.token_type has {} entries for {} tokens; the model file is damaged",
                 data->token_types.size(), vocab);
  }
  tokens_ = std::move(data->tokens);
  types_.assign(vocab, TokenType::kNormal);
  for (size_t i = 0; i < data->token_types.size(); ++i) {
    const int32_t type = data->token_types[i];
    if (type < 1 || type > 6) {
      return error(ErrorCode::kCorrupt, "token {} has the unknown type {}; the model file is damaged", i,
                   type);
    }
    types_[i] = static_cast<TokenType>(type);
  }

  const ByteAlphabet alphabet = make_byte_alphabet();
  token_ids_.reserve(vocab);
  byte_begin_.reserve(vocab + 1);
  trie_.resize(1);
  for (size_t i = 0; i < vocab; ++i) {
    const std::string& token = tokens_[i];
    const auto id = static_cast<int32_t>(i);
    if (bytes_.size() + token.size() > UINT32_MAX) {
      return error(ErrorCode::kCorrupt, "the tokens are longer than 4 GiB; the model file is damaged");
    }
    byte_begin_.push_back(static_cast<uint32_t>(bytes_.size()));
    token_ids_.emplace(token, id);
    if (is_literal(types_[i])) {
      bytes_.append(token);
      if (!token.empty()) add_to_trie(id);
    } else if (!append_spelled_bytes(alphabet, token, &bytes_)) {
      bytes_.append(token);
    }
  }
  byte_begin_.push_back(static_cast<uint32_t>(bytes_.size()));

  for (size_t byte = 0; byte < 256; ++byte) {
    std::string spelled;
    append_utf8(alphabet.of_byte[byte], &spelled);
    byte_token_[byte] = find_token(spelled).value_or(-1);
  }
  return Status();
}

Status Tokenizer::load_merges(const std::vector<std::string>& merges) {
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const std::string& line = merges[rank];
    const size_t space = line.find(' ', 1);
    if (space == std::string::npos) {
      return error(ErrorCode::kCorrupt, "merge {} ('{}') is not two tokens; the model file is damaged", rank,
                   line);
    }
    const std::string_view left = std::string_view(line).substr(0, space);
    const std::string_view right = std::string_view(line).substr(space + 1);
    const auto left_id = find_token(left);
    const auto right_id = find_token(right);
    const auto merged_id = find_token(std::string(left).append(right));
    if (!left_id || !right_id || !merged_id) {
      return error(ErrorCode::kCorrupt, "merge {} ('{}') names a token that is not in the vocabulary", rank,
                   line);
    }
    merges_.insert(*left_id, *right_id, {static_cast<int32_t>(rank), *merged_id});
  }
  return Status();
}

Status Tokenizer::check_ids() const {
  const std::pair<const char*, std::optional<int32_t>> ids[] = {
      {"bos", bos_}, {"eos", eos_}, {"eot", eot_}, {"unknown", unk_}, {"padding", pad_}};
  for (const auto& [name, id] : ids) {
    if (id && (*id < 0 || *id >= vocab_size())) {
      return error(ErrorCode::kCorrupt, "the {} token {} is outside the vocabulary of {}", name, *id,
                   vocab_size());
    }
  }
  return Status();
}

void Tokenizer::add_to_trie(int32_t id) {
  size_t node = 0;
  for (const char c : token_text(id)) {
    const auto byte = static_cast<unsigned char>(c);
    auto& children = trie_[node].children;
    const auto child =
        std::find_if(children.begin(), children.end(), [&](const auto& x) { return x.first == byte; });
    if (child != children.end()) {
      node = static_cast<size_t>(child->second);
      continue;
    }
    const size_t fresh = trie_.size();
    children.emplace_back(byte, static_cast<int32_t>(fresh));
    trie_.emplace_back();
    node = fresh;
  }
  if (trie_[node].token < 0) trie_[node].token = id;
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
