// What the committer leaves at peers, worked by hand: runs of leaves, their pieces, waits and slots. Blocks
// have 64 tokens, four to a leaf; there are four layers, in groups of one, two or all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "cache/commit/committer.h"

namespace kvasir {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr SeqId kRemote{1};
constexpr uint32_t kAllLayers = 4;
constexpr uint32_t kTokens = 64;                // of a block
constexpr uint64_t kPieceOfLayer = 2 * 64 * 8;  // K and V of one layer of a block
constexpr uint32_t kSlots = 6;

// Keeps what is started, and ends it when told.
class TellLink final : public Link {
 public:
  void start(Transfer transfer) override { started.push_back(std::move(transfer)); }
  void cancel(TransferId) override {}
  TransferState wait(TransferId, Nanos) override { return TransferState::kPending; }
  std::vector<TransferDone> completed() override { return std::exchange(done, {}); }
  void set_wake(std::function<void()>) override {}
  LinkStats stats() const override { return {}; }
  void end(TransferId id, Status status = {}) { done.push_back({id, std::move(status), 0, 0}); }

  std::vector<Transfer> started;
  std::vector<TransferDone> done;
};

class CommitterPeers : public testing::TestWithParam<uint32_t> {
 protected:
  CommitterPeers() : cache_(options(GetParam())), committer_(cache_, &link_), all_(LayerSet::all(groups())) {
    std::vector<uint32_t> cells(cache_.options().borrowable_cells());
    std::iota(cells.begin(), cells.end(), 0);
    cache_.add_borrowed(cells);
    std::vector<Token> tokens(1100);
    std::iota(tokens.begin(), tokens.end(), 0);
    cache_.add_sequence(kRemote, tokens, "");
  }
  ~CommitterPeers() override { EXPECT_EQ(cache_.check_integrity().message(), ""); }

  // Its own host tier is not there at all.
  static CacheOptions options(uint32_t layers_per_group) {
    CacheOptions o;
    o.geometry = {kTokens, kAllLayers, layers_per_group, 8};
    o.device_bytes = o.geometry.kv_block_bytes() * 8;
    o.borrowed_bytes = o.geometry.kv_block_bytes() * 20;
    o.stage_bytes = kPieceOfLayer * kSlots;
    return o;
  }
  const CacheGeometry& g() const { return cache_.geometry(); }
  uint32_t groups() const { return cache_.geometry().groups(); }

  // Rows [begin, end): full blocks go to peers as they are written, or stay on the device in all layer groups
  // (`kept`); the history that is not on the device is staged, or stays at peers.
  Step run(uint32_t begin, uint32_t end, const LayerSet& kept = {}) {
    StepPlan plan;
    if (begin > 0) {
      plan.copies.push_back(
          {Verb::kStage, kRemote, {0, begin}, all_, Form::kKv, Tier::kDevice, Trigger::kBeforeLayer});
    }
    const Interval full = {(begin + kTokens - 1) / kTokens * kTokens, end / kTokens * kTokens};
    if (full.begin < full.end && kept.empty()) {
      plan.copies.push_back(
          {Verb::kAdd, kRemote, full, all_, Form::kKv, Tier::kHost, Trigger::kAfterLayerWrites});
    }
    Rows rows;
    rows.seq = kRemote;
    rows.tokens = {begin, end};
    rows.layers = all_;
    rows.writes.kv = kept;
    plan.rows = {rows};
    return committer_.apply(plan, StepId{++step_});
  }
  void end_step(const Step& step) {
    StepResult result;
    result.id = step.id;
    EXPECT_THAT(committer_.step_ended(result), IsEmpty());
  }
  void end_transfers(const Step& step) {
    for (const StepTransfer& f : step.transfers) link_.end(f.transfer.id);
    committer_.drain_transfers();
  }
  Step ran(uint32_t begin, uint32_t end, const LayerSet& kept = {}) {
    Step step = run(begin, end, kept);
    end_step(step);
    end_transfers(step);
    return step;
  }
  // Where a layer of a block lies in borrowed memory.
  uint64_t piece(uint32_t block, uint32_t layer) const {
    const BlockMap::Block& b = cache_.block(cache_.blocks_of(kRemote)[block]);
    return b.at({Form::kKv, Tier::kHost}).by_group[g().group_of(layer)].at +
           g().layer_in_group(layer) * kPieceOfLayer;
  }
  std::vector<uint64_t> pieces(uint32_t first_block, uint32_t blocks, uint32_t layer) const {
    std::vector<uint64_t> out;
    for (uint32_t b = first_block; b < first_block + blocks; ++b) out.push_back(piece(b, layer));
    return out;
  }
  static std::vector<uint64_t> pieces_of(const Step& step, const RemoteLeaves& run) {
    const auto first = step.remote_pieces.begin() + run.first_piece;
    return {first, first + 4 * (run.end_leaf - run.first_leaf)};
  }
  // In the ring, or in a frame.
  bool has_planes(const Step& step, uint32_t block, uint32_t layer) const {
    const StepSlice& slice = step.slices[0];
    return step.is_staged(slice, block, layer) ||
           (*slice.table)[block * step.groups + g().group_of(layer)].present();
  }
  // The slots of the ring that the planes of a step name, in the order of layers and blocks.
  std::vector<uint64_t> slots(const Step& step) const {
    std::vector<uint64_t> out;
    for (const KvPlanes& at : step.staged) {
      if (at.present() && at.k >= cache_.options().device_bytes)
        out.push_back((at.k - cache_.options().device_bytes) / kPieceOfLayer);
    }
    return out;
  }
  static std::vector<uint64_t> round_the_ring(uint64_t begin, uint64_t count) {
    std::vector<uint64_t> out;
    for (uint64_t i = begin; i < begin + count; ++i) out.push_back(i % kSlots);
    return out;
  }

