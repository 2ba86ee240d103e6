// Lists of cells that queries name: whatever is lost between the two ends, the creditor has the cells that
// are meant, or says that it has too few.
#include "cluster/memory/cell_tables.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "base/mutant.h"
#include "base/random.h"
#include "cluster/memory/memory_rig.h"

namespace kvasir::test {
namespace {

using NamedCells = std::vector<std::pair<uint64_t, uint32_t>>;

AttendBody naming(const NamedCells& cells) {
  AttendBody body;
  for (const auto& [contract, index] : cells) append_cell(body.cells, contract, index);
  return body;
}

NamedCells named_by(const AttendBody& body) {
  NamedCells cells;
  for (const CellRun& run : body.cells) {
    for (uint32_t i = 0; i < run.count; ++i) cells.emplace_back(run.contract, run.first + run.stride * i);
  }
  return cells;
}

NamedCells scattered(Random& random, size_t count) {
  NamedCells cells;
  for (size_t i = 0; i < count; ++i) {
    cells.emplace_back(1 + random.below(2), static_cast<uint32_t>(random.below(1000)));
  }
  return cells;
}

TEST(CellTables, AListIsToldOnce) {
  Random random(1);
  CellTables debtor, creditor;
  NamedCells cells = scattered(random, 400);
  AttendBody body = naming(cells);
  const size_t whole = cell_list_bytes(body.cells);
  debtor.shorten(body);
  EXPECT_EQ(body.known, 0u);
  EXPECT_EQ(cell_list_bytes(body.cells), whole);
  ASSERT_TRUE(creditor.complete(body));
  EXPECT_EQ(named_by(body), cells);
  // Again, shorter, and longer.
  for (const size_t count : {400u, 123u, 400u, 401u, 450u, 450u}) {
    const size_t before = cells.size();
    while (cells.size() < count) cells.push_back(scattered(random, 1).front());
    const NamedCells these(cells.begin(), cells.begin() + static_cast<std::ptrdiff_t>(count));
    body = naming(these);
    debtor.shorten(body);
    EXPECT_EQ(body.table, 1u);
    EXPECT_EQ(body.known, std::min(before, count));
    EXPECT_EQ(count_cells(body.cells), count - body.known);
    ASSERT_TRUE(creditor.complete(body));
    EXPECT_EQ(named_by(body), these);
  }
  EXPECT_EQ(debtor.tables(), 1u);
  EXPECT_EQ(debtor.runs(), creditor.runs());
}

TEST(CellTables, FewCellsAndThoseInStepAreSpeltOut) {
  CellTables debtor, creditor;
  NamedCells in_step;
  for (uint32_t i = 0; i < 5000; ++i) in_step.emplace_back(3, 7 * i);
  for (const NamedCells& cells : {in_step, NamedCells{{1, 4}, {1, 9}, {1, 2}}}) {
    AttendBody body = naming(cells);
    debtor.shorten(body);
    EXPECT_EQ(body.table, 0u);
    ASSERT_TRUE(creditor.complete(body));
    EXPECT_EQ(named_by(body), cells);
  }
  EXPECT_EQ(creditor.tables(), 0u);
}

// As they do in a list of creditors that grows.
TEST(CellTables, TheyMoveWithAllThatTheyKnow) {
  static_assert(!std::is_copy_constructible_v<CellTables>);
  Random random(7);
  std::vector<CellTables> debtors(1);
  std::vector<NamedCells> lists;
  for (int i = 0; i < 20; ++i) {
    lists.push_back(scattered(random, 50));
    AttendBody body = naming(lists.back());
    debtors[0].shorten(body);
    debtors.emplace_back();
    for (const NamedCells& cells : lists) {
      body = naming(cells);
      debtors[0].shorten(body);
      EXPECT_EQ(body.known, 50u);
    }
  }
}

// A creditor may be told another list by a number that it knows: it harms only the sender.
TEST(CellTables, WhatATableIsToldAnewGoesAsItCame) {
  Random random(8);
  CellTables creditor;
  for (const size_t count : {30u, 60u}) {
    AttendBody body = naming(scattered(random, count));
    body.table = 7;
    ASSERT_TRUE(creditor.complete(body));
  }
  for (uint64_t i = 0; i < CellTables::kMaxTables; ++i) {
    AttendBody body = naming(scattered(random, 30));
    body.table = 100 + i;
    ASSERT_TRUE(creditor.complete(body));
  }
  EXPECT_EQ(creditor.tables(), CellTables::kMaxTables);
  AttendBody body;
  body.table = 7;
  body.known = 1;
  EXPECT_FALSE(creditor.complete(body)) << "it went first";
}

TEST(CellTables, ADebtorOfACreditorThatIsGoneTellsAllAnewByOtherNumbers) {
  Random random(9);
  CellTables debtor;
  const NamedCells cells = scattered(random, 40);
  AttendBody before = naming(cells), after = naming(cells);
  debtor.shorten(before);
  debtor.forget_all();
  EXPECT_EQ(debtor.runs(), 0u);
  debtor.shorten(after);
  EXPECT_EQ(after.known, 0u);
  EXPECT_NE(after.table, before.table);
}

TEST(CellTables, ACreditorWithTooLittleSaysSo) {
  Random random(2);
  CellTables debtor, creditor;
  const NamedCells cells = scattered(random, 60);
  AttendBody lost = naming(cells);
  debtor.shorten(lost);
  AttendBody body = naming(cells);
  debtor.shorten(body);
  EXPECT_EQ(body.known, 60u);
  EXPECT_FALSE(creditor.complete(body));
  debtor.forget(body.table);
  body = naming(cells);
  debtor.shorten(body);
  EXPECT_EQ(body.known, 0u);
  EXPECT_NE(body.table, lost.table);
  ASSERT_TRUE(creditor.complete(body));
  EXPECT_EQ(named_by(body), cells);
}

TEST(CellTables, WhatIsKeptIsBounded) {
  Random random(3);
  CellTables debtor, creditor;
  for (size_t i = 0; i < 2 * CellTables::kMaxTables; ++i) {
    AttendBody body = naming(scattered(random, 40));
    debtor.shorten(body);
    ASSERT_TRUE(creditor.complete(body));
  }
  EXPECT_EQ(debtor.tables(), CellTables::kMaxTables);
  EXPECT_EQ(creditor.tables(), CellTables::kMaxTables);
  // Long ones.
  std::vector<AttendBody> sent;
  for (int i = 0; i < 6; ++i) {
    const NamedCells cells = scattered(random, CellTables::kMaxRuns / 3);
    AttendBody body = naming(cells);
    debtor.shorten(body);
    ASSERT_TRUE(creditor.complete(body));
    EXPECT_LE(debtor.runs(), CellTables::kMaxRuns);
    EXPECT_EQ(debtor.runs(), creditor.runs());
    EXPECT_EQ(debtor.tables(), creditor.tables());
  }
  // One that is too long for itself is told each time.
  const NamedCells longest = scattered(random, 2 * CellTables::kMaxRuns);
  for (int i = 0; i < 2; ++i) {
    AttendBody body = naming(longest);
    debtor.shorten(body);
    EXPECT_EQ(body.known, 0u);
    ASSERT_TRUE(creditor.complete(body));
    EXPECT_EQ(count_cells(body.cells), longest.size());
  }
}

// Histories that grow, fork, are cut and replaced, over a link that loses queries. How many came with other
// cells than meant.
int wrong_lists(uint64_t seed, int& told, int& whole) {
  Random random(seed);
  CellTables debtor, creditor;
  std::vector<NamedCells> histories(12);
  int wrong = 0;
  for (int round = 0; round < 4000; ++round) {
    NamedCells& history = histories[random.below(histories.size())];
    switch (random.below(8)) {
      case 0:  // a fork of another one
        history = histories[random.below(histories.size())];
        history.resize(random.below(history.size() + 1));
        [[fallthrough]];
      case 1:
      case 2: {
        const NamedCells more = scattered(random, 1 + random.below(20));
        history.insert(history.end(), more.begin(), more.end());
        break;
      }
      case 3:
        if (history.size() > 300) history.clear();
        break;
      default:
        break;
    }
    if (history.empty()) continue;
    AttendBody body = naming(history);
    debtor.shorten(body);
    whole += body.known == 0;
    if (random.below(10) == 0) continue;  // lost
    const uint64_t table = body.table;
    if (!creditor.complete(body)) {
      ++told;
      debtor.forget(table);
    } else {
      wrong += named_by(body) != history;
    }
  }
  return wrong;
}

TEST(CellTables, NothingThatIsLostMakesAWrongList) {
  int told = 0, whole = 0;
  for (uint64_t seed = 0; seed < 20; ++seed) EXPECT_EQ(wrong_lists(seed, told, whole), 0) << seed;
  EXPECT_GT(told, 100);
  EXPECT_LT(whole, 20 * 2000);
}

#if defined(KVASIR_MUTANTS)
TEST(CellTablesMutants, ANumberThatIsUsedAgainIsSeen) {
  ScopedMutant active(Mutant::kCellTableReused);
  int told = 0, whole = 0, wrong = 0;
  for (uint64_t seed = 0; seed < 3; ++seed) wrong += wrong_lists(seed, told, whole);
  EXPECT_GT(wrong, 0);
}
#endif

// ---------------------------------------------------------------- in queries

struct Told {
  uint64_t extra;  // bytes of a query but for itself
  bool right;
};

Told ask(MemoryWorld& world, LeafRun run, uint32_t layer) {
  const auto q = world.random_query(1);
  auto partials = world.room(run, 1);
  Outcome outcome;
  const uint64_t before = world.borrowed->stats().query_extra_bytes;
  world.attend(run, layer, q, 1, partials, outcome);
  world.run();
  const auto home = world.expected(run, layer, q, 1);
  const bool right = outcome.status.ok() && std::memcmp(partials.data(), home.data(), home.size() * 4) == 0;
  return {world.borrowed->stats().query_extra_bytes - before, right};
}

TEST(CellTablesInQueries, BytesOfAQueryDoNotGrowWithScatteredCells) {
  for (const uint32_t leaves : {8u, 32u, 128u}) {
    MemoryWorld world(memory_shape(ops::KvType::kBf16, 1, 2, 16, 64, 2), 1, leaves, leaves);
    world.place([](uint32_t) { return 0; });
    const Told first = ask(world, {0, leaves - 1}, 0);
    const Told other_layer = ask(world, {0, leaves - 1}, 1);
    const Told longer = ask(world, {0, leaves}, 0);
    EXPECT_TRUE(first.right && other_layer.right && longer.right) << leaves;
    EXPECT_GT(first.extra, 4 * 4 * leaves - 16);
    EXPECT_LE(other_layer.extra, 100u) << leaves;
    EXPECT_LE(longer.extra, 160u) << leaves;
    if (std::getenv("KVASIR_PRINT") != nullptr) {
      fmt::print("leaves={} first={} later={} a leaf more={}\n", leaves, first.extra, other_layer.extra,
                 longer.extra);
    }
  }
}

TEST(CellTablesInQueries, ACreditorThatForgotIsToldAgain) {
  MemoryWorld world(memory_shape(ops::KvType::kBf16, 1, 2, 16, 64, 2), 1, 16, 5);
  world.place([](uint32_t) { return 0; });
  EXPECT_TRUE(ask(world, {0, 15}, 0).right);
  world.creditors[0].memory->lost(world.self);
  EXPECT_TRUE(ask(world, {0, 16}, 1).right);
  EXPECT_EQ(world.borrowed->stats().retold, 1u);
  EXPECT_EQ(world.creditors[0].memory->stats().no_table, 1u);
  EXPECT_LE(ask(world, {0, 16}, 0).extra, 100u);
  EXPECT_EQ(world.borrowed->stats().retold, 1u);
}

}  // namespace
}  // namespace kvasir::test
