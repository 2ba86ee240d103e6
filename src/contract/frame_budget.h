// What a tier has room for, for whoever plans with it: what this arithmetic says fits will commit.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/units.h"
#include "contract/ids.h"

namespace kvasir {

// A tier's memory is slabs, each carved into cells of one form while it holds any. Nobody needs a cell that
// is free or idle (of blocks that no sequence references, evicted on demand).
struct FrameBudget {
  // Cells of a form that nobody needs, in slabs that hold needed ones, too: only that form can have them.
  std::array<uint32_t, kForms> loose{};
  // Slabs in which nobody needs anything: any form can have them.
  uint32_t spare_slabs = 0;
  uint32_t slabs = 0;
  // Cells that a slab is carved into; 0: the tier has none of the form.
  std::array<uint32_t, kForms> per_slab{};
  // Cells that promises hold for their owners: allocated or evicted for nobody else.
  std::array<uint32_t, kForms> promised{};
  // Cells that nobody references any more, but that steps or transfers in flight may still use, and those
  // that are given up as soon as another copy is ready: free or idle when those have ended.
  std::array<uint32_t, kForms> coming{};

  uint32_t total_cells(Form form = Form::kKv) const { return slabs * per_slab[index_of(form)]; }

  // Cells of a form that can be had beside `needs` of each: below zero if those alone are too many.
  int64_t available_beside(const std::array<int64_t, kForms>& needs, Form form) const {
    int64_t spare = spare_slabs;
    for (size_t f = 0; f < kForms; ++f) {
      const int64_t lacking = needs[f] - loose[f];
      if (f == index_of(form) || lacking <= 0) continue;
      spare -= per_slab[f] == 0 ? lacking : ceil_div(lacking, int64_t{per_slab[f]});
    }
    return loose[index_of(form)] + spare * per_slab[index_of(form)] - needs[index_of(form)];
  }
  // Cells that anyone may still take.
  int64_t available_cells(Form form = Form::kKv) const {
    std::array<int64_t, kForms> needs;
    std::copy(promised.begin(), promised.end(), needs.begin());
    return available_beside(needs, form);
  }
};

}  // namespace kvasir
