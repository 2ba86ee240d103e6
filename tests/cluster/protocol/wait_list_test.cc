// In which order wishes are served, and what passes those that gather memory.
#include "cluster/protocol/wait_list.h"

#include <gtest/gtest.h>

#include "base/random.h"

namespace kvasir::cluster::test {
namespace {

PeerId debtor_named(const std::string& name) {
  return {name, 1};
}

InstanceFigures room_for(uint32_t room) {
  InstanceFigures out;
  out.free = out.room = room;
  out.total = out.lendable = 1000;
  return out;
}

Wish wish(const std::string& debtor, Nanos since, uint32_t most, uint32_t least = 1,
          std::optional<Nanos> hold = std::nullopt) {
  Wish out;
  out.demand = {debtor_named(debtor), least, most, since, hold};
  out.since_there = since;
  return out;
}

// "debtor blocks" of each turn.
std::vector<std::string> serve(WaitList& list, DebtLedger& ledger, Nanos now) {
  std::vector<std::string> out;
  for (const Turn& turn : list.serve(ledger, now, true)) {
    uint32_t blocks = 0;
    for (const Share& share : turn.shares) blocks += share.blocks;
    out.push_back(fmt::format("{} {}", turn.wish.demand.debtor.instance, blocks));
  }
  return out;
}

using Names = std::vector<std::string>;

TEST(WaitList, TheFirstToArriveTakesWhatThereIs) {
  DebtLedger ledger;
  ledger.update(debtor_named("x"), room_for(10), 0);
  WaitList list;
  list.put(wish("b", 20, 4), 50, 1);
  list.put(wish("a", 30, 9), 50, 1);
  list.put(wish("c", 10, 7), 50, 1);
  EXPECT_EQ(list.first_but_of(debtor_named("a"), ledger)->demand.debtor, debtor_named("c"));
  EXPECT_EQ(list.first_but_of(debtor_named("c"), ledger)->demand.debtor, debtor_named("b"));
  EXPECT_EQ(serve(list, ledger, 50), (Names{"c 7", "b 3"}));
  EXPECT_EQ(list.size(), 2u) << "b lacks one block";
}

// Ten creditors have 100 each, and three are named at a time. a wants 950: 300, 300, 300, and then 50 of the
// last, of which b gets the rest.
TEST(WaitList, WhatTheFirstGetsInPartsPassesToNobodyMeanwhile) {
  constexpr Nanos kAnswer = 100;
  DebtLedger ledger;
  for (char creditor = '0'; creditor <= '9'; ++creditor) {
    ledger.update(debtor_named(std::string(1, creditor)), room_for(100), 0);
  }
  WaitList list;
  Wish a = wish("a", 10, 950), asking = wish("a", 10, 0);
  asking.asking = true;
  list.put(a, 50, kAnswer);
  list.put(wish("b", 20, 120), 50, kAnswer);
  for (a.attempt = 1; a.attempt <= 3; ++a.attempt) {
    EXPECT_EQ(serve(list, ledger, 50), Names{"a 300"});
    EXPECT_EQ(list.first_but_of(debtor_named("b"), ledger)->demand.debtor, debtor_named("a"));
    asking.attempt = a.attempt;
    EXPECT_FALSE(list.put(asking, 50, kAnswer));
    EXPECT_EQ(serve(list, ledger, 149), Names{}) << "a asks";
    a.demand.most -= 300;
    EXPECT_EQ(list.find(debtor_named("a"))->demand.most, a.demand.most);
    EXPECT_TRUE(list.put(a, 50, kAnswer));
  }
  EXPECT_EQ(serve(list, ledger, 50), (Names{"a 50", "b 50"}));
  EXPECT_EQ(list.find(debtor_named("a")), nullptr);
}

// a's own 40 blocks are of no use to a.
TEST(WaitList, OneThatAsksHoldsUpOthersUntilItHasNoTimeLeft) {
  DebtLedger ledger;
  for (const char* creditor : {"v", "w", "x", "y"}) ledger.update(debtor_named(creditor), room_for(10), 0);
  ledger.update(debtor_named("a"), room_for(40), 0);
  WaitList list;
  list.put(wish("a", 10, 35), 50, 100);
  list.put(wish("b", 20, 45), 50, 100);
  EXPECT_EQ(serve(list, ledger, 50), (Names{"a 30", "b 40"}));
  list.put(wish("c", 30, 3), 60, 100);
  EXPECT_EQ(serve(list, ledger, 149), Names{});
  EXPECT_EQ(serve(list, ledger, 150), Names{"c 3"});
  // It no longer wants what it lacks.
  list.put(wish("a", 10, 9), 200, 100);
  EXPECT_EQ(serve(list, ledger, 200), Names{"a 7"});
  ledger.update(debtor_named("x"), room_for(5), 201);
  list.put(wish("c", 30, 3), 260, 100);
  EXPECT_EQ(serve(list, ledger, 260), Names{});
  EXPECT_TRUE(list.put(wish("a", 10, 0), 260, 100));
  EXPECT_EQ(serve(list, ledger, 260), Names{"c 3"});
}

TEST(WaitList, AnInstanceHasOneWish) {
  WaitList list;
  Wish again = wish("a", 30, 9);
  EXPECT_TRUE(list.put(again, 50, 1));
  again.demand.since = 29;  // its clock is known better
  EXPECT_FALSE(list.put(again, 60, 1)) << "it wants nothing else";
  EXPECT_EQ(list.find(debtor_named("a"))->demand.since, 29);
  again.demand.most = 3;
  EXPECT_TRUE(list.put(again, 60, 1));
  EXPECT_EQ(list.size(), 1u);
  again.demand.most = 0;
  EXPECT_FALSE(list.put(again, 60, 1));
  EXPECT_EQ(list.size(), 0u);
}

TEST(WaitList, AWishThatWasServedIsIgnoredUntilItsDebtorMustKnow) {
  DebtLedger ledger;
  ledger.update(debtor_named("x"), room_for(10), 0);
  WaitList list;
  list.put(wish("a", 30, 4), 50, 100);
  EXPECT_EQ(serve(list, ledger, 50), Names{"a 4"});
  EXPECT_FALSE(list.put(wish("a", 30, 4), 149, 100));
  EXPECT_TRUE(list.put(wish("a", 30, 4), 150, 100)) << "the advice got lost";
  Wish next = wish("a", 30, 2);
  next.attempt = 1;
  EXPECT_TRUE(list.put(next, 151, 100));
}

TEST(WaitList, SilentDebtorsAreForgotten) {
  WaitList list;
  list.put(wish("a", 30, 4), 50, 1);
  list.put(wish("b", 30, 4), 60, 1);
  list.expire(51);
  EXPECT_EQ(list.find(debtor_named("a")), nullptr);
  EXPECT_NE(list.find(debtor_named("b")), nullptr);
}

// x has 20 blocks: long ones hold 8 until 100 and 4 until 200, as x says. With the 8 that are free the head's
// 18 are there at 200, and 2 are left.
struct Gathering {
  DebtLedger ledger;
  WaitList list;
  explicit Gathering(uint32_t needs = 18) {
    says(8, {{100, 8}, {200, 4}}, 10);
    list.put(wish("head", 5, needs, needs), 10, 1);
  }
  void says(uint32_t room, std::vector<Due> due, Nanos now) {
    InstanceFigures figures = room_for(room);
    figures.due = std::move(due);
    ledger.update(debtor_named("x"), figures, now);
  }
  Names later(std::vector<Wish> wishes, Nanos now) {
    for (const Wish& each : wishes) list.put(each, now, 1);
    return serve(list, ledger, now);
  }
};

TEST(WaitList, AShortOneThatEndsInTimePassesTheHead) {
  Gathering g;
  EXPECT_EQ(g.later({wish("a", 7, 6, 1, 190)}, 10), Names{"a 6"});
  EXPECT_NE(g.list.find(debtor_named("head")), nullptr);
}

TEST(WaitList, ALongOnePassesWithWhatIsSpareThen) {
  Gathering g;
  EXPECT_EQ(g.later({wish("a", 7, 6, 1, 191), wish("b", 8, 6)}, 10), Names{"a 2"})
      << "and for b, of which nothing is known, nothing is spare";
}

TEST(WaitList, WhatIsOfNoUseToTheHeadGoesToAnyone) {
  Gathering g;
  g.ledger.update(debtor_named("head"), room_for(5), 10);
  EXPECT_EQ(g.later({wish("a", 7, 6)}, 10), Names{"a 6"}) << "2 of x and 4 of the head's own";
}

TEST(WaitList, WhereNoEndIsKnownNothingPasses) {
  DebtLedger ledger;
  ledger.update(debtor_named("x"), room_for(8), 0);
  WaitList list;
  list.put(wish("head", 5, 18, 18), 10, 1);
  list.put(wish("a", 7, 1, 1, 1), 10, 1);
  EXPECT_EQ(serve(list, ledger, 10), Names{});
  list.remove(debtor_named("head"));
  EXPECT_EQ(serve(list, ledger, 10), Names{"a 1"});
}

// l1 returns all but 2 of its 8 before its time: 14 are free, and the head still lacks 4 of l1's and l2's 6.
TEST(WaitList, WhatCameBackBeforeItsTimeCountsOnce) {
  Gathering g;
  g.says(14, {{100, 2}, {200, 4}}, 20);
  EXPECT_EQ(g.later({wish("a", 7, 6, 1, 181)}, 20), Names{"a 2"}) << "14 + 2 + 4 - 18";
}

// The head's 12 are there when l1 returns its 8, of which 4 are spare: at any moment, once that is late.
TEST(WaitList, ALateReturnIsStillToCome) {
  Gathering g(12);
  EXPECT_EQ(g.later({wish("a", 7, 8, 1, 95)}, 101), Names{"a 4"});
  g.says(12, {{196, 4}, {200, 4}}, 102);
  EXPECT_EQ(g.later({}, 102), Names{"head 12"});
}

// What was served since x said something is expected back, too: a's 8 at 60, with which the head has its 18
// at 100, and 2 are left for one that stays longer.
TEST(WaitList, WhatWasServedSinceTheLastHeartbeatIsDueToo) {
  Gathering g;
  EXPECT_EQ(g.later({wish("a", 7, 6, 1, 50)}, 10), Names{"a 6"});
  EXPECT_EQ(g.later({wish("b", 8, 9)}, 11), Names{"b 2"}) << "2 + 6 + 8 + 4 - 18";
}

// x lends 8 until 100, y 10 until 500. The head's 10 are there at 100, with the 2 that are free at y.
TEST(WaitList, ACreditorThatRefusedGetsItsBlocksBackToo) {
  for (const bool refused : {false, true}) {
    DebtLedger ledger;
    WaitList list;
    InstanceFigures x = room_for(0), y = room_for(2);
    x.due = {{100, 8}};
    y.due = {{500, 10}};
    ledger.update(debtor_named("x"), x, 10);
    ledger.update(debtor_named("y"), y, 10);
    if (refused) ledger.refused(debtor_named("x"));
    list.put(wish("head", 5, 10, 10), 20, 1);
    list.put(wish("a", 7, 2, 1, 300), 20, 1);
    EXPECT_EQ(serve(list, ledger, 20), Names{}) << refused;
    list.put(wish("a", 7, 2, 1, 80), 20, 1);
    EXPECT_EQ(serve(list, ledger, 20), Names{"a 2"}) << refused;
  }
}

TEST(WaitList, WhatMoreThanAllLendIsWantedAtOnceHoldsUpNobody) {
  DebtLedger ledger;
  WaitList list;
  InstanceFigures x = room_for(20);
  x.lendable = 30;
  ledger.update(debtor_named("x"), x, 0);
  ledger.update(debtor_named("head"), x, 0);
  list.put(wish("head", 5, 31, 31), 10, 1);
  list.put(wish("a", 7, 1, 1, 1), 10, 1);
  EXPECT_EQ(list.first_but_of(debtor_named("x"), ledger)->demand.debtor, debtor_named("a"));
  EXPECT_EQ(serve(list, ledger, 10), Names{"a 1"});
  list.put(wish("head", 5, 30, 30), 10, 1);
  list.put(wish("b", 7, 20, 20, 1), 10, 1);
  ledger.update(debtor_named("head"), room_for(0), 11);
  EXPECT_EQ(serve(list, ledger, 11), Names{}) << "x lends 30 at some time";
  ledger.remove(debtor_named("x"));
  ledger.update(debtor_named("y"), x, 12);
  ledger.remove(debtor_named("head"));
  x.lendable = 29;
  ledger.update(debtor_named("y"), x, 12);
  EXPECT_EQ(serve(list, ledger, 12), Names{"b 20"});
}

TEST(WaitList, TheHeadGetsItAllAtOnce) {
  Gathering g;
  EXPECT_EQ(g.later({}, 10), Names{});
  g.ledger.update(debtor_named("x"), room_for(17), 110);
  EXPECT_EQ(g.later({}, 110), Names{});
  g.ledger.update(debtor_named("x"), room_for(20), 120);
  EXPECT_EQ(g.later({wish("a", 7, 6)}, 120), (Names{"head 18", "a 2"}));
}

// When enough is there for the head if all loans end when they are said to and those that are late end now,
// with and without the loans that pass it: the times by going through all of them.
Nanos earliest(Nanos now, uint32_t free, uint32_t needs, std::vector<std::pair<Nanos, uint32_t>> ends) {
  std::sort(ends.begin(), ends.end());
  for (const auto& [at, blocks] : ends) {
    free += blocks;
    if (free >= needs) return std::max(at, now);
  }
  return INT64_MAX;
}

TEST(WaitList, WhatPassesDoesNotDelayTheHead) {
  Random random(5);
  uint64_t passed = 0, waited = 0, late = 0, refused = 0;
  for (int round = 0; round < 3000; ++round) {
    DebtLedger ledger;
    WaitList list;
    const Nanos now = 5 + static_cast<Nanos>(random.below(100));
    uint32_t free = 0;
    std::vector<std::pair<Nanos, uint32_t>> ends;
    std::map<PeerId, InstanceFigures, ByPeer> after;
    for (const char* name : {"x", "y"}) {
      const PeerId creditor = debtor_named(name);
      InstanceFigures& figures = after[creditor] = room_for(0);
      for (uint64_t i = 1 + random.below(4); i > 0; --i) {
        const auto blocks = static_cast<uint32_t>(1 + random.below(40));
        const auto hold = static_cast<Nanos>(10 + random.below(500));
        ends.emplace_back(hold, blocks);
        late += hold <= now ? 1 : 0;
        figures.due.push_back({hold, blocks});
      }
      // It uses some itself, so that little is left.
      figures.free = figures.room = static_cast<uint32_t>(random.below(20));
      if (random.below(3) == 0) figures.free = figures.room = 0;
      free += figures.room;
    }
    for (const auto& [creditor, figures] : after) {
      ledger.update(creditor, figures, now);
      if (figures.room > 0 || random.below(2) == 0) continue;
      ledger.refused(creditor);
      ++refused;
    }
    const uint32_t needs = free + 1 + static_cast<uint32_t>(random.below(80));
    list.put(wish("head", 1, needs, needs), now, 1);
    for (uint64_t i = 1 + random.below(6); i > 0; --i) {
      const auto hold = static_cast<Nanos>(random.below(500));
      list.put(wish(fmt::format("s{}", i), static_cast<Nanos>(2 + random.below(9)),
                    static_cast<uint32_t>(1 + random.below(20)), 1,
                    random.below(4) == 0 ? std::nullopt : std::optional(hold)),
               now, 1);
    }
    const Nanos without = earliest(now, free, needs, ends);
    for (const Turn& turn : list.serve(ledger, now, true)) {
      ASSERT_NE(turn.wish.demand.debtor, debtor_named("head"));
      for (const Share& share : turn.shares) {
        free -= share.blocks;
        if (const auto hold = turn.wish.demand.hold) ends.emplace_back(now + *hold, share.blocks);
        ++passed;
      }
    }
    waited += list.size() - 1;
    EXPECT_EQ(earliest(now, free, needs, ends), without) << round;
  }
  for (const uint64_t count : {passed, waited, late, refused}) EXPECT_GT(count, 500u);
}

}  // namespace
}  // namespace kvasir::cluster::test
