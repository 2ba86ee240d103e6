// One instance's place in a cluster: borrowing, lending, dying, coming back, leaving.
#include "cluster/node/cluster_node.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cluster/node/node_rig.h"
#include "support/take.h"

namespace kvasir::cluster::test {
namespace {

std::vector<std::byte> pattern(Cluster& cluster, uint8_t value) {
  return std::vector<std::byte>(cluster.cell_bytes(), std::byte{value});
}

// Has it borrow so many cells and waits for them. Where it is refused it asks again, as engines do.
void borrow(Cluster& cluster, Instance& instance, uint32_t cells) {
  const size_t wanted = instance.held.size() + cells;
  instance.refused = 0;
  instance.next.borrow = cells;
  ASSERT_TRUE(cluster.until([&] {
    instance.next.borrow += std::exchange(instance.refused, 0);
    return instance.held.size() == wanted;
  }));
  instance.refused = 0;
}

class TwoInstances : public testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(cluster.has_leader()); }

  Cluster cluster;
  Instance& a = cluster.start("a");
  Instance& b = cluster.start("b");
};

TEST_F(TwoInstances, WhatIsBorrowedHoldsBytesAndGoesBack) {
  borrow(cluster, a, 20);
  EXPECT_EQ(cluster.disagreement(), "");
  EXPECT_EQ(b.frames->free_cells(), 20u);
  uint8_t value = 1;
  for (uint32_t cell : a.held) {
    EXPECT_TRUE(write_cell(cluster, a, cell, pattern(cluster, value++)).ok());
  }
  value = 1;
  for (uint32_t cell : a.held) {
    EXPECT_EQ(kvasir::test::take(read_cell(cluster, a, cell)), pattern(cluster, value++));
  }
  a.next.borrow = 1;
  EXPECT_TRUE(cluster.until([&] { return a.refused == 1; })) << "b lends half of what it has";
  const uint32_t one = *a.held.begin();
  a.give_back_all();
  EXPECT_TRUE(cluster.until([&] { return b.frames->free_cells() == Cluster::kCells; }));
  EXPECT_FALSE(read_cell(cluster, a, one).ok()) << "it is not borrowed any more";
  EXPECT_EQ(cluster.disagreement(), "");
}

// Has it ask for a prefix of three blocks, of which b has two; the cells that it is shown.
std::vector<uint32_t> find_prefix(Cluster& cluster, Instance& instance, uint64_t id) {
  instance.found.clear();
  instance.next.prefixes_wanted = {
      {id, {{1, 1}, {2, 2}, {3, 3}}, {1, 1}, cluster.clock.now() + kNanosPerSecond}};
  EXPECT_TRUE(cluster.until([&] { return !instance.found.empty(); }));
  EXPECT_EQ(instance.found[0].id, id);
  return instance.found[0].cells;
}

TEST_F(TwoInstances, APrefixOfAPeerIsReadAndNotWritten) {
  std::fill_n(b.memory.begin(), cluster.cell_bytes(), std::byte{5});
  std::fill_n(b.memory.begin() + static_cast<ptrdiff_t>(cluster.cell_bytes()), cluster.cell_bytes(),
              std::byte{6});
  b.frames->has = 2;
  const std::vector<uint32_t> cells = find_prefix(cluster, a, 1);
  ASSERT_EQ(cells, (std::vector<uint32_t>{4 * Cluster::kCells, 4 * Cluster::kCells + 1}));
  EXPECT_EQ(a.found[0].peer, "b");
  EXPECT_EQ(kvasir::test::take(read_cell(cluster, a, cells[0])), pattern(cluster, 5));
  EXPECT_EQ(kvasir::test::take(read_cell(cluster, a, cells[1])), pattern(cluster, 6));
  EXPECT_FALSE(write_cell(cluster, a, cells[0], pattern(cluster, 7)).ok());
  EXPECT_EQ(b.memory[0], std::byte{5});
  // It is no loan: nothing is borrowed, and b may borrow of a meanwhile.
  EXPECT_EQ(a.held.size(), 0u);
  borrow(cluster, b, 3);
  a.next.prefixes_done = {1};
  EXPECT_TRUE(cluster.until([&] { return b.frames->free_cells() == Cluster::kCells; }));
  EXPECT_FALSE(read_cell(cluster, a, cells[0]).ok());
  // Numbers of cells are used again.
  EXPECT_EQ(find_prefix(cluster, a, 2), cells);
  a.next.prefixes_done = {2};
  EXPECT_TRUE(cluster.until([&] { return b.frames->free_cells() == Cluster::kCells; }));
}

