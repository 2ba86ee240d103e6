// Promises of every kind: what a builder plans is what the checker allows. Blocks have 16 tokens, two cells.
#include <gtest/gtest.h>

#include "fakes/views.h"
#include "plan/plan_builder.h"
#include "plan/plan_checker.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kPlenty = 1000;

// Two sequences decode; the first was promised six cells more.
View bargaining_view() {
  View view = make_view(20, 5);
  view.running = {decoding_seq(1, 20, 30), decoding_seq(2, 20, 30)};
  view.running[0].promised_cells[0] = 6;
  set_promised(view, 3);
  return view;
}

StepPlan checked(const View& view, PlanBuilder& b) {
  StepPlan plan = b.take();
  const Status status = check_plan(view, plan);
  EXPECT_TRUE(status.ok()) << status.message();
  return plan;
}

void decode_all(const View& view, PlanBuilder& b) {
  for (const SeqView& s : view.running) {
    if (!b.preempted(s.id)) {
      ASSERT_TRUE(b.decode(s));
    }
  }
}

TEST(Promises, OwnOnesTakeCellsThatAreNotNeeded) {
  const View view = bargaining_view();
  PlanBuilder b(view);
  EXPECT_FALSE(b.promise_own(view.running[1], 5)) << "four cells are free";
  EXPECT_TRUE(b.promise_own(view.running[1], 4));
  EXPECT_EQ(b.promised(view.running[1]), 4u);
  EXPECT_EQ(b.available_blocks(), 0);
  decode_all(view, b);
  EXPECT_EQ(to_string(checked(view, b)),
            "promise 2 4 cells on device\ndecode 1 [29, 30) samples\ndecode 2 [29, 30) samples\n");
}

TEST(Promises, TheReserveIsForSequencesThatAskForIt) {
  const View view = bargaining_view();
  PlanBuilder b(view);
  EXPECT_EQ(b.set_reserve(kPlenty), 4u) << "no more than there is";
  EXPECT_EQ(b.available_blocks(), 0);
  EXPECT_FALSE(b.promise_own(view.running[1], 1));
  EXPECT_FALSE(b.draw_reserve(view.running[1], 5));
  EXPECT_TRUE(b.draw_reserve(view.running[1], 3));
  EXPECT_EQ(b.reserve(), 1u);
  EXPECT_EQ(b.set_reserve(0), 0u);
  EXPECT_TRUE(b.promise_own(view.running[0], 1));
  decode_all(view, b);
  EXPECT_EQ(to_string(checked(view, b)),
            "reserve 4 cells on device\npromise 2 3 cells on device of the reserve\n"
            "reserve 0 cells on device\npromise 1 1 cells on device\n"
            "decode 1 [29, 30) samples\ndecode 2 [29, 30) samples\n");
}

TEST(Promises, AReserveThatTheViewShowsCanBeDrawnOn) {
  View view = bargaining_view();
  view.reserved_cells[0] = 2;
  view.device.promised[0] += 2;
  view.running[1] = decoding_seq(2, 20, 33);  // needs a block
  view.device.spare_slabs = 8;                // six for 1, two in reserve
  {
    PlanBuilder b(view);
    EXPECT_FALSE(b.decode(view.running[1]));
    EXPECT_TRUE(b.draw_reserve(view.running[1], 2));
    EXPECT_TRUE(b.decode(view.running[1]));
    ASSERT_TRUE(b.decode(view.running[0]));
    checked(view, b);
  }
  StepPlan plan;
  plan.promises = {{SeqId{2}, 3, Tier::kDevice, Promise::Kind::kFromReserve}};
  plan.failures = {{SeqId{1}, "a test"}};
  EXPECT_EQ(check_plan(view, plan).message(), "plan: promises sequence 2 3 cells of a reserve of 2");
}

TEST(Promises, ALoanMovesWhatTheHostWasPromised) {
  View view = bargaining_view();
  view.waiting = {waiting_seq(3, 40)};  // three blocks, and two are free
  PlanBuilder b(view);
  EXPECT_FALSE(b.admit(view.waiting[0]));
  EXPECT_FALSE(b.lend(view.running[0], view.waiting[0], 7, 40)) << "more than the host has";
  EXPECT_TRUE(b.lend(view.running[0], view.waiting[0], 6, 40));
  EXPECT_EQ(b.promised(view.running[0]), 0u);
  EXPECT_EQ(b.available_blocks(), 2) << "nothing is taken from others";
  ASSERT_TRUE(b.admit(view.waiting[0]));
  EXPECT_EQ(b.prefill(view.waiting[0], kPlenty), 40u);
  EXPECT_EQ(b.available_blocks(), 2);
  decode_all(view, b);
  EXPECT_EQ(to_string(checked(view, b)),
            "lend 3 6 cells on device of 1, due at 40\nprefill 3 [0, 40) samples\n"
            "decode 1 [29, 30) samples\ndecode 2 [29, 30) samples\n");
}

