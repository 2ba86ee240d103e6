// How long a request has waited for its next token, and whether that is beyond its bound.
#include "sched/mechanisms/pending_time.h"

#include <gtest/gtest.h>

#include "fakes/views.h"

namespace kvasir::test {
namespace {

constexpr Nanos kPendingNow = 10 * kNanosPerSecond;

SeqView waits(Nanos arrival, uint32_t ttft_ms = 0) {
  SeqView s = waiting_seq(1, 20);
  s.arrival = arrival;
  s.slo.ttft_ms = ttft_ms;
  return s;
}
SeqView decodes(Nanos last_token, uint32_t tbt_ms = 0) {
  SeqView s = decoding_seq(2, 20, 30);
  s.arrival = kNanosPerSecond;
  s.first_token_time = 2 * kNanosPerSecond;
  s.last_token_time = last_token;
  s.slo = {.ttft_ms = 500, .tbt_ms = tbt_ms};
  return s;
}

TEST(PendingTime, SinceTheArrivalAndThenSinceTheLastToken) {
  EXPECT_DOUBLE_EQ(pending_seconds(waits(7 * kNanosPerSecond), kPendingNow), 3);
  EXPECT_DOUBLE_EQ(pending_seconds(decodes(9 * kNanosPerSecond), kPendingNow), 1);
}

TEST(PendingTime, BeyondTheBoundThatHoldsNow) {
  EXPECT_TRUE(pends_too_long(waits(7 * kNanosPerSecond, 2999), kPendingNow));
  EXPECT_FALSE(pends_too_long(waits(7 * kNanosPerSecond, 3000), kPendingNow));
  EXPECT_FALSE(pends_too_long(waits(0), kPendingNow)) << "no bound";
  EXPECT_TRUE(pends_too_long(decodes(9 * kNanosPerSecond, 999), kPendingNow));
  EXPECT_FALSE(pends_too_long(decodes(9 * kNanosPerSecond, 1000), kPendingNow))
      << "its first token's is behind it";
  EXPECT_FALSE(pends_too_long(decodes(9 * kNanosPerSecond), kPendingNow));
}

TEST(PendingTime, TheGreaterSumDecides) {
  View view = make_view(10, 10);
  view.now = kPendingNow;
  view.waiting = {waits(9 * kNanosPerSecond), waits(8 * kNanosPerSecond, 1)};  // 1 + 2, one beyond its bound
  view.running = {decodes(8 * kNanosPerSecond)};
  EXPECT_TRUE(waiting_is_more_urgent(view));
  view.running.push_back(decodes(8 * kNanosPerSecond));
  EXPECT_FALSE(waiting_is_more_urgent(view));
  SeqView prefills = decodes(0);
  prefills.ready_tokens = 10;
  view.running = {decodes(8 * kNanosPerSecond), prefills};
  EXPECT_TRUE(waiting_is_more_urgent(view)) << "a prefilling request does not decode";
}

}  // namespace
}  // namespace kvasir::test
