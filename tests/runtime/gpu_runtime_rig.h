// The runtime over a fake GPU, for a tiny model.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/units.h"
#include "exec/rig.h"
#include "fakes/fake_gpu.h"
#include "runtime/runtime.h"
#include "support/temp_file.h"

namespace kvasir::test {

constexpr uint64_t kModelSeed = 11;  // as tiny_model() has it

class Answer final : public OutputSink {
 public:
  void on_output(OutputEvent event) override {
    const std::lock_guard lock(mutex_);
    for (const OutputToken& token : event.tokens) out_.tokens.push_back(token.id);
    if (!event.embedding.empty()) out_.embedding = std::move(event.embedding);
    out_.cached_prompt_tokens = event.cached_prompt_tokens;
    error_ += event.error;
    if (event.finish) finish_ = event.finish;
    changed_.notify_all();
  }
  RigOutput wait() {
    EXPECT_EQ(wait_for_error(), "");
    out_.finish = finish_.value_or(FinishReason::kAbort);
    return out_;
  }
  // Waits for the end, too. "": there was none.
  std::string wait_for_error() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return finish_.has_value(); }));
    return error_;
  }
  void wait_for_tokens(size_t count) {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, std::chrono::seconds(60),
                                  [&] { return out_.tokens.size() >= count || finish_; }));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  RigOutput out_;
  std::optional<FinishReason> finish_;
  std::string error_;
};

// A tiny model in a file, and the runtime's options for it on a fake GPU.
class GpuRuntime : public testing::Test {
 protected:
  explicit GpuRuntime(const TinyLlamaShape& shape = tiny_gqa())
      : path_(make_tiny_llama(shape, ops::WeightType::kBf16, kModelSeed)),
        model_(tiny_model(shape, ops::WeightType::kBf16)) {
    options_.model_path = path_.path();
    options_.device = "cuda";
    options_.block_size = 16;
    options_.max_num_seqs = 8;
    options_.max_num_batched_tokens = 64;
    options_.max_model_len = 512;
    use_gpu(FakeGpuPace::kRandom);
  }

  void use_gpu(FakeGpuPace pace, uint64_t bytes = 64 * kMiB) {
    options_.open_gpu = [this, pace, bytes]() -> Result<std::unique_ptr<Gpu>> {
      ++opened_;
      auto gpu = std::make_unique<FakeGpu>(pace, /*seed=*/7, bytes);
      gpu_ = gpu.get();
      return std::unique_ptr<Gpu>(std::move(gpu));
    };
  }
  // Bytes of so many blocks of the device tier.
  uint64_t blocks(uint64_t count) const {
    const ModelSpec& spec = model_->spec();
    return count * options_.block_size * spec.kv_bytes_per_token(ops::KvType::kBf16);
  }

  std::unique_ptr<Runtime> load() {
    auto made = load_runtime(options_);
    EXPECT_TRUE(made.ok()) << made.status().message();
    if (!made.ok()) return nullptr;
    (*made)->engine().start();
    return std::move(made).value();
  }
  std::string refusal() {
    const auto made = load_runtime(options_);
    EXPECT_FALSE(made.ok());
    return made.ok() ? "" : made.status().message();
  }

  static std::shared_ptr<Answer> submit(Runtime& runtime, const RigRequest& request,
                                        RequestId* id = nullptr) {
    GenerationRequest r;
    r.prompt = request.prompt;
    r.max_tokens = request.max_tokens;
    r.sampling = request.sampling;
    r.pooling = request.pooling;
    auto answer = std::make_shared<Answer>();
    const auto submitted = runtime.engine().submit(std::move(r), answer);
    EXPECT_TRUE(submitted.ok()) << submitted.status().message();
    if (id != nullptr && submitted.ok()) *id = *submitted;
    return answer;
  }
  static std::vector<RigOutput> run_all(Runtime& runtime, const std::vector<RigRequest>& requests) {
    std::vector<std::shared_ptr<Answer>> answers;
    for (const RigRequest& request : requests) answers.push_back(submit(runtime, request));
    std::vector<RigOutput> out;
    for (const auto& answer : answers) out.push_back(answer->wait());
    return out;
  }
  std::vector<RigOutput> reference(const std::vector<RigRequest>& requests) const {
    RigOptions options;
    options.gpu = FakeGpuPace::kLate;
    return run_reference(*model_, options, requests);
  }
  static void expect_same(const std::vector<RigOutput>& expected, const std::vector<RigOutput>& got) {
    ASSERT_EQ(expected.size(), got.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(expected[i].tokens, got[i].tokens) << i;
      EXPECT_EQ(got[i].finish, FinishReason::kLength) << i;
      ASSERT_EQ(expected[i].embedding.size(), got[i].embedding.size()) << i;
      const std::vector<float>& vector = got[i].embedding;
      EXPECT_TRUE(vector.empty() || std::memcmp(expected[i].embedding.data(), vector.data(),
                                                vector.size() * sizeof(float)) == 0)
          << i;
    }
  }

  // No transfer, and no cell on a tier.
  static void expect_nothing_left(Runtime& runtime) {
    const EngineMetrics& metrics = runtime.engine().metrics();
    const auto is_left = [&] {
      runtime.engine().observe_link();
      return metrics.link.queued_bytes > 0 || metrics.kv_blocks_used > 0 ||
             metrics.tiers[index_of(Tier::kHost)].bytes_used > 0;
    };
    for (int i = 0; i < 1000 && is_left(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_GT(metrics.link.transfers, 0U) << "there was none";
    EXPECT_EQ(metrics.link.queued_bytes, 0U) << "of transfers that have not ended";
    EXPECT_EQ(metrics.kv_blocks_used, 0U);
    EXPECT_EQ(metrics.tiers[index_of(Tier::kHost)].bytes_used, 0U);
  }

  TempFile path_;
  std::unique_ptr<ModelFile> model_;
  RuntimeOptions options_;
  FakeGpu* gpu_ = nullptr;  // of the runtime that was loaded last
  int opened_ = 0;
};

// Drawn on the device, drawn on the host, and vectors.
inline std::vector<RigRequest> mixed_requests(size_t count, size_t longest) {
  std::vector<RigRequest> out;
  for (uint64_t i = 0; i < count; ++i) {
    RigRequest r{random_tokens(i, 1 + (i * 37 + longest - 1) % longest), static_cast<uint32_t>(6 + i)};
    r.sampling.temperature = i % 2 == 0 ? 0.8F : 0.0F;
    r.sampling.seed = 100 + i;
    if (i % 3 == 0) r.sampling.top_k = 20;
    if (i % 4 == 1) r.sampling.min_p = 0.05F;
    if (i % 4 == 2) r.pooling = Pooling::kMean;
    out.push_back(std::move(r));
  }
  return out;
}

}  // namespace kvasir::test
