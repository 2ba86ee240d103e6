// The work of attention in a step: which rows meet which leaves, and where the partial results go.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ops/gpu/kernel_args.h"

namespace kvasir::ops::gpu {

struct LeafPlan {
  std::vector<LeafWork> work;  // by leaf within a slice
  int64_t records = 0;         // partial results of all rows, one for each of a row's leaves
};

// rows: those of a slice are neighbours, their positions ascend by 1. Sets first_record of each. window: as
// LeafArgs has it; layers with other windows have plans of their own. most_rows: of one piece of work, which
// attends to its leaf once for all of them; at least 1.
LeafPlan plan_leaves(std::span<RowPlace> rows, int32_t window, int32_t most_rows);

// Attention in passes, whose partial results lie in the same memory one after the other: where each ends, in
// rows. A pass has at most so many partial results, or is kTileRows rows; all but the last are multiples of
// kTileRows, so that each writes whole tiles of the operand. No bit depends on it.
std::vector<int32_t> pass_ends(std::span<const RowPlace> rows, int32_t window, int64_t most_records);

}  // namespace kvasir::ops::gpu
