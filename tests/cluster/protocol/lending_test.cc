// Loans from the request to the end, as both sides see them.
#include <gtest/gtest.h>

#include "cluster/protocol/cluster.pb.h"
#include "cluster/protocol/instances.h"

namespace kvasir::cluster::test {
namespace {

using Event = BorrowEvent::Kind;

// The blocks behind slots of a contract; nothing: they are not lent.
std::optional<std::vector<uint32_t>> pin(Lender& lender, const PeerId& debtor, uint64_t contract,
                                         std::vector<uint32_t> slots) {
  std::vector<LoanTable::Slots> of;
  for (const uint32_t slot : slots) of.push_back({contract, slot, 1, 1});
  std::vector<uint32_t> blocks;
  if (!lender.loans()->pin(debtor, of, blocks).ok()) return std::nullopt;
  return blocks;
}

TEST(Lending, BlocksAreBorrowedReadAndGivenBackBySlots) {
  Instances all({0, 8});
  const ContractRef loan = all.borrow(0, 3);
  EXPECT_EQ(loan.creditor, all.id(1));
  EXPECT_EQ(all.memory(1).free_blocks(), 5u);
  const uint32_t slots[] = {0, 2};
  const auto blocks = pin(all.lender(1), all.id(0), loan.id, {0, 2});
  ASSERT_TRUE(blocks);
  EXPECT_EQ(*blocks, (std::vector<uint32_t>{all.lender(1).lent(all.id(0), loan.id)->blocks[0],
                                            all.lender(1).lent(all.id(0), loan.id)->blocks[2]}));
  all.lender(1).loans()->unpin(*blocks);
  all.at(0).give_back(loan, slots, all.now());
  all.deliver();
  EXPECT_EQ(all.memory(1).free_blocks(), 7u);
  EXPECT_FALSE(pin(all.lender(1), all.id(0), loan.id, {0, 2}));
  EXPECT_EQ(all.borrower(0).held(loan)->held, (std::set<uint32_t>{1}));
  const uint32_t last[] = {1};
  all.at(0).give_back(loan, last, all.now());
  all.deliver();
  EXPECT_EQ(all.borrower(0).held(loan), nullptr);
  EXPECT_EQ(all.lender(1).lent(all.id(0), loan.id), nullptr);
  EXPECT_EQ(all.memory(1).free_blocks(), 8u);
}

TEST(Lending, NothingIsLentThatOutlivesItsLender) {
  std::shared_ptr<LoanTable> loans;
  std::vector<uint32_t> pinned;
  const LoanTable::Slots slots = {1, 0, 3, 1};
  {
    Instances all({0, 8});
    const ContractRef loan = all.borrow(0, 3);
    ASSERT_EQ(loan.id, 1u);
    loans = all.lender(1).loans();
    ASSERT_TRUE(loans->pin(all.id(0), {&slots, 1}, pinned).ok());
  }
  std::vector<uint32_t> late;
  EXPECT_FALSE(loans->pin({"a", 1}, {&slots, 1}, late).ok());
  EXPECT_TRUE(late.empty());
  loans->unpin(pinned);
}

TEST(Lending, AContractIsItsDebtorsInOneLife) {
  Instances all({0, 8, 0});
  const ContractRef loan = all.borrow(0, 3);
  EXPECT_FALSE(pin(all.lender(1), all.id(2), loan.id, {0}));
  EXPECT_FALSE(pin(all.lender(1), {"a", 2}, loan.id, {0}));
  EXPECT_FALSE(pin(all.lender(1), all.id(0), loan.id + 1, {0}));
  EXPECT_FALSE(pin(all.lender(1), all.id(0), loan.id, {3}));
  // Of several either all are pinned or none: what none holds goes back at once.
  EXPECT_FALSE(pin(all.lender(1), all.id(0), loan.id, {0, 3}));
  const uint32_t slots[] = {0, 1, 2};
  all.at(0).give_back(loan, slots, all.now());
  all.deliver();
  EXPECT_EQ(all.memory(1).free_blocks(), 8u);
}

// A query names cells by runs, whose stride may be negative.
TEST(Lending, ARunOfSlotsMayDescend) {
  Instances all({0, 8});
  const ContractRef loan = all.borrow(0, 5);
  LoanTable& loans = *all.lender(1).loans();
  const std::vector<uint32_t>& lent = all.lender(1).lent(all.id(0), loan.id)->blocks;
  const auto run = [&](uint32_t first, uint32_t count, uint32_t stride) {
    const LoanTable::Slots slots = {loan.id, first, count, stride};
    std::vector<uint32_t> blocks;
    if (loans.pin(all.id(0), std::span(&slots, 1), blocks).ok()) loans.unpin(blocks);
    return blocks;
  };
  constexpr uint32_t kDown = UINT32_MAX;  // 2^32 - 1: by one, down
  EXPECT_EQ(run(4, 3, kDown), (std::vector<uint32_t>{lent[4], lent[3], lent[2]}));
  EXPECT_EQ(run(4, 3, kDown - 1), (std::vector<uint32_t>{lent[4], lent[2], lent[0]}));
  EXPECT_EQ(run(0, 3, 2), (std::vector<uint32_t>{lent[0], lent[2], lent[4]}));
  EXPECT_TRUE(run(1, 3, kDown).empty());  // below slot 0
}

TEST(Lending, WhatDoesNotFitIsRefusedAndTheNextCreditorIsAsked) {
  Instances all({0, 8, 8});
  // Both have room as far as the leader knows; one of them uses its own by now.
  ASSERT_TRUE(all.memory(1).take(8));
  all.want(0, 4);
  all.deliver();
  const auto granted = all.events(0, Event::kGranted);
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].contract.creditor, all.id(2));
  EXPECT_EQ(all.at(0).gmanager().counts().denied, 1u);
  EXPECT_TRUE(all.at(0).gmanager().ledger().find(all.id(1))->refused);
}

