// A whole engine over a tiny model in memory, and what came out of it: tokens and the bits of the logits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "contract/view.h"
#include "engine/engine.h"
#include "model/model_file.h"
#include "ops/cpu/isa.h"
#include "ops/numerics.h"
#include "support/tiny_llama.h"

namespace kvasir::test {

struct RigOptions {
  ops::ActivationMode activation = ops::ActivationMode::kAuto;
  ops::KvType kv_type = ops::KvType::kBf16;
  ops::IsaClass isa = ops::detect_isa();
  int threads = 2;
  std::string policy = "sarathi";
  uint32_t blocks = 256;
  uint32_t block_tokens = 64;
  uint32_t layers_per_group = 0;  // 0: all
  PlanLimits limits{};
  bool prefix_caching = false;
  bool check_integrity = true;
};

struct RigRequest {
  std::vector<Token> prompt;
  uint32_t max_tokens = 8;
  SamplingParams sampling{};
  uint64_t after_step = 0;  // submitted when so many steps have ended
};

struct RigOutput {
  std::vector<Token> tokens;
  std::map<uint32_t, std::vector<float>> logits;  // by the position of the row
  FinishReason finish = FinishReason::kAbort;
  uint32_t cached_prompt_tokens = 0;
};

struct RigRun {
  std::vector<RigOutput> outputs;  // in the order of the requests
  uint64_t preemptions = 0;
  uint64_t steps = 0;
};

// Runs the requests to their ends. Fails the test on anything that is not an answer.
RigRun run(const ModelFile& file, const RigOptions& options, const std::vector<RigRequest>& requests);

// How many requests have other tokens, or other bits in any logit.
int differences(const std::vector<RigOutput>& expected, const std::vector<RigOutput>& got);

// The same requests by the scalar reference.
std::vector<RigOutput> run_reference(const ModelFile& file, const RigOptions& options,
                                     const std::vector<RigRequest>& requests);

std::unique_ptr<ModelFile> tiny_model(const TinyLlamaShape& shape, ops::WeightType type);

// `count` random tokens of the tiny models' ordinary vocabulary.
std::vector<Token> random_tokens(uint64_t seed, size_t count);

}  // namespace kvasir::test
