// What the committer arranges around the stage ring, worked by hand: planes, transfers and where they start,
// waits. Blocks have 16 tokens; there are four layers, in groups of one, two or all of them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cache/commit/committer.h"

namespace kvasir {
namespace {

using testing::Contains;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;

constexpr SeqId kStaged{1};
constexpr uint32_t kLayers = 4;
constexpr uint64_t kPlane = 16 * 8;  // of one layer

// Keeps what is started, and ends it when told.
class HandLink final : public Link {
 public:
  void start(Transfer transfer) override { started.push_back(std::move(transfer)); }
  void cancel(TransferId) override {}
  TransferState wait(TransferId, Nanos) override { return TransferState::kPending; }
  std::vector<TransferDone> completed() override { return std::exchange(done, {}); }
  void set_wake(std::function<void()>) override {}
  LinkStats stats() const override { return {}; }
  void end(TransferId id) { done.push_back({id, Status(), 0, 0}); }

  std::vector<Transfer> started;
  std::vector<TransferDone> done;
};

class CommitterStaging : public testing::TestWithParam<uint32_t> {
 protected:
  explicit CommitterStaging(uint32_t ring_blocks = 4)
      : cache_(options(GetParam(), ring_blocks)), committer_(cache_, &link_), all_(LayerSet::all(groups())) {}
  ~CommitterStaging() override { EXPECT_EQ(cache_.check_integrity().message(), ""); }

  static CacheOptions options(uint32_t layers_per_group, uint32_t ring_blocks) {
    CacheOptions o;
    o.geometry = {16, kLayers, layers_per_group, 8};
    o.device_bytes = o.geometry.kv_block_bytes() * 8;
    o.host_bytes = o.geometry.kv_block_bytes() * 8;
    o.stage_bytes = 2 * kPlane * ring_blocks;
    return o;
  }
  uint32_t groups() const { return cache_.geometry().groups(); }
  uint32_t group(uint32_t layer) const { return cache_.geometry().group_of(layer); }
  uint64_t ring(uint32_t slot) const { return cache_.options().device_bytes + 2 * kPlane * slot; }

  Rows rows(uint32_t begin, uint32_t end, const LayerSet& keep) const {
    Rows r;
    r.seq = kStaged;
    r.tokens = {begin, end};
    r.layers = all_;
    r.writes.kv = keep;
    return r;
  }
  CopyChange change(Verb verb, Interval tokens, const LayerSet& layers, Tier tier, Trigger trigger) const {
    return {verb, kStaged, tokens, layers, Form::kKv, tier, trigger};
  }

  // [0, 40) was written through: two full blocks on the host alone, a tail on the device. Four of the ring's
  // slots have been used twice over. Its transfers have ended.
  void write_through_40() {
    std::vector<Token> tokens(60);
    std::iota(tokens.begin(), tokens.end(), 0);
    cache_.add_sequence(kStaged, tokens, "");
    StepPlan plan;
    plan.copies = {change(Verb::kAdd, {0, 32}, all_, Tier::kHost, Trigger::kAfterLayerWrites)};
    plan.rows = {rows(0, 40, {})};
    written_ = committer_.apply(plan, StepId{1});
    for (const StepTransfer& f : written_.transfers) link_.end(f.transfer.id);
    end_step(written_.id);
  }
  void end_step(StepId id) {
    StepResult result;
    result.id = id;
    EXPECT_THAT(committer_.step_ended(result), IsEmpty());
  }
  // The step of rows [40, 44), the history staged.
  Step staged_step() {
    StepPlan plan;
    plan.copies = {change(Verb::kStage, {0, 40}, all_, Tier::kDevice, Trigger::kBeforeLayer)};
    plan.rows = {rows(40, 44, all_)};
    return committer_.apply(plan, StepId{2});
  }
  static std::vector<StepPoint> start_points(const Step& step) {
    std::vector<StepPoint> out;
    for (const StepTransfer& f : step.transfers) out.push_back(f.start_at);
    return out;
  }
  // K and V of a block each, also where those of several lie in a row and make one segment.
  static std::vector<Segment> by_block(const Transfer& transfer) {
    std::vector<Segment> out;
    for (Segment s : transfer.segments) {
      for (uint64_t left = s.bytes; left > 0; left -= 2 * kPlane) {
        out.push_back({s.from, s.to, 2 * kPlane});
        s.from.offset += 2 * kPlane;
        s.to.offset += 2 * kPlane;
      }
    }
    return out;
  }
  // Where K of one layer of a block is on the host.
  uint64_t on_host(uint32_t block, uint32_t layer) const {
    const BlockMap::Block& b = cache_.block(cache_.blocks_of(kStaged)[block]);
    return b.at({Form::kKv, Tier::kHost}).by_group[group(layer)].at +
           cache_.geometry().layer_in_group(layer) * 2 * kPlane;
  }

