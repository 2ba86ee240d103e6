#include "exec/reference_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "ops/cpu/kernels.h"
#include "ops/rope_table.h"

namespace kvasir::test {
namespace {

// The engine's own exp: its error, its exact values and that all instruction sets agree have tests of their
// own. It takes sixteen lanes for one value, so the quickest set it is.
float exp_of(float x) {
  static const ops::Kernels& kernels = ops::kernels_for(ops::detect_isa());
  float out = 0;
  kernels.exp_shifted(&x, 0.0f, 1, &out);
  return out;
}

float tree_add(const float* lanes, int n) {
  float half[16];
  std::copy_n(lanes, n, half);
  for (int w = n / 2; w > 0; w /= 2) {
    for (int i = 0; i < w; ++i) half[i] = half[i] + half[i + w];
  }
  return half[0];
}

struct Partial {
  float m = 0, l = 0;
  std::vector<float> o;
};

Partial merge(const Partial& x, const Partial& y) {
  Partial r;
  r.m = std::max(x.m, y.m);
  const float a = exp_of(x.m - r.m), b = exp_of(y.m - r.m);
  r.l = std::fma(x.l, a, y.l * b);
  r.o.resize(x.o.size());
  for (size_t i = 0; i < r.o.size(); ++i) r.o[i] = std::fma(x.o[i], a, y.o[i] * b);
  return r;
}

// The aligned tree over leaves [begin, begin + count), count a power of two.
Partial subtree(const std::vector<Partial>& leaves, size_t begin, size_t count) {
  if (count == 1) return leaves[begin];
  return merge(subtree(leaves, begin, count / 2), subtree(leaves, begin + count / 2, count / 2));
}

float to_bf16(float x) {
  return ops::bf16_to_f32(ops::f32_to_bf16(x));
}

uint16_t u16(const std::byte* p) {
  uint16_t v;
  std::memcpy(&v, p, 2);
  return v;
}

}  // namespace

ReferenceDecoder::ReferenceDecoder(const ModelFile& file, ops::ActivationMode activation, ops::KvType kv_type)
    : file_(file), activation_(activation), kv_type_(kv_type) {
  const ModelConfig& c = file.config();
  ops::RopeSpec spec;
  spec.max_positions = c.context_length;
  spec.head_dim = c.head_dim;
  spec.freq_base = c.rope_base;
  spec.linear_factor = c.rope_linear_factor;
  spec.freq_factors = file.weights().rope_factors;
  const ops::RopeTable table = ops::make_rope_table(spec);
  cos_ = table.cos;
  sin_ = table.sin;
  keys_.resize(static_cast<size_t>(c.layers));
  values_.resize(static_cast<size_t>(c.layers));
}

ReferenceDecoder::Quantized ReferenceDecoder::quantize(const std::vector<float>& x) {
  Quantized out;
  for (size_t g = 0; g < x.size(); g += 32) {
    float amax = 0;
    for (size_t i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[g + i]));
    const float d = ops::f16_to_f32(ops::f32_to_f16(std::min(amax / 127.0f, 65504.0f)));
    int32_t sum = 0;
    for (size_t i = 0; i < 32; ++i) {
      float v = d == 0 ? 0 : std::nearbyint(x[g + i] * (1.0f / d));
      v = std::clamp(v, -127.0f, 127.0f);
      out.q.push_back(static_cast<int8_t>(v));
      sum += out.q.back();
    }
    out.d.push_back(d);
    out.sums.push_back(sum);
  }
  return out;
}

const std::vector<float>& ReferenceDecoder::columns_of(const WeightMatrix& w) const {
  std::vector<float>& columns = columns_[w.data];
  if (!columns.empty()) return columns;
  const auto n = static_cast<size_t>(w.rows), k = static_cast<size_t>(w.columns);
  columns.resize(n * k);
  std::vector<float> row(k);
  for (size_t i = 0; i < n; ++i) {
    ops::dequantize_row(w.type, w.data + i * w.row_bytes(), w.columns, row.data());
    for (size_t c = 0; c < k; ++c) columns[c * n + i] = row[c];
  }
  return columns;
}

