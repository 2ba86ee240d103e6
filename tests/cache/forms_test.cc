// Cells held as KV and X: leaving, dropping, filling, losing, one rule at a time.
#include <gmock/gmock.h>

#include "cache/forms_fixture.h"

namespace kvasir::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// ---------------------------------------------------------------- leaving

TEST_F(FormsTest, KvLeavesWhereXServesAndOfABlockThatIsNotFullItStays) {
  computed(kA, 40, {all(), all()});
  EXPECT_EQ(cells(kA, kDeviceX), 6u);
  leave(kA, {0, 40}, kDeviceKv);
  EXPECT_EQ(cells(kA, kDeviceKv), 2u);
  EXPECT_EQ(cache_.summary(kA).dropped_cells, 0u);
  EXPECT_TRUE(cache_.summary(kA).tail_resident);
  leave(kA, {0, 40}, kDeviceX);
  EXPECT_EQ(cells(kA, kDeviceX), 4u) << "of the last block KV serves for X; of the others nothing does";
}

TEST_F(FormsTest, XLeavesForAnotherTierAsItsCopyIsReady) {
  computed(kA, 40, {all(), all()});
  leave(kA, {0, 32}, kDeviceKv);
  const std::vector<Transfer> out = add(kA, {0, 40}, kHostX, all());
  ASSERT_EQ(out.size(), 2u);
  EXPECT_EQ(out[0].segments.size(), 2u) << "of full blocks";
  EXPECT_EQ(out[0].bytes(), 2u * 256);
  leave(kA, {0, 32}, kDeviceX);
  EXPECT_EQ(cells(kA, kDeviceX), 6u);
  EXPECT_EQ(cache_.summary(kA).leaving_cells, 0u) << "of KV";
  finish({out[1]});
  EXPECT_EQ(cells(kA, kDeviceX), 4u);
  finish({out[0]}, unavailable());
  EXPECT_EQ(cells(kA, kDeviceX), 4u) << "there is no other copy: it stays";
  EXPECT_EQ(cells(kA, kHostX), 2u);
  EXPECT_EQ(cache_.summary(kA).dropped_cells, 0u);
}

TEST_F(FormsTest, FromEveryPlaceToEveryOther) {
  const std::vector<Place> places = {kDeviceKv, kHostKv, kDiskKv, kDeviceX, kHostX, kDiskX};
  for (const Place& from : places) {
    for (const Place& to : places) {
      if (from == to) continue;
      computed(kA, 33, {all(), all()});
      if (from.tier != Tier::kDevice) copy(kA, {0, 32}, from, all());
      if (to.tier != Tier::kDevice) copy(kA, {0, 32}, to, all());
      for (const Place& other : places) {
        if (!(other == from) && !(other == to)) drop(kA, {0, 32}, other);
      }
      const bool tail_from = from.tier == Tier::kDevice, tail_to = to.tier == Tier::kDevice;
      EXPECT_EQ(cells(kA, from), tail_from ? 6u : 4u);
      leave(kA, {0, 32}, from);
      EXPECT_EQ(cells(kA, from), tail_from ? 2u : 0u) << index_of(from) << " to " << index_of(to);
      EXPECT_EQ(cells(kA, to), tail_to ? 6u : 4u);
      EXPECT_EQ(cache_.summary(kA).dropped_cells, 0u);
      cache_.remove_sequence(kA);
      push_out();
    }
  }
}

TEST_F(FormsTest, ReleasingACopyTakesHoldOfAnotherSequencesCopy) {
  computed(kA, 40, {all(), {}});
  copy(kA, {0, 32}, kHostKv, all());
  cache_.add_sequence(kB, tokens(40), "");
  cache_.adopt(kB, 32);
  EXPECT_EQ(cells(kB, kHostKv), 0u);
  leave(kB, {0, 32}, kDeviceKv);
  EXPECT_EQ(cells(kB, kDeviceKv), 0u);
  EXPECT_EQ(cells(kB, kHostKv), 4u);
  cache_.remove_sequence(kA);
  EXPECT_EQ(cells(kB, kHostKv), 4u);
  EXPECT_EQ(cache_.summary(kB).own_kv_cells(Tier::kHost), 4u);
  EXPECT_EQ(cache_.summary(kB).dropped_cells, 0u);
}

// ---------------------------------------------------------------- dropping

