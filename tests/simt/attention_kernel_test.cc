// Attention on the simulated machine: leaves, the tree, and Q, K and V before
// them.
#include "simt/sequences.h"

namespace kvasir::simt {
namespace {

struct Case {
  SequenceShape shape;
  std::vector<Rows> rows;
  int window = 0;
  float score_cap = 0;
  int most_rows = 1;
  int most_blocks = 0;
};

std::string name_of(const Case& c) {
  return std::to_string(c.shape.heads) + " heads, " + std::to_string(c.shape.kv_heads) +
         " of K and V, head_dim " + std::to_string(c.shape.head_dim) + ", blocks of " +
         std::to_string(c.shape.block_tokens) + ", window " + std::to_string(c.window) + ", last position " +
         std::to_string(c.rows.back().end - 1);
}

int first_seen(const ops::gpu::RowPlace& row, int window) {
  return window > 0 ? std::max(0, static_cast<int>(row.position) + 1 - window) : 0;
}

ops::reference::Cap reference_cap(const Case& c) {
  return ops::reference::score_cap_of(c.score_cap);
}

class Attention {
 public:
  Attention(const Case& c, uint64_t seed) : c_(c), sequences(c.shape, c.rows, seed) {
    plan_ = ops::gpu::plan_leaves(sequences.rows, c.window, c.most_rows);
  }

  // [record][head][2 + head_dim]
  std::vector<float> leaves(uint64_t seed) {
    std::vector<float> partials = unwritten(plan_.records * c_.shape.heads * record_floats());
    ops::gpu::LeafArgs args = {};
    args.work = plan_.work.data();
    args.q = sequences.q.data();
    args.rows = sequences.rows.data();
    args.partials = partials.data();
    args.kv = sequences.layer();
    args.heads = c_.shape.heads;
    args.window = c_.window;
    const ops::reference::Cap cap = reference_cap(c_);
    args.cap = {cap.limit, cap.factor};
    args.count = static_cast<int32_t>(plan_.work.size());
    args.most_rows = c_.most_rows;
    args.most_blocks = c_.most_blocks;
    run(args, seed);
    return partials;
  }

  // The image's rows.
  std::vector<uint16_t> merged(const std::vector<float>& partials, uint64_t seed) {
    const auto count = static_cast<int64_t>(sequences.rows.size());
    std::vector<uint16_t> image = unwritten_bf16(ops::operand_elements(count, c_.shape.q_dim()));
    ops::gpu::MergeArgs args = {};
    args.partials = partials.data();
    args.rows = sequences.rows.data();
    args.slices = sequences.slices.data();
    args.image = image.data();
    args.heads = c_.shape.heads;
    args.head_dim = c_.shape.head_dim;
    args.window = c_.window;
    args.count = static_cast<int32_t>(count);
    run(args, seed);
    return rows_of(image, count, c_.shape.q_dim());
  }

  std::vector<uint16_t> on_machine(uint64_t seed) { return merged(leaves(seed), seed); }

  std::vector<float> reference_leaves() const {
    std::vector<float> partials = unwritten(plan_.records * c_.shape.heads * record_floats());
    for_each_query([&](const ops::gpu::RowPlace& row, int head, const uint16_t* q) {
      const int first = first_seen(row, c_.window), end = static_cast<int>(row.position) + 1;
      for (int leaf = first / kLeaf; leaf * kLeaf < end; ++leaf) {
        const int begin = leaf * kLeaf;
        ops::reference::leaf(
            q, sequences.k_of(row, head) + begin * c_.shape.kv_dim(),
            sequences.v_of(row, head) + begin * c_.shape.kv_dim(), c_.shape.kv_dim(), c_.shape.head_dim,
            std::max(0, first - begin), std::min(kLeaf, end - begin), reference_cap(c_),
            partials.data() + ((row.first_record + leaf) * c_.shape.heads + head) * record_floats());
      }
    });
    return partials;
  }

