// What becomes of promises in the cache. Blocks have 16 tokens, two cells; there are eight of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cache/sequences/kv_cache.h"

namespace kvasir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Kind = Promise::Kind;

constexpr SeqId kHost{1}, kGuest{2}, kOther{3};
constexpr Tier kDev = Tier::kDevice;

CacheOptions eight_blocks() {
  CacheOptions o;
  o.geometry = {16, 4, 2, 8};
  o.device_bytes = o.geometry.kv_block_bytes() * 8;
  return o;
}

class CachePromises : public testing::Test {
 protected:
  CachePromises() : cache_(eight_blocks()) {
    Token first = 0;
    for (SeqId id : {kHost, kGuest, kOther}) {
      std::vector<Token> tokens(100);
      std::iota(tokens.begin(), tokens.end(), first += 1000);
      cache_.add_sequence(id, std::move(tokens), "");
    }
  }
  ~CachePromises() override { check(); }

  void check() const { EXPECT_EQ(cache_.check_integrity().message(), ""); }
  // One step in which the sequence comes to `end` tokens.
  void compute(SeqId seq, uint32_t end) {
    begin(seq, end);
    end_step();
  }
  void begin(SeqId seq, uint32_t end) {
    StepSlice slice;
    slice.seq = seq;
    slice.tokens = {cache_.summary(seq).ready_tokens, end};
    cache_.extend(seq, end, {LayerSet::all(2), {}}, StepId{++step_});
    cache_.step_submitted(StepId{step_}, {&slice, 1});
    check();
  }
  void end_step() {
    cache_.step_ended(StepId{step_}, true, {});
    check();
  }
  uint32_t promised(SeqId seq) const { return cache_.summary(seq).promised_cells[0]; }
  int64_t free_cells() const { return cache_.budget(kDev).available_cells(); }

  KvCache cache_;
  uint64_t step_ = 0;
};

TEST_F(CachePromises, TheReserveIsKeptFromAllAndDrawnOn) {
  cache_.promise({SeqId{}, 6, kDev, Kind::kReserve});
  EXPECT_EQ(free_cells(), 10);
  cache_.promise({kHost, 4, kDev, Kind::kFromReserve});
  EXPECT_EQ(free_cells(), 10);
  EXPECT_EQ(promised(kHost), 4u);
  EXPECT_EQ(cache_.reserved_cells()[0], 2u);
  cache_.end_promises(kHost);
  EXPECT_EQ(free_cells(), 14) << "what was drawn does not go back to the reserve";
  cache_.promise({SeqId{}, 1, kDev, Kind::kReserve});
  EXPECT_EQ(free_cells(), 15);
}

TEST_F(CachePromises, ALoanComesBackWhenTheGuestEnds) {
  cache_.promise({kHost, 8, kDev});
  cache_.promise({kGuest, 6, kDev, Kind::kLoan, kHost, 50});
  EXPECT_EQ(promised(kHost), 2u);
  EXPECT_EQ(free_cells(), 8);
  compute(kGuest, 32);  // four cells
  EXPECT_EQ(promised(kGuest), 2u);
  EXPECT_THAT(cache_.settle_claims(), IsEmpty()) << "it was not called";
  cache_.drop_all(kGuest);
  EXPECT_EQ(free_cells(), 14) << "until it is settled any sequence may have them";
  EXPECT_THAT(cache_.settle_claims(), ElementsAre(kHost));
  EXPECT_EQ(promised(kHost), 8u);
  EXPECT_EQ(free_cells(), 8);
  EXPECT_THAT(cache_.claims(), IsEmpty());
}

TEST_F(CachePromises, ALoanThatAStepStillReadsComesBackLater) {
  cache_.promise({kHost, 16, kDev});
  cache_.promise({kGuest, 6, kDev, Kind::kLoan, kHost, 50});
  begin(kGuest, 32);
  cache_.remove_sequence(kGuest);
  EXPECT_THAT(cache_.settle_claims(), ElementsAre(kHost)) << "two cells had not been allocated";
  EXPECT_EQ(promised(kHost), 12u);
  ASSERT_EQ(cache_.claims().size(), 1u);
  EXPECT_TRUE(cache_.claims()[0].called);
  EXPECT_EQ(cache_.claims()[0].cells, 4u);
  end_step();
  EXPECT_THAT(cache_.settle_claims(), ElementsAre(kHost));
  EXPECT_EQ(promised(kHost), 16u);
  EXPECT_EQ(free_cells(), 0);
}

TEST_F(CachePromises, AHostThatEndsIsOwedNothing) {
  cache_.promise({kHost, 8, kDev});
  cache_.promise({kGuest, 6, kDev, Kind::kLoan, kHost, 50});
  cache_.remove_sequence(kHost);
  EXPECT_THAT(cache_.claims(), IsEmpty());
  EXPECT_EQ(promised(kGuest), 6u) << "now it is the guest's own";
  EXPECT_EQ(free_cells(), 10);
}

TEST_F(CachePromises, WhatWasLentOnIsOwedToItsFirstLender) {
  cache_.promise({kHost, 16, kDev});
  cache_.promise({kGuest, 6, kDev, Kind::kLoan, kHost, 50});
  cache_.promise({kOther, 4, kDev, Kind::kLoan, kGuest, 40});
  compute(kOther, 32);  // it needs them all
  cache_.remove_sequence(kGuest);
  EXPECT_THAT(cache_.settle_claims(), ElementsAre(kHost)) << "two cells are back";
  EXPECT_EQ(promised(kHost), 12u);
  EXPECT_THAT(cache_.claims(), ElementsAre(Claim{kOther, kHost, 4, 50, kDev, false}));
  cache_.remove_sequence(kOther);
  EXPECT_THAT(cache_.settle_claims(), ElementsAre(kHost));
  EXPECT_EQ(promised(kHost), 16u);
  EXPECT_EQ(free_cells(), 0);
}

TEST_F(CachePromises, ReleasedCellsGoToTheSequenceThatWasPromisedThem) {
  compute(kHost, 96);  // twelve cells
  cache_.promise({kGuest, 8, kDev, Kind::kRelease, kHost});
  EXPECT_EQ(free_cells(), 4);
  EXPECT_EQ(promised(kGuest), 0u);
  cache_.remove_sequence(kHost);
  EXPECT_THAT(cache_.settle_claims(), ElementsAre(kGuest));
  EXPECT_EQ(promised(kGuest), 8u);
  EXPECT_EQ(free_cells(), 8);
}

}  // namespace
}  // namespace kvasir
