// Equation 5 of LayerKV, stage by stage. Blocks have 16 tokens and four cells; a stage is 16 decode steps.
#include "sched/mechanisms/availability_forecast.h"

#include <gtest/gtest.h>

#include <vector>

#include "fakes/layered_views.h"

namespace kvasir::test {
namespace {

std::vector<int64_t> forecast(const View& view, uint32_t stages) {
  const PlanBuilder builder(view);
  const AvailabilityForecast f(view, builder, stages);
  std::vector<int64_t> out;
  for (uint32_t t = 0; t <= stages; ++t) out.push_back(f.available(t));
  return out;
}
using Cells = std::vector<int64_t>;

// 40 tokens in three blocks, 12 cells, of a prompt of 20 that ends at 200 at the latest. Where outputs of its
// class have a median of `median` tokens.
SeqView forty(uint64_t id, uint32_t median, View& view) {
  SeqView s = layered_resident(id, 20, 40);
  s.max_total_tokens = 200;
  view.length_classes.push_back({.low = 1, .high = 1000, .median_tokens = median});
  s.predicted = {.output_tokens = 1, .length_class = static_cast<uint8_t>(view.length_classes.size() - 1)};
  return s;
}

TEST(AvailabilityForecast, WithoutRequestsAllStaysAvailable) {
  EXPECT_EQ(forecast(layered_view(100, 0), 3), (Cells{100, 100, 100, 100}));
}

TEST(AvailabilityForecast, GrowsByItsOwnLength) {
  // 40 tokens; at 56 it has 4 blocks, at 72 five, at 88 six: four cells more each.
  View view = layered_view(100, 0);
  view.running = {layered_resident(1, 20, 40)};
  EXPECT_EQ(forecast(view, 3), (Cells{100, 96, 92, 88}));
  // 33 tokens with two blocks: the newest token needs the third. At 49 it has four, at 65 five.
  view.running = {layered_resident(1, 20, 33)};
  EXPECT_EQ(forecast(view, 2), (Cells{100, 92, 88}));
}

TEST(AvailabilityForecast, ReleasedAtTheMedian) {
  // Of 50 tokens of output 20 are there: 30 steps, which end in stage 2. Until then it grows at 56 to four
  // blocks and at 72 to five; then its 12 cells and those 8 come back. 100, 96, 92 + 20.
  View view = layered_view(100, 0);
  view.running = {forty(1, 50, view)};
  EXPECT_EQ(forecast(view, 4), (Cells{100, 96, 112, 112, 112}));
  const PlanBuilder builder(view);
  // Its fifth block comes before what it gives back.
  EXPECT_EQ(AvailabilityForecast(view, builder, 4).least(), 92);
  EXPECT_EQ(AvailabilityForecast(view, builder, 1).least(), 96);
}

TEST(AvailabilityForecast, AStageLastsUntilItsLastStep) {
  // 32 steps are two stages to the last; with 33 it takes a third, with 16 one.
  for (const auto& [median, expected] : std::vector<std::pair<uint32_t, Cells>>{
           {36, {100, 112, 112, 112}}, {52, {100, 96, 112, 112}}, {53, {100, 96, 92, 112}}}) {
    View view = layered_view(100, 0);
    view.running = {forty(1, median, view)};
    EXPECT_EQ(forecast(view, 3), expected) << median;
  }
}

TEST(AvailabilityForecast, ARequestBeyondTheMedianIsNotExpectedToEnd) {
  // 20 tokens of output are there: of a median of 20 none is left, and of 15 less than none.
  for (uint32_t median : {15u, 20u}) {
    View view = layered_view(100, 0);
    view.running = {forty(1, median, view)};
    EXPECT_EQ(forecast(view, 3), (Cells{100, 96, 92, 88})) << median;
  }
}

TEST(AvailabilityForecast, WithoutAMedianThePredictionItself) {
  View view = layered_view(100, 0);
  view.running = {forty(1, 0, view)};
  view.running[0].predicted.output_tokens = 30;  // 10 steps: stage 1
  EXPECT_EQ(forecast(view, 2), (Cells{100, 112, 112}));
}

TEST(AvailabilityForecast, NoneGrowsBeyondItsGreatestLength) {
  // 60 tokens at the most, four blocks. Its end is unknown.
  View view = layered_view(100, 0);
  view.running = {layered_resident(1, 20, 40)};
  view.running[0].max_total_tokens = 60;
  EXPECT_EQ(forecast(view, 3), (Cells{100, 96, 96, 96}));
  // By its median of 100 it would have 80 steps, and has 20: they end in stage 2.
  view.running = {forty(1, 100, view)};
  view.running[0].max_total_tokens = 60;
  EXPECT_EQ(forecast(view, 3), (Cells{100, 96, 112, 112}));
}

TEST(AvailabilityForecast, WhatIsPromisedIsTakenAlready) {
  // Four of the 100 cells are promised to it, the next block. They come back with it.
  View view = layered_view(100, 0);
  view.running = {forty(1, 50, view)};
  view.running[0].promised_cells[0] = 4;
  view.device.promised[0] = 4;
  EXPECT_EQ(forecast(view, 2), (Cells{96, 96, 112}));
}

TEST(AvailabilityForecast, WhatLeavesIsNotCountedTwice) {
  // Four cells are given up as soon as they have been copied: they are coming, and of its 12 eight are left
  // to be released, beside the eight by which it has grown.
  View view = layered_view(100, 0);
  view.running = {forty(1, 50, view)};
  view.running[0].leaving_cells = 4;
  view.device.coming[0] = 4;
  EXPECT_EQ(forecast(view, 2), (Cells{104, 100, 112}));
}

TEST(AvailabilityForecast, OfSharedBlocksOnlyWhatItHoldsAlone) {
  // 8 of its 12 cells are others', too: 4 and the 8 of its growth come back.
  View view = layered_view(100, 0);
  view.running = {forty(1, 50, view)};
  view.running[0].own_cells[0][0] = 4;
  EXPECT_EQ(forecast(view, 2), (Cells{100, 96, 104}));
}

TEST(AvailabilityForecast, ARequestWithLayersAwayDoesNotGrow) {
  View view = layered_view(100, 100);
  SeqView away = layered_seq(1, 20, 40, layers({1, 3}));
  view.length_classes = {{.low = 1, .high = 1000, .median_tokens = 25}};
  away.predicted = {.output_tokens = 25, .length_class = 0};
  view.running = {away};
  EXPECT_EQ(forecast(view, 3), (Cells{100, 100, 100, 100}));
}

TEST(AvailabilityForecast, AddsUpAndMayLack) {
  // Two grow by four cells in each stage; the first ends in stage 2. 6, -2, -10 + 20, and 4 fewer then.
  View view = layered_view(6, 0);
  view.running = {forty(1, 50, view), layered_resident(2, 20, 40)};
  EXPECT_EQ(forecast(view, 3), (Cells{6, -2, 10, 6}));
  const PlanBuilder builder(view);
  EXPECT_EQ(AvailabilityForecast(view, builder, 3).least(), -10);
}

TEST(AvailabilityForecast, BeginsWithWhatThePlanLeaves) {
  View view = layered_view(100, 100);
  view.running = {layered_resident(1, 20, 40)};
  view.waiting = {layered_waiting(2, 40)};
  PlanBuilder builder(view);
  ASSERT_TRUE(builder.admit(view.waiting[0]));  // 12 cells
  EXPECT_EQ(AvailabilityForecast(view, builder, 1).available(0), 88);
  builder.release(view.running[0], {0, 32}, layers({3}), Tier::kDevice);  // two are coming
  EXPECT_EQ(AvailabilityForecast(view, builder, 1).available(0), 90);
}

TEST(AvailabilityForecast, WithSurvivalARequestBeyondTheMedianEndsToo) {
  // Of a predicted 1 token 20 are there, so half of that is believed to be left: 10 steps, one stage, in
  // which it begins no block; its 12 cells come back.
  View view = layered_view(100, 0);
  view.running = {forty(1, 15, view)};
  const PlanBuilder builder(view);
  const RestOfOutput rest;
  EXPECT_EQ(AvailabilityForecast(view, builder, 1).available(1), 96);
  EXPECT_EQ(AvailabilityForecast(view, builder, 1, &rest).available(1), 112);
}

}  // namespace
}  // namespace kvasir::test