// The leader does not know yet that b is busy, and names it first.
TEST(Lending, ACreditorInALongStepHoldsUpNoRequest) {
  Instances all({0, 8, 8});
  all.memory(1).busy = true;
  all.want(0, 4);
  all.deliver();
  const auto granted = all.events(0, Event::kGranted);
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].contract.creditor, all.id(2)) << "with no time in between";
  EXPECT_EQ(granted[0].blocks, 4u);
  // What b lends when its step has ended comes too late.
  all.memory(1).busy = false;
  all.run(kNanosPerSecond);
  EXPECT_TRUE(all.events(0).empty());
  EXPECT_EQ(all.memory(1).free_blocks(), 8u);
  EXPECT_EQ(all.lender(1).lent_blocks(), 0u);
}

TEST(Lending, ACreditorLendsWhenItsStepEndsWhatIsStillLacking) {
  for (const uint32_t still : {4u, 1u}) {
    Instances all({0, 8});
    all.memory(1).busy = true;
    const Nanos since = all.now();
    all.want(0, 4, since);
    all.run(kNanosPerSecond);
    EXPECT_EQ(all.at(0).gmanager().counts().denied, 1u) << "it is not named again while it shows no room";
    EXPECT_EQ(all.at(0).gmanager().ledger().find(all.id(1))->figures.room, 0u);
    all.want(0, still, since);
    all.memory(1).busy = false;
    all.at(1).tick(all.now());
    all.deliver();
    const auto granted = all.events(0, Event::kGranted);
    ASSERT_EQ(granted.size(), 1u) << still << all.at(0).describe() << all.at(1).describe();
    EXPECT_EQ(granted[0].blocks, still);
    EXPECT_EQ(all.memory(1).free_blocks(), 8 - still);
    EXPECT_EQ(all.borrower(0).wanted().most, 0u);
  }
}

// 1 is asked during its step, and has borrowed of 0 when its grant comes.
TEST(Lending, ACreditorThatIsADebtorSinceIsDeclined) {
  for (const bool to_creditors : {false, true}) {
    Instances all({8, 8}, to_creditors);
    all.memory(1).busy = true;
    const Nanos since = all.now();
    all.want(0, 4, since);
    all.deliver();
    all.borrow(1, 3);
    ASSERT_EQ(all.lender(0).lent_blocks(), 3u);
    wire::Granted late;
    late.set_ask(1);
    late.set_contract(77);
    late.set_blocks(2);
    EXPECT_TRUE(all.at(0).rmanager().handle(all.id(1), late, all.now()).ok());
    EXPECT_EQ(all.events(0, Event::kGranted).size(), to_creditors ? 1u : 0u);
    EXPECT_EQ(all.borrower(0).held({all.id(1), 77}) != nullptr, to_creditors);
  }
}

