#include "ops/gpu/twin.h"

#include <algorithm>

#include "base/check.h"
#include "base/leaf_tokens.h"
#include "base/mutant.h"
#include "ops/gpu/fused16.h"

namespace kvasir::ops::twin {
namespace {

constexpr int64_t kLeaf = kLeafTokens;

int64_t padded(int64_t n) {
  return (n + 15) / 16 * 16;
}

// Up to sixteen rows of k elements, `stride` apart, as a panel [k][16]; lanes without a row stay as they are.
void transpose(const uint16_t* rows, int64_t stride, int64_t count, int64_t k, uint16_t* panel) {
  for (int64_t j = 0; j < count; ++j) {
    for (int64_t i = 0; i < k; ++i) panel[i * kFusedLanes + j] = rows[j * stride + i];
  }
}

}  // namespace

Weights::Weights(const uint16_t* w, int64_t n, int64_t k)
    : n_(n), k_(k), padded_k_(padded(k)), panels_(static_cast<size_t>(padded(n) * padded_k_)) {
  KV_CHECK(n > 0 && k > 0, "n={} k={}", n, k);
  for (int64_t j = 0; j < n; j += kFusedLanes) {
    transpose(w + j * k, k, std::min(kFusedLanes, n - j), k, panels_.data() + j * padded_k_);
  }
}

void gemm(IsaClass isa, const uint16_t* x, const Weights& w, int64_t rows, float* out) {
  const Fused16Chains chains = fused16_chains(isa);
  std::vector<uint16_t> filled;
  if (w.padded_k_ != w.k_) {
    filled.resize(static_cast<size_t>(rows * w.padded_k_));
    for (int64_t r = 0; r < rows; ++r) std::copy_n(x + r * w.k_, w.k_, filled.data() + r * w.padded_k_);
    x = filled.data();
  }
  std::vector<float> sums(static_cast<size_t>(rows * kFusedLanes));
  for (int64_t j = 0; j < w.n_; j += kFusedLanes) {
    std::fill(sums.begin(), sums.end(), 0.0f);
    chains(x, w.padded_k_, rows, w.panels_.data() + j * w.padded_k_, w.padded_k_, sums.data(), kFusedLanes);
    const int64_t columns = std::min(kFusedLanes, w.n_ - j);
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(sums.data() + r * kFusedLanes, columns, out + r * w.n_ + j);
  }
}

void leaf(IsaClass isa, const uint16_t* q, int64_t heads, const uint16_t* k, const uint16_t* v,
          int64_t stride, int64_t head_dim, int64_t first, int64_t end, const reference::Cap& with,
          float* partials) {
  KV_CHECK(0 <= first && first < end && end <= kLeaf && head_dim % 16 == 0, "first={} end={} head_dim={}",
           first, end, head_dim);
  if (mutant(Mutant::kLeafOf128) && first < 128 && 128 < end) {
    std::vector<float> right(static_cast<size_t>(heads * reference::partial_floats(head_dim)));
    leaf(isa, q, heads, k, v, stride, head_dim, first, 128, with, partials);
    leaf(isa, q, heads, k, v, stride, head_dim, 128, end, with, right.data());
    for (int64_t h = 0; h < heads; ++h) {
      float* own = partials + h * reference::partial_floats(head_dim);
      reference::merge(own, right.data() + h * reference::partial_floats(head_dim), head_dim, own);
    }
    return;
  }
  const Fused16Chains chains = fused16_chains(isa);
  // Whole steps of sixteen positions, of which [first, end) are seen.
  const int64_t begin = first / 16 * 16, stop = padded(end);
  std::vector<float> scores(static_cast<size_t>(heads * kLeaf));
  std::vector<uint16_t> panel(static_cast<size_t>(std::max(head_dim, kLeaf) * kFusedLanes));
  for (int64_t p = begin; p < stop; p += kFusedLanes) {
    const int64_t seen = std::max(p, first);
    transpose(k + seen * stride, stride, std::min(p + kFusedLanes, end) - seen, head_dim,
              panel.data() + seen - p);
    chains(q, head_dim, heads, panel.data(), head_dim, scores.data() + p, kLeaf);
  }
  std::vector<uint16_t> e(static_cast<size_t>(heads * kLeaf));
  for (int64_t h = 0; h < heads; ++h) {
    reference::weigh_scores(scores.data() + h * kLeaf, first, end, with, e.data() + h * kLeaf,
                            partials + h * reference::partial_floats(head_dim));
  }
  for (int64_t d = 0; d < head_dim; d += kFusedLanes) {
    std::fill(panel.begin(), panel.end(), uint16_t{0});
    const int64_t read = mutant(Mutant::kValueTailUnmasked) ? stop : end;
    for (int64_t p = first; p < read; ++p) {
      std::copy_n(v + p * stride + d, kFusedLanes, panel.data() + (p - begin) * kFusedLanes);
    }
    std::vector<float> sums(static_cast<size_t>(heads * kFusedLanes));
    chains(e.data() + begin, kLeaf, heads, panel.data(), stop - begin, sums.data(), kFusedLanes);
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(sums.data() + h * kFusedLanes, kFusedLanes,
                  partials + h * reference::partial_floats(head_dim) + 2 + d);
    }
  }
}

void attend(IsaClass isa, const uint16_t* q, int64_t heads, const uint16_t* k, const uint16_t* v,
            int64_t stride, int64_t head_dim, int64_t first, int64_t end, const reference::Cap& with,
            uint16_t* out) {
  const LeafRun run = reference::leaves_of(first, end);
  const int64_t record = reference::partial_floats(head_dim);
  std::vector<float> of_leaf(static_cast<size_t>(heads * record));
  std::vector<float> leaves(static_cast<size_t>(heads * run.leaves() * record));
  for (uint32_t i = 0; i < run.leaves(); ++i) {
    const int64_t begin = int64_t{run.first + i} * kLeaf;
    leaf(isa, q, heads, k + begin * stride, v + begin * stride, stride, head_dim,
         std::max<int64_t>(first - begin, 0), std::min(end - begin, kLeaf), with, of_leaf.data());
    for (int64_t h = 0; h < heads; ++h) {
      std::copy_n(of_leaf.data() + h * record, record, leaves.data() + (h * run.leaves() + i) * record);
    }
  }
  for (int64_t h = 0; h < heads; ++h) {
    float* own = leaves.data() + h * run.leaves() * record;
    reference::merge_leaves(run, head_dim, own);
    reference::finish_attention(own, head_dim, out + h * head_dim);
  }
}

}  // namespace kvasir::ops::twin
