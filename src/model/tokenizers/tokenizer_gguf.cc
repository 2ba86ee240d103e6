// The tokenizer.ggml.* keys. Their defaults are those of llama.cpp.
#include "model/tokenizers/tokenizer_gguf.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "model/tokenizers/pieces_of_merges.h"
#include "model/tokenizers/split_patterns.h"

namespace kvasir {

namespace {

Status read_optional_id(const Gguf& gguf, std::string_view key, std::optional<int32_t>* id) {
  if (!gguf.has(key)) return Status();
  KV_ASSIGN_OR_RETURN(const uint32_t value, gguf.get_u32(key));
  if (value > INT32_MAX) {
    return error(ErrorCode::kCorrupt, "{}: {} is {}, which is no token", gguf.origin(), key, value);
  }
  *id = static_cast<int32_t>(value);
  return Status();
}

// What the kind of tokenizer, and the name of its pre-tokenizer, stand for.
Status read_model(const Gguf& gguf, TokenizerData* data) {
  KV_ASSIGN_OR_RETURN(const std::string model, gguf.get_string("tokenizer.ggml.model"));
  if (model == "gpt2") {
    std::string pre = "default";
    if (gguf.has("tokenizer.ggml.pre")) {
      KV_ASSIGN_OR_RETURN(pre, gguf.get_string("tokenizer.ggml.pre"));
    }
    KV_ASSIGN_OR_RETURN(Pretokenizer pretokenizer, find_pretokenizer(pre));
    data->split = std::move(pretokenizer.split);
    data->ignore_merges = pretokenizer.ignore_merges;
    data->nfc = pretokenizer.nfc;
    data->add_bos = pretokenizer.add_bos;
    return Status();
  }
  data->split.clear();
  data->add_bos = true;
  if (model == "llama") {
    data->model = TokenizerModel::kPieces;
    data->space_prefix = SpacePrefix::kAlways;
    data->bos = 1;
    data->eos = 2;
    data->unk = 0;
  } else if (model == "gemma4") {
    data->model = TokenizerModel::kTextBpe;
    data->split = {RunStage{CharSet::kNewline}};
  } else {
    return error(
        ErrorCode::kUnsupported,
        "{}: tokenizer model {} is not supported; use a model whose tokenizer.ggml.model is gpt2, llama or "
        "gemma4",
        gguf.origin(), gguf_quoted(model));
  }
  if (gguf.has("tokenizer.ggml.add_space_prefix")) {
    KV_ASSIGN_OR_RETURN(const bool prefix, gguf.get_bool("tokenizer.ggml.add_space_prefix"));
    data->space_prefix = prefix ? SpacePrefix::kAlways : SpacePrefix::kNone;
  }
  return Status();
}

// The format cannot say that a token takes white space along; Phi-3's special tokens do.
Status read_strips(const Gguf& gguf, TokenizerData* data) {
  if (!gguf.has("general.architecture") || !gguf.has("general.name")) return Status();
  KV_ASSIGN_OR_RETURN(std::string name, gguf.get_string("general.name"));
  std::transform(name.begin(), name.end(), name.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; });
  if (name.find("phi-3") == std::string::npos && name.find("phi3") == std::string::npos) return Status();
  for (size_t i = 0; i < std::min(data->tokens.size(), data->token_types.size()); ++i) {
    const std::string& token = data->tokens[i];
    const auto type = static_cast<TokenType>(data->token_types[i]);
    const bool special =
        type == TokenType::kControl || type == TokenType::kUserDefined || type == TokenType::kUnknown;
    if (special && token != "<unk>" && token != "<s>" && token != "<|endoftext|>") {
      data->strips_right.push_back(static_cast<int32_t>(i));
    }
  }
  return Status();
}

void write_optional_id(std::string_view key, const std::optional<int32_t>& id, GgufAssembler* out) {
  if (id) out->set_u32(key, static_cast<uint32_t>(*id));
}

Status write_byte_model(const TokenizerData& data, GgufAssembler* out) {
  const std::string_view pre = name_of_pretokenizer(data.split, data.ignore_merges, data.nfc);
  if (pre.empty())
    return error(ErrorCode::kUnsupported, "the tokenizer's splitting pattern has no name in GGUF");
  out->set_string("tokenizer.ggml.model", "gpt2");
  out->set_string("tokenizer.ggml.pre", pre);
  out->set_strings("tokenizer.ggml.merges", data.merges);
  return Status();
}

// A byte's own token, or a piece of just its character: Gemma 2 has a tab in place of <0x09>.
bool every_byte_has_a_token(const TokenizerData& data) {
  std::set<std::string_view> found;
  for (size_t i = 0; i < data.token_types.size(); ++i) {
    const auto type = static_cast<TokenType>(data.token_types[i]);
    if (type == TokenType::kByte) found.insert(data.tokens[i]);
    const bool character = data.tokens[i].size() == 1 && static_cast<uint8_t>(data.tokens[i][0]) < 0x80;
    if (character && type == TokenType::kNormal) found.insert(data.tokens[i]);
  }
  for (int byte = 0; byte < 256; ++byte) {
    const std::string character(1, static_cast<char>(byte));
    if (!found.contains(fmt::format("<0x{:02X}>", byte)) && !found.contains(character)) return false;
  }
  return true;
}

// What GGUF's "llama" says of a tokenizer is all there is to say of this one.
Status check_is_pieces(const TokenizerData& data) {
  const auto unsupported = [](std::string_view what) {
    return error(ErrorCode::kUnsupported, "the tokenizer {}, which GGUF cannot say of one of pieces", what);
  };
  if (!data.split.empty()) return unsupported("splits text");
  if (data.ignore_merges) return unsupported("looks whole words up");
  if (data.nfc) return unsupported("composes text");
  if (data.space_prefix == SpacePrefix::kUnlessThere || data.space_prefix == SpacePrefix::kFirst) {
    return unsupported("puts a space before some texts only");
  }
  if (!data.bos || !data.eos) return unsupported("has no token that begins or ends texts");
  return every_byte_has_a_token(data) ? Status() : unsupported("has no token for some bytes");
}

Status write_pieces(const TokenizerData& data, GgufAssembler* out) {
  KV_RETURN_IF_ERROR(check_is_pieces(data));
  KV_ASSIGN_OR_RETURN(const std::vector<float> scores, scores_of_merges(data));
  out->set_string("tokenizer.ggml.model", "llama");
  out->set_string("tokenizer.ggml.pre", "default");
  out->set_f32s("tokenizer.ggml.scores", scores);
  out->set_bool("tokenizer.ggml.add_space_prefix", data.space_prefix == SpacePrefix::kAlways);
  return Status();
}

}  // namespace

