// Loans from the request to the end, as both sides see them.
#include <gtest/gtest.h>

#include "cluster/protocol/instances.h"

namespace kvasir::cluster::test {
namespace {

using Event = BorrowEvent::Kind;

TEST(Lending, BlocksAreBorrowedReadAndGivenBackBySlots) {
  Instances all({0, 8});
  const ContractRef loan = all.borrow(0, 3);
  EXPECT_EQ(loan.creditor, all.id(1));
  EXPECT_EQ(all.memory(1).free_blocks(), 5u);
  const uint32_t slots[] = {0, 2};
  const auto blocks = all.lender(1).pin(all.id(0), loan.id, slots);
  ASSERT_TRUE(blocks.ok());
  EXPECT_EQ(*blocks, (std::vector<uint32_t>{all.lender(1).lent(all.id(0), loan.id)->blocks[0],
                                            all.lender(1).lent(all.id(0), loan.id)->blocks[2]}));
  all.lender(1).unpin(*blocks);
  all.at(0).give_back(loan, slots, all.now());
  all.deliver();
  EXPECT_EQ(all.memory(1).free_blocks(), 7u);
  EXPECT_EQ(all.lender(1).pin(all.id(0), loan.id, slots).status().code(), ErrorCode::kUnavailable);
  EXPECT_EQ(all.borrower(0).held(loan)->held, (std::set<uint32_t>{1}));
  const uint32_t last[] = {1};
  all.at(0).give_back(loan, last, all.now());
  all.deliver();
  EXPECT_EQ(all.borrower(0).held(loan), nullptr);
  EXPECT_EQ(all.lender(1).lent(all.id(0), loan.id), nullptr);
  EXPECT_EQ(all.memory(1).free_blocks(), 8u);
}

TEST(Lending, AContractIsItsDebtorsInOneLife) {
  Instances all({0, 8, 0});
  const ContractRef loan = all.borrow(0, 3);
  const uint32_t slot[] = {0};
  EXPECT_FALSE(all.lender(1).pin(all.id(2), loan.id, slot).ok());
  EXPECT_FALSE(all.lender(1).pin({"a", 2}, loan.id, slot).ok());
  EXPECT_FALSE(all.lender(1).pin(all.id(0), loan.id + 1, slot).ok());
  const uint32_t beyond[] = {3};
  EXPECT_FALSE(all.lender(1).pin(all.id(0), loan.id, beyond).ok());
}

TEST(Lending, WhatDoesNotFitIsRefusedAndTheNextCreditorIsAsked) {
  Instances all({0, 8, 8});
  // Both have room as far as the leader knows; one of them uses its own by now.
  const auto used = all.memory(1).take(8);
  all.at(0).borrow(4, all.now());
  all.deliver();
  const auto granted = all.events(0, Event::kGranted);
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].contract.creditor, all.id(2));
  EXPECT_EQ(all.at(0).gmanager().counts().denied, 1u);
  EXPECT_TRUE(all.at(0).gmanager().ledger().find(all.id(1))->refused);
}

TEST(Lending, AfterThreeRefusalsTheLeaderIsAskedAgain) {
  Instances all({0, 8, 8, 8, 8});
  for (size_t i = 1; i <= 3; ++i) ASSERT_TRUE(all.memory(i).take(8));
  // The one that has room is the last that is recommended.
  const uint64_t before = all.at(0).gmanager().counts().queries;
  all.at(0).borrow(4, all.now());
  all.deliver();
  const auto granted = all.events(0, Event::kGranted);
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].contract.creditor, all.id(4));
  EXPECT_EQ(all.at(0).gmanager().counts().denied, 3u);
  EXPECT_EQ(all.at(0).gmanager().counts().queries - before, 2u);
}

TEST(Lending, ADebtorThatFindsNoCreditorLearnsWhatToAskFor) {
  Instances all({0, 8, 5});
  const uint64_t request = all.at(0).borrow(9, all.now());
  all.deliver();
  const auto refused = all.events(0);
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_EQ(refused[0].kind, Event::kRefused);
  EXPECT_EQ(refused[0].request, request);
  EXPECT_EQ(refused[0].blocks, 8u);
}