TEST(Lending, WhatIsWantedAtOnceIsNotTakenLate) {
  Instances all({0, 8});
  all.memory(1).busy = true;
  all.want(0, 6, all.now(), 4);
  all.run(kNanosPerSecond);
  all.memory(1).busy = false;
  all.at(1).tick(all.now());
  all.deliver();
  // The late loan went back, and what was advised then is another one.
  all.run(kNanosPerSecond);
  const auto granted = all.events(0, Event::kGranted);
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].blocks, 6u);
  EXPECT_EQ(all.memory(1).free_blocks(), 2u);
}

TEST(Lending, AnOlderRequestThatWaitsGoesBeforeOneThatAskedDuringTheStep) {
  Instances all({0, 8, 0});
  const Nanos older = all.now();
  all.run(kNanosPerMilli);
  all.memory(1).busy = true;
  all.want(0, 8);
  all.deliver();
  all.want(2, 8, older);
  all.run(kNanosPerSecond / 2);  // b hears who waits
  all.memory(1).busy = false;
  all.run(kNanosPerSecond / 2);
  EXPECT_TRUE(all.events(0, Event::kGranted).empty());
  ASSERT_EQ(all.events(2, Event::kGranted).size(), 1u);
  EXPECT_EQ(all.lender(1).by_debtor().at(all.id(2)), 8u);
}

TEST(Lending, ACreditorLendsWhatThereIs) {
  Instances all({0, 8, 8});
  ASSERT_TRUE(all.memory(1).take(5));
  all.want(0, 4);
  all.deliver();
  const auto granted = all.events(0, Event::kGranted);
  ASSERT_EQ(granted.size(), 2u);
  EXPECT_EQ(granted[0].contract.creditor, all.id(1));
  EXPECT_EQ(granted[0].blocks, 3u);
  EXPECT_EQ(granted[1].contract.creditor, all.id(2)) << "the leader was asked again";
  EXPECT_EQ(granted[1].blocks, 1u);
  EXPECT_EQ(all.borrower(0).wanted().most, 0u);
}

// 20 blocks of four creditors that have 6 each: of three at once, then of the fourth.
TEST(Lending, AWishTakesMessagesByItsCreditors) {
  Instances all({0, 6, 6, 6, 6});
  uint64_t messages = 0;
  all.network().spy([&](const FakeNetwork::Held&, const auto&) { ++messages; });
  all.want(0, 20);
  all.deliver();
  uint32_t blocks = 0;
  for (const BorrowEvent& event : all.events(0, Event::kGranted)) blocks += event.blocks;
  EXPECT_EQ(blocks, 20u);
  // An ask and an answer for each creditor; the leader is the debtor itself.
  EXPECT_EQ(messages, 8u);
}

TEST(Lending, AWishWaitsUntilThereIsRoomAndIsThenServed) {
  Instances all({0, 8, 0});
  const ContractRef loan = all.borrow(2, 8);
  all.want(0, 5);
  all.run(20 * kNanosPerSecond);
  EXPECT_TRUE(all.events(0).empty());
  const uint64_t wishes = all.at(0).gmanager().counts().wishes;
  const uint32_t slots[] = {0, 1, 2};
  all.at(2).give_back(loan, slots, all.now());
  // b tells of its room sooner than with its next heartbeat, as somebody waits for it.
  all.deliver();
  all.run(kNanosPerSecond / 15);
  const auto granted = all.events(0, Event::kGranted);
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].blocks, 3u);
  EXPECT_EQ(all.at(0).gmanager().counts().wishes - wishes, 1u) << "for the two that it lacks still";
  EXPECT_EQ(all.borrower(0).wanted().most, 2u);
}

// b and c have 5 each, and d holds 4 of c's: 8 at once come when these are back.
TEST(Lending, WhatIsWantedAtOnceComesTogetherOrNotAtAll) {
  Instances all({0, 5, 5, 0});
  all.lender(1).set_lending(false);
  all.run(kNanosPerSecond);
  const ContractRef loan = all.borrow(3, 4);
  all.lender(1).set_lending(true);
  all.run(kNanosPerSecond);
  all.want(0, 8, std::nullopt, 8);
  all.run(3 * kNanosPerSecond);
  EXPECT_TRUE(all.events(0).empty());
  EXPECT_EQ(all.lender(1).lent_blocks(), 0u) << "it keeps none of it meanwhile";
  const uint32_t slots[] = {0, 1, 2};
  all.at(3).give_back(loan, slots, all.now());
  all.run(kNanosPerSecond);
  uint32_t blocks = 0;
  for (const BorrowEvent& event : all.events(0, Event::kGranted)) blocks += event.blocks;
  EXPECT_EQ(blocks, 8u);
}

