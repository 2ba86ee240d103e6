// What outlives its sequences: idle copies on every tier, adopted from wherever they are, saved and restored.
#include <gmock/gmock.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "cache/forms_fixture.h"

namespace kvasir::test {
namespace {

using testing::IsEmpty;

TEST_F(FormsTest, ABlockIsAdoptedFromWhereverEachCellIs) {
  computed(kA, 60, {all(), all()});
  // Block 0 stays; of block 1 there is KV on the host and X on the device; of block 2 X on the host and KV on
  // the disk.
  copy(kA, {16, 32}, kHostKv, group(0));
  copy(kA, {32, 48}, kHostX, group(0));
  copy(kA, {32, 48}, kDiskKv, group(1));
  drop(kA, {16, 48}, kDeviceKv);
  drop(kA, {16, 32}, kDeviceX, group(0));
  drop(kA, {32, 48}, kDeviceX);
  push_out();
  cache_.add_sequence(kB, tokens(60), "");
  EXPECT_EQ(cached(kB).matched, 3u);
  const std::vector<std::pair<Place, uint32_t>> expected = {
      {kDeviceKv, 2}, {kHostKv, 1}, {kDeviceX, 1}, {kHostX, 1}, {kDiskKv, 1}};
  for (const auto& [place, n] : expected) EXPECT_EQ(cached(kB, place), n) << index_of(place);
  EXPECT_EQ(cached(kB).what.idle, Adoptable().idle);
  cache_.remove_sequence(kA);
  for (const auto& [place, n] : expected) EXPECT_EQ(cached_idle(kB, place), n) << index_of(place);

  cache_.adopt(kB, 48);
  check();
  for (const auto& [place, n] : expected) EXPECT_EQ(cells(kB, place), n) << index_of(place);
  const SequenceCells s = cache_.summary(kB);
  EXPECT_EQ(s.ready_tokens, 48u);
  EXPECT_EQ(s.dropped_cells, 0u);
  EXPECT_EQ(s.resident_blocks, 1u);
  EXPECT_EQ(cache_.map().used_cells(Tier::kDevice, Form::kX), 1u) << "that of block 0 is idle still";
  // KV of which there is only X is for the step to make.
  const KvCache::Additions added = cache_.add_copies(
      {Verb::kAdd, kB, {0, 48}, all(), Form::kKv, Tier::kDevice, Trigger::kBeforeLayer}, true);
  EXPECT_EQ(added.projected.size(), 2u);
  EXPECT_EQ(added.transfers.size(), 2u);
  finish(added.transfers);
  EXPECT_EQ(cells(kB, kDeviceKv), 4u);
}

TEST_F(FormsTest, EachTierEvictsItsOwn) {
  computed(kA, 40, {all(), {}});
  copy(kA, {0, 32}, kHostKv, all());
  copy(kA, {0, 16}, kDiskKv, all());
  cache_.remove_sequence(kA);
  cache_.add_sequence(kB, tokens(40), "");
  EXPECT_EQ(cache_.map().idle_blocks(Tier::kDevice), 2u);
  EXPECT_EQ(cache_.map().idle_blocks(Tier::kHost), 2u);
  EXPECT_EQ(cache_.map().idle_blocks(Tier::kDisk), 1u);
  EXPECT_EQ(available(kDeviceKv), 24) << "what is idle can be had";
  EXPECT_EQ(available(kHostKv), 16);
  EXPECT_EQ(cached_idle(kB, kDeviceKv), 4u);
  push_out();
  EXPECT_EQ(cached(kB).matched, 2u);
  EXPECT_EQ(cached_idle(kB, kDeviceKv), 0u);
  EXPECT_EQ(cached_idle(kB, kHostKv), 4u);
  // The host fills up as well: the block that is on the disk can be found still.
  computed(kC, 8 * 16, {all(), {}}, 700);
  copy(kC, {0, 8 * 16}, kHostKv, all());
  EXPECT_EQ(cached(kB).matched, 1u);
  EXPECT_EQ(cached_idle(kB, kDiskKv), 2u);
  copy(kC, {0, 8 * 16}, kDiskKv, all());
  EXPECT_EQ(cached(kB).matched, 0u);
}

TEST_F(FormsTest, IdleBlocksGoToSlowerTiersAndOutliveTheProcess) {
  computed(kA, 40, {all(), {}});
  EXPECT_THAT(save_idle(), IsEmpty());
  cache_.remove_sequence(kA);
  for (int blocks = 0; blocks < 2; ++blocks) {
    const std::vector<Transfer> out = save_idle();
    check();
    ASSERT_EQ(out.size(), 2u) << "one block at a time, to the host and to the disk";
    EXPECT_EQ(available(kDeviceKv), 24 - 2) << "it is read";
    for (const Transfer& t : out) EXPECT_EQ(t.priority, TransferPriority::kOffload);
    finish(out);
  }
  EXPECT_THAT(save_idle(), IsEmpty());
  EXPECT_EQ(available(kDeviceKv), 24);
  const std::vector<DiskEntry> saved = cache_.saved_cells();
  ASSERT_EQ(saved.size(), 4u);
  std::set<uint64_t> places;
  for (const DiskEntry& c : saved) places.insert(c.offset);
  EXPECT_EQ(places.size(), 4u);

  KvCache next(options());
  EXPECT_EQ(next.restore(saved), 2u);
  EXPECT_EQ(next.restore(saved), 0u) << "they are there";
  EXPECT_EQ(next.check_integrity().message(), "");
  EXPECT_EQ(next.saved_cells().size(), 4u);
  next.add_sequence(kB, tokens(40), "");
  const PrefixIndex::Match found = next.cached(kB);
  EXPECT_EQ(found.matched, 2u);
  EXPECT_EQ(found.what.idle[index_of(kDiskKv)], 4u);
  next.adopt(kB, 32);
  const CopyChange back = {Verb::kAdd, kB, {0, 32}, all(), Form::kKv, Tier::kDevice, Trigger::kBeforeLayer};
  const std::vector<Transfer> in = next.add_copies(back, true).transfers;
  ASSERT_EQ(in.size(), 2u);
  for (const Transfer& t : in) {
    EXPECT_EQ(t.segments.size(), 2u * 2) << "on the disk each layer stands for itself";
    for (const Segment& s : t.segments) EXPECT_EQ(s.from.tier, Tier::kDisk);
    next.transfer_ended(t.id, Status());
  }
  EXPECT_EQ(next.summary(kB).resident_blocks, 2u);
  EXPECT_EQ(next.check_integrity().message(), "");
  next.add_sequence(kC, tokens(40), "other");
  EXPECT_EQ(next.cached(kC).matched, 0u);
}

// An eighth of 64 blocks may be on the way to each tier; on a link that moves three in the time that saves
// may take, three.
TEST(SavedBlocks, TakeNoMoreOfTheDeviceThanTheLinkMovesInTime) {
  CacheOptions options;
  options.geometry = {16, 4, 2, 8, 8};
  const uint64_t block = options.geometry.kv_block_bytes();
  options.device_bytes = options.host_bytes = 64 * block;
  options.disk_bytes = options.geometry.cell_stride(Form::kKv, Tier::kDisk) * 2 * 64;
  KvCache cache(options);
  std::vector<Token> tokens(40 * 16 + 8);
  std::iota(tokens.begin(), tokens.end(), 0);
  cache.add_sequence(SeqId{1}, std::move(tokens), "");
  StepSlice slice;
  slice.seq = SeqId{1};
  slice.tokens = {0, 40 * 16 + 8};
  cache.extend(SeqId{1}, slice.tokens.end, {LayerSet::all(2), {}}, StepId{1});
  cache.step_submitted(StepId{1}, {&slice, 1});
  cache.step_ended(StepId{1}, true, {});
  cache.remove_sequence(SeqId{1});

  const auto to = [](const std::vector<Transfer>& out, Tier tier) {
    return std::count_if(out.begin(), out.end(),
                         [&](const Transfer& t) { return t.segments.at(0).to.tier == tier; });
  };
  KvCache::BytesByTier ahead{};
  ahead[index_of(Tier::kHost)] = 3 * block + block / 2;
  const std::vector<Transfer> first = cache.save_idle(ahead);
  EXPECT_EQ(to(first, Tier::kHost), 3);
  EXPECT_EQ(to(first, Tier::kDisk), 1) << "one is always on its way";
  EXPECT_EQ(cache.budget(Tier::kDevice).available_cells(), 2 * (64 - 3));
  EXPECT_THAT(cache.save_idle(ahead), IsEmpty());
  ahead.fill(UINT64_MAX);
  const std::vector<Transfer> more = cache.save_idle(ahead);
  EXPECT_EQ(to(more, Tier::kHost), 64 / 8 - 3);
  EXPECT_EQ(to(more, Tier::kDisk), 64 / 8 - 1);
  for (const auto& list : {first, more}) {
    for (const Transfer& t : list) cache.transfer_ended(t.id, Status());
  }
  EXPECT_EQ(to(cache.save_idle(ahead), Tier::kDisk), 8);
  EXPECT_EQ(cache.check_integrity().message(), "");
}

// A block that is on the host alone is computed again, since that takes less time than fetching it.
TEST_F(FormsTest, ABlockOnTheDeviceTakesThePlaceOfOneOnASlowerTier) {
  computed(kA, 40, {all(), {}});
  copy(kA, {0, 32}, kHostKv, all());
  cache_.remove_sequence(kA);
  push_out();
  cache_.add_sequence(kC, tokens(40), "");
  EXPECT_EQ(cached(kC, kHostKv), 4u);
  EXPECT_EQ(available(kHostKv), 16);
  computed(kB, 40, {all(), {}});
  EXPECT_EQ(cached(kC).matched, 2u);
  EXPECT_EQ(cached(kC, kDeviceKv), 4u);
  EXPECT_EQ(cached(kC, kHostKv), 0u);
  // It has the copies on the host, too, and can be found there when it has left the device.
  cache_.remove_sequence(kB);
  push_out();
  EXPECT_EQ(cached(kC, kDeviceKv), 0u);
  EXPECT_EQ(cached_idle(kC, kHostKv), 4u);
}

TEST_F(FormsTest, ABlockThatASequenceHoldsOnASlowerTierKeepsItsPlace) {
  computed(kA, 40, {all(), {}});
  copy(kA, {0, 32}, kHostKv, all());
  drop(kA, {0, 32}, kDeviceKv);
  push_out();
  computed(kB, 40, {all(), {}});
  cache_.add_sequence(kC, tokens(40), "");
  EXPECT_EQ(cached(kC, kHostKv), 4u);
}

TEST_F(FormsTest, WhatASlowerTierHasNoRoomForIsNotSavedAgainAndAgain) {
  // Eleven blocks are idle on the device; the host and the disk have room for eight each.
  computed(kA, 11 * 16 + 8, {all(), {}});
  cache_.remove_sequence(kA);
  size_t transfers = 0;
  for (int round = 0; round < 100; ++round) {
    const std::vector<Transfer> out = save_idle();
    transfers += out.size();
    finish(out);
  }
  EXPECT_EQ(transfers, 2u * 11) << "each once to each tier";
  EXPECT_THAT(save_idle(), IsEmpty());
  // A block that was used again is saved again.
  cache_.add_sequence(kB, tokens(11 * 16 + 8), "");
  cache_.adopt(kB, 11 * 16);
  cache_.remove_sequence(kB);
  EXPECT_FALSE(save_idle().empty());
  check();
}

TEST_F(FormsTest, XIsSavedWhereThereIsNoKv) {
  computed(kA, 40, {all(), all()});
  copy(kA, {0, 16}, kDiskKv, group(0));
  copy(kA, {0, 32}, kDiskX, group(1));
  const std::vector<DiskEntry> saved = cache_.saved_cells();
  ASSERT_EQ(saved.size(), 2u) << "of the second block a cell is missing";
  EXPECT_EQ(saved[0].form, Form::kKv);
  EXPECT_EQ(saved[1].form, Form::kX);
  KvCache next(options());
  EXPECT_EQ(next.restore(saved), 1u);
  next.add_sequence(kB, tokens(40), "");
  EXPECT_EQ(next.cached(kB).matched, 1u);
  EXPECT_EQ(next.cached(kB).what.idle[index_of(kDiskX)], 1u);
  EXPECT_EQ(next.check_integrity().message(), "");
}

TEST_F(FormsTest, WhatCannotBeRestoredTakesNoRoom) {
  const BlockHash hash = {{1, 2}}, other = {{3, 4}};
  const uint64_t stride = options().geometry.cell_stride(Form::kKv, Tier::kDisk);
  const auto restore = [&](std::vector<DiskEntry> cells) {
    const size_t blocks = cache_.restore(cells);
    check();
    return blocks;
  };
  EXPECT_EQ(restore({{hash, Form::kKv, 0, 0}}), 0u) << "a cell is missing";
  EXPECT_EQ(restore({{hash, Form::kKv, 0, 0}, {hash, Form::kKv, 1, 0}}), 0u) << "both in one place";
  EXPECT_EQ(restore({{hash, Form::kKv, 0, 0}, {hash, Form::kKv, 2, stride}}), 0u);
  EXPECT_EQ(restore({{hash, Form::kKv, 0, 0}, {hash, Form::kKv, 1, stride + 1}}), 0u);
  EXPECT_EQ(restore({{hash, Form::kKv, 0, 0}, {hash, Form::kKv, 1, stride * 1000}}), 0u);
  EXPECT_EQ(cache_.budget(Tier::kDisk).spare_slabs, cache_.budget(Tier::kDisk).slabs);
  EXPECT_EQ(cache_.map().idle_blocks(Tier::kDisk), 0u);
  EXPECT_EQ(restore({{hash, Form::kKv, 0, 0},
                     {hash, Form::kKv, 1, stride},
                     {other, Form::kKv, 0, stride},
                     {other, Form::kKv, 1, 2 * stride}}),
            1u)
      << "the second wants a place that is taken";
  EXPECT_EQ(cache_.map().idle_blocks(Tier::kDisk), 1u);
}

}  // namespace
}  // namespace kvasir::test
