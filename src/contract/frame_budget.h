// The free memory of a tier, as planners see it: a plan that fits by this arithmetic will commit.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "base/units.h"
#include "contract/ids.h"

namespace kvasir {

// A tier's memory consists of slabs. A slab that holds any cells is carved into cells of one form. A cell is
// available if it is free or idle (an idle cell belongs to a block that no sequence references, and is
// evicted on demand).
struct FrameBudget {
  // Available cells of a form in slabs that also hold cells in use: only that form can use them.
  std::array<uint32_t, kForms> loose{};
  // Slabs without any cell in use: any form can use them.
  uint32_t spare_slabs = 0;
  uint32_t slabs = 0;
  // Cells per slab; 0: the tier has no cells of this form.
  std::array<uint32_t, kForms> per_slab{};
  // Cells that promises hold for their owners: no other sequence may allocate or evict them.
  std::array<uint32_t, kForms> promised{};
  // Cells that become free or idle later: unreferenced cells that steps or transfers in flight may still use,
  // and cells that are given up as soon as another copy is ready.
  std::array<uint32_t, kForms> coming{};

  uint32_t total_cells(Form form = Form::kKv) const { return slabs * per_slab[index_of(form)]; }

  // Cells of `form` that remain available after `needs` cells of each form: negative if those do not fit.
  int64_t available_beside(const std::array<int64_t, kForms>& needs, Form form) const {
    int64_t spare = spare_slabs;
    for (size_t f = 0; f < kForms; ++f) {
      const int64_t missing = needs[f] - loose[f];
      if (f == index_of(form) || missing <= 0) continue;
      spare -= per_slab[f] == 0 ? missing : ceil_div(missing, int64_t{per_slab[f]});
    }
    return loose[index_of(form)] + spare * per_slab[index_of(form)] - needs[index_of(form)];
  }
  // Cells that are available and not promised.
  int64_t available_cells(Form form = Form::kKv) const {
    std::array<int64_t, kForms> needs;
    std::copy(promised.begin(), promised.end(), needs.begin());
    return available_beside(needs, form);
  }
};

}  // namespace kvasir
