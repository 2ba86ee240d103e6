// A step's way through its points: which transfers start when, how long is waited, and which slices leave.
#include "exec/step_transfers.h"

#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "fakes/fake_link.h"

namespace kvasir::test {
namespace {

class StepTransfersTest : public testing::Test {
 protected:
  static StepTransfer starting(StepPoint point, uint64_t id) {
    StepTransfer f;
    f.start_at = point;
    f.transfer.id = TransferId{id};
    return f;
  }

  // A step of so many slices, of sequences 1, 2, ...
  static Step step_of(uint64_t slices) {
    Step step;
    for (uint64_t s = 1; s <= slices; ++s) step.slices.emplace_back().seq = SeqId{s};
    return step;
  }

  StepResult end() {
    StepResult result;
    transfers_.end(result);
    return result;
  }

  static std::vector<SeqId> seqs(std::initializer_list<uint64_t> ids) {
    std::vector<SeqId> out;
    for (uint64_t id : ids) out.push_back(SeqId{id});
    return out;
  }

  VirtualClock clock_;
  FakeLink link_{clock_};
  StepTransfers transfers_{&link_, clock_};
};

TEST_F(StepTransfersTest, StartsAtThePointAndNotBefore) {
  Step step = step_of(1);
  step.transfers = {starting(kStepBegins, 1),       starting(layer_written(0), 2),
                    starting(layer_written(0), 3),  starting(layer_attended(0), 4),
                    starting(layer_attended(1), 5), starting(layer_attended(7), 6)};
  step.index_by_layer();
  transfers_.begin(step);
  EXPECT_EQ(link_.queued(), 1u);
  transfers_.pass(layer_written(0));
  EXPECT_EQ(link_.queued(), 3u);
  transfers_.pass(layer_attended(0));
  EXPECT_EQ(link_.queued(), 4u);
  transfers_.pass(layer_written(1));
  EXPECT_EQ(link_.queued(), 4u);
  transfers_.pass(layer_attended(1));
  EXPECT_EQ(link_.queued(), 5u);
  const StepResult result = end();
  EXPECT_EQ(link_.queued(), 6u);
  EXPECT_TRUE(result.deferred.empty());
  EXPECT_EQ(result.stalled, 0);
  link_.complete_all();
  std::vector<uint64_t> order;
  for (const TransferDone& d : link_.completed()) order.push_back(raw(d.id));
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 2, 3, 4, 5, 6}));
}

TEST_F(StepTransfersTest, WaitsOnlyBeforeTheLayersThatSay) {
  Step step = step_of(2);
  step.transfers = {starting(kStepBegins, 1), starting(kStepBegins, 2)};
  step.waits = {{1, 0, TransferId{1}}, {3, 0, TransferId{2}}, {3, 1, TransferId{2}}};
  step.index_by_layer();
  transfers_.begin(step);
  for (uint32_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(transfers_.waits_before(layer), layer == 1 || layer == 3) << layer;
  }
  EXPECT_FALSE(transfers_.wait_before(1));
  EXPECT_EQ(link_.queued(), 1u);
  EXPECT_FALSE(transfers_.wait_before(3));
  EXPECT_EQ(link_.queued(), 0u);
  EXPECT_FALSE(transfers_.any_deferred());
  EXPECT_TRUE(end().deferred.empty());
}

TEST_F(StepTransfersTest, TheStepHasOnePatienceForAllTransfers) {
  Step step = step_of(4);
  for (uint64_t id : {1, 2, 3}) step.transfers.push_back(starting(kStepBegins, id));
  step.waits = {{0, 0, TransferId{1}}, {0, 1, TransferId{1}}, {0, 2, TransferId{2}}, {1, 3, TransferId{3}}};
  step.max_stall = 50;
  link_.stall(true);
  step.index_by_layer();
  transfers_.begin(step);
  EXPECT_TRUE(transfers_.wait_before(0));
  EXPECT_EQ(transfers_.stalled(), 50);
  EXPECT_EQ(clock_.now(), 50);
  EXPECT_TRUE(transfers_.deferred(0) && transfers_.deferred(1) && transfers_.deferred(2));
  EXPECT_FALSE(transfers_.all_deferred());
  EXPECT_TRUE(transfers_.wait_before(1)) << "without patience one asks";
  EXPECT_TRUE(transfers_.all_deferred());
  const StepResult result = end();
  EXPECT_EQ(result.stalled, 50);
  EXPECT_EQ(result.deferred, seqs({1, 2, 3, 4}));
}

TEST_F(StepTransfersTest, WithoutPatienceItOnlyAsks) {
  Step step = step_of(2);
  step.transfers = {starting(kStepBegins, 1), starting(kStepBegins, 2)};
  step.waits = {{0, 0, TransferId{1}}, {1, 1, TransferId{2}}};
  step.max_stall = 30;
  link_.stall(true);
  step.index_by_layer();
  transfers_.begin(step);
  transfers_.give_up_waiting();
  EXPECT_TRUE(transfers_.wait_before(0));
  EXPECT_TRUE(transfers_.wait_before(1));
  EXPECT_EQ(clock_.now(), 0);
  EXPECT_EQ(end().deferred, seqs({1, 2}));
}

TEST_F(StepTransfersTest, WhatIsThereNeedsNoPatience) {
  Step step = step_of(1);
  step.transfers = {starting(kStepBegins, 1)};
  step.waits = {{0, 0, TransferId{1}}};
  step.max_stall = 0;
  step.index_by_layer();
  transfers_.begin(step);
  link_.complete_all();
  link_.stall(true);
  EXPECT_FALSE(transfers_.wait_before(0));
  EXPECT_TRUE(end().deferred.empty());
}

