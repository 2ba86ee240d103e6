// How the memory is divided among the tiers, and what is said where it cannot be.
#include "runtime/tier_sizes.h"

#include <gtest/gtest.h>

#include <string>

#include "base/units.h"

namespace kvasir {
namespace {

EngineOptions small_engine() {
  EngineOptions engine;
  engine.cache.geometry = {16, 2, 1, 8};
  return engine;
}

TEST(TierSizes, HalfOfTheMemoryIsTheCaches) {
  EngineOptions engine = small_engine();
  ASSERT_TRUE(size_tiers({}, 512, 8 * kMiB, engine).ok());
  EXPECT_EQ(engine.cache.device_bytes + engine.cache.stage_bytes, 4 * kMiB);
  EXPECT_EQ(engine.max_model_len, 512u);
}

// As in a container without /proc.
TEST(TierSizes, MemoryThatIsNotKnownNeedsTheFlag) {
  RuntimeOptions options;
  EngineOptions engine = small_engine();
  const Status status = size_tiers(options, 512, kUnknownMemory, engine);
  ASSERT_FALSE(status.ok());
  EXPECT_NE(status.message().find("--kv-cache-memory-bytes: how much memory is free"), std::string::npos)
      << status.message();
  options.kv_cache_memory_bytes = 4 * kMiB;
  EXPECT_TRUE(size_tiers(options, 512, kUnknownMemory, engine).ok());
  EXPECT_EQ(engine.cache.device_bytes + engine.cache.stage_bytes, 4 * kMiB);
}

// The host tier is of main memory, the device tier of the GPU's.
TEST(TierSizes, AGpuHasMemoryOfItsOwn) {
  RuntimeOptions options;
  options.kv_offloading_bytes = 3 * kMiB;
  const GpuRoom room = {8 * kMiB, 16 * kMiB};
  EngineOptions engine = small_engine();
  ASSERT_TRUE(size_tiers(options, 512, 4 * kMiB, engine, room).ok());
  EXPECT_EQ(engine.cache.device_bytes + engine.cache.stage_bytes, 8 * kMiB);
  EXPECT_EQ(engine.cache.host_bytes, 3 * kMiB);
  options.kv_cache_memory_bytes = 16 * kMiB;
  ASSERT_TRUE(size_tiers(options, 512, 4 * kMiB, engine, room).ok());
  EXPECT_EQ(engine.cache.device_bytes + engine.cache.stage_bytes, 16 * kMiB);
  options.kv_cache_memory_bytes = 17 * kMiB;
  const Status status = size_tiers(options, 512, 4 * kMiB, engine, room);
  EXPECT_NE(status.message().find("16.00 MiB of the GPU's memory can be used"), std::string::npos)
      << status.message();
}

// By the flags that say so on the device at hand.
TEST(TierSizes, ALengthThatDoesNotFitIsRefusedWithTheFlagsThatMakeRoom) {
  RuntimeOptions options;
  options.max_model_len = 512;
  const auto said = [&](const std::optional<GpuRoom>& gpu) {
    EngineOptions engine = small_engine();  // a token takes 32 bytes
    return size_tiers(options, 512, kMiB, engine, gpu).message();
  };
  EXPECT_EQ(said(GpuRoom{4 * kKiB, 8 * kKiB}),
            "--max-model-len 512: --gpu-memory-utilization 0.9 and --kv-offloading-size 0 B hold requests of "
            "128 tokens together; give one of them more");
  options.gpu_memory_utilization = 0.25;
  EXPECT_NE(said(GpuRoom{4 * kKiB, 8 * kKiB}).find("--gpu-memory-utilization 0.25 and "), std::string::npos);
  options.kv_cache_memory_bytes = 4 * kKiB;
  for (const auto& gpu : {std::optional<GpuRoom>({4 * kKiB, 8 * kKiB}), std::optional<GpuRoom>()}) {
    EXPECT_NE(said(gpu).find("--kv-cache-memory-bytes 4.00 KiB and "), std::string::npos) << said(gpu);
  }
}

}  // namespace
}  // namespace kvasir
