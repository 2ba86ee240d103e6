// The arithmetic of a tier's room where forms share its slabs: by hand, and against packing in earnest.
#include "contract/frame_budget.h"

#include <gtest/gtest.h>

#include <array>

#include "plan/cell_ledger.h"

namespace kvasir {
namespace {

using Needs = std::array<int64_t, kForms>;

constexpr size_t kKv = index_of(Form::kKv);

// Two cells of KV to a slab, or three of X.
FrameBudget budget(uint32_t spare, uint32_t loose_kv = 0, uint32_t loose_x = 0) {
  FrameBudget b;
  b.slabs = spare + loose_kv + loose_x;
  b.spare_slabs = spare;
  b.loose = {loose_kv, loose_x};
  b.per_slab = {2, 3};
  return b;
}

TEST(FrameBudget, WhatIsLooseBelongsToItsFormAndWhatIsSpareToAll) {
  const FrameBudget b = budget(4, 3, 1);
  EXPECT_EQ(b.available_cells(Form::kKv), 3 + 4 * 2);
  EXPECT_EQ(b.available_cells(Form::kX), 1 + 4 * 3);
  EXPECT_EQ(b.total_cells(Form::kKv), 16u);
  EXPECT_EQ(b.total_cells(Form::kX), 24u);
}

TEST(FrameBudget, PromisesAreKeptOutOfIt) {
  FrameBudget b = budget(4, 3, 1);
  b.promised[kKv] = 6;  // three loose ones, and three of two slabs
  EXPECT_EQ(b.available_cells(Form::kKv), 5);
  EXPECT_EQ(b.available_cells(Form::kX), 1 + 2 * 3);
  b.promised[kKv] = 20;
  EXPECT_EQ(b.available_cells(Form::kKv), -9);
}

TEST(FrameBudget, ASlabThatIsTakenForOneCellIsTaken) {
  const FrameBudget b = budget(4);
  EXPECT_EQ(b.available_beside({1, 0}, Form::kX), 3 * 3);
  EXPECT_EQ(b.available_beside({2, 0}, Form::kX), 3 * 3);
  EXPECT_EQ(b.available_beside({3, 0}, Form::kX), 2 * 3);
  EXPECT_EQ(b.available_beside({8, 1}, Form::kX), -1);
}

TEST(FrameBudget, ATierMayHaveNoCellsOfAForm) {
  FrameBudget b = budget(4);
  b.per_slab[index_of(Form::kX)] = 0;
  EXPECT_EQ(b.available_cells(Form::kX), 0);
  EXPECT_LT(b.available_beside({0, 5}, Form::kKv), 0);
}

// Whether all that is asked for can be packed: each form its loose cells first, whole slabs for the rest.
bool can_be_packed(const FrameBudget& b, const Needs& needs) {
  uint32_t spare = b.spare_slabs;
  for (size_t f = 0; f < kForms; ++f) {
    uint32_t room = b.loose[f];
    for (int64_t cell = 0; cell < needs[f]; ++cell) {
      if (room == 0) {
        if (spare == 0 || b.per_slab[f] == 0) return false;
        --spare;
        room = b.per_slab[f];
      }
      --room;
    }
  }
  return true;
}

TEST(FrameBudget, WhatFitsIsWhatCanBePacked) {
  uint64_t fitted = 0, refused = 0;
  for (uint32_t shape = 0; shape < 5 * 3 * 3; ++shape) {
    FrameBudget b;
    b.spare_slabs = shape % 5;
    b.loose = {shape / 5 % 3, shape / 15 % 3};
    b.per_slab = {2, 3};
    for (int64_t kv = 0; kv < 9; ++kv) {
      for (int64_t x = 0; x < 9; ++x) {
        const Needs needs = {kv, x};
        const bool fits = can_be_packed(b, needs);
        bool says = true;
        for (Form form : kAllForms) says &= b.available_beside(needs, form) >= 0;
        ASSERT_EQ(says, fits) << shape << ": " << kv << " " << x;
        ++(fits ? fitted : refused);
        if (!fits) continue;
        for (Form form : kAllForms) {
          Needs more = needs;
          more[index_of(form)] += b.available_beside(needs, form);
          ASSERT_TRUE(can_be_packed(b, more));
          ++more[index_of(form)];
          ASSERT_FALSE(can_be_packed(b, more));
        }
      }
    }
  }
  EXPECT_GT(fitted, 1000u);
  EXPECT_GT(refused, 1000u);
}

// ---------------------------------------------------------------- of a plan

View view_of(const FrameBudget& device) {
  View view;
  view.device = device;
  return view;
}

TEST(CellLedger, FormsTakeSlabsFromEachOther) {
  CellLedger ledger(view_of(budget(4, 1)), Tier::kDevice);
  ledger.take(4, Form::kX);
  EXPECT_EQ(ledger.available(Form::kX), 8);
  EXPECT_EQ(ledger.available(Form::kKv), 5);
  ledger.take(5, Form::kKv);
  EXPECT_EQ(ledger.available(Form::kX), 2) << "what is left of its second slab";
  EXPECT_TRUE(ledger.fits());
  ledger.take(3, Form::kX);
  EXPECT_FALSE(ledger.fits());
  EXPECT_EQ(ledger.available(Form::kX), -1);
}

TEST(CellLedger, WhatOneFormGivesUpIsNotAnothers) {
  CellLedger ledger(view_of(budget(1)), Tier::kDevice);
  ledger.give_up(3, Form::kX);
  EXPECT_EQ(ledger.available(Form::kX), 6);
  EXPECT_EQ(ledger.available(Form::kKv), 2) << "its slabs may hold what others need";
  ledger.give_up_later(2, Form::kX);
  EXPECT_EQ(ledger.coming(), 0) << "of KV nothing comes";
}

TEST(CellLedger, AnAdoptedIdleCellMayTakeAWholeSlab) {
  CellLedger ledger(view_of(budget(4)), Tier::kDevice);
  ledger.adopt(2, 2, Form::kX);
  EXPECT_EQ(ledger.available(Form::kX), 2 * 3 + 2 * 2);
  EXPECT_EQ(ledger.available(Form::kKv), 2 * 2);
}

TEST(CellLedger, WhereIdleCellsOfTwoFormsAreAdoptedEachMayHaveHadTheSpareSlabs) {
  // Three idle cells of X may lie in three of the four slabs, and of those of KV but one in a spare one.
  CellLedger ledger(view_of(budget(4, 2, 2)), Tier::kDevice);
  ledger.adopt(3, 3, Form::kKv);
  ledger.adopt(3, 3, Form::kX);
  EXPECT_EQ(ledger.available(Form::kKv), 2 + 1 * 2 - 3);
  EXPECT_EQ(ledger.available(Form::kX), 2 + 1 * 3 - 3);
  ledger = CellLedger(view_of(budget(4, 3, 0)), Tier::kDevice);
  ledger.adopt(3, 3, Form::kKv);
  ledger.adopt(4, 4, Form::kX);
  EXPECT_EQ(ledger.available(Form::kKv), 0);
}

TEST(CellLedger, WhatIsAdoptedAndInUseOffsetsWhatIsGivenUpOfItsForm) {
  CellLedger ledger(view_of(budget(2)), Tier::kDevice);
  ledger.adopt(4, 0, Form::kX);
  ledger.give_up(3, Form::kX);
  EXPECT_EQ(ledger.available(Form::kX), 6);
  ledger.give_up(3, Form::kKv);
  EXPECT_EQ(ledger.available(Form::kKv), 7);
}

}  // namespace
}  // namespace kvasir
