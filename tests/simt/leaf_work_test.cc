#include "ops/gpu/leaf_work.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "base/leaf_tokens.h"

namespace kvasir::ops::gpu {
namespace {

// Rows [begin, end) of each slice.
std::vector<RowPlace> rows_of(const std::vector<std::pair<uint32_t, uint32_t>>& slices) {
  std::vector<RowPlace> rows;
  for (uint32_t s = 0; s < slices.size(); ++s) {
    for (uint32_t p = slices[s].first; p < slices[s].second; ++p) rows.push_back({0, p, s, 1, 0});
  }
  return rows;
}

TEST(LeafWork, EveryRowMeetsEachOfItsLeavesOnce) {
  for (const int32_t window : {0, 1, 256, 300}) {
    for (const int32_t most_rows : {1, 3, 100}) {
      std::vector<RowPlace> rows = rows_of({{0, 1}, {250, 520}, {1023, 1025}, {7, 9}});
      const LeafPlan plan = plan_leaves(rows, window, most_rows);
      std::map<int32_t, std::set<int32_t>> met;
      for (const LeafWork& work : plan.work) {
        ASSERT_GE(work.rows, 1);
        ASSERT_LE(work.rows, most_rows);
        for (int32_t r = work.first_row; r < work.first_row + work.rows; ++r) {
          ASSERT_EQ(rows[static_cast<size_t>(r)].slice, rows[static_cast<size_t>(work.first_row)].slice);
          ASSERT_TRUE(met[r].insert(work.leaf).second) << "row " << r << ", leaf " << work.leaf;
        }
      }
      std::set<int64_t> records;
      for (size_t r = 0; r < rows.size(); ++r) {
        const int64_t position = rows[r].position;
        const int64_t first = window > 0 ? std::max<int64_t>(0, position + 1 - window) : 0;
        std::set<int32_t> want;
        for (int64_t leaf = first / kLeafTokens; leaf <= position / kLeafTokens; ++leaf) {
          want.insert(static_cast<int32_t>(leaf));
          records.insert(rows[r].first_record + leaf);
        }
        EXPECT_EQ(met[static_cast<int32_t>(r)], want) << "row " << r << ", window " << window;
      }
      EXPECT_EQ(static_cast<int64_t>(records.size()), plan.records);
      EXPECT_EQ(*records.begin(), 0);
      EXPECT_EQ(*records.rbegin(), plan.records - 1);
    }
  }
}

TEST(LeafWork, PassesHaveWholeTilesAndNoMoreRecordsThanAllowed) {
  // 64 rows of one leaf, 150 of four, one of one.
  const std::vector<RowPlace> rows = rows_of({{0, 64}, {800, 950}, {0, 1}});
  EXPECT_EQ(pass_ends(rows, 0, 1000), (std::vector<int32_t>{215}));
  EXPECT_EQ(pass_ends(rows, 0, 665), (std::vector<int32_t>{215})) << "64 + 600 + 1";
  EXPECT_EQ(pass_ends(rows, 0, 664), (std::vector<int32_t>{192, 215}));
  EXPECT_EQ(pass_ends(rows, 0, 345), (std::vector<int32_t>{128, 215})) << "64 + 256; 256 + 89";
  EXPECT_EQ(pass_ends(rows, 0, 344), (std::vector<int32_t>{128, 192, 215}));
  EXPECT_EQ(pass_ends(rows, 0, 319), (std::vector<int32_t>{64, 128, 192, 215}));
  EXPECT_EQ(pass_ends(rows, 0, 0), (std::vector<int32_t>{64, 128, 192, 215})) << "a tile is the least";
  EXPECT_EQ(pass_ends(rows, 1, 215), (std::vector<int32_t>{215})) << "a window of one leaf";
  EXPECT_EQ(pass_ends({}, 0, 5), std::vector<int32_t>());
}

}  // namespace
}  // namespace kvasir::ops::gpu
