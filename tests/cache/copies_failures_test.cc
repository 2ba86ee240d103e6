// Copies that fail, that are in flight, and that can be found, one rule at a time.
#include <gmock/gmock.h>

#include "cache/copies_fixture.h"

namespace kvasir::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

// ---------------------------------------------------------------- failures

TEST_F(CopiesTest, AFailedCopyLeavesTheOtherWhereItIs) {
  computed(kA, 40);
  const std::vector<Transfer> out = add(kA, {0, 32}, Tier::kHost);
  leave(kA, {0, 32}, Tier::kDevice);
  finish(out[0], /*ok=*/false);
  finish(out[1]);
  SequenceCells s = cache_.summary(kA);
  EXPECT_EQ(s.leaving_cells, 0u);
  EXPECT_EQ(s.cells[0][kHost], 2u);
  EXPECT_EQ(s.cells[0][kDevice], 4u) << "a group of two full blocks, and the last block";
  EXPECT_EQ(s.ready_tokens, 40u);
  EXPECT_EQ(available(Tier::kHost), 14);

  leave(kA, {0, 32}, Tier::kDevice);
  push_out();
  const std::vector<Transfer> back = add(kA, {0, 32}, Tier::kDevice, true);
  ASSERT_EQ(back.size(), 1u);
  finish(back, /*ok=*/false);
  s = cache_.summary(kA);
  EXPECT_EQ(s.ready_tokens, 40u) << "the host has it still";
  EXPECT_EQ(s.cells[0][kDevice], 4u);
  EXPECT_EQ(available(Tier::kDevice), 12);
}

TEST_F(CopiesTest, ALostCellCutsTheSequenceBack) {
  // Three full blocks are written to the host as the step goes, and nothing of them is on the device.
  cache_.add_sequence(kA, tokens(50), "");
  submit(1, kA, 50, /*keep=*/{});
  const auto written = cache_.write_through(
      {Verb::kAdd, kA, {0, 48}, LayerSet::all(2), Form::kKv, Tier::kHost, Trigger::kAfterLayerWrites});
  ASSERT_EQ(written.size(), 6u);
  const auto fills = [&](uint32_t block, uint32_t g) {
    return cache_.begin_transfer(kA, {{cache_.blocks_of(kA)[block], kHostKv, LayerSet::one(g), true}}, false);
  };
  std::vector<TransferId> ids;
  for (const auto& w : written) ids.push_back(fills(w.block, w.group));
  check();
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool second = written[i].block == 1 && written[i].group == 1;
    cache_.transfer_ended(ids[i], status(!second));
    check();
  }
  SequenceCells s = cache_.summary(kA);
  EXPECT_EQ(s.ready_tokens, 0u) << "the step that computes it has not ended: all of its rows are void";
  EXPECT_EQ(s.blocks, 0u);
  EXPECT_EQ(s.cells[0][kHost], 0u);
  EXPECT_THAT(end(1).void_rows, ElementsAre(kA));
  EXPECT_EQ(available(Tier::kHost), 16);
  EXPECT_EQ(available(Tier::kDevice), 16);
}

TEST_F(CopiesTest, ALostCellOfASharedHistoryIsLostForSequencesWithoutAnother) {
  computed(kA, 40);
  cache_.add_sequence(kB, tokens(40), "");
  cache_.adopt(kB, 32);
  const std::vector<Transfer> out = add(kA, {0, 32}, Tier::kHost);
  leave(kA, {0, 32}, Tier::kDevice);
  finish(out, /*ok=*/false);
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 40u);
  EXPECT_EQ(cells(kA, kDevice), 6u);
  EXPECT_EQ(cells(kB, kDevice), 4u);
}