TEST_F(TwoInstances, APrefixThatIsKeptIsALoanThatIsReadAndNotWritten) {
  std::fill_n(b.memory.begin(), cluster.cell_bytes(), std::byte{5});
  std::fill_n(b.memory.begin() + static_cast<ptrdiff_t>(cluster.cell_bytes()), cluster.cell_bytes(),
              std::byte{6});
  b.frames->has = 2;
  const std::vector<uint32_t> shown = find_prefix(cluster, a, 1);
  ASSERT_EQ(shown.size(), 2u);
  a.next.prefixes_kept = {{1, 2, cluster.clock.now()}};
  ASSERT_TRUE(cluster.until([&] { return !a.kept.empty(); }));
  const std::vector<uint32_t> cells = a.kept[0].cells;
  ASSERT_EQ(cells, (std::vector<uint32_t>{3 * Cluster::kCells, 3 * Cluster::kCells + 1}));
  EXPECT_FALSE(read_cell(cluster, a, shown[0]).ok()) << "it is shown no longer";
  EXPECT_EQ(b.frames->kept.size(), 1u) << "b's engine knows that it is lent";
  cluster.run_for(6 * kNanosPerSecond);
  EXPECT_EQ(cluster.disagreement(), "");
  EXPECT_EQ(kvasir::test::take(read_cell(cluster, a, cells[0])), pattern(cluster, 5));
  EXPECT_EQ(kvasir::test::take(read_cell(cluster, a, cells[1])), pattern(cluster, 6));
  EXPECT_FALSE(write_cell(cluster, a, cells[0], pattern(cluster, 7)).ok());
  EXPECT_EQ(b.memory[0], std::byte{5});
  a.give_back_all();
  EXPECT_TRUE(cluster.until([&] { return b.frames->free_cells() == Cluster::kCells; }));
  EXPECT_TRUE(b.frames->kept.empty());
  EXPECT_FALSE(read_cell(cluster, a, cells[0]).ok());
}

// a has numbers for three cells, and wants two prefixes of two kept in one turn.
TEST(ClusterNode, ThatForWhichThereIsNoRoomStaysShown) {
  Cluster cluster;
  Instance& a = cluster.start("a", "n", 3 * Cluster::kCells, 3);
  Instance& b = cluster.start("b");
  ASSERT_TRUE(cluster.has_leader());
  std::fill_n(b.memory.begin(), 4 * cluster.cell_bytes(), std::byte{5});
  b.frames->has = 2;
  ASSERT_EQ(find_prefix(cluster, a, 1).size(), 2u);
  const std::vector<uint32_t> second = find_prefix(cluster, a, 2);
  ASSERT_EQ(second.size(), 2u);
  a.next.prefixes_kept = {{1, 2, cluster.clock.now()}, {2, 2, cluster.clock.now()}};
  ASSERT_TRUE(cluster.until([&] { return a.kept.size() == 2; }));
  EXPECT_EQ(a.kept[0].id, 2u);
  EXPECT_TRUE(a.kept[0].cells.empty());
  EXPECT_EQ(a.kept[1].id, 1u);
  EXPECT_EQ(a.kept[1].cells.size(), 2u);
  EXPECT_EQ(b.frames->kept.size(), 1u);
  EXPECT_EQ(kvasir::test::take(read_cell(cluster, a, second[1])), pattern(cluster, 5));
  // There is room again when the first has gone back.
  a.give_back_all();
  cluster.step();
  ASSERT_EQ(find_prefix(cluster, a, 3).size(), 2u);
  a.next.prefixes_kept = {{3, 1, cluster.clock.now()}};
  ASSERT_TRUE(cluster.until([&] { return a.kept.size() == 3; }));
  EXPECT_EQ(a.kept[2].cells.size(), 1u);
  EXPECT_EQ(b.frames->kept.rbegin()->second, 1u) << "of two blocks b's engine keeps one";
}

