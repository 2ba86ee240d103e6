#include "exec/rig.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/random.h"
#include "cache/disk_world.h"
#include "cache/tiers/memory_link.h"
#include "engine/random_policy.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/gpu/gpu_executor.h"
#include "exec/gpu/gpu_mover.h"
#include "exec/gpu/uploaded_model.h"
#include "exec/gpu_reference_decoder.h"
#include "exec/reference_decoder.h"
#include "exec/sampler.h"
#include "fakes/fake_disk_io.h"
#include "fakes/fake_link.h"
#include "model/architectures/cache_layers.h"
#include "model/files/form_bytes.h"
#include "sched/registry.h"

namespace kvasir::test {
namespace {

constexpr Nanos kTurn = kNanosPerMilli;  // of virtual time

class RigSink final : public OutputSink {
 public:
  explicit RigSink(RigOutput& out) : out_(out) {}
  void on_output(OutputEvent event) override {
    for (const OutputToken& t : event.tokens) out_.tokens.push_back(t.id);
    for (PromptToken& t : event.prompt) out_.scored.push_back(std::move(t));
    if (!event.embedding.empty()) out_.embedding = std::move(event.embedding);
    out_.cached_prompt_tokens = event.cached_prompt_tokens;
    if (event.finish) out_.finish = *event.finish;
    EXPECT_EQ(event.error, "");
  }

 private:
  RigOutput& out_;
};

// Predicts nothing and notes the hidden rows: the hint says of which request, from 1 on.
class RowNotes final : public LengthPredictor {
 public:
  explicit RowNotes(std::vector<RigOutput>& outputs) : outputs_(outputs) {}
  LengthPrediction predict(const PromptFeatures& f) override {
    if (f.hidden.empty()) return {};
    RigOutput& out = outputs_[f.output_tokens_hint - 1];
    out.repeated |= !out.hidden.empty();
    out.hidden.assign(f.hidden.begin(), f.hidden.end());
    return {};
  }
  bool reads_hidden() const override { return true; }
  void learn(const PromptFeatures&, const LengthPrediction&, uint32_t) override {}
  const std::vector<LengthClass>& classes() const override { return classes_; }

 private:
  std::vector<RigOutput>& outputs_;
  std::vector<LengthClass> classes_;
};

// Some copies take long, and some fail, though the device goes on.
class FaultyMover final : public Mover {
 public:
  FaultyMover(Gpu& gpu, const RigOptions& options)
      : mover_(gpu), options_(options), random_(options.seed + 6) {}
  Status make_streams(size_t count) { return mover_.make_streams(count); }
  Status move(std::span<const MovedRun> runs) override {
    if (happens(options_.late_moves)) std::this_thread::sleep_for(std::chrono::milliseconds(3));
    if (happens(options_.failing_moves)) return error(ErrorCode::kIo, "a copy failed");
    return mover_.move(runs);
  }

 private:
  bool happens(double share) {
    const std::lock_guard lock(mutex_);
    return random_.unit() < share;
  }

  GpuMover mover_;
  const RigOptions& options_;
  std::mutex mutex_;
  Random random_;
};

// A whole engine, built from the ground, and the link as a test drives it.
class Rig {
 public:
  Rig(const ModelFile& file, const RigOptions& options, RigRun& result);

  // Submits what is due, cancels what is due, and turns the engine. False: everything has ended.
  bool turn(const std::vector<RigRequest>& requests);
  // Waits for transfers that are no longer needed.
  void settle();
  void report();
  uint64_t steps() const { return engine_->metrics().steps; }

 private:
  bool submit(const RigRequest& request);
  void cancel_due(const std::vector<RigRequest>& requests);
  void make_cpu(const ModelFile& file, const LogitsTap& tap);
  void make_gpu(const ModelFile& file, const LogitsTap& tap);
  // Of the device tier, as the link reaches it.
  std::span<std::byte> device_memory() const;
  void make_link();
  void open_disk();
  std::span<std::byte> pinned_buffers();
  Link* link() const { return fake_ ? static_cast<Link*>(fake_.get()) : real_.get(); }
  const Clock& clock() const {
    return options_.repeats_itself() ? static_cast<const Clock&>(virtual_clock_) : clock_;
  }

