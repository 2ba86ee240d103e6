// Frames of K and V, the leaf kernel, and the merge tree, in every instruction set.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/mutant.h"
#include "ops/attention_tree.h"
#include "reference.h"

namespace kvasir::ops {
namespace {

// A sequence's leaf in frames of one layer group, every byte that was never written being NaN.
class Leaf {
 public:
  Leaf(const KvShape& shape, int64_t layer, int64_t kv_head, int64_t tokens, uint64_t seed)
      : shape_(shape), layer_(layer), kv_head_(kv_head) {
    Random random(seed);
    const int64_t blocks = kLeafTokens / shape.block_tokens;
    for (int64_t b = 0; b < blocks; ++b) {
      k_planes_.emplace_back(kv_plane_bytes(shape));
      v_planes_.emplace_back(kv_plane_bytes(shape));
      std::memset(k_planes_.back().data(), 0xFF, k_planes_.back().size());
      std::memset(v_planes_.back().data(), 0xFF, v_planes_.back().size());
    }
    for (int64_t p = 0; p < tokens; ++p) append(random, p);
    const size_t offset = kv_tile_offset(shape, layer, kv_head);
    for (int64_t b = 0; b < blocks; ++b) {
      const bool used = b * shape.block_tokens < tokens;
      k_tiles_.push_back(used ? k_planes_[static_cast<size_t>(b)].data() + offset : nullptr);
      v_tiles_.push_back(used ? v_planes_[static_cast<size_t>(b)].data() + offset : nullptr);
    }
  }

  AttentionLeafArgs args() const {
    AttentionLeafArgs a;
    a.head_dim = shape_.head_dim;
    a.k_tiles = k_tiles_.data();
    a.v_tiles = v_tiles_.data();
    a.block_tokens = shape_.block_tokens;
    a.type = shape_.type;
    return a;
  }
  const ReferenceRows& k() const { return k_; }
  const ReferenceRows& v() const { return v_; }

 private:
  void append(Random& random, int64_t p) {
    const auto k_row = random_floats(random, shape_.kv_heads * shape_.head_dim, 2.0f);
    const auto v_row = random_floats(random, shape_.kv_heads * shape_.head_dim, 2.0f);
    const auto block = static_cast<size_t>(p / shape_.block_tokens);
    kernels_for(IsaClass::kPortable)
        .write_kv(shape_, layer_, p % shape_.block_tokens, k_row.data(), v_row.data(),
                  k_planes_[block].data(), v_planes_[block].data());
    k_.append(shape_.type, k_row.data() + kv_head_ * shape_.head_dim, shape_.head_dim);
    v_.append(shape_.type, v_row.data() + kv_head_ * shape_.head_dim, shape_.head_dim);
  }

