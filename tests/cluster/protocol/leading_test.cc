// Which instance leads, which is obeyed, and cycles of debts that are settled.
#include <gtest/gtest.h>

#include "cluster/protocol/cluster.pb.h"
#include "cluster/protocol/instances.h"

namespace kvasir::cluster::test {
namespace {

using Event = BorrowEvent::Kind;

// `which` borrows of `creditor`.
ContractRef borrow_of(Instances& all, size_t which, size_t creditor, uint32_t blocks) {
  for (size_t i = 0; i < 3; ++i) all.lender(i).set_lending(i == creditor);
  all.run(kNanosPerSecond);
  const ContractRef loan = all.borrow(which, blocks);
  KV_CHECK(loan.creditor == all.id(creditor), "{}", name_of(loan.creditor));
  for (size_t i = 0; i < 3; ++i) all.lender(i).set_lending(true);
  return loan;
}

// 0 owes 1 six blocks, 1 owes 2 five, 2 owes 0 seven; when they have been told to settle that.
struct Circle {
  Instances all{{8, 8, 8}};
  std::vector<ContractRef> loans;
  Circle() {
    loans = {borrow_of(all, 0, 1, 6), borrow_of(all, 1, 2, 5), borrow_of(all, 2, 0, 7)};
    while (!all.at(0).rmanager().settling()) all.run(kNanosPerMilli);
    all.deliver();
  }
};

TEST(Settling, EachCallsBackTheSmallestDebt) {
  Circle circle;
  Instances& all = circle.all;
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(all.at(i).rmanager().settling());
    const auto events = all.events(i);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].kind, Event::kRecalled);
    EXPECT_EQ(events[0].blocks, 5u);
  }
  const uint32_t five[] = {0, 1, 2, 3, 4};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(all.at(0).gmanager().counts().settlements, 0u);
    all.at(i).give_back(circle.loans[i], five, all.now());
    all.deliver();
  }
  for (size_t i = 0; i < 3; ++i) EXPECT_FALSE(all.at(i).rmanager().settling());
  EXPECT_EQ(all.lender(0).lent_blocks(), 2u);
  EXPECT_EQ(all.lender(1).lent_blocks(), 1u);
  EXPECT_EQ(all.lender(2).lent_blocks(), 0u);
  EXPECT_EQ(all.at(0).gmanager().counts().settlements, 1u);
  EXPECT_EQ(all.at(0).gmanager().counts().settled_blocks, 15u);
}

TEST(Settling, WhatIsSettledIsNotRecalledAndWhatComesBackIsLentToNone) {
  Circle circle;
  Instances& all = circle.all;
  EXPECT_EQ(all.at(1).recall(6, all.now()), 0u);
  EXPECT_EQ(all.lender(1).room(), 2u);
  const uint32_t three[] = {0, 1, 2};
  all.at(0).give_back(circle.loans[0], three, all.now());
  all.deliver();
  EXPECT_EQ(all.memory(1).free_blocks(), 5u);
  EXPECT_EQ(all.lender(1).room(), 2u);
  // A contract that is not of the cycle is as free as ever.
  const ContractRef other = all.borrow(0, 2);
  const uint32_t both[] = {0, 1};
  all.at(0).give_back(other, both, all.now());
  all.deliver();
  EXPECT_EQ(all.borrower(0).held(other), nullptr);
}

TEST(Settling, TooLateAndAllStaysAsItIs) {
  Circle circle;
  Instances& all = circle.all;
  const uint32_t three[] = {0, 1, 2};
  all.at(0).give_back(circle.loans[0], three, all.now());
  for (size_t i = 0; i < 3; ++i) all.events(i);
  all.run(5 * kNanosPerSecond - kNanosPerMilli * 500);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FALSE(all.at(i).rmanager().settling());
    const auto events = all.events(i);
    ASSERT_EQ(events.size(), 1u);
    EXPECT_EQ(events[0].kind, Event::kRecalled) << "no request needs the memory: nothing is revoked";
    EXPECT_EQ(events[0].blocks, 0u) << "and it is no longer recalled";
  }
  EXPECT_EQ(all.at(0).gmanager().counts().settlements_failed, 1u);
  EXPECT_EQ(all.at(0).gmanager().counts().settled_blocks, 3u);
  EXPECT_EQ(all.lender(0).lent_blocks(), 7u);
  EXPECT_EQ(all.lender(1).room(), 5u);
}

TEST(Settling, ADeathInTheCycleEndsIt) {
  Circle circle;
  circle.all.kill(2);
  circle.all.deliver();
  EXPECT_FALSE(circle.all.at(0).gmanager().settling());
  EXPECT_FALSE(circle.all.at(0).rmanager().settling()) << "its debtor is dead: all is back";
  EXPECT_TRUE(circle.all.at(1).rmanager().settling()) << "until its own deadline";
  circle.all.run(5 * kNanosPerSecond);
  EXPECT_FALSE(circle.all.at(1).rmanager().settling());
}

TEST(Settling, ANewLeaderEndsItAndTheOldOneIsIgnored) {
  Circle circle;
  Instances& all = circle.all;
  all.at(1).leader(all.id(1), 2, all.now());
  all.at(2).leader(all.id(1), 2, all.now());
  EXPECT_FALSE(all.at(1).rmanager().settling());
  EXPECT_FALSE(all.at(2).rmanager().settling());
  // The old leader does not know yet.
  EXPECT_TRUE(all.at(0).gmanager().leads());
  wire::Envelope late;
  late.mutable_settle()->set_term(1);
  late.mutable_settle()->set_settlement(99);
  late.mutable_settle()->set_blocks(1);
  put(all.id(0), late.mutable_settle()->mutable_debtor());
  ASSERT_TRUE(all.at(0).post().send(all.id(1), late).ok());
  all.deliver();
  EXPECT_FALSE(all.at(1).rmanager().settling());
  EXPECT_EQ(all.at(1).rmanager().term(), 2u);
  // It stops when it hears of the new term, from whomever.
  all.at(0).leader(all.id(1), 2, all.now());
  EXPECT_FALSE(all.at(0).gmanager().leads());
  EXPECT_FALSE(all.at(0).rmanager().settling());
}