  const RigOptions options_;
  const EngineOptions settings_;
  RigRun& result_;
  MonotonicClock clock_;
  VirtualClock virtual_clock_;
  Random moving_;
  std::unique_ptr<PackedModel> packed_;
  Arena device_;
  Arena host_;
  std::optional<TestDirectory> directory_;
  FakeDisk faulty_disk_;
  std::unique_ptr<DiskFile> disk_;
  std::vector<std::byte> fake_disk_;
  std::unique_ptr<Gpu> gpu_;  // null: on the CPU
  std::unique_ptr<UploadedModel> uploaded_;
  std::unique_ptr<GpuBuffer> gpu_memory_;  // of the device tier
  std::unique_ptr<GpuBuffer> gpu_host_;    // of the host tier
  std::unique_ptr<GpuBuffer> gpu_disk_;    // pinned, for the disk's pieces
  std::unique_ptr<FaultyMover> mover_;
  std::unique_ptr<FakeLink> fake_;
  std::unique_ptr<MemoryLink> real_;
  std::unique_ptr<Executor> executor_;
  GpuExecutor* gpu_executor_ = nullptr;  // that, on a GPU
  RowNotes rows_;
  std::unique_ptr<Engine> engine_;
  std::vector<RequestId> ids_;  // of those submitted
  std::map<SeqId, size_t> request_of_;
  bool busy_ = true;
};

Arena filled_arena(uint64_t bytes) {
  auto memory = Arena::map(bytes, "the test");
  EXPECT_TRUE(memory.ok());
  // What memory held before must not matter: not a number, not zero.
  std::memset(memory->data(), 0xff, memory->size());
  return std::move(memory).value();
}

Rig::Rig(const ModelFile& file, const RigOptions& options, RigRun& result)
    : options_(options),
      settings_(engine_options(file, options)),
      result_(result),
      moving_(options.seed + 2),
      rows_(result.outputs) {
  auto policy =
      options.policy.starts_with("random")
          ? Result<std::unique_ptr<Policy>>(make_random_policy(
                options.seed, options.policy == "random-forms" ? RandomPlans::kForms : RandomPlans::kCopies))
          : make_policy(options.policy);
  EXPECT_TRUE(policy.ok());
  const LogitsTap tap = [this](SeqId seq, uint32_t position, std::span<const float> logits) {
    RigOutput& out = result_.outputs[request_of_.at(seq)];
    if (options_.failing_moves > 0 || (options_.gpu && options_.failing_transfers > 0)) {
      // Where the engine hears of a failure before the step that waits for it ends, a row may be made of what
      // was not computed. Then it does not count and comes again: the last one is what counts.
      out.logits[position].assign(logits.begin(), logits.end());
      return;
    }
    const auto [it, first] = out.logits.try_emplace(position, logits.begin(), logits.end());
    out.repeated |= !first;
  };
  if (options.gpu) {
    make_gpu(file, tap);
  } else {
    make_cpu(file, tap);
  }
  engine_ = std::make_unique<Engine>(
      settings_, std::make_unique<CountingPolicy>(std::move(policy).value(), result.plans), *executor_,
      clock(), options.log, link(), Beliefs{nullptr, &rows_});
}

void Rig::make_cpu(const ModelFile& file, const LogitsTap& tap) {
  auto packed = PackedModel::make(file, static_cast<uint32_t>(file.spec().context_length));
  EXPECT_TRUE(packed.ok());
  packed_ = std::move(packed).value();
  device_ = filled_arena(settings_.cache.device_bytes + settings_.cache.stage_bytes);
  if (options_.host_blocks > 0) make_link();
  Decoder::Options decoder;
  decoder.activation = options_.activation;
  decoder.kv_type = options_.kv_type;
  auto made = std::make_unique<CpuExecutor>(*packed_, ops::kernels_for(options_.isa),
                                            settings_.cache.geometry, decoder, device_.data(),
                                            options_.threads, clock(), std::vector<int>{}, link());
  made->set_tap(tap);
  executor_ = std::move(made);
}

void Rig::make_gpu(const ModelFile& file, const LogitsTap& tap) {
  gpu_ = make_test_gpu(*options_.gpu, options_.seed + 4);
  auto uploaded = UploadedModel::make(file, static_cast<uint32_t>(file.spec().context_length), *gpu_);
  EXPECT_TRUE(uploaded.ok());
  uploaded_ = std::move(uploaded).value();
  gpu_memory_ = std::make_unique<GpuBuffer>(*gpu_, GpuBuffer::Kind::kDevice);
  EXPECT_TRUE(gpu_memory_->reserve(settings_.cache.device_bytes + settings_.cache.stage_bytes).ok());
  if (options_.host_blocks > 0) make_link();
  GpuExecutorOptions executor;
  executor.depth = options_.gpu_depth;
  executor.graphs = options_.gpu_graphs;
  if (options_.repeats_itself()) {
    executor.goes_along_in_submit = [random = Random(options_.seed + 7)]() mutable {
      return random.unit() < 0.5;
    };
  }
  auto made = GpuExecutor::make(*gpu_, uploaded_->model(), settings_.cache.geometry, gpu_memory_->data(),
                                clock(), link(), std::move(executor));
  EXPECT_TRUE(made.ok());
  gpu_executor_ = made->get();
  gpu_executor_->set_tap(tap);
  if (options_.gpu_passes) {
    EXPECT_TRUE(gpu_executor_->reserve({1, 1, /*partial_bytes=*/0}).ok());
  }
  executor_ = std::move(made).value();
}

std::span<std::byte> Rig::device_memory() const {
  if (gpu_ == nullptr) return {device_.data(), device_.size()};
  return {shadow_of(*gpu_, gpu_memory_->data()), settings_.cache.device_bytes + settings_.cache.stage_bytes};
}

void Rig::make_link() {
  std::span<std::byte> device = device_memory();
  std::span<std::byte> host;
  if (gpu_) {
    gpu_host_ = std::make_unique<GpuBuffer>(*gpu_, GpuBuffer::Kind::kPinned);
    EXPECT_TRUE(gpu_host_->reserve(settings_.cache.host_bytes).ok());
    host = {gpu_host_->data(), settings_.cache.host_bytes};
  } else {
    host_ = filled_arena(settings_.cache.host_bytes);
    host = {host_.data(), host_.size()};
  }
  if (options_.link == RigLink::kFake) {
    fake_disk_.assign(settings_.cache.disk_bytes, std::byte{0xff});
    fake_ = std::make_unique<FakeLink>(virtual_clock_, FakeLink::Memories{device, host, fake_disk_});
    fake_->be_late(options_.late_waits, options_.seed);
    fake_->fail_share(options_.failing_transfers, options_.seed + 1);
    fake_->be_fast(options_.fast_transfers, options_.seed + 5);
    return;
  }
  MemoryLinkOptions link;
  if (gpu_) {
    mover_ = std::make_unique<FaultyMover>(*gpu_, options_);
    EXPECT_TRUE(mover_->make_streams(5).ok());
    link.duplex = true;
    link.threads = 2;
    device = {gpu_memory_->data(), device.size()};
    link.mover = mover_.get();
  }
  link.memory = {device, host, {}};
  link.unit_bytes = 4 * kKiB;  // several of the tiny models' layers are more than a unit
  link.emulated_bytes_per_s = options_.link_bytes_per_s;
  if (settings_.cache.disk_bytes > 0) open_disk();
  link.disk = disk_.get();
  if (gpu_ && disk_) link.disk_buffers = pinned_buffers();
  real_ = std::make_unique<MemoryLink>(link, clock_);
}

void Rig::open_disk() {
  DiskFileOptions options = disk_options(directory_.emplace(), settings_.cache.disk_bytes);
  options.max_piece_bytes = settings_.cache.geometry.largest_piece_bytes();
  if (options_.disk_faults > 0) {
    options.io = faulty_disk_.maker();
    faulty_disk_.fail_at_random(options_.seed + 3, options_.disk_faults);
  }
  auto file = DiskFile::open(std::move(options));
  ASSERT_TRUE(file.ok()) << file.status().message();
  disk_ = std::move(file).value();
}

std::span<std::byte> Rig::pinned_buffers() {
  const uint64_t bytes = disk_->buffer_bytes();
  gpu_disk_ = std::make_unique<GpuBuffer>(*gpu_, GpuBuffer::Kind::kPinned);
  EXPECT_TRUE(gpu_disk_->reserve(bytes + kDiskAlign).ok());
  std::byte* const at = gpu_disk_->data();
  return {at + (kDiskAlign - reinterpret_cast<uintptr_t>(at) % kDiskAlign), bytes};
}

bool Rig::submit(const RigRequest& request) {
  GenerationRequest r;
  r.prompt = request.prompt;
  r.max_tokens = request.max_tokens;
  r.sampling = request.sampling;
  r.pooling = request.pooling;
  r.slo = options_.slo;
  r.output_tokens_hint = static_cast<uint32_t>(ids_.size() + 1);
  auto id = engine_->submit(std::move(r), std::make_shared<RigSink>(result_.outputs[ids_.size()]));
  EXPECT_TRUE(id.ok()) << id.status().message();
  if (!id.ok()) return false;
  request_of_[SeqId{raw(*id)}] = ids_.size();
  ids_.push_back(*id);
  return true;
}

void Rig::cancel_due(const std::vector<RigRequest>& requests) {
  for (size_t i = 0; i < ids_.size(); ++i) {
    RigOutput& out = result_.outputs[i];
    if (out.cancelled || out.finish != FinishReason::kAbort) continue;
    if (requests[i].cancel_after_step > engine_->metrics().steps) continue;
    engine_->cancel(ids_[i]);
    out.cancelled = true;
  }
}

bool Rig::turn(const std::vector<RigRequest>& requests) {
  const uint64_t steps = engine_->metrics().steps;
  while (ids_.size() < requests.size() && (!busy_ || requests[ids_.size()].after_step <= steps)) {
    if (!submit(requests[ids_.size()])) return false;
    busy_ = true;
  }
  cancel_due(requests);
  if (fake_ && moving_.unit() < options_.moved) fake_->complete_some(moving_);
  virtual_clock_.advance(kTurn);
  busy_ = engine_->step();
  // Nothing ran: all sequences wait for the link, which has a thread of its own.
  if (real_ && engine_->metrics().steps == steps) std::this_thread::sleep_for(std::chrono::microseconds(20));
  return busy_ || ids_.size() < requests.size();
}

void Rig::settle() {
  while (engine_->metrics().transfers_in_flight > 0) {
    if (fake_) fake_->complete_all();
    if (real_) std::this_thread::sleep_for(std::chrono::microseconds(20));
    engine_->step();
  }
}

void Rig::report() {
  const EngineMetrics& m = engine_->metrics();
  result_.preemptions = m.num_preemptions;
  result_.swapped = m.num_preemptions_swapped;
  result_.steps = m.steps;
  result_.staged_steps = m.steps_staged;
  result_.deferred_rows = m.deferred_rows;
  if (gpu_executor_ != nullptr) {
    result_.queued_early = gpu_executor_->queued_early();
    result_.queued_long = gpu_executor_->queued_long();
    result_.graphs = gpu_executor_->graphs_queued();
    EXPECT_EQ(gpu_executor_->graphs_refused(), 0U) << "steps of one graph have other kernels";
  }
  if (link()) result_.link = link()->stats();
  EXPECT_EQ(m.kv_blocks_used, 0u) << "blocks are leaked";
  EXPECT_EQ(m.tiers[1].bytes_used, 0u) << "cells on the host are leaked";
  EXPECT_EQ(m.tiers[2].bytes_used, 0u) << "cells on the disk are leaked";
  EXPECT_TRUE(engine_->check_integrity().ok()) << engine_->check_integrity().message();
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

bool same_scores(const std::vector<PromptToken>& a, const std::vector<PromptToken>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const PromptToken& x, const PromptToken& y) {
    return x.id == y.id && x.logprob == y.logprob && x.rank == y.rank &&
           std::equal(x.top.begin(), x.top.end(), y.top.begin(), y.top.end(),
                      [](const TokenLogprob& p, const TokenLogprob& q) {
                        return p.token == q.token && p.logprob == q.logprob;
                      });
  });
}

// Whether what came is what had to come, or, of a cancelled request, the beginning of it.
bool same(const RigOutput& expected, const RigOutput& got) {
  if (got.repeated || got.tokens.size() > expected.tokens.size()) return false;
  if (!std::equal(got.tokens.begin(), got.tokens.end(), expected.tokens.begin())) return false;
  const bool whole = !got.cancelled || got.finish == FinishReason::kLength;
  if (whole && got.tokens.size() < expected.tokens.size()) return false;
  if (whole && got.logits.size() < expected.logits.size()) return false;
  if (!got.tokens.empty() && !same_bits(expected.hidden, got.hidden)) return false;
  if (!got.tokens.empty() && !same_bits(expected.embedding, got.embedding)) return false;
  if (!got.tokens.empty() && !same_scores(expected.scored, got.scored)) return false;
  return std::all_of(got.logits.begin(), got.logits.end(), [&](const auto& entry) {
    const auto it = expected.logits.find(entry.first);
    return it != expected.logits.end() && same_bits(it->second, entry.second);
  });
}

}  // namespace

