#include "ops/gpu/reference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/leaf_tokens.h"
#include "ops/gpu/fused16.h"
#include "ops/leaf_run.h"
#include "ops/numerics.h"

namespace kvasir::ops::reference {
namespace {

constexpr double kLog2E = 0x1.71547652b82fep+0;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// A chain of fused16 over k from +0, where element i of a and b lies at i * stride.
float chain(const uint16_t* a, const uint16_t* b, int64_t b_stride, int64_t k) {
  float acc = 0;
  for (int64_t first = 0; first < k; first += kFusedProducts) {
    uint16_t x[kFusedProducts] = {}, y[kFusedProducts] = {};
    for (int64_t i = 0; i < std::min(kFusedProducts, k - first); ++i) {
      x[i] = a[first + i];
      y[i] = b[(first + i) * b_stride];
    }
    acc = fused16(acc, x, y);
  }
  return acc;
}

float larger(float a, float b) {
  return a > b ? a : b;
}

class NormPartials {
 public:
  float& operator[](int64_t element) { return partials_[static_cast<size_t>(element % kNormPartials)]; }
  float sum() {
    for (size_t width = kNormPartials / 2; width > 0; width /= 2) {
      for (size_t i = 0; i < width; ++i) partials_[i] = partials_[i] + partials_[i + width];
    }
    return partials_[0];
  }

 private:
  std::array<float, kNormPartials> partials_{};
};

float inverse_deviation(float sum_of_squares, int64_t n, float epsilon) {
  return 1.0f / std::sqrt(sum_of_squares / static_cast<float>(n) + epsilon);
}

}  // namespace

// ---------------------------------------------------------------- products

void gemm(const uint16_t* x, const uint16_t* w, int64_t rows, int64_t n, int64_t k, float* out) {
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < n; ++j) out[i * n + j] = chain(x + i * k, w + j * k, 1, k);
  }
}

// ---------------------------------------------------------------- functions of one value

float exp2(float x) {
  constexpr float kMagic = 0x1.8p+23f;
  const float y = x > 127.0f ? 127.0f : x;
  const float t = y + kMagic;
  const float n = t - kMagic;
  const float r = y - n;
  // Minimax for the relative error on [-1/2, 1/2].
  float p = std::fma(0x1.5bba0ep-10f, r, 0x1.3cea88p-7f);
  p = std::fma(p, r, 0x1.c6b704p-5f);
  p = std::fma(p, r, 0x1.ebf9b8p-3f);
  p = std::fma(p, r, 0x1.62e42ap-1f);
  p = std::fma(p, r, 1.0f);
  // n stands in the low bits of t.
  const float power = std::bit_cast<float>((std::bit_cast<uint32_t>(t) << 23) + 0x3F800000u);
  return x < -126.0f ? 0.0f : p * power;
}

float cap(float x, const Cap& with) {
  return with.limit * (1.0f - 2.0f / (1.0f + exp2(x * with.factor)));
}

Cap cap_of(float limit) {
  if (limit == 0) return {};
  return {limit, static_cast<float>(2 * kLog2E / static_cast<double>(limit))};
}

Cap score_cap_of(float limit) {
  if (limit == 0) return {};
  return {static_cast<float>(kLog2E * static_cast<double>(limit)),
          static_cast<float>(2 / static_cast<double>(limit))};
}

float silu(float gate) {
  constexpr auto kFactor = static_cast<float>(-kLog2E);
  return gate / (1.0f + exp2(gate * kFactor));
}

float gelu(float gate) {
  constexpr double kRootTwoOverPi = 0x1.9884533d43651p-1;
  constexpr double kLinear = -2 * kLog2E * kRootTwoOverPi;
  constexpr auto kC1 = static_cast<float>(kLinear), kC3 = static_cast<float>(0.044715 * kLinear);
  return gate / (1.0f + exp2(gate * std::fma(gate * gate, kC3, kC1)));
}

float relu(float x) {
  return x > 0.0f ? x : 0.0f;
}