TEST(Promises, AGuestThatCannotBeAdmittedBorrowsNothing) {
  View view = bargaining_view();
  view.waiting = {waiting_seq(3, 40)};
  view.limits.max_num_seqs = 2;
  {
    PlanBuilder b(view);
    EXPECT_FALSE(b.admit_guest(view.running[0], view.waiting[0], 6, 40)) << "two run already";
    EXPECT_FALSE(b.admit_guest(view.running[0], view.waiting[0], 7, 40)) << "more than the host has";
    EXPECT_EQ(b.promised(view.running[0]), 6u);
    EXPECT_EQ(b.promised(view.waiting[0]), 0u);
    EXPECT_TRUE(b.can_stop(view.running[0])) << "it is no party to anything";
    decode_all(view, b);
    EXPECT_TRUE(checked(view, b).promises.empty());
  }
  view.limits.max_num_seqs = 3;
  PlanBuilder b(view);
  ASSERT_TRUE(b.admit_guest(view.running[0], view.waiting[0], 6, 40));
  EXPECT_FALSE(b.can_stop(view.running[0]));
  EXPECT_EQ(b.prefill(view.waiting[0], kPlenty), 40u);
  decode_all(view, b);
  EXPECT_EQ(checked(view, b).promises.size(), 1u);
}

TEST(Promises, ALoanToASequenceAdmittedInVainIsNone) {
  View view = bargaining_view();
  view.waiting = {waiting_seq(3, 40)};
  PlanBuilder b(view);
  ASSERT_TRUE(b.lend(view.running[0], view.waiting[0], 6, 40));
  ASSERT_TRUE(b.admit(view.waiting[0]));
  decode_all(view, b);
  EXPECT_TRUE(checked(view, b).promises.empty());
}

TEST(Promises, WhatADebtorGivesUpIsKeptForItsCreditors) {
  View view = bargaining_view();
  view.claims = {{SeqId{2}, SeqId{1}, 3, 40}};
  view.device.spare_slabs = 6;  // all of them 1's
  view.waiting = {waiting_seq(3, 10)};
  PlanBuilder b(view);
  b.preempt_and_drop(view.running[1]);  // four cells
  EXPECT_EQ(b.available_blocks(), 0) << "of the four cells three are the creditor's";
  EXPECT_FALSE(b.admit(view.waiting[0]));
  decode_all(view, b);
  checked(view, b);
}

TEST(Promises, ASequenceWithALoanDueDoesNotGoOn) {
  View view = bargaining_view();
  view.claims = {{SeqId{2}, SeqId{1}, 3, 30}};
  PlanBuilder b(view);
  decode_all(view, b);
  EXPECT_EQ(check_plan(view, b.take()).message(),
            "plan: sequence 2 keeps 3 cells of sequence 1, due at 30 tokens, and runs");
  view.claims[0].due_tokens = 31;
  PlanBuilder later(view);
  decode_all(view, later);
  checked(view, later);
}

TEST(Promises, ASequenceWithOnlyItsOwnCanStillBePreempted) {
  const View view = bargaining_view();
  PlanBuilder b(view);
  EXPECT_TRUE(b.promise_own(view.running[1], 4));
  EXPECT_TRUE(b.can_stop(view.running[1]));
  b.preempt_and_drop(view.running[1]);
  EXPECT_EQ(b.available_blocks(), 4) << "its four cells, and the four promised";
  EXPECT_TRUE(b.decode(view.running[0]));
  EXPECT_TRUE(checked(view, b).promises.empty());
  PlanBuilder other(view);
  EXPECT_TRUE(other.lend(view.running[0], view.running[1], 2, 40));
  for (const SeqView& s : view.running) EXPECT_FALSE(other.can_stop(s));
}

