// Prefixes that are attended at the instance that has them: in the map of the one that reads them, and of the
// one that keeps them. Blocks have 64 tokens, four to a leaf of attention, and cells in two layer groups.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cache/sequences/kv_cache.h"

namespace kvasir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::SizeIs;

// A device of 24 blocks, a host tier of three cells, 10 cells that may be borrowed, and 16 of prefixes that
// peers keep: the numbers of these begin with 10.
class Attended : public testing::Test {
 protected:
  static constexpr SeqId kFirst{1}, kSecond{2};
  static constexpr uint32_t kBlock = 64;

  static std::vector<Token> tokens_of(SeqId seq, uint32_t count) {
    std::vector<Token> tokens(count);
    std::iota(tokens.begin(), tokens.end(), static_cast<Token>(raw(seq) * 10000));
    return tokens;
  }

  static std::vector<BlockHash> chain_of(SeqId seq, uint32_t blocks) {
    const std::vector<Token> tokens = tokens_of(seq, blocks * kBlock);
    std::vector<BlockHash> chain = {root_hash("", "")};
    for (uint32_t b = 0; b < blocks; ++b)
      chain.push_back(block_hash(chain.back(), std::span(tokens).subspan(b * kBlock, kBlock)));
    chain.erase(chain.begin());
    return chain;
  }

  static std::vector<uint32_t> numbers(uint32_t begin, uint32_t end) {
    std::vector<uint32_t> out(end - begin);
    std::iota(out.begin(), out.end(), begin);
    return out;
  }

  Attended() : cache_(options()) {}
  ~Attended() override { check(); }

  static CacheOptions options() {
    CacheOptions o;
    o.geometry = {kBlock, 4, 2, 8};
    o.device_bytes = o.geometry.kv_block_bytes() * 24;
    o.host_bytes = o.geometry.kv_cell_bytes() * 3;
    o.borrowed_bytes = o.geometry.kv_cell_bytes() * 10;
    o.attended_cells = 16;
    return o;
  }
  void check() const { EXPECT_EQ(cache_.check_integrity().message(), ""); }
  void compute(SeqId seq, uint32_t end) {
    StepSlice slice;
    slice.seq = seq;
    slice.tokens = {cache_.summary(seq).ready_tokens, end};
    cache_.extend(seq, end, {LayerSet::all(2), {}}, StepId{++step_});
    cache_.step_submitted(StepId{step_}, {&slice, 1});
    cache_.step_ended(StepId{step_}, true, {});
    check();
  }
  int64_t room(Tier tier) const { return cache_.budget(tier).available_cells(); }
  uint32_t coming() const { return cache_.budget(Tier::kDevice).coming[index_of(Form::kKv)]; }

  KvCache cache_;
  uint64_t step_ = 0;
};

// ---------------------------------------------------------------- the reader

TEST_F(Attended, BlocksAtAPeerAreFoundAndTakeNoMemory) {
  ASSERT_EQ(cache_.options().cells(Tier::kHost), 13u);
  EXPECT_EQ(room(Tier::kHost), 3) << "nothing is borrowed";
  const uint64_t hold = cache_.attend_at_peers(chain_of(kFirst, 4), numbers(10, 18));
  EXPECT_NE(hold, 0u);
  check();
  EXPECT_EQ(cache_.attended_cells(), 8u);
  EXPECT_EQ(room(Tier::kHost), 3);
  cache_.add_sequence(kFirst, tokens_of(kFirst, 5 * kBlock), "");
  SequenceCells s = cache_.summary(kFirst);
  EXPECT_EQ(s.cached_tokens, 4 * kBlock);
  cache_.count_cached_at_peers(kFirst, s);
  EXPECT_EQ(s.cached_peer_blocks, 4u);
  EXPECT_TRUE(s.attended);
  cache_.adopt(kFirst, 4 * kBlock);
  s = cache_.summary(kFirst);
  EXPECT_EQ(s.peer_blocks, 4u);
  EXPECT_TRUE(s.attended);
  EXPECT_EQ(s.own_cells[index_of(Form::kKv)][index_of(Tier::kHost)], 0u) << "giving them up makes no room";
  EXPECT_TRUE(cache_.lies_at_peers(cache_.holdings(kFirst), cache_.blocks_of(kFirst), 0, 0));
  cache_.let_go(hold);
  check();
  EXPECT_THAT(cache_.take_departed(), IsEmpty()) << "a sequence reads them";
  cache_.remove_sequence(kFirst);
  EXPECT_THAT(cache_.take_departed(), testing::UnorderedElementsAreArray(numbers(10, 18)));
  EXPECT_EQ(cache_.attended_cells(), 0u);
  EXPECT_EQ(room(Tier::kHost), 3);
}