std::vector<float> ReferenceDecoder::multiply(const WeightMatrix& w, const std::vector<float>& x) const {
  std::vector<float> out(static_cast<size_t>(w.rows), 0.0f);
  const bool rounded = activation_ == ops::ActivationMode::kAuto;
  if (rounded && ops::is_quantized(w.type)) {
    const Quantized a = quantize(x);
    for (size_t n = 0; n < out.size(); ++n) out[n] = multiply_int8(w, n, a);
    return out;
  }
  // Each output is one chain of fma over the columns.
  const float* columns = columns_of(w).data();
  const auto add = [&](float value, size_t column) {
    const float* weights = columns + column * out.size();
    for (size_t n = 0; n < out.size(); ++n) out[n] = std::fma(value, weights[n], out[n]);
  };
  if (!rounded || w.type != ops::WeightType::kBf16) {
    for (size_t k = 0; k < x.size(); ++k) add(x[k], k);
    return out;
  }
  // The odd element of each pair comes first; an odd length ends in a pair with +0, which changes no sum but
  // -0.
  for (size_t k = 0; k < x.size(); k += 2) {
    if (k + 1 < x.size()) {
      add(to_bf16(x[k + 1]), k + 1);
    } else {
      for (float& sum : out) sum = std::fma(0.0f, 0.0f, sum);
    }
    add(to_bf16(x[k]), k);
  }
  return out;
}

float ReferenceDecoder::multiply_int8(const WeightMatrix& w, size_t row, const Quantized& x) {
  const size_t block = w.type == ops::WeightType::kQ8_0 ? 34 : w.type == ops::WeightType::kQ4_0 ? 18 : 20;
  const std::byte* data = w.data + row * w.row_bytes();
  float acc = 0;
  for (size_t g = 0; g < x.d.size(); ++g) {
    const std::byte* p = data + g * block;
    const float d = ops::f16_to_f32(u16(p));
    int32_t dot = 0;
    for (size_t i = 0; i < 32; ++i) {
      int32_t q = 0;
      if (w.type == ops::WeightType::kQ8_0) {
        q = static_cast<int8_t>(p[2 + i]);
      } else {
        const std::byte* nibbles = p + (w.type == ops::WeightType::kQ4_0 ? 2 : 4);
        const int byte = static_cast<int>(nibbles[i % 16]);
        q = (i < 16 ? byte & 15 : byte >> 4) - (w.type == ops::WeightType::kQ4_0 ? 8 : 0);
      }
      dot += q * x.q[g * 32 + i];
    }
    acc = std::fma(d * x.d[g], static_cast<float>(dot), acc);
    if (w.type == ops::WeightType::kQ4_1) {
      acc = std::fma(ops::f16_to_f32(u16(p + 2)), x.d[g] * static_cast<float>(x.sums[g]), acc);
    }
  }
  return acc;
}

