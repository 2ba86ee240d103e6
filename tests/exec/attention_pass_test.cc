// The attention of a step by a team of threads, against one tree over all leaves of each row: bit for bit,
// for histories of any number of leaves and teams of any size.
#include "exec/cpu/attention_pass.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "ops/cpu/isa.h"

namespace kvasir {
namespace {

constexpr uint32_t kBlock = 64;
constexpr uint32_t kLongest = 40;  // leaves
// Of the four heads: hardly any, some and most of a softmax.
constexpr float kSinks[] = {-1.0f, 4.0f, 7.5f, 6.0f};

// Two KV heads with two query heads each, one layer, and random K and V for the longest history.
class AttentionPassTest : public testing::Test {
 protected:
  AttentionPassTest() {
    config_.layers = 1;
    config_.heads = 4;
    config_.kv_heads = 2;
    config_.head_dim = 16;
    config_.layer_specs.resize(1);
    geometry_.block_tokens = kBlock;
    geometry_.layers = geometry_.layers_per_group = 1;
    geometry_.kv_plane_bytes_per_token_layer = config_.kv_plane_bytes_per_token_layer(ops::KvType::kBf16);
    frame_ = {1, 2, 16, kBlock, ops::KvType::kBf16};
    const uint64_t frame = geometry_.layer_plane_bytes();
    const uint32_t blocks = kLongest * ops::kLeafTokens / kBlock;
    memory_.resize(2 * blocks * frame);
    Random random(7);
    for (size_t i = 0; i < memory_.size(); i += 2) {
      const uint16_t bits = ops::f32_to_bf16(static_cast<float>(4 * random.unit() - 2));
      std::memcpy(&memory_[i], &bits, 2);
    }
    for (uint32_t b = 0; b < blocks; ++b) {
      // Blocks do not lie in the order of the history.
      const uint64_t at = 2 * frame * (b * 37 % blocks);
      frames_.push_back({at, at + frame});
    }
  }

  // `rows` rows that end the first `tokens` positions of the history.
  void add(uint32_t tokens, uint32_t rows) {
    StepSlice slice;
    slice.tokens = {tokens - rows, tokens};
    slice.first_token = static_cast<uint32_t>(rows_.size());
    slice.blocks = geometry_.blocks_for(tokens);
    slice.table = std::make_shared<BlockTable>(frames_.begin(), frames_.begin() + slice.blocks);
    for (uint32_t p = slice.tokens.begin; p < tokens; ++p) {
      rows_.push_back({static_cast<uint32_t>(step_.slices.size()), p, 0});
    }
    step_.groups = 1;
    step_.slices.push_back(slice);
  }

  int64_t width() const { return config_.q_dim() + 2 * config_.kv_dim(); }

  std::vector<float> queries() const {
    Random random(11);
    std::vector<float> qkv(rows_.size() * static_cast<size_t>(width()));
    for (float& x : qkv) x = static_cast<float>(random.unit() - 0.5);
    return qkv;
  }

  std::vector<float> by_one_tree(const std::vector<float>& qkv, const float* sinks) const {
    const ops::FlushToZero mode;
    std::vector<float> out;
    for (size_t r = 0; r < rows_.size(); ++r) {
      const int64_t leaves = rows_[r].position / ops::kLeafTokens + 1;
      const int64_t first_leaf = first_position(rows_[r].position) / ops::kLeafTokens;
      for (int64_t h = 0; h < 2; ++h) {
        std::vector<float> storage(static_cast<size_t>(ops::AttentionTree::storage_floats(leaves, 2, 16)));
        ops::AttentionTree tree(kernels_, 2, 16, storage.data(), leaves, first_leaf);
        for (int64_t leaf = first_leaf; leaf < leaves; ++leaf) {
          push_leaf(qkv.data() + static_cast<int64_t>(r) * width() + h * 32, rows_[r].position, h, leaf,
                    tree);
        }
        out.resize(out.size() + 32);
        kernels_.finalize(tree.finish(), sinks == nullptr ? nullptr : sinks + 2 * h, 2, 16,
                          out.data() + out.size() - 32);
      }
    }
    return out;
  }

  int64_t first_position(int64_t position) const {
    const int64_t window = config_.layer_specs[0].window;
    return window == 0 ? 0 : std::max<int64_t>(0, position - window + 1);
  }