TEST_F(CopiesTest, WhatIsComputedInFlightOnALostCellIsVoid) {
  cache_.add_sequence(kA, tokens(60), "");
  submit(1, kA, 32, /*keep=*/{});
  const auto written = cache_.write_through(
      {Verb::kAdd, kA, {0, 32}, LayerSet::all(2), Form::kKv, Tier::kHost, Trigger::kAfterLayerWrites});
  std::vector<TransferId> ids;
  for (const auto& w : written) {
    ids.push_back(cache_.begin_transfer(
        kA, {{cache_.blocks_of(kA)[w.block], kHostKv, LayerSet::one(w.group), true}}, false));
  }
  submit(2, kA, 60);
  EXPECT_THAT(end(1).void_rows, IsEmpty());
  cache_.transfer_ended(ids[0], status(false));
  for (size_t i = 1; i < ids.size(); ++i) cache_.transfer_ended(ids[i], Status());
  check();
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 0u);
  submit(3, kA, 60);
  EXPECT_THAT(end(2).void_rows, ElementsAre(kA));
  EXPECT_EQ(cache_.summary(kA).ready_tokens, 60u);
  EXPECT_THAT(end(3).void_rows, IsEmpty());
}

// ---------------------------------------------------------------- a link that does not work

class FailingCopiesTest : public CopiesTest {
 protected:
  static Status broken() { return error(ErrorCode::kIo, "the bus is gone"); }
  FailingCopiesTest() {
    computed(kA, 32);
    computed(kB, 32, 500);
  }
  // Copies of one commit to this tier.
  std::vector<TransferId> begin(SeqId seq, Tier to, int copies = 1) {
    cache_.begin_commit();
    std::vector<TransferId> ids;
    for (; copies > 0; --copies) {
      if (to == Tier::kHost) {
        ids.push_back(add(seq, missing_, Tier::kHost, false, group(0)).at(0).id);
      } else {
        // It fills nothing that the map knows, as staging does.
        const KvCache::Use read = {cache_.blocks_of(seq)[0], kDeviceKv, LayerSet::one(0), false};
        ids.push_back(cache_.begin_transfer(seq, {read}, /*cancellable=*/false));
      }
    }
    return ids;
  }
  void end_all(const std::vector<TransferId>& ids, const Status& status) {
    for (TransferId id : ids) cache_.transfer_ended(id, status);
    check();
  }
  void copies(SeqId seq, Tier to, int commits, const Status& status, int each = 1) {
    for (int i = 0; i < commits; ++i) end_all(begin(seq, to, each), status);
    if (to == Tier::kHost && status.ok()) missing_ = {16, 32};
  }
  std::vector<uint64_t> failing() {
    std::vector<uint64_t> ids;
    for (const KvCache::Failing& f : cache_.take_failing()) {
      EXPECT_EQ(f.status.message(), "the bus is gone");
      ids.push_back(raw(f.seq));
    }
    return ids;
  }

  Interval missing_ = {0, 16};  // on the host
};

TEST_F(FailingCopiesTest, SixteenFailuresInARowAreTooMany) {
  for (const Tier to : {Tier::kDevice, Tier::kHost}) {
    copies(kA, to, 15, broken());
    copies(kA, to, 1, Status());
    copies(kA, to, 15, broken());
    EXPECT_THAT(failing(), IsEmpty()) << name(to);
    copies(kA, to, 1, broken());
    EXPECT_THAT(failing(), ElementsAre(raw(kA))) << name(to);
    copies(kA, to, 20, broken());
    EXPECT_THAT(failing(), IsEmpty()) << "it is told once";
  }
}

TEST_F(FailingCopiesTest, WhatWasCancelledOrLostOnADiskDoesNotCount) {
  copies(kA, Tier::kDevice, 15, broken());
  copies(kA, Tier::kDevice, 20, error(ErrorCode::kUnavailable, "cancelled"));
  copies(kA, Tier::kDevice, 20, error(ErrorCode::kCorrupt, "lost"));
  EXPECT_THAT(failing(), IsEmpty());
  copies(kA, Tier::kDevice, 1, broken());
  EXPECT_THAT(failing(), ElementsAre(raw(kA))) << "nor did it succeed";
}