  TellLink link_;
  KvCache cache_;
  Committer committer_;
  const LayerSet all_;
  uint64_t step_ = 0;
};

TEST_P(CommitterPeers, WholeLeavesAreAttendedWhereTheyLieAndTakeNoSlot) {
  const Step first = ran(0, 256);
  EXPECT_THAT(first.remote, IsEmpty());
  EXPECT_EQ(slots(first), round_the_ring(0, 16)) << "each layer writes four blocks";
  const Step second = ran(256, 512);
  // A leaf in each layer, and of each its four blocks.
  ASSERT_EQ(second.remote.size(), kAllLayers);
  ASSERT_EQ(second.remote_pieces.size(), 4 * kAllLayers);
  for (uint32_t layer = 0; layer < kAllLayers; ++layer) {
    EXPECT_EQ(second.remote[layer], (RemoteLeaves{layer, 0, 0, 1, 4 * layer}));
    EXPECT_EQ(pieces_of(second, second.remote[layer]), pieces(0, 4, layer)) << layer;
    for (uint32_t block = 0; block < 4; ++block) {
      EXPECT_FALSE(has_planes(second, block, layer)) << "it is not asked for";
    }
  }
  EXPECT_EQ(slots(second), round_the_ring(16, 16)) << "only what is written passes the ring";
  for (const StepTransfer& f : second.transfers) EXPECT_EQ(f.transfer.segments.front().to.tier, Tier::kHost);
  // With a tail two leaves become one run. The block behind them is no leaf, and is staged.
  ran(512, 600);
  const Step last = run(600, 610);
  ASSERT_EQ(last.remote.size(), kAllLayers);
  for (uint32_t layer = 0; layer < kAllLayers; ++layer) {
    EXPECT_EQ(last.remote[layer], (RemoteLeaves{layer, 0, 0, 2, 8 * layer}));
    EXPECT_EQ(pieces_of(last, last.remote[layer]), pieces(0, 8, layer));
  }
  ASSERT_EQ(last.transfers.size(), kAllLayers);
  for (uint32_t layer = 0; layer < kAllLayers; ++layer) {
    const Transfer& in = last.transfers[layer].transfer;
    ASSERT_EQ(in.segments.size(), 1u);
    EXPECT_EQ(in.segments[0].from, (MemoryAddress{piece(8, layer), Tier::kHost}));
  }
  EXPECT_EQ(slots(last).size(), kAllLayers);
  end_step(last);
  end_transfers(last);
}

// The first two leaves go, in every layer; the third stays. In each layer each leaf is attended once: the
// first two there, the third here.
TEST_P(CommitterPeers, EveryLayerHasTheSameLeavesThereAndTheOthersHere) {
  ran(0, 256);
  ran(256, 512);
  ran(512, 768, all_);
  const Step step = run(768, 769, all_);
  ASSERT_EQ(step.remote.size(), kAllLayers);
  for (uint32_t layer = 0; layer < kAllLayers; ++layer) {
    EXPECT_EQ(step.remote[layer], (RemoteLeaves{layer, 0, 0, 2, 8 * layer}));
    EXPECT_EQ(pieces_of(step, step.remote[layer]), pieces(0, 8, layer));
    for (uint32_t block = 0; block <= 12; ++block) EXPECT_EQ(has_planes(step, block, layer), block >= 8);
  }
  EXPECT_THAT(slots(step), IsEmpty());
  EXPECT_THAT(step.transfers, IsEmpty());
  const SequenceCells s = cache_.summary(kRemote);
  EXPECT_EQ(s.blocks, 13u);
  EXPECT_EQ(s.resident_blocks, 5u);
  EXPECT_EQ(s.peer_blocks, 8u);
  end_step(step);
}

TEST_P(CommitterPeers, RowsSeeAllOfWhatIsAttendedElsewhere) {
  ran(0, 256);
  ran(256, 384);
  // These rows complete the second leaf, and the first of them does not see all of it.
  const Step across = run(384, 512);
  for (const RemoteLeaves& r : across.remote) EXPECT_EQ(r.end_leaf, 1u);
  EXPECT_EQ(across.remote.size(), kAllLayers);
  end_step(across);
  end_transfers(across);
  const Step behind = run(512, 513);
  for (const RemoteLeaves& r : behind.remote) EXPECT_EQ(r.end_leaf, 2u);
  EXPECT_EQ(behind.remote.size(), kAllLayers);
  end_step(behind);
  end_transfers(behind);
}

TEST_P(CommitterPeers, ALeafOfWhichABlockIsHereParts) {
  ran(0, 256);
  ran(256, 512);
  ran(512, 768);
  ran(768, 790);
  // Block 5, of the second leaf, comes to the device in the last layer group.
  const uint32_t group = groups() - 1;
  for (const Transfer& t : cache_
                               .add_copies({Verb::kAdd,
                                            kRemote,
                                            {320, 384},
                                            LayerSet::one(group),
                                            Form::kKv,
                                            Tier::kDevice,
                                            Trigger::kNow},
                                           false)
                               .transfers) {
    cache_.transfer_ended(t.id, {});
  }
  const SequenceCells s = cache_.summary(kRemote);
  EXPECT_EQ(s.blocks - s.resident_blocks - s.peer_blocks, 3u);
  const Step step = run(790, 792);
  std::vector<RemoteLeaves> expected;
  std::vector<uint64_t> lie_there;
  uint32_t staged = 0;
  const auto add = [&](uint32_t layer, uint32_t first, uint32_t end) {
    expected.push_back({layer, 0, first, end, static_cast<uint32_t>(lie_there.size())});
    for (uint64_t at : pieces(4 * first, 4 * (end - first), layer)) lie_there.push_back(at);
  };
  for (uint32_t layer = 0; layer < kAllLayers; ++layer) {
    const bool parted = g().group_of(layer) == group;
    add(layer, 0, parted ? 1 : 3);
    if (parted) add(layer, 2, 3);
    staged += parted ? 3 : 0;
    EXPECT_EQ(has_planes(step, 5, layer), parted);
    EXPECT_EQ(has_planes(step, 4, layer), parted);
    EXPECT_FALSE(has_planes(step, 0, layer));
    EXPECT_FALSE(has_planes(step, 11, layer));
  }
  EXPECT_EQ(step.remote, expected);
  EXPECT_EQ(step.remote_pieces, lie_there);
  EXPECT_EQ(slots(step).size(), staged);
  end_step(step);
  end_transfers(step);
}

TEST_P(CommitterPeers, RowsWaitForWhatIsStillOnItsWayThere) {
  const Step first = run(0, 256);
  const Step second = run(256, 512);
  // Of a cell every layer must have come, whatever layer is attended; each is waited for once.
  std::vector<TransferWait> expected;
  for (uint32_t layer = 0; layer < kAllLayers; ++layer) {
    for (uint32_t l = 0; l < kAllLayers; ++l) {
      if (g().group_of(l) == g().group_of(layer))
        expected.push_back({layer, 0, first.transfers[l].transfer.id});
    }
  }
  std::vector<TransferWait> waits;
  for (const TransferWait& w : second.waits) {
    if (!w.any_end) waits.push_back(w);
  }
  EXPECT_EQ(waits, expected);
  for (uint32_t i = 1; i < second.waits.size(); ++i) {
    EXPECT_LE(second.waits[i - 1].layer, second.waits[i].layer);
  }
  end_step(first);
  end_transfers(first);
  const Step third = run(512, 513);
  for (const TransferWait& w : third.waits) {
    const bool of_first = std::any_of(first.transfers.begin(), first.transfers.end(),
                                      [&](const StepTransfer& f) { return f.transfer.id == w.transfer; });
    EXPECT_FALSE(of_first) << "that has ended";
  }
  EXPECT_EQ(third.remote.front().end_leaf, 2u);
  end_step(second);
  end_transfers(second);
  end_step(third);
  end_transfers(third);
}

// A step that attends at peers is no transfer of its sequence's, and yet it holds what it reads.
TEST_P(CommitterPeers, WhatAStepReadsStaysUntilItHasEnded) {
  ran(0, 256);
  ran(256, 280);
  const Step step = run(280, 281);
  EXPECT_EQ(step.remote.size(), kAllLayers);
  EXPECT_EQ(cache_.summary(kRemote).transfers, 0u);
  EXPECT_EQ(cache_.check_integrity().message(), "");
  cache_.remove_sequence(kRemote);
  EXPECT_EQ(cache_.map().idle(Tier::kHost).size(), 0u) << "it may not be used yet";
  std::vector<uint32_t> cells(4 * groups());
  std::iota(cells.begin(), cells.end(), 0);
  cache_.close_borrowed(cells);
  EXPECT_THAT(cache_.take_departed(), IsEmpty());
  StepResult result;
  result.id = step.id;
  committer_.step_ended(result);
  EXPECT_EQ(cache_.take_departed().size(), cells.size());
}

INSTANTIATE_TEST_SUITE_P(LayersPerGroup, CommitterPeers, testing::Values(1, 2, 4));

}  // namespace
}  // namespace kvasir
