// A sequence whose history is kept as X, the operand of the K/V projection: what it takes, what its rows
// write, and how it becomes one of K and V.
//
// Source: Apt-Serve, Sections 3.1 and 4.3. The block that is not full yet has K and V here beside X
// (contract/step_plan.h), so that one of n blocks takes n * x + kv, and not the published n * m / 2. Which
// switches there are:
//
//   X to K and V     what a step projects from X for its rows is kept, where there is room: no further work
//   K and V to X     X is not to be had from K and V: only who has given up everything, and is prefilled
//                    again, can be kept as X from then on
#pragma once

#include <cstdint>

#include "contract/plan_builder.h"

namespace kvasir {

// It holds X on the device and needs it: not all of its K and V are there. Rows go on writing X.
bool held_as_x(const SeqView& seq);

// Bytes that a sequence takes with all its known tokens in either form, beside what it adopts: cached blocks
// that others use take none, and K and V that are cached stay so.
uint64_t bytes_as_kv(const CacheGeometry& geometry, const SeqView& seq);
uint64_t bytes_as_x(const CacheGeometry& geometry, const SeqView& seq);

// Bytes for K and V, of what this plan has left.
uint64_t free_bytes(const View& view, const PlanBuilder& builder);

// Seconds that projecting all its tokens of which there is no K and V adds to a step (rho * m). Where nothing
// is believed of projections yet: a sixth of what its prefill would take, which is their share of the
// products of a layer with as many heads of K and V as of Q and a feed-forward network four times as wide.
double projection_seconds(const View& view, const SeqView& seq);

// What rows write of one that is kept as X, and what its admission asks for.
RowOptions rows_as_x(const View& view);
AdmitOptions admission_as_x(const View& view, uint32_t spare_blocks);

// Gives up the X of one that has all its K and V: its rows write none.
void give_up_needless_x(const View& view, const SeqView& seq, PlanBuilder& builder);

// Gives up the K and V of blocks of which there is X: a block that decodes have filled had both.
void give_up_kv_beside_x(const View& view, const SeqView& seq, PlanBuilder& builder);

// Cells that its K and V need beside what it has of them, with the block that its next row may begin.
uint32_t cells_to_upgrade(const View& view, const SeqView& seq);

// Makes K and V of all that it has as X, by the projections of this plan's rows, which the caller plans next
// (without X). They are there when the step has ended: give_up_needless_x() then takes X away. False, and
// nothing is planned, where that leaves others fewer blocks than `spare_blocks`, where it waits for a
// transfer, or where a step in flight may be doing it. REQUIRES: held_as_x(seq), it runs and has no rows in
// this plan.
bool upgrade_to_kv(const View& view, const SeqView& seq, uint32_t spare_blocks, PlanBuilder& builder);

}  // namespace kvasir
