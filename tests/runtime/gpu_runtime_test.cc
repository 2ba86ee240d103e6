// The runtime over a fake GPU: its outputs are those of the GPU's reference decoder, bit for bit, through the
// engine's own thread.
#include "runtime/gpu_runtime_rig.h"
#include "sched/registry.h"

namespace kvasir::test {
namespace {

using testing::HasSubstr;

TEST_F(GpuRuntime, LogitsAndTokensAreTheReferences) {
  const std::vector<RigRequest> requests = mixed_requests(6, 150);
  const std::vector<RigOutput> expected = reference(requests);
  for (const FakeGpuPace pace : {FakeGpuPace::kEarly, FakeGpuPace::kLate}) {
    use_gpu(pace);
    options_.enforce_eager = pace == FakeGpuPace::kEarly;
    EXPECT_EQ(opened_, pace == FakeGpuPace::kEarly ? 0 : 1);
    const auto runtime = load();
    ASSERT_TRUE(runtime);
    EXPECT_EQ(runtime->engine().options().cache.numerics_id, "kvasir-3/mma16t25/bf16/act-bf16/kv-bf16/tp1");
    EXPECT_THAT(runtime->memory_report(), HasSubstr("(bf16) of the GPU's 64"));
    expect_same(expected, run_all(*runtime, requests));
    EXPECT_EQ(gpu_->graphs() == 0, options_.enforce_eager);
  }
  // One after the other, the logits of every sampled row.
  std::map<uint32_t, std::vector<float>> logits;
  options_.tap = [&](SeqId, uint32_t position, std::span<const float> row) {
    logits[position].assign(row.begin(), row.end());
  };
  const auto runtime = load();
  ASSERT_TRUE(runtime);
  for (size_t i = 0; i < 3; ++i) {
    logits.clear();
    expect_same({expected[i]}, run_all(*runtime, {requests[i]}));
    runtime->engine().wait_idle(10 * kNanosPerSecond);
    EXPECT_EQ(logits, expected[i].logits) << i;
  }
}

// In memory so small that they preempt.
TEST_F(GpuRuntime, EveryPolicyServes) {
  const std::vector<RigRequest> requests = mixed_requests(5, 90);
  const std::vector<RigOutput> expected = reference(requests);
  options_.kv_cache_memory_bytes = blocks(14);
  options_.max_model_len = 0;
  uint64_t preemptions = 0;
  for (const std::string& policy : policy_names()) {
    SCOPED_TRACE(policy);
    options_.scheduling_policy = policy;
    options_.enforce_eager = !options_.enforce_eager;
    const auto runtime = load();
    ASSERT_TRUE(runtime);
    expect_same(expected, run_all(*runtime, requests));
    preemptions += runtime->engine().metrics().num_preemptions;
  }
  EXPECT_GT(preemptions, 0U);
}

// Of K and V as large as all heads together, X is a half.
class GpuRuntimeWithX : public GpuRuntime {
 protected:
  GpuRuntimeWithX() : GpuRuntime(tiny_mha()) {}
};

TEST_F(GpuRuntimeWithX, HistoriesThatAreKeptAsXGiveTheSameBits) {
  const std::vector<RigRequest> requests = mixed_requests(16, 120);
  const std::vector<RigOutput> expected = reference(requests);
  options_.kv_cache_memory_bytes = blocks(40);
  options_.max_model_len = 0;
  options_.max_num_seqs = 16;
  options_.max_num_batched_tokens = 256;
  uint64_t all_projected = 0;
  for (const char* policy : {"apt-serve:hidden-share=1", "apt-serve-s:hidden-share=1", "hcache:x-share=1"}) {
    SCOPED_TRACE(policy);
    const bool restores = std::string(policy).starts_with("hcache");
    options_.scheduling_policy = policy;
    options_.kv_offloading_bytes = restores ? blocks(80) : 0;
    const auto runtime = load();
    ASSERT_TRUE(runtime);
    EXPECT_THAT(runtime->memory_report(),
                HasSubstr("hidden cache: X (bf16) takes 0.50 of what K and V take"));
    // Times decide whether X is used, and whether something is preempted that can be restored from it.
    const auto& projected = runtime->engine().metrics().tokens_projected;
    for (int round = 0; round < (restores ? 1 : 50) && projected == 0; ++round) {
      expect_same(expected, run_all(*runtime, requests));
    }
    if (!restores) all_projected += projected;
  }
  EXPECT_GT(all_projected, 0U);
}

TEST_F(GpuRuntime, ACancelledRequestLeavesTheOthersAlone) {
  const std::vector<RigRequest> requests = mixed_requests(3, 60);
  const std::vector<RigOutput> expected = reference(requests);
  const auto runtime = load();
  ASSERT_TRUE(runtime);
  RequestId id{};
  const auto cancelled = submit(*runtime, {random_tokens(9, 30), 400}, &id);
  std::vector<std::shared_ptr<Answer>> others;
  for (const RigRequest& request : requests) others.push_back(submit(*runtime, request));
  cancelled->wait_for_tokens(3);
  runtime->engine().cancel(id);
  std::vector<RigOutput> got;
  for (const auto& other : others) got.push_back(other->wait());
  expect_same(expected, got);
  EXPECT_EQ(cancelled->wait().finish, FinishReason::kAbort);
  EXPECT_TRUE(runtime->engine().wait_idle(10 * kNanosPerSecond));
  EXPECT_EQ(runtime->engine().metrics().kv_blocks_used, 0U);
}

}  // namespace
}  // namespace kvasir::test
