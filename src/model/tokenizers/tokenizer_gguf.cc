// The tokenizer.ggml.* keys.
#include "model/tokenizers/tokenizer_gguf.h"

#include <string_view>

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

}  // namespace

Result<TokenizerData> read_tokenizer_data(const Gguf& gguf) {
  TokenizerData data;
  KV_ASSIGN_OR_RETURN(data.model, gguf.get_string("tokenizer.ggml.model"));
  if (gguf.has("tokenizer.ggml.pre")) {
    KV_ASSIGN_OR_RETURN(data.pre, gguf.get_string("tokenizer.ggml.pre"));
  }
  KV_ASSIGN_OR_RETURN(data.tokens, gguf.get_strings("tokenizer.ggml.tokens"));
  if (gguf.has("tokenizer.ggml.token_type")) {
    KV_ASSIGN_OR_RETURN(data.token_types, gguf.get_i32s("tokenizer.ggml.token_type"));
  }
  // Other kinds of vocabulary have scores instead; create() says that they are not supported.
  if (gguf.has("tokenizer.ggml.merges")) {
    KV_ASSIGN_OR_RETURN(data.merges, gguf.get_strings("tokenizer.ggml.merges"));
  }
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.bos_token_id", &data.bos));
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.eos_token_id", &data.eos));
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.eot_token_id", &data.eot));
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.unknown_token_id", &data.unk));
  KV_RETURN_IF_ERROR(read_optional_id(gguf, "tokenizer.ggml.padding_token_id", &data.pad));
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