TEST(Lending, ThatOfWhichLessIsOfNoUseIsNotTakenInPart) {
  Instances all({0, 8});
  all.want(0, 6, std::nullopt, 7);
  all.run(kNanosPerSecond);
  EXPECT_TRUE(all.events(0).empty());
  all.want(0, 7, std::nullopt, 7);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.events(0, Event::kGranted).size(), 1u);
}

TEST(Lending, WhereOneOfTheCreditorsRefusesTheRestGoesBack) {
  Instances all({0, 5, 5});
  ASSERT_TRUE(all.memory(2).take(1));  // which the leader does not know yet
  all.want(0, 10, std::nullopt, 10);
  all.deliver();
  EXPECT_TRUE(all.events(0).empty());
  EXPECT_EQ(all.memory(1).free_blocks(), 5u);
  EXPECT_EQ(all.memory(2).free_blocks(), 4u);
  all.run(3 * kNanosPerSecond);
  EXPECT_TRUE(all.events(0).empty());
  all.want(0, 10, std::nullopt, 9);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.events(0, Event::kGranted).size(), 2u);
}

// b lends 8 at the most: c's 9 will never be there.
TEST(Lending, NobodyWaitsForOneThatCannotBeServed) {
  Instances all({0, 8, 0, 0});
  all.want(2, 9, std::nullopt, 9);
  all.run(kNanosPerSecond);
  all.want(3, 1, std::nullopt, 1, kNanosPerSecond);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.events(3, Event::kGranted).size(), 1u);
  EXPECT_TRUE(all.events(2).empty());
  EXPECT_EQ(all.lender(1).awaited().blocks, 0u) << "nor does b";
}

TEST(Lending, ADeathEndsTheWaitForWhatCannotBeThereWithoutIt) {
  Instances all({0, 8, 8, 0, 0});
  const auto use = all.memory(1).take(4);
  all.run(kNanosPerSecond);
  all.want(3, 16, std::nullopt, 16);
  all.want(4, 1, std::nullopt, 1);
  all.run(3 * kNanosPerSecond);
  EXPECT_TRUE(all.events(4).empty());
  all.kill(2);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.events(4, Event::kGranted).size(), 1u);
}

// c keeps its memory for its own request, which came after b's first and before b's second.
TEST(Lending, AnAdviceIsForTheRequestThatTheLeaderRanked) {
  Instances all({0, 0, 8});
  all.run(60 * kNanosPerSecond);
  const Nanos first = all.now() - 30 * kNanosPerSecond, own = first + kNanosPerSecond;
  all.lender(2).keep_for_own(8, own);
  all.run(kNanosPerSecond);
  all.want(1, 3, first);
  for (const PeerMessage& message : all.transport(0).receive()) all.at(0).handle(message, all.now());
  ASSERT_EQ(all.at(0).gmanager().counts().advised, 1u);
  all.want(1, 3, own + kNanosPerSecond);
  all.deliver();
  all.run(3 * kNanosPerSecond);
  EXPECT_EQ(all.lender(2).lent_blocks(), 0u);
  EXPECT_TRUE(all.events(1).empty());
  all.lender(2).keep_for_own(0, 0);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.events(1, Event::kGranted).size(), 1u);
}

TEST(Lending, AWishThatIsTakenBackIsForgotten) {
  Instances all({0, 8, 0});
  const ContractRef loan = all.borrow(2, 8);
  all.want(0, 5);
  all.deliver();
  EXPECT_EQ(all.at(0).gmanager().wait_list().size(), 1u);
  all.want(0, 0);
  all.deliver();
  EXPECT_EQ(all.at(0).gmanager().wait_list().size(), 0u);
  const uint32_t slots[] = {0, 1, 2};
  all.at(2).give_back(loan, slots, all.now());
  all.run(kNanosPerSecond);
  EXPECT_TRUE(all.events(0).empty());
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
  const auto read = pin(all.lender(1), all.id(0), loan.id, {0});
  all.at(1).recall(1, all.now());
  all.run(2 * kNanosPerSecond + kNanosPerMilli);
  const auto lost = all.events(0, Event::kLost);
  ASSERT_EQ(lost.size(), 1u);
  EXPECT_EQ(lost[0].contract, loan);
  EXPECT_FALSE(pin(all.lender(1), all.id(0), loan.id, {0}));
  EXPECT_EQ(all.memory(1).free_blocks(), 7u) << "one is being read";
  EXPECT_EQ(all.lender(1).pinned_leftovers(), 1u);
  all.lender(1).loans()->unpin(*read);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.memory(1).free_blocks(), 8u);
}