  KvShape shape_;
  int64_t layer_;
  int64_t kv_head_;
  std::vector<AlignedBytes> k_planes_, v_planes_;
  std::vector<const void*> k_tiles_, v_tiles_;
  ReferenceRows k_, v_;
};

// The record of one row: [m: heads][l: heads][o: heads][head_dim].
std::vector<float> reference_record(const Leaf& leaf, const float* q, int64_t heads, int64_t dim,
                                    int64_t valid) {
  std::vector<float> m, l, o;
  for (int64_t h = 0; h < heads; ++h) {
    const std::vector<float> row(q + h * dim, q + (h + 1) * dim);
    const auto p = reference_leaf(row, leaf.k(), leaf.v(), valid);
    m.push_back(p.m);
    l.push_back(p.l);
    o.insert(o.end(), p.o.begin(), p.o.end());
  }
  m.insert(m.end(), l.begin(), l.end());
  m.insert(m.end(), o.begin(), o.end());
  return m;
}

std::vector<float> run_leaf(const Kernels& kernels, const Leaf& leaf, const std::vector<float>& q,
                            int64_t heads, int64_t dim, const std::vector<int32_t>& valid) {
  AttentionLeafArgs a = leaf.args();
  a.q = q.data();
  a.q_stride = heads * dim;
  a.rows = static_cast<int64_t>(valid.size());
  a.heads = heads;
  a.valid = valid.data();
  a.out_stride = partial_floats(heads, dim);
  std::vector<float> out(static_cast<size_t>(a.rows * a.out_stride), -7.0f);
  a.out = out.data();
  kernels.attention_leaf(a);
  return out;
}

TEST(KvFrame, SizesAndPlaces) {
  const KvShape shape{2, 3, 32, 64, KvType::kBf16};
  EXPECT_TRUE(is_valid(shape));
  EXPECT_FALSE(is_valid({2, 3, 24, 64, KvType::kBf16}));
  EXPECT_FALSE(is_valid({2, 3, 32, 48, KvType::kBf16}));
  EXPECT_EQ(kv_plane_bytes(shape), 2u * 3 * 32 * 64 * 2);
  EXPECT_EQ(kv_tile_offset(shape, 1, 2), (3u + 2) * 32 * 64 * 2);

  std::vector<uint16_t> k(kv_plane_bytes(shape) / 2), v(k.size());
  std::vector<float> k_row(96), v_row(96);
  for (size_t i = 0; i < 96; ++i) k_row[i] = static_cast<float>(i + 1), v_row[i] = -k_row[i];
  kernels_for(IsaClass::kPortable).write_kv(shape, 1, 21, k_row.data(), v_row.data(), k.data(), v.data());
  const size_t tile = kv_tile_offset(shape, 1, 2) / 2;
  // Token 21 is lane 5 of the second run of 16; head 2's element 7 is number 71 of the row.
  EXPECT_EQ(bf16_to_f32(k[tile + 32 * 16 + 7 * 16 + 5]), 72.0f);
  EXPECT_EQ(bf16_to_f32(v[tile + 21 * 32 + 7]), -72.0f);
  size_t written = 0;
  for (uint16_t x : k) written += x != 0;
  EXPECT_EQ(written, 96u);
}

TEST(KvFrame, ScalesLieBesideTheirRun) {
  const KvShape shape{2, 3, 32, 64, KvType::kQ8_0};
  EXPECT_EQ(kv_row_bytes(KvType::kQ8_0, 32), 34);
  EXPECT_EQ(kv_plane_bytes(shape), 2u * 3 * 64 * 34);
  EXPECT_EQ(kv_tile_offset(shape, 1, 2), (3u + 2) * 64 * 34);
  AlignedBytes k(kv_plane_bytes(shape)), v(k.size());
  std::vector<float> k_row(96), v_row(96);
  for (size_t i = 0; i < 96; ++i) k_row[i] = static_cast<float>(i + 1), v_row[i] = -254;
  v_row[71] = 127;
  kernels_for(IsaClass::kPortable).write_kv(shape, 1, 21, k_row.data(), v_row.data(), k.data(), v.data());
  const size_t run = kv_tile_offset(shape, 1, 2) + kv_run_bytes(shape);
  const auto scale = [&](AlignedBytes& plane) {
    uint16_t bits;
    std::memcpy(&bits, plane.data() + run + 16 * 32 + 2 * 5, 2);
    return f16_to_f32(bits);
  };
  // Token 21 is lane 5 of the second run; head 2 has 65..96 in K.
  EXPECT_EQ(scale(k), f16_to_f32(f32_to_f16(96.0f / 127.0f)));
  EXPECT_EQ(k.data()[run + 31 * 16 + 5], 127);
  EXPECT_EQ(scale(v), 2.0f);
  EXPECT_EQ(static_cast<int8_t>(v.data()[run + 5 * 32 + 6]), -127);
  EXPECT_EQ(static_cast<int8_t>(v.data()[run + 5 * 32 + 7]), 64);  // 63.5, to even
}

// What a plane must hold after a token's row was written into it.
void reference_write(const KvShape& shape, int64_t layer, int64_t token, const float* row, bool is_k,
                     uint8_t* plane) {
  const int64_t lane = token % 16;
  for (int64_t head = 0; head < shape.kv_heads; ++head) {
    const float* x = row + head * shape.head_dim;
    uint8_t* run =
        plane + kv_tile_offset(shape, layer, head) + static_cast<size_t>(token / 16) * kv_run_bytes(shape);
    const ReferenceRow quantized = reference_quantize(x, shape.head_dim, shape.head_dim);
    for (int64_t i = 0; i < shape.head_dim; ++i) {
      const int64_t at = is_k ? i * 16 + lane : lane * shape.head_dim + i;
      const uint16_t half = f32_to_bf16(x[i]);
      if (shape.type == KvType::kF32) std::memcpy(run + 4 * at, x + i, 4);
      if (shape.type == KvType::kBf16) std::memcpy(run + 2 * at, &half, 2);
      if (shape.type == KvType::kQ8_0) run[at] = static_cast<uint8_t>(quantized.q[static_cast<size_t>(i)]);
    }
    if (shape.type == KvType::kQ8_0) {
      std::memcpy(run + 16 * shape.head_dim + 2 * lane, quantized.d.data(), 2);
    }
  }
}

// Rows with values at every edge: ties, NaN of both signs and with payloads, infinities, zeros, tiny and
// huge.
std::vector<std::vector<float>> rows_at_the_edges(int64_t n) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float payload = std::bit_cast<float>(0xFF800001u);
  Random random(31);
  std::vector<std::vector<float>> rows;
  for (float scale : {1.0f, 1e-3f, 1e-4f, 1e-6f, 1e-37f, 1e30f, 0.0f})
    rows.push_back(random_floats(random, n, scale));
  for (uint32_t low : {0x7FFFu, 0x8000u, 0x8001u, 0x18000u}) {
    auto ties = random_floats(random, n);
    for (float& x : ties) x = std::bit_cast<float>((std::bit_cast<uint32_t>(x) & 0xFFFE0000u) | low);
    rows.push_back(ties);
  }
  for (float odd : {std::numeric_limits<float>::quiet_NaN(), payload, kInf, -kInf, 3.4e38f, 1e-44f, 8.4e6f}) {
    auto row = random_floats(random, n, 3.0f);
    for (size_t i = 3; i < row.size(); i += 7) row[i] = odd;
    rows.push_back(row);
  }
  auto halves = random_floats(random, n);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<float>(i % 255) - 127.0f + 0.5f;
  halves[0] = 127;
  rows.push_back(halves);
  return rows;
}

TEST(KvFrame, EveryInstructionSetWritesTheReferencesBytes) {
  for (KvType type : kKvTypes) {
    for (int64_t dim : {16, 80, 128}) {
      const KvShape shape{2, 2, dim, 32, type};
      const auto rows = rows_at_the_edges(2 * dim);
      for_each_isa([&](const Kernels& kernels) {
        AlignedBytes k(kv_plane_bytes(shape)), v(k.size()), want_k(k.size()), want_v(k.size());
        for (size_t i = 0; i < rows.size(); ++i) {
          const auto token = static_cast<int64_t>(i);
          const float* v_row = rows[rows.size() - 1 - i].data();
          kernels.write_kv(shape, 1, token, rows[i].data(), v_row, k.data(), v.data());
          reference_write(shape, 1, token, rows[i].data(), true, want_k.data());
          reference_write(shape, 1, token, v_row, false, want_v.data());
        }
        EXPECT_EQ(std::memcmp(k.data(), want_k.data(), k.size()), 0) << kv_type_name(type) << " " << dim;
        EXPECT_EQ(std::memcmp(v.data(), want_v.data(), v.size()), 0) << kv_type_name(type) << " " << dim;
      });
    }
  }
}

class LeafShapes : public testing::TestWithParam<std::tuple<int64_t, int64_t, KvType>> {};

TEST_P(LeafShapes, MatchesTheFormula) {
  // Named one by one: clang does not capture structured bindings.
  const int64_t dim = std::get<0>(GetParam());
  const int64_t heads = std::get<1>(GetParam());
  const KvType type = std::get<2>(GetParam());
  set_flush_to_zero();
  int64_t block = 16;
  for (int32_t n : {1, 15, 16, 17, 63, 64, 65, 255, 256}) {
    const Leaf leaf({2, 3, dim, block, type}, 1, 2, n, static_cast<uint64_t>(n));
    block = block == 256 ? 16 : block * 2;
    Random random(static_cast<uint64_t>(dim));
    const auto q = random_floats(random, heads * dim);
    const auto want = reference_record(leaf, q.data(), heads, dim, n);
    for_each_isa([&](const Kernels& kernels) {
      const auto got = run_leaf(kernels, leaf, q, heads, dim, {n});
      ASSERT_TRUE(same_bits(want, got, "n=" + std::to_string(n)));
    });
  }
}

TEST_P(LeafShapes, ManyRowsAreTheSameAsRowByRow) {
  // Named one by one: clang does not capture structured bindings.
  const int64_t dim = std::get<0>(GetParam());
  const int64_t heads = std::get<1>(GetParam());
  const KvType type = std::get<2>(GetParam());
  set_flush_to_zero();
  const Leaf leaf({1, 1, dim, 64, type}, 0, 0, 140, 77);
  const std::vector<int32_t> valid = {127, 128, 129, 130, 131, 1, 140, 64, 16, 17, 139};
  Random random(12);
  const auto q = random_floats(random, static_cast<int64_t>(valid.size()) * heads * dim);
  std::vector<float> want;
  for (size_t r = 0; r < valid.size(); ++r) {
    const float* row = q.data() + r * static_cast<size_t>(heads * dim);
    const auto record = reference_record(leaf, row, heads, dim, valid[r]);
    want.insert(want.end(), record.begin(), record.end());
  }
  for_each_isa([&](const Kernels& kernels) {
    EXPECT_TRUE(same_bits(want, run_leaf(kernels, leaf, q, heads, dim, valid), "rows together"));
  });
}

INSTANTIATE_TEST_SUITE_P(Shapes, LeafShapes,
                         testing::Combine(testing::Values<int64_t>(16, 64, 80, 128),
                                          testing::Values<int64_t>(1, 3, 4), testing::ValuesIn(kKvTypes)));

TEST(Leaf, LargeScoresDoNotOverflow) {
  const Leaf leaf({1, 1, 16, 64, KvType::kF32}, 0, 0, 100, 5);
  Random random(1);
  const auto q = random_floats(random, 16, 500.0f);
  set_flush_to_zero();
  const auto want = reference_record(leaf, q.data(), 1, 16, 100);
  for_each_isa([&](const Kernels& kernels) {
    const auto got = run_leaf(kernels, leaf, q, 1, 16, {100});
    same_bits(want, got, "large scores");
    for (float v : got) EXPECT_TRUE(std::isfinite(v));
  });
}

ReferencePartial random_partial(Random& random, int64_t dim) {
  ReferencePartial p;
  p.m = random_floats(random, 1, 6.0f)[0];
  p.l = 1.0f + static_cast<float>(random.unit()) * 200;
  p.o = random_floats(random, dim, 50.0f);
  return p;
}

std::vector<float> record_of(const ReferencePartial& p) {
  std::vector<float> r = {p.m, p.l};
  r.insert(r.end(), p.o.begin(), p.o.end());
  return r;
}

// The tree by its definition: the largest aligned power of two first, its halves merged, then the rest
// folded.
ReferencePartial subtree(const std::vector<ReferencePartial>& leaves, size_t first, size_t size) {
  if (size == 1) return leaves[first];
  return reference_merge(subtree(leaves, first, size / 2), subtree(leaves, first + size / 2, size / 2));
}
ReferencePartial whole_tree(const std::vector<ReferencePartial>& leaves) {
  size_t first = 0;
  ReferencePartial result;
  while (first < leaves.size()) {
    size_t size = 1;
    while (first % (2 * size) == 0 && first + 2 * size <= leaves.size()) size *= 2;
    const ReferencePartial peak = subtree(leaves, first, size);
    result = first == 0 ? peak : reference_merge(result, peak);
    first += size;
  }
  return result;
}

// Where V is a part of K there is one plane; the bits are those of two, K's rows and again K's rows. With
// more heads than a kernel takes at once, of several rows, from any first position, at DeepSeek's size and
// others.
TEST(AttentionLeaf, APartOfKAsVGivesWhatTwoPlanesGive) {
  struct Size {
    int64_t row, value, heads;
  };
  for (const Size& size : {Size{576, 512, 5}, {80, 64, 20}, {48, 48, 16}, {32, 16, 3}}) {
    const auto dim = size.row, value = size.value, heads = size.heads;
    for (const KvType type : kKvTypes) {
      const KvShape two{1, 1, dim, 32, type};
      KvShape one = two;
      one.value_dim = value;
      ASSERT_TRUE(is_valid(one));
      EXPECT_EQ(kv_plane_bytes(one), kv_plane_bytes(two));
      Random random(static_cast<uint64_t>(dim));
      const std::vector<int32_t> valid = {1, 17, 150, 200}, first = {0, 3, 17, 160};
      const auto rows = static_cast<int64_t>(valid.size());
      std::vector<AlignedBytes> k, v, both;
      for (int64_t b = 0; b < kLeafTokens / two.block_tokens; ++b) {
        for (auto* planes : {&k, &v, &both}) {
          planes->emplace_back(kv_plane_bytes(two));
          std::memset(planes->back().data(), 0xFF, planes->back().size());
        }
      }
      const Kernels& writer = kernels_for(IsaClass::kPortable);
      for (int64_t p = 0; p < 200; ++p) {
        const auto row = random_floats(random, dim, 2.0f);
        const auto b = static_cast<size_t>(p / two.block_tokens);
        writer.write_kv(two, 0, p % two.block_tokens, row.data(), row.data(), k[b].data(), v[b].data());
        writer.write_kv(one, 0, p % two.block_tokens, row.data(), nullptr, both[b].data(), nullptr);
      }
      const auto tiles = [](std::vector<AlignedBytes>& planes) {
        std::vector<const void*> out;
        for (AlignedBytes& plane : planes) out.push_back(plane.data());
        return out;
      };
      const auto k_tiles = tiles(k), v_tiles = tiles(v), both_tiles = tiles(both);
      const auto q = random_floats(random, rows * heads * dim, 0.3f);
      for_each_isa([&](const Kernels& kernels) {
        AttentionLeafArgs a;
        a.q = q.data();
        a.q_stride = heads * dim;
        a.rows = rows;
        a.heads = heads;
        a.head_dim = dim;
        a.valid = valid.data();
        a.first = first.data();
        a.block_tokens = two.block_tokens;
        a.type = type;
        a.k_tiles = k_tiles.data();
        a.v_tiles = v_tiles.data();
        a.out_stride = partial_floats(heads, dim);
        std::vector<float> want(static_cast<size_t>(rows * a.out_stride));
        a.out = want.data();
        kernels.attention_leaf(a);
        a.value_dim = value;
        a.k_tiles = a.v_tiles = both_tiles.data();
        const int64_t record = partial_floats(heads, value);
        a.out_stride = record;
        std::vector<float> got(static_cast<size_t>(rows * record), -7.0f);
        a.out = got.data();
        kernels.attention_leaf(a);
        for (int64_t r = 0; r < rows; ++r) {
          const float* from = want.data() + r * partial_floats(heads, dim);
          std::vector<float> part(from, from + 2 * heads);
          for (int64_t h = 0; h < heads; ++h) {
            part.insert(part.end(), from + 2 * heads + h * dim, from + 2 * heads + h * dim + value);
          }
          same_bits(part, {got.data() + r * record, got.data() + (r + 1) * record},
                    "row " + std::to_string(r) + " of " + kv_type_name(type));
        }
      });
    }
  }
}

TEST(AttentionTree, IsTheAlignedTreeForAnyNumberOfLeaves) {
  const int64_t dim = 16;
  Random random(13);
  std::vector<ReferencePartial> leaves;
  for (int64_t n = 1; n <= 40; ++n) {
    leaves.push_back(random_partial(random, dim));
    set_flush_to_zero();
    const auto want = record_of(whole_tree(leaves));
    for_each_isa([&](const Kernels& kernels) {
      std::vector<float> storage(static_cast<size_t>(AttentionTree::storage_floats(n, 1, dim)));
      AttentionTree tree(kernels, 1, dim, storage.data(), n);
      for (const auto& leaf : leaves) {
        const auto record = record_of(leaf);
        std::copy(record.begin(), record.end(), tree.next_slot());
        tree.push(tree.next_slot());
      }
      EXPECT_EQ(tree.next_leaf(), n);
      const float* got = tree.finish();
      same_bits(want, {got, got + want.size()}, "leaves=" + std::to_string(n));
    });
  }
}

TEST(AttentionTree, RangesHandOverTheirPeaks) {
  const int64_t dim = 16, n = 37;
  Random random(14);
  std::vector<ReferencePartial> leaves;
  for (int64_t i = 0; i < n; ++i) leaves.push_back(random_partial(random, dim));
  set_flush_to_zero();
  const auto want = record_of(whole_tree(leaves));
  for_each_isa([&](const Kernels& kernels) {
    for (int64_t cut : {1, 5, 8, 16, 22, 36}) {
      std::vector<float> storage(static_cast<size_t>(AttentionTree::storage_floats(n, 1, dim)));
      AttentionTree all(kernels, 1, dim, storage.data(), n);
      for (auto [begin, end] : {std::pair{int64_t{0}, cut}, {cut, n}}) {
        std::vector<float> own(static_cast<size_t>(AttentionTree::storage_floats(end - begin, 1, dim)));
        AttentionTree part(kernels, 1, dim, own.data(), end - begin, begin);
        for (int64_t i = begin; i < end; ++i) part.push(record_of(leaves[static_cast<size_t>(i)]).data());
        for (int i = 0; i < part.peak_count(); ++i) {
          EXPECT_EQ(part.peak(i).first_leaf, all.next_leaf());
          all.push(part.peak(i).partial, part.peak(i).level);
        }
      }
      const float* got = all.finish();
      same_bits(want, {got, got + want.size()}, "cut=" + std::to_string(cut));
    }
  });
}

TEST(Merge, SeveralHeadsInPlaceAndFinalize) {
  const int64_t heads = 3, dim = 32;
  Random random(15);
  std::vector<float> left, right, want, want_out;
  std::vector<ReferencePartial> a, b;
  for (int64_t h = 0; h < heads; ++h) {
    a.push_back(random_partial(random, dim));
    b.push_back(random_partial(random, dim));
  }
  b[1].m = a[1].m;
  b[2].m = a[2].m - 300.0f;
  set_flush_to_zero();
  const auto flatten = [&](const std::vector<ReferencePartial>& parts) {
    std::vector<float> r;
    for (const auto& p : parts) r.push_back(p.m);
    for (const auto& p : parts) r.push_back(p.l);
    for (const auto& p : parts) r.insert(r.end(), p.o.begin(), p.o.end());
    return r;
  };
  std::vector<ReferencePartial> merged;
  for (size_t h = 0; h < 3; ++h) merged.push_back(reference_merge(a[h], b[h]));
  for (const auto& p : merged) {
    for (float o : p.o) want_out.push_back(o / p.l);
  }
  for_each_isa([&](const Kernels& kernels) {
    std::vector<float> in_place = flatten(a);
    kernels.merge(in_place.data(), flatten(b).data(), heads, dim, in_place.data());
    same_bits(flatten(merged), in_place, "merge");
    std::vector<float> out(static_cast<size_t>(heads * dim));
    kernels.finalize(in_place.data(), nullptr, heads, dim, out.data());
    same_bits(want_out, out, "finalize");
    // A sink is one more part, without values: below, among and above the scores.
    const std::vector<float> sinks = {merged[0].m - 3.0f, merged[1].m, merged[2].m + 2.5f};
    std::vector<float> with_sinks;
    for (size_t h = 0; h < 3; ++h) {
      const ReferencePartial sink{sinks[h], 1.0f, std::vector<float>(static_cast<size_t>(dim))};
      const ReferencePartial all = reference_merge(merged[h], sink);
      for (float o : all.o) with_sinks.push_back(o / all.l);
    }
    kernels.finalize(in_place.data(), sinks.data(), heads, dim, out.data());
    same_bits(with_sinks, out, "finalize with sinks");
  });
}

#if defined(KVASIR_MUTANTS)
TEST(AttentionMutants, SpoiledScalesAreSeen) {
  const int64_t dim = 64;
  const KvShape shape{1, 1, dim, 64, KvType::kQ8_0};
  Random random(17);
  const auto q = random_floats(random, dim);
  const Leaf leaf(shape, 0, 0, 40, 22);
  for (Mutant fault : {Mutant::kKvScaleUnrounded, Mutant::kKvScaleShared}) {
    ScopedMutant active(fault);
    const Leaf spoiled(shape, 0, 0, 40, 22);
    for_each_isa([&](const Kernels& kernels) {
      EXPECT_NE(run_leaf(kernels, leaf, q, 1, dim, {40}), run_leaf(kernels, spoiled, q, 1, dim, {40}))
          << static_cast<int>(fault);
    });
  }
}

TEST(AttentionMutants, AreSeen) {
  const int64_t heads = 3, dim = 64;
  Random random(16);
  // Scores close to one another: with a few large ones the order of the sum would not show.
  const auto q = random_floats(random, 3 * heads * dim, 0.1f);
  for_each_isa([&](const Kernels& kernels) {
    for (KvType type : kKvTypes) {
      const Leaf leaf({1, 1, dim, 64, type}, 0, 0, 200, 21);
      for (const auto& [fault, valid] : {std::pair{Mutant::kLeafOffByOne, std::vector<int32_t>{200}},
                                         {Mutant::kSumOrderByChunk, {100, 150, 200}}}) {
        const auto right = run_leaf(kernels, leaf, q, heads, dim, valid);
        ScopedMutant active(fault);
        EXPECT_NE(run_leaf(kernels, leaf, q, heads, dim, valid), right) << static_cast<int>(fault);
      }
    }
    std::vector<ReferencePartial> leaves;
    for (int i = 0; i < 7; ++i) leaves.push_back(random_partial(random, dim));
    const auto want = record_of(whole_tree(leaves));
    ScopedMutant active(Mutant::kMergeOrder);
    std::vector<float> storage(static_cast<size_t>(AttentionTree::storage_floats(7, 1, dim)));
    AttentionTree tree(kernels, 1, dim, storage.data(), 7);
    for (const auto& p : leaves) tree.push(record_of(p).data());
    const float* got = tree.finish();
    EXPECT_NE(want, std::vector<float>(got, got + want.size()));
  });
}
#endif

}  // namespace
}  // namespace kvasir::ops
