// Real requests that come, go and are cancelled at any moment must leave nothing behind.
#include <gtest/gtest.h>

#include <atomic>

#include "base/random.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/rig.h"
#include "sched/registry.h"

namespace kvasir::test {
namespace {

class CountingSink final : public OutputSink {
 public:
  CountingSink(std::atomic<int>& ended, std::atomic<int>& twice) : ended_(ended), twice_(twice) {}
  void on_output(OutputEvent event) override {
    if (!event.finish) return;
    ++ended_;
    if (done_.exchange(true)) ++twice_;
  }

 private:
  std::atomic<int>& ended_;
  std::atomic<int>& twice_;
  std::atomic<bool> done_{false};
};

class Leaks : public testing::TestWithParam<ops::KvType> {};

TEST_P(Leaks, FiveHundredRealRequestsWithRandomCancels) {
  const auto file = tiny_model(tiny_gqa(), ops::WeightType::kQ8_0);
  EngineOptions settings;
  CacheGeometry& g = settings.cache.geometry;
  g.block_tokens = 16;
  g.layers = g.layers_per_group = static_cast<uint32_t>(file->spec().layers);
  g.kv_plane_bytes_per_token_layer = file->spec().kv_plane_bytes_per_token_layer(GetParam());
  settings.cache.device_bytes = g.kv_block_bytes() * 40;  // preempts often
  settings.cache.numerics_id = "test";
  settings.max_model_len = 300;
  settings.check_integrity = true;
  auto packed = PackedModel::make(*file, 2048);
  auto memory = Arena::map(settings.cache.device_bytes, "the test");
  ASSERT_TRUE(packed.ok() && memory.ok());
  const MonotonicClock clock;
  Decoder::Options decoder;
  decoder.kv_type = GetParam();
  CpuExecutor executor(**packed, ops::kernels_for(ops::detect_isa()), g, decoder, memory->data(), 2, clock);
  std::atomic<int> ended{0}, twice{0};
  Random random(9);
  Engine engine(settings, std::move(make_policy("sarathi")).value(), executor, clock);
  std::vector<RequestId> ids;
  for (int i = 0; i < 500; ++i) {
    // The first wait together, on whatever machine: some are preempted, and some cancelled.
    if (i == 60) engine.start();
    GenerationRequest request;
    request.prompt = random_tokens(random.below(40), 1 + random.below(150));  // some come again
    request.max_tokens = static_cast<uint32_t>(1 + random.below(40));
    auto id = engine.submit(std::move(request), std::make_shared<CountingSink>(ended, twice));
    ASSERT_TRUE(id.ok()) << id.status().message();
    ids.push_back(*id);
    if (random.below(3) == 0) engine.cancel(ids[random.below(ids.size())]);
    if (i < 60 || random.below(8) > 0) continue;
    (void)engine.wait_idle(static_cast<Nanos>(random.below(20)) * kNanosPerMilli);
  }
  EXPECT_TRUE(engine.wait_idle(120 * kNanosPerSecond));
  engine.stop();
  EXPECT_EQ(ended, 500);
  EXPECT_EQ(twice, 0);
  EXPECT_EQ(engine.metrics().kv_blocks_used, 0u);
  EXPECT_GT(engine.metrics().num_preemptions, 0u);
  EXPECT_GT(engine.metrics().finished[static_cast<size_t>(FinishReason::kAbort)], 5u);
  const Status integrity = engine.check_integrity();
  EXPECT_TRUE(integrity.ok()) << integrity.message();
}

INSTANTIATE_TEST_SUITE_P(KvTypes, Leaks, testing::Values(ops::KvType::kBf16, ops::KvType::kQ8_0),
                         [](const auto& instance) { return ops::kv_type_name(instance.param); });

}  // namespace
}  // namespace kvasir::test
