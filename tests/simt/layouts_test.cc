#include "ops/gpu/layouts.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <vector>

namespace kvasir::ops {
namespace {

// Each offset once, from 0 on.
void expect_bijection(std::vector<int64_t> offsets) {
  std::sort(offsets.begin(), offsets.end());
  for (size_t i = 0; i < offsets.size(); ++i) ASSERT_EQ(offsets[i], static_cast<int64_t>(i));
}

// Places in shared memory that eight threads read 16 bytes each of, in elements: no two in one of the eight
// groups of four banks.
void expect_no_bank_conflict(const std::vector<int>& offsets) {
  std::set<int> groups;
  for (const int offset : offsets) {
    ASSERT_EQ(offset % kPieceElements, 0);
    groups.insert(offset / kPieceElements % 8);
  }
  ASSERT_EQ(groups.size(), offsets.size());
}

TEST(Layouts, OperandIsABijection) {
  constexpr int kRows = 192, kK = 320;
  std::vector<int64_t> offsets;
  for (int r = 0; r < kRows; ++r) {
    for (int k = 0; k < kK; ++k) offsets.push_back(operand_offset(r, k, tiles_for(kK)));
  }
  ASSERT_EQ(static_cast<int64_t>(offsets.size()), operand_elements(kRows - 63, kK - 63));
  expect_bijection(offsets);
}

TEST(Layouts, KvIsABijectionForEveryHeadSizeAndBlock) {
  for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
    for (const int block : {16, 32, 64, 128, 256}) {
      std::vector<int64_t> offsets;
      for (int head = 0; head < 3; ++head) {
        for (int p = 0; p < block; ++p) {
          for (int d = 0; d < head_dim; ++d) offsets.push_back(kv_offset(head, p, d, head_dim, block));
        }
      }
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << ", block " << block);
      ASSERT_NO_FATAL_FAILURE(expect_bijection(offsets));
    }
  }
}

// A block's panel is a part of the leaf's panel, so that blocks are copied as they are.
TEST(Layouts, PanelsOfBlocksMakeUpThoseOfALeaf) {
  for (const int head_dim : {64, 80, 96, 112, 128, 256}) {
    for (const int block : {16, 64, 256}) {
      for (int p = 0; p < 256; ++p) {
        for (int d = 0; d < head_dim; ++d) {
          const KvPanel panel = kv_panel(d, head_dim);
          const int in_block = kv_head_offset(p % block, d, head_dim, block) - panel.first * block;
          const int in_leaf = kv_head_offset(p, d, head_dim, 256) - panel.first * 256;
          ASSERT_EQ(in_leaf, p / block * block * panel.width + in_block);
        }
      }
    }
  }
}

// Of eight rows and one piece: what one of the four matrices of a load reads.
TEST(Layouts, MatricesLoadWithoutBankConflicts) {
  for (const int width : {64, 32, 16}) {
    for (int row = 0; row < 64; row += 8) {
      for (int column = 0; column < width; column += kPieceElements) {
        std::vector<int> offsets(8);
        for (int r = 0; r < 8; ++r) offsets[static_cast<size_t>(r)] = panel_offset(row + r, column, width);
        SCOPED_TRACE(testing::Message() << "width " << width << ", row " << row << ", column " << column);
        ASSERT_NO_FATAL_FAILURE(expect_no_bank_conflict(offsets));
      }
    }
  }
  // The check can fail: rows as they lie without a swizzle.
  std::set<int> groups;
  for (int r = 0; r < 8; ++r) groups.insert(r * kTileK / kPieceElements % 8);
  EXPECT_EQ(groups.size(), 1U);
}

TEST(Layouts, PackedRowsAreWhereTheyBelong) {
  constexpr int64_t kRows = 70, kK = 150;
  std::vector<uint16_t> rows(static_cast<size_t>(kRows * (kK + 3)));
  std::iota(rows.begin(), rows.end(), uint16_t{1});
  std::vector<uint16_t> image(static_cast<size_t>(operand_elements(kRows, kK)), 0xFFFF);
  pack_operand(rows.data(), kK + 3, kRows, kK, image.data());
  for (int64_t r = 0; r < 128; ++r) {
    for (int64_t k = 0; k < 192; ++k) {
      const uint16_t want = r < kRows && k < kK ? rows[static_cast<size_t>(r * (kK + 3) + k)] : 0;
      ASSERT_EQ(image[static_cast<size_t>(operand_offset(r, k, 3))], want) << r << ", " << k;
    }
  }
}

}  // namespace
}  // namespace kvasir::ops
