// What a GPU's memory is divided into at the start, and what is refused.
#include "runtime/cost_profile.h"
#include "runtime/gpu_runtime_rig.h"

namespace kvasir::test {
namespace {

using testing::HasSubstr;
using testing::Not;

TEST_F(GpuRuntime, TheDeviceTierIsWhatUtilizationLeaves) {
  options_.gpu_memory_utilization = 0.5;
  const auto runtime = load();
  ASSERT_TRUE(runtime);
  const Gpu::Memory memory = gpu_->memory().value();
  const uint64_t used = memory.total_bytes - memory.free_bytes;
  // A step's own image comes later, and what is allocated has gaps here.
  EXPECT_LE(used, 32 * kMiB + 64 * kKiB);
  EXPECT_GE(used, 31 * kMiB);
  EXPECT_EQ(runtime->max_model_len(), 512U);

  options_.gpu_memory_utilization = 0.02;
  EXPECT_THAT(refusal(), HasSubstr("--gpu-memory-utilization 0.02: weights and activations leave 0"));
  options_.kv_cache_memory_bytes = blocks(60);
  EXPECT_TRUE(load()) << "the size in bytes takes the place of the share";
  options_.kv_cache_memory_bytes = 64 * kMiB;
  EXPECT_THAT(refusal(),
              HasSubstr("--kv-cache-memory-bytes 64.00 MiB: beside weights, activations and what"));
  use_gpu(FakeGpuPace::kLate, 768 * kKiB);
  EXPECT_THAT(refusal(), HasSubstr("the GPU has no room for its weights"));
}

// Whatever cannot be had at the start: the user is told which flags to change.
TEST_F(GpuRuntime, WhatTheStartDoesNotGetIsSaidWithFlags) {
  options_.kv_offloading_bytes = blocks(8);
  use_gpu(FakeGpuPace::kLate);
  uint64_t needed = 0;
  const auto flag_of = [&](uint64_t allowed) {
    options_.open_gpu = [allowed] {
      auto gpu = std::make_unique<FakeGpu>(FakeGpuPace::kLate, /*seed=*/7, 64 * kMiB);
      gpu->allow_allocations(allowed);
      return Result<std::unique_ptr<Gpu>>(std::move(gpu));
    };
    const std::string said = refusal();
    EXPECT_THAT(said, testing::StartsWith("--"));
    EXPECT_THAT(said, testing::AnyOf(HasSubstr("give less"), HasSubstr("--device cpu")));
    return said.substr(0, said.find(' '));
  };
  {
    const auto runtime = load();
    ASSERT_TRUE(runtime);
    needed = gpu_->allocations();
  }
  EXPECT_EQ(flag_of(0), "--device") << "a check of products";
  EXPECT_EQ(flag_of(20), "--device") << "weights";
  // Device tier, host tier, the words of marks and gates, and what steps need.
  std::vector<std::string> flags;
  for (uint64_t allowed = needed - 14; allowed < needed; ++allowed) flags.push_back(flag_of(allowed));
  // The host tier, and what is pinned beside it.
  for (const size_t pinned : {1, 2, 12, 13}) {
    EXPECT_EQ(std::exchange(flags[pinned], flags[0]), "--kv-offloading-size") << pinned;
  }
  EXPECT_THAT(flags, testing::Each("--gpu-memory-utilization"));
  options_.kv_cache_memory_bytes = blocks(60);
  EXPECT_EQ(flag_of(needed - 3), "--kv-cache-memory-bytes");
}

TEST_F(GpuRuntime, AGpuThatDoesNotSayHowMuchMemoryItHasIsRefused) {
  options_.open_gpu = [] {
    auto gpu = std::make_unique<FakeGpu>(FakeGpuPace::kLate);
    gpu->hide_memory();
    return Result<std::unique_ptr<Gpu>>(std::move(gpu));
  };
  EXPECT_EQ(refusal(),
            "--device cuda: it cannot be asked how much memory it has: it does not answer; see what "
            "nvidia-smi says, or serve with "
            "--device cpu");
}

TEST_F(GpuRuntime, ACostProfileOfACpuIsRefused) {
  const TempFile file(std::span<const std::byte>{});
  CostProfile profile;
  profile.fingerprint = "cpu='Zen 5' threads=2 isa=avx512 layers=2 dim=64";
  ASSERT_TRUE(save_profile(profile, file.path()).ok());
  options_.beliefs.used = true;
  options_.beliefs.cost_profile = file.path();
  EXPECT_THAT(refusal(),
              HasSubstr("cpu='Zen 5' threads=2 isa=avx512; run `kvasir profile` with these flags"));
  profile.fingerprint = "gpu='NVIDIA H100' layers=2 dim=64";
  ASSERT_TRUE(save_profile(profile, file.path()).ok());
  EXPECT_TRUE(load()) << "of another GPU: real steps mend it";
}

// The most that the flags allow leaves memory for the steps themselves.
TEST_F(GpuRuntime, AFullGpuServes) {
  options_.max_num_batched_tokens = 256;
  const std::vector<RigRequest> requests = mixed_requests(6, 300);
  const std::vector<RigOutput> expected = reference(requests);
  options_.gpu_memory_utilization = 1;
  const auto runtime = load();
  ASSERT_TRUE(runtime);
  EXPECT_LE(gpu_->memory()->free_bytes, 512 * kKiB);
  expect_same(expected, run_all(*runtime, requests));
}

TEST_F(GpuRuntime, WhatDoesNotRunIsRefusedBeforeAGpuIsOpened) {
  const RuntimeOptions right = options_;
  struct Refused {
    void (*set)(RuntimeOptions&);
    const char* flag;
  };
  const Refused cases[] = {
      {[](RuntimeOptions& o) { o.kv_cache_dtype = "q8_0"; }, "--kv-cache-dtype q8_0: "},
      {[](RuntimeOptions& o) { o.kv_cache_dtype = "f32"; }, "--kv-cache-dtype f32: "},
      {[](RuntimeOptions& o) { o.activation_type = "f32"; }, "--activation-type f32: "},
      {[](RuntimeOptions& o) { o.quantization = "q8_0"; }, "--quantization q8_0: "},
      {[](RuntimeOptions& o) { o.cluster.directory = "etcd://127.0.0.1:1"; }, "--cluster: "},
      {[](RuntimeOptions& o) { o.tap_all_rows = true; }, "--text: a GPU gives the logits of sampled rows"},
  };
  for (const Refused& refused : cases) {
    options_ = right;
    refused.set(options_);
    const std::string said = refusal();
    EXPECT_THAT(said, testing::StartsWith(refused.flag));
    EXPECT_THAT(said, HasSubstr("--device cpu")) << refused.flag;
    EXPECT_THAT(said, Not(HasSubstr("\n"))) << refused.flag;
  }
  options_ = right;
  options_.device = "tpu";
  EXPECT_EQ(refusal(), "--device tpu: there are cpu and cuda");
  options_ = right;
  options_.gpu_memory_utilization = 1.5;
  EXPECT_THAT(refusal(), testing::StartsWith("--gpu-memory-utilization 1.5: "));
  EXPECT_EQ(opened_, 0);
}

TEST_F(GpuRuntime, WithoutAGpuThereIsOneLine) {
  options_.open_gpu = [] {
    return Result<std::unique_ptr<Gpu>>(error(ErrorCode::kUnavailable, "there is no GPU"));
  };
  EXPECT_EQ(refusal(), "--device cuda: there is no GPU");
}

TEST_F(GpuRuntime, AGpuWithOtherBitsIsRefused) {
  options_.open_gpu = [] {
    auto gpu = std::make_unique<FakeGpu>(FakeGpuPace::kLate);
    gpu->spoil_products();
    return Result<std::unique_ptr<Gpu>>(std::move(gpu));
  };
  EXPECT_THAT(refusal(),
              testing::StartsWith(
                  "--device cuda: products of 8 rows on the GPU fake GPU by gemm of 8 rows have other"));
}

class OddHeads : public GpuRuntime {
 protected:
  static TinyLlamaShape shape() {
    TinyLlamaShape odd = tiny_mha();
    odd.head_dim = 24;
    return odd;
  }
  OddHeads() : GpuRuntime(shape()) {}
};

TEST_F(OddHeads, AreRefused) {
  const std::string said = refusal();
  EXPECT_THAT(said, testing::StartsWith("--device cuda: "));
  EXPECT_THAT(said, HasSubstr("heads of 24 values do not run on a GPU"));
}

class Hybrids : public GpuRuntime {
 protected:
  Hybrids() : GpuRuntime(tiny_hybrids()[1]) {}
};

TEST_F(Hybrids, AreRefusedOnAGpuAndInACluster) {
  const std::string on_gpu = refusal();
  EXPECT_THAT(on_gpu, testing::StartsWith("--device cuda: "));
  EXPECT_THAT(on_gpu, HasSubstr("models with recurrent layers do not run on a GPU yet"));
  options_.device = "cpu";
  options_.gpu_memory_utilization.reset();
  options_.cluster.directory = "etcd://127.0.0.1:1";
  const std::string said = refusal();
  EXPECT_THAT(said, testing::StartsWith("--cluster: "));
  EXPECT_THAT(said, HasSubstr("has recurrent layers, whose states instances cannot lend each other yet"));
  EXPECT_THAT(said, Not(HasSubstr("\n")));
}

TEST_F(Hybrids, StepsHaveRoomForABlock) {
  options_.device = "cpu";
  options_.max_num_batched_tokens = 64;
  options_.block_size = 128;
  EXPECT_THAT(refusal(),
              testing::StartsWith("--max-num-batched-tokens 64: a model with recurrent layers goes "
                                  "on from the end of a block"));
}

}  // namespace
}  // namespace kvasir::test