// A minute after the start two of its peers borrow, for requests that came 30 and 10 s before.
TEST(Lending, WhatIsCalledBackIsOfLaterRequests) {
  Instances all({0, 8, 0});
  all.run(60 * kNanosPerSecond);
  const Nanos now = all.now();
  const ContractRef later = all.borrow(0, 3, now - 10 * kNanosPerSecond);
  const ContractRef earlier = all.borrow(2, 3, now - 30 * kNanosPerSecond);
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
  all.borrow(0, 3, came);
  const auto needs = [&](Nanos since) {
    all.needed_since = since;
    all.want(0, 0);
    all.run(kNanosPerSecond);  // and it is told with the answer to a statement
  };
  needs(came);
  EXPECT_EQ(all.at(1).recall(3, all.now(), came + kNanosPerSecond), 0u);
  needs(came + 5 * kNanosPerSecond);
  EXPECT_EQ(all.at(1).recall(1, all.now(), came + kNanosPerSecond), 1u);
  EXPECT_EQ(all.at(1).recall(2, all.now(), came + 10 * kNanosPerSecond), 1u);
  needs(INT64_MAX);
  EXPECT_EQ(all.at(1).recall(2, all.now(), came + 10 * kNanosPerSecond), 2u);
}

TEST(Lending, WhatAnOlderRequestLacksIsNotLentToALaterOne) {
  Instances all({0, 8, 0});
  all.run(60 * kNanosPerSecond);
  ASSERT_TRUE(all.memory(1).take(8));
  all.run(kNanosPerSecond);
  const Nanos came = all.now() - 30 * kNanosPerSecond;
  all.want(2, 6, came);
  all.want(0, 3, came + kNanosPerSecond);
  all.deliver();
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.lender(1).awaited().blocks, 6u);
  EXPECT_EQ(all.lender(1).awaited().since, came);
  const uint32_t four[] = {0, 1, 2, 3};
  all.memory(1).give_back(four);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.events(0).size(), 0u);
  EXPECT_EQ(all.events(2, Event::kGranted).at(0).blocks, 4u);
  EXPECT_EQ(all.lender(1).awaited().blocks, 2u);
  const uint32_t others[] = {4, 5, 6, 7};
  all.memory(1).give_back(others);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.events(2, Event::kGranted).at(0).blocks, 2u);
  EXPECT_EQ(all.events(0, Event::kGranted).at(0).blocks, 2u);
  EXPECT_EQ(all.lender(1).awaited().blocks, 0u) << "no more is to be had here";
}

TEST(Lending, NobodyWaitsWhenTheLeaderNoLongerSaysSo) {
  Instances all({0, 8, 0});
  ASSERT_TRUE(all.memory(1).take(8));
  all.run(kNanosPerSecond);
  all.want(2, 6);
  all.run(10 * kNanosPerSecond);
  EXPECT_EQ(all.lender(1).awaited().blocks, 6u) << "it is said with each heartbeat";
  EXPECT_EQ(all.lender(2).awaited().since, INT64_MAX) << "it is its own request";
  all.want(2, 0);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.lender(1).awaited().since, INT64_MAX);
  all.want(2, 6);
  all.run(kNanosPerSecond);
  all.network().cut("a", "b", true);
  all.run(3 * kNanosPerSecond);
  EXPECT_EQ(all.lender(1).awaited().since, INT64_MAX);
  all.network().cut("a", "b", false);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.lender(1).awaited().blocks, 6u);
  all.kill(2);
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.lender(1).awaited().since, INT64_MAX);
}

