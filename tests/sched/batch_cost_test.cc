// Seconds of a step by the published formulas, to the letter and corrected, and by the fitted belief.
#include "sched/mechanisms/batch_cost.h"

#include <gtest/gtest.h>

#include "sched/costs.h"

namespace kvasir::test {
namespace {

// Llama-2-13B, and an A100 (312 tera-operations and 1.555 TB a second), with two bytes a number.
PublishedShape llama_13b() {
  PublishedShape s;
  s.hidden = 5120;
  s.layers = 40;
  s.vocabulary = 32'000;
  s.flops_per_s = 312e12;
  return s;
}

// Llama-2-70B's on four of them: grouped queries, a gated unit, and a bound by bandwidth.
PublishedShape llama_70b() {
  PublishedShape s;
  s.hidden = 8192;
  s.layers = 80;
  s.vocabulary = 32'000;
  s.feed_forward = 28'672;
  s.kv_hidden = 1024;
  s.flops_per_s = 4 * 312e12;
  s.bytes_per_s = 4 * 1.555e12;
  s.weight_bytes = 138e9;
  s.kv_bytes_per_token = 2 * 2 * 80 * 1024;
  return s;
}

// Equation 3 multiplies the output layer by the length: 5.1e11 of the 5.4e11 operations for a token.
TEST(BatchCost, ToTheLetterADecodedTokenTakesLongerTheLongerItsRequestIs) {
  const BatchCost cost = BatchCost::letter(llama_13b());
  const double one = cost.seconds({1, 1568, 0, 0});
  const double by_hand =
      (24.0 * 5120 * 5120 * 40 + 4.0 * 5120 * 40 * 1569 + 2.0 * 5120 * 32'000 * 1568) / 312e12;
  EXPECT_NEAR(one, by_hand, 1e-12);
  EXPECT_NEAR(one, 1.73e-3, 0.005e-3);
  EXPECT_LE(28 * one, 50e-3);
  EXPECT_GT(29 * one, 50e-3);  // no batch of more than 28 meets 50 ms, whatever memory there is
  EXPECT_DOUBLE_EQ(cost.seconds({28, 28 * 1568, 0, 0}), 28 * one);
  // As it should be, with 2 h V once, one takes a twentieth of that.
  EXPECT_NEAR(BatchCost::corrected(llama_13b()).seconds({1, 1568, 0, 0}), 86e-6, 1e-6);
}

TEST(BatchCost, ToTheLetterOfEquation2) {
  const BatchCost cost = BatchCost::letter(llama_13b());
  // 600 and 200 tokens, of which 0.25 is recomputed.
  const double h = 5120, layers = 40, vocabulary = 32'000, r = 0.25;
  double volume = 0;
  for (double s : {600.0, 200.0}) {
    volume += 24 * h * h * layers * s * r + 4 * h * layers * s * s * r * r + 2 * h * vocabulary * s * r;
    volume += 24 * h * h * layers + 4 * h * layers * (s + 1) + 2 * h * vocabulary * s;
  }
  const BatchLoad load{2, 800, 150 + 50, 150 * 150 + 50 * 50};
  EXPECT_NEAR(cost.seconds(load), volume / 312e12, 1e-12);
  const double again = cost.compute.again(load);
  EXPECT_NEAR(cost.seconds(load) - again, cost.seconds({2, 800, 0, 0}), 1e-12);
  EXPECT_EQ(cost.memory.of(load), 0);
}

TEST(BatchCost, CorrectedCountsTheProductsOfTheRealShape) {
  const PublishedShape shape = llama_70b();
  const BatchCost cost = BatchCost::corrected(shape);
  // 8192^2 twice, 8192 * 1024 twice, and 8192 * 28672 three times: 8.556e8 weights a layer, two operations
  // each.
  const double token = 2.0 * 80 * 855'638'016;
  EXPECT_DOUBLE_EQ(cost.compute.again_token_s * shape.flops_per_s, token);
  EXPECT_DOUBLE_EQ(cost.compute.request_s * shape.flops_per_s, token + 4.0 * 8192 * 80 + 2.0 * 8192 * 32'000);
  EXPECT_DOUBLE_EQ(cost.compute.context_s * shape.flops_per_s, 4.0 * 8192 * 80);
  // Causal: each token attends to half of those that are recomputed with it.
  EXPECT_DOUBLE_EQ(cost.compute.again_square_s, cost.compute.context_s / 2);
}

// Without real widths the products are the published 24 h^2, and attention alone is half of it.
TEST(BatchCost, CorrectedDiffersFromTheLetterWhereItSays) {
  const BatchCost letter = BatchCost::letter(llama_13b()), corrected = BatchCost::corrected(llama_13b());
  const double output = 2.0 * 5120 * 32'000 / 312e12;
  EXPECT_NEAR(letter.compute.again_token_s, corrected.compute.again_token_s + output, 1e-15);
  EXPECT_NEAR(letter.compute.context_s, corrected.compute.context_s + output, 1e-15);
  EXPECT_NEAR(letter.compute.request_s, corrected.compute.request_s - output, 1e-15);
  EXPECT_DOUBLE_EQ(letter.compute.again_square_s, 2 * corrected.compute.again_square_s);
  EXPECT_EQ(corrected.memory.of({1, 1, 1, 1}), 0);  // no bandwidth was given
}

TEST(BatchCost, AStepIsNoFasterThanMemory) {
  const BatchCost cost = BatchCost::corrected(llama_70b());
  const double weights = 138e9 / (4 * 1.555e12);  // 22 ms
  // Alone it waits for the weights, which take hundreds of times as long as the computation.
  EXPECT_NEAR(cost.seconds({1, 1000, 0, 0}), weights + 1000 * 327'680 / 6.22e12, 1e-9);
  EXPECT_GT(cost.seconds({1, 1000, 0, 0}), 100 * cost.compute.of({1, 1000, 0, 0}));
  // Beside a little that is recomputed nothing is lost; beside much, the computation is what it takes.
  EXPECT_EQ(cost.seconds({1, 1000, 100, 1e4}), cost.seconds({1, 1000, 0, 0}));
  const BatchLoad much{1, 1000, 1000, 1e6};
  EXPECT_EQ(cost.seconds(much), cost.compute.of(much));
  EXPECT_GT(cost.seconds(much), cost.memory.of(much));
}

// 20 ms for the step, 1 for each of 4 requests, 0.01 for each of 1,000 tokens: 34. What is recomputed takes
// the step, 0.5 ms a token and 0.001 for their squares: 10 of one request 25.1, 30 of one 35.9.
TEST(BatchCost, FusedKernelsTakeTheLongerOfTheirTimes) {
  BatchCost cost = {{20e-3, 1e-3, 1e-5, 0.5e-3, 1e-6}, {}, /*fused=*/true};
  EXPECT_NEAR(cost.seconds({4, 1000, 0, 0}), 34e-3, 1e-12);
  EXPECT_NEAR(cost.seconds({4, 1000, 10, 100}), 34e-3, 1e-12);
  EXPECT_NEAR(cost.seconds({4, 1000, 30, 900}), 35.9e-3, 1e-12);
  cost.fused = false;
  EXPECT_NEAR(cost.seconds({4, 1000, 10, 100}), 39.1e-3, 1e-12);
  // With a knee at 8 rows, above which a row takes 0.5 ms more: 13 tokens alone 20 + 1.3 + 2.5 ms, 60 52.
  // Without them it changes nothing, on either side of the knee: 100 requests 20 + 100 + 46.
  CostModel costs;
  costs.step_s = 20e-3;
  costs.decode_row_s = 1e-3;
  costs.prefill_row_s = 0.1e-3;
  costs.knee_rows = 8;
  costs.above_knee_s = 0.5e-3;
  BatchCost knee = BatchCost::believed(costs);
  EXPECT_NEAR(knee.seconds({4, 0, 60, 0}), 20e-3 + 4e-3 + 6e-3 + 28e-3, 1e-12);
  EXPECT_NEAR(knee.seconds({100, 0, 0, 0}), 166e-3, 1e-12);
  knee.fused = true;
  EXPECT_NEAR(knee.seconds({4, 0, 13, 0}), 24e-3, 1e-12);
  EXPECT_NEAR(knee.seconds({4, 0, 60, 0}), 52e-3, 1e-12);
  EXPECT_NEAR(knee.seconds({100, 0, 0, 0}), 166e-3, 1e-12);
}

TEST(BatchCost, BelievesWhatTheProfileSays) {
  const CostModel costs = truth();
  const BatchCost cost = BatchCost::believed(costs);
  // Three decode, and 100 and 30 tokens before theirs are recomputed in the same step.
  StepWork work;
  for (double context : {400.0, 200.0, 70.0}) work.add_decode(context);
  work.add_prefill(0, 100);
  work.add_prefill(0, 30);
  EXPECT_DOUBLE_EQ(cost.seconds({3, 670, 130, 100 * 100 + 30 * 30}), costs.step_seconds(work));
  EXPECT_EQ(cost.memory.of({3, 670, 130, 10'900}), 0);
}

// The greater of two sums is the belief on both sides of its knee.
TEST(BatchCost, BelievedHasTheKneeOfTheBelief) {
  CostModel costs = truth();
  costs.knee_rows = 100;
  costs.above_knee_s = 2e-3;
  const BatchCost cost = BatchCost::believed(costs);
  for (double decodes : {10.0, 100.0, 130.0}) {
    for (double again : {0.0, 50.0, 200.0}) {
      StepWork work;
      work.add_prefill(0, again);
      work.decode_rows = decodes;
      work.decode_context = 300 * decodes;
      EXPECT_NEAR(cost.seconds({decodes, 300 * decodes, again, again * again}), costs.step_seconds(work),
                  1e-12)
          << decodes << " " << again;
    }
  }
}

}  // namespace
}  // namespace kvasir::test