TEST_F(FormsTest, WhatIsDroppedIsARectangle) {
  computed(kA, 60, {all(), {}});
  cache_.add_sequence(kB, tokens(60), "");
  EXPECT_EQ(cached(kB).matched, 3u);
  drop(kA, {16, 32}, kDeviceKv, group(1));
  SequenceCells s = cache_.summary(kA);
  EXPECT_EQ(s.ready_tokens, 60u) << "its history counts all the same";
  EXPECT_EQ(s.dropped_cells, 1u);
  EXPECT_EQ(s.dropped, (Interval{16, 32}));
  EXPECT_EQ(s.dropped_first_group, 1);
  EXPECT_EQ(s.dropped_end_group, 2);
  EXPECT_EQ(s.resident_blocks, 3u);
  EXPECT_EQ(s.device_groups, group(0));
  EXPECT_EQ(cached(kB).matched, 3u) << "no sequence needs the copy, but it is there";
  push_out();
  EXPECT_EQ(cached(kB).matched, 1u);

  drop(kA, {32, 48}, kDeviceKv, group(0));
  s = cache_.summary(kA);
  EXPECT_EQ(s.dropped_cells, 2u);
  EXPECT_EQ(s.dropped, (Interval{16, 48}));
  EXPECT_EQ(s.dropped_first_group, 0);
  EXPECT_EQ(s.dropped_end_group, 2);
  drop(kA, {0, 60}, kDeviceKv);
  s = cache_.summary(kA);
  EXPECT_EQ(s.dropped_cells, 6u);
  EXPECT_EQ(s.dropped, (Interval{0, 48}));
  EXPECT_TRUE(s.tail_resident) << "a block that is not full is not dropped";
}

TEST_F(FormsTest, ACopyThatHasFallenBehindIsNoCopy) {
  // The host has the last block as it was when it had eight tokens.
  computed(kA, 40, {all(), {}});
  finish(add(kA, {0, 40}, kHostKv, all(), /*tail=*/true));
  go_on(kA, 50, {all(), {}});
  drop(kA, {32, 48}, kDeviceKv);
  EXPECT_EQ(cache_.summary(kA).dropped_cells, 2u);
  EXPECT_EQ(cells(kA, kHostKv), 4u);
  // X that was kept of a block's first tokens, and not of the others.
  computed(kB, 40, {all(), all()}, 500);
  go_on(kB, 50, {all(), {}});
  drop(kB, {0, 48}, kDeviceKv);
  EXPECT_EQ(cache_.summary(kB).dropped_cells, 2u);
  EXPECT_EQ(cache_.summary(kB).dropped, (Interval{32, 48}));
  EXPECT_EQ(cells(kB, kDeviceX), 4u);
}

TEST_F(FormsTest, DroppingAFormCutsOffWhatHasNoKv) {
  computed(kA, 40, {all(), all()});
  cache_.drop_form(kA, Form::kKv, Tier::kDevice);
  check();
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 32u) << "of the last block there is only X";
  EXPECT_EQ(cells(kA, kDeviceX), 4u);
  EXPECT_EQ(cache_.summary(kA).dropped_cells, 0u);
  EXPECT_FALSE(cache_.was_dropped(kA));
  cache_.drop_form(kA, Form::kX, Tier::kDevice);
  check();
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 0u) << "that was all";
  EXPECT_TRUE(cache_.was_dropped(kA));
}

// ---------------------------------------------------------------- frames that a step fills

class FillTest : public FormsTest {
 protected:
  // Cell (1, 1) was dropped; step 1 recomputes it, goes on and fills a frame.
  void SetUp() override {
    computed(kA, 40, {all(), {}});
    drop(kA, {16, 32}, kDeviceKv, group(1));
    push_out();
    before_ = available(kDeviceKv);
    cache_.append_token(kA, 40);
    cache_.extend(kA, 41, {all(), {}}, StepId{1});
    frame_ = cache_.begin_fill(kA, 1, kDeviceKv, 1);
    std::array<StepSlice, 2> slices;
    slices[0].seq = slices[1].seq = kA;
    slices[0].tokens = {16, 32};
    slices[0].kind = RowKind::kRestore;
    slices[1].tokens = {40, 41};
    slices[1].kind = RowKind::kDecode;
    cache_.step_submitted(StepId{1}, slices);
    check();
    EXPECT_EQ(available(kDeviceKv), before_ - 1);
    EXPECT_EQ(cache_.summary(kA).dropped_cells, 1u);
  }
  uint64_t frame_ = 0;
  int64_t before_ = 0;
};

