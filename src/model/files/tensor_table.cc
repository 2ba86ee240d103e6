// Finds each tensor by name, checks type and shape, and accounts for every tensor of the file.
#include "model/files/tensor_table.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>
#include <unordered_set>
#include <utility>

namespace kvasir {
namespace {

struct TypePair {
  std::string_view name;
  ops::WeightType type;
};
constexpr std::array<TypePair, 6> kReadable = {{{"F32", ops::WeightType::kF32},
                                                {"F16", ops::WeightType::kF16},
                                                {"BF16", ops::WeightType::kBf16},
                                                {"Q8_0", ops::WeightType::kQ8_0},
                                                {"Q4_0", ops::WeightType::kQ4_0},
                                                {"Q4_1", ops::WeightType::kQ4_1}}};

// The layer and the rest of "blk.12.attn_q.weight"; nullopt for other names.
struct BlockName {
  uint64_t layer = 0;
  std::string_view rest;
};
std::optional<BlockName> parse_block_name(std::string_view name) {
  constexpr std::string_view kPrefix = "blk.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  BlockName out;
  const auto [end, code] = std::from_chars(name.data(), name.data() + name.size(), out.layer);
  if (code != std::errc() || end == name.data() + name.size() || *end != '.') return std::nullopt;
  out.rest = name.substr(static_cast<size_t>(end - name.data()) + 1);
  return out;
}

// Whether a tensor that nothing here uses would change what the model computes.
bool changes_result(std::string_view rest) {
  if (rest.ends_with(".bias") || rest.ends_with(".scale")) return true;
  if (rest.ends_with(".lora_a") || rest.ends_with(".lora_b")) return true;
  for (std::string_view part : {"_norm", "_exps", "_shexp", "ffn_gate_inp", "attn_sinks", "attn_qkv"}) {
    if (rest.find(part) != std::string_view::npos) return true;
  }
  return false;
}

class TableReader {
 public:
  TableReader(const Gguf& file, const ModelConfig& config) : file_(file), config_(config) {}

  Result<TensorTable> run() {
    const int64_t dim = config_.dim;
    KV_RETURN_IF_ERROR(matrix("token_embd.weight", config_.vocab_size, dim, table_.token_embedding));
    KV_RETURN_IF_ERROR(vector("output_norm.weight", dim, table_.output_norm));
    if (!config_.tied_embeddings) {
      KV_RETURN_IF_ERROR(matrix("output.weight", config_.vocab_size, dim, table_.output));
    }
    KV_RETURN_IF_ERROR(rope_factors());
    for (int32_t l = 0; l < config_.layers; ++l) {
      LayerWeights weights;
      KV_RETURN_IF_ERROR(layer(l, weights));
      table_.layers.push_back(std::move(weights));
    }
    KV_RETURN_IF_ERROR(account_for_the_rest());
    return std::move(table_);
  }

 private:
  Status layer(int32_t index, LayerWeights& out);
  Status rope_factors();
  Status account_for_the_rest();

  Result<const GgufTensor*> require(std::string_view name);
  Status wrong_shape(const GgufTensor& tensor, int64_t rows, int64_t columns) const;
  Status matrix(std::string_view name, int64_t rows, int64_t columns, WeightMatrix& out);
  Status vector(std::string_view name, int64_t size, std::vector<float>& out);
  // Leaves `out` empty where the file has no such tensor.
  Status optional_vector(std::string_view name, int64_t size, std::vector<float>& out);

