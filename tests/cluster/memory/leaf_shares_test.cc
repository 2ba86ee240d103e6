// How the leaves of a query are cut by where they lie.
#include "cluster/memory/leaf_shares.h"

#include <gtest/gtest.h>

#include "base/random.h"
#include "ops/attention_tree.h"
#include "ops/cpu/isa.h"

namespace kvasir {
namespace {

TEST(LeafShares, SubtreesAreThoseOfTheTree) {
  const ops::Kernels& kernels = ops::kernels_for(ops::IsaClass::kPortable);
  const std::vector<float> partial(18, 1.0f);  // one head of 16
  for (uint32_t first = 0; first < 40; ++first) {
    for (uint32_t end = first + 1; end < 80; ++end) {
      std::vector<float> storage(static_cast<size_t>(ops::AttentionTree::storage_floats(end - first, 1, 16)));
      ops::AttentionTree tree(kernels, 1, 16, storage.data(), end - first, first);
      for (uint32_t leaf = first; leaf < end; ++leaf) tree.push(partial.data());
      int i = 0;
      for_each_subtree({first, end}, [&](int level, uint32_t leaf) {
        ASSERT_LT(i, tree.peak_count());
        EXPECT_EQ(tree.peak(i).level, level);
        EXPECT_EQ(tree.peak(i).first_leaf, leaf);
        ++i;
      });
      EXPECT_EQ(i, tree.peak_count());
      EXPECT_EQ(subtrees_of({first, end}), static_cast<uint32_t>(i));
    }
  }
  EXPECT_EQ(subtrees_of({0, UINT32_MAX}), 32u);
  EXPECT_EQ(subtrees_of({UINT32_MAX - 1, UINT32_MAX}), 1u);
}

// The example of the header.
TEST(LeafShares, OfTwoCreditorsEachGetsItsOwn) {
  std::vector<CellPlace> places;
  for (uint32_t leaf = 4; leaf < 11; ++leaf) {
    const bool b = leaf == 6 || leaf == 7;
    for (uint32_t block = 0; block < 4; ++block)
      places.push_back({b ? 9u : 3u, 4 * leaf + block, b ? 70u : 60u});
  }
  const auto shares = share_leaves({4, 11}, 4, places);
  ASSERT_TRUE(shares.ok());
  ASSERT_EQ(shares->shares.size(), 2u);
  const LeafShare& a = shares->shares[0];
  EXPECT_EQ(a.creditor, 3u);
  EXPECT_EQ(a.runs, (std::vector<LeafRun>{{4, 6}, {8, 11}}));
  EXPECT_EQ(a.cells, (std::vector<CellRun>{{60, 16, 1, 8}, {60, 32, 1, 12}}));
  EXPECT_EQ(a.leaves(), 5u);
  EXPECT_EQ(a.peaks, 3u);
  const LeafShare& b = shares->shares[1];
  EXPECT_EQ(b.runs, (std::vector<LeafRun>{{6, 8}}));
  EXPECT_EQ(b.peaks, 1u);
  ASSERT_EQ(shares->peaks.size(), 4u);
  const uint32_t of_share[] = {0, 1, 0, 0}, record[] = {0, 0, 1, 2};
  const int level[] = {1, 1, 1, 0};
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(shares->peaks[i].share, of_share[i]);
    EXPECT_EQ(shares->peaks[i].record, record[i]);
    EXPECT_EQ(shares->peaks[i].level, level[i]);
  }
}

// What lies at several creditors is a share apart, wherever the leaves are.
TEST(LeafShares, SplitLeavesAreApart) {
  std::vector<CellPlace> places(6 * 4, CellPlace{1, 0, 1});
  for (size_t at : {5u, 16u, 19u}) places[at].creditor = 2;  // of leaves 1 and 4, of 0 to 5
  for (size_t at = 20; at < 24; ++at) places[at].creditor = 2;
  const auto shares = share_leaves({0, 6}, 4, places);
  ASSERT_TRUE(shares.ok());
  ASSERT_EQ(shares->shares.size(), 3u);
  const LeafShare& split = shares->shares[1];
  EXPECT_TRUE(split.split());
  EXPECT_EQ(split.runs, (std::vector<LeafRun>{{1, 2}, {4, 5}}));
  EXPECT_TRUE(split.cells.empty());
  EXPECT_EQ(split.peaks, 2u);
  EXPECT_FALSE(shares->shares[0].split());
  EXPECT_EQ(shares->shares[0].runs, (std::vector<LeafRun>{{0, 1}, {2, 4}}));
  EXPECT_EQ(shares->shares[2].runs, (std::vector<LeafRun>{{5, 6}}));
  std::vector<uint32_t> order;
  for (const SharePeak& peak : shares->peaks) order.push_back(peak.share);
  EXPECT_EQ(order, (std::vector<uint32_t>{0, 1, 0, 1, 2}));
}

TEST(LeafShares, WhatIsNowhereIsSaid) {
  std::vector<CellPlace> places(8, CellPlace{1, 0, 1});
  EXPECT_TRUE(share_leaves({0, 2}, 4, places).ok());
  places[6].creditor = CellPlace::kNowhere;
  EXPECT_EQ(share_leaves({0, 2}, 4, places).status().code(), ErrorCode::kUnavailable);
}

}  // namespace
}  // namespace kvasir