TEST(Promises, ASequenceWithOnlyItsOwnCanStillFail) {
  const View view = bargaining_view();
  PlanBuilder b(view);
  EXPECT_TRUE(b.promise_own(view.running[1], 4));
  EXPECT_TRUE(b.can_stop(view.running[1]));
  b.fail(view.running[1], "a test");
  EXPECT_EQ(b.available_blocks(), 2) << "the four promised; its own cells when it has ended";
  EXPECT_TRUE(b.promise_own(view.running[0], 4));
  EXPECT_TRUE(b.decode(view.running[0]));
  EXPECT_EQ(to_string(checked(view, b)),
            "fail 2: a test\npromise 1 4 cells on device\ndecode 1 [29, 30) samples\n");
}

TEST(Promises, WhatADebtorThatFailsWasPromisedIsKeptForItsCreditors) {
  View view = bargaining_view();
  view.claims = {{SeqId{1}, SeqId{2}, 3, 40}};
  PlanBuilder b(view);
  b.fail(view.running[0], "a test");
  EXPECT_FALSE(b.promise_own(view.running[1], 8)) << "of the ten cells three are the creditor's by the claim";
  EXPECT_TRUE(b.promise_own(view.running[1], 7));
  EXPECT_TRUE(b.decode(view.running[1]));
  checked(view, b);
}

TEST(Promises, AReserveThatBecomesSmallerIsProgress) {
  View view = bargaining_view();
  StepPlan plan;
  EXPECT_TRUE(stands_still(view, plan));
  plan.promises = {{SeqId{}, 0, Tier::kDevice, Promise::Kind::kReserve}};
  EXPECT_TRUE(stands_still(view, plan));
  view.reserved_cells[0] = 1;
  view.device.promised[0] += 1;
  EXPECT_FALSE(stands_still(view, plan));
}

TEST(Promises, WhatAWaitingDebtorGivesUpIsKeptForItsCreditors) {
  View view = bargaining_view();
  view.waiting = {decoding_seq(3, 20, 30), waiting_seq(4, 10)};
  view.claims = {{SeqId{3}, SeqId{1}, 3, 40, Tier::kDevice, true}};
  view.device.spare_slabs = 6;
  PlanBuilder b(view);
  b.drop_waiting(view.waiting[0]);
  EXPECT_EQ(b.available_blocks(), 0) << "of the four cells three are the creditor's";
}

TEST(Promises, WrongOnesAreFound) {
  View view = bargaining_view();
  view.waiting = {waiting_seq(3, 10)};
  const auto with = [&](Promise p) {
    PlanBuilder b(view);
    decode_all(view, b);
    StepPlan plan = b.take();
    plan.promises = {p};
    return check_plan(view, plan).message();
  };
  const auto loan = Promise::Kind::kLoan;
  const auto release = Promise::Kind::kRelease;
  EXPECT_EQ(with({SeqId{2}, 7, Tier::kDevice, loan, SeqId{1}, 40}),
            "plan: lends 7 cells of the 6 promised to sequence 1");
  EXPECT_EQ(with({SeqId{2}, 6, Tier::kDevice, loan, SeqId{1}, 30}),
            "plan: lends cells of sequence 1 until 30 tokens, it has 30");
  EXPECT_EQ(with({SeqId{2}, 6, Tier::kDevice, loan, SeqId{9}, 40}),
            "plan: lends sequence 2 cells of sequence 9");
  EXPECT_EQ(with({SeqId{2}, 6, Tier::kDevice, release, SeqId{2}, 0}),
            "plan: promises sequence 2 what 2 releases");
  EXPECT_EQ(with({SeqId{3}, 1, Tier::kDevice, release, SeqId{1}, 0}),
            "plan: a promise of 1 cells to sequence 3, and not all of them run");
  EXPECT_EQ(with({SeqId{2}, 5}),
            "plan: takes 1 cells of kv more than are free, idle or given up on the device tier");
  EXPECT_EQ(with({SeqId{}, 5, Tier::kDevice, Promise::Kind::kReserve}),
            "plan: takes 1 cells of kv more than are free, idle or given up on the device tier");
}

TEST(Promises, AnAdmissionMayAskForRoomForALength) {
  View view = make_view(20, 6);
  view.waiting = {waiting_seq(1, 20)};
  PlanBuilder b(view);
  EXPECT_FALSE(b.admit(view.waiting[0], {.total_tokens = 120}));
  ASSERT_TRUE(b.admit(view.waiting[0], {.total_tokens = 80}));
  b.prefill(view.waiting[0], kPlenty);
  EXPECT_EQ(to_string(checked(view, b)), "promise 1 10 cells on device\nprefill 1 [0, 20) samples\n");
}

}  // namespace
}  // namespace kvasir::test
