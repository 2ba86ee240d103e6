// The runtime over a fake GPU with a host tier and a disk, and what becomes of requests when the GPU or its
// copies fail.
#include "cache/disk_world.h"
#include "runtime/gpu_runtime_rig.h"

namespace kvasir::test {
namespace {

using testing::HasSubstr;

TEST_F(GpuRuntime, RequestsLongerThanTheDeviceTierUseTheHostTier) {
  std::vector<RigRequest> requests = mixed_requests(4, 40);
  for (uint64_t i = 0; i < 2; ++i) requests.push_back({random_tokens(40 + i, 300), 12});
  const std::vector<RigOutput> expected = reference(requests);
  options_.kv_cache_memory_bytes = blocks(14);
  options_.kv_offloading_bytes = blocks(80);
  options_.max_model_len = 320;
  for (const char* policy : {"auto", "vllm-swap", "layerkv"}) {
    SCOPED_TRACE(policy);
    options_.scheduling_policy = policy;
    options_.enforce_eager = !options_.enforce_eager;
    const auto runtime = load();
    ASSERT_TRUE(runtime);
    expect_same(expected, run_all(*runtime, requests));
    runtime->engine().observe_link();
    const LinkMetrics& link = runtime->engine().metrics().link;
    EXPECT_GT(link.bytes[index_of(Tier::kDevice)][index_of(Tier::kHost)], 0U);
    EXPECT_GT(link.bytes[index_of(Tier::kHost)][index_of(Tier::kDevice)], 0U);
    EXPECT_EQ(link.failed, 0U);
  }
}

// With a host tier before it, and without.
TEST_F(GpuRuntime, ADiskTierServesAndKeepsPrefixesForTheNextStart) {
  std::vector<RigRequest> requests = mixed_requests(4, 40);
  for (uint64_t i = 0; i < 2; ++i) requests.push_back({random_tokens(40 + i, 300), 12});
  const std::vector<RigOutput> expected = reference(requests);
  options_.kv_cache_memory_bytes = blocks(14);
  options_.kv_offloading_disk_bytes = 8 * kMiB;
  options_.max_model_len = 320;
  int kept = 0;  // of the six: how much is saved before it has to go depends on the machine's speed
  for (const bool has_host : {false, true}) {
    for (const char* policy : {"auto", "vllm-swap", "layerkv"}) {
      SCOPED_TRACE(std::string(policy) + (has_host ? " with a host tier" : ""));
      const TestDirectory directory;
      options_.kv_offloading_dir = directory.path();
      options_.kv_offloading_bytes = has_host ? blocks(20) : 0;
      options_.scheduling_policy = policy;
      for (const bool again : {false, true}) {
        const auto runtime = load();
        ASSERT_TRUE(runtime);
        const std::vector<RigOutput> got = run_all(*runtime, requests);
        expect_same(expected, got);
        runtime->engine().observe_link();
        const LinkMetrics& link = runtime->engine().metrics().link;
        EXPECT_EQ(link.failed, 0U);
        if (!has_host) {
          EXPECT_GT(link.bytes[index_of(Tier::kDevice)][index_of(Tier::kDisk)], 0U);
        }
        uint32_t cached = 0;
        for (const RigOutput& out : got) cached += out.cached_prompt_tokens;
        if (!again) {
          EXPECT_EQ(cached, 0U);
        }
        kept += cached > 0 ? 1 : 0;
      }
    }
  }
  EXPECT_GE(kept, 3);
}

// With transfers under way: each request ends with the device's error, whatever it waited for, and so does
// one that comes later.
TEST_F(GpuRuntime, RequestsOfADeviceThatIsLostEndWithItsError) {
  options_.kv_cache_memory_bytes = blocks(14);
  options_.kv_offloading_bytes = blocks(80);
  options_.max_model_len = 320;
  options_.max_num_seqs = 3;
  for (const char* policy : {"auto", "vllm-swap", "layerkv"}) {
    SCOPED_TRACE(policy);
    options_.scheduling_policy = policy;
    const auto runtime = load();
    ASSERT_TRUE(runtime);
    std::vector<std::shared_ptr<Answer>> answers;
    for (uint64_t i = 0; i < 6; ++i) answers.push_back(submit(*runtime, {random_tokens(40 + i, 120), 190}));
    answers[0]->wait_for_tokens(5);
    EXPECT_EQ(runtime->failure(), "");
    gpu_->lose();
    for (const auto& answer : answers) EXPECT_THAT(answer->wait_for_error(), HasSubstr("the GPU failed: "));
    EXPECT_THAT(runtime->failure(), HasSubstr("the GPU failed: it is lost"));
    EXPECT_THAT(submit(*runtime, {random_tokens(3, 9), 4})->wait_for_error(), HasSubstr("it is lost"));
    EXPECT_TRUE(runtime->engine().wait_idle(10 * kNanosPerSecond));
    expect_nothing_left(*runtime);
  }
}

// The device may still compute, but what it would read from the host is not there.
TEST_F(GpuRuntime, WhereCopiesFailRequestsEndWithTheError) {
  options_.kv_cache_memory_bytes = blocks(14);
  options_.kv_offloading_bytes = blocks(80);
  options_.max_model_len = 320;
  options_.scheduling_policy = "vllm-swap";
  const auto runtime = load();
  ASSERT_TRUE(runtime);
  for (const size_t of_mover : {0, 1, 2, 3}) gpu_->lose_stream(of_mover);  // the executor's came later
  std::vector<std::shared_ptr<Answer>> answers;
  for (uint64_t i = 0; i < 6; ++i) answers.push_back(submit(*runtime, {random_tokens(40 + i, 120), 190}));
  for (const auto& answer : answers) EXPECT_THAT(answer->wait_for_error(), HasSubstr("it is lost"));
  EXPECT_THAT(runtime->failure(), HasSubstr("the GPU failed: it is lost"));
  EXPECT_THAT(submit(*runtime, {random_tokens(3, 9), 4})->wait_for_error(), HasSubstr("it is lost"));
  EXPECT_TRUE(runtime->engine().wait_idle(10 * kNanosPerSecond));
  expect_nothing_left(*runtime);
}

}  // namespace
}  // namespace kvasir::test
