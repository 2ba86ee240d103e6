// `kvasir profile --device cuda` on a fake GPU, and what a server makes of it.
#include <cstdlib>
#include <filesystem>

#include "apps/profile/profile.h"
#include "apps/profile/step_machine.h"
#include "apps/profile/subject.h"
#include "exec/gpu/gpu_executor.h"
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
  EXPECT_GT(kept->costs.links[index_of(Tier::kDevice)][index_of(Tier::kHost)].seconds_per_byte, 0);

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

// A server's link has room for two units in each direction, and so has the one that is measured.
TEST_F(GpuProfile, StepsAndLinksAreThoseOfAServer) {
  const Result<Subject> subject = open_subject(options_, kMiB);
  ASSERT_TRUE(subject.ok()) << subject.status().message();
  const MemoryLinkOptions link = link_options(options_, *subject->device);
  EXPECT_TRUE(link.mover != nullptr && link.duplex);
  EXPECT_EQ(link.threads, 2);
  EXPECT_EQ(link.unit_bytes, 2 * kMiB);

  MonotonicClock clock;
  const auto machine = StepMachine::make(*subject, clock);
  ASSERT_TRUE(machine.ok()) << machine.status().message();
  ProfileCase decode;
  decode.batch = 1;
  decode.context = 16;
  for (int i = 0; i < 20; ++i) ASSERT_TRUE((*machine)->run(decode).ok());
  EXPECT_GT(dynamic_cast<const GpuExecutor&>((*machine)->executor()).queued_early(), 0U)
      << "a step is measured by itself, not behind one like it";
}

// No flag that the user did not give is named. What is allocated last is the device's tier, then the host's.
TEST_F(GpuProfile, MemoryThatIsNotThereIsNamed) {
  uint64_t needed = 0;
  {
    const Result<Subject> subject = open_subject(options_, kMiB);
    ASSERT_TRUE(subject.ok()) << subject.status().message();
    needed = gpu_->allocations();
  }
  const auto said = [&](uint64_t allowed) {
    options_.open_gpu = [allowed] {
      auto gpu = std::make_unique<FakeGpu>(FakeGpuPace::kLate, /*seed=*/7, 64 * kMiB);
      gpu->allow_allocations(allowed);
      return Result<std::unique_ptr<Gpu>>(std::move(gpu));
    };
    return open_subject(options_, kMiB).status().message();
  };
  EXPECT_EQ(said(needed - 1), "no 64.00 MiB of pinned memory for what is measured");
  const std::string device = said(needed - 2);
  EXPECT_THAT(device, StartsWith("no "));
  EXPECT_THAT(device, HasSubstr(" of the GPU's memory for what is measured"));
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
