// For each rule a plan that breaks it, and the message that says so.
#include "plan/plan_checker.h"

#include <gtest/gtest.h>

#include "fakes/views.h"

namespace kvasir::test {
namespace {

constexpr SeqId kRun{1}, kWait{2}, kNone{99};

// Sequence 1 decodes with 3 blocks of its own, sequence 2 waits with 2 of 4 blocks cached; 4 blocks are free.
class PlanChecker : public testing::Test {
 protected:
  PlanChecker() {
    view_ = make_view(10, 4);
    view_.running = {decoding_seq(1, 20, 40)};
    view_.waiting = {waiting_seq(2, 60, 32, 0)};
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
  static CopyChange drop_all(SeqId seq) {
    return {Verb::kDropAll, seq, {}, {}, Form::kKv, Tier::kDevice, Trigger::kNow};
  }
  static CopyChange drop(SeqId seq, Interval tokens) {
    return {Verb::kDrop, seq, tokens, LayerSet::all(2), Form::kKv, Tier::kDevice, Trigger::kNow};
  }
  // The plan is fine without the last change, which `message` is about.
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
  void decode() { plan_.rows.push_back(rows(kRun, 39, 40, RowKind::kDecode)); }

  View view_;
  StepPlan plan_;
};

TEST_F(PlanChecker, AcceptsADecodeWithAnAdmission) {
  decode();
  plan_.rows[0].samples = true;
  plan_.adoptions = {{kWait, 32}};
  plan_.promises = {{kWait, 4, Tier::kDevice, Promise::Kind::kOwn}};
  plan_.rows.push_back(rows(kWait, 32, 50));
  expect_fine();
}

TEST_F(PlanChecker, Failures) {
  plan_.failures = {{kNone, "x"}};
  expect_broken("fails sequence 99, which is not there");
  plan_.failures = {{kWait, ""}};
  expect_broken("without a reason");
  plan_.failures = {{kWait, "x"}, {kWait, "x"}};
  expect_broken("fails sequence 2, which is not there");
  plan_.failures = {{kWait, "x"}};
  expect_fine();
}

TEST_F(PlanChecker, Preemptions) {
  plan_.preemptions = {{kWait}};
  expect_broken("preempts sequence 2, which does not run");
  plan_.preemptions = {{kRun}, {kRun}};
  expect_broken("preempts sequence 1, which does not run");
  plan_.preemptions = {{kRun}};
  expect_fine();
  plan_.rows = {rows(kRun, 39, 40)};
  expect_broken("preempts sequence 1 and runs it");
}

TEST_F(PlanChecker, Copies) {
  decode();
  plan_.copies = {drop_all(kNone)};
  expect_broken("changes copies of sequence 99");
  plan_.copies = {drop_all(kWait)};
  expect_broken("drops cells of sequence 2, which has none");
  plan_.copies = {drop_all(kRun)};
  expect_broken("drops cells of sequence 1, which goes on running");
  plan_ = {};
  plan_.preemptions = {{kRun}};
  plan_.copies = {drop_all(kRun)};
  expect_fine();
  plan_.copies[0].layers = LayerSet::all(1);
  expect_broken("sequence 1: drops all, but only some of it or not at once");
  plan_.copies = {drop_all(kRun)};
  plan_.copies[0].trigger = Trigger::kWhenReady;
  expect_broken("sequence 1: drops all, but only some of it or not at once");
  plan_.copies = {drop(kRun, {0, 20})};
  expect_broken("drops [0, 20) of 39, not whole blocks");
  plan_.copies = {drop(kRun, {16, 40})};
  expect_broken("drops [16, 40) of 39, not whole blocks");
}

TEST_F(PlanChecker, Adoptions) {
  decode();
  plan_.adoptions = {{kRun, 16}};
  expect_broken("adopts but does not wait");
  plan_.adoptions = {{kWait, 48}};
  expect_broken("adopts 48 tokens, 32 are cached");
  plan_.adoptions = {{kWait, 20}};
  expect_broken("adopts 20 tokens");
  plan_.adoptions = {{kWait, 0}};
  expect_broken("adopts 0 tokens");
  plan_.adoptions = {{kWait, 16}};
  expect_broken("adopts 16 of 32 cached tokens");
  plan_.adoptions = {{kWait, 32}, {kWait, 32}};
  expect_broken("adopts beside cells it holds");
}

TEST_F(PlanChecker, Promises) {
  decode();
  plan_.promises = {{kNone, 1, Tier::kDevice, Promise::Kind::kOwn}};
  expect_broken("promises cells to sequence 99");
  plan_.promises = {{kWait, 9, Tier::kDevice, Promise::Kind::kOwn}};
  expect_broken("takes 1 cells of kv more than are free, idle or given up on the device tier");
  // It would be kept from all others until a plan happens to admit the sequence.
  plan_.promises = {{kWait, 8, Tier::kDevice, Promise::Kind::kOwn}};
  expect_broken("a promise of 8 cells to sequence 2, and not all of them run");
  plan_.rows.push_back(rows(kWait, 0, 16));
  expect_fine();
  plan_.rows.pop_back();
  plan_.promises = {{kRun, 8, Tier::kDevice, Promise::Kind::kOwn}};
  expect_fine();
  plan_.preemptions = {{kRun}};
  plan_.rows = {};
  expect_broken("a promise of 8 cells to sequence 1, and not all of them run");
}

TEST_F(PlanChecker, Rows) {
  plan_.rows = {rows(kNone, 0, 1)};
  expect_broken("has rows of sequence 99");
  plan_.rows = {rows(kWait, 0, 61)};
  expect_broken("rows [0, 61) of 60 known tokens");
  plan_.rows = {rows(kWait, 5, 5)};
  expect_broken("rows [5, 5)");
  plan_.rows = {rows(kWait, 1, 5)};
  expect_broken("rows begin at 1, the history ends at 0");
  plan_.rows = {rows(kWait, 0, 20), rows(kWait, 20, 30)};
  expect_broken("rows in two parts");
  plan_.rows = {rows(kWait, 0, 59)};
  plan_.rows[0].samples = true;
  expect_broken("samples at 59, but 60 tokens are known");
  plan_.rows = {rows(kWait, 0, 2, RowKind::kDecode)};
  expect_broken("decodes 2 tokens");
  plan_.rows = {rows(kWait, 0, 2)};
  plan_.rows[0].writes.kv = LayerSet::all(3);
  expect_broken("rows keep layer groups that there are not");
  plan_.rows = {rows(kWait, 0, 2)};
  plan_.rows[0].writes.x = LayerSet::all(1);
  expect_broken("rows keep a form for which there is no memory");
  plan_.rows = {rows(kWait, 0, 2)};
  plan_.rows[0].layers = LayerSet::all(1);
  expect_broken("rows pass all layers");
}

TEST_F(PlanChecker, BlocksOfRowsBeyondPromises) {
  view_.waiting.push_back(waiting_seq(3, 80));
  decode();
  plan_.rows.push_back(rows(SeqId{3}, 0, 80));
  expect_broken("takes 2 cells of kv more than are free");
  plan_.rows[1].tokens.end = 64;
  expect_fine();
  plan_.promises = {{kWait, 1, Tier::kDevice, Promise::Kind::kOwn}};
  expect_broken("takes 1 cells of kv more than are free");
}

TEST_F(PlanChecker, WhatIsGivenUpCountsOnceAndNotWhileAStepIsInFlight) {
  view_.waiting.push_back(waiting_seq(3, 120));  // 8 blocks; 4 are free, 3 are given up
  plan_.preemptions = {{kRun}};
  plan_.copies = {drop_all(kRun)};
  plan_.rows = {rows(SeqId{3}, 0, 112)};
  expect_fine();
  plan_.rows = {rows(SeqId{3}, 0, 113)};
  expect_broken("takes 2 cells of kv more");
  plan_.copies.push_back(drop_all(kRun));
  expect_broken("drops cells of sequence 1, which has none");
  plan_.copies.pop_back();
  plan_.rows = {rows(SeqId{3}, 0, 80)};
  view_.steps_in_flight = 1;
  expect_broken("takes 2 cells of kv more");
}

TEST_F(PlanChecker, WhatIsGivenUpAndAdoptedIsNotFree) {
  // The two blocks that sequence 2 adopts may be two of the three that sequence 1 gives up.
  plan_.preemptions = {{kRun}};
  plan_.copies = {drop_all(kRun)};
  plan_.adoptions = {{kWait, 32}};
  plan_.promises = {{kWait, 10, Tier::kDevice, Promise::Kind::kOwn}};
  plan_.rows = {rows(kWait, 32, 60)};
  expect_fine();
  plan_.promises[0].cells = 11;
  expect_broken("takes 1 cells of kv more");
}

TEST_F(PlanChecker, NoMoreSequencesThanTheLimit) {
  view_.limits.max_num_seqs = 1;
  decode();
  plan_.rows.push_back(rows(kWait, 0, 10));
  expect_broken("2 sequences would run, the limit is 1");
}

TEST_F(PlanChecker, WorkMovesForward) {
  expect_broken("1 running and 1 waiting sequences, but nothing runs");
  view_.steps_in_flight = 1;
  expect_fine();
  view_.steps_in_flight = 0;
  view_.running.clear();
  view_.waiting.clear();
  expect_fine();
}

}  // namespace
}  // namespace kvasir::test