TEST_F(TwoInstances, APeerThatDiesTakesWhatItKeptWithIt) {
  b.frames->has = 2;
  ASSERT_EQ(find_prefix(cluster, a, 1).size(), 2u);
  a.next.prefixes_kept = {{1, 2, cluster.clock.now()}};
  ASSERT_TRUE(cluster.until([&] { return !a.kept.empty(); }));
  ASSERT_EQ(a.kept[0].cells.size(), 2u);
  cluster.kill("b");
  EXPECT_TRUE(cluster.until([&] { return a.lost.size() == 2; }));
  a.give_back_all();
  cluster.run_for(100 * kNanosPerMilli);
}

TEST_F(TwoInstances, APeerThatDiesTakesItsPrefixWithIt) {
  b.frames->has = 2;
  const std::vector<uint32_t> cells = find_prefix(cluster, a, 1);
  ASSERT_EQ(cells.size(), 2u);
  cluster.kill("b");
  ASSERT_TRUE(cluster.until([&] { return a.node->figures().peers == 0; }));
  EXPECT_FALSE(read_cell(cluster, a, cells[0]).ok());
  a.next.prefixes_done = {1};
  EXPECT_TRUE(find_prefix(cluster, a, 2).empty()) << "there is no peer to ask";
}

TEST_F(TwoInstances, WhatAReaderThatDiedWasShownIsHidden) {
  b.frames->has = 2;
  ASSERT_EQ(find_prefix(cluster, a, 1).size(), 2u);
  EXPECT_EQ(b.frames->free_cells(), Cluster::kCells - 2);
  cluster.kill("a");
  EXPECT_TRUE(cluster.until([&] { return b.frames->free_cells() == Cluster::kCells; }));
}

TEST_F(TwoInstances, AnInstanceThatLeavesShowsNothing) {
  b.frames->has = 2;
  ASSERT_EQ(find_prefix(cluster, a, 1).size(), 2u);
  b.node->begin_to_leave();
  EXPECT_TRUE(cluster.until([&] { return b.node->gone(); }));
  EXPECT_EQ(b.frames->free_cells(), Cluster::kCells);
  EXPECT_TRUE(find_prefix(cluster, a, 2).empty());
}

// One whose engine is in a long step answers when that has ended, if the reader still waits.
TEST_F(TwoInstances, ABusyInstanceAnswersLaterOrNot) {
  b.frames->has = 2;
  b.busy = true;
  a.next.prefixes_wanted = {{1, {{1, 1}}, {1, 1}, cluster.clock.now() + 100 * kNanosPerMilli}};
  ASSERT_TRUE(cluster.until([&] { return !a.found.empty(); }));
  EXPECT_TRUE(a.found[0].cells.empty()) << "the time is over";
  b.busy = false;
  cluster.run_for(100 * kNanosPerMilli);
  EXPECT_EQ(b.frames->free_cells(), Cluster::kCells);
}

TEST_F(TwoInstances, ALostLeaseEndsAllShowing) {
  b.frames->has = 2;
  const std::vector<uint32_t> cells = find_prefix(cluster, a, 1);
  ASSERT_EQ(cells.size(), 2u);
  a.node->start_anew();
  EXPECT_FALSE(read_cell(cluster, a, cells[0]).ok());
  EXPECT_TRUE(cluster.until([&] { return b.frames->free_cells() == Cluster::kCells; }));
  ASSERT_TRUE(cluster.has_leader());
  EXPECT_EQ(find_prefix(cluster, a, 2).size(), 2u);
}