TEST_F(Attended, NothingIsEverWrittenThere) {
  cache_.attend_at_peers(chain_of(kFirst, 4), numbers(10, 18));
  cache_.add_sequence(kSecond, tokens_of(kSecond, 4 * kBlock), "");
  compute(kSecond, 4 * kBlock);
  EXPECT_EQ(cache_.lend(Tier::kHost, 3).size(), 3u);
  EXPECT_EQ(room(Tier::kHost), 0);
}

TEST_F(Attended, OfBlocksThatAreHereTheCellsGoAtOnce) {
  cache_.add_sequence(kFirst, tokens_of(kFirst, 2 * kBlock), "");
  compute(kFirst, 2 * kBlock);
  const uint64_t hold = cache_.attend_at_peers(chain_of(kFirst, 4), numbers(10, 18));
  EXPECT_THAT(cache_.take_departed(), testing::UnorderedElementsAre(10, 11, 12, 13));
  EXPECT_EQ(cache_.attended_cells(), 4u);
  cache_.let_go(hold);
  EXPECT_THAT(cache_.take_departed(), SizeIs(4));
}

TEST_F(Attended, WhatIsLostIsCutOff) {
  cache_.attend_at_peers(chain_of(kFirst, 4), numbers(10, 18));
  cache_.add_sequence(kFirst, tokens_of(kFirst, 5 * kBlock), "");
  cache_.adopt(kFirst, 4 * kBlock);
  cache_.lose_borrowed(std::vector<uint32_t>{14});
  check();
  EXPECT_THAT(cache_.take_cut_back(), ElementsAre(kFirst));
  EXPECT_EQ(cache_.summary(kFirst).ready_tokens, 2 * kBlock) << "block 2 is lost";
  EXPECT_THAT(cache_.take_departed(), testing::Contains(14u));
}

// ---------------------------------------------------------------- the one that keeps them

// Plans may wait for what is read, as that ends soon. What is kept is lent: it may last.
TEST_F(Attended, WhatIsKeptIsNeitherATransferNorComing) {
  cache_.add_sequence(kFirst, tokens_of(kFirst, 4 * kBlock), "");
  compute(kFirst, 4 * kBlock);
  cache_.remove_sequence(kFirst);
  ASSERT_EQ(room(Tier::kDevice), 48);
  const KvCache::ShownPrefix shown = cache_.show_prefix(chain_of(kFirst, 4));
  ASSERT_EQ(shown.frames.size(), 8u);
  EXPECT_EQ(room(Tier::kDevice), 40);
  EXPECT_EQ(coming(), 8u);
  EXPECT_EQ(cache_.transfers_in_flight(), 1u);
  cache_.keep_prefix(shown.id, 4);
  check();
  EXPECT_EQ(room(Tier::kDevice), 40);
  EXPECT_EQ(coming(), 0u);
  EXPECT_EQ(cache_.transfers_in_flight(), 0u);
  EXPECT_EQ(cache_.prefixes_shown(), 0u);
  EXPECT_EQ(cache_.kept_cells(), 8u);
  // It is one of the quarter of the device that may be shown no longer: 12 cells.
  const KvCache::ShownPrefix again = cache_.show_prefix(chain_of(kFirst, 4));
  ASSERT_EQ(again.frames.size(), 8u);
  EXPECT_EQ(coming(), 0u) << "it is free only when both have ended";
  cache_.hide_prefix(shown.id);
  check();
  EXPECT_EQ(cache_.kept_cells(), 0u);
  EXPECT_EQ(coming(), 8u);
  cache_.hide_prefix(again.id);
  EXPECT_EQ(coming(), 0u);
  EXPECT_EQ(room(Tier::kDevice), 48) << "it is cached, and idle";
}

// Of four blocks of two cells a peer keeps three.
TEST_F(Attended, WhatIsNotKeptIsFreeAtOnce) {
  cache_.add_sequence(kFirst, tokens_of(kFirst, 4 * kBlock), "");
  compute(kFirst, 4 * kBlock);
  cache_.remove_sequence(kFirst);
  const KvCache::ShownPrefix shown = cache_.show_prefix(chain_of(kFirst, 4));
  ASSERT_EQ(room(Tier::kDevice), 40);
  cache_.keep_prefix(shown.id, 3);
  check();
  EXPECT_EQ(cache_.kept_cells(), 6u) << "as many as its lender counts";
  EXPECT_EQ(room(Tier::kDevice), 42);
  EXPECT_EQ(coming(), 0u);
  cache_.hide_prefix(shown.id);
  check();
  EXPECT_EQ(cache_.kept_cells(), 0u);
  EXPECT_EQ(room(Tier::kDevice), 48);
}

}  // namespace
}  // namespace kvasir