// Terms come from the directory alone: what a message claims changes nothing, and the next election counts.
TEST(Leading, AMessageOfATermThatWasNeverElectedIsIgnored) {
  for (const size_t liar : {size_t{0}, size_t{2}}) {  // the leader, and another
    Instances all({8, 8, 8});
    const ContractRef loan = all.borrow(1, 3);
    const auto say = [&](const auto& fill) {
      wire::Envelope lie;
      fill(lie);
      ASSERT_TRUE(all.at(liar).post().send(all.id(1), lie).ok());
      all.deliver();
    };
    say([&](wire::Envelope& lie) {
      lie.mutable_settle()->set_term(UINT64_MAX);
      lie.mutable_settle()->set_settlement(99);
      put(loan.creditor, lie.mutable_settle()->mutable_debtor());
    });
    say([](wire::Envelope& lie) { lie.mutable_standing()->set_term(UINT64_MAX); });
    say([](wire::Envelope& lie) { lie.mutable_advice()->set_term(UINT64_MAX); });
    EXPECT_FALSE(all.at(1).rmanager().settling());
    EXPECT_EQ(all.at(1).rmanager().term(), 1u);
    for (size_t i = 0; i < 3; ++i) all.at(i).leader(all.id(2), 2, all.now());
    EXPECT_EQ(all.at(1).rmanager().term(), 2u);
    EXPECT_TRUE(all.at(2).gmanager().leads());
    EXPECT_FALSE(all.at(0).gmanager().leads());
  }
}

TEST(Leading, ANewLeaderKnowsTheLedgerFromHeartbeats) {
  Instances all({8, 8, 8});
  const ContractRef loan = all.borrow(0, 3);
  for (size_t i = 0; i < 3; ++i) all.at(i).leader(all.id(2), 2, all.now());
  // Told before it knows anything, it serves when it does.
  all.want(0, 5);
  all.run(kNanosPerSecond / 2);
  EXPECT_EQ(all.events(0, Event::kGranted).size(), 1u);
  all.run(kNanosPerSecond);
  const LedgerEntry* entry = all.at(2).gmanager().ledger().find(loan.creditor);
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->figures.lent.at(all.id(0)), 3u);
  EXPECT_EQ(all.at(0).gmanager().ledger().size(), 0u);
}

// a has lent 6 of its 8 for ten seconds. d wants all 8 at once; until then c may have the other 2, if it
// knows that it ends before.
TEST(Leading, ANewLeaderKnowsWhenLoansEnd) {
  for (const Nanos hold : {Nanos{5}, Nanos{15}}) {
    Instances all({8, 0, 0, 0});
    all.want(1, 6, std::nullopt, 0, 10 * kNanosPerSecond);
    all.deliver();
    ASSERT_EQ(all.events(1, Event::kGranted).size(), 1u);
    for (size_t i = 0; i < 4; ++i) all.at(i).leader(all.id(2), 2, all.now());
    all.run(kNanosPerSecond);
    all.want(3, 8, std::nullopt, 8);
    all.run(kNanosPerMilli);
    all.want(2, 2, std::nullopt, 0, hold * kNanosPerSecond);
    all.run(kNanosPerSecond);
    EXPECT_EQ(all.events(2, Event::kGranted).size(), hold == 5 ? 1u : 0u);
    EXPECT_TRUE(all.events(3, Event::kGranted).empty());
    EXPECT_EQ(all.at(2).gmanager().ledger().find(all.id(0))->figures.due.at(0).blocks, 6u);
  }
}

TEST(Leading, AHeartbeatNamesNoMoreEndsThanThereCanBe) {
  Instances all({8, 8});
  const auto says = [&](size_t times, uint32_t blocks, uint32_t total) {
    wire::Heartbeat message;
    message.set_term(1);
    message.set_total(total);
    for (size_t i = 0; i < times; ++i) message.add_due()->set_blocks(blocks);
    return all.at(0).gmanager().handle(all.id(1), message, all.now()).ok();
  };
  EXPECT_TRUE(says(2, 4, 8));
  EXPECT_FALSE(says(2, 4, 7)) << "of more blocks than there are";
  EXPECT_FALSE(says(1, 0, 8)) << "of none";
  EXPECT_TRUE(says(kMostDue, 1, 5000));
  EXPECT_FALSE(says(kMostDue + 1, 1, 5000));
  EXPECT_FALSE(says(2, UINT32_MAX, 8));
}

TEST(Leading, AWishToADeadLeaderIsToldTheNext) {
  Instances all({8, 8, 8});
  all.kill(0);
  all.want(1, 8);
  all.at(1).leader(all.id(2), 2, all.now());
  all.at(2).leader(all.id(2), 2, all.now());
  all.run(kNanosPerSecond / 2);
  EXPECT_EQ(all.events(1, Event::kGranted).size(), 1u) << all.at(1).describe() << all.at(2).describe();
}

TEST(Leading, ASilentInstanceLeavesTheLedger) {
  Instances all({8, 8, 8});
  EXPECT_EQ(all.at(0).gmanager().ledger().size(), 3u);
  all.network().cut("a", "c", true);
  all.run(3 * kNanosPerSecond);
  EXPECT_EQ(all.at(0).gmanager().ledger().find(all.id(2)), nullptr);
}

}  // namespace
}  // namespace kvasir::cluster::test
