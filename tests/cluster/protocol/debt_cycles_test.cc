// Cycles of debts, against a search of all paths.
#include "cluster/protocol/debt_cycles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/random.h"

namespace kvasir::cluster::test {
namespace {

// Whether some path of debts leads from an instance back to it: every path is walked.
bool cycle_by_all_paths(uint32_t instances, const std::vector<Debt>& debts) {
  for (uint32_t start = 0; start < instances; ++start) {
    std::set<uint32_t> reached;
    std::vector<uint32_t> open{start};
    while (!open.empty()) {
      const uint32_t at = open.back();
      open.pop_back();
      for (const Debt& debt : debts) {
        if (debt.debtor != at) continue;
        if (debt.creditor == start) return true;
        if (reached.insert(debt.creditor).second) open.push_back(debt.creditor);
      }
    }
  }
  return false;
}

std::vector<Debt> random_debts(Random& random, uint32_t instances, size_t count, uint32_t most) {
  std::vector<Debt> debts;
  while (debts.size() < count) {
    const auto debtor = static_cast<uint32_t>(random.below(instances));
    const auto creditor = static_cast<uint32_t>(random.below(instances));
    if (debtor != creditor)
      debts.push_back({debtor, creditor, 1 + static_cast<uint32_t>(random.below(most))});
  }
  return debts;
}

std::map<uint32_t, int64_t> balances(const std::vector<Debt>& debts) {
  std::map<uint32_t, int64_t> out;
  for (const Debt& debt : debts) {
    out[debt.debtor] -= debt.blocks;
    out[debt.creditor] += debt.blocks;
  }
  return out;
}

TEST(DebtCycles, TheLedgerOfThePapersFigureHasNone) {
  // 1 owes 0 and 3, 3 owes 0: without directions that would be a triangle.
  EXPECT_TRUE(find_cycle(4, std::vector<Debt>{{1, 0, 7}, {1, 3, 11}, {3, 0, 5}}).empty());
}

TEST(DebtCycles, MutualDebtIsOne) {
  EXPECT_EQ(find_cycle(2, std::vector<Debt>{{0, 1, 3}, {1, 0, 5}}), (std::vector<uint32_t>{0, 1}));
}

TEST(DebtCycles, ThePathIsTheCycleAndNothingBeforeIt) {
  const std::vector<Debt> debts{{0, 1, 1}, {1, 2, 1}, {2, 3, 1}, {3, 1, 1}};
  EXPECT_EQ(find_cycle(4, debts), (std::vector<uint32_t>{1, 2, 3}));
}

TEST(DebtCycles, RandomGraphsAgreeWithASearchOfAllPaths) {
  Random random(1);
  int with = 0;
  for (int i = 0; i < 3000; ++i) {
    const auto instances = static_cast<uint32_t>(2 + random.below(7));
    const std::vector<Debt> debts = random_debts(random, instances, random.below(2 * instances), 9);
    const std::vector<uint32_t> cycle = find_cycle(instances, debts);
    ASSERT_EQ(!cycle.empty(), cycle_by_all_paths(instances, debts)) << i;
    EXPECT_EQ(std::set<uint32_t>(cycle.begin(), cycle.end()).size(), cycle.size());
    for (size_t at = 0; at < cycle.size(); ++at) {
      const uint32_t next = cycle[(at + 1) % cycle.size()];
      EXPECT_TRUE(std::any_of(debts.begin(), debts.end(), [&](const Debt& debt) {
        return debt.debtor == cycle[at] && debt.creditor == next;
      }));
    }
    with += cycle.empty() ? 0 : 1;
  }
  EXPECT_GT(with, 500);
  EXPECT_LT(with, 2500);
}

TEST(DebtCycles, ALongChainNeedsNoDeepStack) {
  std::vector<Debt> debts;
  for (uint32_t i = 0; i + 1 < 200000; ++i) debts.push_back({i, i + 1, 1});
  EXPECT_TRUE(find_cycle(200000, debts).empty());
  debts.push_back({199999, 0, 1});
  EXPECT_EQ(find_cycle(200000, debts).size(), 200000u);
}

TEST(Settlements, TheSmallestDebtOfTheCycleIsSettled) {
  const auto plan = plan_settlements(3, std::vector<Debt>{{0, 1, 20}, {1, 2, 12}, {2, 0, 30}}, 8);
  ASSERT_EQ(plan.size(), 1u);
  EXPECT_EQ(plan[0].cycle, (std::vector<uint32_t>{0, 1, 2}));
  EXPECT_EQ(plan[0].blocks, 12u);
}

TEST(Settlements, DebtsUnderTheThresholdAreLeftAlone) {
  const std::vector<Debt> debts{{0, 1, 7}, {1, 0, 100}};
  EXPECT_TRUE(plan_settlements(2, debts, 8).empty());
  EXPECT_EQ(plan_settlements(2, debts, 7).size(), 1u);
  // Two small debts of one pair are one that is not.
  EXPECT_EQ(plan_settlements(2, std::vector<Debt>{{0, 1, 4}, {0, 1, 4}, {1, 0, 100}}, 8).size(), 1u);
}

TEST(Settlements, LeaveNoCycleAndNoneBetterOrWorseOff) {
  Random random(2);
  size_t most = 0;
  for (int i = 0; i < 500; ++i) {
    const auto instances = static_cast<uint32_t>(2 + random.below(7));
    const auto least = static_cast<uint32_t>(1 + random.below(5));
    const std::vector<Debt> debts = random_debts(random, instances, random.below(4 * instances), 20);
    std::map<std::pair<uint32_t, uint32_t>, int64_t> owed;
    for (const Debt& debt : debts) owed[{debt.debtor, debt.creditor}] += debt.blocks;
    const auto plan = plan_settlements(instances, debts, least);
    for (const Settlement& settlement : plan) {
      EXPECT_GE(settlement.blocks, least);
      for (size_t at = 0; at < settlement.cycle.size(); ++at) {
        int64_t& debt = owed[{settlement.cycle[at], settlement.cycle[(at + 1) % settlement.cycle.size()]}];
        debt -= settlement.blocks;
        EXPECT_GE(debt, 0);
      }
    }
    std::vector<Debt> left;
    std::vector<Debt> left_that_count;
    for (const auto& [pair, blocks] : owed) {
      left.push_back({pair.first, pair.second, static_cast<uint32_t>(blocks)});
      if (blocks >= least) left_that_count.push_back(left.back());
    }
    EXPECT_FALSE(cycle_by_all_paths(instances, left_that_count));
    auto before = balances(debts);
    for (const auto& [instance, balance] : balances(left)) EXPECT_EQ(balance, before[instance]);
    most = std::max(most, plan.size());
  }
  EXPECT_GT(most, 3u);
}

}  // namespace
}  // namespace kvasir::cluster::test
