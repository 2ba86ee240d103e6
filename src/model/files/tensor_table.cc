// Finds each tensor by name, checks type and shape, and accounts for every tensor of the file.
#include "model/files/tensor_table.h"

#include <array>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "model/files/latent_rows.h"
#include "model/files/layer_name.h"
#include "model/files/small_vector.h"

namespace kvasir {
namespace {

// Whether a tensor that nothing here uses would change what the model computes.
bool changes_result(std::string_view name) {
  if (name.ends_with(".bias") || name.ends_with(".scale")) return true;
  if (name.ends_with(".lora_a") || name.ends_with(".lora_b")) return true;
  if (parse_expert_name(name)) return true;
  for (std::string_view part :
       {"_norm", "per_layer_", "_scale", "_exps", "_shexp", "ffn_gate_inp", "attn_sinks"}) {
    if (name.find(part) != std::string_view::npos) return true;
  }
  return false;
}

class TableReader {
 public:
  TableReader(const Gguf& file, const ModelSpec& spec) : file_(file), spec_(spec) {}

  Result<TensorTable> run() {
    const int64_t dim = spec_.dim;
    KV_RETURN_IF_ERROR(matrix("token_embd.weight", spec_.vocab_size, dim, table_.token_embedding));
    if (spec_.learned_positions) {
      KV_RETURN_IF_ERROR(matrix("position_embd.weight", spec_.position_offset + spec_.context_length, dim,
                                table_.position_embedding));
    }
    KV_RETURN_IF_ERROR(norm("output_norm", dim, table_.output_norm));
    if (!table_.output_norm.present()) return missing("output_norm.weight");
    if (!spec_.tied_embeddings) {
      KV_RETURN_IF_ERROR(matrix("output.weight", spec_.vocab_size, dim, table_.output));
    }
    // The spec has read these.
    for (std::string_view name :
         {"rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"}) {
      if (const GgufTensor* tensor = file_.find_tensor(name)) used_.insert(tensor);
    }
    for (int32_t l = 0; l < spec_.layers; ++l) {
      LayerWeights weights;
      KV_RETURN_IF_ERROR(layer(l, weights));
      table_.layers.push_back(std::move(weights));
    }
    KV_RETURN_IF_ERROR(account_for_the_rest());
    return std::move(table_);
  }

 private:
  Status layer(int32_t index, LayerWeights& out);
  Status attention(int32_t index, LayerWeights& out);
  Status latent_attention(int32_t index, LayerWeights& out);
  Status recurrence(int32_t index, LayerWeights& out);
  Status heads_of_latent(int32_t index, LatentWeights& out);
  Status feed_forward(int32_t index, LayerWeights& out);
  Status experts(int32_t index, ExpertWeights& out);
  Status shared_expert(int32_t index, ExpertWeights& out);
  // One matrix for each expert: of one tensor, or of a tensor each.
  Status stacked(int32_t index, std::string_view role, int64_t rows, int64_t columns,
                 std::vector<WeightMatrix>& out);
  // Gate and up of such a width: two tensors, or one, which has the rows of gate and then those of up.
  Status gate_and_up(const std::string& gate_name, const std::string& up_name, int64_t ffn,
                     WeightMatrix& gate, WeightMatrix& up);
  Status account_for_the_rest();

  Status missing(std::string_view name) const;
  Result<const GgufTensor*> require(std::string_view name);
  Status wrong_shape(const GgufTensor& tensor, int64_t count, int64_t rows, int64_t columns) const;
  Status matrix(std::string_view name, int64_t rows, int64_t columns, WeightMatrix& out);
  // The same of `count` matrices of that size in one tensor, whose rows follow one another.
  Status matrices(std::string_view name, int64_t count, int64_t rows, int64_t columns, WeightMatrix& out);
  Status matrices_of(const GgufTensor& tensor, int64_t count, int64_t rows, int64_t columns,
                     WeightMatrix& out);
  // These leave `out` empty where the file has no such tensor.
  Status optional_vector(const std::string& name, int64_t size, std::vector<float>& out) {
    return optional_vectors(name, 1, size, out);
  }
  Status optional_vectors(const std::string& name, int64_t count, int64_t size, std::vector<float>& out);
  Status norm(const std::string& name, int64_t size, NormWeights& out);

