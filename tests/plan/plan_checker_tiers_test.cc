// For each rule about tiers, copies and the stage ring a plan that breaks it, and the message that says so.
#include <gtest/gtest.h>

#include "fakes/views.h"
#include "plan/plan_checker.h"

namespace kvasir::test {
namespace {

constexpr SeqId kIn{1}, kOut{2}, kNew{3};

// Sequence 1 decodes, 3 blocks on the device. Sequence 2 was swapped out, 3 blocks on the host. Sequence 3 is
// new. On the device 6 blocks are free, on the host 4.
class PlanCheckerTiers : public testing::Test {
 protected:
  PlanCheckerTiers() {
    view_ = make_view(10, 6);
    set_host(view_, 8, 4);
    set_ring(view_, 3);
    view_.running = {decoding_seq(1, 20, 40)};
    view_.waiting = {swapped_seq(2, 20, 40, 39), waiting_seq(3, 60)};
  }
  static Rows rows(SeqId seq, uint32_t begin, uint32_t end, RowKind kind = RowKind::kPrefill) {
    Rows r;
    r.seq = seq;
    r.tokens = {begin, end};
    r.layers = LayerSet::all(2);
    r.writes.kv = r.layers;
    r.kind = kind;
    return r;
  }
  static CopyChange change(Verb verb, SeqId seq, Interval tokens, Tier tier, Trigger trigger) {
    return {verb, seq, tokens, LayerSet::all(2), Form::kKv, tier, trigger};
  }
  static CopyChange drop_all(SeqId seq, Tier tier) {
    return {Verb::kDropAll, seq, {}, {}, Form::kKv, tier, Trigger::kNow};
  }
  void expect_broken(const std::string& message) {
    const Status status = check_plan(view_, plan_);
    ASSERT_FALSE(status.ok()) << to_string(plan_);
    EXPECT_NE(status.message().find(message), std::string::npos) << status.message();
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
  void expect_fine() {
    const Status status = check_plan(view_, plan_);
    EXPECT_TRUE(status.ok()) << status.message();
  }
  // One change of sequence 1, which decodes beside it.
  void change_running(Verb verb, Interval tokens, Tier tier, Trigger trigger) {
    plan_.rows = {rows(kIn, 39, 40, RowKind::kDecode)};
    plan_.copies = {change(verb, kIn, tokens, tier, trigger)};
  }

  View view_;
  StepPlan plan_;
};

TEST_F(PlanCheckerTiers, EveryChangeIsARectangleOfKvOnATierThatIsThere) {
  change_running(Verb::kAdd, {0, 32}, Tier::kHost, Trigger::kBackground);
  expect_fine();
  plan_.copies[0].form = Form::kX;
  expect_broken("add of x on host: there is no such memory");
  change_running(Verb::kAdd, {0, 32}, Tier::kDisk, Trigger::kBackground);
  expect_broken("add of kv on disk: there is no such memory");
  change_running(Verb::kAdd, {0, 32}, Tier::kHost, Trigger::kBackground);
  plan_.copies[0].layers = {};
  expect_broken("add of 0 layer groups, there are 2");
  plan_.copies[0].layers = LayerSet::all(3);
  expect_broken("add of 3 layer groups, there are 2");
  change_running(Verb::kAdd, {8, 32}, Tier::kHost, Trigger::kBackground);
  expect_broken("add of [8, 32): a block has 16 tokens");
  change_running(Verb::kAdd, {16, 16}, Tier::kHost, Trigger::kBackground);
  expect_broken("add of [16, 16): a block has 16 tokens");
}

TEST_F(PlanCheckerTiers, EveryVerbHasItsTriggers) {
  change_running(Verb::kDrop, {0, 32}, Tier::kDevice, Trigger::kBackground);
  expect_broken("sequence 1: a drop background");
  change_running(Verb::kDrop, {0, 32}, Tier::kDevice, Trigger::kWhenReady);
  expect_fine();
  change_running(Verb::kAdd, {0, 32}, Tier::kDevice, Trigger::kAfterLayerWrites);
  expect_broken("sequence 1: writes kv through to device");
  change_running(Verb::kAdd, {0, 32}, Tier::kHost, Trigger::kWhenReady);
  expect_broken("sequence 1: adds when ready");
  change_running(Verb::kAdd, {0, 32}, Tier::kHost, Trigger::kBeforeLayer);
  expect_broken("sequence 1: rows wait for a copy of kv on host");
  change_running(Verb::kStage, {0, 39}, Tier::kHost, Trigger::kBeforeLayer);
  expect_broken("sequence 1: stages on host (before_layer)");
  change_running(Verb::kStage, {0, 39}, Tier::kDevice, Trigger::kNow);
  expect_broken("sequence 1: stages on device (now)");
  change_running(Verb::kStage, {0, 32}, Tier::kDevice, Trigger::kBeforeLayer);
  expect_broken("sequence 1: stages [0, 32) of a history of 39");
  change_running(Verb::kStage, {0, 39}, Tier::kDevice, Trigger::kBeforeLayer);
  expect_fine();
}

TEST_F(PlanCheckerTiers, OnlyWhatIsThereCanBeCopied) {
  plan_.copies = {change(Verb::kAdd, kNew, {0, 32}, Tier::kHost, Trigger::kNow)};
  expect_broken("copies cells of sequence 3, which has none");
  plan_.preemptions = {{kIn}};
  plan_.copies = {drop_all(kIn, Tier::kDevice), change(Verb::kAdd, kIn, {0, 39}, Tier::kHost, Trigger::kNow)};
  expect_broken("copies cells of sequence 1, which has none");
}

TEST_F(PlanCheckerTiers, CopiesTakeRoomOnTheirTier) {
  view_.running.push_back(decoding_seq(4, 20, 80));  // five blocks
  plan_.preemptions = {{SeqId{4}}};
  plan_.copies = {change(Verb::kAdd, SeqId{4}, {0, 79}, Tier::kHost, Trigger::kNow)};
  expect_broken("takes 2 cells of kv more than are free, idle or given up on the host tier");
  view_.running[1].cells[0][static_cast<size_t>(Tier::kHost)] = 2;
  expect_fine();
  plan_.copies[0].layers = LayerSet::all(1);
  view_.running[1].cells[0][static_cast<size_t>(Tier::kHost)] = 0;
  expect_fine();
}

TEST_F(PlanCheckerTiers, TheTailOfARunningSequenceIsNotCopied) {
  set_host(view_, 8, 2);
  change_running(Verb::kAdd, {0, 39}, Tier::kHost, Trigger::kNow);
  expect_fine();
  plan_.rows.clear();
  plan_.preemptions = {{kIn}};
  expect_broken("takes 2 cells of kv more than are free, idle or given up on the host tier");
}

TEST_F(PlanCheckerTiers, ADropFreesOneTier) {
  // Twelve cells are free on the device, and what sequence 2 gives up is on the host.
  plan_.copies = {drop_all(kOut, Tier::kHost)};
  plan_.promises = {{kNew, 13, Tier::kDevice, Promise::Kind::kOwn}};
  expect_broken("takes 1 cells of kv more than are free, idle or given up on the device tier");
  plan_.promises = {{kIn, 14, Tier::kHost, Promise::Kind::kOwn}};
  expect_fine();
  plan_.promises = {{kNew, 15, Tier::kHost, Promise::Kind::kOwn}};
  expect_broken("takes 1 cells of kv more than are free, idle or given up on the host tier");
  plan_.promises.clear();
  plan_.copies.push_back(plan_.copies[0]);
  expect_broken("drops cells of sequence 2, which has none");
}

TEST_F(PlanCheckerTiers, WhatLeavesWhenReadyIsNotFreeYet) {
  change_running(Verb::kDrop, {0, 32}, Tier::kDevice, Trigger::kWhenReady);
  plan_.promises = {{kNew, 13, Tier::kDevice, Promise::Kind::kOwn}};
  expect_broken("takes 1 cells of kv more");
}

TEST_F(PlanCheckerTiers, PromisesAreOfCellsThatThereAre) {
  plan_.rows = {rows(kIn, 39, 40, RowKind::kDecode)};
  plan_.promises = {{kNew, 1, Tier::kDisk, Promise::Kind::kOwn}};
  expect_broken("takes 1 cells of kv more than are free, idle or given up on the disk tier");
}

TEST_F(PlanCheckerTiers, AHistoryIsBroughtBackOrStaged) {
  view_.waiting[0].tail_resident = true;  // its last block is there, the others are not
  view_.waiting[0].resident_blocks = 1;
  set_cells(view_.waiting[0], Tier::kDevice, 2);
  plan_.rows = {rows(kOut, 39, 40, RowKind::kDecode)};
  expect_broken("of its history [0, 39), 2 of 2 layer groups are neither on the device nor staged");
  plan_.copies = {change(Verb::kStage, kOut, {0, 39}, Tier::kDevice, Trigger::kBeforeLayer)};
  expect_fine();
  plan_.copies[0].layers = LayerSet::all(1);
  expect_broken("1 of 2 layer groups are neither");
  plan_.copies = {change(Verb::kAdd, kOut, {0, 39}, Tier::kDevice, Trigger::kBeforeLayer)};
  expect_fine();
  plan_.copies[0].tokens = {0, 16};
  expect_broken("2 of 2 layer groups are neither");
  plan_.copies = {change(Verb::kAdd, kOut, {0, 39}, Tier::kDevice, Trigger::kBackground)};
  expect_broken("2 of 2 layer groups are neither");
}

TEST_F(PlanCheckerTiers, RowsGoOnInABlockThatIsOnTheDeviceAndAtRest) {
  plan_.rows = {rows(kOut, 39, 40, RowKind::kDecode)};
  plan_.copies = {change(Verb::kStage, kOut, {0, 39}, Tier::kDevice, Trigger::kBeforeLayer)};
  expect_broken("sequence 2: rows go on in a block that is not on the device");
  plan_.copies.insert(plan_.copies.begin(),
                      change(Verb::kAdd, kOut, {32, 39}, Tier::kDevice, Trigger::kBeforeLayer));
  expect_fine();
  view_.running[0].tail_busy = true;
  plan_.rows = {rows(kIn, 39, 40, RowKind::kDecode)};
  plan_.copies.clear();
  expect_broken("sequence 1: rows write into a block that is being copied");
}

TEST_F(PlanCheckerTiers, TheRingHoldsWhatIsStagedAndWhatIsWrittenThrough) {
  plan_.rows = {rows(kOut, 39, 40, RowKind::kDecode)};
  plan_.copies = {change(Verb::kAdd, kOut, {32, 39}, Tier::kDevice, Trigger::kBeforeLayer),
                  change(Verb::kStage, kOut, {0, 39}, Tier::kDevice, Trigger::kBeforeLayer)};
  view_.stage_blocks = 2;
  expect_broken("stages 3 blocks of a layer, the ring has room for 2");
  plan_ = {};
  plan_.rows = {rows(kNew, 0, 60)};
  plan_.rows[0].writes.kv = {};
  plan_.copies = {change(Verb::kAdd, kNew, {0, 48}, Tier::kHost, Trigger::kAfterLayerWrites)};
  expect_broken("stages 3 blocks of a layer, the ring has room for 2");
  view_.stage_blocks = 3;
  expect_fine();
  set_host(view_, 8, 2);
  expect_broken("takes 2 cells of kv more than are free, idle or given up on the host tier");
}

TEST_F(PlanCheckerTiers, WhatRowsDoNotKeepGoesToASlowerTierOrIsDropped) {
  plan_.rows = {rows(kNew, 0, 60)};
  plan_.rows[0].writes.kv = LayerSet::all(1);
  expect_fine();
  plan_.copies = {change(Verb::kAdd, kNew, {0, 48}, Tier::kHost, Trigger::kAfterLayerWrites)};
  plan_.copies[0].layers = LayerSet::all(1);
  expect_broken("sequence 3: of what its rows write, 1 layer groups go to a slower tier, 1 stay");
  plan_.copies[0].layers = LayerSet::all(2) - LayerSet::all(1);
  expect_fine();
  plan_.copies[0].tokens = {0, 32};
  expect_broken("sequence 3: of what its rows write, 1 layer groups go to a slower tier, 1 stay");
  plan_.copies.clear();
  plan_.rows = {rows(kNew, 0, 10)};
  plan_.rows[0].writes.kv = {};
  expect_fine();  // a block that is not full is on the device in every group
  view_.stage_blocks = 2;
  plan_.rows = {rows(kNew, 0, 60)};
  plan_.rows[0].writes.kv = {};
  expect_broken("stages 3 blocks of a layer, the ring has room for 2");
}

TEST_F(PlanCheckerTiers, ATransferInFlightIsAReasonToWait) {
  expect_broken("nothing runs and nothing fails");
  view_.transfers_in_flight = 1;
  expect_fine();
  view_.transfers_in_flight = 0;
  plan_.copies = {change(Verb::kAdd, kIn, {0, 32}, Tier::kHost, Trigger::kBackground)};
  expect_fine();
}

}  // namespace
}  // namespace kvasir::test
