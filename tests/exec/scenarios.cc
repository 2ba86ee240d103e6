#include "exec/scenarios.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "base/random.h"
#include "model/tokenizers/tokenizer.h"

namespace kvasir::test {

namespace {

TinyLlamaShape shape_of(ops::WeightType type, const std::string& architecture) {
  TinyLlamaShape shape = tiny_gqa();
  if (architecture != "llama") {
    for (TinyLlamaShape& one : architecture == "deepseek2"   ? tiny_latents()
                               : architecture == "qwen3next" ? tiny_hybrids()
                                                             : tiny_architectures()) {
      if (one.architecture == architecture) shape = std::move(one);
    }
  }
  EXPECT_EQ(shape.architecture, architecture);
  if (ops::block_values(type) == 256) {
    const TinyLlamaShape wide = tiny_256();
    if (architecture == "llama") shape.layers = wide.layers;
    shape.dim = wide.dim;
    shape.ffn = wide.ffn;
  }
  shape.pieces = architecture.starts_with("gemma");
  return shape;
}

// Words of the tiny vocabularies, and other text.
std::string random_text(uint64_t seed, size_t words) {
  constexpr const char* kWords[] = {"the", "and", "of", "memory",        "token",  "hello", "world", "quiz",
                                    "\n",  "  ",  "5",  "\u00e9t\u00e9", "\u4e16", "abab",  "!"};
  Random random(seed);
  std::string out;
  for (size_t i = 0; i < words; ++i) out += std::string(" ") + kWords[random.below(std::size(kWords))];
  return out;
}

// So many tokens of random text.
std::vector<Token> text_tokens(const Tokenizer& tokenizer, uint64_t seed, size_t count) {
  std::vector<Token> out = tokenizer.encode(random_text(seed, count), false);
  EXPECT_GE(out.size(), count);
  out.resize(count);
  return out;
}

}  // namespace

Workload make_workload(ops::WeightType type, const std::string& architecture) {
  Workload work;
  TinyLlamaShape shape = shape_of(type, architecture);
  // As files of Q4_K_M are mixtures; rows of no 256 are Q5_0.
  if (type == ops::WeightType::kQ4K) {
    shape.other_types = {{"attn_v", ops::WeightType::kQ6K}, {"ffn_gate", ops::WeightType::kIq4Xs}};
  }
  work.file = tiny_model(shape, type);
  std::optional<Tokenizer> tokenizer;
  if (shape.pieces) tokenizer = Tokenizer::create(work.file->read_tokenizer().value()).value();
  const auto tokens = [&](uint64_t seed, size_t count) {
    return tokenizer ? text_tokens(*tokenizer, seed, count) : random_tokens(seed, count);
  };
  Random random(42);
  const std::vector<Token> shared = tokens(7, 200);
  for (uint64_t i = 0; i < 32; ++i) {
    RigRequest r;
    const size_t length = i == 0 ? 830 : i == 1 ? 1 : i < 4 ? 250 + random.below(270) : 2 + random.below(120);
    r.prompt = tokens(1000 + i, length);
    if (i % 3 == 2)
      r.prompt.insert(r.prompt.begin(), shared.begin(), shared.begin() + 64 + random.below(136));
    r.max_tokens = static_cast<uint32_t>(1 + random.below(60));
    r.after_step = i / 4;
    if (i % 4 == 2) r.pooling = Pooling::kLast;
    if (i % 8 == 0) r.pooling = Pooling::kMean;
    work.requests.push_back(std::move(r));
  }
  return work;
}

void add_rules(Workload& work) {
  for (size_t i = 0; i < work.requests.size(); ++i) {
    SamplingParams& s = work.requests[i].sampling;
    LogitRules rules;
    s.seed = 300 + i;
    s.temperature = i % 5 == 0 ? 0.0F : 0.8F;
    if (i % 2 == 0) rules.repetition_penalty = 1.3F;
    if (i % 3 == 0) rules.frequency_penalty = 0.7F;
    if (i % 4 == 1) rules.presence_penalty = 1.1F;
    if (i % 4 == 2) rules.bias = {{7, 3.5F}, {40, -100.0F}};
    if (i % 6 == 3) rules.bad_words = {{12}, {7, 9}, {30, 7}};
    if (i % 7 == 4) {
      rules.min_tokens = 20;
      rules.ends = {2, 7, 8};
    }
    if (i % 3 == 1) s.min_p = 0.1F;
    if (i % 8 == 5) s.typical_p = 0.6F;
    if (i % 9 == 2) s.top_p = 0.9F;
    if (i % 5 == 3) s.top_k = 12;
    if (i % 4 == 0) s.prompt_logprobs = static_cast<int32_t>(i % 3);
    if (!rules.empty()) s.rules = std::make_shared<const LogitRules>(std::move(rules));
  }
}

namespace {

using Change = std::function<void(Scenario&)>;

class Scenarios {
 public:
  // Of those that follow.
  std::string kind;

