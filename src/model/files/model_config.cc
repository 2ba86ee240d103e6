// Metadata to ModelConfig: read, default, refuse what would be computed wrongly, check the bounds.
#include "model/files/model_config.h"

#include <cmath>
#include <string_view>

namespace kvasir {
namespace {

// Bounds far above any model of this family; they keep products of two of them inside int32 or int64.
constexpr uint32_t kMaxLayers = 1024;
constexpr uint32_t kMaxDim = 1 << 16;
constexpr uint32_t kMaxFfn = 1 << 20;
constexpr uint32_t kMaxHeads = 1024;
constexpr uint32_t kMaxHeadDim = 1024;
constexpr uint32_t kMaxVocab = 1 << 24;
constexpr uint32_t kMaxContext = 1 << 24;

class ConfigReader {
 public:
  explicit ConfigReader(const Gguf& file) : file_(file) {}

  Result<ModelConfig> run() {
    KV_RETURN_IF_ERROR(read_architecture());
    KV_RETURN_IF_ERROR(refuse_variants());
    KV_RETURN_IF_ERROR(read_sizes());
    KV_RETURN_IF_ERROR(read_heads());
    KV_RETURN_IF_ERROR(read_rope());
    KV_RETURN_IF_ERROR(read_rope_scaling());
    KV_RETURN_IF_ERROR(read_epsilon());
    KV_RETURN_IF_ERROR(read_vocabulary());
    return std::move(config_);
  }

 private:
  static std::string key(std::string_view suffix) { return fmt::format("llama.{}", suffix); }

  template <typename... Args>
  Status unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    return error(ErrorCode::kUnsupported, "{}: {}; use a plain llama model", file_.origin(),
                 fmt::format(format, std::forward<Args>(args)...));
  }

  // Reads a count from 1 to `most` into `out`; a missing key takes `otherwise`, if that is not 0.
  Status read_count(std::string_view suffix, uint32_t most, int32_t& out, int32_t otherwise = 0) const {
    const std::string name = key(suffix);
    if (otherwise != 0 && !file_.has(name)) {
      out = otherwise;
      return {};
    }
    KV_ASSIGN_OR_RETURN(const uint32_t value, file_.get_u32(name));
    if (value == 0 || value > most) {
      return error(ErrorCode::kCorrupt, "{}: metadata '{}' is {}, not from 1 to {}; convert the model again",
                   file_.origin(), name, value, most);
    }
    out = static_cast<int32_t>(value);
    return {};
  }

  // Reads a finite number above 0 and at most `most`; a missing key leaves `out` as it is.
  Status read_positive(std::string_view suffix, float most, float& out) const {
    const std::string name = key(suffix);
    if (!file_.has(name)) return {};
    KV_ASSIGN_OR_RETURN(const float value, file_.get_f32(name));
    if (!(value > 0 && value <= most)) {
      return error(ErrorCode::kCorrupt,
                   "{}: metadata '{}' is {}, not above 0 and at most {}; convert the model again",
                   file_.origin(), name, value, most);
    }
    out = value;
    return {};
  }

  Status read_architecture();
  Status refuse_variants() const;
  Status read_sizes();
  Status read_heads();
  Status read_rope();
  Status read_rope_scaling();
  Status read_epsilon();
  Status read_vocabulary();