TEST_F(FailingCopiesTest, EachSequenceAndEachDirectionHasACountOfItsOwn) {
  copies(kA, Tier::kHost, 15, broken());
  copies(kA, Tier::kDevice, 15, broken());
  copies(kB, Tier::kDevice, 15, broken());
  EXPECT_THAT(failing(), IsEmpty());
  copies(kA, Tier::kHost, 1, Status());
  copies(kB, Tier::kDevice, 1, Status());
  copies(kB, Tier::kDevice, 1, broken());
  EXPECT_THAT(failing(), IsEmpty());
  copies(kA, Tier::kDevice, 1, broken());
  EXPECT_THAT(failing(), ElementsAre(raw(kA)));
}

// A step may have a transfer for each layer: one fault of the link, however short, fails them all.
TEST_F(FailingCopiesTest, TransfersOfOneCommitFailOnce) {
  copies(kA, Tier::kDevice, 15, broken(), /*each=*/40);
  EXPECT_THAT(failing(), IsEmpty());
  copies(kA, Tier::kDevice, 1, broken(), 40);
  EXPECT_THAT(failing(), ElementsAre(raw(kA)));
}

TEST_F(FailingCopiesTest, CommitsWhoseTransfersEndInTurnsCountOnceEach) {
  copies(kA, Tier::kDevice, 13, broken());
  const std::vector<TransferId> first = begin(kA, Tier::kDevice, 20), second = begin(kA, Tier::kDevice, 20);
  for (size_t i = 0; i < first.size(); ++i) {
    cache_.transfer_ended(first[i], broken());
    cache_.transfer_ended(second[i], broken());
  }
  EXPECT_THAT(failing(), IsEmpty());
  copies(kA, Tier::kDevice, 1, broken());
  EXPECT_THAT(failing(), ElementsAre(raw(kA)));
}

// ---------------------------------------------------------------- what is in flight

TEST_F(CopiesTest, BytesThatAStepStillWritesAreSentWhenItHasEnded) {
  cache_.add_sequence(kA, tokens(60), "");
  submit(1, kA, 32);
  submit(2, kA, 48);
  EXPECT_THAT(add(kA, {32, 48}, Tier::kHost), IsEmpty());
  EXPECT_THAT(add(kA, {0, 32}, Tier::kHost, false, group(1)), IsEmpty());
  EXPECT_EQ(cells(kA, kHost), 4u) << "their places are taken";
  EXPECT_EQ(cache_.transfers_in_flight(), 3u);
  const KvCache::StepOutcome first = end(1);
  ASSERT_EQ(first.transfers.size(), 1u);
  EXPECT_EQ(first.transfers[0].segments.size(), 2u);
  EXPECT_EQ(add(kA, {0, 32}, Tier::kHost, false, group(0)).size(), 1u) << "at rest by now";
  const KvCache::StepOutcome second = end(2);
  EXPECT_EQ(second.transfers.size(), 2u);
  finish(first.transfers);
  finish(second.transfers);
  EXPECT_EQ(cache_.transfers_in_flight(), 1u);
}

TEST_F(CopiesTest, FramesAreNotReusedBeforeTheirTransferHasEnded) {
  computed(kA, 40);
  const std::vector<Transfer> out = add(kA, {0, 40}, Tier::kHost, /*tail=*/true);
  cache_.drop_all(kA);
  check();
  EXPECT_EQ(cells(kA, kHost), 0u);
  EXPECT_EQ(available(Tier::kDevice), 10);
  EXPECT_EQ(coming(), 6);
  EXPECT_EQ(available(Tier::kHost), 10);
  finish(out[0]);
  EXPECT_EQ(available(Tier::kHost), 13) << "copy by copy: that of the last block is freed, two are idle";
  finish(out[1]);
  EXPECT_EQ(available(Tier::kHost), 16);
  EXPECT_EQ(available(Tier::kDevice), 16);
  EXPECT_EQ(cache_.map().idle_blocks(), 2u) << "full ones can be found";
}

