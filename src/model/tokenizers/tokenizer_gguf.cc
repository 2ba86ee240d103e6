// The tokenizer.ggml.* keys. Their defaults are those of llama.cpp.
#include "model/tokenizers/tokenizer_gguf.h"

#include <algorithm>
#include <string_view>
#include <utility>

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
        "{}: tokenizer model '{}' is not supported; use a model whose tokenizer.ggml.model is gpt2, llama or "
        "gemma4",
        gguf.origin(), model);
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

}  // namespace

Status write_tokenizer_data(const TokenizerData& data, GgufAssembler* out) {
  if (data.model != TokenizerModel::kByteBpe) {
    return error(ErrorCode::kUnsupported, "a tokenizer that is not BPE of bytes has no form in GGUF");
  }
  const std::string_view pre = name_of_pretokenizer(data.split, data.ignore_merges, data.nfc);
  if (pre.empty())
    return error(ErrorCode::kUnsupported, "the tokenizer's splitting pattern has no name in GGUF");
  if (!data.strips_left.empty() || !data.strips_right.empty()) {
    return error(ErrorCode::kUnsupported,
                 "the tokenizer has tokens that take white space along, which GGUF cannot say");
  }
  out->set_string("tokenizer.ggml.model", "gpt2");
  out->set_string("tokenizer.ggml.pre", pre);
  out->set_strings("tokenizer.ggml.tokens", data.tokens);
  if (!data.token_types.empty()) out->set_i32s("tokenizer.ggml.token_type", data.token_types);
  out->set_strings("tokenizer.ggml.merges", data.merges);
  write_optional_id("tokenizer.ggml.bos_token_id", data.bos, out);
  write_optional_id("tokenizer.ggml.eos_token_id", data.eos, out);
  // GGUF has one more end.
  write_optional_id("tokenizer.ggml.eot_token_id",
                    data.eot || data.more_ends.empty() ? data.eot : std::optional(data.more_ends.front()),
                    out);
  write_optional_id("tokenizer.ggml.unknown_token_id", data.unk, out);
  write_optional_id("tokenizer.ggml.padding_token_id", data.pad, out);
  out->set_bool("tokenizer.ggml.add_bos_token", data.add_bos);
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
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.unknown_token_id", &data.unk));
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.padding_token_id", &data.pad));
  KV_RETURN_IF_ERROR(read_strips(gguf, &data));
  if (gguf.has("tokenizer.ggml.add_bos_token")) {
    KV_ASSIGN_OR_RETURN(data.add_bos, gguf.get_bool("tokenizer.ggml.add_bos_token"));
  }
  if (gguf.has("tokenizer.chat_template")) {
    KV_ASSIGN_OR_RETURN(std::string chat_template, gguf.get_string("tokenizer.chat_template"));
    data.chat_template = std::move(chat_template);
  }
  return data;
}

}  // namespace kvasir
