// Random faults over whole instances: what is read is what was written, and in the end all agree.
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

#include "base/random.h"
#include "cluster/node/node_rig.h"
#include "support/levels.h"

namespace kvasir::cluster::test {
namespace {

constexpr int kInstances = 4;

std::string name_of_instance(size_t i) {
  return std::string(1, static_cast<char>('a' + i));
}

struct Stress {
  explicit Stress(uint64_t seed) : random(seed) {
    for (size_t i = 0; i < kInstances; ++i) cluster.start(name_of_instance(i));
  }

  size_t under(uint64_t n) { return random.below(n); }
  Instance& any() { return cluster.at(name_of_instance(under(kInstances))); }

  void write(Instance& i) {
    if (i.held.empty()) return;
    const uint32_t cell = *std::next(i.held.begin(), static_cast<std::ptrdiff_t>(under(i.held.size())));
    const std::vector<std::byte> bytes(cluster.cell_bytes(), static_cast<std::byte>(under(256)));
    written[i.name].erase(cell);
    if (write_cell(cluster, i, cell, bytes).ok() && i.held.contains(cell)) written[i.name][cell] = bytes;
    forget(i);
  }
  // What went while others were waited for.
  void forget(Instance& i) {
    std::erase_if(written[i.name], [&](const auto& w) { return !i.held.contains(w.first); });
  }
  void read(Instance& i) {
    forget(i);
    if (written[i.name].empty()) return;
    const auto [cell, bytes] = *written[i.name].begin();
    const auto there = read_cell(cluster, i, cell);
    if (there.ok()) {
      EXPECT_EQ(*there, bytes) << i.name << " cell " << cell;
    }
  }
  void give_back(Instance& i, bool all) {
    for (uint32_t cell : std::set<uint32_t>(i.recalled)) i.give_back(cell);
    for (uint32_t cell : std::set<uint32_t>(i.lost)) i.give_back(cell);
    if (all) i.give_back_all();
    forget(i);
  }
  void fault() {
    const std::string name = name_of_instance(under(kInstances));
    const std::string other = name_of_instance(under(kInstances));
    switch (under(5)) {
      case 0:
        cluster.kill(name, under(2) == 0);
        written[name].clear();
        cluster.run_for(3 * Cluster::kTtl);
        cluster.start(name);
        return;
      case 1:
        cluster.directory.partition(name);
        cluster.run_for(static_cast<Nanos>(1 + under(10)) * Cluster::kTtl / 4);
        cluster.directory.heal(name);
        return;
      case 2:
        cluster.directory.go_down();
        cluster.run_for(static_cast<Nanos>(1 + under(10)) * Cluster::kTtl / 4);
        cluster.directory.come_up();
        return;
      case 3:
        if (name == other) return;
        cluster.network.cut(name, other, true);
        cluster.run_for(static_cast<Nanos>(1 + under(10)) * Cluster::kTtl / 4);
        cluster.network.cut(name, other, false);
        return;
      default:
        if (name != other) cluster.network.drop(name, other, 1 + static_cast<int>(under(5)));
        return;
    }
  }
  void act() {
    Instance& i = any();
    switch (under(12)) {
      case 0:
        return fault();
      case 1:
      case 2:
        i.next.borrow = 1 + static_cast<uint32_t>(under(20));
        break;
      case 3:
        i.next.recall = 1 + static_cast<uint32_t>(under(10));
        break;
      case 4:
        give_back(i, under(4) == 0);
        break;
      case 5:
      case 6:
      case 7:
        write(i);
        break;
      default:
        read(i);
    }
    cluster.step();
  }

  Cluster cluster;
  Random random;
  std::map<std::string, std::map<uint32_t, std::vector<std::byte>>> written;
};

void stress(uint64_t seed, int actions) {
  Stress s(seed);
  ASSERT_TRUE(s.cluster.has_leader());
  for (int n = 0; n < actions && !::testing::Test::HasFailure(); ++n) s.act();
  std::string why;
  const bool agreed = s.cluster.until([&] {
    for (size_t i = 0; i < kInstances; ++i) s.give_back(s.cluster.at(name_of_instance(i)), true);
    s.cluster.run_for(kNanosPerSecond);
    why = s.cluster.disagreement();
    if (!why.empty()) return false;
    for (size_t i = 0; i < kInstances; ++i) {
      if (s.cluster.at(name_of_instance(i)).frames->free_cells() != Cluster::kCells) return false;
    }
    return true;
  });
  EXPECT_TRUE(agreed) << "seed " << seed << ": " << why;
}

TEST(NodeStress, WhatIsReadWasWrittenAndAllAgreeInTheEnd) {
  const bool is_long = kvasir::test::at_long_level();
  for (uint64_t seed = 1; seed <= (is_long ? 100 : 4); ++seed) stress(seed, is_long ? 120 : 60);
}

}  // namespace
}  // namespace kvasir::cluster::test