  std::vector<uint16_t> reference() const {
    std::vector<uint16_t> out(sequences.q.size());
    for_each_query([&](const ops::gpu::RowPlace& row, int head, const uint16_t* q) {
      ops::reference::attend(q, sequences.k_of(row, head), sequences.v_of(row, head), c_.shape.kv_dim(),
                             c_.shape.head_dim, first_seen(row, c_.window),
                             static_cast<int64_t>(row.position) + 1, reference_cap(c_),
                             out.data() + (q - sequences.q.data()));
    });
    return out;
  }

 private:
  static constexpr int kLeaf = static_cast<int>(kLeafTokens);
  int64_t record_floats() const { return ops::reference::partial_floats(c_.shape.head_dim); }

  template <typename Visit>
  void for_each_query(const Visit& visit) const {
    for (size_t r = 0; r < sequences.rows.size(); ++r) {
      for (int h = 0; h < c_.shape.heads; ++h) {
        visit(sequences.rows[r], h,
              sequences.q.data() + static_cast<int64_t>(r) * c_.shape.q_dim() + h * c_.shape.head_dim);
      }
    }
  }

  const Case c_;

 public:
  Sequences sequences;

 private:
  ops::gpu::LeafPlan plan_;
};

std::vector<Case> cases() {
  return {
      // Decode: short, at ends of steps, blocks and leaves; GQA of 1, 2, 3,
      // 4, 8.
      {{4, 4, 64, 64}, {{0, 1}, {15, 16}, {16, 17}}},
      {{4, 2, 64, 64}, {{255, 256}, {256, 257}}},
      {{3, 1, 80, 32}, {{99, 100}}},
      {{8, 2, 128, 16}, {{300, 301}}},
      {{8, 1, 96, 128}, {{130, 131}, {40, 41}}},
      {{2, 1, 256, 64}, {{70, 71}}},
      {{2, 1, 16, 256}, {{260, 261}}},
      {{2, 1, 112, 64}, {{17, 18}}},
      // Prefill: rows over the ends of leaves; more queries than go at once.
      {{2, 1, 64, 64}, {{250, 262}, {0, 9}}},
      {{3, 1, 64, 32}, {{0, 20}}},
      {{2, 2, 256, 64}, {{250, 259}}},
      {{4, 1, 128, 64}, {{230, 265}}},
      {{4, 2, 96, 16}, {{40, 60}, {2, 3}}},
      // Windows: inside a leaf, over two, its begin at the end of a step; caps.
      {{2, 1, 64, 64}, {{330, 335}}, 40},
      {{2, 1, 80, 64}, {{600, 603}}, 300},
      {{4, 1, 64, 64}, {{500, 540}}, 30},
      {{4, 2, 64, 16}, {{511, 513}}, 1},
      {{2, 1, 64, 64}, {{271, 274}}, 256, 50},
      {{2, 2, 64, 64}, {{20, 24}}, 0, 50},
  };
}

TEST(AttentionKernels, LeavesEqualTheReference) {
  uint64_t seed = 0;
  for (Case c : cases()) {
    for (const int most_rows : {1, 5, 40}) {
      c.most_rows = most_rows;
      c.most_blocks = most_rows == 5 ? 1 : 0;
      Attention attention(c, ++seed);
      EXPECT_EQ(difference(attention.leaves(seed), attention.reference_leaves()), "")
          << name_of(c) << ", " << most_rows << " rows at once";
    }
  }
}

TEST(AttentionKernels, MergedRowsEqualTheReference) {
  uint64_t seed = 100;
  for (const Case& c : cases()) {
    Attention attention(c, ++seed);
    EXPECT_EQ(difference(attention.merged(attention.reference_leaves(), seed), attention.reference()), "")
        << name_of(c);
  }
}

// Leaves that are made up: their outputs cancel, so that another order of
// merging gives another sum.
std::vector<float> made_up_leaves(Random& random, int64_t leaves, int head_dim) {
  std::vector<float> partials;
  for (int64_t i = 0; i < leaves; ++i) {
    partials.push_back(static_cast<float>(random.below(3)));
    partials.push_back(1);
    for (int d = 0; d < head_dim; ++d) {
      const float magnitudes[] = {1, 1e7F, -1e7F, 3};
      partials.push_back(magnitudes[random.below(4)]);
    }
  }
  return partials;
}

// The aligned tree over leaves [begin, begin + count), by recursion; count is a
// power of two.
std::vector<float> subtree(const std::vector<float>& partials, int64_t first, int64_t begin, int64_t count,
                           int head_dim) {
  const int64_t floats = ops::reference::partial_floats(head_dim);
  if (count == 1) {
    const auto at = partials.begin() + (begin - first) * floats;
    return {at, at + floats};
  }
  std::vector<float> left = subtree(partials, first, begin, count / 2, head_dim);
  const std::vector<float> right = subtree(partials, first, begin + count / 2, count / 2, head_dim);
  ops::reference::merge(left.data(), right.data(), head_dim, left.data());
  return left;
}
std::vector<uint16_t> tree(const std::vector<float>& partials, int64_t first, int64_t end, int head_dim) {
  std::vector<float> all;
  for (int64_t begin = first; begin < end;) {
    int64_t count = 1;
    while (begin % (2 * count) == 0 && begin + 2 * count <= end) count *= 2;
    const std::vector<float> peak = subtree(partials, first, begin, count, head_dim);
    if (all.empty()) {
      all = peak;
    } else {
      ops::reference::merge(all.data(), peak.data(), head_dim, all.data());
    }
    begin += count;
  }
  std::vector<uint16_t> out(static_cast<size_t>(head_dim));
  ops::reference::finish_attention(all.data(), head_dim, out.data());
  return out;
}

// The first range of leaves, and the last position, whose tree is not as it
// should be; or nothing.
std::string wrong_tree() {
  constexpr int kHeadDim = 32;
  Random random(5);
  for (int first = 0; first < 6; ++first) {
    for (int end = first + 1; end <= first + 17; ++end) {
      // A window that begins in the first leaf.
      const int last = end * 256 - 1 - static_cast<int>(random.below(200));
      const int window = first == 0 ? 0 : last + 1 - (first * 256 + static_cast<int>(random.below(50)));
      Attention attention({{1, 1, kHeadDim, 256}, {{last, last + 1}}, window}, 9);
      const std::vector<float> partials = made_up_leaves(random, end - first, kHeadDim);
      if (attention.merged(partials, 1) != tree(partials, first, end, kHeadDim)) {
        return std::to_string(first) + " to " + std::to_string(end);
      }
    }
  }
  return "";
}

TEST(AttentionKernels, TheTreeIsAligned) {
  EXPECT_EQ(wrong_tree(), "");
#if !defined(KVASIR_ON_DEVICE)
  const ScopedMachine other({.fault = ops::gpu::Fault::kMergeInOrder});
  EXPECT_NE(wrong_tree(), "");
#endif
}

TEST(AttentionKernels, ASliceThatHasLeftTheStepWritesNothing) {
  // Few queries, and many.
  for (const int heads : {4, 32}) {
    for (const size_t left_out : {0, 1, 2}) {
      const Case c = {{heads, 2, 64, 64}, {{70, 72}, {3, 5}, {260, 262}}, 0, 0, 2, 1};
      Attention attention(c, 1);
      attention.sequences.slices[left_out].left_out = 1;
      const std::vector<uint16_t> got = attention.on_machine(1);
      std::vector<uint16_t> want = attention.reference();
      std::fill_n(want.begin() + static_cast<int64_t>(left_out) * 2 * c.shape.q_dim(), 2 * c.shape.q_dim(),
                  uint16_t{0});
      EXPECT_EQ(difference(got, want), "") << heads << " heads, slice " << left_out;
    }
  }
}

// ---------------------------------------------------------------- faults
#if !defined(KVASIR_ON_DEVICE)

TEST(AttentionKernels, PlantedFaultsAreFound) {
  const auto finds = [](const Case& c, const Machine& machine) {
    Attention attention(c, 3);
    EXPECT_EQ(difference(attention.leaves(1), attention.reference_leaves()), "");
    const ScopedMachine other(machine);
    return difference(attention.leaves(1), attention.reference_leaves()) != "";
  };
  const Case plain = {{2, 2, 64, 64}, {{19, 21}}};
  EXPECT_TRUE(finds(plain, {.fault = ops::gpu::Fault::kUnseenKept}));
  EXPECT_TRUE(finds(plain, {.fault = ops::gpu::Fault::kHeadOfNeighbour}));
  EXPECT_TRUE(finds(plain, {.half_steps = true}));
  const Case many = {{8, 1, 64, 64}, {{19, 24}}, 0, 0, 5};
  EXPECT_TRUE(finds(many, {.fault = ops::gpu::Fault::kUnseenKept}));
  EXPECT_TRUE(finds(many, {.half_steps = true}));
  EXPECT_TRUE(finds({{2, 1, 64, 64}, {{120, 122}}, 40}, {.fault = ops::gpu::Fault::kWindowOffByOne}));
}

TEST(AttentionKernels, NoBarrierOfALeafCanBeLeftOut) {
  struct Kind {
    Case c;
    std::vector<int> needed;
  };
  // 16 queries at a time: V is not overwritten behind the last ones. A warp for each 16: K and V are not
  // overwritten behind the last piece of work.
  for (const auto& [c, needed] :
       {Kind{{{2, 1, 32, 64}, {{20, 44}}, 0, 0, 24}, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11}},
        Kind{{{2, 1, 64, 64}, {{21, 45}}, 0, 0, 12, 1}, {0, 1, 2, 3, 5}}}) {
    Attention attention(c, 7);
    const std::vector<float> want = attention.reference_leaves();
    ASSERT_EQ(difference(attention.leaves(1), want), "");
    const int syncs = syncs_of_last_launch();
    ASSERT_EQ(syncs, c.shape.head_dim == 32 ? 13 : 7);
    for (const int skipped : needed) {
      bool found = false;
      for (uint64_t seed = 1; seed <= 30 && !found; ++seed) {
        const ScopedMachine without({.skipped_sync = skipped});
        try {
          found = difference(attention.leaves(seed), want) != "";
        } catch (const SimtError&) {
          found = true;
        }
      }
      EXPECT_TRUE(found) << "sync " << skipped << " of " << syncs << ", head_dim " << c.shape.head_dim;
    }
  }
}

#endif
// ---------------------------------------------------------------- Q, K and V

struct QkvCase {
  SequenceShape shape;
  bool bias = false;
  int norm = 0;  // 0: none, 1: of heads, 2: of rows
  int half = 0;
};

TEST(AttentionKernels, QkvIsFinishedAndWritten) {
  for (const QkvCase& c : std::vector<QkvCase>{{{4, 2, 64, 64}, false, 0, 32},
                                               {{3, 1, 80, 16}, true, 0, 20},
                                               {{4, 2, 128, 64}, false, 1, 64},
                                               {{2, 1, 256, 32}, false, 1, 128},
                                               {{4, 4, 48, 64}, true, 2, 24},
                                               {{2, 2, 96, 64}, true, 0, 0}}) {
    const SequenceShape& shape = c.shape;
    Sequences sequences(shape, {{14, 18}, {63, 66}, {5, 6}}, 3,
                        /*rows_are_written=*/false);
    sequences.slices[2].left_out = 1;
    const auto count = static_cast<int>(sequences.rows.size());
    Random random(4);
    const std::vector<float> qkv = random_values(random, int64_t{count} * shape.width());
    const std::vector<float> bias = random_values(random, shape.width());
    const std::vector<float> q_norm = random_values(random, shape.q_dim()),
                             k_norm = random_values(random, shape.q_dim());
    const std::vector<float> cos = random_values(random, 70 * std::max(c.half, 1)),
                             sin = random_values(random, 70 * std::max(c.half, 1));
    std::vector<uint16_t> q = unwritten_bf16(int64_t{count} * shape.q_dim()), want_q(q.size());

    ops::reference::QkvFinish how;
    how.heads = shape.heads;
    how.kv_heads = shape.kv_heads;
    how.head_dim = shape.head_dim;
    how.bias = c.bias ? bias.data() : nullptr;
    how.q_norm = c.norm != 0 ? q_norm.data() : nullptr;
    how.k_norm = c.norm != 0 ? k_norm.data() : nullptr;
    how.norm_of_row = c.norm == 2;
    how.norm_epsilon = 1e-6F;
    std::vector<std::byte> before = sequences.memory;
    for (int r = 0; r < count; ++r) {
      const ops::gpu::RowPlace& row = sequences.rows[static_cast<size_t>(r)];
      const auto position = static_cast<int>(row.position);
      const auto at = static_cast<size_t>(position * shape.kv_dim());
      ops::reference::finish_qkv(how, qkv.data() + r * shape.width(), cos.data() + position * c.half,
                                 sin.data() + position * c.half, c.half, row.query_factor,
                                 want_q.data() + r * shape.q_dim(), sequences.k[row.slice].data() + at,
                                 sequences.v[row.slice].data() + at);
      if (sequences.slices[row.slice].left_out == 0) sequences.write(row.slice, position);
    }
    const std::vector<std::byte> want_memory = sequences.memory;
    sequences.memory = before;

    ops::gpu::FinishQkvArgs args = {};
    args.qkv = qkv.data();
    args.rows = sequences.rows.data();
    args.bias = how.bias;
    args.q_norm = how.q_norm;
    args.k_norm = how.k_norm;
    args.norm_of_row = how.norm_of_row ? 1 : 0;
    args.norm_epsilon = how.norm_epsilon;
    args.cos = cos.data();
    args.sin = sin.data();
    args.half = c.half;
    args.heads = shape.heads;
    args.q = q.data();
    args.kv = sequences.layer();
    args.count = count;
    run(args, 5);
    EXPECT_EQ(difference(q, want_q), "") << "head_dim " << shape.head_dim;
    EXPECT_TRUE(sequences.memory == want_memory) << "head_dim " << shape.head_dim;

    // K and V of the same rows, each block's as a run.
    sequences.memory = before;
    std::vector<ops::gpu::XRun> runs;
    for (int r = 0; r < count; ++r) {
      const ops::gpu::RowPlace& row = sequences.rows[static_cast<size_t>(r)];
      if (r > 0 && row.slice == runs.back().slice &&
          static_cast<int>(row.position) % shape.block_tokens != 0) {
        ++runs.back().tokens;
        continue;
      }
      const int block_begin = static_cast<int>(row.position) / shape.block_tokens * shape.block_tokens;
      const auto plane = [&](bool is_k) {
        return static_cast<uint64_t>(
            reinterpret_cast<std::byte*>(sequences.place(row.slice, block_begin, 0, is_k)) -
            sequences.memory.data());
      };
      runs.push_back({0, {plane(true), plane(false)}, row.position, 1, r, row.slice});
    }
    ops::gpu::FinishKvArgs kv = {};
    kv.product = qkv.data();
    kv.stride = shape.width();
    kv.first_k = shape.q_dim();
    kv.runs = runs.data();
    kv.bias = c.bias ? bias.data() + shape.q_dim() : nullptr;
    kv.k_norm = how.k_norm;
    kv.norm_of_row = args.norm_of_row;
    kv.norm_epsilon = how.norm_epsilon;
    kv.cos = cos.data();
    kv.sin = sin.data();
    kv.half = c.half;
    kv.kv = sequences.layer();
    kv.count = static_cast<int32_t>(runs.size());
    run(kv, 6);
    EXPECT_GT(runs.size(), sequences.slices.size()) << "one has rows of two blocks";
    EXPECT_TRUE(sequences.memory == want_memory) << "from runs, head_dim " << shape.head_dim;
  }
}

}  // namespace
}  // namespace kvasir::simt
