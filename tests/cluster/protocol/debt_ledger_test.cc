// Which creditors are recommended to which debtor.
#include "cluster/protocol/debt_ledger.h"

#include <gtest/gtest.h>

namespace kvasir::cluster::test {
namespace {

PeerId named(const std::string& name) {
  return {name, 1};
}

InstanceFigures figures(uint32_t room, const std::string& location, bool device = false) {
  InstanceFigures out;
  out.free = room;
  out.total = 100;
  out.room = room;
  out.device = device;
  out.location = location;
  return out;
}

// "name blocks" of each creditor, best first.
std::vector<std::string> creditors(DebtLedger& ledger, const std::string& debtor, uint32_t blocks,
                                   uint32_t least = 1) {
  std::vector<std::string> out;
  for (const Share& share :
       ledger.allocate({named(debtor), least, blocks, 0, std::nullopt}, 0, true).shares) {
    out.push_back(fmt::format("{} {}", share.creditor.instance, share.blocks));
  }
  return out;
}

using Names = std::vector<std::string>;

TEST(DebtLedger, DistanceIsWhatLocationsDoNotShare) {
  EXPECT_EQ(distance("z/r/h", "z/r/h"), 0u);
  EXPECT_EQ(distance("z/r/h", "z/r/i"), 1u);
  EXPECT_EQ(distance("z/r/h", "z/s/h"), 2u);
  EXPECT_EQ(distance("z/r/h", "y/r/h"), 3u);
  EXPECT_EQ(distance("z", "z/r/h"), 2u);
  EXPECT_EQ(distance("", ""), 0u);
  EXPECT_EQ(distance("ab", "a"), 1u);
}

TEST(DebtLedger, OfManyEndsThoseOfAStepAreOne) {
  const std::vector<Due> due = {{250, 5}, {101, 1}, {199, 2}, {205, 3}, {320, 7}};
  EXPECT_EQ(joined_due(due, 100, 5), due);
  EXPECT_EQ(joined_due(due, 100, 4), (std::vector<Due>{{199, 3}, {250, 8}, {320, 7}}));
  EXPECT_EQ(joined_due(due, 100, 2), (std::vector<Due>{{199, 3}, {250, 8}})) << "the last ones are left out";
}

TEST(DebtLedger, OneCreditorIsBetterThanSeveralAndTheNearestIsFirst) {
  DebtLedger ledger;
  ledger.update(named("me"), figures(90, "z/r/1"), 0);
  ledger.update(named("far"), figures(100, "y/r/1"), 0);
  ledger.update(named("rack"), figures(20, "z/r/2"), 0);
  ledger.update(named("host"), figures(20, "z/r/1"), 0);
  ledger.update(named("host_device"), figures(15, "z/r/1", true), 0);
  EXPECT_EQ(creditors(ledger, "me", 10), Names{"host_device 10"});
  EXPECT_EQ(creditors(ledger, "me", 10), Names{"host 10"}) << "the device has 5 left";
  EXPECT_EQ(creditors(ledger, "me", 50), Names{"far 50"});
  EXPECT_EQ(creditors(ledger, "me", 60), (Names{"host_device 5", "host 10", "rack 20"}))
      << "three at the most: far would be the fourth";
}

TEST(DebtLedger, SeveralDivideItEvenlyAsFarAsTheyHaveRoom) {
  DebtLedger ledger;
  const auto all = [&] {
    ledger.update(named("a"), figures(60, "", true), 0);
    ledger.update(named("b"), figures(50, "", true), 0);
    ledger.update(named("c"), figures(10, "", true), 0);
  };
  all();
  EXPECT_EQ(creditors(ledger, "me", 80), (Names{"a 40", "b 40"})) << "not 60 and 20; two have room for all";
  all();
  EXPECT_EQ(creditors(ledger, "me", 111, 111), (Names{"a 51", "b 50", "c 10"}));
  all();
  ledger.update(named("b"), figures(50, ""), 0);
  EXPECT_EQ(creditors(ledger, "me", 80, 80), (Names{"a 60", "c 10", "b 10"}))
      << "host memory lends what the devices leave";
}

TEST(DebtLedger, NoNumberOfBlocksIsTooLargeToDivide) {
  DebtLedger ledger;
  ledger.update(named("a"), figures(3'000'000'000, ""), 0);
  ledger.update(named("b"), figures(2'000'000'000, ""), 0);
  EXPECT_EQ(creditors(ledger, "me", UINT32_MAX), (Names{"a 2294967295", "b 2000000000"}));
}

TEST(DebtLedger, TheLeastComesOfAsManyAsItTakesOrOfNone) {
  DebtLedger ledger;
  for (const char* name : {"a", "b", "c", "d"}) ledger.update(named(name), figures(10, ""), 0);
  EXPECT_EQ(creditors(ledger, "me", 50, 41), Names{});
  EXPECT_EQ(ledger.allocate({named("me"), 41, 50, 0, std::nullopt}, 0, true).room, 40u);
  EXPECT_EQ(creditors(ledger, "me", 50, 31), (Names{"a 10", "b 10", "c 10", "d 10"}));
  EXPECT_EQ(creditors(ledger, "me", 1), Names{}) << "until they are heard of, all of it is lent";
}

TEST(DebtLedger, NeitherTheDebtorNorARefuserIsACreditor) {
  DebtLedger ledger;
  ledger.update(named("me"), figures(90, "z/r/1"), 0);
  ledger.update(named("refuser"), figures(70, "z/r/1"), 0);
  ledger.update(named("other"), figures(40, "z/r/1"), 0);
  ledger.refused(named("refuser"));
  EXPECT_EQ(ledger.allocate({named("me"), 60, 60, 0, std::nullopt}, 0, true).room, 40u);
}

TEST(DebtLedger, NorOneThatOwesItSomething) {
  DebtLedger ledger;
  InstanceFigures owes = figures(50, "");
  owes.owed[named("me")] = 1;
  ledger.update(named("a"), owes, 0);
  EXPECT_TRUE(ledger.allocate({named("me"), 1, 10, 0, std::nullopt}, 0, false).shares.empty());
  EXPECT_EQ(ledger.allocate({named("you"), 1, 10, 0, std::nullopt}, 0, false).shares.size(), 1u);
  EXPECT_EQ(creditors(ledger, "me", 10), Names{"a 10"});
}

// a needs 30 of its 50 free blocks for a request of its own that came at 100.
TEST(DebtLedger, WhatACreditorNeedsForAnOlderRequestIsNoRoom) {
  DebtLedger ledger;
  InstanceFigures needs = figures(45, "");
  needs.free = 50;
  needs.own = 30;
  needs.own_since = 100;
  const auto lent = [&](const std::string& debtor, Nanos since) {
    ledger.update(named("a"), needs, 200);
    const auto shares = ledger.allocate({named(debtor), 1, 50, since, std::nullopt}, 0, true).shares;
    return std::pair(shares.at(0).blocks, shares.at(0).before_own);
  };
  EXPECT_EQ(lent("b", 101), std::pair(20u, false));
  EXPECT_EQ(lent("b", 99), std::pair(45u, true));
  EXPECT_EQ(lent("b", 100), std::pair(20u, false)) << "at one time the lower name goes first";
  EXPECT_EQ(lent("A", 100), std::pair(45u, true));
}

// A clock that is an hour ahead; messages take 5, 3 and 4 ms.
TEST(DebtLedger, TheFastestMessageSaysWhatAClockShows) {
  constexpr Nanos kMs = kNanosPerMilli, kHour = 3600 * kNanosPerSecond;
  DebtLedger ledger;
  const auto says = [&](Nanos sent, Nanos way, Nanos since) {
    InstanceFigures needs = figures(10, "");
    needs.own = 1;
    needs.own_since = since + kHour;
    ledger.update(named("a"), needs, sent + way, sent + kHour);
    return ledger.find(named("a"))->figures.own_since;
  };
  EXPECT_EQ(says(100 * kMs, 5 * kMs, 60 * kMs), 65 * kMs);
  EXPECT_EQ(says(110 * kMs, 3 * kMs, 60 * kMs), 63 * kMs);
  EXPECT_EQ(says(120 * kMs, 4 * kMs, 60 * kMs), 63 * kMs + 11 * kMs / 10'000) << "and a drift of 100 ppm";
  EXPECT_EQ(ledger.time_of(named("a"), 70 * kMs + kHour, 130 * kMs + kHour, 139 * kMs),
            73 * kMs + 11 * kMs / 10'000);
  EXPECT_EQ(ledger.time_of(named("b"), 0, 40 * kMs, 139 * kMs), 99 * kMs) << "of it no clock is known";
}

TEST(DebtLedger, TwoDebtorsAreSentToDifferentCreditors) {
  DebtLedger ledger;
  ledger.update(named("near"), figures(50, "z/r/1"), 0);
  ledger.update(named("farther"), figures(50, "z/s/1"), 0);
  ledger.update(named("a"), figures(0, "z/r/2"), 0);
  ledger.update(named("b"), figures(0, "z/r/3"), 0);
  EXPECT_EQ(creditors(ledger, "a", 10), Names{"near 10"});
  EXPECT_EQ(creditors(ledger, "a", 10), Names{"near 10"}) << "it competes with none";
  EXPECT_EQ(creditors(ledger, "b", 10), Names{"farther 10"});
  EXPECT_EQ(creditors(ledger, "b", 31), Names{"farther 31"}) << "near was recommended for 20 of its 50";
  ledger.update(named("near"), figures(50, "z/r/1"), 1);
  EXPECT_EQ(creditors(ledger, "b", 31), Names{"near 31"}) << "farther was recommended for 41 of its 50";
}

TEST(DebtLedger, ACreditorThatRefusedIsLeftOutUntilItShowsRoom) {
  DebtLedger ledger;
  ledger.update(named("a"), figures(50, ""), 0);
  EXPECT_EQ(creditors(ledger, "me", 10), Names{"a 10"});
  ledger.refused(named("a"));
  EXPECT_EQ(creditors(ledger, "me", 10), Names{});
  ledger.update(named("a"), figures(0, ""), 1);
  EXPECT_EQ(creditors(ledger, "me", 10), Names{});
  ledger.update(named("a"), figures(50, ""), 2);
  EXPECT_EQ(creditors(ledger, "me", 10), Names{"a 10"});
}

TEST(DebtLedger, AQuestionDoesNotLookAtThoseWithoutRoom) {
  DebtLedger ledger;
  for (int i = 0; i < 1000; ++i) {
    ledger.update(named("i" + std::to_string(i)), figures(i % 100 == 0 ? 50 : 0, ""), 0);
  }
  EXPECT_EQ(creditors(ledger, "me", 20).size(), 1u);
  EXPECT_EQ(ledger.looked_at(), 10u);
}

// b may use what lies at a and c, of which 7 are spare; d is b's own.
TEST(DebtLedger, OfWhatIsReservedOnlyTheSpareIsLent) {
  DebtLedger ledger;
  for (const char* name : {"a", "b", "c"}) ledger.update(named(name), figures(10, ""), 0);
  const Allocation found =
      ledger.allocate({named("d"), 1, 30, 0, std::nullopt}, 0, true, Reservation{named("b"), 7});
  EXPECT_EQ(found.room, 17u);
  uint32_t reserved = 0;
  for (const Share& share : found.shares) reserved += share.creditor == named("b") ? 0 : share.blocks;
  EXPECT_EQ(reserved, 7u);
  EXPECT_TRUE(ledger.allocate({named("b"), 11, 30, 0, std::nullopt}, 0, true, Reservation{named("d"), 3})
                  .shares.empty());
}

TEST(DebtLedger, SilenceAndANewLifeEndAnEntry) {
  DebtLedger ledger;
  ledger.update({"a", 1}, figures(50, ""), 10);
  ledger.update({"b", 1}, figures(50, ""), 20);
  ledger.expire(11);
  EXPECT_EQ(ledger.instances(), (std::vector<PeerId>{{"b", 1}}));
  ledger.update({"b", 2}, figures(40, ""), 30);
  EXPECT_EQ(ledger.instances(), (std::vector<PeerId>{{"b", 2}}));
  ledger.update({"a", 1}, figures(50, ""), 40);
  EXPECT_EQ(creditors(ledger, "me", 1), (Names{"a 1"}));
  EXPECT_EQ(ledger.instances().size(), 2u) << "each once";
}

TEST(DebtLedger, DebtsAreAmongPresentInstances) {
  DebtLedger ledger;
  InstanceFigures lender = figures(10, "");
  lender.lent = {{{"b", 1}, 7}, {{"b", 2}, 3}, {{"gone", 1}, 5}, {{"a", 1}, 4}};
  ledger.update({"a", 1}, lender, 0);
  ledger.update({"b", 2}, figures(10, ""), 0);
  // b's former life owes nothing any more, and none owes itself.
  EXPECT_EQ(ledger.debts(), (std::vector<Debt>{{1, 0, 3}}));
}

}  // namespace
}  // namespace kvasir::cluster::test