// The rows of two leaves, which take eight cells.
PromptQuestion two_leaves(Cluster& cluster, uint64_t id) {
  return {id, std::vector<Token>(512, 1), 8, cluster.clock.now(), cluster.clock.now() + 20 * kNanosPerSecond};
}

// It has computed the one job that it has got.
void compute(Cluster& cluster, Instance& instance) {
  ASSERT_TRUE(cluster.until([&] { return !instance.jobs.empty(); }));
  instance.next.prompts_computed = {{instance.jobs[0].id, std::vector<PrefixHash>(8)}};
  instance.jobs.clear();
}

TEST_F(TwoInstances, RowsOfAPromptComeWithTheirMemory) {
  a.next.prompts_wanted = {two_leaves(cluster, 1)};
  compute(cluster, b);
  ASSERT_TRUE(cluster.until([&] { return !a.computed.empty(); }));
  EXPECT_EQ(a.computed[0].cells.size(), 8u);
  EXPECT_EQ(b.frames->free_cells(), Cluster::kCells - 8);
  a.give_back_all();
  EXPECT_TRUE(cluster.until([&] { return b.frames->free_cells() == Cluster::kCells; }));
  EXPECT_EQ(cluster.disagreement(), "");
}

// It can borrow 16 cells in all: what a question may bring is not borrowed meanwhile, whichever comes first.
TEST(ClusterNode, WhatAQuestionMayBringIsNotBorrowed) {
  Cluster cluster;
  Instance& a = cluster.start("a", "n", 16);
  Instance& b = cluster.start("b");
  ASSERT_TRUE(cluster.has_leader());
  a.next.prompts_wanted = {two_leaves(cluster, 1)};
  cluster.step();
  a.next.borrow = 16;
  // Where it is refused it asks again, as engines do: now and then, until there is no room for it.
  ASSERT_TRUE(cluster.until([&] {
    if (a.held.empty()) a.next.borrow += std::exchange(a.refused, 0);
    return a.held.size() == 8 && a.refused == 8;
  })) << "the other half is kept";
  compute(cluster, b);
  ASSERT_TRUE(cluster.until([&] { return !a.computed.empty(); }));
  EXPECT_EQ(a.computed[0].cells.size(), 8u);
  EXPECT_EQ(a.held.size(), 16u);
  EXPECT_EQ(cluster.disagreement(), "");
  // Now there is room for no other one, nor while what would leave no room is asked for.
  a.computed.clear();
  a.next.prompts_wanted = {two_leaves(cluster, 2)};
  cluster.step();
  ASSERT_EQ(a.computed.size(), 1u);
  EXPECT_TRUE(a.computed[0].cells.empty());
  a.give_back_all();
  a.next.borrow = 9;
  cluster.step();
  a.computed.clear();
  a.next.prompts_wanted = {two_leaves(cluster, 3)};
  cluster.step();
  ASSERT_EQ(a.computed.size(), 1u);
  EXPECT_TRUE(a.computed[0].cells.empty());
}

TEST(ClusterNode, AWishGoesToSeveralCreditors) {
  Cluster cluster;
  Instance& a = cluster.start("a");
  cluster.start("b");
  cluster.start("c");
  cluster.start("d");
  ASSERT_TRUE(cluster.has_leader());
  a.next.borrow = 70;
  ASSERT_TRUE(cluster.until([&] {
    if (a.held.size() < 60) a.next.borrow += std::exchange(a.refused, 0);
    return a.held.size() == 60 && a.refused == 10;
  })) << a.held.size();
  EXPECT_EQ(cluster.disagreement(), "");
}