// ---------------------------------------------------------------- rows

void round_row(const float* x, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = f32_to_bf16(x[i]);
}

void embed(const uint16_t* row, float scale, const uint16_t* position, int64_t n, float* out) {
  for (int64_t i = 0; i < n; ++i) {
    out[i] = bf16_to_f32(row[i]);
    if (scale != 1) out[i] = out[i] * scale;
    if (position != nullptr) out[i] = out[i] + bf16_to_f32(position[i]);
  }
}

namespace {

void rms_norm(const Norm& norm, const float* x, int64_t n, float* out) {
  NormPartials squares;
  for (int64_t i = 0; i < n; ++i) squares[i] = std::fma(x[i], x[i], squares[i]);
  const float inverse = inverse_deviation(squares.sum(), n, norm.epsilon);
  for (int64_t i = 0; i < n; ++i) out[i] = (x[i] * inverse) * norm.weight[i];
}

void layer_norm(const Norm& norm, const float* x, int64_t n, float* out) {
  NormPartials sums, squares;
  for (int64_t i = 0; i < n; ++i) sums[i] = sums[i] + x[i];
  const float mean = sums.sum() / static_cast<float>(n);
  for (int64_t i = 0; i < n; ++i) {
    const float centred = x[i] - mean;
    squares[i] = std::fma(centred, centred, squares[i]);
  }
  const float inverse = inverse_deviation(squares.sum(), n, norm.epsilon);
  for (int64_t i = 0; i < n; ++i) {
    const float weighed = ((x[i] - mean) * inverse) * norm.weight[i];
    out[i] = norm.bias == nullptr ? weighed : weighed + norm.bias[i];
  }
}

}  // namespace

void normalise(const Norm& norm, const float* x, int64_t n, float* out) {
  if (norm.weight == nullptr) {
    std::copy_n(x, n, out);
  } else if (norm.kind == NormKind::kRms) {
    rms_norm(norm, x, n, out);
  } else {
    layer_norm(norm, x, n, out);
  }
}

void normalise_to_operand(const Norm& norm, const float* x, int64_t n, uint16_t* out) {
  std::vector<float> row(static_cast<size_t>(n));
  normalise(norm, x, n, row.data());
  round_row(row.data(), n, out);
}

void add_to_residual(const Branch& branch, const float* y, int64_t n, float* x) {
  std::vector<float> row(y, y + n);
  for (size_t i = 0; branch.bias != nullptr && i < row.size(); ++i) row[i] = row[i] + branch.bias[i];
  normalise(branch.post_norm, row.data(), n, row.data());
  for (size_t i = 0; i < row.size(); ++i) {
    x[i] = x[i] + (branch.scale == 1 ? row[i] : row[i] * branch.scale);
  }
}

void silu_mul(const float* gate_up, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = f32_to_bf16(silu(gate_up[i]) * gate_up[n + i]);
}

void gelu_mul(const float* gate_up, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = f32_to_bf16(gelu(gate_up[i]) * gate_up[n + i]);
}

void relu_bias(const float* up, const float* bias, int64_t n, uint16_t* out) {
  for (int64_t i = 0; i < n; ++i) out[i] = f32_to_bf16(relu(bias == nullptr ? up[i] : up[i] + bias[i]));
}

// ---------------------------------------------------------------- Q, K and V

void rope(const float* cos, const float* sin, int64_t half, float* head) {
  for (int64_t i = 0; i < half; ++i) {
    const float x0 = head[2 * i], x1 = head[2 * i + 1];
    head[2 * i] = std::fma(x0, cos[i], -(x1 * sin[i]));
    head[2 * i + 1] = std::fma(x1, cos[i], x0 * sin[i]);
  }
}