std::vector<float> ReferenceDecoder::norm(const std::vector<float>& x,
                                          const std::vector<float>& weight) const {
  float lanes[16] = {};
  for (size_t i = 0; i < x.size(); ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  const float mean = tree_add(lanes, 16) / static_cast<float>(x.size());
  const float inv = 1.0f / std::sqrt(mean + file_.config().rms_epsilon);
  std::vector<float> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = (x[i] * inv) * weight[i];
  return out;
}

void ReferenceDecoder::add_bias(size_t layer, size_t first, std::vector<float>& values) const {
  if (qkv_bias_.empty()) return;
  for (size_t i = 0; i < values.size(); ++i) values[i] = values[i] + qkv_bias_[layer][first + i];
}

void ReferenceDecoder::rotate(float* head) const {
  const auto half = static_cast<size_t>(file_.config().head_dim / 2);
  for (size_t i = 0; i < half; ++i) {
    const float c = cos_[position_ * half + i], s = sin_[position_ * half + i];
    const float x0 = head[2 * i], x1 = head[2 * i + 1];
    head[2 * i] = std::fma(x0, c, -(x1 * s));
    head[2 * i + 1] = std::fma(x1, c, x0 * s);
  }
}

ReferenceDecoder::KvRow ReferenceDecoder::round_kv(std::vector<float> row) const {
  const auto hd = static_cast<size_t>(file_.config().head_dim);
  KvRow out{std::move(row), std::vector<float>(static_cast<size_t>(file_.config().kv_heads), 1.0f)};
  for (size_t h = 0; h < out.scales.size(); ++h) {
    float* x = out.values.data() + h * hd;
    if (kv_type_ == ops::KvType::kBf16) {
      for (size_t i = 0; i < hd; ++i) x[i] = ops::bf16_to_f32(ops::f32_to_bf16(x[i]));
    }
    if (kv_type_ != ops::KvType::kQ8_0) continue;
    float amax = 0;
    for (size_t i = 0; i < hd; ++i) amax = std::max(amax, std::fabs(x[i]));
    const float d = ops::f16_to_f32(ops::f32_to_f16(std::min(amax / 127.0f, 65504.0f)));
    for (size_t i = 0; i < hd; ++i) {
      x[i] = d == 0 ? 0 : std::clamp(std::nearbyint(x[i] * (1.0f / d)), -127.0f, 127.0f);
    }
    out.scales[h] = d;
  }
  return out;
}

std::vector<float> ReferenceDecoder::attend(size_t layer, const std::vector<float>& q) const {
  const ModelConfig& c = file_.config();
  const auto hd = static_cast<size_t>(c.head_dim);
  std::vector<float> out(q.size());
  for (size_t h = 0; h < static_cast<size_t>(c.heads); ++h) {
    const size_t head = h / static_cast<size_t>(c.queries_per_kv());
    const size_t kv = head * hd;
    std::vector<Partial> leaves;
    for (size_t begin = 0; begin <= position_; begin += 256) {
      const size_t n = std::min<size_t>(256, position_ + 1 - begin);
      Partial leaf;
      leaf.m = -std::numeric_limits<float>::infinity();
      std::vector<float> e(n);
      for (size_t p = 0; p < n; ++p) {
        const KvRow& key = keys_[layer][begin + p];
        for (size_t i = 0; i < hd; ++i) e[p] = std::fma(q[h * hd + i], key.values[kv + i], e[p]);
        e[p] = e[p] * key.scales[head];
        leaf.m = std::max(leaf.m, e[p]);
      }
      float lanes[16] = {};
      leaf.o.assign(hd, 0.0f);
      for (size_t p = 0; p < n; ++p) {
        e[p] = exp_of(e[p] - leaf.m);
        lanes[p % 16] = lanes[p % 16] + e[p];
        const KvRow& value = values_[layer][begin + p];
        const float weight = e[p] * value.scales[head];
        for (size_t i = 0; i < hd; ++i) leaf.o[i] = std::fma(weight, value.values[kv + i], leaf.o[i]);
      }
      leaf.l = tree_add(lanes, 16);
      leaves.push_back(std::move(leaf));
    }
    // Peaks of the aligned tree, from the left, folded left to right.
    Partial total;
    for (size_t begin = 0; begin < leaves.size();) {
      size_t size = 1;
      while (begin + 2 * size <= leaves.size()) size *= 2;
      const Partial peak = subtree(leaves, begin, size);
      total = begin == 0 ? peak : merge(total, peak);
      begin += size;
    }
    for (size_t i = 0; i < hd; ++i) out[h * hd + i] = total.o[i] / total.l;
  }
  return out;
}

std::vector<float> ReferenceDecoder::step(Token token) {
  const ModelConfig& c = file_.config();
  const TensorTable& w = file_.weights();
  const auto hd = static_cast<size_t>(c.head_dim);
  std::vector<float> x(static_cast<size_t>(c.dim));
  ops::dequantize_row(w.token_embedding.type,
                      w.token_embedding.data + static_cast<uint64_t>(token) * w.token_embedding.row_bytes(),
                      c.dim, x.data());
  const float scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  for (size_t layer = 0; layer < w.layers.size(); ++layer) {
    const LayerWeights& l = w.layers[layer];
    const auto normed = norm(x, l.attn_norm);
    auto q = multiply(l.attn_q, normed), k = multiply(l.attn_k, normed), v = multiply(l.attn_v, normed);
    add_bias(layer, 0, q);
    add_bias(layer, q.size(), k);
    add_bias(layer, q.size() + k.size(), v);
    for (size_t h = 0; h < q.size(); h += hd) rotate(q.data() + h);
    for (size_t h = 0; h < k.size(); h += hd) rotate(k.data() + h);
    for (float& f : q) f *= scale;
    keys_[layer].push_back(round_kv(std::move(k)));
    values_[layer].push_back(round_kv(std::move(v)));
    const auto o = multiply(l.attn_output, attend(layer, q));
    for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] + o[i];

    const auto ffn = norm(x, l.ffn_norm);
    auto gate = multiply(l.ffn_gate, ffn);
    const auto up = multiply(l.ffn_up, ffn);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] = (gate[i] / (1.0f + exp_of(-gate[i]))) * up[i];
    const auto down = multiply(l.ffn_down, gate);
    for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] + down[i];
  }
  ++position_;
  hidden_ = norm(x, w.output_norm);
  return multiply(w.output_matrix(), hidden_);
}

}  // namespace kvasir::test
