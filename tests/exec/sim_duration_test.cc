// How long simulated steps take: rows by the layers that they pass, and projections.
#include <gtest/gtest.h>

#include <memory>
#include <utility>

#include "exec/sim/sim_executor.h"

namespace kvasir::test {
namespace {

// Four layers; sums are exact in a double.
class SimDurationTest : public testing::Test {
 protected:
  static SimExecutor::Options options() {
    SimExecutor::Options o;
    o.times = std::make_shared<LinearTimes>(100, 64, 16, 0.25, 0.5);
    o.layers = 4;
    return o;
  }

  static StepSlice slice(uint64_t seq, Interval tokens, RowKind kind, uint32_t end_layer = UINT32_MAX) {
    StepSlice s;
    s.seq = SeqId{seq};
    s.tokens = tokens;
    s.kind = kind;
    s.end_layer = end_layer;
    return s;
  }
  // Beyond what any step takes, in microseconds.
  Nanos micros(std::vector<StepSlice> slices, std::vector<KvProjection> projections = {}) {
    Step step;
    step.slices = std::move(slices);
    step.projections = std::move(projections);
    return executor_.duration(step) / kNanosPerMicro - 100;
  }

  VirtualClock clock_;
  SimExecutor executor_{options(), clock_};
};

TEST_F(SimDurationTest, RowsTakeTheShareOfTheLayersThatTheyPass) {
  // Two rows, of 64 us each in four layers; they attend to 7 and 8 tokens.
  const Interval rows{6, 8};
  const RowKind kind = RowKind::kRestore;
  EXPECT_EQ(micros({slice(1, rows, kind)}), 128 + 3);  // 0.25 * 15 = 3.75
  EXPECT_EQ(micros({slice(1, rows, kind, 4)}), 128 + 3);
  EXPECT_EQ(micros({slice(1, rows, kind, 1)}), 32);  // K and V of a layer, and attends to nothing
  EXPECT_EQ(micros({slice(1, rows, kind, 2)}), 64);  // attends in one of four: 0.93
  EXPECT_EQ(micros({slice(1, {0, 1}, RowKind::kDecode)}), 16);
  EXPECT_EQ(micros({slice(1, rows, kind, 2), slice(1, {8, 9}, RowKind::kDecode)}), 64 + 16 + 3);
}

TEST_F(SimDurationTest, WhatPeersAttendToIsNoWorkHere) {
  Step step;
  step.slices = {slice(1, {1024, 1026}, RowKind::kRestore), slice(2, {2047, 2048}, RowKind::kDecode),
                 slice(3, {1024, 1025}, RowKind::kRestore, 3)};
  // Of the first slice 512 tokens in two of four layers, of the second 1024 in one, of the third 768 in the
  // two in which it attends.
  step.remote = {{0, 0, 1, 2, 0}, {0, 0, 3, 4, 0}, {0, 2, 0, 3, 0},
                 {1, 0, 0, 2, 0}, {1, 1, 0, 4, 0}, {1, 2, 1, 4, 0}};
  const StepLoad load = load_of(step, 4);
  ASSERT_EQ(load.chunks.size(), 2u);
  EXPECT_EQ(load.chunks[0].remote, 256);
  EXPECT_EQ(load.chunks[0].history, 1024 - 256);
  EXPECT_EQ(load.chunks[0].pairs(), 2 * (1024 - 256) + 3);
  EXPECT_EQ(load.chunks[1].remote, 768);
  EXPECT_EQ(load.chunks[1].history, 256);
  EXPECT_EQ(load.decode_remote, 256);
  EXPECT_EQ(load.decode_context, 2048 - 256);
  // The second layer alone, as if the others were like it, and the third, of which all is here.
  step.index_by_layer();
  const StepLoad second = load_as_in(step, 1, 4);
  EXPECT_EQ(second.chunks[0].remote, 512);
  EXPECT_EQ(second.chunks[0].history, 1024 - 512);
  EXPECT_EQ(second.chunks[1].history, 1024 - 768);
  EXPECT_EQ(second.decode_remote, 1024);
  EXPECT_EQ(second.decode_context, 2048 - 1024);
  EXPECT_EQ(load_as_in(step, 2, 4).chunks[0].history, 1024);
  EXPECT_EQ(load_as_in(step, 2, 4).decode_context, 2048);
  const Nanos with_peers = executor_.duration(step);
  step.remote.clear();
  // 0.25 us for each pair: 2 * 256 of the chunk, 256 of the decode, half of 768 of the last.
  EXPECT_EQ(executor_.duration(step) - with_peers, (512 + 256 + 384) / 4 * kNanosPerMicro);
}

// An engine's 10 us, and 40 us for reading the weights.
struct TimesOfWeights final : StepTimes {
  double seconds(const StepLoad& load) const override {
    return 1e-6 * (10 + (load.chunks.empty() && load.decode_rows == 0 ? 0 : 40));
  }
};

TEST_F(SimDurationTest, RowsThatComputeAgainMayPassTheWeightsOnTheirOwn) {
  SimExecutor::Options o = options();
  o.times = std::make_shared<TimesOfWeights>();
  const SimExecutor executor(o, clock_);
  Step step;
  step.slices = {slice(1, {0, 16}, RowKind::kRestore), slice(1, {40, 41}, RowKind::kDecode)};
  EXPECT_EQ(executor.duration(step), 50 * kNanosPerMicro);
  step.hints.fuse = false;
  EXPECT_EQ(executor.duration(step), 90 * kNanosPerMicro);
  step.slices.erase(step.slices.begin());
  EXPECT_EQ(executor.duration(step), 50 * kNanosPerMicro) << "there are none";
}

// 100 us for the step and 16 for the decode, with 0.25 for each of 41 tokens: 126.25. One row that computes
// again takes 64.25, sixteen 16 x 64 + 136 x 0.25 = 1,058.
TEST_F(SimDurationTest, RowsThatComputeAgainMayCostNothingBesideALongerStep) {
  SimExecutor::Options o = options();
  o.restores_beside = true;
  const SimExecutor beside(o, clock_);
  Step few, many;
  few.slices = {slice(1, {0, 1}, RowKind::kRestore), slice(1, {40, 41}, RowKind::kDecode)};
  many.slices = {slice(1, {0, 16}, RowKind::kRestore), slice(1, {40, 41}, RowKind::kDecode)};
  EXPECT_EQ(executor_.duration(few), 190'500);
  EXPECT_EQ(beside.duration(few), 126'250);
  EXPECT_EQ(beside.duration(many), 1'058'000);
  many.hints.fuse = false;
  EXPECT_EQ(beside.duration(many), 126'250 + 1'058'000) << "one after the other";
}

TEST_F(SimDurationTest, ProjectionsCountByTokenAndWritesOfXDoNot) {
  KvProjection whole, part;
  whole.tokens = 16;
  part.layer = 1;
  part.tokens = 4;
  EXPECT_EQ(micros({}, {whole, part}), 8 + 2);
  Step step;
  step.slices.push_back(slice(1, {0, 8}, RowKind::kPrefill));
  const Nanos plain = executor_.duration(step);
  step.x_writes.resize(3);
  EXPECT_EQ(executor_.duration(step), plain);
}

TEST_F(SimDurationTest, OnlyTheSliceThatSamplesSamples) {
  Step step;
  step.slices = {slice(1, {0, 16}, RowKind::kRestore, 2), slice(1, {16, 32}, RowKind::kRecompute),
                 slice(1, {40, 41}, RowKind::kDecode)};
  step.slices[2].samples = true;
  executor_.submit(step);
  const StepResult result = executor_.wait();
  ASSERT_EQ(result.sampled.size(), 1u);
  EXPECT_EQ(result.sampled[0].token, executor_.token(SeqId{1}, 41));
  EXPECT_EQ(result.ended, executor_.duration(step));

  step.slices[0].samples = true;
  EXPECT_DEATH(executor_.submit(step), "passes 2 layers of 4");
}

}  // namespace
}  // namespace kvasir::test
