// The runtime over a fake GPU: its outputs are those of the GPU's reference decoder, bit for bit, through the
// engine's own thread and over HTTP.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "base/units.h"
#include "exec/rig.h"
#include "fakes/fake_gpu.h"
#include "runtime/cost_profile.h"
#include "runtime/model_service.h"
#include "runtime/runtime.h"
#include "sched/registry.h"
#include "server/choice_stream.h"
#include "server/http_client.h"
#include "server/server.h"
#include "support/temp_file.h"

namespace kvasir::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr uint64_t kSeed = 11;  // as tiny_model() has it

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
      : path_(make_tiny_llama(shape, ops::WeightType::kBf16, kSeed)),
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
std::vector<RigRequest> mixed_requests(size_t count, size_t longest) {
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

TEST_F(GpuRuntime, LogitsAndTokensAreTheReferences) {
  const std::vector<RigRequest> requests = mixed_requests(6, 150);
  const std::vector<RigOutput> expected = reference(requests);
  for (const FakeGpuPace pace : {FakeGpuPace::kEarly, FakeGpuPace::kLate}) {
    use_gpu(pace);
    EXPECT_EQ(opened_, pace == FakeGpuPace::kEarly ? 0 : 1);
    const auto runtime = load();
    ASSERT_TRUE(runtime);
    EXPECT_EQ(runtime->engine().options().cache.numerics_id, "kvasir-3/mma16t25/bf16/act-bf16/kv-bf16/tp1");
    EXPECT_THAT(runtime->memory_report(), HasSubstr("(bf16) of the GPU's 64"));
    expect_same(expected, run_all(*runtime, requests));
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
  for (const size_t of_mover : {0, 1}) gpu_->lose_stream(of_mover);  // the executor's came later
  std::vector<std::shared_ptr<Answer>> answers;
  for (uint64_t i = 0; i < 6; ++i) answers.push_back(submit(*runtime, {random_tokens(40 + i, 120), 190}));
  for (const auto& answer : answers) EXPECT_THAT(answer->wait_for_error(), HasSubstr("it is lost"));
  EXPECT_THAT(runtime->failure(), HasSubstr("the GPU failed: it is lost"));
  EXPECT_THAT(submit(*runtime, {random_tokens(3, 9), 4})->wait_for_error(), HasSubstr("it is lost"));
  EXPECT_TRUE(runtime->engine().wait_idle(10 * kNanosPerSecond));
  expect_nothing_left(*runtime);
}

// ---------------------------------------------------------------- over HTTP

class GpuServer : public GpuRuntime {
 protected:
  GpuServer() {
    runtime_ = load();
    KV_CHECK(runtime_ != nullptr, "no runtime");
    backend_ = make_engine_backend(runtime_->engine());
    ServerOptions server;
    server.port = 0;
    server.model_names = {"tiny"};
    server_ = Server::start(server).value();
    server_->serve(make_service(*runtime_, *backend_));
  }
  HttpAnswer ask(const std::string& request) const {
    HttpClient client(server_->port());
    EXPECT_TRUE(client.send(request));
    return client.receive().value_or(HttpAnswer{});
  }
  // Of a greedy request.
  static std::string body_of(const RigRequest& r, bool stream) {
    return json{{"prompt", r.prompt}, {"max_tokens", r.max_tokens}, {"temperature", 0},
                {"min_p", 0},         {"ignore_eos", true},         {"stream", stream}}
        .dump();
  }
  // What the server makes of the reference's tokens.
  std::string text_of(const RigRequest& request) const {
    ChoiceStream stream = ChoiceStream::create(&runtime_->tokenizer(), {}, {}, false).value();
    TextDelta delta;
    const std::vector<RigOutput> expected = reference({request});
    for (const Token token : expected[0].tokens) {
      const OutputToken one{token, 0, {}};
      EXPECT_TRUE(stream.push(one, delta).ok());
    }
    stream.finish(delta);
    return delta.text;
  }

  std::unique_ptr<Runtime> runtime_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Server> server_;
};

TEST_F(GpuServer, StreamsTheReferencesTextAndSurvivesClientsThatLeave) {
  RigRequest request{random_tokens(3, 70), 24};
  request.sampling.temperature = 0;
  const std::string expected = text_of(request);

  HttpClient leaving(server_->port());
  RigRequest endless{random_tokens(5, 20), 480};
  leaving.send(post("/v1/completions", body_of(endless, true)));
  ASSERT_TRUE(leaving.receive_until("data: "));

  HttpClient client(server_->port());
  client.send(post("/v1/completions", body_of(request, true)));
  leaving.close();
  const auto streamed = client.receive();
  ASSERT_TRUE(streamed && streamed->status == 200);
  std::string text;
  size_t pieces = 0;
  for (const std::string& event : events(streamed->body)) {
    if (event == "[DONE]") continue;
    const json chunk = json::parse(event);
    if (chunk["choices"].empty()) continue;
    text += chunk["choices"][0]["text"].get<std::string>();
    ++pieces;
  }
  EXPECT_EQ(text, expected);
  EXPECT_GT(pieces, 1U);

  HttpClient whole(server_->port());
  whole.send(post("/v1/completions", body_of(request, false)));
  const auto answer = whole.receive();
  ASSERT_TRUE(answer && answer->status == 200);
  EXPECT_EQ(json::parse(answer->body)["choices"][0]["text"], expected);
  EXPECT_TRUE(runtime_->engine().wait_idle(10 * kNanosPerSecond)) << "the client that left is cancelled";
  server_->stop(kNanosPerSecond);
}

TEST_F(GpuServer, SaysThatItsDeviceIsLost) {
  RigRequest request{random_tokens(5, 20), 480};
  HttpClient client(server_->port());
  ASSERT_TRUE(client.send(post("/v1/completions", body_of(request, true))));
  ASSERT_TRUE(client.receive_until("data: "));
  for (const char* path : {"/livez", "/readyz", "/health"}) EXPECT_EQ(ask(get(path)).status, 200) << path;
  gpu_->lose();
  const auto streamed = client.receive();
  ASSERT_TRUE(streamed);
  EXPECT_THAT(streamed->body, HasSubstr("the GPU failed: it is lost; restart the server"));
  for (const std::string& asked :
       {get("/livez"), get("/readyz"), get("/health"), post("/v1/completions", body_of(request, false))}) {
    const HttpAnswer answer = ask(asked);
    EXPECT_EQ(answer.status, 503) << asked;
    EXPECT_THAT(answer.body, HasSubstr("the GPU failed: it is lost; restart the server"));
  }
  server_->stop(kNanosPerSecond);
}

// ---------------------------------------------------------------- memory, and what is refused

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
  EXPECT_EQ(std::exchange(flags[1], flags[0]), "--kv-offloading-size");
  EXPECT_THAT(flags, testing::Each("--gpu-memory-utilization"));
  options_.kv_cache_memory_bytes = blocks(60);
  EXPECT_EQ(flag_of(needed - 1), "--kv-cache-memory-bytes");
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
              HasSubstr("cpu='Zen 5' threads=2 isa=avx512; leave it out: on a GPU costs are learnt"));
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
      {[](RuntimeOptions& o) { o.kv_offloading_disk_bytes = kMiB; }, "--kv-offloading-disk-size 1.00 MiB: "},
      {[](RuntimeOptions& o) { o.kv_offloading_dir = "/nowhere"; }, "--kv-offloading-dir /nowhere: "},
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
              testing::StartsWith("--device cuda: products of 8 rows on the GPU fake GPU have other"));
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

}  // namespace
}  // namespace kvasir::test