TEST(Lending, ARecallLeavesWhatMayStay) {
  Instances all({0, 8});
  const ContractRef loan = all.borrow(0, 6);
  EXPECT_EQ(all.at(1).recall(4, all.now()), 4u);
  EXPECT_EQ(all.at(1).recall(4, all.now()), 4u) << "those are under way";
  all.deliver();
  const auto recalled = all.events(0, Event::kRecalled);
  ASSERT_EQ(recalled.size(), 1u);
  EXPECT_EQ(recalled[0].contract, loan);
  EXPECT_EQ(recalled[0].blocks, 4u);
  EXPECT_EQ(recalled[0].by, all.now() + 2 * kNanosPerSecond);
  EXPECT_EQ(all.lender(1).room(), 0u) << "it needs its memory itself";
  const uint32_t slots[] = {5, 4, 1, 0};
  all.at(0).give_back(loan, slots, all.now());
  all.run(3 * kNanosPerSecond);
  EXPECT_EQ(all.lender(1).lent_blocks(), 2u);
  EXPECT_EQ(all.lender(1).room(), 6u);
  EXPECT_TRUE(all.events(0).empty());
}

TEST(Lending, ARecallThatIsNotHeededIsARevocation) {
  Instances all({0, 8});
  const ContractRef loan = all.borrow(0, 6);
  const uint32_t slots[] = {0};
  const auto read = all.lender(1).pin(all.id(0), loan.id, slots);
  all.at(1).recall(1, all.now());
  all.run(2 * kNanosPerSecond + kNanosPerMilli);
  const auto lost = all.events(0, Event::kLost);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].contract, loan);
  EXPECT_FALSE(all.lender(1).pin(all.id(0), loan.id, slots).ok());
  EXPECT_EQ(all.memory(1).free_blocks(), 7u) << "one is being read";
  EXPECT_EQ(all.lender(1).pinned_leftovers(), 1u);
  all.lender(1).unpin(*read);
  EXPECT_EQ(all.memory(1).free_blocks(), 8u);
}

// A minute after the start two of its peers borrow, for requests that came 30 and 10 s before.
TEST(Lending, WhatIsCalledBackIsOfLaterRequests) {
  Instances all({0, 8, 0});
  all.run(60 * kNanosPerSecond);
  const auto borrow = [&](size_t which, Nanos age) {
    all.at(which).borrow(3, all.now(), all.now() - age);
    all.run(kNanosPerMilli);
    return all.events(which, Event::kGranted).at(0).contract;
  };
  const ContractRef later = borrow(0, 10 * kNanosPerSecond);
  const ContractRef earlier = borrow(2, 30 * kNanosPerSecond);
  const Nanos now = all.now();
  EXPECT_EQ(all.at(1).recall(8, now, now), 0u) << "a request that came now takes nothing";
  EXPECT_EQ(all.at(1).recall(8, now, now - 10 * kNanosPerSecond), 0u)
      << "where they came at one time, the lower name goes first";
  EXPECT_EQ(all.at(1).recall(8, now, now - 20 * kNanosPerSecond), 3u);
  all.deliver();
  EXPECT_TRUE(all.events(2).empty());
  EXPECT_EQ(all.events(0, Event::kRecalled).at(0).contract, later);
  EXPECT_EQ(all.at(1).recall(8, now, now - 40 * kNanosPerSecond), 6u);
  all.deliver();
  EXPECT_EQ(all.events(2, Event::kRecalled).at(0).contract, earlier);
}

// A contract that outlives its request is as old as the oldest request that needs it still.
TEST(Lending, MemoryThatIsNotNeededIsCalledBackForAnyRequest) {
  Instances all({0, 8});
  all.run(60 * kNanosPerSecond);
  const Nanos came = all.now() - 30 * kNanosPerSecond;
  all.at(0).borrow(3, all.now(), came);
  all.run(kNanosPerMilli);
  all.at(0).wait_for(0, all.now(), 0, came);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.at(1).recall(3, all.now(), came + kNanosPerSecond), 0u);
  all.at(0).wait_for(0, all.now(), 0, came + 5 * kNanosPerSecond);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.at(1).recall(1, all.now(), came + kNanosPerSecond), 1u);
  EXPECT_EQ(all.at(1).recall(2, all.now(), came + 10 * kNanosPerSecond), 1u);
  all.at(0).wait_for(0, all.now(), 0);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.at(1).recall(2, all.now(), came + 10 * kNanosPerSecond), 2u);
}

