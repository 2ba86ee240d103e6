// A sequence whose history is kept as X, the operand of the K/V projection: what it takes, what its rows
// write, and how it is turned into K and V.
//
// Source: Apt-Serve, Sections 3.1 and 4.3. The block that is not full yet has K and V here beside X
// (contract/step_plan.h), so that one of n blocks takes n * x + kv, and not the published n * m / 2. A
// sequence can change its form:
//
//   X to K and V     what a step projects from X for its rows is kept, where there is room: no further work
//   K and V to X     X cannot be computed from K and V: only a sequence that has given up everything, and is
//                    prefilled again, can be kept as X from then on
#pragma once

#include <cstdint>

#include "plan/plan_builder.h"

namespace kvasir {

// Whether it holds X on the device and needs it, since not all of its K and V are there. Its rows write X.
bool held_as_x(const SeqView& seq);

// Bytes that all the known tokens of a sequence take in either form, beside what it adopts: cached blocks
// that others use take none, and cached K and V stay as they are.
uint64_t bytes_as_kv(const CacheGeometry& geometry, const SeqView& seq);
uint64_t bytes_as_x(const CacheGeometry& geometry, const SeqView& seq);

// Bytes for K and V that this plan has left.
uint64_t free_bytes(const View& view, const PlanBuilder& builder);

// Seconds that projecting all its tokens without K and V adds to a step (rho * m). Where the cost of a
// projection is not known yet: a sixth of its prefill's time, which is the projections' share of the products
// of a layer with as many heads of K and V as of Q and a feed-forward network four times as wide.
double projection_seconds(const View& view, const SeqView& seq);

// What the rows of a sequence that is kept as X write, and what its admission asks for.
RowOptions rows_as_x(const View& view);
AdmitOptions admission_as_x(const View& view, uint32_t spare_blocks);

// Gives up the X of a sequence that has all its K and V; its rows write none.
void give_up_needless_x(const View& view, const SeqView& seq, PlanBuilder& builder);

// Gives up the K and V of blocks of which there is X: a block that was filled by decodes has both.
void give_up_kv_beside_x(const View& view, const SeqView& seq, PlanBuilder& builder);

// Cells that its K and V need beside those that it has, with the block that its next row may begin.
uint32_t cells_to_upgrade(const View& view, const SeqView& seq);

// Keeps the K and V of all that it has as X, which this plan's rows project; the caller plans these next,
// without X. They are there when the step has ended: give_up_needless_x() then gives up X. False, and nothing
// is planned, where fewer blocks than `spare_blocks` would be left to others, where it waits for a transfer,
// or where a step in flight may be doing the same. REQUIRES: held_as_x(seq), it runs and has no rows in this
// plan.
bool upgrade_to_kv(const View& view, const SeqView& seq, uint32_t spare_blocks, PlanBuilder& builder);

}  // namespace kvasir