TEST_F(TwoInstances, WhatTheCreditorNeedsComesBack) {
  borrow(cluster, a, 16);
  b.next.recall = 10;
  ASSERT_TRUE(cluster.until([&] { return a.recalled.size() >= 10; }));
  const std::set<uint32_t> recalled = a.recalled;
  for (uint32_t cell : recalled) a.give_back(cell);
  EXPECT_TRUE(cluster.until([&] { return b.frames->free_cells() >= 34; }));
  EXPECT_EQ(cluster.disagreement(), "");
  b.next.recall = 6;
  EXPECT_TRUE(cluster.until([&] { return a.held.empty(); })) << "cells that are not given back are lost";
  EXPECT_TRUE(cluster.until([&] { return b.frames->free_cells() == Cluster::kCells; }));
  a.give_back_all();
  cluster.run_for(kNanosPerSecond);
  EXPECT_EQ(cluster.disagreement(), "");
}

TEST(ClusterNode, ADeadCreditorIsALoss) {
  for (bool silently : {false, true}) {
    Cluster cluster;
    Instance& a = cluster.start("a");
    cluster.start("b");
    ASSERT_TRUE(cluster.has_leader());
    borrow(cluster, a, 10);
    cluster.kill("b", silently);
    ASSERT_TRUE(cluster.until([&] { return a.held.empty() && a.lost.size() == 10; }));
    EXPECT_FALSE(read_cell(cluster, a, *a.lost.begin()).ok());
    a.give_back_all();
    cluster.run_for(2 * Cluster::kTtl);  // the name is taken as long as the lease
    cluster.start("b");
    ASSERT_TRUE(cluster.has_leader());
    borrow(cluster, a, 10);
    EXPECT_TRUE(write_cell(cluster, a, *a.held.begin(), pattern(cluster, 7)).ok());
    EXPECT_EQ(cluster.disagreement(), "");
  }
}

TEST_F(TwoInstances, ADeadDebtorGivesItAllBack) {
  borrow(cluster, a, 10);
  cluster.kill("a");
  EXPECT_TRUE(cluster.until([&] { return b.frames->free_cells() == Cluster::kCells; }));
}

TEST(ClusterNode, AfterALostLeaseItBeginsAnew) {
  Cluster cluster;
  Instance& a = cluster.start("a");
  Instance& b = cluster.start("b");
  Instance& c = cluster.start("c");
  ASSERT_TRUE(cluster.has_leader());
  borrow(cluster, a, 24);
  borrow(cluster, b, 8);
  const uint64_t before = b.node->status().self.epoch;
  cluster.directory.partition("b");
  cluster.run_for(2 * Cluster::kTtl);
  cluster.directory.heal("b");
  ASSERT_TRUE(cluster.until([&] {
    const uint64_t now = b.node->status().self.epoch;
    return now != 0 && now != before;
  }));
  EXPECT_TRUE(b.held.empty()) << "what it had borrowed went with its former life";
  EXPECT_EQ(b.lost.size(), 8u);
  b.give_back_all();
  a.give_back_all();
  ASSERT_TRUE(cluster.until([&] { return b.frames->free_cells() + c.frames->free_cells() == 80; }));
  cluster.run_for(kNanosPerSecond);
  EXPECT_EQ(cluster.disagreement(), "");
  borrow(cluster, b, 8);
  borrow(cluster, a, 16);
  EXPECT_TRUE(write_cell(cluster, b, *b.held.begin(), pattern(cluster, 1)).ok());
  EXPECT_EQ(cluster.disagreement(), "");
}

// An engine whose memory ran out has an empty cache: it neither holds what it had borrowed nor knows what it
// lent.
TEST_F(TwoInstances, AnEngineThatStartsAnewBeginsANewLife) {
  borrow(cluster, a, 10);
  for (Instance* anew : {&a, &b}) {
    EXPECT_TRUE(anew->node->is_member());
    const uint64_t epoch = anew->node->status().self.epoch;
    anew->node->start_anew();  // and the control thread may have joined again by now
    anew->held.clear();
    anew->recalled.clear();
    anew->lost.clear();
    anew->frames = std::make_unique<Frames>(Cluster::kCells, cluster.cell_bytes());
    ASSERT_TRUE(cluster.until([&] { return anew->node->status().self.epoch > epoch && a.held.empty(); }));
    EXPECT_TRUE(anew->node->is_member());
    a.give_back_all();
    ASSERT_TRUE(cluster.until([&] { return b.frames->free_cells() == Cluster::kCells; }));
    ASSERT_TRUE(cluster.has_leader());
    borrow(cluster, a, 10);
    EXPECT_TRUE(write_cell(cluster, a, *a.held.begin(), pattern(cluster, 7)).ok());
    EXPECT_EQ(cluster.disagreement(), "");
  }
}

