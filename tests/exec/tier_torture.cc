#include "exec/tier_torture.h"

#include <gtest/gtest.h>

#include <utility>

#include "base/random.h"

namespace kvasir::test {
namespace {

// Some begin as others do, and some are longer than a leaf, or than the device tier.
std::vector<RigRequest> random_requests(uint64_t seed, uint32_t count) {
  Random random(seed);
  const std::vector<Token> shared = random_tokens(seed + 1, 160);
  std::vector<RigRequest> requests(count);
  uint64_t step = 0;
  for (uint32_t i = 0; i < count; ++i) {
    RigRequest& r = requests[i];
    const double kind = random.unit();
    const int64_t length = kind < 0.2   ? random.between(1, 20)
                           : kind < 0.8 ? random.between(20, 120)
                                        : random.between(120, 330);
    r.prompt = random_tokens(100 * seed + i, static_cast<size_t>(length));
    if (random.unit() < 0.3) {
      r.prompt.insert(r.prompt.begin(), shared.begin(), shared.begin() + random.between(1, 160));
    }
    r.max_tokens = static_cast<uint32_t>(random.between(1, 40));
    r.sampling.temperature = random.unit() < 0.5 ? 0.0f : 1.0f;
    r.sampling.seed = random.below(3);
    r.after_step = step;
    step += random.below(12);
  }
  return requests;
}

}  // namespace

TinyLlamaShape torture_mha() {
  TinyLlamaShape shape = tiny_mha();
  shape.layers = 4;  // so that a set of layer groups can have gaps
  shape.context = 640;
  return shape;
}

TinyLlamaShape torture_gqa() {
  TinyLlamaShape shape = tiny_gqa();
  shape.context = 640;
  return shape;
}

TinyLlamaShape torture_bias() {
  TinyLlamaShape shape = torture_mha();
  shape.layers = 6;
  shape.qkv_bias = true;
  return shape;
}

TinyLlamaShape torture_architecture(const std::string& name) {
  for (TinyLlamaShape& shape : all_tiny_architectures()) {
    if (shape.architecture != name) continue;
    shape.context = 640;
    return shape;
  }
  ADD_FAILURE() << name;
  return {};
}

TierTorture::TierTorture(const TinyLlamaShape& shape, ops::WeightType weights, ops::KvType kv,
                         uint32_t requests, uint64_t seed, std::optional<FakeGpuPace> gpu)
    : file_(tiny_model(shape, weights)), seed_(seed), requests_(random_requests(seed, requests)) {
  plain_.kv_type = kv;
  plain_.gpu = gpu;
  plain_.check_integrity = false;
  expected_ = run(*file_, plain_, requests_).outputs;
  Random random(seed + 2);
  for (RigRequest& r : requests_) {
    if (random.unit() < 0.15) r.cancel_after_step = r.after_step + random.below(150);
  }
}

RigOptions TierTorture::tiers(uint32_t layers_per_group) const {
  RigOptions options = plain_;
  options.policy = "random";
  options.block_tokens = 16;
  options.layers_per_group = layers_per_group;
  options.blocks = 16;
  options.host_blocks = 90;
  options.stage_blocks = 40;  // the longest request needs 34, and three layers of most more than 40
  options.limits.max_num_seqs = 6;
  options.limits.max_num_batched_tokens = 96;
  options.prefix_caching = true;
  options.check_integrity = true;
  options.seed = seed_;
  return options;
}

RigOptions TierTorture::layers(uint32_t layers_per_group) const {
  RigOptions options = tiers(layers_per_group);
  options.policy = "layerkv:urgent=1";
  options.slo.tpot_ms = kMaxSloMillis;  // no request misses it
  options.blocks = 26;
  options.stage_blocks = 60;
  return options;
}

RigOptions TierTorture::hidden(uint32_t layers_per_group) const {
  RigOptions options = tiers(layers_per_group);
  options.policy = "apt-serve:hidden-share=1";
  options.forms = true;
  options.blocks = 36;
  options.host_blocks = 0;
  options.stage_blocks = 60;
  options.limits.max_num_seqs = 12;
  options.limits.max_num_batched_tokens = 400;
  return options;
}

RigOptions TierTorture::forms(uint32_t layers_per_group) const {
  RigOptions options = tiers(layers_per_group);
  options.policy = "random-forms";
  options.forms = true;
  options.blocks = 44;  // some sequences at a time have cells on it, in whatever form
  options.disk_blocks = 120;
  options.stage_blocks = 60;
  options.scratch_tokens = 700;
  return options;
}

TierTortureOutcome TierTorture::torture(const RigOptions& options) const {
  TierTortureOutcome out;
  out.run = run(*file_, options, requests_);
  out.wrong = static_cast<uint64_t>(differences(expected_, out.run.outputs));
  return out;
}

}  // namespace kvasir::test