EngineOptions engine_options(const ModelFile& file, const RigOptions& options) {
  const ModelSpec& c = file.spec();
  EngineOptions engine;
  CacheGeometry& g = engine.cache.geometry;
  g.block_tokens = options.block_tokens;
  g.kv_plane_bytes_per_token_layer = c.kv_plane_bytes_per_token_layer(options.kv_type);
  g.kv_planes = static_cast<uint32_t>(c.kv_planes());
  const CacheLayers layers(c, g.piece_bytes(Form::kKv));
  g.layers = layers.count();
  g.layers_per_group =
      options.layers_per_group == 0 ? g.layers : std::min(g.layers, options.layers_per_group);
  if (c.is_recurrent()) g.layers_per_group = 1;
  if (options.forms && !c.is_latent() && !c.is_recurrent()) {
    const FormBytes forms = form_bytes(c, x_type_of(file.weights(), options.activation));
    g.x_bytes_per_token_layer = options.gpu ? gpu_x_bytes(c) : forms.x_per_token_layer;
  }
  if (options.windows_free_memory && !options.gpu && !c.is_recurrent()) g.set_windows(c.windows());
  g.window_chunk = 32;
  if (c.is_recurrent()) g.set_states(layers.windows(c, g.block_tokens));
  engine.cache.device_bytes = g.kv_block_bytes() * options.blocks;
  engine.cache.host_bytes = g.kv_block_bytes() * options.host_blocks;
  engine.cache.disk_bytes = g.cell_stride(Form::kKv, Tier::kDisk) * g.groups() * options.disk_blocks;
  engine.cache.stage_bytes = g.largest_piece_bytes() * options.stage_blocks;
  engine.scratch_tokens = options.scratch_tokens;
  engine.cache.prefix_caching = options.prefix_caching;
  engine.cache.numerics_id = "test";
  engine.limits = options.limits;
  engine.max_decode_stall = options.max_decode_stall;
  engine.max_model_len = std::min(Engine::longest_fit(engine.cache), static_cast<uint32_t>(c.context_length));
  engine.check_integrity = options.check_integrity;
  return engine;
}