  const Gguf& file_;
  const ModelSpec& spec_;
  TensorTable table_;
  std::unordered_set<const GgufTensor*> used_;
};

Status TableReader::missing(std::string_view name) const {
  return error(ErrorCode::kCorrupt, "{}: the tensor '{}' is missing; the file is incomplete; fetch it again",
               file_.origin(), name);
}

Result<const GgufTensor*> TableReader::require(std::string_view name) {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) return missing(name);
  used_.insert(tensor);
  return tensor;
}

Status TableReader::wrong_shape(const GgufTensor& tensor, int64_t count, int64_t rows,
                                int64_t columns) const {
  return error(ErrorCode::kCorrupt,
               "{}: the tensor '{}' is {} x {} x {} x {} where the metadata asks for {} x {}{}; convert the "
               "model again",
               file_.origin(), tensor.name, tensor.shape[0], tensor.shape[1], tensor.shape[2],
               tensor.shape[3], columns, rows, count > 1 ? fmt::format(" x {}", count) : "");
}

Status TableReader::matrix(std::string_view name, int64_t rows, int64_t columns, WeightMatrix& out) {
  return matrices(name, 1, rows, columns, out);
}

Status TableReader::matrices(std::string_view name, int64_t count, int64_t rows, int64_t columns,
                             WeightMatrix& out) {
  KV_ASSIGN_OR_RETURN(const GgufTensor* tensor, require(name));
  return matrices_of(*tensor, count, rows, columns, out);
}

Status TableReader::matrices_of(const GgufTensor& tensor, int64_t count, int64_t rows, int64_t columns,
                                WeightMatrix& out) {
  const std::array<uint64_t, 4> wanted = {static_cast<uint64_t>(columns), static_cast<uint64_t>(rows),
                                          static_cast<uint64_t>(count), 1};
  if (tensor.shape != wanted) return wrong_shape(tensor, count, rows, columns);
  KV_ASSIGN_OR_RETURN(out.type, weight_type_of(file_, tensor));
  out.used = out.type;
  out.name = tensor.name;
  out.rows = count * rows;
  out.columns = columns;
  out.data = tensor.data.data();
  out.bytes = tensor.bytes();
  out.made = tensor.rows;
  return {};
}

Status TableReader::optional_vectors(const std::string& name, int64_t count, int64_t size,
                                     std::vector<float>& out) {
  const GgufTensor* tensor = file_.find_tensor(name);
  if (tensor == nullptr) return {};
  used_.insert(tensor);
  return read_small_vectors(file_.origin(), *tensor, count, size, out);
}

Status TableReader::norm(const std::string& name, int64_t size, NormWeights& out) {
  KV_RETURN_IF_ERROR(optional_vector(name + ".weight", size, out.weight));
  if (spec_.norm == NormKind::kRms || !out.present()) return {};
  return optional_vector(name + ".bias", size, out.bias);
}

Status TableReader::layer(int32_t index, LayerWeights& out) {
  const int64_t dim = spec_.dim;
  const auto name = [index](std::string_view role) { return fmt::format("blk.{}.{}", index, role); };
  KV_RETURN_IF_ERROR(norm(name("attn_norm"), dim, out.attn_norm));
  KV_RETURN_IF_ERROR(norm(name(spec_.ffn_norm_name), dim, out.ffn_norm));
  if (spec_.ffn_norm_name != "post_attention_norm") {
    KV_RETURN_IF_ERROR(norm(name("post_attention_norm"), dim, out.attn_post_norm));
  }
  KV_RETURN_IF_ERROR(norm(name("post_ffw_norm"), dim, out.ffn_post_norm));
  KV_RETURN_IF_ERROR(optional_vector(name("layer_output_scale.weight"), 1, out.output_scale));
  // A model has norms before attention and feed-forward, behind them, or both.
  if (!out.attn_norm.present() && !out.attn_post_norm.present()) return missing(name("attn_norm.weight"));
  if (!out.ffn_norm.present() && !out.ffn_post_norm.present() && !spec_.parallel)
    return missing(name(spec_.ffn_norm_name + ".weight"));
  KV_RETURN_IF_ERROR(attention(index, out));
  return feed_forward(index, out);
}

// Rows [first, first + count) of a matrix.
WeightMatrix rows_of(const WeightMatrix& whole, int64_t first, int64_t count) {
  WeightMatrix out = whole;
  if (whole.made == nullptr) out.data += static_cast<uint64_t>(first) * whole.row_bytes();
  out.first_made += first;
  out.rows = count;
  out.bytes = static_cast<uint64_t>(count) * whole.row_bytes();
  return out;
}

Status TableReader::attention(int32_t index, LayerWeights& out) {
  if (spec_.is_latent()) return latent_attention(index, out);
  if (spec_.layer(index).recurrent) return recurrence(index, out);
  const HeadShape heads = spec_.heads_of(index);
  const int64_t dim = spec_.dim, q_dim = heads.q_dim(), kv_dim = heads.kv_dim();
  const auto weight = [index](std::string_view role) { return fmt::format("blk.{}.{}.weight", index, role); };
  const auto bias = [index](std::string_view role) { return fmt::format("blk.{}.{}.bias", index, role); };
  bool v_is_k = false;
  if (file_.find_tensor(weight("attn_qkv")) != nullptr) {
    WeightMatrix qkv;
    KV_RETURN_IF_ERROR(matrix(weight("attn_qkv"), q_dim + 2 * kv_dim, dim, qkv));
    out.attn_q = rows_of(qkv, 0, q_dim);
    out.attn_k = rows_of(qkv, q_dim, kv_dim);
    out.attn_v = rows_of(qkv, q_dim + kv_dim, kv_dim);
  } else {
    KV_RETURN_IF_ERROR(matrix(weight("attn_q"), q_dim + spec_.gate_dim(), dim, out.attn_q));
    KV_RETURN_IF_ERROR(matrix(weight("attn_k"), kv_dim, dim, out.attn_k));
    v_is_k = spec_.v_norm && file_.find_tensor(weight("attn_v")) == nullptr;
    if (v_is_k) {
      out.attn_v = out.attn_k;
    } else {
      KV_RETURN_IF_ERROR(matrix(weight("attn_v"), kv_dim, dim, out.attn_v));
    }
  }
  if (spec_.v_norm) out.v_norm.assign(static_cast<size_t>(heads.head_dim), 1.0F);
  KV_RETURN_IF_ERROR(optional_vector(bias("attn_q"), q_dim, out.q_bias));
  KV_RETURN_IF_ERROR(optional_vector(bias("attn_k"), kv_dim, out.k_bias));
  KV_RETURN_IF_ERROR(optional_vector(bias("attn_v"), kv_dim, out.v_bias));
  if (v_is_k) out.v_bias = out.k_bias;
  if (spec_.qk_norm == QkNorm::kUnit) {
    if (spec_.layer(index).rope >= 0) out.q_norm.assign(static_cast<size_t>(heads.head_dim), 1.0F);
    out.k_norm = out.q_norm;
  } else if (spec_.qk_norm != QkNorm::kNone) {
    const bool by_head = spec_.qk_norm == QkNorm::kHead;
    KV_RETURN_IF_ERROR(optional_vector(weight("attn_q_norm"), by_head ? heads.head_dim : q_dim, out.q_norm));
    KV_RETURN_IF_ERROR(optional_vector(weight("attn_k_norm"), by_head ? heads.head_dim : kv_dim, out.k_norm));
    if (out.q_norm.empty()) return missing(weight("attn_q_norm"));
    if (out.k_norm.empty()) return missing(weight("attn_k_norm"));
  }
  if (spec_.sinks) {
    KV_RETURN_IF_ERROR(optional_vector(weight("attn_sinks"), spec_.heads, out.sinks));
    if (out.sinks.empty()) return missing(weight("attn_sinks"));
  }
  KV_RETURN_IF_ERROR(matrix(weight("attn_output"), dim, q_dim, out.attn_output));
  return optional_vector(bias("attn_output"), dim, out.attn_output_bias);
}

Status TableReader::latent_attention(int32_t index, LayerWeights& out) {
  const LatentSpec& l = spec_.latent;
  const int64_t dim = spec_.dim, q_width = int64_t{spec_.heads} * (l.nope_dim + l.rope_dim);
  const auto weight = [index](std::string_view role) { return fmt::format("blk.{}.{}.weight", index, role); };
  if (l.q_rank > 0) {
    KV_RETURN_IF_ERROR(matrix(weight("attn_q_a"), l.q_rank, dim, out.attn_q));
    KV_RETURN_IF_ERROR(optional_vector(weight("attn_q_a_norm"), l.q_rank, out.latent.q_a_norm));
    if (out.latent.q_a_norm.empty()) return missing(weight("attn_q_a_norm"));
    KV_RETURN_IF_ERROR(matrix(weight("attn_q_b"), q_width, l.q_rank, out.latent.q_b));
  } else {
    KV_RETURN_IF_ERROR(matrix(weight("attn_q"), q_width, dim, out.attn_q));
  }
  KV_RETURN_IF_ERROR(matrix(weight("attn_kv_a_mqa"), l.rank + l.rope_dim, dim, out.latent.kv_a));
  KV_RETURN_IF_ERROR(optional_vector(weight("attn_kv_a_norm"), l.rank, out.latent.kv_a_norm));
  if (out.latent.kv_a_norm.empty()) return missing(weight("attn_kv_a_norm"));
  KV_RETURN_IF_ERROR(heads_of_latent(index, out.latent));
  return matrix(weight("attn_output"), dim, spec_.values_dim(), out.attn_output);
}

Status TableReader::recurrence(int32_t index, LayerWeights& out) {
  const RecurrentSpec& r = spec_.recurrent;
  const int64_t dim = spec_.dim;
  RecurrentWeights& w = out.recurrent;
  const auto name = [index](std::string_view role) { return fmt::format("blk.{}.{}", index, role); };
  if (file_.find_tensor(name("ssm_in.weight")) != nullptr) {
    KV_RETURN_IF_ERROR(matrix(name("ssm_in.weight"), r.channels() + r.values(), dim, w.qkvz));
  } else {
    KV_RETURN_IF_ERROR(matrix(name("attn_qkv.weight"), r.channels(), dim, w.qkv));
    KV_RETURN_IF_ERROR(matrix(name("attn_gate.weight"), r.values(), dim, w.z));
  }
  if (r.by_turns) {
    KV_RETURN_IF_ERROR(matrix(name("ssm_beta.weight"), r.value_heads, dim, w.b));
    KV_RETURN_IF_ERROR(matrix(name("ssm_alpha.weight"), r.value_heads, dim, w.a));
  } else {
    KV_RETURN_IF_ERROR(matrix(name("ssm_ba.weight"), 2 * r.value_heads, dim, w.ba));
  }
  const auto vectors = [&](std::string_view role, int64_t count, int64_t size, std::vector<float>& to) {
    KV_RETURN_IF_ERROR(optional_vectors(name(role), count, size, to));
    return to.empty() ? missing(name(role)) : Status();
  };
  KV_RETURN_IF_ERROR(vectors("ssm_conv1d.weight", r.channels(), r.taps, w.convolution));
  KV_RETURN_IF_ERROR(vectors("ssm_a", 1, r.value_heads, w.rate));
  KV_RETURN_IF_ERROR(vectors("ssm_dt.bias", 1, r.value_heads, w.dt_bias));
  KV_RETURN_IF_ERROR(vectors("ssm_norm.weight", 1, r.value_dim, w.norm));
  return matrix(name("ssm_out.weight"), dim, r.values(), out.attn_output);
}

// Two tensors, or one of an old file.
Status TableReader::heads_of_latent(int32_t index, LatentWeights& out) {
  const LatentSpec& l = spec_.latent;
  const auto weight = [index](std::string_view role) { return fmt::format("blk.{}.{}.weight", index, role); };
  WeightMatrix k_b, v_b;
  if (file_.find_tensor(weight("attn_kv_b")) != nullptr) {
    WeightMatrix both;
    KV_RETURN_IF_ERROR(
        matrix(weight("attn_kv_b"), int64_t{spec_.heads} * (l.nope_dim + l.value_dim), l.rank, both));
    const GgufTensor& tensor = *file_.find_tensor(weight("attn_kv_b"));
    LatentParts parts = split_kv_b(tensor, spec_.heads, l.nope_dim, l.value_dim);
    out.k_rows = std::move(parts.k_rows);
    out.v_rows = std::move(parts.v_rows);
    parts.k_b.name = parts.v_b.name = tensor.name;
    parts.k_b.rows = out.k_rows.get();
    parts.v_b.rows = out.v_rows.get();
    KV_RETURN_IF_ERROR(matrices_of(parts.k_b, spec_.heads, l.rank, l.nope_dim, k_b));
    KV_RETURN_IF_ERROR(matrices_of(parts.v_b, spec_.heads, l.value_dim, l.rank, v_b));
  } else {
    KV_RETURN_IF_ERROR(matrices(weight("attn_k_b"), spec_.heads, l.rank, l.nope_dim, k_b));
    KV_RETURN_IF_ERROR(matrices(weight("attn_v_b"), spec_.heads, l.value_dim, l.rank, v_b));
  }
  for (int64_t h = 0; h < spec_.heads; ++h) {
    out.k_b.push_back(rows_of(k_b, h * l.rank, l.rank));
    out.v_b.push_back(rows_of(v_b, h * l.value_dim, l.value_dim));
  }
  return {};
}

Status TableReader::feed_forward(int32_t index, LayerWeights& out) {
  if (spec_.layer(index).experts) return experts(index, out.experts);
  const int64_t dim = spec_.dim, ffn = spec_.ffn_dim;
  const auto weight = [index](std::string_view role) { return fmt::format("blk.{}.{}.weight", index, role); };
  const auto bias = [index](std::string_view role) { return fmt::format("blk.{}.{}.bias", index, role); };
  if (!spec_.gated) {
    KV_RETURN_IF_ERROR(matrix(weight("ffn_up"), ffn, dim, out.ffn_up));
    KV_RETURN_IF_ERROR(optional_vector(bias("ffn_up"), ffn, out.ffn_up_bias));
  } else {
    KV_RETURN_IF_ERROR(gate_and_up(weight("ffn_gate"), weight("ffn_up"), ffn, out.ffn_gate, out.ffn_up));
  }
  KV_RETURN_IF_ERROR(matrix(weight("ffn_down"), dim, ffn, out.ffn_down));
  return optional_vector(bias("ffn_down"), dim, out.ffn_down_bias);
}

Status TableReader::gate_and_up(const std::string& gate_name, const std::string& up_name, int64_t ffn,
                                WeightMatrix& gate, WeightMatrix& up) {
  const GgufTensor* found = file_.find_tensor(up_name);
  if (file_.find_tensor(gate_name) == nullptr && found != nullptr &&
      found->shape[1] == static_cast<uint64_t>(2 * ffn)) {
    WeightMatrix both;
    KV_RETURN_IF_ERROR(matrix(up_name, 2 * ffn, spec_.dim, both));
    gate = rows_of(both, 0, ffn);
    up = rows_of(both, ffn, ffn);
    return {};
  }
  KV_RETURN_IF_ERROR(matrix(gate_name, ffn, spec_.dim, gate));
  return matrix(up_name, ffn, spec_.dim, up);
}

// ---------------------------------------------------------------- experts

Status TableReader::experts(int32_t index, ExpertWeights& out) {
  const ExpertSpec& e = spec_.experts;
  const int64_t dim = spec_.dim, ffn = e.ffn_dim;
  const auto name = [index](std::string_view role) { return fmt::format("blk.{}.{}", index, role); };
  KV_RETURN_IF_ERROR(matrix(name("ffn_gate_inp.weight"), e.count, dim, out.router));
  KV_RETURN_IF_ERROR(optional_vector(name("ffn_gate_inp.bias"), e.count, out.router_bias));
  KV_RETURN_IF_ERROR(optional_vector(name("exp_probs_b.bias"), e.count, out.selection_bias));
  if (file_.find_tensor(name("ffn_gate_up_exps.weight")) != nullptr) {
    std::vector<WeightMatrix> both;
    KV_RETURN_IF_ERROR(stacked(index, "ffn_gate_up", 2 * ffn, dim, both));
    for (const WeightMatrix& m : both) {
      out.gate.push_back(rows_of(m, 0, ffn));
      out.up.push_back(rows_of(m, ffn, ffn));
    }
  } else {
    KV_RETURN_IF_ERROR(stacked(index, "ffn_gate", ffn, dim, out.gate));
    KV_RETURN_IF_ERROR(stacked(index, "ffn_up", ffn, dim, out.up));
  }
  KV_RETURN_IF_ERROR(stacked(index, "ffn_down", dim, ffn, out.down));
  KV_RETURN_IF_ERROR(optional_vectors(name("ffn_gate_exps.bias"), e.count, ffn, out.gate_bias));
  KV_RETURN_IF_ERROR(optional_vectors(name("ffn_up_exps.bias"), e.count, ffn, out.up_bias));
  KV_RETURN_IF_ERROR(optional_vectors(name("ffn_down_exps.bias"), e.count, dim, out.down_bias));
  if (out.gate_bias.empty() != out.up_bias.empty()) {
    return missing(name(out.gate_bias.empty() ? "ffn_gate_exps.bias" : "ffn_up_exps.bias"));
  }
  return e.shared_ffn_dim > 0 ? shared_expert(index, out) : Status();
}

Status TableReader::stacked(int32_t index, std::string_view role, int64_t rows, int64_t columns,
                            std::vector<WeightMatrix>& out) {
  const int64_t count = spec_.experts.count;
  const std::string whole = fmt::format("blk.{}.{}_exps.weight", index, role);
  const std::string first = fmt::format("blk.{}.{}.0.weight", index, role);
  out.resize(static_cast<size_t>(count));
  if (file_.find_tensor(whole) != nullptr || file_.find_tensor(first) == nullptr) {
    WeightMatrix all;
    KV_RETURN_IF_ERROR(matrices(whole, count, rows, columns, all));
    for (int64_t i = 0; i < count; ++i) out[static_cast<size_t>(i)] = rows_of(all, i * rows, rows);
    return {};
  }
  for (int64_t i = 0; i < count; ++i) {
    WeightMatrix& one = out[static_cast<size_t>(i)];
    KV_RETURN_IF_ERROR(matrix(fmt::format("blk.{}.{}.{}.weight", index, role, i), rows, columns, one));
    if (one.type == out[0].type) continue;
    return error(ErrorCode::kUnsupported,
                 "{}: the experts of layer {} are of several types; convert the model again", file_.origin(),
                 index);
  }
  return {};
}

Status TableReader::shared_expert(int32_t index, ExpertWeights& out) {
  const auto weight = [index](std::string_view role) { return fmt::format("blk.{}.{}.weight", index, role); };
  const int64_t ffn = spec_.experts.shared_ffn_dim;
  KV_RETURN_IF_ERROR(
      gate_and_up(weight("ffn_gate_shexp"), weight("ffn_up_shexp"), ffn, out.shared_gate, out.shared_up));
  KV_RETURN_IF_ERROR(matrix(weight("ffn_down_shexp"), spec_.dim, ffn, out.shared_down));
  if (file_.find_tensor(weight("ffn_gate_inp_shexp")) == nullptr) return {};
  return matrix(weight("ffn_gate_inp_shexp"), 1, spec_.dim, out.shared_router);
}

Status TableReader::account_for_the_rest() {
  size_t further = 0;  // of layers behind the last one
  for (const GgufTensor& tensor : file_.tensors()) {
    if (used_.contains(&tensor)) continue;
    const std::string name = gguf_quoted(tensor.name);
    const auto block = parse_layer_name(tensor.name);
    if (block && block->layer >= static_cast<uint64_t>(spec_.layers)) {
      if (block->layer < static_cast<uint64_t>(spec_.layers) + static_cast<uint64_t>(spec_.further_layers)) {
        ++further;
        continue;
      }
      return error(ErrorCode::kUnsupported,
                   "{}: the tensor {} lies beyond the model's {} layers; convert the model again",
                   file_.origin(), name, spec_.layers);
    }
    if (changes_result(tensor.name)) {
      return error(
          ErrorCode::kUnsupported,
          "{}: the tensor {} changes what the model computes and is not supported for {}; use another model",
          file_.origin(), name, spec_.architecture);
    }
    table_.warnings.push_back(fmt::format("{}: the tensor {} is not used", file_.origin(), name));
  }
  if (further > 0) {
    table_.warnings.push_back(
        fmt::format("{}: {} tensors of layers behind the last one are not used", file_.origin(), further));
  }
  return {};
}

}  // namespace

Result<ops::WeightType> weight_type_of(const Gguf& file, const GgufTensor& tensor) {
  if (const auto type = ops::weight_type_of_name(tensor.type->name)) return *type;
  return error(
      ErrorCode::kUnsupported,
      "{}: the tensor {} is of type {}, which is not supported; quantise the model as Q4_K_M or Q8_0, or "
      "convert it to BF16",
      file.origin(), gguf_quoted(tensor.name), tensor.type->name);
}

Result<TensorTable> read_tensor_table(const Gguf& file, const ModelSpec& spec) {
  return TableReader(file, spec).run();
}

}  // namespace kvasir