Status write_tokenizer_data(const TokenizerData& data, GgufAssembler* out) {
  if (data.model == TokenizerModel::kPieces) {
    return error(ErrorCode::kUnsupported, "pieces with scores do not come from folders");
  }
  if (!data.strips_left.empty() || !data.strips_right.empty()) {
    return error(ErrorCode::kUnsupported,
                 "the tokenizer has tokens that take white space along, which GGUF cannot say");
  }
  KV_RETURN_IF_ERROR(data.model == TokenizerModel::kByteBpe ? write_byte_model(data, out)
                                                            : write_pieces(data, out));
  out->set_strings("tokenizer.ggml.tokens", data.tokens);
  if (!data.token_types.empty()) out->set_i32s("tokenizer.ggml.token_type", data.token_types);
  write_optional_id("tokenizer.ggml.bos_token_id", data.bos, out);
  write_optional_id("tokenizer.ggml.eos_token_id", data.eos, out);
  // GGUF has two further ends, of a turn and of a message.
  std::vector<int32_t> ends = data.more_ends;
  if (data.eot) std::erase(ends, *data.eot);
  if (data.eot) ends.insert(ends.begin(), *data.eot);
  const std::string_view keys[] = {"tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"};
  if (ends.size() > std::size(keys)) {
    return error(ErrorCode::kUnsupported, "{} tokens beside eos end an output, of which GGUF can say two",
                 ends.size());
  }
  for (size_t i = 0; i < ends.size(); ++i) write_optional_id(keys[i], ends[i], out);
  write_optional_id("tokenizer.ggml.unknown_token_id", data.unk, out);
  write_optional_id("tokenizer.ggml.padding_token_id", data.pad, out);
  out->set_bool("tokenizer.ggml.add_bos_token", data.add_bos);
  if (data.closing) out->set_bool("tokenizer.ggml.add_eos_token", data.closing == data.eos);
  if (data.closing != data.eos) write_optional_id("kvasir.closing_token_id", data.closing, out);
  if (data.chat_template) out->set_string("tokenizer.chat_template", *data.chat_template);
  return Status();
}

Result<TokenizerData> read_tokenizer_data(const Gguf& gguf) {
  TokenizerData data;
  KV_RETURN_IF_ERROR(read_model(gguf, &data));
  KV_ASSIGN_OR_RETURN(data.tokens, gguf.get_strings("tokenizer.ggml.tokens"));
  if (gguf.has("tokenizer.ggml.token_type")) {
    KV_ASSIGN_OR_RETURN(data.token_types, gguf.get_i32s("tokenizer.ggml.token_type"));
  }
  if (data.model == TokenizerModel::kPieces) {
    KV_ASSIGN_OR_RETURN(data.scores, gguf.get_f32s("tokenizer.ggml.scores"));
  } else {
    KV_ASSIGN_OR_RETURN(data.merges, gguf.get_strings("tokenizer.ggml.merges"));
  }
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.bos_token_id", &data.bos));
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.eos_token_id", &data.eos));
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.eot_token_id", &data.eot));
  std::optional<int32_t> end_of_message;
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.eom_token_id", &end_of_message));
  if (end_of_message) data.more_ends.push_back(*end_of_message);
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.unknown_token_id", &data.unk));
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.padding_token_id", &data.pad));
  KV_RETURN_IF_ERROR(read_strips(gguf, &data));
  if (gguf.has("tokenizer.ggml.add_bos_token")) {
    KV_ASSIGN_OR_RETURN(data.add_bos, gguf.get_bool("tokenizer.ggml.add_bos_token"));
  }
  if (gguf.has("tokenizer.ggml.add_eos_token")) {
    KV_ASSIGN_OR_RETURN(const bool closes, gguf.get_bool("tokenizer.ggml.add_eos_token"));
    if (closes) data.closing = data.eos;
  }
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "kvasir.closing_token_id", &data.closing));
  if (gguf.has("tokenizer.chat_template")) {
    KV_ASSIGN_OR_RETURN(std::string chat_template, gguf.get_string("tokenizer.chat_template"));
    data.chat_template = std::move(chat_template);
  }
  return data;
}

}  // namespace kvasir
