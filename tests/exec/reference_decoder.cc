#include "exec/reference_decoder.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "exec/reference_math.h"
#include "ops/cpu/kernels.h"
#include "ops/det_math.h"
#include "ops/rope_table.h"
#include "support/block_weights.h"

namespace kvasir::test {
namespace {

float capped(float x, float cap) {
  return cap * (1.0f - 2.0f / (1.0f + exp_of(x * (2.0f / cap))));
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

}  // namespace

ReferenceDecoder::ReferenceDecoder(const ModelFile& file, ops::ActivationMode activation, ops::KvType kv_type)
    : file_(file), activation_(activation), kv_type_(kv_type) {
  const ModelSpec& c = file.spec();
  for (const Rope& rope : c.ropes) {
    ops::RopeSpec spec;
    spec.max_positions = c.context_length;
    spec.head_dim = rope.dim;
    spec.freq_base = rope.base;
    spec.linear_factor = rope.linear_factor;
    spec.freq_factors = rope.divisors;
    spec.attention_factor = rope.attention_factor;
    ropes_.push_back(ops::make_rope_table(spec));
  }
  keys_.resize(static_cast<size_t>(c.layers));
  values_.resize(static_cast<size_t>(c.layers));
  states_.resize(static_cast<size_t>(c.layers));
}

ReferenceDecoder::Quantized ReferenceDecoder::quantize(const std::vector<float>& x) {
  Quantized out;
  for (size_t g = 0; g < x.size(); g += 32) {
    float amax = 0;
    for (size_t i = 0; i < 32; ++i) amax = std::max(amax, std::fabs(x[g + i]));
    const float d = ops::f16_to_f32(ops::f32_to_f16(std::min(amax / 127.0f, 65504.0f)));
    for (size_t i = 0; i < 32; ++i) {
      float v = d == 0 ? 0 : std::nearbyint(x[g + i] * (1.0f / d));
      v = std::clamp(v, -127.0f, 127.0f);
      out.q.push_back(static_cast<int8_t>(v));
    }
    out.d.push_back(d);
  }
  return out;
}

namespace {

// Of a folder in another form a row is made into `made`.
const std::byte* stored_row(const WeightMatrix& w, int64_t row, std::vector<std::byte>& made) {
  if (w.made == nullptr) return w.data + static_cast<uint64_t>(row) * w.row_bytes();
  made.resize(w.row_bytes());
  w.made->read(w.first_made + row, made.data());
  return made.data();
}

}  // namespace

const std::vector<float>& ReferenceDecoder::columns_of(const WeightMatrix& w) const {
  std::vector<float>& columns = columns_[{w.data, w.first_made}];
  if (!columns.empty()) return columns;
  const auto n = static_cast<size_t>(w.rows), k = static_cast<size_t>(w.columns);
  columns.resize(n * k);
  std::vector<float> row(k);
  std::vector<std::byte> made;
  for (size_t i = 0; i < n; ++i) {
    ops::dequantize_row(w.type, stored_row(w, static_cast<int64_t>(i), made), w.columns, row.data());
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

const ReferenceDecoder::Int8Matrix& ReferenceDecoder::int8_of(const WeightMatrix& w) const {
  Int8Matrix& out = int8_[{w.data, w.first_made}];
  if (!out.q.empty()) return out;
  std::vector<std::byte> made;
  for (int64_t row = 0; row < w.rows; ++row) {
    const auto* data = reinterpret_cast<const uint8_t*>(stored_row(w, row, made));
    for (int64_t i = 0; i < w.columns; ++i) {
      const BlockWeight weight = block_weight(w.type, data, i);
      out.q.push_back(static_cast<int8_t>(weight.q));
      if (i % 16 == 0) {
        out.scale_factors.push_back(static_cast<int8_t>(weight.scale_factor));
        out.min_factors.push_back(static_cast<int8_t>(weight.min_factor));
      }
      if (i % 32 == 0) {
        out.scales.push_back(weight.scale);
        out.mins.push_back(weight.min);
      }
    }
  }
  return out;
}

// A scale S and a minimum B for each group of 32, or for each half of it.
float ReferenceDecoder::multiply_int8(const WeightMatrix& w, size_t row, const Quantized& x) const {
  const Int8Matrix& m = int8_of(w);
  const bool per_16 = has_scale_per_16(w.type), with_min = has_minimum(w.type);
  float acc = 0;
  for (size_t g = 0; g < x.d.size(); ++g) {
    const size_t group = row * x.d.size() + g;
    int32_t dots[2] = {}, sums[2] = {};
    for (size_t i = 0; i < 32; ++i) {
      dots[i / 16] += m.q[group * 32 + i] * x.q[g * 32 + i];
      sums[i / 16] += x.q[g * 32 + i];
    }
    const int8_t* factor = &m.scale_factors[2 * group];
    const int8_t* min_factor = &m.min_factors[2 * group];
    if (per_16) {
      float scales[2], mins[2];
      for (int half = 0; half < 2; ++half) {
        scales[half] = m.scales[group] * static_cast<float>(factor[half]);
        mins[half] = m.mins[group] * static_cast<float>(min_factor[half]);
      }
      float sum = scales[0] * static_cast<float>(dots[0]);
      sum = std::fma(scales[1], static_cast<float>(dots[1]), sum);
      for (int half = 0; half < 2 && with_min; ++half) {
        sum = std::fma(mins[half], static_cast<float>(sums[half]), sum);
      }
      acc = std::fma(x.d[g], sum, acc);
    } else {
      const float scale = m.scales[group] * static_cast<float>(factor[0]);
      const float min = m.mins[group] * static_cast<float>(min_factor[0]);
      acc = std::fma(scale * x.d[g], static_cast<float>(dots[0] + dots[1]), acc);
      if (with_min) acc = std::fma(min, x.d[g] * static_cast<float>(sums[0] + sums[1]), acc);
    }
  }
  return acc;
}

std::vector<float> ReferenceDecoder::norm(const std::vector<float>& x,
                                          const std::vector<float>& weight) const {
  return norm_of(x, weight, file_.spec().norm_epsilon);
}

std::vector<float> ReferenceDecoder::norm_of(const std::vector<float>& x, const std::vector<float>& weight,
                                             float epsilon) const {
  float lanes[16] = {};
  for (size_t i = 0; i < x.size(); ++i) lanes[i % 16] = std::fma(x[i], x[i], lanes[i % 16]);
  const float mean = tree_add(lanes, 16) / static_cast<float>(x.size());
  const float inv = 1.0f / std::sqrt(mean + epsilon);
  std::vector<float> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) out[i] = (x[i] * inv) * weight[i];
  return out;
}

std::vector<float> ReferenceDecoder::norm(std::vector<float> x, const NormWeights& weights) const {
  if (!weights.present()) return x;
  return file_.spec().norm == NormKind::kLayer ? layer_norm(x, weights) : norm(x, weights.weight);
}

std::vector<float> ReferenceDecoder::layer_norm(const std::vector<float>& x,
                                                const NormWeights& weights) const {
  const auto n = static_cast<float>(x.size());
  float sums[16] = {}, squares[16] = {};
  for (size_t i = 0; i < x.size(); ++i) sums[i % 16] = sums[i % 16] + x[i];
  const float mean = tree_add(sums, 16) / n;
  for (size_t i = 0; i < x.size(); ++i) {
    const float v = x[i] - mean;
    squares[i % 16] = std::fma(v, v, squares[i % 16]);
  }
  const float inverse = 1.0f / std::sqrt(tree_add(squares, 16) / n + file_.spec().norm_epsilon);
  std::vector<float> out(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    const float weighed = ((x[i] - mean) * inverse) * weights.weight[i];
    out[i] = weights.bias.empty() ? weighed : weighed + weights.bias[i];
  }
  return out;
}

void ReferenceDecoder::add_bias(size_t layer, size_t first, std::vector<float>& values) const {
  if (qkv_bias_.empty()) return;
  for (size_t i = 0; i < values.size(); ++i) values[i] = values[i] + qkv_bias_[layer][first + i];
}

std::vector<float> ReferenceDecoder::paired(size_t layer, std::vector<float> values) const {
  const ModelSpec& c = file_.spec();
  if (!c.split_pairs) return values;
  const auto hd = static_cast<size_t>(c.heads_of(static_cast<uint32_t>(layer)).head_dim);
  const int32_t rope = c.layer_specs[layer].rope;
  const auto half = static_cast<size_t>(c.ropes[static_cast<size_t>(rope < 0 ? 0 : rope)].dim / 2);
  std::vector<float> out = values;
  for (size_t h = 0; h < values.size(); h += hd) {
    for (size_t i = 0; i < half; ++i) {
      out[h + 2 * i] = values[h + i];
      out[h + 2 * i + 1] = values[h + half + i];
    }
  }
  return out;
}

std::vector<float> ReferenceDecoder::qk_norm(size_t layer, std::vector<float> values,
                                             const std::vector<float>& weight) const {
  if (weight.empty()) return values;
  const std::vector<float> paired_weight = paired(layer, weight);
  std::vector<float> out;
  for (size_t i = 0; i < values.size(); i += weight.size()) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(i);
    const auto part =
        norm(std::vector<float>(begin, begin + static_cast<std::ptrdiff_t>(weight.size())), paired_weight);
    out.insert(out.end(), part.begin(), part.end());
  }
  return out;
}

void ReferenceDecoder::rotate(size_t layer, float* head) const {
  const int32_t index = file_.spec().layer_specs[layer].rope;
  if (index < 0) return;
  const ops::RopeTable& rope = ropes_[static_cast<size_t>(index)];
  for (size_t i = 0; i < static_cast<size_t>(rope.half); ++i) {
    const float c = rope.cos_row(position_)[i], s = rope.sin_row(position_)[i];
    const float x0 = head[2 * i], x1 = head[2 * i + 1];
    head[2 * i] = std::fma(x0, c, -(x1 * s));
    head[2 * i + 1] = std::fma(x1, c, x0 * s);
  }
}

ReferenceDecoder::KvRow ReferenceDecoder::round_kv(size_t layer, std::vector<float> row) const {
  const HeadShape heads = file_.spec().heads_of(static_cast<uint32_t>(layer));
  const auto hd = static_cast<size_t>(heads.head_dim);
  KvRow out{std::move(row), std::vector<float>(static_cast<size_t>(heads.kv_heads), 1.0f)};
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

std::vector<float> ReferenceDecoder::latent_query(size_t layer, const std::vector<float>& normed) const {
  const ModelSpec& c = file_.spec();
  const LayerWeights& l = file_.weights().layers[layer];
  std::vector<float> all = multiply(l.attn_q, normed);
  if (c.latent.q_rank > 0) all = multiply(l.latent.q_b, norm(all, l.latent.q_a_norm));
  std::vector<float> out;
  auto at = all.begin();
  for (const WeightMatrix& up : l.latent.k_b) {
    const std::vector<float> nope(at, at + c.latent.nope_dim);
    std::vector<float> rope(at + c.latent.nope_dim, at + c.latent.nope_dim + c.latent.rope_dim);
    at += c.latent.nope_dim + c.latent.rope_dim;
    const std::vector<float> absorbed = multiply(up, nope);
    rotate(layer, rope.data());
    out.insert(out.end(), absorbed.begin(), absorbed.end());
    out.insert(out.end(), rope.begin(), rope.end());
  }
  return out;
}

std::vector<float> ReferenceDecoder::latent_row(size_t layer, const std::vector<float>& normed) const {
  const LatentWeights& l = file_.weights().layers[layer].latent;
  const std::vector<float> all = multiply(l.kv_a, normed);
  const auto rank = static_cast<std::ptrdiff_t>(file_.spec().latent.rank);
  std::vector<float> out = norm(std::vector<float>(all.begin(), all.begin() + rank), l.kv_a_norm);
  out.insert(out.end(), all.begin() + rank, all.end());
  rotate(layer, out.data() + rank);
  return out;
}

std::vector<float> ReferenceDecoder::latent_values(const LayerWeights& layer,
                                                   const std::vector<float>& attended) const {
  std::vector<float> out;
  auto at = attended.begin();
  for (const WeightMatrix& up : layer.latent.v_b) {
    const std::vector<float> value = multiply(up, std::vector<float>(at, at + up.columns));
    out.insert(out.end(), value.begin(), value.end());
    at += up.columns;
  }
  return out;
}

std::vector<float> ReferenceDecoder::attend(size_t layer, const std::vector<float>& q) const {
  const ModelSpec& c = file_.spec();
  const HeadShape heads = c.heads_of(static_cast<uint32_t>(layer));
  const auto hd = static_cast<size_t>(heads.head_dim),
             vd = c.is_latent() ? static_cast<size_t>(c.latent.rank) : hd;
  const int64_t window = c.layer_specs[layer].window;
  size_t first = window > 0 && position_ >= window ? position_ - static_cast<size_t>(window) + 1 : 0;
  if (window > 0 && c.layer_specs[layer].chunked) first = position_ - position_ % static_cast<size_t>(window);
  std::vector<float> out(static_cast<size_t>(c.heads) * vd);
  for (size_t h = 0; h < static_cast<size_t>(c.heads); ++h) {
    const size_t head = h / static_cast<size_t>(heads.heads / heads.kv_heads);
    const size_t kv = head * hd;
    // By leaf; those before the window stay empty.
    std::vector<Partial> leaves(position_ / 256 + 1);
    for (size_t number = first / 256; number < leaves.size(); ++number) {
      const size_t begin = number * 256;
      const size_t from = std::max(first, begin) - begin;
      const size_t n = std::min<size_t>(256, position_ + 1 - begin);
      Partial& leaf = leaves[number];
      leaf.m = -std::numeric_limits<float>::infinity();
      std::vector<float> e(n);
      for (size_t p = from; p < n; ++p) {
        const KvRow& key = keys_[layer][begin + p];
        for (size_t i = 0; i < hd; ++i) e[p] = std::fma(q[h * hd + i], key.values[kv + i], e[p]);
        e[p] = e[p] * key.scales[head];
        if (c.score_cap != 0) e[p] = capped(e[p], c.score_cap);
        leaf.m = std::max(leaf.m, e[p]);
      }
      float lanes[16] = {};
      leaf.o.assign(vd, 0.0f);
      for (size_t p = from; p < n; ++p) {
        e[p] = exp_of(e[p] - leaf.m);
        lanes[p % 16] = lanes[p % 16] + e[p];
        const KvRow& value = c.is_latent() ? keys_[layer][begin + p] : values_[layer][begin + p];
        const float weight = e[p] * value.scales[head];
        for (size_t i = 0; i < vd; ++i) leaf.o[i] = std::fma(weight, value.values[kv + i], leaf.o[i]);
      }
      leaf.l = tree_add(lanes, 16);
    }
    // Peaks of the aligned tree, from the left, folded left to right.
    Partial total;
    for (size_t begin = first / 256; begin < leaves.size();) {
      size_t size = 1;
      while (begin % (2 * size) == 0 && begin + 2 * size <= leaves.size()) size *= 2;
      const Partial peak = subtree(leaves, begin, size);
      total = total.o.empty() ? peak : merge(total, peak);
      begin += size;
    }
    const std::vector<float>& sinks = file_.weights().layers[layer].sinks;
    if (!sinks.empty()) total = merge(total, {sinks[h], 1.0f, std::vector<float>(vd)});
    for (size_t i = 0; i < vd; ++i) out[h * vd + i] = total.o[i] / total.l;
  }
  return out;
}

std::vector<float> ReferenceDecoder::embed(Token token) const {
  const ModelSpec& c = file_.spec();
  const auto row_of = [&c](const WeightMatrix& table, uint64_t row) {
    std::vector<float> out(static_cast<size_t>(c.dim));
    ops::dequantize_row(table.type, table.data + row * table.row_bytes(), c.dim, out.data());
    return out;
  };
  std::vector<float> x = row_of(file_.weights().token_embedding, static_cast<uint64_t>(token));
  for (float& f : x) f *= c.embedding_scale;
  if (!c.learned_positions) return x;
  add(x, row_of(file_.weights().position_embedding, position_ + static_cast<uint64_t>(c.position_offset)));
  return x;
}

float ReferenceDecoder::query_scale(size_t layer) const {
  const ModelSpec& c = file_.spec();
  if (c.temperature_scale == 0) return c.query_scale;
  if (c.temperature_without_rope && c.layer_specs[layer].rope >= 0) return c.query_scale;
  const uint32_t intervals = (position_ + static_cast<uint32_t>(c.temperature_offset)) /
                             static_cast<uint32_t>(c.temperature_interval);
  return static_cast<float>(c.query_scale * (1 + c.temperature_scale * ops::det_log(1.0 + intervals)));
}

std::vector<float> ReferenceDecoder::step(Token token) {
  const ModelSpec& c = file_.spec();
  const TensorTable& w = file_.weights();
  std::vector<float> x = embed(token);
  for (size_t layer = 0; layer < w.layers.size(); ++layer) {
    const auto hd = static_cast<size_t>(c.heads_of(static_cast<uint32_t>(layer)).head_dim);
    const LayerWeights& l = w.layers[layer];
    const auto normed = norm(x, l.attn_norm);
    if (l.recurrent.present()) {
      add_to(x, multiply(l.attn_output, recur(layer, normed)), {}, {});
      add_to(x, feed_forward(l, norm(x, l.ffn_norm)), {}, {});
      continue;
    }
    if (c.is_latent()) {
      auto latent_q = latent_query(layer, normed);
      for (float& f : latent_q) f *= query_scale(layer);
      keys_[layer].push_back(round_kv(layer, latent_row(layer, normed)));
      add_to(x, multiply(l.attn_output, latent_values(l, attend(layer, latent_q))), {}, {});
      add_to(x, feed_forward(l, norm(x, l.ffn_norm)), {}, {});
      continue;
    }
    auto q = multiply(l.attn_q, normed), k = multiply(l.attn_k, normed), v = multiply(l.attn_v, normed);
    std::vector<float> gates;
    if (c.output_gate) {
      std::vector<float> queries;
      for (size_t at = 0; at < q.size(); at += 2 * hd) {
        const auto head = q.begin() + static_cast<std::ptrdiff_t>(at),
                   gate = head + static_cast<std::ptrdiff_t>(hd);
        queries.insert(queries.end(), head, gate);
        gates.insert(gates.end(), gate, gate + static_cast<std::ptrdiff_t>(hd));
      }
      q = std::move(queries);
    }
    add(q, l.q_bias);
    add(k, l.k_bias);
    add(v, l.v_bias);
    add_bias(layer, 0, q);
    add_bias(layer, q.size(), k);
    add_bias(layer, q.size() + k.size(), v);
    q = qk_norm(layer, paired(layer, std::move(q)), l.q_norm);
    k = qk_norm(layer, paired(layer, std::move(k)), l.k_norm);
    v = qk_norm(layer, std::move(v), l.v_norm);
    for (size_t h = 0; h < q.size(); h += hd) rotate(layer, q.data() + h);
    for (size_t h = 0; h < k.size(); h += hd) rotate(layer, k.data() + h);
    const float scale = query_scale(layer);
    for (float& f : q) f *= scale;
    keys_[layer].push_back(round_kv(layer, std::move(k)));
    values_[layer].push_back(round_kv(layer, std::move(v)));
    std::vector<float> attended = attend(layer, q);
    for (size_t i = 0; i < gates.size(); ++i) attended[i] = attended[i] * (1.0f / (1.0f + exp_of(-gates[i])));
    add_to(x, multiply(l.attn_output, attended), l.attn_output_bias, l.attn_post_norm);
    add_to(x, feed_forward(l, c.parallel ? normed : norm(x, l.ffn_norm)), l.ffn_down_bias, l.ffn_post_norm);
    for (float& f : x) f *= l.output_scale.empty() ? 1.0f : l.output_scale[0];
  }
  ++position_;
  hidden_ = norm(x, w.output_norm);
  std::vector<float> logits = multiply(w.output_matrix(), hidden_);
  for (float& f : logits) f *= c.logit_scale;
  if (c.logit_cap != 0) {
    for (float& f : logits) f = capped(f, c.logit_cap);
  }
  return logits;
}

std::vector<float> ReferenceDecoder::feed_forward(const LayerWeights& layer,
                                                  const std::vector<float>& x) const {
  if (layer.experts.present()) return mix_experts(layer.experts, x);
  if (!file_.spec().gated) {
    auto up = multiply(layer.ffn_up, x);
    add(up, layer.ffn_up_bias);
    for (float& f : up) f = f > 0 ? f : 0.0f;
    return multiply(layer.ffn_down, up);
  }
  return gated(layer.ffn_gate, layer.ffn_up, layer.ffn_down, x);
}

std::vector<float> ReferenceDecoder::gated(const WeightMatrix& gate_matrix, const WeightMatrix& up_matrix,
                                           const WeightMatrix& down_matrix, const std::vector<float>& x,
                                           const Biases& biases) const {
  auto up = multiply(up_matrix, x);
  auto gate = multiply(gate_matrix, x);
  add(gate, biases.gate);
  add(up, biases.up);
  for (size_t i = 0; i < gate.size(); ++i) {
    // SiLU, or GELU by tanh: x * sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
    float g = gate[i];
    if (file_.spec().activation == Activation::kClampedSwiglu) {
      g = std::min(g, 7.0f);
      gate[i] = (g / (1.0f + exp_of(g * -1.702f))) * (std::clamp(up[i], -7.0f, 7.0f) + 1.0f);
      continue;
    }
    const float exponent = file_.spec().activation == Activation::kSilu
                               ? -g
                               : g * std::fma(g * g, -0x1.2444f2p-4f, -0x1.988454p+0f);
    gate[i] = (g / (1.0f + exp_of(exponent))) * up[i];
  }
  auto down = multiply(down_matrix, gate);
  add(down, biases.down);
  return down;
}

void ReferenceDecoder::add_to(std::vector<float>& x, std::vector<float> branch,
                              const std::vector<float>& bias, const NormWeights& post_norm) const {
  add(branch, bias);
  branch = norm(std::move(branch), post_norm);
  for (size_t i = 0; i < x.size(); ++i) x[i] = x[i] + branch[i] * file_.spec().residual_scale;
}

}  // namespace kvasir::test