void finish_qkv(const QkvFinish& how, const float* qkv, const float* cos, const float* sin, int64_t half,
                float q_factor, uint16_t* q, uint16_t* k, uint16_t* v) {
  const int64_t q_dim = how.heads * how.head_dim, kv_dim = how.kv_heads * how.head_dim;
  std::vector<float> row(qkv, qkv + q_dim + 2 * kv_dim);
  for (size_t i = 0; how.bias != nullptr && i < row.size(); ++i) row[i] = row[i] + how.bias[i];
  const auto norm_and_turn = [&](const float* weight, int64_t width, float* x) {
    const int64_t each = how.norm_of_row ? width : how.head_dim;
    const Norm norm = {NormKind::kRms, weight, nullptr, how.norm_epsilon};
    for (int64_t i = 0; i < width; i += each) normalise(norm, x + i, each, x + i);
    for (int64_t i = 0; i < width; i += how.head_dim) rope(cos, sin, half, x + i);
  };
  float* q_row = row.data();
  float* k_row = q_row + q_dim;
  norm_and_turn(how.q_norm, q_dim, q_row);
  norm_and_turn(how.k_norm, kv_dim, k_row);
  for (int64_t i = 0; i < q_dim; ++i) q_row[i] = q_row[i] * q_factor;
  round_row(q_row, q_dim, q);
  round_row(k_row, kv_dim, k);
  round_row(k_row + kv_dim, kv_dim, v);
}

float query_factor(double scale) {
  return static_cast<float>(scale * kLog2E);
}

// ---------------------------------------------------------------- attention

void weigh_scores(float* scores, int64_t first, int64_t end, const Cap& with, uint16_t* e, float* partial) {
  float m = -kInfinity;
  for (int64_t p = first; p < end; ++p) {
    if (with.limit != 0) scores[p] = cap(scores[p], with);
    m = larger(scores[p], m);
  }
  float sums[8] = {};
  for (int64_t p = first; p < end; ++p) {
    e[p] = f32_to_bf16(exp2(scores[p] - m));
    sums[p % 8] = sums[p % 8] + bf16_to_f32(e[p]);
  }
  partial[0] = m;
  partial[1] = ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}

void leaf(const uint16_t* q, const uint16_t* k, const uint16_t* v, int64_t stride, int64_t head_dim,
          int64_t first, int64_t end, const Cap& with, float* partial) {
  KV_CHECK(0 <= first && first < end && end <= int64_t{kLeafTokens}, "first={} end={}", first, end);
  float scores[kLeafTokens];
  for (int64_t p = first; p < end; ++p) scores[p] = chain(q, k + p * stride, 1, head_dim);
  uint16_t e[kLeafTokens] = {};
  weigh_scores(scores, first, end, with, e, partial);
  for (int64_t d = 0; d < head_dim; ++d) {
    uint16_t column[kLeafTokens] = {};
    for (int64_t p = first; p < end; ++p) column[p] = v[p * stride + d];
    partial[2 + d] = chain(e, column, 1, kLeafTokens);
  }
}

void merge(const float* left, const float* right, int64_t head_dim, float* out) {
  const float m = larger(left[0], right[0]);
  const float a = exp2(left[0] - m), b = exp2(right[0] - m);
  out[0] = m;
  for (int64_t i = 1; i < partial_floats(head_dim); ++i) out[i] = std::fma(left[i], a, right[i] * b);
}

LeafRun leaves_of(int64_t first, int64_t end) {
  KV_CHECK(0 <= first && first < end, "first={} end={}", first, end);
  return {static_cast<uint32_t>(first / kLeafTokens), static_cast<uint32_t>((end - 1) / kLeafTokens + 1)};
}

void merge_leaves(LeafRun run, int64_t head_dim, float* leaves) {
  const int64_t record = partial_floats(head_dim);
  const auto at = [&](uint32_t leaf) { return leaves + int64_t{leaf - run.first} * record; };
  for_each_subtree(run, [&](int level, uint32_t begin) {
    const uint32_t end = begin + (uint32_t{1} << level);
    for (uint32_t width = 1; begin + width < end; width *= 2) {
      for (uint32_t i = begin; i < end; i += 2 * width) merge(at(i), at(i + width), head_dim, at(i));
    }
    if (begin != run.first) merge(leaves, at(begin), head_dim, leaves);
  });
}