TEST_F(TwoInstances, WithoutItsDirectoryTheOldContractsGoOn) {
  borrow(cluster, a, 4);
  cluster.directory.go_down();
  cluster.run_for(3 * Cluster::kTtl);
  EXPECT_GT(a.node->status().directory_down_s, 0);
  EXPECT_TRUE(write_cell(cluster, a, *a.held.begin(), pattern(cluster, 3)).ok());
  a.next.borrow = 2;
  EXPECT_TRUE(cluster.until([&] { return a.refused == 2; })) << "no new contracts meanwhile";
  cluster.directory.come_up();
  ASSERT_TRUE(cluster.until([&] { return a.node->status().directory_down_s == 0; }));
  borrow(cluster, a, 2);
  EXPECT_EQ(a.held.size(), 6u);
  EXPECT_EQ(cluster.disagreement(), "");
}

TEST(ClusterNode, ALeavingInstanceReturnsAndCallsInFirst) {
  Cluster cluster;
  Instance& a = cluster.start("a");
  Instance& b = cluster.start("b");
  cluster.start("c");
  ASSERT_TRUE(cluster.has_leader());
  borrow(cluster, a, 24);
  borrow(cluster, b, 4);
  EXPECT_FALSE(b.node->gone());
  b.node->begin_to_leave();
  ASSERT_TRUE(cluster.until([&] { return b.recalled.size() == 4 && !a.recalled.empty(); }));
  b.give_back_all();
  const std::set<uint32_t> recalled = a.recalled;
  for (uint32_t cell : recalled) a.give_back(cell);
  ASSERT_TRUE(cluster.until([&] { return b.node->gone(); }));
  EXPECT_EQ(b.frames->free_cells(), Cluster::kCells);
  EXPECT_TRUE(a.lost.empty()) << "nothing was lost";
  b.next.borrow = 1;
  EXPECT_TRUE(cluster.until([&] { return b.refused == 1; }));
  EXPECT_EQ(cluster.disagreement(), "");
}

TEST(ClusterNode, ALongStepIsNoDeath) {
  Cluster cluster;
  Instance& a = cluster.start("a");
  Instance& b = cluster.start("b");
  ASSERT_TRUE(cluster.has_leader());
  borrow(cluster, a, 10);
  b.busy = true;
  // Longer than until a silent instance counts as dead.
  cluster.run_for(2 * ProtocolSettings().silence);
  EXPECT_EQ(a.held.size(), 10u);
  EXPECT_TRUE(a.lost.empty());
  EXPECT_TRUE(write_cell(cluster, a, *a.held.begin(), pattern(cluster, 9)).ok());
  a.next.borrow = 1;
  EXPECT_TRUE(cluster.until([&] { return a.refused == 1; })) << "what is free there is not known now";
  a.give_back_all();
  cluster.run_for(kNanosPerSecond);
  EXPECT_EQ(b.frames->free_cells(), Cluster::kCells - 10) << "frames go back in a turn";
  b.busy = false;
  ASSERT_TRUE(cluster.until([&] { return b.frames->free_cells() == Cluster::kCells; }));
  EXPECT_EQ(cluster.disagreement(), "");
}

