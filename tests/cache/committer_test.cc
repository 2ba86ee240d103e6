// Plans made concrete: frames, token ids and references to tokens that are still being sampled.
#include "cache/commit/committer.h"

#include <gtest/gtest.h>

#include <set>
#include <vector>

namespace kvasir {
namespace {

constexpr SeqId kFirst{1}, kSecond{2};

class CommitterTest : public testing::Test {
 protected:
  CommitterTest() : cache_(options()), committer_(cache_, nullptr) {}
  ~CommitterTest() override { EXPECT_EQ(cache_.check_integrity().message(), ""); }

  static CacheOptions options() {
    CacheOptions o;
    o.geometry = {16, 4, 2, 8};
    o.device_bytes = o.geometry.kv_block_bytes() * 8;
    return o;
  }
  static Rows rows(SeqId seq, uint32_t begin, uint32_t end, bool samples) {
    Rows r;
    r.seq = seq;
    r.tokens = {begin, end};
    r.layers = LayerSet::all(2);
    r.writes.kv = r.layers;
    r.samples = samples;
    return r;
  }

  KvCache cache_;
  Committer committer_;
};

TEST_F(CommitterTest, ResolvesRowsToTokensAndFrames) {
  cache_.add_sequence(kFirst, {10, 11, 12}, "");
  cache_.add_sequence(kSecond, std::vector<Token>(20, 7), "");
  StepPlan plan;
  plan.promises = {{kSecond, 4, Tier::kDevice, Promise::Kind::kOwn}};
  plan.rows = {rows(kFirst, 0, 3, true), rows(kSecond, 0, 18, false)};
  const Step step = committer_.apply(plan, StepId{1});
  EXPECT_EQ(step.id, StepId{1});
  EXPECT_EQ(step.groups, 2u);
  EXPECT_EQ(step.row_count(), 21u);
  ASSERT_EQ(step.slices.size(), 2u);
  EXPECT_EQ(step.token_ids[1], 11);
  EXPECT_EQ(step.slices[1].first_token, 3u);
  EXPECT_EQ(step.slices[1].blocks, 2u);
  EXPECT_TRUE(step.slices[0].samples);
  EXPECT_FALSE(step.slices[1].samples);
  std::set<uint64_t> offsets;
  for (const StepSlice& slice : step.slices) {
    for (const KvPlanes& planes : *slice.table) {
      offsets.insert(planes.k);
      offsets.insert(planes.v);
    }
  }
  EXPECT_EQ(offsets.size(), 3u * 2 * 2) << "3 blocks of 2 groups of 2 planes, none twice";
  EXPECT_EQ(cache_.summary(kSecond).promised_cells[0], 0u);
  EXPECT_TRUE(step.staged.empty());
  EXPECT_TRUE(step.transfers.empty());
  EXPECT_TRUE(step.waits.empty());
}

TEST_F(CommitterTest, ATokenThatIsStillBeingSampledIsNamedByReference) {
  cache_.add_sequence(kFirst, {10, 11, 12}, "");
  StepPlan plan;
  plan.rows = {rows(kFirst, 0, 3, true)};
  committer_.apply(plan, StepId{1});
  plan.rows = {rows(kFirst, 3, 4, true)};
  const Step step = committer_.apply(plan, StepId{2});
  EXPECT_TRUE(step.slices[0].last_token_by_reference);
  EXPECT_EQ(step.token_ids, std::vector<Token>{-1});
  cache_.step_ended(StepId{1}, true, {});
  cache_.append_token(kFirst, 42);
  cache_.append_token(kFirst, 43);
  plan.rows = {rows(kFirst, 4, 5, true)};
  const Step known = committer_.apply(plan, StepId{3});
  EXPECT_FALSE(known.slices[0].last_token_by_reference);
  EXPECT_EQ(known.token_ids, std::vector<Token>{43});
}

TEST_F(CommitterTest, DropsBeforeItAdoptsAndAdoptsBeforeItAllocates) {
  cache_.add_sequence(kFirst, std::vector<Token>(40, 1), "");
  StepPlan plan;
  plan.rows = {rows(kFirst, 0, 40, true)};
  committer_.apply(plan, StepId{1});
  cache_.step_ended(StepId{1}, true, {});
  cache_.add_sequence(kSecond, std::vector<Token>(120, 1), "");
  ASSERT_EQ(cache_.cached(kSecond).matched, 2u);
  // B needs all 8 blocks: 2 that it adopts, and 6 of which one is what A drops.
  plan = {};
  plan.preemptions = {{kFirst}};
  plan.copies = {{Verb::kDropAll, kFirst, {}, {}, Form::kKv, Tier::kDevice, Trigger::kNow}};
  plan.adoptions = {{kSecond, 32}};
  plan.promises = {{kSecond, 12, Tier::kDevice, Promise::Kind::kOwn}};
  plan.rows = {rows(kSecond, 32, 120, true)};
  const Step step = committer_.apply(plan, StepId{2});
  EXPECT_EQ(step.slices[0].blocks, 8u);
  EXPECT_EQ(cache_.summary(kFirst).ready_tokens, 0u);
  cache_.step_ended(StepId{2}, true, {});
}

TEST_F(CommitterTest, APreemptionEndsAPromiseAndKeepsCellsThatAreNotDropped) {
  cache_.add_sequence(kFirst, std::vector<Token>(60, 1), "");
  StepPlan plan;
  plan.promises = {{kFirst, 8, Tier::kDevice, Promise::Kind::kOwn}};
  plan.rows = {rows(kFirst, 0, 20, false)};
  committer_.apply(plan, StepId{1});
  cache_.step_ended(StepId{1}, true, {});
  plan = {};
  plan.preemptions = {{kFirst}};
  const Step step = committer_.apply(plan, StepId{2});
  EXPECT_TRUE(step.slices.empty());
  EXPECT_EQ(cache_.summary(kFirst).promised_cells[0], 0u);
  EXPECT_EQ(cache_.summary(kFirst).ready_tokens, 20u);
  EXPECT_EQ(cache_.summary(kFirst).kv_cells(Tier::kDevice), 4u);
}

}  // namespace
}  // namespace kvasir
