#include "exec/gpu_reference_decoder.h"

#include <algorithm>
#include <utility>

#include "model/files/pair_order.h"
#include "model/files/rope_tables.h"
#include "ops/cpu/isa.h"
#include "ops/det_math.h"
#include "ops/numerics.h"

namespace kvasir::test {
namespace {

namespace reference = ops::reference;

std::vector<uint16_t> joined(std::vector<uint16_t> a, const std::vector<uint16_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

std::vector<float> reordered(const std::vector<float>& values, const std::vector<int64_t>& order) {
  std::vector<float> out = values;
  for (size_t i = 0; i < out.size() && !order.empty(); ++i) out[i] = values[static_cast<size_t>(order[i])];
  return out;
}

void append_bias(const std::vector<float>& bias, int64_t n, std::vector<float>& out) {
  out.insert(out.end(), bias.begin(), bias.end());
  if (bias.empty()) out.resize(out.size() + static_cast<size_t>(n));
}

const float* data_or_null(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

}  // namespace

GpuReferenceDecoder::Matrix::Matrix(std::vector<uint16_t> elements, int64_t of_n, int64_t of_k)
    : rows(std::move(elements)), n(of_n), k(of_k), lanes(rows.data(), n, k) {}

GpuReferenceDecoder::GpuReferenceDecoder(const ModelFile& file, uint32_t max_positions, By by)
    : file_(file),
      spec_(file.spec()),
      by_(by),
      embedding_(weights_of(file.weights().token_embedding)),
      output_(weights_of(file.weights().output_matrix()), spec_.vocab_size, spec_.dim),
      keys_(static_cast<size_t>(spec_.layers)),
      values_(static_cast<size_t>(spec_.layers)) {
  for (const LayerWeights& layer : file.weights().layers) layers_.push_back(layer_of(layer));
  if (spec_.learned_positions) positions_ = weights_of(file.weights().position_embedding);
  for (const Rope& rope : spec_.ropes) ropes_.push_back(rope_table(rope, max_positions));
}

std::vector<uint16_t> GpuReferenceDecoder::weights_of(const WeightMatrix& matrix,
                                                      const std::vector<int64_t>& order) {
  const auto k = static_cast<size_t>(matrix.columns);
  std::vector<uint16_t> out(static_cast<size_t>(matrix.rows) * k);
  std::vector<float> row(k);
  for (size_t i = 0; i < static_cast<size_t>(matrix.rows); ++i) {
    const auto from = order.empty() ? i : static_cast<size_t>(order[i]);
    ops::dequantize_row(matrix.type, matrix.data + from * matrix.row_bytes(), matrix.columns, row.data());
    reference::round_row(row.data(), matrix.columns, out.data() + i * k);
  }
  return out;
}

GpuReferenceDecoder::Layer GpuReferenceDecoder::layer_of(const LayerWeights& l) const {
  const ModelSpec& c = spec_;
  const auto q_order = pair_order(c, 0, c.q_dim()), k_order = pair_order(c, 0, c.kv_dim());
  auto qkv =
      joined(joined(weights_of(l.attn_q, q_order), weights_of(l.attn_k, k_order)), weights_of(l.attn_v));
  auto ffn_in = c.gated ? joined(weights_of(l.ffn_gate), weights_of(l.ffn_up)) : weights_of(l.ffn_up);
  Layer out = {{std::move(qkv), c.q_dim() + 2 * c.kv_dim(), c.dim},
               {weights_of(l.attn_output), c.dim, c.q_dim()},
               {std::move(ffn_in), c.ffn_inputs(), c.dim},
               {weights_of(l.ffn_down), c.dim, c.ffn_dim},
               {},
               reordered(l.q_norm, q_order),
               reordered(l.k_norm, k_order)};
  if (l.q_bias.empty() && l.k_bias.empty() && l.v_bias.empty()) return out;
  append_bias(reordered(l.q_bias, q_order), c.q_dim(), out.qkv_bias);
  append_bias(reordered(l.k_bias, k_order), c.kv_dim(), out.qkv_bias);
  append_bias(l.v_bias, c.kv_dim(), out.qkv_bias);
  return out;
}

std::vector<float> GpuReferenceDecoder::multiply(const std::vector<uint16_t>& x, const Matrix& w) const {
  std::vector<float> out(rows_ * static_cast<size_t>(w.n));
  if (by_ == By::kTwin) {
    ops::twin::gemm(ops::detect_isa(), x.data(), w.lanes, rows_, out.data());
  } else {
    reference::gemm(x.data(), w.rows.data(), rows_, w.n, w.k, out.data());
  }
  return out;
}

reference::Norm GpuReferenceDecoder::norm_of(const NormWeights& weights) const {
  const auto kind = spec_.norm == NormKind::kLayer ? reference::NormKind::kLayer : reference::NormKind::kRms;
  return {kind, data_or_null(weights.weight), data_or_null(weights.bias), spec_.norm_epsilon};
}

std::vector<uint16_t> GpuReferenceDecoder::normalised(const NormWeights& norm,
                                                      const std::vector<float>& x) const {
  std::vector<uint16_t> out(x.size());
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(spec_.dim)) {
    reference::normalise_to_operand(norm_of(norm), x.data() + at, spec_.dim, out.data() + at);
  }
  return out;
}

std::vector<float> GpuReferenceDecoder::embed(std::span<const Token> tokens) const {
  const auto dim = static_cast<size_t>(spec_.dim);
  std::vector<float> x(tokens.size() * dim);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const size_t learned = done_ + i + static_cast<size_t>(spec_.position_offset);
    reference::embed(embedding_.data() + static_cast<size_t>(tokens[i]) * dim, spec_.embedding_scale,
                     positions_.empty() ? nullptr : positions_.data() + learned * dim, spec_.dim,
                     x.data() + i * dim);
  }
  return x;
}

// Into q, and behind what the layer has of K and V.
void GpuReferenceDecoder::finish_qkv(size_t layer, const std::vector<float>& qkv, std::vector<uint16_t>& q) {
  const ModelSpec& c = spec_;
  const Layer& weights = layers_[layer];
  const auto q_dim = static_cast<size_t>(c.q_dim()), kv_dim = static_cast<size_t>(c.kv_dim());
  reference::QkvFinish how;
  how.heads = c.heads;
  how.kv_heads = c.kv_heads;
  how.head_dim = c.head_dim;
  how.bias = data_or_null(weights.qkv_bias);
  how.q_norm = data_or_null(weights.q_norm);
  how.k_norm = data_or_null(weights.k_norm);
  how.norm_of_row = c.qk_norm == QkNorm::kRow;
  how.norm_epsilon = c.norm_epsilon;
  const int32_t rope = c.layer_specs[layer].rope;
  q.resize(rows_ * q_dim);
  keys_[layer].resize((done_ + rows_) * kv_dim);
  values_[layer].resize((done_ + rows_) * kv_dim);
  for (uint32_t r = 0; r < rows_; ++r) {
    const uint32_t position = done_ + r;
    const ops::RopeTable* table = rope < 0 ? nullptr : &ropes_[static_cast<size_t>(rope)];
    const double temperature =
        1 + static_cast<double>(c.temperature_scale) *
                ops::det_log(1.0 + position / static_cast<uint32_t>(c.temperature_interval));
    reference::finish_qkv(
        how, qkv.data() + r * (q_dim + 2 * kv_dim), table ? table->cos_row(position) : nullptr,
        table ? table->sin_row(position) : nullptr, table ? table->half : 0,
        reference::query_factor(static_cast<double>(c.query_scale) * temperature), q.data() + r * q_dim,
        keys_[layer].data() + position * kv_dim, values_[layer].data() + position * kv_dim);
  }
}

std::vector<uint16_t> GpuReferenceDecoder::attend(size_t layer, const std::vector<uint16_t>& q) const {
  const ModelSpec& c = spec_;
  const int64_t group = c.queries_per_kv(), hd = c.head_dim, window = c.layer_specs[layer].window;
  const reference::Cap cap = reference::score_cap_of(c.score_cap);
  std::vector<uint16_t> out(q.size());
  for (int64_t r = 0; r < int64_t{rows_}; ++r) {
    const int64_t end = done_ + r + 1, first = window > 0 ? std::max<int64_t>(0, end - window) : 0;
    for (int64_t head = 0; head < c.kv_heads; ++head) {
      const int64_t at = r * c.q_dim() + head * group * hd;
      const uint16_t* k = keys_[layer].data() + head * hd;
      const uint16_t* v = values_[layer].data() + head * hd;
      if (by_ == By::kTwin) {
        ops::twin::attend(ops::detect_isa(), q.data() + at, group, k, v, c.kv_dim(), hd, first, end, cap,
                          out.data() + at);
        continue;
      }
      for (int64_t i = 0; i < group; ++i) {
        reference::attend(q.data() + at + i * hd, k, v, c.kv_dim(), hd, first, end, cap,
                          out.data() + at + i * hd);
      }
    }
  }
  return out;
}

std::vector<uint16_t> GpuReferenceDecoder::activate(size_t layer, const std::vector<float>& in) const {
  const auto n = static_cast<size_t>(spec_.ffn_dim), width = static_cast<size_t>(spec_.ffn_inputs());
  std::vector<uint16_t> out(rows_ * n);
  for (size_t r = 0; r < rows_; ++r) {
    const float* row = in.data() + r * width;
    if (!spec_.gated) {
      const std::vector<float>& bias = file_.weights().layers[layer].ffn_up_bias;
      reference::relu_bias(row, data_or_null(bias), spec_.ffn_dim, out.data() + r * n);
    } else if (spec_.activation == Activation::kSilu) {
      reference::silu_mul(row, spec_.ffn_dim, out.data() + r * n);
    } else {
      reference::gelu_mul(row, spec_.ffn_dim, out.data() + r * n);
    }
  }
  return out;
}

void GpuReferenceDecoder::add_branch(const std::vector<float>& bias, const NormWeights& post_norm,
                                     const std::vector<float>& y, std::vector<float>& x) const {
  const reference::Branch branch = {data_or_null(bias), norm_of(post_norm), spec_.residual_scale};
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(spec_.dim)) {
    reference::add_to_residual(branch, y.data() + at, spec_.dim, x.data() + at);
  }
}