  void push_leaf(const float* q, int64_t position, int64_t head, int64_t leaf,
                 ops::AttentionTree& tree) const {
    const auto valid =
        static_cast<int32_t>(std::min<int64_t>(position + 1 - leaf * ops::kLeafTokens, ops::kLeafTokens));
    const auto first =
        static_cast<int32_t>(std::max<int64_t>(first_position(position) - leaf * ops::kLeafTokens, 0));
    std::vector<const void*> k, v;
    for (int64_t b = 0; b * kBlock < valid; ++b) {
      const KvPlanes& f = frames_[static_cast<size_t>(leaf * (ops::kLeafTokens / kBlock) + b)];
      k.push_back(memory_.data() + f.k + ops::kv_tile_offset(frame_, 0, head));
      v.push_back(memory_.data() + f.v + ops::kv_tile_offset(frame_, 0, head));
    }
    ops::AttentionLeafArgs args;
    args.q = q;
    args.rows = 1;
    args.heads = 2;
    args.head_dim = 16;
    args.valid = &valid;
    args.first = &first;
    args.k_tiles = k.data();
    args.v_tiles = v.data();
    args.block_tokens = kBlock;
    args.type = ops::KvType::kBf16;
    args.out = tree.next_slot();
    args.out_stride = ops::partial_floats(2, 16);
    kernels_.attention_leaf(args);
    tree.push(args.out);
  }

  // Two layers' worth of runs on one pass, as in a step; both must give the same.
  void expect_same_for_all_teams() {
    for (const float* sinks : {static_cast<const float*>(nullptr), kSinks}) {
      SCOPED_TRACE(sinks == nullptr ? "without sinks" : "with sinks");
      expect_same_for_all_teams(sinks);
    }
  }
  void expect_same_for_all_teams(const float* sinks) {
    const std::vector<float> qkv = queries();
    const std::vector<float> want = by_one_tree(qkv, sinks);
    for (int threads : {1, 2, 3, 8}) {
      ThreadPool pool(threads);
      const std::vector<ops::KvShape> frames = {frame_};
      AttentionPass pass(config_, kernels_, geometry_, frames, memory_.data(), threads);
      ASSERT_TRUE(pass.prepare(rows_).ok());
      for (int again = 0; again < 2; ++again) {
        std::vector<float> got(want.size(), -1.0f);
        pass.run(step_, 0, 0, qkv.data(), {got.data(), config_.q_dim(), sinks}, pool);
        AttentionPass::settle(pool);
        EXPECT_EQ(std::memcmp(want.data(), got.data(), want.size() * sizeof(float)), 0)
            << threads << " threads, run " << again;
      }
    }
  }

  const ops::Kernels& kernels_ = ops::kernels_for(ops::detect_isa());
  ModelSpec config_;
  CacheGeometry geometry_;
  ops::KvShape frame_;
  std::vector<std::byte> memory_;
  BlockTable frames_;
  Step step_;
  std::vector<StepRow> rows_;
};

TEST_F(AttentionPassTest, AHistoryOfAnyLengthIsOneTree) {
  for (uint32_t leaves : {1u, 2u, 3u, 5u, 7u, 8u, 13u, 31u, kLongest}) {
    SCOPED_TRACE(leaves);
    step_ = {};
    rows_.clear();
    add(leaves * ops::kLeafTokens - 100, 1);
    expect_same_for_all_teams();
  }
}

TEST_F(AttentionPassTest, RowsOfAChunkThatReachDifferentLeaves) {
  add(9 * ops::kLeafTokens + 5, 23);  // the first rows end a leaf before the last ones
  expect_same_for_all_teams();
}

TEST_F(AttentionPassTest, ALongHistoryBesideShortOnesAndAChunk) {
  add(33 * ops::kLeafTokens + 17, 1);
  add(5, 1);
  add(300, 40);
  add(700, 1);
  expect_same_for_all_teams();
}

TEST_F(AttentionPassTest, AWindowBeginsTheTreeAtItsLeaf) {
  for (int32_t window : {1, 16, 96, 256, 300, 1000}) {
    SCOPED_TRACE(window);
    config_.layer_specs[0].window = window;
    for (int64_t tokens :
         {int64_t{5}, int64_t{90}, int64_t{256}, 2 * ops::kLeafTokens + 7, 9 * ops::kLeafTokens + 5}) {
      step_ = {};
      rows_.clear();
      // The windows of the last rows begin a leaf later than those of the first.
      add(static_cast<uint32_t>(tokens), static_cast<uint32_t>(std::min<int64_t>(tokens, 23)));
      add(33 * ops::kLeafTokens + 17, 1);
      expect_same_for_all_teams();
    }
  }
}

}  // namespace
}  // namespace kvasir
