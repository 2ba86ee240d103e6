// Which rows are in each layer of a step, and where they were in the layer before.
#include "exec/cpu/row_sets.h"

#include <gtest/gtest.h>

namespace kvasir {
namespace {

constexpr uint32_t kLayers = 4;

class RowSetsTest : public testing::Test {
 protected:
  void add(Interval tokens, uint32_t end_layer, bool samples) {
    StepSlice slice;
    slice.tokens = tokens;
    slice.end_layer = end_layer;
    slice.samples = samples;
    slice.first_token = step_.row_count();
    for (uint32_t p = tokens.begin; p < tokens.end; ++p)
      step_.token_ids.push_back(static_cast<Token>(100 + p));
    step_.slices.push_back(slice);
  }
  void lay_out(bool tap_all_rows = false) { sets_.lay_out(step_, kLayers, tap_all_rows); }
  // Slice and position of each row of a set.
  std::vector<std::pair<uint32_t, uint32_t>> rows(size_t set) const {
    std::vector<std::pair<uint32_t, uint32_t>> out;
    for (const StepRow& r : sets_.set(set).rows) {
      out.emplace_back(r.slice, r.position);
      EXPECT_EQ(r.token, static_cast<Token>(100 + r.position));
    }
    return out;
  }
  using Rows = std::vector<std::pair<uint32_t, uint32_t>>;
  using Sources = std::vector<uint32_t>;

  Step step_;
  RowSets sets_;
};

TEST_F(RowSetsTest, RowsThatAllSampleAreOneSet) {
  add({7, 8}, UINT32_MAX, true);
  add({3, 4}, kLayers, true);
  lay_out();
  EXPECT_EQ(sets_.count(), 1u);
  EXPECT_EQ(rows(0), (Rows{{0, 7}, {1, 3}}));
  for (uint32_t l = 0; l < kLayers; ++l) EXPECT_FALSE(sets_.leaves(l));
}

TEST_F(RowSetsTest, InTheLastLayerOnlyRowsWithWantedLogitsGoOn) {
  add({0, 2}, UINT32_MAX, false);
  add({5, 8}, UINT32_MAX, true);
  lay_out();
  ASSERT_EQ(sets_.count(), 2u);
  EXPECT_TRUE(sets_.leaves(kLayers - 1));
  EXPECT_EQ(rows(1), (Rows{{1, 7}}));
  EXPECT_EQ(sets_.set(1).source, Sources{4});
  lay_out(/*tap_all_rows=*/true);
  EXPECT_EQ(sets_.count(), 1u);
  EXPECT_EQ(sets_.last().rows.size(), 5u);
}

TEST_F(RowSetsTest, RowsLeaveBetween) {
  add({0, 2}, 2, false);
  add({2, 3}, 3, false);
  add({4, 5}, kLayers, true);
  lay_out();
  ASSERT_EQ(sets_.count(), 3u);
  EXPECT_EQ(rows(0), (Rows{{0, 0}, {0, 1}, {1, 2}, {2, 4}}));
  EXPECT_TRUE(sets_.leaves(1) && sets_.leaves(2));
  EXPECT_FALSE(sets_.leaves(0) || sets_.leaves(3));
  EXPECT_EQ(rows(1), (Rows{{1, 2}, {2, 4}}));
  EXPECT_EQ(sets_.set(1).source, (Sources{2, 3}));
  EXPECT_EQ(sets_.set(1).first_row, (std::vector<uint32_t>{0, 0, 1}));
  EXPECT_EQ(rows(2), (Rows{{2, 4}}));
  EXPECT_EQ(sets_.set(2).source, Sources{1});
}

TEST_F(RowSetsTest, ASetMayBeEmpty) {
  add({0, 3}, 3, false);
  lay_out();
  ASSERT_EQ(sets_.count(), 2u);
  EXPECT_EQ(sets_.set(0).rows.size(), 3u);
  EXPECT_EQ(sets_.last().rows.size(), 0u);
}

}  // namespace
}  // namespace kvasir