  HandLink link_;
  KvCache cache_;
  Committer committer_;
  const LayerSet all_;
  Step written_;
};

TEST_P(CommitterStaging, WhatRowsWriteGoesThroughTheRingWhenItsLayerIsWritten) {
  write_through_40();
  // Two slots for each layer; the ring of four is used up after layer 1 and goes round.
  EXPECT_THAT(start_points(written_),
              ElementsAre(layer_written(0), layer_written(1), layer_written(2), layer_written(3)));
  const StepSlice& slice = written_.slices[0];
  ASSERT_EQ(slice.blocks, 3u);
  ASSERT_EQ(slice.staged_blocks, (Interval{0, 2})) << "the last block has a frame";
  ASSERT_EQ(written_.staged.size(), kLayers * 2u);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const Transfer& out = written_.transfers[layer].transfer;
    EXPECT_EQ(out.priority, TransferPriority::kPrefetch);
    // Behind the one that had the slots before, also if the rows should not have waited for that.
    if (layer < 2) {
      EXPECT_THAT(out.after, IsEmpty());
    } else {
      EXPECT_THAT(out.after, ElementsAre(written_.transfers[layer - 2].transfer.id));
    }
    const std::vector<Segment> segments = by_block(out);
    ASSERT_EQ(segments.size(), 2u);
    for (uint32_t block = 0; block < 2; ++block) {
      const uint64_t slot = ring((2 * layer + block) % 4);
      EXPECT_EQ(written_.planes(cache_.geometry(), slice, block, layer), (KvPlanes{slot, slot + kPlane}));
      EXPECT_EQ(segments[block].from, (MemoryAddress{slot, Tier::kDevice}));
      EXPECT_EQ(segments[block].to, (MemoryAddress{on_host(block, layer), Tier::kHost}));
    }
  }
  // A write into a slot waits until the bytes before have left it.
  std::vector<std::pair<uint32_t, TransferId>> waits;
  for (const TransferWait& w : written_.waits) waits.emplace_back(w.layer, w.transfer);
  const TransferId first = written_.transfers[0].transfer.id, second = written_.transfers[1].transfer.id;
  EXPECT_THAT(waits, ElementsAre(std::pair(2u, first), std::pair(3u, second)));
  const SequenceCells s = cache_.summary(kStaged);
  EXPECT_EQ(s.kv_cells(Tier::kHost), 2 * groups());
  EXPECT_EQ(s.kv_cells(Tier::kDevice), groups());
  EXPECT_EQ(s.resident_blocks, 1u);
}

TEST_P(CommitterStaging, AHistoryIsStagedLayerByLayerAsSlotsComeFree) {
  write_through_40();
  const Step step = staged_step();
  // The ring has room for two layers of two blocks: the first two come at once, the others when one of those
  // has attended.
  EXPECT_THAT(start_points(step),
              ElementsAre(kStepBegins, kStepBegins, layer_attended(0), layer_attended(1)));
  ASSERT_EQ(step.waits.size(), kLayers);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const Transfer& in = step.transfers[layer].transfer;
    EXPECT_EQ(in.priority, TransferPriority::kNeededNow);
    EXPECT_EQ(step.waits[layer].layer, layer);
    EXPECT_EQ(step.waits[layer].slice, 0u);
    EXPECT_EQ(step.waits[layer].transfer, in.id);
    const std::vector<Segment> segments = by_block(in);
    ASSERT_EQ(segments.size(), 2u);
    for (uint32_t block = 0; block < 2; ++block) {
      const KvPlanes at = step.planes(cache_.geometry(), step.slices[0], block, layer);
      EXPECT_EQ(segments[block].from, (MemoryAddress{on_host(block, layer), Tier::kHost}));
      EXPECT_EQ(segments[block].to, (MemoryAddress{at.k, Tier::kDevice}));
      EXPECT_EQ(at.v, at.k + kPlane);
    }
    if (layer >= 2) {
      EXPECT_THAT(in.after, ElementsAre(step.transfers[layer - 2].transfer.id));
    }
  }
  // What a younger step stages waits for the older one's transfers into the same slots.
  StepPlan plan;
  plan.copies = {change(Verb::kStage, {0, 44}, all_, Tier::kDevice, Trigger::kBeforeLayer)};
  plan.rows = {rows(44, 48, all_)};
  const Step next = committer_.apply(plan, StepId{3});
  EXPECT_THAT(next.transfers[0].transfer.after, ElementsAre(step.transfers[2].transfer.id));
  EXPECT_EQ(next.transfers[0].start_at, kStepBegins);
  for (const Step* s : {&step, &next}) {
    for (const StepTransfer& f : s->transfers) link_.end(f.transfer.id);
    end_step(s->id);
  }
}

