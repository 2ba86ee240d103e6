// States of recurrent layers: how they lie in the grid, and what is held of a sequence.
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cache/groups_fixture.h"
#include "cache/sequences/kv_cache.h"

namespace kvasir {
namespace {

// Three layers of the cache, a group each: two parts of a state, and K and V. Blocks of 16 tokens.
class StatesTest : public GroupsFixture {
 protected:
  static constexpr SeqId kA{1}, kB{2};
  static CacheOptions options() {
    CacheOptions o;
    o.geometry = {16, 3, 1, 8};
    o.geometry.set_states(std::vector<uint32_t>{17, 17, 0});
    o.device_bytes = o.geometry.kv_block_bytes() * 24;
    return o;
  }
  StatesTest() : GroupsFixture(options()) {}
  void add(SeqId seq, uint32_t length) {
    std::vector<Token> tokens(length);
    std::iota(tokens.begin(), tokens.end(), 0);
    cache_.add_sequence(seq, std::move(tokens), "");
  }
};

TEST_F(StatesTest, ASequenceHoldsTheStateOfItsLastFullBlockAndOfItsTail) {
  EXPECT_TRUE(cache_.geometry().states);
  EXPECT_EQ(cache_.geometry().windowed.count(), 2u);
  add(kA, 200);
  submit(1, kA, 40);
  end(1);
  // Block 0 is dead; the states behind 32 and 40 are there, and K and V of three blocks.
  EXPECT_EQ(cache_.summary(kA).dead_blocks, 1u);
  EXPECT_EQ(held(kA), 2 * 2 + 3u);
  submit(2, kA, 48);
  end(2);
  // What follows goes on from the state behind 48.
  EXPECT_EQ(cache_.summary(kA).dead_blocks, 2u);
  EXPECT_EQ(held(kA), 2 * 1 + 3u);
}

TEST_F(StatesTest, RowsThatLeftAStepAreReplayedFromTheBlockBefore) {
  add(kA, 200);
  submit(1, kA, 40);
  end(1);
  submit(2, kA, 45);
  end(2, {kA});  // its rows may have advanced the state of block 2
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 32u);
  EXPECT_EQ(cache_.summary(kA).dead_blocks, 1u);
  EXPECT_EQ(held(kA), 2 + 2u) << "the state behind 32, K and V of two blocks";
  submit(3, kA, 48);
  end(3);
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 48u);
}

// The first step draws nine cells, the second three; the rows that leave it give back those of block 2, and
// they are promised again.
TEST_F(StatesTest, RowsThatLeftAStepAreOwedTheCellsThatTheyGiveBack) {
  const auto promised = [&] { return cache_.promised_cells(kA)[index_of(Tier::kDevice)]; };
  add(kA, 200);
  cache_.promise({.owner = kA, .cells = 12});
  submit(1, kA, 40);
  EXPECT_EQ(promised(), 3u);
  end(1, {kA});
  EXPECT_EQ(held(kA), 0u);
  EXPECT_EQ(promised(), 12u);
  submit(1 + 1, kA, 32);
  end(2);
  EXPECT_EQ(held(kA) + promised(), 12u) << "the state of block 0 is dead, and its two cells are owed";
  submit(3, kA, 40);
  end(3, {kA});
  EXPECT_EQ(held(kA), 2 + 2u);
  EXPECT_EQ(held(kA) + promised(), 12u);
  check();
}

// The state behind each full block stays to be found until its memory is needed.
TEST_F(StatesTest, APrefixIsFoundAtAnyBlockBehindWhichAStateIsKept) {
  add(kA, 120);
  submit(1, kA, 100);
  end(1);
  cache_.remove_sequence(kA);
  for (const uint32_t blocks : {1u, 3u, 6u}) {
    add(kB, 16 * blocks + 1);
    EXPECT_EQ(cache_.summary(kB).cached_tokens, 16 * blocks);
    cache_.adopt(kB, 16 * blocks);
    EXPECT_EQ(held(kB), blocks + 2) << "one state";
    cache_.remove_sequence(kB);
    check();
  }
}