// a leads, and goes by the heartbeats of b, which say that it can lend nothing now.
TEST(ClusterNode, ALenderInALongStepHoldsUpNoRequest) {
  Cluster cluster;
  Instance& a = cluster.start("a");
  Instance& b = cluster.start("b");
  Instance& c = cluster.start("c");
  ASSERT_TRUE(cluster.has_leader());
  const auto room_of_b = [&] {
    for (const LedgerLine& line : a.node->status().ledger) {
      if (line.id.instance == "b") return line.figures.room;
    }
    return UINT32_MAX;
  };
  ASSERT_TRUE(cluster.until([&] { return room_of_b() == Cluster::kCells / 2; }));
  b.busy = true;
  // At first the leader does not know it: b refuses, and c is asked.
  borrow(cluster, a, Cluster::kCells / 2);
  EXPECT_EQ(c.frames->free_cells(), Cluster::kCells / 2);
  ASSERT_TRUE(cluster.until([&] { return room_of_b() == 0; }));
  a.next.borrow = 5;
  cluster.run_for(kNanosPerSecond / 2);
  EXPECT_EQ(a.held.size(), Cluster::kCells / 2);
  b.busy = false;
  a.next.borrow = 5;
  ASSERT_TRUE(cluster.until([&] { return a.held.size() == Cluster::kCells / 2 + 5; }));
  EXPECT_EQ(room_of_b() > 0 || cluster.until([&] { return room_of_b() > 0; }), true);
  a.give_back_all();
  ASSERT_TRUE(cluster.until([&] { return b.frames->free_cells() == Cluster::kCells; }));
}

TEST(ClusterNode, AMemberWithAnotherNumericsIdIsIgnored) {
  Cluster cluster;
  Instance& a = cluster.start("a");
  cluster.start("b", "other numerics");
  cluster.run_for(kNanosPerSecond);
  a.next.borrow = 1;
  ASSERT_TRUE(cluster.until([&] { return a.refused == 1; }));
  const NodeStatus s = a.node->status();
  EXPECT_TRUE(s.links.empty());
  ASSERT_TRUE(s.not_compatible.contains("b"));
  EXPECT_NE(s.not_compatible.at("b").find("numerics id"), std::string::npos);
}

// Each lends 20 cells at the most, and "d" is of another model.
TEST(ClusterNode, WhatAllMembersLendIsCountedAsTheyComeAndGo) {
  Cluster cluster;
  Instance& a = cluster.start("a");
  ASSERT_TRUE(cluster.until([&] { return a.lendable == 0; })) << "alone";
  cluster.start("b");
  ASSERT_TRUE(cluster.until([&] { return a.lendable == 20; }));
  cluster.start("d", "other numerics");
  cluster.start("c");
  ASSERT_TRUE(cluster.until([&] { return a.lendable == 40; }));
  cluster.kill("b");
  ASSERT_TRUE(cluster.until([&] { return a.lendable == 20; }));
  a.node->start_anew();
  cluster.run_for(kNanosPerSecond);
  EXPECT_EQ(a.lendable, 20u) << "in its next life, too";
}

TEST(ClusterNode, ItsStatusSaysWhoseMemoryItHas) {
  Cluster cluster;
  Instance& a = cluster.start("a");
  cluster.start("b");
  ASSERT_TRUE(cluster.has_leader());
  borrow(cluster, a, 5);
  const auto json = nlohmann::json::parse(to_json(a.node->status()));
  EXPECT_EQ(json.at("instance"), "a");
  EXPECT_EQ(json.at("links").at(0).at("peer"), "b");
  EXPECT_EQ(json.at("links").at(0).at("borrowed_cells"), 5);
  // Its text is made anew after a quarter of a second.
  const std::string text = a.node->status_text();
  EXPECT_EQ(text, to_json(a.node->status()));
  a.give_back_all();
  cluster.run_for(ClusterNode::kStatusLives - 10 * kNanosPerMilli);
  EXPECT_NE(text, to_json(a.node->status()));
  EXPECT_EQ(text, a.node->status_text());
  cluster.run_for(10 * kNanosPerMilli);
  EXPECT_NE(text, a.node->status_text());
}

}  // namespace
}  // namespace kvasir::cluster::test