TEST_F(CopiesTest, TransfersOfARemovedSequenceAreNotWaitedFor) {
  computed(kA, 40);
  computed(kB, 40, 500);
  const std::vector<Transfer> a = add(kA, {0, 32}, Tier::kHost);
  const std::vector<Transfer> b = add(kB, {0, 32}, Tier::kHost);
  const TransferId firing = cache_.begin_transfer(
      kA, {{cache_.blocks_of(kA)[0], kDeviceKv, LayerSet::one(0), false}}, /*cancellable=*/false);
  cache_.remove_sequence(kA);
  check();
  EXPECT_THAT(cache_.take_cancelled(), UnorderedElementsAre(a[0].id, a[1].id));
  EXPECT_THAT(cache_.take_cancelled(), IsEmpty());
  EXPECT_EQ(available(Tier::kHost), 8) << "until the link says that they have ended";
  finish(a, /*ok=*/false);
  cache_.transfer_ended(firing, Status());
  check();
  EXPECT_EQ(available(Tier::kHost), 12);
  finish(b);
}

// ---------------------------------------------------------------- being found

TEST_F(CopiesTest, ABlockIsFoundWhileKvCanBeHadInEveryGroup) {
  computed(kA, 40);
  cache_.add_sequence(kB, tokens(40), "");
  EXPECT_EQ(cached(kB), 32u);
  finish(add(kA, {0, 32}, Tier::kHost));
  EXPECT_EQ(cached(kB), 32u);
  leave(kA, {16, 32}, Tier::kDevice, group(1));
  const auto what = [&]() { return cache_.cached(kB).what; };
  EXPECT_EQ(cached(kB), 32u);
  EXPECT_EQ(what().cells[kDevice], 4u) << "it is not needed there, but is there still";
  EXPECT_EQ(what().idle[kDevice], 1u);
  push_out();
  EXPECT_EQ(cached(kB), 32u);
  EXPECT_EQ(what().cells[kDevice], 3u);
  EXPECT_EQ(what().cells[kHost], 1u);
  EXPECT_EQ(what().idle, Adoptable().idle);
  cache_.take_changed();
  const std::vector<Transfer> back = add(kA, {16, 32}, Tier::kDevice);
  ASSERT_EQ(back.size(), 1u);
  EXPECT_EQ(what().cells[kDevice], 3u) << "its bytes are on their way";
  finish(back);
  EXPECT_EQ(what().cells[kDevice], 4u);
  EXPECT_THAT(cache_.take_changed(), testing::Contains(kB));
  leave(kA, {16, 32}, Tier::kHost);
  cache_.drop({Verb::kDrop, kA, {16, 32}, group(1), Form::kKv, Tier::kDevice, Trigger::kNow});
  check();
  EXPECT_EQ(cached(kB), 32u) << "idle copies on the host and the device";
  push_out();
  EXPECT_EQ(cached(kB), 32u);
  EXPECT_EQ(what().idle[kHost], 1u);
}

TEST_F(CopiesTest, OfTwoWithTheSameHashTheFirstIsFoundWhereverItIs) {
  computed(kA, 20);
  offload(kA);
  push_out();
  computed(kB, 20);
  cache_.add_sequence(kC, tokens(20), "");
  EXPECT_EQ(cached(kC), 16u);
  EXPECT_EQ(cache_.cached(kC).what.cells[kHost], 2u);
  cache_.remove_sequence(kB);
  EXPECT_EQ(cache_.cached(kC).what.cells[kHost], 2u) << "B's was never published, and is not kept";
  cache_.remove_sequence(kA);
  check();
  EXPECT_EQ(cache_.map().idle_blocks(Tier::kHost), 1u);
  EXPECT_EQ(cache_.cached(kC).what.idle[kHost], 2u);
}

}  // namespace
}  // namespace kvasir::test