TEST_F(StepTransfersTest, ADeferredSliceIsNotWaitedForAgainAndTheOthersAre) {
  Step step = step_of(2);
  for (uint64_t id : {1, 2, 3, 4}) step.transfers.push_back(starting(kStepBegins, id));
  step.waits = {{0, 0, TransferId{1}}, {0, 1, TransferId{2}}, {1, 0, TransferId{4}}, {1, 1, TransferId{3}}};
  link_.fail(TransferId{1});
  step.index_by_layer();
  transfers_.begin(step);
  EXPECT_TRUE(transfers_.wait_before(0));
  EXPECT_FALSE(transfers_.wait_before(1));
  EXPECT_EQ(link_.queued(), 1u) << "the last transfer was waited for";
  EXPECT_EQ(end().deferred, seqs({1}));
}

// If only the transfer's memory is used again, the end of a cancelled one will do.
TEST_F(StepTransfersTest, APlaceIsFreeHoweverItsLastTransferEnded) {
  for (const bool any_end : {true, false}) {
    Transfer transfer;
    transfer.id = TransferId{any_end ? 1u : 2u};
    link_.start(transfer);
    link_.cancel(transfer.id);
    link_.complete_all();
    Step step = step_of(1);
    step.waits = {{1, 0, transfer.id, any_end}};
    step.index_by_layer();
    transfers_.begin(step);
    EXPECT_EQ(transfers_.wait_before(1), !any_end);
    EXPECT_EQ(end().deferred, any_end ? seqs({}) : seqs({1}));
  }
}

TEST_F(StepTransfersTest, ASequenceLeavesWithAllItsSlices) {
  Step step = step_of(5);
  step.slices[2].seq = step.slices[4].seq = SeqId{1};
  for (uint64_t id : {1, 2, 3, 4}) step.transfers.push_back(starting(kStepBegins, id));
  step.transfers[1].only_for = 4;
  step.transfers[2].only_for = 3;
  step.waits = {{0, 2, TransferId{1}}, {1, 0, TransferId{4}}, {1, 4, TransferId{2}}};
  link_.fail(TransferId{1});
  link_.stall(true);
  step.max_stall = 0;
  step.index_by_layer();
  transfers_.begin(step);
  EXPECT_TRUE(transfers_.wait_before(0));
  for (size_t s : {0u, 2u, 4u}) EXPECT_TRUE(transfers_.deferred(s)) << s;
  for (size_t s : {1u, 3u}) EXPECT_FALSE(transfers_.deferred(s)) << s;
  EXPECT_FALSE(transfers_.wait_before(1));
  EXPECT_EQ(end().deferred, seqs({1}));
  link_.stall(false);
  link_.complete_all();
  std::map<uint64_t, bool> done;
  for (const TransferDone& d : link_.completed()) done[raw(d.id)] = d.status.ok();
  EXPECT_FALSE(done.at(2)) << "it stages for a slice of the sequence";
  EXPECT_TRUE(done.at(3));

  Step second = step_of(3);
  second.slices[2].seq = SeqId{1};
  second.index_by_layer();
  transfers_.begin(second, /*submitted_early=*/true);
  EXPECT_TRUE(transfers_.deferred(0) && transfers_.deferred(2));
  EXPECT_FALSE(transfers_.deferred(1) || transfers_.all_deferred());
  EXPECT_EQ(end().deferred, seqs({1}));
}

TEST_F(StepTransfersTest, RowsWithoutTheirHistoryAreDeferredInTheNextStepOnly) {
  Step first = step_of(3);
  first.transfers = {starting(kStepBegins, 1)};
  first.waits = {{0, 1, TransferId{1}}};
  link_.fail(TransferId{1});
  first.index_by_layer();
  transfers_.begin(first);
  transfers_.wait_before(0);
  EXPECT_EQ(end().deferred, seqs({2}));

  Step second = step_of(2);
  second.transfers = {starting(kStepBegins, 2), starting(kStepBegins, 3)};
  second.waits = {{0, 1, TransferId{2}}};
  second.index_by_layer();
  transfers_.begin(second, /*submitted_early=*/true);
  EXPECT_TRUE(transfers_.deferred(1));
  EXPECT_FALSE(transfers_.deferred(0));
  EXPECT_FALSE(transfers_.wait_before(0));
  EXPECT_EQ(link_.queued(), 2u) << "a deferred slice was waited for";
  EXPECT_EQ(end().deferred, seqs({2}));

  // Submitted when the engine knew of the first step's result.
  Step third = step_of(2);
  third.index_by_layer();
  transfers_.begin(third, /*submitted_early=*/true);
  EXPECT_TRUE(end().deferred.empty());
}

TEST_F(StepTransfersTest, AStepThatIsSubmittedLaterInheritsNothing) {
  Step first = step_of(1);
  first.transfers = {starting(kStepBegins, 1)};
  first.waits = {{0, 0, TransferId{1}}};
  link_.fail(TransferId{1});
  first.index_by_layer();
  transfers_.begin(first);
  transfers_.wait_before(0);
  EXPECT_EQ(end().deferred, seqs({1}));
  Step second = step_of(1);
  second.index_by_layer();
  transfers_.begin(second);
  EXPECT_FALSE(transfers_.any_deferred());
  end();
}

TEST(StepTransfersDeathTest, TransfersNeedALink) {
  VirtualClock clock;
  StepTransfers transfers(nullptr, clock);
  Step step;
  step.waits.push_back({0, 0, TransferId{1}});
  step.index_by_layer();
  EXPECT_DEATH(transfers.begin(step), "there is no link");
}

}  // namespace
}  // namespace kvasir::test