RigRun run(const ModelFile& file, const RigOptions& options, const std::vector<RigRequest>& requests) {
  constexpr int kStuck = 200'000;  // turns without a step
  RigRun result;
  result.outputs.resize(requests.size());
  Rig rig(file, options, result);
  uint64_t steps = 0;
  int idle = 0;
  while (rig.turn(requests) && idle < kStuck) {
    idle = rig.steps() == steps ? idle + 1 : 0;
    steps = rig.steps();
  }
  EXPECT_LT(idle, kStuck) << "nothing moves any more";
  rig.settle();
  rig.report();
  for (const RigOutput& out : result.outputs) {
    EXPECT_TRUE(out.finish == FinishReason::kLength || out.cancelled);
  }
  return result;
}

int differences(const std::vector<RigOutput>& expected, const std::vector<RigOutput>& got) {
  int count = 0;
  for (size_t i = 0; i < expected.size(); ++i) count += same(expected[i], got[i]) ? 0 : 1;
  return count;
}

namespace {

// The scalar reference of either numerics, a token at a time, and how its tokens are chosen.
class Reference {
 public:
  virtual ~Reference() = default;
  virtual std::vector<float> step(Token token) = 0;
  virtual std::vector<float> hidden() const = 0;
  virtual Token choose(const std::vector<float>& logits, const SamplingParams& sampling,
                       std::span<const Token> history) {
    const TokenMask* mask = nullptr;
    if (sampling.constraint) {
      mask = sampling.constraint->after(history.subspan(sampling.prompt_tokens), 10 * kNanosPerSecond);
    }
    const auto position = static_cast<uint32_t>(history.size());
    return sampler.sample(logits, sampling, position, history, SeqId{0}, mask).token;
  }

