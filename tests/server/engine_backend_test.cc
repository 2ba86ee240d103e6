// The engine as the server's backend: what it says of the cache, and why a request has ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_fixture.h"
#include "server/backend.h"

namespace kvasir {
namespace {

using ::testing::Contains;
using ::testing::Pair;

TEST(EngineBackend, CacheConfigHasTheLabelsThatDashboardsAskFor) {
  EngineOptions options = test::small_options(32);
  options.cache.numerics_id = "kvasir-2/fma/q4_1/act-int8/kv-bf16/tp1";
  test::Harness harness(options);
  harness.submit(test::request(4, 1));
  harness.finish();
  const auto labels = make_engine_backend(harness.engine)->cache_config();
  EXPECT_THAT(labels, Contains(Pair("block_size", "16")));
  EXPECT_THAT(labels, Contains(Pair("cache_dtype", "bf16")));
  EXPECT_THAT(labels, Contains(Pair("num_gpu_blocks", "32")));
  EXPECT_THAT(labels, Contains(Pair("enable_prefix_caching", "True")));
}

TEST(EngineBackend, AStopStringIsAStopToTheEngineToo) {
  test::Harness harness;
  const auto backend = make_engine_backend(harness.engine);
  for (const FinishReason reason : {FinishReason::kStop, FinishReason::kAbort}) {
    const auto sink = harness.submit(test::request(4, 100));
    for (int i = 0; i < 5; ++i) ASSERT_TRUE(harness.engine.step());
    backend->cancel(harness.last, reason);
    harness.finish();
    EXPECT_EQ(backend->metrics().finished[static_cast<size_t>(reason)].load(), 1u);
  }
  // Only the one that ended by itself has a latency worth counting.
  const Histogram& latency = backend->metrics().e2e_request_latency;
  uint64_t counted = 0;
  for (size_t i = 0; i <= latency.bounds().size(); ++i) counted += latency.count(i);
  EXPECT_EQ(counted, 1u);
}

}  // namespace
}  // namespace kvasir
