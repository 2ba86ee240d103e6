// The queue's pace, and requests that would come too late by it. The scripted executor takes 10 ms a step.
#include "engine/queue_pace.h"

#include <gtest/gtest.h>

#include "engine/engine_fixture.h"

namespace kvasir::test {
namespace {

TEST(QueuePace, AWaitIsTheQueueTimesTheMeanGap) {
  QueuePace pace;
  Nanos now = 0;
  pace.came(now, 1);
  for (int i = 0; i < 15; ++i) pace.began(now += 10 * kNanosPerMilli);
  EXPECT_EQ(pace.wait(100), 0) << "too few were seen";
  pace.began(now += 10 * kNanosPerMilli);
  EXPECT_EQ(pace.wait(100), 1000 * kNanosPerMilli);
  EXPECT_EQ(pace.wait(0), 0);
  // Two at a time, at twice the distance.
  for (int i = 0; i < 400; ++i) pace.began(i % 2 == 0 ? now += 20 * kNanosPerMilli : now);
  EXPECT_NEAR(static_cast<double>(pace.wait(100)) / kNanosPerMilli, 1000, 20);
}

TEST(QueuePace, TimeWithAnEmptyQueueIsNoGap) {
  QueuePace pace;
  Nanos now = 0;
  for (int i = 0; i < 50; ++i) {
    now += 3600 * kNanosPerSecond;
    pace.came(now, 1);
    pace.began(now += kNanosPerMilli);
  }
  EXPECT_EQ(pace.wait(10), 10 * kNanosPerMilli);
}

// One runs at a time, for five steps: the queue moves once in 50 ms.
TEST(QueuePace, ARequestThatWouldBeTooLateIsRefusedAtOnce) {
  for (const bool refuse : {false, true}) {
    EngineOptions o = small_options();
    o.refuse_late = refuse;
    o.limits.max_num_seqs = 1;
    Harness h(o);
    for (int i = 0; i < 30; ++i) h.submit(request(5, 5));
    do h.engine.step();
    while (h.engine.metrics().num_requests_waiting > 9);
    GenerationRequest r = request(5, 5);
    r.slo.ttft_ms = 2000;
    h.submit(r);  // nine wait, for about 450 ms: no more than a quarter of it
    r.slo.ttft_ms = 500;
    const auto late = h.engine.submit(r, std::make_shared<CollectingSink>());
    EXPECT_EQ(late.ok(), !refuse);
    if (!late.ok()) {
      EXPECT_EQ(late.status().code(), ErrorCode::kExhausted);
      EXPECT_NE(late.status().message().find("a TTFT of 500 ms"), std::string::npos)
          << late.status().message();
    }
    EXPECT_EQ(h.engine.metrics().refused_late, refuse ? 1u : 0u);
    h.submit(request(5, 5));  // one that asks for nothing is taken
    h.finish();
  }
}

}  // namespace
}  // namespace kvasir::test