TEST_P(CommitterStaging, GroupsThatAreKeptNeedNoRing) {
  std::vector<Token> tokens(60);
  cache_.add_sequence(kStaged, tokens, "");
  LayerSet keep;  // no interval where there are four groups
  for (uint32_t g = 0; g < groups(); g += 2) keep.add(g);
  StepPlan plan;
  plan.copies = {change(Verb::kAdd, {0, 32}, all_ - keep, Tier::kHost, Trigger::kAfterLayerWrites)};
  if (keep == all_) plan.copies.clear();
  plan.rows = {rows(0, 40, keep)};
  const Step step = committer_.apply(plan, StepId{1});
  std::vector<StepPoint> expected;
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    const bool kept = keep.contains(group(layer));
    if (!kept) expected.push_back(layer_written(layer));
    for (uint32_t block = 0; block < 3; ++block) {
      const KvPlanes at = step.planes(cache_.geometry(), step.slices[0], block, layer);
      EXPECT_EQ(at.k >= cache_.options().device_bytes, !kept && block < 2) << layer << " " << block;
    }
  }
  EXPECT_EQ(start_points(step), expected);
  EXPECT_EQ(step.staged.empty(), keep == all_);
  for (const StepTransfer& f : step.transfers) link_.end(f.transfer.id);
  end_step(step.id);
}

TEST_P(CommitterStaging, WhatIsWrittenIntoFramesLeavesAsAWholeWhenItsGroupIsWritten) {
  std::vector<Token> tokens(60);
  cache_.add_sequence(kStaged, tokens, "");
  StepPlan plan;
  plan.copies = {change(Verb::kAdd, {0, 32}, all_, Tier::kHost, Trigger::kAfterLayerWrites)};
  plan.rows = {rows(0, 40, all_)};
  const Step step = committer_.apply(plan, StepId{1});
  EXPECT_TRUE(step.staged.empty());
  EXPECT_THAT(step.waits, IsEmpty());
  ASSERT_EQ(step.transfers.size(), groups());
  for (uint32_t g = 0; g < groups(); ++g) {
    EXPECT_EQ(step.transfers[g].start_at, layer_written((g + 1) * GetParam() - 1));
    EXPECT_EQ(step.transfers[g].transfer.priority, TransferPriority::kOffload);
    EXPECT_EQ(step.transfers[g].transfer.segments.size(), 2u);
    EXPECT_EQ(step.transfers[g].transfer.bytes(), 4 * kPlane * GetParam());
  }
  for (const StepTransfer& f : step.transfers) link_.end(f.transfer.id);
  end_step(step.id);
  EXPECT_EQ(cache_.summary(kStaged).resident_blocks, 3u);
  EXPECT_EQ(cache_.summary(kStaged).kv_cells(Tier::kHost), 2 * groups());
}

