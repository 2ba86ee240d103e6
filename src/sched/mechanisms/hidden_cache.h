// A sequence whose history is kept as X, the operand of the K/V projection: its memory, the writes of its
// rows, and its change to K and V.
//
// Source: Apt-Serve, Sections 3.1 and 4.3. Here a partly filled block has K and V besides X
// (contract/step_plan.h), so a sequence of n blocks takes n * x + kv, not the published n * m / 2. A sequence
// can change its form:
//
//   X to K and V     the K and V that a step projects for its rows are kept, if there is room: no extra work
//   K and V to X     X cannot be computed from K and V: as in Section 5, the sequence gives up everything,
//                    and the prefill that recomputes it writes X
#pragma once

#include <cstdint>

#include "plan/plan_builder.h"

namespace kvasir {

// Whether it holds X on the device and needs it, because some of its K and V are missing. Its rows write X.
bool held_as_x(const SeqView& seq);

// Bytes of all the known tokens of a sequence in either form, without adopted blocks: cached blocks that
// others use take none, and cached K and V keep their form.
uint64_t bytes_as_kv(const CacheGeometry& geometry, const SeqView& seq);
uint64_t bytes_as_x(const CacheGeometry& geometry, const SeqView& seq);

// Bytes for K and V that this plan has left.
uint64_t free_bytes(const View& view, const PlanBuilder& builder);

// Seconds that projecting all its tokens without K and V adds to a step (rho * m). If the cost of a
// projection is unknown: a sixth of its prefill's time, the share of these projections in the products of a
// layer with as many heads of K and V as of Q and a feed-forward network four times as wide.
double projection_seconds(const View& view, const SeqView& seq);

// What changes if a sequence that decodes with K and V is kept as X: what projecting it adds to a step then,
// and the bytes that become free: of its cells that no other sequence holds, less those that it takes as X.
// 0: nothing is gained.
double projection_seconds_as_x(const View& view, const SeqView& seq);
uint64_t bytes_freed_as_x(const CacheGeometry& geometry, const SeqView& seq);

// The options for rows and admission of a sequence that is kept as X.
RowOptions rows_as_x(const View& view);
AdmitOptions admission_as_x(const View& view, uint32_t spare_blocks);

// What a step has room for, beside the rows planned so far: the ring passes these rows of a prompt, which are
// kept as X; and there are cells for them and for the block in which they end, beside `spare_blocks`.
bool ring_passes_as_x(const View& view, const SeqView& seq, uint32_t rows, const PlanBuilder& builder);
bool has_room_as_x(const View& view, const SeqView& seq, uint32_t rows, uint32_t spare_blocks,
                   const PlanBuilder& builder);

// It is held as X and goes on so. Not one that has adopted X but could not be admitted as X: it may stream,
// or be too long for the ring.
bool goes_on_as_x(const SeqView& seq, const PlanBuilder& builder);
// Rows of its prompt for which X has cells.
uint32_t rows_with_x_cells(const View& view, const SeqView& seq, const PlanBuilder& builder);

// Plans its next token, with its history as X or as K and V; it gives up what it holds in the other form. As
// PlanBuilder::decode().
bool decode_as_x(const View& view, const SeqView& seq, PlanBuilder& builder);
bool decode_as_kv(const View& view, const SeqView& seq, PlanBuilder& builder);

// Gives up the X of a sequence that has all its K and V; its rows write none.
void give_up_needless_x(const View& view, const SeqView& seq, PlanBuilder& builder);

// Gives up the K and V of blocks that also have X: a block that was filled by decodes has both.
void give_up_kv_beside_x(const View& view, const SeqView& seq, PlanBuilder& builder);

// Cells that all its K and V need in addition, including the block that its next row may begin.
uint32_t cells_to_upgrade(const View& view, const SeqView& seq);

// Keeps the K and V that this plan's rows project from all its X. The caller plans these rows next, without
// X. When the step has ended, give_up_needless_x() gives up X. False, and nothing is planned, if fewer blocks
// than `spare_blocks` would be left to others, if it waits for a transfer, or if a step in flight may be
// doing the same. REQUIRES: held_as_x(seq), it runs and has no rows in this plan.
bool upgrade_to_kv(const View& view, const SeqView& seq, uint32_t spare_blocks, PlanBuilder& builder);

}  // namespace kvasir