std::vector<float> GpuReferenceDecoder::run(std::span<const Token> tokens) {
  const ops::KeepSubnormals mode;
  rows_ = static_cast<uint32_t>(tokens.size());
  std::vector<float> x = embed(tokens);
  for (size_t i = 0; i < layers_.size(); ++i) {
    const LayerWeights& weights = file_.weights().layers[i];
    std::vector<uint16_t> q;
    finish_qkv(i, multiply(normalised(weights.attn_norm, x), layers_[i].qkv), q);
    const std::vector<float> attended = multiply(attend(i, q), layers_[i].attn_output);
    add_branch(weights.attn_output_bias, weights.attn_post_norm, attended, x);
    const std::vector<float> in = multiply(normalised(weights.ffn_norm, x), layers_[i].ffn_in);
    add_branch(weights.ffn_down_bias, weights.ffn_post_norm, multiply(activate(i, in), layers_[i].ffn_down),
               x);
  }
  done_ += rows_;
  hidden_.resize(x.size());
  for (size_t at = 0; at < x.size(); at += static_cast<size_t>(spec_.dim)) {
    reference::normalise(norm_of(file_.weights().output_norm), x.data() + at, spec_.dim, hidden_.data() + at);
  }
  std::vector<float> logits = multiply(normalised(file_.weights().output_norm, x), output_);
  reference::finish_logits(spec_.logit_scale, reference::cap_of(spec_.logit_cap),
                           static_cast<int64_t>(logits.size()), logits.data());
  return logits;
}

}  // namespace kvasir::test
