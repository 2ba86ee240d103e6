// SLO attainment: the kinds, and what the engine counts. The scripted executor takes 10 ms a step.
#include "engine/attainment.h"

#include <gtest/gtest.h>

#include "engine/engine_fixture.h"

namespace kvasir::test {
namespace {

TEST(Attainment, EachKindHasItsOwnMeaning) {
  // 200 gaps; the decode took 4 s, so 20 ms on average.
  RequestLatency r = {100 * kNanosPerMilli, 4100 * kNanosPerMilli, 4000 * kNanosPerMilli, 200, 2};
  const Slo slo = {100, 20, 50, 4100};
  for (SloKind kind : kSloKinds) EXPECT_EQ(attained(kind, slo, r), kind != SloKind::kEveryTbt) << name(kind);
  r.late_gaps = 3;
  EXPECT_EQ(attained(SloKind::kP99Tbt, slo, r), false)
      << "three of two hundred are more than one in a hundred";
  r.late_gaps = 0;
  EXPECT_EQ(attained(SloKind::kEveryTbt, slo, r), true);
  r.ttft += 1;
  EXPECT_EQ(attained(SloKind::kTtft, slo, r), false);
  r.e2el += 1;
  EXPECT_EQ(attained(SloKind::kE2el, slo, r), false);
  r.decoding += 200;
  EXPECT_EQ(attained(SloKind::kMeanTpot, slo, r), false);
  for (SloKind kind : kSloKinds) EXPECT_EQ(attained(kind, Slo{}, r), std::nullopt);
  const RequestLatency one_token = {100 * kNanosPerMilli, 100 * kNanosPerMilli, 0, 0, 0};
  for (SloKind kind : kSloKinds) EXPECT_EQ(attained(kind, slo, one_token), true);
}

class AttainmentCount : public testing::Test {
 protected:
  // A request alone in the engine: its tokens come 10, 20, ... ms after its arrival.
  void run(uint32_t tokens, Slo slo) {
    GenerationRequest r = request(5, tokens);
    r.slo = slo;
    h_.submit(std::move(r));
    h_.finish();
  }
  void expect(SloKind kind, uint64_t requests, uint64_t attained) {
    const auto& count = h_.engine.metrics().slo[static_cast<size_t>(kind)];
    EXPECT_EQ(count.requests, requests) << name(kind);
    EXPECT_EQ(count.attained, attained) << name(kind);
  }
  const EngineMetrics::Attainment& goodput() { return h_.engine.metrics().goodput; }

  Harness h_;
};

TEST_F(AttainmentCount, OfRequestsThatAsked) {
  run(5, {});
  EXPECT_EQ(goodput().requests, 0u);
  run(5, {10, 10, 10, 50});
  for (SloKind kind : kSloKinds) expect(kind, 1, 1);
  EXPECT_EQ(goodput().attained, 1u);
  run(5, {9, 0, 0, 0});
  expect(SloKind::kTtft, 2, 1);
  expect(SloKind::kE2el, 1, 1);
  run(5, {10, 0, 9, 0});
  expect(SloKind::kTtft, 3, 2);
  expect(SloKind::kP99Tbt, 2, 1);
  expect(SloKind::kEveryTbt, 2, 1);
  EXPECT_EQ(goodput().requests, 3u);
  EXPECT_EQ(goodput().attained, 1u) << "a good request meets all its bounds";
}

TEST_F(AttainmentCount, OneThatFailsMeetsNothing) {
  GenerationRequest r = request(5, 5);
  r.slo = {1000, 0, 0, 1000};
  h_.submit(r);
  h_.engine.step();
  h_.engine.cancel(h_.last);
  h_.finish();
  EXPECT_EQ(goodput().requests, 0u) << "its client gave it up before it had missed anything";
  h_.executor.fail_step(2, "a test");
  h_.submit(r);
  h_.finish();
  expect(SloKind::kTtft, 1, 0);
  EXPECT_EQ(goodput().requests, 1u);
  EXPECT_EQ(goodput().attained, 0u);
}

TEST_F(AttainmentCount, OfACancelledOneWhatItHadMissedCounts) {
  GenerationRequest r = request(5, 50);
  r.slo = {5, 0, 1000, 1000};
  h_.submit(r);
  h_.engine.step();  // its first token comes after 10 ms
  h_.engine.cancel(h_.last);
  h_.finish();
  expect(SloKind::kTtft, 1, 0);
  expect(SloKind::kEveryTbt, 0, 0);
  expect(SloKind::kE2el, 0, 0);
  EXPECT_EQ(goodput().requests, 1u);
  EXPECT_EQ(goodput().attained, 0u);
}

}  // namespace
}  // namespace kvasir::test