  Sampler sampler{ops::kernels_for(ops::IsaClass::kPortable)};
};

class CpuReference final : public Reference {
 public:
  CpuReference(const ModelFile& file, const RigOptions& options)
      : decoder_(file, options.activation, options.kv_type) {}
  std::vector<float> step(Token token) override { return decoder_.step(token); }
  std::vector<float> hidden() const override { return decoder_.hidden(); }

 private:
  ReferenceDecoder decoder_;
};

class GpuReference final : public Reference {
 public:
  explicit GpuReference(const ModelFile& file)
      : decoder_(file, static_cast<uint32_t>(file.spec().context_length), GpuReferenceDecoder::By::kTwin) {}
  std::vector<float> step(Token token) override { return decoder_.run({&token, 1}); }
  std::vector<float> hidden() const override { return decoder_.hidden(); }
  Token choose(const std::vector<float>& logits, const SamplingParams& sampling,
               std::span<const Token> history) override {
    if (!is_drawn_on_device(sampling)) return Reference::choose(logits, sampling, history);
    const ops::KeepSubnormals mode;
    return ops::reference::draw(logits.data(), static_cast<int64_t>(logits.size()),
                                {sampling.temperature, sampling.top_k, static_cast<double>(sampling.top_p),
                                 random_bits(sampling.seed, 0, history.size())});
  }