  void add(std::string name, const Change& change) {
    Scenario s;
    s.kind = kind;
    s.name = std::move(name);
    change(s);
    all.push_back(std::move(s));
  }
  std::vector<Scenario> all;
};

// The longest request needs 56 blocks of 16 tokens: the device tier has room for it, and for little beside.
void add_swaps(Scenarios& to) {
  const auto swaps = [&](const std::string& name, const Change& change) {
    to.add("swap" + name, [&](Scenario& s) {
      s.options.policy = "vllm-swap";
      s.options.blocks = 58;
      s.options.host_blocks = 150;
      s.options.block_tokens = 16;
      s.expects_preemptions = s.expects_swaps = true;
      change(s);
    });
  };
  swaps("", [](Scenario&) {});
  swaps(", one layer at a time, prefix reuse", [](Scenario& s) {
    s.options.layers_per_group = 1;
    s.options.prefix_caching = true;
    s.expects_reuse = true;
  });
  swaps(", blocks of 64 that are swapped half full", [](Scenario& s) {
    s.options.block_tokens = 64;
    s.options.blocks = 16;
    s.options.host_blocks = 60;
    s.options.layers_per_group = 2;
  });
}

// The longest request does not fit the device tier: it streams.
void add_streams(Scenarios& to) {
  const auto streams = [&](const std::string& name, const Change& change) {
    to.add("outgrown" + name, [&](Scenario& s) {
      s.options.blocks = 40;
      s.options.host_blocks = 120;
      s.options.stage_blocks = 80;
      s.options.block_tokens = 16;
      s.expects_staging = true;
      change(s);
    });
  };
  streams(", sarathi", [](Scenario& s) { s.options.layers_per_group = 1; });
  streams(", vllm", [](Scenario& s) {
    s.options.policy = "vllm";
    s.options.layers_per_group = 2;
  });
  streams(", vllm-swap", [](Scenario& s) {
    s.options.policy = "vllm-swap";
    s.expects_swaps = true;
  });
  streams(", prefix reuse", [](Scenario& s) {
    s.options.layers_per_group = 1;
    s.options.prefix_caching = true;
    s.expects_reuse = true;
  });
  streams(", chunks of 7", [](Scenario& s) {
    s.options.layers_per_group = 2;
    s.options.limits.long_prefill_token_threshold = 7;
  });
  streams(", three threads, a host too small for all layers", [](Scenario& s) {
    s.options.threads = 3;
    s.options.layers_per_group = 1;
    s.options.host_blocks = 38;
    s.expects_partial = true;
  });
  streams(", random", [](Scenario& s) {
    s.options.policy = "random";
    s.options.layers_per_group = 1;
    s.expects_preemptions = s.expects_partial = true;
  });
}

// Of each history a share is not kept on the device: dropped and recomputed in each step, or staged from
// the host, by tokens or by layers.
void add_partial_histories(Scenarios& to) {
  const auto partial = [&](const std::string& policy, const Change& change) {
    to.add(policy, [&](Scenario& s) {
      s.options.policy = policy;
      s.options.blocks = 120;
      s.options.host_blocks = 120;
      s.options.stage_blocks = 120;
      s.options.block_tokens = 16;
      s.options.layers_per_group = 1;
      s.expects_again = true;
      change(s);
    });
  };
  for (const char* ratio : {"0.1", "0.3", "0.5", "0.7", "0.9"}) {
    for (const char* mix : {"again=0.5", "again=0.5:mix=layers"}) {
      partial(fmt::format("ellm:ratio={}:{}", ratio, mix), [](Scenario& s) { s.expects_staging = true; });
    }
  }
  partial("ellm:ratio=0", [](Scenario& s) { s.expects_again = false; });
  partial("ellm:ratio=0.6:again=0:overlap=off", [](Scenario& s) {
    s.expects_again = false;
    s.expects_staging = true;
    s.options.threads = 3;
  });
  partial("ellm:ratio=0.6:again=1", [](Scenario& s) {
    s.options.host_blocks = 0;
    s.options.layers_per_group = 2;
  });
  partial("ellm:ratio=0.8:again=0.3:fusion=off", [](Scenario& s) {
    s.options.blocks = 64;
    s.options.prefix_caching = true;
    s.expects_reuse = s.expects_staging = true;
  });
  partial("ellm", [](Scenario& s) {
    s.options.blocks = 58;
    s.expects_again = false;
    s.expects_preemptions = true;
  });
}

}  // namespace

std::vector<Scenario> scenarios() {
  Scenarios to;
  const auto add = [&](std::string name, const Change& change) { to.add(std::move(name), change); };
  to.kind = "batch";
  add("alone", [](Scenario& s) { s.alone = true; });
  add("among 32, sarathi", [](Scenario&) {});
  add("among 32, vllm", [](Scenario& s) { s.options.policy = "vllm"; });
  for (const char* policy : {"sarathi", "vllm"}) {
    to.kind = "preemption";
    add(std::string("preemption, ") + policy, [&](Scenario& s) {
      s.options.policy = policy;
      s.options.blocks = 58;
      s.options.block_tokens = 16;
      s.expects_preemptions = true;
    });
    to.kind = "prefix reuse";
    add(std::string("prefix reuse, ") + policy, [&](Scenario& s) {
      s.options.policy = policy;
      s.options.prefix_caching = true;
      s.options.block_tokens = 16;
      s.expects_reuse = true;
    });
  }
  add("prefix reuse, chunks of 7", [](Scenario& s) {
    s.options.prefix_caching = true;
    s.options.block_tokens = 16;
    s.options.limits.long_prefill_token_threshold = 7;
    s.expects_reuse = true;
  });
  to.kind = "preemption";
  add("preemption and prefix reuse", [](Scenario& s) {
    s.options.blocks = 58;
    s.options.block_tokens = 16;
    s.options.prefix_caching = true;
    s.expects_preemptions = true;
    s.expects_reuse = true;
  });
  to.kind = "chunks";
  for (uint32_t chunk : {1u, 7u, 64u, 512u}) {
    add("chunks of " + std::to_string(chunk),
        [&](Scenario& s) { s.options.limits.long_prefill_token_threshold = chunk; });
  }
  to.kind = "threads";
  add("one thread", [](Scenario& s) { s.options.threads = 1; });
  add("three threads", [](Scenario& s) { s.options.threads = 3; });
  to.kind = "geometry";
  for (uint32_t block : {16u, 128u, 256u}) {
    add("blocks of " + std::to_string(block), [&](Scenario& s) { s.options.block_tokens = block; });
  }
  for (uint32_t group : {1u, 2u}) {
    add("layer groups of " + std::to_string(group), [&](Scenario& s) { s.options.layers_per_group = group; });
  }
  to.kind = "swaps";
  add_swaps(to);
  to.kind = "outgrown";
  add_streams(to);
  to.kind = "partial histories";
  add_partial_histories(to);
  return std::move(to.all);
}

std::vector<RigOutput> run_scenario(const Workload& work, const Scenario& scenario) {
  if (scenario.alone) {
    std::vector<RigOutput> outputs;
    for (const RigRequest& r : work.requests) {
      outputs.push_back(std::move(run(*work.file, scenario.options, {r}).outputs[0]));
    }
    return outputs;
  }
  RigRun result = run(*work.file, scenario.options, work.requests);
  if (!scenario.options.repeats_itself()) return std::move(result.outputs);
  if (scenario.expects_preemptions) {
    EXPECT_GT(result.preemptions, 0u) << "the scenario is void";
  }
  if (scenario.expects_swaps) {
    EXPECT_GT(result.swapped, 0u) << "the scenario is void";
  }
  if (scenario.expects_staging) {
    EXPECT_GT(result.staged_steps, 0u) << "the scenario is void";
  }
  if (scenario.expects_again) {
    EXPECT_GT(result.plans.again_decode_steps, result.plans.decode_steps / 10) << "the scenario is void";
  }
  if (scenario.expects_partial) {
    EXPECT_GT(result.plans.partial_steps, 0u) << "the scenario is void";
  }
  uint64_t cached = 0;
  for (const RigOutput& out : result.outputs) cached += out.cached_prompt_tokens;
  if (scenario.expects_reuse) {
    EXPECT_GT(cached, 0u) << "the scenario is void";
  }
  return std::move(result.outputs);
}

}  // namespace kvasir::test