TEST_F(FillTest, BecomesACopyWhenTheStepHasEnded) {
  end(1);
  EXPECT_EQ(cache_.summary(kA).dropped_cells, 0u);
  EXPECT_EQ(cells(kA, kDeviceKv), 6u);
  EXPECT_EQ((*cache_.table(kA))[1 * 2 + 1].k, frame_);
  EXPECT_EQ(available(kDeviceKv), before_ - 1);
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 41u);
  cache_.add_sequence(kB, tokens(40), "");
  EXPECT_EQ(cached(kB).matched, 2u);
}

TEST_F(FillTest, IsGivenBackWhenTheStepFailsOrIsDeferred) {
  end(1, /*ok=*/false);
  EXPECT_EQ(cache_.summary(kA).dropped_cells, 1u);
  EXPECT_EQ(available(kDeviceKv), before_);
}

TEST_F(FillTest, IsGivenBackWhenItsRowsAreDeferred) {
  end(1, /*ok=*/true, {kA});
  EXPECT_EQ(cache_.summary(kA).dropped_cells, 1u);
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 40u);
  EXPECT_EQ(available(kDeviceKv), before_);
}

TEST_F(FillTest, IsGivenBackWhenItsSequenceHasGone) {
  cache_.remove_sequence(kA);
  check();
  end(1);
  EXPECT_EQ(available(kDeviceKv), 24);
}

TEST_F(FillTest, IsGivenBackWhenItsSequenceBeganAnew) {
  cache_.drop_all(kA);
  check();
  end(1);
  EXPECT_EQ(available(kDeviceKv), 24);
  EXPECT_EQ(cache_.summary(kA).blocks, 0u);
}

TEST_F(FillTest, IsNotNeededWhereACopyHasComeMeanwhile) {
  cache_.append_token(kA, 41);
  cache_.extend(kA, 42, {all(), {}}, StepId{2});
  const uint64_t second = cache_.begin_fill(kA, 1, kDeviceKv, 1);
  EXPECT_NE(second, frame_);
  StepSlice slice;
  slice.seq = kA;
  slice.tokens = {41, 42};
  cache_.step_submitted(StepId{2}, {&slice, 1});
  end(1);
  end(2);
  EXPECT_EQ((*cache_.table(kA))[1 * 2 + 1].k, frame_);
  EXPECT_EQ(available(kDeviceKv), before_ - 1);
}

// ---------------------------------------------------------------- losing

TEST_F(FormsTest, WhatTheDiskHasLostIsGone) {
  computed(kA, 40, {all(), {}});
  copy(kA, {0, 32}, kDiskKv, all());
  leave(kA, {0, 32}, kDeviceKv);
  push_out();
  EXPECT_EQ(cells(kA, kDiskKv), 4u);
  finish(add(kA, {0, 32}, kDeviceKv, group(0)), unavailable());
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 40u) << "the disk has it still";
  EXPECT_EQ(cells(kA, kDiskKv), 4u);
  finish(add(kA, {16, 32}, kDeviceKv, group(0)), corrupt());
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 16u);
  EXPECT_EQ(cells(kA, kDiskKv), 2u);
  EXPECT_THAT(cache_.take_cut_back(), ElementsAre(kA));
}

TEST_F(FormsTest, WhatTheDiskHasLostAndTheHostHasIsNotLost) {
  computed(kA, 40, {all(), all()});
  copy(kA, {0, 32}, kDiskKv, all());
  copy(kA, {0, 16}, kHostX, all());
  drop(kA, {0, 32}, kDeviceKv);
  drop(kA, {0, 32}, kDeviceX);
  push_out();
  finish(add(kA, {0, 16}, kDeviceKv, all()), corrupt());
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 40u);
  EXPECT_EQ(cache_.summary(kA).dropped_cells, 0u) << "X is on the host";
  EXPECT_EQ(cells(kA, kDiskKv), 2u);
  EXPECT_THAT(cache_.take_cut_back(), IsEmpty());
}

TEST_F(FormsTest, WhatFallsBehindDoesNotStandForWhatIsLost) {
  computed(kA, 40, {all(), {}});
  finish(add(kA, {0, 40}, kHostKv, all(), /*tail=*/true));
  go_on(kA, 50, {all(), {}});
  copy(kA, {32, 48}, kDiskKv, all());
  leave(kA, {32, 48}, kDeviceKv);
  push_out();
  EXPECT_EQ(cells(kA, kDeviceKv), 6u);
  finish(add(kA, {32, 48}, kDeviceKv, all()), corrupt());
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 32u);
}

}  // namespace
}  // namespace kvasir::test
