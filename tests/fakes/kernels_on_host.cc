#include "fakes/kernels_on_host.h"

#include <algorithm>

#include "base/leaf_tokens.h"
#include "ops/cpu/isa.h"
#include "ops/gpu/layouts.h"
#include "ops/numerics.h"

namespace kvasir::test {
namespace {

using namespace ops::gpu;
namespace reference = ops::reference;

constexpr int64_t kLeaf = kLeafTokens;

int64_t first_seen(const RowPlace& row, int32_t window) {
  return window > 0 ? std::max<int64_t>(0, int64_t{row.position} + 1 - window) : 0;
}

}  // namespace

std::vector<uint16_t> KernelsOnHost::row_of(const uint16_t* image, int64_t row, int32_t k) const {
  const int64_t k_tiles = ops::tiles_for(k), strip = k_tiles * ops::kTileElements;
  const uint16_t* const from = memory_.at(image + row / ops::kTileRows * strip, static_cast<uint64_t>(strip));
  std::vector<uint16_t> out(static_cast<size_t>(k));
  for (int32_t i = 0; i < k; ++i) {
    out[static_cast<size_t>(i)] = from[ops::operand_offset(row % ops::kTileRows, i, k_tiles)];
  }
  return out;
}

void KernelsOnHost::put_row(uint16_t* image, int64_t row, const std::vector<uint16_t>& values) const {
  const int64_t k_tiles = ops::tiles_for(static_cast<int>(values.size()));
  const int64_t strip = k_tiles * ops::kTileElements;
  uint16_t* const to = memory_.at(image + row / ops::kTileRows * strip, static_cast<uint64_t>(strip));
  for (int64_t i = 0; i < k_tiles * ops::kTileK; ++i) {
    to[ops::operand_offset(row % ops::kTileRows, i, k_tiles)] =
        i < static_cast<int64_t>(values.size()) ? values[static_cast<size_t>(i)] : uint16_t{0};
  }
}

reference::Norm KernelsOnHost::norm_of(const NormArgs& norm, int32_t n) const {
  if (norm.kind == NormOf::kNone) return {};
  const auto count = static_cast<uint64_t>(n);
  return {norm.kind == NormOf::kLayer ? reference::NormKind::kLayer : reference::NormKind::kRms,
          memory_.at(norm.weight, count), memory_.at_or_null(norm.bias, count), norm.epsilon};
}

const ops::twin::Weights& KernelsOnHost::weights_of(const GemmArgs& args) {
  std::unique_ptr<ops::twin::Weights>& kept = weights_[{args.weights, args.n, args.k}];
  if (kept == nullptr) {
    std::vector<uint16_t> rows;
    for (int32_t j = 0; j < args.n; ++j) {
      const std::vector<uint16_t> row = row_of(args.weights, j, args.k);
      rows.insert(rows.end(), row.begin(), row.end());
    }
    kept = std::make_unique<ops::twin::Weights>(rows.data(), args.n, args.k);
  }
  return *kept;
}

void KernelsOnHost::run(const EmbedArgs& a) {
  const RowPlace* const rows = memory_.at(a.rows, static_cast<uint64_t>(a.count));
  for (int32_t r = 0; r < a.count; ++r) {
    const int32_t token =
        rows[r].token >= 0 ? rows[r].token : *memory_.at(a.earlier + (-1 - rows[r].token), 1);
    const std::vector<uint16_t> row = row_of(a.table, token, a.dim);
    std::vector<uint16_t> position;
    if (a.positions != nullptr) {
      position = row_of(a.positions, int64_t{rows[r].position} + a.position_offset, a.dim);
    }
    reference::embed(row.data(), a.scale, position.empty() ? nullptr : position.data(), a.dim,
                     memory_.at(a.x + int64_t{r} * a.dim, static_cast<uint64_t>(a.dim)));
  }
}

void KernelsOnHost::run(const NormRowsArgs& a) {
  const reference::Norm norm = norm_of(a.norm, a.n);
  const auto n = static_cast<uint64_t>(a.n);
  std::vector<float> y(n);
  std::vector<uint16_t> rounded(n);
  for (int32_t r = 0; r < a.count; ++r) {
    const int64_t from = a.source == nullptr ? r : *memory_.at(a.source + r, 1);
    reference::normalise(norm, memory_.at(a.x + from * a.x_stride, n), a.n, y.data());
    if (a.values != nullptr) std::copy(y.begin(), y.end(), memory_.at(a.values + int64_t{r} * a.n, n));
    if (a.image == nullptr) continue;
    reference::round_row(y.data(), a.n, rounded.data());
    put_row(a.image, r, rounded);
  }
}

void KernelsOnHost::run(const GemmArgs& a) {
  const auto n = static_cast<size_t>(a.n);
  std::vector<uint16_t> x;
  for (int32_t r = 0; r < a.rows; ++r) {
    const std::vector<uint16_t> row = row_of(a.x, r, a.k);
    x.insert(x.end(), row.begin(), row.end());
  }
  std::vector<float> product(static_cast<size_t>(a.rows) * n);
  ops::twin::gemm(ops::detect_isa(), x.data(), weights_of(a), a.rows, product.data());
  for (int32_t r = 0; r < a.rows; ++r) {
    float* const out = memory_.at(a.out + r * a.out_stride, n);
    const float* const row = product.data() + static_cast<size_t>(r) * n;
    for (size_t j = 0; j < n; ++j) out[j] = a.accumulate != 0 ? out[j] + row[j] : row[j];
  }
}

uint16_t* KernelsOnHost::kv_of(const KvLayer& kv, uint32_t slice, uint32_t block, int32_t head,
                               bool is_k) const {
  const SlicePlace& place = *memory_.at(kv.slices + slice, 1);
  KvPlace at = {KvPlace::kAbsent, KvPlace::kAbsent};
  if (block >= place.staged_begin && block < place.staged_end) {
    const uint64_t entry = place.first_staged + uint64_t{kv.layer} * (place.staged_end - place.staged_begin) +
                           block - place.staged_begin;
    at = *memory_.at(kv.staged + entry, 1);
  }
  if (at.k == KvPlace::kAbsent) {
    const KvPlace& frame = *memory_.at(place.table + uint64_t{block} * kv.groups + kv.group, 1);
    at = {frame.k + kv.layer_offset, frame.v + kv.layer_offset};
  }
  const auto elements = static_cast<uint64_t>(kv.block_tokens) * static_cast<uint64_t>(kv.head_dim);
  auto* const plane = reinterpret_cast<uint16_t*>(kv.memory + (is_k ? at.k : at.v));
  return memory_.at(plane + static_cast<uint64_t>(head) * elements, elements);
}

void KernelsOnHost::run(const FinishQkvArgs& a) {
  const int32_t head_dim = a.kv.head_dim, q_dim = a.heads * head_dim, kv_dim = a.kv.kv_heads * head_dim;
  const int32_t width = q_dim + 2 * kv_dim;
  const auto norm_width = [&](int32_t row) {
    return static_cast<uint64_t>(a.norm_of_row != 0 ? row : head_dim);
  };
  reference::QkvFinish how;
  how.heads = a.heads;
  how.kv_heads = a.kv.kv_heads;
  how.head_dim = head_dim;
  how.bias = memory_.at_or_null(a.bias, static_cast<uint64_t>(width));
  how.q_norm = memory_.at_or_null(a.q_norm, norm_width(q_dim));
  how.k_norm = memory_.at_or_null(a.k_norm, norm_width(kv_dim));
  how.norm_of_row = a.norm_of_row != 0;
  how.norm_epsilon = a.norm_epsilon;
  const RowPlace* const rows = memory_.at(a.rows, static_cast<uint64_t>(a.count));
  std::vector<uint16_t> k(static_cast<size_t>(kv_dim)), v(static_cast<size_t>(kv_dim));
  for (int32_t r = 0; r < a.count; ++r) {
    const RowPlace& row = rows[r];
    const auto half = static_cast<uint64_t>(a.half);
    const bool turns = a.half > 0;
    reference::finish_qkv(
        how, memory_.at(a.qkv + int64_t{r} * width, static_cast<uint64_t>(width)),
        turns ? memory_.at(a.cos + int64_t{row.position} * a.half, half) : nullptr,
        turns ? memory_.at(a.sin + int64_t{row.position} * a.half, half) : nullptr, a.half, row.query_factor,
        memory_.at(a.q + int64_t{r} * q_dim, static_cast<uint64_t>(q_dim)), k.data(), v.data());
    if (memory_.at(a.kv.slices + row.slice, 1)->left_out != 0) continue;
    const auto tokens = static_cast<int>(a.kv.block_tokens);
    const auto token = static_cast<int>(row.position % a.kv.block_tokens);
    for (int32_t head = 0; head < a.kv.kv_heads; ++head) {
      for (const bool is_k : {true, false}) {
        uint16_t* const to = kv_of(a.kv, row.slice, row.position / a.kv.block_tokens, head, is_k);
        const uint16_t* const from = (is_k ? k : v).data() + head * head_dim;
        for (int d = 0; d < head_dim; ++d) to[ops::kv_head_offset(token, d, head_dim, tokens)] = from[d];
      }
    }
  }
}

void KernelsOnHost::run(const CopyXArgs& a) {
  const XRun* const runs = memory_.at(a.runs, static_cast<uint64_t>(a.count));
  const int64_t row_elements = ops::x_row_elements(a.dim);
  for (int32_t i = 0; i < a.count; ++i) {
    const XRun& run = runs[i];
    if (memory_.at(a.slices + run.slice, 1)->left_out != 0) continue;
    auto* const block = memory_.at(reinterpret_cast<uint16_t*>(a.memory + run.x + a.layer_offset),
                                   a.block_tokens * static_cast<uint64_t>(row_elements));
    for (uint32_t t = 0; t < run.tokens; ++t) {
      const int64_t row = int64_t{run.first_row} + t;
      uint16_t* const kept = block + (run.first_position % a.block_tokens + t) * row_elements;
      if (a.to_image != 0) {
        put_row(a.image, row, {kept, kept + a.dim});
      } else {
        const std::vector<uint16_t> from = row_of(a.image, row, a.dim);
        std::fill(std::copy(from.begin(), from.end(), kept), kept + row_elements, uint16_t{0});
      }
    }
  }
}

void KernelsOnHost::run(const FinishKvArgs& a) {
  const int32_t head_dim = a.kv.head_dim, kv_dim = a.kv.kv_heads * head_dim;
  const auto width = static_cast<size_t>(kv_dim), half = static_cast<size_t>(a.half);
  reference::QkvFinish how;
  how.kv_heads = a.kv.kv_heads;
  how.head_dim = head_dim;
  how.bias = memory_.at_or_null(a.bias, 2 * width);
  how.k_norm = memory_.at_or_null(a.k_norm, a.norm_of_row != 0 ? width : static_cast<size_t>(head_dim));
  how.norm_of_row = a.norm_of_row != 0;
  how.norm_epsilon = a.norm_epsilon;
  const XRun* const runs = memory_.at(a.runs, static_cast<uint64_t>(a.count));
  const auto tokens = static_cast<int>(a.kv.block_tokens);
  std::vector<uint16_t> k(width), v(width);
  for (int32_t i = 0; i < a.count; ++i) {
    const XRun& run = runs[i];
    if (memory_.at(a.kv.slices + run.slice, 1)->left_out != 0) continue;
    for (uint32_t t = 0; t < run.tokens; ++t) {
      const uint32_t position = run.first_position + t;
      const float* const product =
          memory_.at(a.product + (int64_t{run.first_row} + t) * a.stride + a.first_k, 2 * width);
      const bool turns = a.half > 0;
      reference::finish_qkv(how, product,
                            turns ? memory_.at(a.cos + int64_t{position} * a.half, half) : nullptr,
                            turns ? memory_.at(a.sin + int64_t{position} * a.half, half) : nullptr, a.half, 1,
                            nullptr, k.data(), v.data());
      for (const bool is_k : {true, false}) {
        auto* const plane =
            memory_.at(reinterpret_cast<uint16_t*>(a.kv.memory + (is_k ? run.to.k : run.to.v)),
                       static_cast<uint64_t>(tokens) * width);
        const auto token = static_cast<int>(position % a.kv.block_tokens);
        for (int32_t d = 0; d < kv_dim; ++d) {
          plane[ops::kv_offset(d / head_dim, token, d % head_dim, head_dim, tokens)] =
              (is_k ? k : v)[static_cast<size_t>(d)];
        }
      }
    }
  }
}

void KernelsOnHost::run_piece(const LeafArgs& a, const LeafWork& work, int32_t kv_head) const {
  const int32_t head_dim = a.kv.head_dim, group = a.heads / a.kv.kv_heads;
  const RowPlace* const rows = memory_.at(a.rows + work.first_row, static_cast<uint64_t>(work.rows));
  const int64_t origin = int64_t{work.leaf} * kLeaf;
  const auto in_leaf = [&](int64_t position) { return std::clamp<int64_t>(position - origin, 0, kLeaf); };
  const int64_t begin = in_leaf(first_seen(rows[0], a.window));
  const int64_t end = in_leaf(int64_t{rows[work.rows - 1].position} + 1);
  // Positions that no row sees are not numbers.
  std::vector<uint16_t> k(static_cast<size_t>(kLeaf * head_dim), 0xFFFF), v = k;
  const auto tokens = static_cast<int64_t>(a.kv.block_tokens);
  for (int64_t p = begin / tokens * tokens; p < end; p += tokens) {
    const auto block = static_cast<uint32_t>((origin + p) / tokens);
    for (const bool is_k : {true, false}) {
      const uint16_t* const from = kv_of(a.kv, rows[0].slice, block, kv_head, is_k);
      uint16_t* const to = (is_k ? k : v).data() + p * head_dim;
      for (int64_t t = std::max(begin - p, int64_t{0}); t < std::min(tokens, end - p); ++t) {
        for (int d = 0; d < head_dim; ++d) {
          to[t * head_dim + d] =
              from[ops::kv_head_offset(static_cast<int>(t), d, head_dim, static_cast<int>(tokens))];
        }
      }
    }
  }
  const auto record = static_cast<uint64_t>(reference::partial_floats(head_dim));
  for (int32_t r = 0; r < work.rows; ++r) {
    const int64_t first = in_leaf(first_seen(rows[r], a.window)),
                  stop = in_leaf(int64_t{rows[r].position} + 1);
    if (first >= stop) continue;
    const uint16_t* const q =
        memory_.at(a.q + (int64_t{work.first_row + r} * a.heads + int64_t{kv_head} * group) * head_dim,
                   static_cast<uint64_t>(group) * static_cast<uint64_t>(head_dim));
    float* const out =
        memory_.at(a.partials + ((rows[r].first_record + work.leaf) * a.heads + int64_t{kv_head} * group) *
                                    static_cast<int64_t>(record),
                   static_cast<uint64_t>(group) * record);
    ops::twin::leaf(ops::detect_isa(), q, group, k.data(), v.data(), head_dim, head_dim, first, stop,
                    {a.cap.limit, a.cap.factor}, out);
  }
}

void KernelsOnHost::run(const LeafArgs& a) {
  const LeafWork* const work = memory_.at(a.work, static_cast<uint64_t>(a.count));
  for (int32_t i = 0; i < a.count; ++i) {
    const uint32_t slice = memory_.at(a.rows + work[i].first_row, 1)->slice;
    if (memory_.at(a.kv.slices + slice, 1)->left_out != 0) continue;
    for (int32_t head = 0; head < a.kv.kv_heads; ++head) run_piece(a, work[i], head);
  }
}

void KernelsOnHost::run(const MergeArgs& a) {
  const RowPlace* const rows = memory_.at(a.rows, static_cast<uint64_t>(a.count));
  const auto record = static_cast<uint64_t>(reference::partial_floats(a.head_dim));
  const auto head_dim = static_cast<size_t>(a.head_dim);
  for (int32_t r = 0; r < a.count; ++r) {
    std::vector<uint16_t> out(static_cast<size_t>(a.heads) * head_dim);
    const bool left_out = memory_.at(a.slices + rows[r].slice, 1)->left_out != 0;
    const ops::LeafRun run =
        reference::leaves_of(first_seen(rows[r], a.window), int64_t{rows[r].position} + 1);
    for (int32_t head = 0; head < a.heads && !left_out; ++head) {
      std::vector<float> leaves;
      for (uint32_t i = 0; i < run.leaves(); ++i) {
        const int64_t at = (rows[r].first_record + run.first + i) * a.heads + head;
        const float* const from = memory_.at(a.partials + at * static_cast<int64_t>(record), record);
        leaves.insert(leaves.end(), from, from + record);
      }
      reference::merge_leaves(run, a.head_dim, leaves.data());
      reference::finish_attention(leaves.data(), a.head_dim,
                                  out.data() + static_cast<size_t>(head) * head_dim);
    }
    put_row(a.image, r, out);
  }
}

void KernelsOnHost::run(const ActivateArgs& a) {
  const auto n = static_cast<uint64_t>(a.n);
  const uint64_t width = a.kind == Activate::kRelu ? n : 2 * n;
  const float* const bias = memory_.at_or_null(a.bias, n);
  std::vector<uint16_t> out(n);
  for (int32_t r = 0; r < a.count; ++r) {
    const float* const in = memory_.at(a.in + static_cast<uint64_t>(r) * width, width);
    if (a.kind == Activate::kSilu) reference::silu_mul(in, a.n, out.data());
    if (a.kind == Activate::kGelu) reference::gelu_mul(in, a.n, out.data());
    if (a.kind == Activate::kRelu) reference::relu_bias(in, bias, a.n, out.data());
    put_row(a.image, r, out);
  }
}

void KernelsOnHost::run(const AddBranchArgs& a) {
  const auto n = static_cast<uint64_t>(a.n);
  const reference::Branch branch = {memory_.at_or_null(a.bias, n), norm_of(a.norm, a.n), a.scale};
  for (int32_t r = 0; r < a.count; ++r) {
    reference::add_to_residual(branch, memory_.at(a.y + int64_t{r} * a.n, n), a.n,
                               memory_.at(a.x + int64_t{r} * a.n, n));
  }
}

void KernelsOnHost::run(const DrawArgs& a) {
  const auto n = static_cast<uint64_t>(a.vocabulary);
  for (int32_t r = 0; r < a.count; ++r) {
    float* const logits = memory_.at(a.logits + int64_t{r} * a.vocabulary, n);
    reference::finish_logits(a.scale, {a.cap.limit, a.cap.factor}, a.vocabulary, logits);
    const DrawPlace& place = *memory_.at(a.draws + r, 1);
    const reference::Draw how = {0, place.top_k, place.top_p, place.bits};
    *memory_.at(a.tokens + r, 1) = reference::draw(logits, a.vocabulary, how, place.factor);
  }
}

}  // namespace kvasir::test