  const Gguf& file_;
  ModelConfig config_;
};

Status ConfigReader::read_architecture() {
  KV_ASSIGN_OR_RETURN(config_.architecture, file_.get_string("general.architecture"));
  if (config_.architecture != "llama") {
    return error(ErrorCode::kUnsupported,
                 "{}: the architecture {} is not supported, only 'llama' is; use a model of that family",
                 file_.origin(), gguf_quoted(config_.architecture));
  }
  if (auto name = file_.get_string("general.name"); name.ok()) config_.name = *name;
  return {};
}

// Settings that other members of the family use and that change the result.
Status ConfigReader::refuse_variants() const {
  for (std::string_view suffix : {"expert_count", "expert_used_count", "attention.sliding_window"}) {
    const std::string name = key(suffix);
    if (!file_.has(name)) continue;
    KV_ASSIGN_OR_RETURN(const uint32_t value, file_.get_u32(name));
    if (value != 0) return unsupported("'{}' is {}, which is not supported", name, value);
  }
  // Multipliers: absent and neutral are the same.
  for (std::string_view suffix :
       {"logit_scale", "embedding_scale", "residual_scale", "rope.scaling.attn_factor"}) {
    const std::string name = key(suffix);
    if (!file_.has(name)) continue;
    KV_ASSIGN_OR_RETURN(const float value, file_.get_f32(name));
    if (value != 0 && value != 1) return unsupported("'{}' is {}, which is not supported", name, value);
  }
  for (std::string_view suffix :
       {"attention.scale", "attention.clamp_kqv", "attn_logit_softcapping", "final_logit_softcapping"}) {
    const std::string name = key(suffix);
    if (!file_.has(name)) continue;
    KV_ASSIGN_OR_RETURN(const float value, file_.get_f32(name));
    if (value != 0) return unsupported("'{}' is {}, which is not supported", name, value);
  }
  if (file_.has(key("attention.causal"))) {
    KV_ASSIGN_OR_RETURN(const bool causal, file_.get_bool(key("attention.causal")));
    if (!causal) return unsupported("attention is not causal, which is not supported");
  }
  return {};
}

Status ConfigReader::read_sizes() {
  KV_RETURN_IF_ERROR(read_count("block_count", kMaxLayers, config_.layers));
  KV_RETURN_IF_ERROR(read_count("context_length", kMaxContext, config_.context_length));
  KV_RETURN_IF_ERROR(read_count("embedding_length", kMaxDim, config_.dim));
  return read_count("feed_forward_length", kMaxFfn, config_.ffn_dim);
}

Status ConfigReader::read_heads() {
  KV_RETURN_IF_ERROR(read_count("attention.head_count", kMaxHeads, config_.heads));
  KV_RETURN_IF_ERROR(read_count("attention.head_count_kv", kMaxHeads, config_.kv_heads, config_.heads));
  if (config_.heads % config_.kv_heads != 0) {
    return error(ErrorCode::kCorrupt,
                 "{}: {} query heads do not divide evenly among {} KV heads; convert the model again",
                 file_.origin(), config_.heads, config_.kv_heads);
  }
  const bool given = file_.has(key("attention.key_length"));
  if (!given && config_.dim % config_.heads != 0) {
    return error(ErrorCode::kCorrupt,
                 "{}: the width {} does not divide evenly among {} heads; convert the model again",
                 file_.origin(), config_.dim, config_.heads);
  }
  const int32_t even_share = config_.dim % config_.heads == 0 ? config_.dim / config_.heads : 0;
  KV_RETURN_IF_ERROR(read_count("attention.key_length", kMaxHeadDim, config_.head_dim, even_share));
  int32_t value_length = 0;
  KV_RETURN_IF_ERROR(read_count("attention.value_length", kMaxHeadDim, value_length, even_share));
  if (value_length != config_.head_dim) {
    return unsupported("keys have {} values a head and values {}, which is not supported", config_.head_dim,
                       value_length);
  }
  if (config_.head_dim % 2 != 0 || config_.head_dim > static_cast<int32_t>(kMaxHeadDim)) {
    return unsupported("a head of {} values is not supported (even, at most {})", config_.head_dim,
                       kMaxHeadDim);
  }
  return {};
}

Status ConfigReader::read_rope() {
  int32_t turned = 0;
  KV_RETURN_IF_ERROR(read_count("rope.dimension_count", kMaxHeadDim, turned, config_.head_dim));
  if (turned != config_.head_dim) {
    return unsupported("RoPE turns {} of the {} values of a head, and only all of them are supported", turned,
                       config_.head_dim);
  }
  KV_RETURN_IF_ERROR(read_positive("rope.freq_base", 1e12F, config_.rope_base));
  config_.rope_factors = file_.find_tensor("rope_freqs.weight") != nullptr;
  return {};
}

// A file that gives a factor without a type means "linear": that is what the writers of such files meant
// before the type was a key.
Status ConfigReader::read_rope_scaling() {
  std::string type = "linear";
  if (file_.has(key("rope.scaling.type"))) {
    KV_ASSIGN_OR_RETURN(type, file_.get_string(key("rope.scaling.type")));
  }
  if (type == "none") return {};
  if (type != "linear") {
    return unsupported("RoPE scaling of type {} is not supported, only 'none' and 'linear'",
                       gguf_quoted(type));
  }
  const std::string_view suffix =
      file_.has(key("rope.scaling.factor")) ? "rope.scaling.factor" : "rope.scale_linear";
  if (!file_.has(key(suffix))) return {};
  KV_ASSIGN_OR_RETURN(const float factor, file_.get_f32(key(suffix)));
  if (factor == 0) return {};  // some writers put 0 for "not scaled"
  return read_positive(suffix, 1e6F, config_.rope_linear_factor);
}

Status ConfigReader::read_epsilon() {
  constexpr std::string_view kSuffix = "attention.layer_norm_rms_epsilon";
  KV_RETURN_IF_ERROR(file_.get_f32(key(kSuffix)).status());  // no default: a wrong one changes every output
  return read_positive(kSuffix, 1.0F, config_.rms_epsilon);
}

Status ConfigReader::read_vocabulary() {
  const GgufTensor* embedding = file_.find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    return error(ErrorCode::kCorrupt,
                 "{}: the tensor 'token_embd.weight' is missing; the file is incomplete; fetch it again",
                 file_.origin());
  }
  const uint64_t rows = embedding->shape[1];
  if (rows > kMaxVocab) {
    return error(ErrorCode::kCorrupt,
                 "{}: 'token_embd.weight' has {} rows, more than {}; convert the model again", file_.origin(),
                 rows, kMaxVocab);
  }
  config_.vocab_size = static_cast<int32_t>(rows);
  int32_t claimed = config_.vocab_size;
  KV_RETURN_IF_ERROR(read_count("vocab_size", kMaxVocab, claimed, config_.vocab_size));
  if (const GgufValue* tokens = file_.find("tokenizer.ggml.tokens");
      tokens != nullptr && tokens->count != rows) {
    return error(ErrorCode::kCorrupt,
                 "{}: the tokenizer has {} tokens and the embedding {} rows; convert the model again",
                 file_.origin(), tokens->count, rows);
  }
  if (claimed != config_.vocab_size) {
    return error(ErrorCode::kCorrupt,
                 "{}: the metadata claims {} tokens and the embedding has {} rows; convert the model again",
                 file_.origin(), claimed, rows);
  }
  config_.tied_embeddings = file_.find_tensor("output.weight") == nullptr;
  return {};
}

}  // namespace

Result<ModelConfig> read_model_config(const Gguf& file) {
  return ConfigReader(file).run();
}

}  // namespace kvasir
