// A whole engine over a tiny model in memory, and what came out of it: tokens and the bits of the logits.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "contract/slo.h"
#include "contract/view.h"
#include "engine/counting_policy.h"
#include "engine/engine.h"
#include "fakes/test_gpu.h"
#include "model/files/model_file.h"
#include "ops/cpu/isa.h"
#include "ops/numerics.h"
#include "support/tiny_llama.h"

namespace kvasir::test {

// What moves bytes between the tiers.
enum class RigLink : uint8_t {
  kMemory,  // the real one, on threads of its own, with a file for the disk tier
  kFake,    // a FakeLink, on a virtual clock
};

struct RigOptions {
  ops::ActivationMode activation = ops::ActivationMode::kAuto;
  ops::KvType kv_type = ops::KvType::kBf16;
  ops::IsaClass isa = ops::detect_isa();
  int threads = 2;
  // On a GPU, with its numerics; `activation`, `isa` and `threads` then do not matter.
  std::optional<FakeGpuPace> gpu;
  int gpu_depth = 2;               // steps in flight
  bool gpu_thread = false;         // its pilot has a thread also where the run would repeat itself else
  bool gpu_passes = true;          // attention in passes of a tile each
  bool gpu_graphs = false;         // steps without transfers as graphs
  std::string policy = "sarathi";  // or "random" or "random-forms", which `seed` feeds
  uint32_t blocks = 256;           // of the device tier's frames
  uint32_t host_blocks = 0;        // of the host tier; 0: none, and no link
  uint32_t disk_blocks = 0;        // of the disk tier; 0: none. It needs a host tier
  uint32_t stage_blocks = 0;       // of which the stage ring holds one layer
  bool forms = false;              // cells may be held as X
  uint32_t scratch_tokens = 0;     // rows of a step; 0: any
  uint32_t block_tokens = 64;
  uint32_t layers_per_group = 0;    // 0: all
  bool windows_free_memory = true;  // cells behind a window are given up, where a group has no other layers
  PlanLimits limits{};
  bool prefix_caching = false;
  bool check_integrity = true;
  Nanos max_decode_stall = 0;
  RigLink link = RigLink::kMemory;
  double link_bytes_per_s = 0;   // of the real link, emulated; 0: as fast as the machine
  double disk_faults = 0;        // of the real link's disk: share of its reads and writes that go wrong
  double late_moves = 0;         // of the real link of a GPU: share of its copies that take milliseconds,
  double failing_moves = 0;      // and share of them that fail
  double late_waits = 0;         // of the fake link: share of the waits that are in vain,
  double failing_transfers = 0;  // share of the transfers that fail,
  double fast_transfers = 0;     // share of those that end as they start,
  double moved = 0.5;            // share of the turns in which some end without being waited for
  uint64_t seed = 1;
  Slo slo{};               // of every request
  PlanLog* log = nullptr;  // outlives the run

  // Whether what happens in the run, and not only what comes out, is the same every time: the engine has a
  // virtual clock unless the real link or a GPU's pilot, which have threads of their own, work in real time.
  // A test that wants something to have happened counts it in such a run.
  bool repeats_itself() const { return (link == RigLink::kFake || host_blocks == 0) && !gpu_thread; }
};

// Of the engine that runs so.
EngineOptions engine_options(const ModelFile& file, const RigOptions& options);

struct RigRequest {
  std::vector<Token> prompt;
  uint32_t max_tokens = 8;
  SamplingParams sampling{};
  uint64_t after_step = 0;  // submitted when so many steps have ended
  uint64_t cancel_after_step = UINT64_MAX;
  Pooling pooling = Pooling::kNone;
};

struct RigOutput {
  std::vector<Token> tokens;
  std::vector<PromptToken> scored;                // with SamplingParams::prompt_logprobs
  std::vector<float> embedding;                   // with RigRequest::pooling
  std::map<uint32_t, std::vector<float>> logits;  // by the position of the row, as they came first
  std::vector<float> hidden;                      // of the prompt's last token, as a predictor is told
  bool repeated = false;                          // some came twice: nothing is sampled twice
  bool cancelled = false;                         // what there is, is a beginning
  FinishReason finish = FinishReason::kAbort;
  uint32_t cached_prompt_tokens = 0;
};

struct RigRun {
  std::vector<RigOutput> outputs;  // in the order of the requests
  uint64_t preemptions = 0;
  uint64_t swapped = 0;  // preemptions that kept their cells on the host
  uint64_t steps = 0;
  uint64_t staged_steps = 0;   // that read something through the stage ring
  uint64_t deferred_rows = 0;  // slices that left a step because a transfer was late, or failed
  uint64_t queued_early = 0;   // steps that a GPU got before it had ended the one before
  uint64_t queued_long = 0;    // and those that are longer than a stream has room for behind a closed gate
  uint64_t graphs = 0;         // steps that it ran as graphs
  PlanCounts plans;
  LinkStats link;
};

// Runs the requests to their ends. Fails the test on anything that is not an answer, and if cells, transfers
// or requests are left.
RigRun run(const ModelFile& file, const RigOptions& options, const std::vector<RigRequest>& requests);

// How many requests have other tokens, or other bits in any logit, the hidden row or the embedding. Of those
// that were cancelled in `got`, what there is counts.
int differences(const std::vector<RigOutput>& expected, const std::vector<RigOutput>& got);

// The same requests by the scalar reference.
std::vector<RigOutput> run_reference(const ModelFile& file, const RigOptions& options,
                                     const std::vector<RigRequest>& requests);

std::unique_ptr<ModelFile> tiny_model(const TinyLlamaShape& shape, ops::WeightType type);

// `count` random tokens of the tiny models' ordinary vocabulary.
std::vector<Token> random_tokens(uint64_t seed, size_t count);

}  // namespace kvasir::test