// Two requests that came at one time and need the memory of both instances: one goes first for all, although
// each learns late of the other's.
TEST(Lending, OfTwoRequestsOneGoesFirstForAll) {
  Instances all({0, 8, 8}, /*lend_to_creditors=*/false);
  all.run(60 * kNanosPerSecond);
  const auto of_b = all.memory(1).take(8), of_c = all.memory(2).take(8);
  all.run(kNanosPerSecond);
  const Nanos came = all.now();
  for (size_t which : {1, 2}) {
    all.lender(which).keep_for_own(8, came);
    all.want(which, 8, came);
    all.run(3 * kNanosPerMilli);  // so long the messages take
  }
  all.run(kNanosPerSecond);
  all.memory(1).give_back(*of_b);
  all.memory(2).give_back(*of_c);
  all.run(kNanosPerSecond);
  // At one time the lower name goes first.
  EXPECT_EQ(all.events(1, Event::kGranted).size(), 1u);
  EXPECT_EQ(all.events(2, Event::kGranted).size(), 0u);
  ASSERT_EQ(all.lender(2).contracts().size(), 1u);
  EXPECT_LT(all.lender(2).contracts().begin()->second.since, came) << "before its own";
  EXPECT_EQ(all.at(2).recall(8, all.now(), came), 0u) << "nor does it take it back";
}

TEST(Lending, NoneLendsToItsCreditors) {
  Instances all({8, 8, 8}, /*lend_to_creditors=*/false);
  for (size_t i : {0, 2}) all.lender(i).set_lending(false);
  all.run(kNanosPerSecond);
  all.borrow(0, 3);
  for (size_t i : {0, 2}) all.lender(i).set_lending(true);
  all.run(kNanosPerSecond);
  all.want(1, 12);
  all.deliver();
  all.run(kNanosPerSecond);
  const auto granted = all.events(1, Event::kGranted);
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].contract.creditor, all.id(2));
  EXPECT_EQ(granted[0].blocks, 8u);
  EXPECT_EQ(all.at(0).gmanager().counts().denied, 0u) << "the leader knows it";
  // Nor where the leader does not know it yet.
  Instances young({8, 8}, /*lend_to_creditors=*/false);
  young.want(0, 3);
  young.want(1, 3);
  young.deliver();
  EXPECT_EQ(young.lender(0).lent_blocks() + young.lender(1).lent_blocks(), 3u);
}

TEST(Lending, WhatOnesOwnRequestNeedsIsNotLentToALaterOne) {
  Instances all({0, 8});
  all.run(60 * kNanosPerSecond);
  const Nanos came = all.now() - 30 * kNanosPerSecond;
  all.lender(1).keep_for_own(6, came);
  all.run(kNanosPerSecond);
  all.want(0, 3, came + kNanosPerSecond);
  all.run(3 * kNanosPerSecond);
  auto granted = all.events(0, Event::kGranted);
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].blocks, 2u);
  all.want(0, 3, came - kNanosPerSecond);
  all.run(3 * kNanosPerSecond);
  granted = all.events(0, Event::kGranted);
  ASSERT_EQ(granted.size(), 1u);
  EXPECT_EQ(granted[0].blocks, 3u);
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

TEST(Lending, ALostGrantGoesBackAndIsAskedForAgain) {
  Instances all({0, 8});
  all.want(0, 3);
  all.network().drop("b", "a", 1);
  all.deliver();
  EXPECT_TRUE(all.events(0).empty());
  all.run(3 * kNanosPerSecond);
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

// Also for a loan to which an advice led that got lost.
TEST(Lending, ALostAdviceIsGivenAgain) {
  Instances all({8, 0});
  all.network().drop("a", "b", 1);
  all.want(1, 3);
  all.deliver();
  EXPECT_EQ(all.at(0).gmanager().counts().advised, 1u);
  EXPECT_TRUE(all.events(1).empty());
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.events(1, Event::kGranted).size(), 1u);
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
  all.at(1).directory(false, all.now());
  all.want(0, 1);
  all.run(3 * kNanosPerSecond);
  all.want(1, 1);
  all.run(3 * kNanosPerSecond);
  EXPECT_TRUE(all.events(0).empty());
  EXPECT_TRUE(all.events(1).empty());
  const auto read = pin(all.lender(1), all.id(0), loan.id, {0});
  ASSERT_TRUE(read);
  all.lender(1).loans()->unpin(*read);
  all.at(1).directory(true, all.now());
  all.run(kNanosPerSecond);
  EXPECT_EQ(all.events(0, Event::kGranted).size(), 1u);
  EXPECT_EQ(all.events(1, Event::kGranted).size(), 1u);
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