TEST(Lending, WhatAnOlderRequestLacksIsNotLentToALaterOne) {
  Instances all({0, 8, 0});
  all.run(60 * kNanosPerSecond);
  const Nanos came = all.now() - 30 * kNanosPerSecond;
  all.at(2).wait_for(6, all.now(), came);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.lender(1).awaited().blocks, 6u);
  EXPECT_EQ(all.lender(1).awaited().since, came);
  const auto borrows = [&](size_t which, uint32_t blocks, Nanos since) {
    all.at(which).borrow(blocks, all.now(), since);
    all.run(3 * kNanosPerSecond);
    return all.events(which, Event::kGranted).size();
  };
  EXPECT_EQ(borrows(0, 3, came + kNanosPerSecond), 0u) << "of 8 blocks 6 are awaited";
  EXPECT_EQ(borrows(0, 3, came - kNanosPerSecond), 1u) << "that one is older still";
  EXPECT_EQ(borrows(2, 5, came), 1u);
  EXPECT_EQ(all.lender(1).awaited().blocks, 0u) << "no more is to be had here";
}

TEST(Lending, AnInstanceThatNoLongerSaysThatItWaitsIsForgotten) {
  Instances all({0, 8, 0});
  all.at(2).wait_for(6, all.now(), all.now());
  all.run(10 * kNanosPerSecond);
  EXPECT_EQ(all.lender(1).awaited().blocks, 6u) << "it is said with each heartbeat";
  all.at(2).wait_for(0, all.now(), 0);
  all.deliver();
  EXPECT_EQ(all.lender(1).awaited().since, INT64_MAX);
  all.at(2).wait_for(6, all.now(), all.now());
  all.deliver();
  all.network().cut("c", "b", true);
  all.run(3 * kNanosPerSecond);
  EXPECT_EQ(all.lender(1).awaited().since, INT64_MAX);
  all.network().cut("c", "b", false);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.lender(1).awaited().blocks, 6u);
  all.kill(2);
  EXPECT_EQ(all.lender(1).awaited().since, INT64_MAX);
}

TEST(Lending, NoneLendsToItsCreditors) {
  Instances all({8, 8, 8}, /*lend_to_creditors=*/false);
  for (size_t i : {0, 2}) all.lender(i).set_lending(false);
  all.run(kNanosPerSecond);
  all.borrow(0, 3);
  for (size_t i : {0, 2}) all.lender(i).set_lending(true);
  all.run(kNanosPerSecond);
  for (int more = 0; more < 2; ++more) {
    all.at(1).borrow(4, all.now());
    all.deliver();
  }
  const auto granted = all.events(1, Event::kGranted);
  ASSERT_EQ(granted.size(), 2u);
  for (const BorrowEvent& event : granted) EXPECT_EQ(event.contract.creditor, all.id(2));
  EXPECT_EQ(all.at(0).gmanager().counts().denied, 0u) << "the leader knows it";
  all.at(1).borrow(4, all.now());
  all.deliver();
  EXPECT_EQ(all.events(1, Event::kRefused).size(), 1u);
  // Nor where the leader does not know it yet.
  Instances young({8, 8}, /*lend_to_creditors=*/false);
  young.at(0).borrow(3, young.now());
  young.at(1).borrow(3, young.now());
  young.deliver();
  EXPECT_EQ(young.lender(0).lent_blocks() + young.lender(1).lent_blocks(), 3u);
}

TEST(Lending, WhatOnesOwnRequestNeedsIsNotLentToALaterOne) {
  Instances all({0, 8});
  all.run(60 * kNanosPerSecond);
  const Nanos came = all.now() - 30 * kNanosPerSecond;
  all.lender(1).keep_for_own(6, came);
  all.at(0).borrow(3, all.now(), came + kNanosPerSecond);
  all.run(3 * kNanosPerSecond);
  EXPECT_EQ(all.events(0, Event::kGranted).size(), 0u);
  all.at(0).borrow(3, all.now(), came - kNanosPerSecond);
  all.run(3 * kNanosPerSecond);
  EXPECT_EQ(all.events(0, Event::kGranted).size(), 1u);
}

