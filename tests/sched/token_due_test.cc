// When the next token is due, worked by hand.
#include "sched/mechanisms/token_due.h"

#include <gtest/gtest.h>

#include <cmath>

#include "fakes/views.h"

namespace kvasir::test {
namespace {

constexpr Nanos kDueNow = 10 * kNanosPerSecond;
constexpr double kDueStep = 0.02;
constexpr OutputRest kDueRest{50, 3000, 10};

SeqView arrived_ago(double seconds_ago, Slo slo) {
  SeqView s = waiting_seq(1, 100);
  s.arrival = kDueNow - from_seconds(seconds_ago);
  s.slo = slo;
  return s;
}

// Has `output` tokens, the first so long ago and the last so long ago.
SeqView streaming_out(double arrival, double first, double last, uint32_t output, Slo slo) {
  SeqView s = decoding_seq(1, 100, 100 + output);
  s.arrival = kDueNow - from_seconds(arrival);
  s.first_token_time = kDueNow - from_seconds(first);
  s.last_token_time = kDueNow - from_seconds(last);
  s.slo = slo;
  return s;
}

TokenDue due_of(const SeqView& s) {
  return token_due(s, kDueNow, kDueStep, kDueRest);
}

TEST(TokenDue, TheFirstToken) {
  EXPECT_NEAR(due_of(arrived_ago(0.3, {.ttft_ms = 1000, .tbt_ms = 50})).left_s, 0.7, 1e-9);
  EXPECT_FALSE(due_of(arrived_ago(0.3, {.ttft_ms = 1000})).missed);
  EXPECT_TRUE(due_of(arrived_ago(1.1, {.ttft_ms = 1000})).missed);
  EXPECT_TRUE(std::isinf(due_of(arrived_ago(9, {.tbt_ms = 50})).left_s)) << "it bounds later tokens only";
  // Of 3 s 1 is gone, and 50 steps are to come.
  EXPECT_NEAR(due_of(arrived_ago(1, {.e2el_ms = 3000})).left_s, 3 - 1 - 1, 1e-9);
  EXPECT_TRUE(due_of(arrived_ago(3.1, {.e2el_ms = 3000})).missed);
  EXPECT_FALSE(due_of(arrived_ago(2.5, {.e2el_ms = 3000})).missed) << "only believed";
}

TEST(TokenDue, AGap) {
  const TokenDue due = due_of(streaming_out(2, 1, 0.03, 5, {.ttft_ms = 1500, .tbt_ms = 50}));
  EXPECT_NEAR(due.left_s, 0.02, 1e-9);
  EXPECT_FALSE(due.missed);
  EXPECT_TRUE(due_of(streaming_out(2, 1, 0.06, 5, {.tbt_ms = 50})).missed);
  EXPECT_TRUE(due_of(streaming_out(3, 1, 0, 5, {.ttft_ms = 1500})).missed)
      << "its first token came after 2 s";
  SeqView was_late = streaming_out(2, 1, 0.03, 5, {.tbt_ms = 50});
  was_late.late_gaps = 1;
  EXPECT_TRUE(due_of(was_late).missed) << "the token that was late is there, but it was late";
  was_late.slo = {.tpot_ms = 500};
  EXPECT_FALSE(due_of(was_late).missed) << "a mean may catch up";
  SeqView in_flight = streaming_out(2, 1, 0.06, 5, {.tbt_ms = 50});
  in_flight.in_flight = 1;
  EXPECT_NEAR(due_of(in_flight).left_s, 0.05, 1e-9);
}

TEST(TokenDue, AMeanGap) {
  // The 5 after the first, this one included, and 10 more at 100 ms each are 1.5 s, of which 1 is gone and
  // ten steps take 0.2.
  const TokenDue due = due_of(streaming_out(2, 1, 0.03, 5, {.tpot_ms = 100}));
  EXPECT_NEAR(due.left_s, 0.3, 1e-9);
  EXPECT_FALSE(due.behind);
  const TokenDue slow = due_of(streaming_out(3, 2, 0.03, 5, {.tpot_ms = 100}));
  EXPECT_TRUE(slow.behind);
  EXPECT_FALSE(slow.missed) << "it may catch up";
}

// Fifty steps of 20 ms are believed to be left.
TEST(TokenDue, AnEnd) {
  const TokenDue due = due_of(streaming_out(2, 1, 0, 5, {.e2el_ms = 4000}));
  EXPECT_NEAR(due.left_s, 4 - 2 - 1, 1e-9);
  EXPECT_FALSE(due.behind);
  const TokenDue slow = due_of(streaming_out(3.5, 1, 0, 5, {.e2el_ms = 4000}));
  EXPECT_TRUE(slow.behind);
  EXPECT_FALSE(slow.missed);
  EXPECT_FALSE(due_of(arrived_ago(3.5, {.e2el_ms = 4000})).behind) << "the order of the queue sees to it";
}

TEST(TokenDue, AllowedGap) {
  EXPECT_EQ(allowed_gap({.tpot_ms = 100, .tbt_ms = 50}), 0.05);
  EXPECT_EQ(allowed_gap({.tpot_ms = 100}), 0.1);
  EXPECT_TRUE(std::isinf(allowed_gap({.ttft_ms = 100, .e2el_ms = 7})));
  EXPECT_TRUE(std::isinf(due_of(arrived_ago(100, {})).left_s));
}

}  // namespace
}  // namespace kvasir::test