  const Gguf& file_;
  const ModelConfig& config_;
  TensorTable table_;
  std::unordered_set<const GgufTensor*> used_;
};

Result<const GgufTensor*> TableReader::require(std::string_view name) {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) {
    return error(ErrorCode::kCorrupt,
                 "{}: the tensor '{}' is missing; the file is incomplete; fetch it again", file_.origin(),
                 name);
  }
  used_.insert(tensor);
  return tensor;
}

Status TableReader::wrong_shape(const GgufTensor& tensor, int64_t rows, int64_t columns) const {
  return error(
      ErrorCode::kCorrupt,
      "{}: the tensor '{}' is {} x {} x {} x {} where the metadata asks for {} x {}; convert the model again",
      file_.origin(), tensor.name, tensor.shape[0], tensor.shape[1], tensor.shape[2], tensor.shape[3],
      columns, rows);
}

Status TableReader::matrix(std::string_view name, int64_t rows, int64_t columns, WeightMatrix& out) {
  KV_ASSIGN_OR_RETURN(const GgufTensor* tensor, require(name));
  if (tensor->dimensions != 2 || tensor->shape[0] != static_cast<uint64_t>(columns) ||
      tensor->shape[1] != static_cast<uint64_t>(rows)) {
    return wrong_shape(*tensor, rows, columns);
  }
  KV_ASSIGN_OR_RETURN(out.type, weight_type_of(file_, *tensor));
  out.rows = rows;
  out.columns = columns;
  out.data = tensor->data.data();
  out.bytes = tensor->data.size();
  return {};
}

// A short vector of any float type, as f32. Its values must be finite: one that is not would silently turn
// every output into NaN.
Status TableReader::vector(std::string_view name, int64_t size, std::vector<float>& out) {
  KV_ASSIGN_OR_RETURN(const GgufTensor* tensor, require(name));
  if (tensor->values() != static_cast<uint64_t>(size) || tensor->shape[0] != static_cast<uint64_t>(size)) {
    return wrong_shape(*tensor, 1, size);
  }
  KV_ASSIGN_OR_RETURN(const ops::WeightType type, weight_type_of(file_, *tensor));
  out.resize(static_cast<size_t>(size));
  for (size_t i = 0; i < out.size(); ++i) {
    uint16_t half = 0;
    switch (type) {
      case ops::WeightType::kF32:
        std::memcpy(&out[i], tensor->data.data() + i * sizeof(float), sizeof(float));
        break;
      case ops::WeightType::kF16:
      case ops::WeightType::kBf16:
        std::memcpy(&half, tensor->data.data() + i * sizeof(half), sizeof(half));
        out[i] = type == ops::WeightType::kF16 ? ops::f16_to_f32(half) : ops::bf16_to_f32(half);
        break;
      default:
        return error(
            ErrorCode::kUnsupported,
            "{}: the tensor '{}' is of type {}, where F32, F16 or BF16 is needed; convert the model again",
            file_.origin(), name, tensor->type->name);
    }
    if (!std::isfinite(out[i])) {
      return error(ErrorCode::kCorrupt,
                   "{}: value {} of the tensor '{}' is not finite; the file is damaged; fetch it again",
                   file_.origin(), i, name);
    }
  }
  return {};
}

Status TableReader::optional_vector(std::string_view name, int64_t size, std::vector<float>& out) {
  return file_.find_tensor(name) == nullptr ? Status() : vector(name, size, out);
}

Status TableReader::layer(int32_t index, LayerWeights& out) {
  const int64_t dim = config_.dim;
  const int64_t q_dim = config_.q_dim();
  const int64_t kv_dim = config_.kv_dim();
  const int64_t ffn = config_.ffn_dim;
  const auto name = [index](std::string_view role) { return fmt::format("blk.{}.{}.weight", index, role); };
  KV_RETURN_IF_ERROR(vector(name("attn_norm"), dim, out.attn_norm));
  KV_RETURN_IF_ERROR(matrix(name("attn_q"), q_dim, dim, out.attn_q));
  KV_RETURN_IF_ERROR(matrix(name("attn_k"), kv_dim, dim, out.attn_k));
  KV_RETURN_IF_ERROR(matrix(name("attn_v"), kv_dim, dim, out.attn_v));
  const auto bias = [index](std::string_view role) { return fmt::format("blk.{}.{}.bias", index, role); };
  KV_RETURN_IF_ERROR(optional_vector(bias("attn_q"), q_dim, out.q_bias));
  KV_RETURN_IF_ERROR(optional_vector(bias("attn_k"), kv_dim, out.k_bias));
  KV_RETURN_IF_ERROR(optional_vector(bias("attn_v"), kv_dim, out.v_bias));
  KV_RETURN_IF_ERROR(matrix(name("attn_output"), dim, q_dim, out.attn_output));
  KV_RETURN_IF_ERROR(vector(name("ffn_norm"), dim, out.ffn_norm));
  KV_RETURN_IF_ERROR(matrix(name("ffn_gate"), ffn, dim, out.ffn_gate));
  KV_RETURN_IF_ERROR(matrix(name("ffn_up"), ffn, dim, out.ffn_up));
  return matrix(name("ffn_down"), dim, ffn, out.ffn_down);
}

Status TableReader::rope_factors() {
  if (!config_.rope_factors) return {};
  constexpr std::string_view kName = "rope_freqs.weight";
  KV_RETURN_IF_ERROR(vector(kName, config_.head_dim / 2, table_.rope_factors));
  for (float factor : table_.rope_factors) {
    if (!(factor > 0)) {
      return error(ErrorCode::kCorrupt,
                   "{}: the tensor '{}' holds a factor of {}, not above 0; convert the model again",
                   file_.origin(), kName, factor);
    }
  }
  return {};
}

Status TableReader::account_for_the_rest() {
  for (const GgufTensor& tensor : file_.tensors()) {
    if (used_.contains(&tensor)) continue;
    const std::string name = gguf_quoted(tensor.name);
    const auto block = parse_block_name(tensor.name);
    if (block && block->layer >= static_cast<uint64_t>(config_.layers)) {
      return error(ErrorCode::kUnsupported,
                   "{}: the tensor {} lies beyond the model's {} layers; convert the model again",
                   file_.origin(), name, config_.layers);
    }
    if (changes_result(tensor.name)) {
      return error(
          ErrorCode::kUnsupported,
          "{}: the tensor {} changes what the model computes and is not supported; use a plain llama model",
          file_.origin(), name);
    }
    table_.warnings.push_back(fmt::format("{}: the tensor {} is not used", file_.origin(), name));
  }
  return {};
}

}  // namespace

Result<ops::WeightType> weight_type_of(const Gguf& file, const GgufTensor& tensor) {
  for (const TypePair& pair : kReadable) {
    if (pair.name == tensor.type->name) return pair.type;
  }
  return error(
      ErrorCode::kUnsupported,
      "{}: the tensor {} is of type {}, which is not supported (F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are); "
      "quantise the model as Q8_0, Q4_1 or Q4_0",
      file.origin(), gguf_quoted(tensor.name), tensor.type->name);
}

Result<TensorTable> read_tensor_table(const Gguf& file, const ModelConfig& config) {
  return TableReader(file, config).run();
}

}  // namespace kvasir
