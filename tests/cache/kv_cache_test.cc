// The map of copies, one rule at a time. Blocks have 16 tokens.
#include "cache/sequences/kv_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

namespace kvasir {
namespace {

constexpr SeqId kA{1}, kB{2}, kC{3};

std::vector<Token> tokens(uint32_t n, Token first = 0) {
  std::vector<Token> out(n);
  std::iota(out.begin(), out.end(), first);
  return out;
}

CacheOptions options(uint32_t blocks, bool prefix_caching = true) {
  CacheOptions o;
  o.geometry = {16, 4, 2, 8};
  o.device_bytes = o.geometry.kv_block_bytes() * blocks;
  o.prefix_caching = prefix_caching;
  return o;
}

class KvCacheTest : public testing::Test {
 protected:
  explicit KvCacheTest(uint32_t blocks = 8) : cache_(options(blocks)) {}
  ~KvCacheTest() override { EXPECT_EQ(cache_.check_integrity().message(), ""); }

  void submit(uint64_t step, SeqId seq, uint32_t end) {
    StepSlice slice;
    slice.seq = seq;
    slice.tokens = {cache_.summary(seq).ready_tokens, end};
    cache_.extend(seq, end, {LayerSet::all(2), {}}, StepId{step});
    cache_.step_submitted(StepId{step}, {&slice, 1});
    ASSERT_EQ(cache_.check_integrity().message(), "");
  }
  void end(uint64_t step, bool ok = true) {
    cache_.step_ended(StepId{step}, ok, {});
    ASSERT_EQ(cache_.check_integrity().message(), "");
  }
  // Blocks that any sequence may take, that are on their way to that, that are in use.
  int64_t available() const { return cache_.budget(Tier::kDevice).available_cells() / 2; }
  int64_t pinned() const { return cache_.budget(Tier::kDevice).coming[0] / 2; }
  uint32_t used() const { return cache_.map().used_cells(Tier::kDevice) / 2; }
  uint32_t idle() const { return cache_.map().idle_blocks(); }
  uint32_t own(SeqId seq) const { return cache_.summary(seq).own_kv_cells(Tier::kDevice) / 2; }

  uint32_t cached(SeqId seq) const { return cache_.summary(seq).cached_tokens; }
  // Blocks that no sequence needs.
  uint32_t cached_idle(SeqId seq) const { return cache_.cached(seq).what.idle[index_of(kDeviceKv)] / 2; }

