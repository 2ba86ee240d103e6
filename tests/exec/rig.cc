#include "exec/rig.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/reference_decoder.h"
#include "model/sampler.h"
#include "sched/registry.h"

namespace kvasir::test {
namespace {

class RigSink final : public OutputSink {
 public:
  explicit RigSink(RigOutput& out) : out_(out) {}
  void on_output(OutputEvent event) override {
    for (const OutputToken& t : event.tokens) out_.tokens.push_back(t.id);
    out_.cached_prompt_tokens = event.cached_prompt_tokens;
    if (event.finish) out_.finish = *event.finish;
    EXPECT_EQ(event.error, "");
  }

 private:
  RigOutput& out_;
};

EngineOptions engine_options(const ModelFile& file, const RigOptions& options) {
  const ModelConfig& c = file.config();
  EngineOptions engine;
  CacheGeometry& g = engine.cache.geometry;
  g.block_tokens = options.block_tokens;
  g.layers = static_cast<uint32_t>(c.layers);
  g.layers_per_group = options.layers_per_group == 0 ? g.layers : options.layers_per_group;
  g.kv_plane_bytes_per_token_layer = c.kv_plane_bytes_per_token_layer(options.kv_type);
  engine.cache.device_bytes = g.kv_block_bytes() * options.blocks;
  engine.cache.prefix_caching = options.prefix_caching;
  engine.cache.numerics_id = "test";
  engine.limits = options.limits;
  engine.max_model_len = std::min(Engine::longest_fit(engine.cache), static_cast<uint32_t>(c.context_length));
  engine.check_integrity = options.check_integrity;
  return engine;
}

}  // namespace

RigRun run(const ModelFile& file, const RigOptions& options, const std::vector<RigRequest>& requests) {
  RigRun result;
  result.outputs.resize(requests.size());
  const EngineOptions settings = engine_options(file, options);
  auto packed = PackedModel::make(file, static_cast<uint32_t>(file.config().context_length));
  auto memory = Arena::map(settings.cache.device_bytes, "the test");
  auto policy = make_policy(options.policy);
  EXPECT_TRUE(packed.ok() && memory.ok() && policy.ok());
  // What a frame held before must not matter: not a number, not zero.
  std::memset(memory->data(), 0xff, memory->size());

  Decoder::Options decoder;
  decoder.activation = options.activation;
  decoder.kv_type = options.kv_type;
  const MonotonicClock clock;
  CpuExecutor executor(**packed, ops::kernels_for(options.isa), settings.cache.geometry, decoder,
                       memory->data(), options.threads, clock);
  std::map<SeqId, size_t> request_of;
  executor.set_tap([&](SeqId seq, uint32_t position, std::span<const float> logits) {
    RigOutput& out = result.outputs[request_of.at(seq)];
    out.logits[position].assign(logits.begin(), logits.end());
  });
  Engine engine(settings, std::move(policy).value(), executor, clock);
  size_t submitted = 0;
  for (bool busy = true; busy || submitted < requests.size();) {
    for (; submitted < requests.size(); ++submitted) {
      const RigRequest& r = requests[submitted];
      if (busy && r.after_step > engine.metrics().steps) break;
      GenerationRequest request;
      request.prompt = r.prompt;
      request.max_tokens = r.max_tokens;
      request.sampling = r.sampling;
      auto id = engine.submit(std::move(request), std::make_shared<RigSink>(result.outputs[submitted]));
      EXPECT_TRUE(id.ok()) << id.status().message();
      if (!id.ok()) return result;
      request_of[SeqId{raw(*id)}] = submitted;
    }
    busy = engine.step();
  }
  result.preemptions = engine.metrics().num_preemptions;
  result.steps = engine.metrics().steps;
  EXPECT_EQ(engine.metrics().kv_blocks_used, 0u) << "blocks are leaked";
  for (const RigOutput& out : result.outputs) EXPECT_EQ(out.finish, FinishReason::kLength);
  return result;
}

int differences(const std::vector<RigOutput>& expected, const std::vector<RigOutput>& got) {
  int count = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    bool same = expected[i].tokens == got[i].tokens && expected[i].logits.size() == got[i].logits.size();
    for (const auto& [position, logits] : expected[i].logits) {
      auto it = got[i].logits.find(position);
      same = same && it != got[i].logits.end() && it->second.size() == logits.size() &&
             std::memcmp(it->second.data(), logits.data(), logits.size() * sizeof(float)) == 0;
    }
    count += same ? 0 : 1;
  }
  return count;
}

std::vector<RigOutput> run_reference(const ModelFile& file, const RigOptions& options,
                                     const std::vector<RigRequest>& requests) {
  const ops::FlushToZero mode;
  std::vector<RigOutput> outputs;
  for (const RigRequest& r : requests) {
    RigOutput out;
    ReferenceDecoder decoder(file, options.activation, options.kv_type);
    std::vector<float> logits;
    for (Token t : r.prompt) logits = decoder.step(t);
    auto position = static_cast<uint32_t>(r.prompt.size()) - 1;
    for (;;) {
      out.logits[position] = logits;
      out.tokens.push_back(
          sample(ops::kernels_for(ops::IsaClass::kPortable), logits, r.sampling, position + 1, SeqId{0})
              .token);
      if (out.tokens.size() == r.max_tokens) break;
      logits = decoder.step(out.tokens.back());
      ++position;
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