TEST(States, WhatASequenceHoldsIsWhatTheArithmeticSays) {
  constexpr SeqId kSeq{1};
  // Qwen3-Next 80B: 36 of 48 layers are recurrent, K and V of 2 heads of 256 in bf16, blocks of 256 tokens. A
  // state of 3 x 8,192 + 32 x 128 x 128 floats is in three parts of 737,280 bytes.
  CacheGeometry g = {256, 12 + 36 * 3, 1, 2 * 256 * 2};
  g.least_piece_bytes = 737'280;
  std::vector<uint32_t> windows;
  for (uint32_t l = 0; l < 48; ++l) windows.insert(windows.end(), l % 4 == 3 ? 1 : 3, l % 4 == 3 ? 0 : 257);
  g.set_states(windows);
  EXPECT_EQ(g.groups(), 120u);
  CacheOptions o;
  o.geometry = g;
  o.device_bytes = g.kv_block_bytes() * 16;
  KvCache cache(o);
  cache.add_sequence(kSeq, std::vector<Token>(3000, 1), "");
  for (uint32_t step = 1; step <= 8; ++step) {
    StepSlice slice;
    slice.seq = kSeq;
    slice.tokens = {(step - 1) * 300, step * 300};
    cache.extend(kSeq, step * 300, {LayerSet::all(120), {}}, StepId{step});
    cache.step_submitted(StepId{step}, {&slice, 1});
    cache.step_ended(StepId{step}, true, {});
  }
  // 2,400 tokens: ten blocks of K and V, the states behind 2,304 and 2,400.
  EXPECT_EQ(cache.summary(kSeq).kv_cells(Tier::kDevice), 12 * 10 + 108 * 2u);
  EXPECT_EQ(g.kv_cell_bytes(), 737'280u);
  EXPECT_EQ(g.most_cells(10), 12 * 10 + 108 * 4u) << "with room for a chunk of a block";
}

// Qwen 3.5 of 9B (24 of 32 layers are recurrent, 4 heads of K and V of 256) and 35B-A3B (30 of 40, 2 heads),
// both with 32 value heads and 16 key heads of 128: blocks of 256 tokens, K and V in bf16.
TEST(States, Qwen35HoldsWhatTheArithmeticSays) {
  struct Model {
    uint32_t layers, attention, kv_heads, parts;
    uint64_t piece, groups, held_8k, held_32k;
  };
  constexpr SeqId kSeq{1};
  constexpr uint64_t kState = (3 * 8'192 + 32 * 128 * 128) * sizeof(float);
  EXPECT_EQ(kState, 2'195'456u);
  for (const Model& m : {Model{32, 8, 4, 3, 1'048'576, 80, 343'932'928, 1'149'239'296},
                         Model{40, 10, 2, 3, 737'280, 100, 302'284'800, 1'010'073'600}}) {
    SCOPED_TRACE(m.layers);
    CacheGeometry g = {256, m.attention + (m.layers - m.attention) * m.parts, 1, m.kv_heads * 256 * 2};
    g.least_piece_bytes = m.piece;
    std::vector<uint32_t> windows;
    for (uint32_t l = 0; l < m.layers; ++l)
      windows.insert(windows.end(), l % 4 == 3 ? 1 : m.parts, l % 4 == 3 ? 0 : 257);
    g.set_states(windows);
    EXPECT_EQ(g.groups(), m.groups);
    EXPECT_EQ(g.kv_cell_bytes(), m.piece);
    EXPECT_GE(m.parts * m.piece, kState);
    CacheOptions o;
    o.geometry = g;
    o.device_bytes = g.kv_block_bytes() * 132;
    for (const uint32_t tokens : {8'192u, 32'768u}) {
      KvCache cache(o);
      cache.add_sequence(kSeq, std::vector<Token>(tokens + 1, 1), "");
      for (uint32_t step = 1, end = 512; end <= tokens; ++step, end += 512) {
        StepSlice slice;
        slice.seq = kSeq;
        slice.tokens = {end - 512, end};
        cache.extend(kSeq, end, {LayerSet::all(g.groups()), {}}, StepId{step});
        cache.step_submitted(StepId{step}, {&slice, 1});
        cache.step_ended(StepId{step}, true, {});
      }
      // K and V of all blocks, and the state behind the last one.
      const uint32_t cells = m.attention * tokens / 256 + (m.layers - m.attention) * m.parts;
      EXPECT_EQ(cache.summary(kSeq).kv_cells(Tier::kDevice), cells);
      EXPECT_EQ(cells * g.kv_cell_bytes(), tokens == 8'192 ? m.held_8k : m.held_32k);
    }
  }
}

}  // namespace
}  // namespace kvasir