  KvCache cache_;
};

TEST_F(KvCacheTest, FullBlocksAreFoundWhenTheirStepHasEnded) {
  EXPECT_EQ(cache_.budget(Tier::kDevice).total_cells(), 16u);
  cache_.add_sequence(kA, tokens(40), "");
  submit(1, kA, 40);
  cache_.add_sequence(kB, tokens(40), "");
  EXPECT_EQ(cached(kB), 0u) << "nothing is written yet";
  end(1);
  EXPECT_EQ(cached(kB), 32u);
  EXPECT_EQ(cached_idle(kB), 0u);
  cache_.remove_sequence(kA);
  EXPECT_EQ(cached_idle(kB), 2u);
  EXPECT_EQ(idle(), 2u);
  EXPECT_EQ(used(), 0u);
  EXPECT_EQ(available(), 8);
  cache_.adopt(kB, 32);
  EXPECT_EQ(available(), 6);
  EXPECT_EQ(cache_.summary(kB).ready_tokens, 32u);
  EXPECT_EQ(own(kB), 2u);
}

TEST_F(KvCacheTest, TheLastTokenIsNeverCached) {
  cache_.add_sequence(kA, tokens(33), "");
  submit(1, kA, 33);
  end(1);
  cache_.add_sequence(kB, tokens(32), "");
  EXPECT_EQ(cached(kB), 16u);
  cache_.add_sequence(kC, tokens(33), "");
  EXPECT_EQ(cached(kC), 32u);
}

TEST_F(KvCacheTest, SaltsAndOtherTokensShareNothing) {
  cache_.add_sequence(kA, tokens(40), "one");
  submit(1, kA, 40);
  end(1);
  cache_.add_sequence(kB, tokens(40), "two");
  cache_.add_sequence(kC, tokens(40, 1), "one");
  EXPECT_EQ(cached(kB), 0u);
  EXPECT_EQ(cached(kC), 0u);
}

TEST_F(KvCacheTest, AStepThatFailedPublishesNothing) {
  cache_.add_sequence(kA, tokens(40), "");
  submit(1, kA, 40);
  end(1, false);
  cache_.add_sequence(kB, tokens(40), "");
  EXPECT_EQ(cached(kB), 0u);
  cache_.remove_sequence(kA);
  EXPECT_EQ(idle(), 0u);
  EXPECT_EQ(available(), 8);
}

TEST_F(KvCacheTest, WhatIsGivenUpStaysPinnedUntilTheStepsInFlightEnd) {
  cache_.add_sequence(kA, tokens(20), "");
  cache_.add_sequence(kB, tokens(20, 100), "");
  submit(1, kA, 20);
  submit(2, kB, 20);
  cache_.remove_sequence(kA);
  EXPECT_EQ(pinned(), 2u);
  EXPECT_EQ(available(), 4);
  end(1);
  EXPECT_EQ(pinned(), 2u) << "step 2 was in flight as well";
  end(2);
  EXPECT_EQ(pinned(), 0u);
  EXPECT_EQ(available(), 6) << "nothing of a sequence that had gone was published";
}

TEST_F(KvCacheTest, AnOlderStepPublishesNothingOfASequenceThatWasDropped) {
  cache_.add_sequence(kA, tokens(40), "");
  submit(1, kA, 40);
  cache_.drop_all(kA);
  EXPECT_TRUE(cache_.was_dropped(kA));
  submit(2, kA, 16);
  end(1);
  EXPECT_EQ(idle(), 0u);
  cache_.add_sequence(kB, tokens(40), "");
  EXPECT_EQ(cached(kB), 0u);
  end(2);
  EXPECT_EQ(cached(kB), 16u);
}

TEST_F(KvCacheTest, APinnedBlockCanBeAdopted) {
  cache_.add_sequence(kA, tokens(40), "");
  submit(1, kA, 40);
  end(1);
  cache_.append_token(kA, 40);
  submit(2, kA, 41);
  cache_.remove_sequence(kA);
  cache_.add_sequence(kB, tokens(40), "");
  EXPECT_EQ(cached(kB), 32u);
  EXPECT_EQ(cached_idle(kB), 0u);
  EXPECT_EQ(pinned(), 3u);
  cache_.adopt(kB, 32);
  EXPECT_EQ(pinned(), 1u);
  EXPECT_EQ(own(kB), 0u) << "giving it up would free nothing yet";
  end(2);
  EXPECT_EQ(own(kB), 2u);
  EXPECT_THAT(cache_.take_changed(), testing::Contains(kB));
  EXPECT_THAT(cache_.take_changed(), testing::IsEmpty());
}

TEST_F(KvCacheTest, ASharedBlockBelongsToNoSequenceAlone) {
  cache_.add_sequence(kA, tokens(40), "");
  submit(1, kA, 40);
  end(1);
  cache_.add_sequence(kB, tokens(40), "");
  cache_.adopt(kB, 32);
  EXPECT_EQ(own(kA), 1u);
  EXPECT_EQ(own(kB), 0u);
  EXPECT_EQ(used(), 3u);
  cache_.drop_all(kA);
  EXPECT_EQ(own(kB), 2u);
  EXPECT_EQ(cached(kA), 32u) << "it may adopt its own blocks again";
}

TEST_F(KvCacheTest, TheOldestIdleBlockIsEvictedAndOfAPrefixItsEnd) {
  cache_.add_sequence(kA, tokens(65), "");  // 4 full blocks and one more
  submit(1, kA, 65);
  end(1);
  cache_.remove_sequence(kA);
  EXPECT_EQ(idle(), 4u);
  cache_.add_sequence(kB, tokens(65), "");
  cache_.add_sequence(kC, tokens(96, 500), "");
  submit(2, kC, 80);
  EXPECT_EQ(cached(kB), 48u);
  submit(3, kC, 96);
  EXPECT_EQ(cached(kB), 32u);
  end(2);
  end(3);
}

TEST_F(KvCacheTest, PromisesAreDrawnThenEnd) {
  cache_.add_sequence(kA, tokens(60), "");
  cache_.promise({kA, 8, Tier::kDevice});
  EXPECT_EQ(available(), 4);
  submit(1, kA, 20);
  EXPECT_EQ(cache_.summary(kA).promised_cells[0], 4u);
  EXPECT_EQ(available(), 4);
  cache_.end_promises(kA);
  EXPECT_EQ(available(), 6);
  cache_.promise({kA, 2, Tier::kDevice});
  end(1);
  cache_.drop_all(kA);
  EXPECT_EQ(available(), 8);
}

TEST_F(KvCacheTest, TwoThatComputeTheSameKeepACopyEach) {
  cache_.add_sequence(kA, tokens(20), "");
  cache_.add_sequence(kB, tokens(20), "");
  submit(1, kA, 20);
  submit(2, kB, 20);
  end(1);
  end(2);
  EXPECT_EQ(used(), 4u);
  cache_.remove_sequence(kB);
  EXPECT_EQ(idle(), 0u) << "the second copy is not kept";
  cache_.remove_sequence(kA);
  EXPECT_EQ(idle(), 1u);
}

TEST_F(KvCacheTest, OneTableServesEveryStepUntilItChanges) {
  cache_.add_sequence(kA, tokens(40), "");
  submit(1, kA, 20);
  const auto first = cache_.table(kA);
  ASSERT_EQ(first->size(), 2u * 2);
  submit(2, kA, 30);
  EXPECT_EQ(cache_.table(kA), first) << "no block came";
  submit(3, kA, 40);
  const auto second = cache_.table(kA);
  EXPECT_NE(second, first);
  ASSERT_EQ(second->size(), 3u * 2);
  EXPECT_TRUE(std::equal(first->begin(), first->end(), second->begin()));
  for (uint64_t step : {1, 2, 3}) end(step);
}

TEST_F(KvCacheTest, TheTableHasAPlaceForBlocksWithoutFrames) {
  cache_.add_sequence(kA, tokens(48), "");
  submit(1, kA, 16);
  EXPECT_EQ(cache_.table(kA)->size(), 2u);
  StepSlice slice;
  slice.seq = kA;
  slice.tokens = {16, 32};
  cache_.extend(kA, 32, {}, StepId{2});
  cache_.step_submitted(StepId{2}, {&slice, 1});
  ASSERT_EQ(cache_.table(kA)->size(), 4u);
  EXPECT_FALSE((*cache_.table(kA))[2].present());
  cache_.drop_all(kA);
  end(1);
  end(2);
}

TEST_F(KvCacheTest, RowsThatWereDeferredCountForNothing) {
  cache_.add_sequence(kA, tokens(60), "");
  submit(1, kA, 20);
  submit(2, kA, 50);
  const std::vector<SeqId> deferred = {kA};
  EXPECT_EQ(cache_.step_ended(StepId{1}, true, {}).void_rows, std::vector<SeqId>{});
  EXPECT_EQ(cache_.step_ended(StepId{2}, true, deferred).void_rows, deferred);
  EXPECT_EQ(cache_.check_integrity().message(), "");
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 20u);
  EXPECT_EQ(cache_.summary(kA).blocks, 2u);
  EXPECT_EQ(available(), 6);
  submit(3, kA, 60);
  end(3);
  cache_.add_sequence(kB, tokens(60), "");
  EXPECT_EQ(cached(kB), 48u);
}

TEST_F(KvCacheTest, WhatFollowsInFlightOnDeferredRowsIsVoidAndCutsNothingThatCameLater) {
  cache_.add_sequence(kA, tokens(50), "");
  submit(1, kA, 20);
  submit(2, kA, 40);
  const std::vector<SeqId> deferred = {kA};
  EXPECT_EQ(cache_.step_ended(StepId{1}, true, deferred).void_rows, deferred);
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 0u);
  submit(3, kA, 50);
  EXPECT_EQ(cache_.step_ended(StepId{2}, true, deferred).void_rows, deferred);
  EXPECT_EQ(cache_.check_integrity().message(), "");
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 50u) << "step 3 writes all of it again";
  end(3);
  cache_.add_sequence(kB, tokens(50), "");
  EXPECT_EQ(cached(kB), 48u);
}

TEST(KvCache, WithoutPrefixCachingNothingIsFoundOrKept) {
  KvCache cache(options(8, false));
  cache.add_sequence(kA, tokens(40), "");
  StepSlice slice;
  slice.seq = kA;
  slice.tokens = {0, 40};
  cache.extend(kA, 40, {LayerSet::all(2), {}}, StepId{1});
  cache.step_submitted(StepId{1}, {&slice, 1});
  cache.step_ended(StepId{1}, true, {});
  cache.add_sequence(kB, tokens(40), "");
  EXPECT_EQ(cache.cached(kB).matched, 0u);
  cache.remove_sequence(kA);
  EXPECT_EQ(cache.map().idle_blocks(), 0u);
  EXPECT_EQ(cache.check_integrity().message(), "");
}

TEST(KvCacheDeathTest, APlanThatTakesTooMuchIsOurBug) {
  KvCache cache(options(2));
  cache.add_sequence(kA, tokens(40), "");
  EXPECT_DEATH(cache.extend(kA, 40, {LayerSet::all(2), {}}, StepId{1}), "took more than there is");
}

}  // namespace
}  // namespace kvasir
