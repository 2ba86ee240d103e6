// The plain types that cross seams.
#include <gtest/gtest.h>

#include <vector>

#include "contract/frame_budget.h"
#include "contract/geometry.h"
#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/layer_set.h"
#include "contract/numerics_id.h"
#include "contract/step.h"
#include "contract/step_plan.h"

namespace kvasir {
namespace {

TEST(Interval, IsHalfOpen) {
  const Interval i{3, 7};
  EXPECT_EQ(i.size(), 4u);
  EXPECT_TRUE(i.contains(3));
  EXPECT_FALSE(i.contains(7));
  EXPECT_TRUE((Interval{4, 4}).empty());
  EXPECT_FALSE((Interval{5, 4}).valid());
  EXPECT_EQ(intersect(i, {5, 9}), (Interval{5, 7}));
  EXPECT_TRUE(intersect(i, {8, 9}).empty());
  EXPECT_TRUE(intersect({8, 9}, i).valid());
}

TEST(LayerSet, HoldsGroupsOnBothSidesOfAWord) {
  LayerSet s;
  EXPECT_TRUE(s.empty());
  s.add(63);
  s.add(64);
  s.add(127);
  EXPECT_EQ(s.count(), 3u);
  EXPECT_TRUE(s.contains(64));
  EXPECT_FALSE(s.contains(65));
  EXPECT_FALSE(s.contains(128));
  LayerSet copy;
  copy.set_word(0, s.word(0));
  copy.set_word(1, s.word(1));
  EXPECT_EQ(copy, s);
  EXPECT_EQ(LayerSet::all(kMaxLayerGroups).count(), kMaxLayerGroups);
}

TEST(LayerSet, IsASetAndNoInterval) {
  LayerSet s;
  for (uint32_t g : {0u, 2u, 63u, 64u, 100u}) s.add(g);
  LayerSet t;
  for (uint32_t g : {2u, 3u, 100u}) t.add(g);
  std::vector<uint32_t> seen;
  s.for_each([&](uint32_t g) { seen.push_back(g); });
  EXPECT_EQ(seen, (std::vector<uint32_t>{0, 2, 63, 64, 100}));
  EXPECT_EQ((s & t).count(), 2u);
  EXPECT_EQ((s | t).count(), 6u);
  EXPECT_EQ((s - t).count(), 3u);
  EXPECT_EQ((s - t) | (s & t), s);
  s.remove(64);
  s.remove(7);
  s.remove(128);
  EXPECT_EQ(s.count(), 4u);
  EXPECT_FALSE(s.contains(64));
}

TEST(LayerSetDeathTest, RefusesAGroupThatCannotBe) {
  LayerSet s;
  EXPECT_DEATH(s.add(128), "group=128");
}

TEST(CacheGeometry, AShorterLastGroupStillTakesAWholeFrame) {
  const CacheGeometry g{64, 10, 4, 256};
  EXPECT_EQ(g.groups(), 3u);
  EXPECT_EQ(g.group_of(9), 2u);
  EXPECT_EQ(g.layer_in_group(9), 1u);
  EXPECT_EQ(g.cell_bytes(Form::kKv), 2u * 64 * 4 * 256);
  EXPECT_EQ(g.kv_block_bytes(), 3u * 2 * 64 * 4 * 256);
  EXPECT_EQ(g.blocks_for(0), 0u);
  EXPECT_EQ(g.blocks_for(64), 1u);
  EXPECT_EQ(g.blocks_for(65), 2u);
  EXPECT_EQ(g.block_of(63), 0u);
}

TEST(CacheGeometry, KAndVMayBeOnePlane) {
  CacheGeometry g{16, 5, 2, 8};
  EXPECT_EQ(g.v_offset(), 16u * 8);
  EXPECT_EQ(g.kv_bytes_per_token_layer(), 16u);
  g.kv_planes = 1;
  EXPECT_EQ(g.v_offset(), 0u);
  EXPECT_EQ(g.kv_bytes_per_token_layer(), 8u);
  EXPECT_EQ(g.piece_bytes(Form::kKv), 16u * 8);
  EXPECT_EQ(g.kv_cell_bytes(), 2u * 16 * 8);
  EXPECT_EQ(g.kv_block_bytes(), 3u * 2 * 16 * 8);
}

TEST(CacheGeometry, AFrameHasItsLayersOneBehindTheOther) {
  const CacheGeometry g{16, 5, 2, 8};
  EXPECT_EQ(g.layer_plane_bytes(), 16u * 8);
  EXPECT_EQ(g.kv_cell_bytes(), 2u * 2 * 16 * 8);
  Step step;
  step.groups = g.groups();
  StepSlice slice;
  slice.blocks = 2;
  auto table = std::make_shared<BlockTable>(2 * g.groups());
  (*table)[g.groups() + 1] = {1000, 2000};  // layers 2 and 3 of block 1
  slice.table = table;
  EXPECT_EQ(step.planes(g, slice, 1, 2), (KvPlanes{1000, 2000}));
  EXPECT_EQ(step.planes(g, slice, 1, 3), (KvPlanes{1256, 2256})) << "K and V of a layer come together";
  step.staged.resize(2);
  step.add_staged(slice, {1, 2}, g.layers);
  step.staged_planes(slice, 1, 3) = {7, 8};
  EXPECT_FALSE(step.is_staged(slice, 0, 3));
  EXPECT_EQ(step.planes(g, slice, 1, 3), (KvPlanes{7, 8}));
  EXPECT_EQ(step.planes(g, slice, 1, 2), (KvPlanes{1000, 2000})) << "nothing of it is staged in this layer";
  EXPECT_LT(layer_written(2), layer_attended(2));
  EXPECT_LT(layer_attended(2), layer_written(3));
  EXPECT_LT(kStepBegins, layer_written(0));
}

TEST(Step, ListsAreFoundByLayer) {
  Step step;
  EXPECT_TRUE(step.is_indexed()) << "there is nothing";
  EXPECT_TRUE(step.waits_before(0).empty());
  const auto starting = [](StepPoint point, uint64_t id) {
    StepTransfer t;
    t.start_at = point;
    t.transfer.id = TransferId{id};
    return t;
  };
  step.transfers = {starting(layer_attended(1), 1), starting(kStepBegins, 2), starting(layer_attended(1), 3)};
  step.waits = {{3, 0, TransferId{1}}, {1, 0, TransferId{2}}, {3, 1, TransferId{3}}};
  step.remote = {{0, 0, 0, 1, 0}, {2, 0, 0, 1, 4}};
  EXPECT_FALSE(step.is_indexed());
  step.index_by_layer();
  EXPECT_TRUE(step.is_indexed());
  EXPECT_EQ(step.waits,
            (std::vector<TransferWait>{{1, 0, TransferId{2}}, {3, 0, TransferId{1}}, {3, 1, TransferId{3}}}))
      << "those of one layer stay in their order";
  const size_t waits[] = {0, 1, 0, 2, 0};
  for (uint32_t layer = 0; layer < 5; ++layer) {
    EXPECT_EQ(step.waits_before(layer).size(), waits[layer]) << layer;
  }
  EXPECT_EQ(step.waits_before(3)[1].slice, 1u);
  EXPECT_EQ(step.remote_in(2)[0].first_piece, 4u);
  EXPECT_TRUE(step.remote_in(1).empty() && step.projections_in(0).empty() && step.x_writes_in(0).empty());
  EXPECT_EQ(step.transfers_until(kStepBegins), 1u);
  EXPECT_EQ(step.transfers_until(layer_written(1)), 1u);
  EXPECT_EQ(step.transfers_until(layer_attended(1)), 3u);
  EXPECT_EQ(step.transfers_until(layer_attended(9)), 3u);
  EXPECT_EQ(step.transfers[1].transfer.id, TransferId{1});
  step.waits.pop_back();
  EXPECT_FALSE(step.is_indexed());
}

TEST(CacheGeometry, EveryFormHasItsPieces) {
  const CacheGeometry g{16, 5, 2, 8, 4};
  EXPECT_TRUE(g.has(Form::kX));
  EXPECT_FALSE((CacheGeometry{16, 5, 2, 8}.has(Form::kX)));
  EXPECT_EQ(g.piece_bytes(Form::kKv), 2u * 16 * 8);
  EXPECT_EQ(g.piece_bytes(Form::kX), 16u * 4);
  EXPECT_EQ(g.cell_bytes(Form::kX), 2u * 64);
  EXPECT_EQ(g.largest_piece_bytes(), 256u);
  EXPECT_EQ((CacheGeometry{16, 5, 2, 8, 20}.largest_piece_bytes()), 320u) << "of X";
  EXPECT_EQ(g.cell_stride(Form::kKv, Tier::kHost), 512u);
  EXPECT_EQ(g.cell_stride(Form::kKv, Tier::kDisk), 2u * 4096) << "on the disk each piece is aligned";
  EXPECT_EQ(g.cell_stride(Form::kX, Tier::kDisk), 2u * 4096);
  EXPECT_EQ(g.layers_in(1), 2u);
  EXPECT_EQ(g.layers_in(2), 1u);
}

TEST(NumericsId, NamesAllThatTheBitsDependOn) {
  NumericsId id{"fma", "q4_1+q8_0", "int8", "bf16", 2};
  EXPECT_EQ(id.to_string(), "kvasir-3/fma/q4_1+q8_0/act-int8/kv-bf16/tp2");
}

TEST(Names, AreToldApart) {
  EXPECT_STREQ(name(Tier::kDevice), "device");
  EXPECT_STREQ(name(Tier::kHost), "host");
  EXPECT_STREQ(name(Tier::kDisk), "disk");
  EXPECT_STREQ(name(Form::kKv), "kv");
  EXPECT_STREQ(name(Form::kX), "x");
  EXPECT_STREQ(name(Verb::kStage), "stage");
  EXPECT_STREQ(name(RowKind::kRecompute), "recompute");
  EXPECT_STREQ(name(Trigger::kAfterLayerWrites), "after_layer_writes");
}

TEST(StepPlan, PrintsOneLineForEachEntry) {
  StepPlan plan;
  plan.failures.push_back({SeqId{1}, "too long"});
  plan.preemptions.push_back({SeqId{2}});
  CopyChange drop;
  drop.seq = SeqId{2};
  drop.tokens = {0, 40};
  drop.layers = LayerSet::all(2);
  drop.trigger = Trigger::kWhenReady;
  plan.copies.push_back(drop);
  plan.adoptions.push_back({SeqId{3}, 32});
  plan.promises.push_back({SeqId{3}, 4, Tier::kHost, Promise::Kind::kOwn});
  Rows rows;
  rows.seq = SeqId{3};
  rows.tokens = {32, 90};
  rows.layers = LayerSet::all(3);
  rows.writes.kv = LayerSet::all(2);
  rows.writes.x = LayerSet::all(1);
  rows.samples = true;
  plan.rows.push_back(rows);
  EXPECT_EQ(to_string(plan),
            "fail 1: too long\n"
            "preempt 2\n"
            "adopt 3 [0, 32)\n"
            "drop 2 [0, 40) kv device x2 when_ready\n"
            "promise 3 4 cells on host\n"
            "prefill 3 [32, 90) samples x3 keeps kv x2 x x1\n");
}

}  // namespace
}  // namespace kvasir
