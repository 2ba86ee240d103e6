// `kvasir profile --device cuda` on a fake GPU, and what a server makes of it.
#include <cstdlib>
#include <filesystem>

#include "apps/profile/profile.h"
#include "runtime/cost_profile.h"
#include "runtime/gpu_runtime_rig.h"

namespace kvasir::test {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class GpuProfile : public GpuRuntime {
 protected:
  explicit GpuProfile(const TinyLlamaShape& shape = tiny_mha()) : GpuRuntime(shape) {
    const char* before = std::getenv("XDG_CACHE_HOME");
    if (before != nullptr) cache_before_ = before;
    setenv("XDG_CACHE_HOME", folder_.path().c_str(), /*overwrite=*/1);
    options_.kv_offloading_bytes = blocks(40);
    options_.kv_offloading_dir = folder_.path();
    options_.kv_offloading_disk_bytes = 8 * kMiB;
  }
  ~GpuProfile() override {
    if (cache_before_) {
      setenv("XDG_CACHE_HOME", cache_before_->c_str(), /*overwrite=*/1);
    } else {
      unsetenv("XDG_CACHE_HOME");
    }
  }

  ProfileOptions profile() const {
    ProfileOptions out;
    out.runtime = options_;
    out.seconds = 1;
    out.output = output_;
    return out;
  }
  // What it says on standard error; "": it is well.
  static std::string run(const ProfileOptions& options) {
    testing::internal::CaptureStderr();
    const int status = run_profile(options);
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_EQ(status == 0, said.empty()) << said;
    return said;
  }

  TempFolder folder_;
  const std::string output_ = folder_.path() + "/profile.json";
  std::optional<std::string> cache_before_;
};

TEST_F(GpuProfile, MeasuresStepsAndLinksThatAServerBeginsWith) {
  ASSERT_EQ(run(profile()), "");
  const auto kept = load_profile(output_);
  ASSERT_TRUE(kept.ok()) << kept.status().message();
  EXPECT_THAT(kept->fingerprint, StartsWith("gpu='fake GPU' layers=2 "));
  EXPECT_THAT(kept->fingerprint, HasSubstr(" numerics=kvasir-3/mma16t25/bf16/act-bf16/kv-bf16/tp1 "));
  EXPECT_TRUE(kept->costs.known());
  EXPECT_GT(kept->costs.decode_row_s + kept->costs.prefill_row_s, 0);
  EXPECT_GT(kept->steps.observations, 4U);
  for (const char* direction : {"device->host", "host->device", "device->disk", "disk->device"}) {
    EXPECT_TRUE(kept->links.contains(direction)) << direction;
  }
  EXPECT_EQ(kept->costs.links[index_of(Tier::kDevice)][index_of(Tier::kHost)].seconds_per_byte > 0, true);

  // Without a flag, and by its name.
  options_.beliefs.used = true;
  for (const std::string& named : {std::string(), output_}) {
    options_.beliefs.cost_profile = named;
    testing::internal::CaptureStderr();
    EXPECT_TRUE(load());
    const std::string said = testing::internal::GetCapturedStderr();
    EXPECT_THAT(said, HasSubstr(": 0 minutes old, fit error"));
    EXPECT_THAT(said, Not(HasSubstr("of another machine")));
  }
}

// Each is one line, and no result is written.
TEST_F(GpuProfile, WhatIsNotMeasuredIsRefused) {
  ProfileOptions full = profile();
  full.full = true;
  full.truth = folder_.path() + "/truth.json";
  EXPECT_THAT(run(full), StartsWith("kvasir profile: --full: the simulator learns the times of a CPU; "));
  EXPECT_EQ(opened_, 0);
  ProfileOptions q8_0 = profile();
  q8_0.runtime.kv_cache_dtype = "q8_0";
  EXPECT_THAT(run(q8_0), StartsWith("kvasir profile: --kv-cache-dtype q8_0: a GPU keeps K and V as bf16"));
  use_gpu(FakeGpuPace::kLate, 768 * kKiB);
  EXPECT_THAT(run(profile()), HasSubstr("the GPU has no room for its weights"));
  EXPECT_FALSE(std::filesystem::exists(output_));
}

// A GPU that fails meanwhile is an error, not a profile.
TEST_F(GpuProfile, AGpuThatFailsEndsItWithItsError) {
  options_.open_gpu = [] {
    auto gpu = std::make_unique<FakeGpu>(FakeGpuPace::kLate, /*seed=*/7, 64 * kMiB);
    gpu->lose_after(300);
    return Result<std::unique_ptr<Gpu>>(std::move(gpu));
  };
  options_.kv_offloading_bytes = options_.kv_offloading_disk_bytes = 0;
  options_.kv_offloading_dir.clear();
  EXPECT_THAT(run(profile()), HasSubstr("the GPU failed: it is lost"));
  EXPECT_FALSE(std::filesystem::exists(output_));
}

}  // namespace
}  // namespace kvasir::test