TEST_P(CommitterStaging, RowsWaitForTheGroupsThatAreBroughtBack) {
  write_through_40();
  StepPlan plan;
  plan.copies = {change(Verb::kAdd, {0, 40}, all_, Tier::kDevice, Trigger::kBeforeLayer)};
  plan.rows = {rows(40, 44, all_)};
  const Step step = committer_.apply(plan, StepId{2});
  EXPECT_TRUE(step.staged.empty());
  EXPECT_THAT(step.transfers, IsEmpty()) << "they have begun";
  ASSERT_EQ(link_.started.size(), groups());
  ASSERT_EQ(step.waits.size(), groups());
  for (uint32_t g = 0; g < groups(); ++g) {
    EXPECT_EQ(link_.started[g].priority, TransferPriority::kNeededNow);
    EXPECT_EQ(step.waits[g].layer, g * GetParam()) << "of a group the first layer waits";
    EXPECT_EQ(step.waits[g].transfer, link_.started[g].id);
  }
  // A step that is made before they have come waits as well; one that is made after does not.
  plan.copies.clear();
  plan.rows = {rows(44, 46, all_)};
  EXPECT_EQ(committer_.apply(plan, StepId{3}).waits.size(), groups());
  for (const Transfer& t : link_.started) link_.end(t.id);
  committer_.drain_transfers();
  plan.rows = {rows(46, 47, all_)};
  EXPECT_THAT(committer_.apply(plan, StepId{4}).waits, IsEmpty());
  for (uint64_t id : {2, 3, 4}) end_step(StepId{id});
  EXPECT_EQ(cache_.summary(kStaged).resident_blocks, 3u);
}

TEST_P(CommitterStaging, WhatIsStagedNeedsWhatBringsItToTheHost) {
  std::vector<Token> tokens(60);
  cache_.add_sequence(kStaged, tokens, "");
  StepPlan plan;
  plan.copies = {change(Verb::kAdd, {0, 32}, all_, Tier::kHost, Trigger::kAfterLayerWrites)};
  plan.rows = {rows(0, 40, {})};
  const Step out = committer_.apply(plan, StepId{1});
  end_step(StepId{1});
  plan.copies = {change(Verb::kStage, {0, 40}, all_, Tier::kDevice, Trigger::kBeforeLayer)};
  plan.rows = {rows(40, 44, all_)};
  const Step in = committer_.apply(plan, StepId{2});
  ASSERT_EQ(in.transfers.size(), kLayers);
  for (uint32_t layer = 0; layer < kLayers; ++layer) {
    // A cell is ready when every layer of its group has come.
    std::vector<TransferId> bring;
    for (uint32_t l = 0; l < kLayers; ++l) {
      if (group(l) == group(layer)) bring.push_back(out.transfers[l].transfer.id);
    }
    EXPECT_EQ(in.transfers[layer].transfer.needs, bring) << layer;
  }
  // One of them fails: the sequence is cut back to where its cells are all there.
  link_.done.push_back({out.transfers[1].transfer.id, error(ErrorCode::kUnavailable, "lost"), 0, 0});
  committer_.drain_transfers();
  EXPECT_EQ(cache_.summary(kStaged).ready_tokens, 0u);
  EXPECT_THAT(cache_.take_cut_back(), ElementsAre(kStaged));
  for (const StepTransfer& f : out.transfers) {
    if (f.transfer.id != out.transfers[1].transfer.id) link_.end(f.transfer.id);
  }
  for (const StepTransfer& f : in.transfers) link_.end(f.transfer.id);
  StepResult result;
  result.id = StepId{2};
  EXPECT_THAT(committer_.step_ended(result), ElementsAre(kStaged)) << "what it read is gone";
}

INSTANTIATE_TEST_SUITE_P(LayersPerGroup, CommitterStaging, testing::Values(1, 2, 4));

}  // namespace
}  // namespace kvasir