 private:
  GpuReferenceDecoder decoder_;
};

std::unique_ptr<Reference> make_reference(const ModelFile& file, const RigOptions& options) {
  if (options.gpu) return std::make_unique<GpuReference>(file);
  return std::make_unique<CpuReference>(file, options);
}

}  // namespace

std::vector<RigOutput> run_reference(const ModelFile& file, const RigOptions& options,
                                     const std::vector<RigRequest>& requests) {
  const ops::FlushToZero mode;
  std::vector<RigOutput> outputs;
  for (const RigRequest& r : requests) {
    RigOutput out;
    const std::unique_ptr<Reference> reference = make_reference(file, options);
    SamplingParams sampling = r.sampling;
    sampling.prompt_tokens = static_cast<uint32_t>(r.prompt.size());
    std::vector<float> logits;
    for (size_t i = 0; i < r.prompt.size(); ++i) {
      if (i > 0 && sampling.prompt_logprobs >= 0) {
        const ScoredToken scored = reference->sampler.score(logits, r.prompt[i], sampling.prompt_logprobs);
        out.scored.push_back({scored.token, scored.logprob, scored.rank, scored.top});
      }
      logits = reference->step(r.prompt[i]);
      if (r.pooling == Pooling::kNone) continue;
      const std::vector<float> row = reference->hidden();
      out.embedding.resize(row.size());
      for (size_t d = 0; d < row.size(); ++d) {
        out.embedding[d] = r.pooling == Pooling::kMean ? out.embedding[d] + row[d] : row[d];
      }
    }
    if (r.pooling == Pooling::kMean) {
      for (float& v : out.embedding) v /= static_cast<float>(r.prompt.size());
    }
    out.hidden = reference->hidden();
    std::vector<Token> history = r.prompt;
    for (;;) {
      out.logits[static_cast<uint32_t>(history.size()) - 1] = logits;
      history.push_back(reference->choose(logits, sampling, history));
      out.tokens.push_back(history.back());
      if (out.tokens.size() == r.max_tokens) break;
      logits = reference->step(out.tokens.back());
    }
    outputs.push_back(std::move(out));
  }
  return outputs;
}

std::unique_ptr<ModelFile> tiny_model(const TinyLlamaShape& shape, ops::WeightType type) {
  auto file = ModelFile::from_bytes(make_tiny_llama(shape, type, /*seed=*/11), "tiny.gguf");
  EXPECT_TRUE(file.ok()) << file.status().message();
  return std::move(file).value();
}

std::vector<Token> random_tokens(uint64_t seed, size_t count) {
  Random random(seed);
  std::vector<Token> out(count);
  for (Token& t : out) t = static_cast<Token>(3 + random.below(256));
  return out;
}

}  // namespace kvasir::test
