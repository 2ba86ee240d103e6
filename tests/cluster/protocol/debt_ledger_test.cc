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

std::vector<std::string> creditors(DebtLedger& ledger, const std::string& debtor, uint32_t blocks) {
  std::vector<std::string> out;
  for (const PeerId& peer : ledger.recommend(named(debtor), blocks).creditors) out.push_back(peer.instance);
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

TEST(DebtLedger, TheNearestThreeWithRoomFirst) {
  DebtLedger ledger;
  ledger.update(named("me"), figures(90, "z/r/1"), 0);
  ledger.update(named("far"), figures(100, "y/r/1"), 0);
  ledger.update(named("rack"), figures(20, "z/r/2"), 0);
  ledger.update(named("host"), figures(20, "z/r/1"), 0);
  ledger.update(named("host_device"), figures(15, "z/r/1", true), 0);
  ledger.update(named("host_full"), figures(9, "z/r/1", true), 0);
  ledger.sort();
  EXPECT_EQ(creditors(ledger, "me", 10), (Names{"host_device", "host", "rack"}));
  EXPECT_EQ(creditors(ledger, "me", 50), Names{"far"});
  const Recommendation none = ledger.recommend(named("me"), 101);
  EXPECT_TRUE(none.creditors.empty());
  EXPECT_EQ(none.largest_room, 50u) << "of 100, 50 have just been recommended";
}

TEST(DebtLedger, TheDebtorIsNotTheOneWithMostRoom) {
  DebtLedger ledger;
  ledger.update(named("me"), figures(90, "z/r/1"), 0);
  ledger.update(named("refuser"), figures(70, "z/r/1"), 0);
  ledger.update(named("other"), figures(40, "z/r/1"), 0);
  ledger.refused(named("refuser"));
  ledger.sort();
  EXPECT_EQ(ledger.recommend(named("me"), 60).largest_room, 40u);
}

TEST(DebtLedger, TwoDebtorsAreSentToDifferentCreditors) {
  DebtLedger ledger;
  ledger.update(named("near"), figures(50, "z/r/1"), 0);
  ledger.update(named("farther"), figures(50, "z/s/1"), 0);
  ledger.update(named("a"), figures(0, "z/r/2"), 0);
  ledger.update(named("b"), figures(0, "z/r/3"), 0);
  ledger.sort();
  EXPECT_EQ(creditors(ledger, "a", 10), (Names{"near", "farther"}));
  EXPECT_EQ(creditors(ledger, "a", 10), (Names{"near", "farther"})) << "it competes with none";
  EXPECT_EQ(creditors(ledger, "b", 10), (Names{"farther", "near"}));
  EXPECT_EQ(creditors(ledger, "b", 31), Names{"farther"}) << "near was recommended for 20 of its 50";
  ledger.update(named("near"), figures(50, "z/r/1"), 1);
  EXPECT_EQ(creditors(ledger, "b", 31), Names{"near"}) << "farther was recommended for 41 of its 50";
}

TEST(DebtLedger, ACreditorThatRefusedIsLeftOutUntilItShowsRoom) {
  DebtLedger ledger;
  ledger.update(named("a"), figures(50, ""), 0);
  ledger.sort();
  EXPECT_EQ(creditors(ledger, "me", 10), Names{"a"});
  ledger.refused(named("a"));
  EXPECT_EQ(creditors(ledger, "me", 10), Names{});
  ledger.update(named("a"), figures(0, ""), 1);
  EXPECT_EQ(creditors(ledger, "me", 10), Names{});
  ledger.sort();
  ledger.update(named("a"), figures(50, ""), 2);
  EXPECT_EQ(creditors(ledger, "me", 10), Names{"a"}) << "also before the next sort";
}

TEST(DebtLedger, AQuestionDoesNotLookAtThoseWithoutRoom) {
  DebtLedger ledger;
  for (int i = 0; i < 1000; ++i) {
    ledger.update(named("i" + std::to_string(i)), figures(i % 100 == 0 ? 50 : 5, ""), 0);
  }
  ledger.sort();
  EXPECT_EQ(creditors(ledger, "me", 20).size(), 3u);
  EXPECT_EQ(ledger.looked_at(), 10u);
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
  EXPECT_EQ(creditors(ledger, "me", 1), (Names{"a", "b"})) << "each once";
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