void finish_attention(const float* partial, int64_t head_dim, uint16_t* out) {
  const float inverse = 1.0f / partial[1];
  for (int64_t d = 0; d < head_dim; ++d) out[d] = f32_to_bf16(partial[2 + d] * inverse);
}

void attend(const uint16_t* q, const uint16_t* k, const uint16_t* v, int64_t stride, int64_t head_dim,
            int64_t first, int64_t end, const Cap& with, uint16_t* out) {
  const LeafRun run = leaves_of(first, end);
  std::vector<float> leaves(static_cast<size_t>(run.leaves() * partial_floats(head_dim)));
  for (uint32_t i = 0; i < run.leaves(); ++i) {
    const int64_t begin = int64_t{run.first + i} * kLeafTokens;
    leaf(q, k + begin * stride, v + begin * stride, stride, head_dim, std::max<int64_t>(first - begin, 0),
         std::min<int64_t>(end - begin, kLeafTokens), with, leaves.data() + i * partial_floats(head_dim));
  }
  merge_leaves(run, head_dim, leaves.data());
  finish_attention(leaves.data(), head_dim, out);
}

// ---------------------------------------------------------------- logits and the draw

void finish_logits(float scale, const Cap& with, int64_t n, float* logits) {
  for (int64_t i = 0; i < n; ++i) {
    if (scale != 1) logits[i] = logits[i] * scale;
    if (with.limit != 0) logits[i] = cap(logits[i], with);
  }
}

namespace {

uint64_t weight_of(float logit, float largest, float factor) {
  return static_cast<uint64_t>(exp2((logit - largest) * factor) * 0x1p40f);
}

// floor(bits * sum / 2^64)
uint64_t point_of(uint64_t bits, uint64_t sum) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(bits) * sum) >> 64);
}

}  // namespace

float draw_factor(float temperature) {
  if (temperature <= 0) return 0;
  return static_cast<float>(std::min(kLog2E / static_cast<double>(temperature),
                                     static_cast<double>(std::numeric_limits<float>::max())));
}

int32_t draw(const float* logits, int64_t n, const Draw& how) {
  return draw(logits, n, how, draw_factor(how.temperature));
}

int32_t draw(const float* logits, int64_t n, const Draw& how, float factor) {
  KV_CHECK(0 < n && n < (int64_t{1} << 23), "n={}", n);
  std::vector<float> seen(logits, logits + n);
  std::replace_if(
      seen.begin(), seen.end(), [](float x) { return std::isnan(x); }, -kInfinity);
  const auto best = std::max_element(seen.begin(), seen.end());
  if (factor == 0 || !std::isfinite(*best)) return static_cast<int32_t>(best - seen.begin());

  std::vector<size_t> order(seen.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return seen[a] > seen[b]; });
  if (how.top_k > 0 && how.top_k < n) order.resize(static_cast<size_t>(how.top_k));
  std::vector<uint64_t> weights;
  for (size_t id : order) weights.push_back(weight_of(seen[id], *best, factor));
  uint64_t sum = std::accumulate(weights.begin(), weights.end(), uint64_t{0});
  if (how.top_p < 1) {
    const double wanted = std::ceil(how.top_p * static_cast<double>(sum));
    const uint64_t least = std::min(sum, static_cast<uint64_t>(wanted));
    sum = 0;
    size_t kept = 0;
    while (sum < least) sum += weights[kept++];
    order.resize(std::max<size_t>(kept, 1));
    sum = std::max(sum, weights[0]);
  }
  std::vector<uint64_t> kept_weights(seen.size());
  for (size_t i = 0; i < order.size(); ++i) kept_weights[order[i]] = weights[i];
  const uint64_t point = point_of(how.bits, sum);
  uint64_t before = 0;
  size_t id = 0;
  while (before + kept_weights[id] <= point) before += kept_weights[id++];
  return static_cast<int32_t>(id);
}

}  // namespace kvasir::ops::reference