TEST(Lending, ADeathEndsItOnTheOtherSide) {
  Instances all({0, 8, 0});
  const ContractRef first = all.borrow(0, 3);
  all.borrow(2, 3);
  all.kill(2);
  EXPECT_EQ(all.memory(1).free_blocks(), 5u);
  all.kill(1);
  const auto lost = all.events(0, Event::kLost);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].contract, first);
}

TEST(Lending, ALostGrantComesWithTheNextStatement) {
  Instances all({0, 8});
  all.at(0).borrow(3, all.now());
  all.network().drop("b", "a", 1);
  all.deliver();
  EXPECT_TRUE(all.events(0).empty());
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.events(0, Event::kGranted).size(), 1u);
  EXPECT_EQ(all.lender(1).by_debtor(), (std::map<PeerId, uint32_t, ByPeer>{{all.id(0), 3}}));
}

TEST(Lending, ALostReturnIsSaidAgain) {
  Instances all({0, 8});
  const ContractRef loan = all.borrow(0, 3);
  all.network().drop("a", "b", 1);
  const uint32_t slots[] = {0, 1};
  all.at(0).give_back(loan, slots, all.now());
  all.deliver();
  EXPECT_EQ(all.lender(1).lent_blocks(), 3u);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.lender(1).lent_blocks(), 1u);
}

TEST(Lending, ACreditorThatIsNotHeardIsLost) {
  Instances all({0, 8});
  const ContractRef loan = all.borrow(0, 3);
  all.network().cut("a", "b", true);
  all.run(4 * kNanosPerSecond);
  EXPECT_TRUE(all.events(0, Event::kLost).empty());
  all.run(2 * kNanosPerSecond);
  ASSERT_EQ(all.events(0, Event::kLost).size(), 1u);
  EXPECT_EQ(all.lender(1).lent_blocks(), 3u) << "the creditor hears of it when it can";
  all.network().cut("a", "b", false);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.lender(1).lent_blocks(), 0u);
}

TEST(Lending, WithoutADirectoryOldContractsGoOnAndThereAreNoNewOnes) {
  Instances all({8, 8});
  const ContractRef loan = all.borrow(0, 3);
  all.at(1).directory_down();
  all.at(0).borrow(1, all.now());
  all.run(3 * kNanosPerSecond);
  EXPECT_EQ(all.events(0, Event::kRefused).size(), 1u);
  all.at(1).borrow(1, all.now());
  EXPECT_EQ(all.events(1, Event::kRefused).size(), 1u);
  const uint32_t slot[] = {0};
  const auto read = all.lender(1).pin(all.id(0), loan.id, slot);
  ASSERT_TRUE(read.ok());
  all.lender(1).unpin(*read);
  all.at(1).directory_up();
  all.run(kNanosPerSecond);
  all.borrow(0, 1);
}

TEST(Lending, ALeavingInstanceReturnsAndRecallsEverything) {
  Instances all({0, 8, 8});
  const ContractRef lent = all.borrow(0, 8);
  const ContractRef owed = all.borrow(1, 4);
  const ContractRef& of_b = lent.creditor == all.id(1) ? lent : owed;
  ASSERT_EQ(of_b.creditor, all.id(1));
  all.at(1).leave(all.now());
  all.deliver();
  EXPECT_FALSE(all.at(1).rmanager().gone());
  const auto vacate = all.events(1, Event::kVacate);
  ASSERT_EQ(vacate.size(), 1u);
  EXPECT_EQ(vacate[0].contract, owed);
  const uint32_t four[] = {0, 1, 2, 3};
  all.at(1).give_back(owed, four, all.now());
  all.deliver();
  EXPECT_EQ(all.events(0, Event::kRecalled).at(0).blocks, 8u);
  EXPECT_FALSE(all.at(1).rmanager().gone());
  all.run(3 * kNanosPerSecond);
  EXPECT_TRUE(all.at(1).rmanager().gone());
}

}  // namespace
}  // namespace kvasir::cluster::test
