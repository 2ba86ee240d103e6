// From options to a running engine: the model, its executor, the cache and the policy, put together.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/affinity.h"
#include "base/status.h"
#include "contract/cache_events.h"
#include "contract/length_predictor.h"
#include "contract/pooling.h"
#include "engine/engine.h"
#include "exec/cpu/decoder.h"
#include "model/files/sampling_defaults.h"
#include "model/templates/chat_template.h"
#include "model/tokenizers/tokenizer.h"
#include "runtime/cluster_options.h"

namespace kvasir {

class Gpu;
class MapSink;
struct JoinedCluster;

// Where policies' beliefs about costs and lengths come from.
struct BeliefOptions {
  bool used = false;                        // else policies have none
  std::string cost_profile;                 // a file; empty: that of the machine, model and settings
  std::string length_predictor = "online";  // see sched/beliefs/length_predictors.h
  std::string length_predictor_file;        // loaded at the start, saved at the end; empty: none
  LengthPredictor* given = nullptr;         // used instead of both; outlives the runtime
};

constexpr double kDefaultGpuShare = 0.9;

struct RuntimeOptions {
  std::string model_path;
  std::string device = "cpu";  // cpu | cuda; device_limits.h says what a GPU does not do
  // Share of a GPU's memory for weights, activations and device tier; nothing: kDefaultGpuShare.
  std::optional<double> gpu_memory_utilization;
  // Else steps of few rows without transfers are queued on a GPU as CUDA graphs. No bit depends on it.
  bool enforce_eager = true;
  std::string
      quantization;  // a recipe for weights of F32, F16 and BF16 (recipe.h); empty: as they are stored
  int threads = 0;   // compute threads; 0: see compute_threads()
  Pinning pinning = Pinning::kAuto;  // of the compute threads
  // Of the device tier, stage ring included. 0: half of the memory that is available after the model is
  // loaded; on a GPU, what gpu_memory_utilization leaves.
  uint64_t kv_cache_memory_bytes = 0;
  uint64_t stage_ring_bytes = 0;     // of the former, for the stage ring; 0: as the policy and the tiers need
  uint64_t kv_offloading_bytes = 0;  // of the host tier; 0: there is none
  // Of the disk tier: both, or neither.
  std::string kv_offloading_dir;
  uint64_t kv_offloading_disk_bytes = 0;
  double link_gbytes_per_s = 0;         // emulated, between the tiers; 0: as fast as the machine
  std::string kv_cache_dtype = "bf16";  // bf16 | f32 | q8_0
  uint32_t block_size = 64;             // tokens
  uint32_t kv_layer_group = 0;          // layers per frame; 0: all, or 1 with a slower tier
  uint32_t max_model_len = 0;           // tokens; 0: what the model and the cache allow
  uint32_t max_num_seqs = 256;
  uint32_t max_num_batched_tokens = 0;        // 0: what suits the policy, see batched_tokens()
  uint32_t long_prefill_token_threshold = 0;  // 0: no bound of its own
  double max_decode_stall_ms = 1000;          // see EngineOptions::max_decode_stall
  uint32_t max_num_queued_reqs = 1024;
  uint64_t max_num_queued_tokens = 0;  // 0: no bound
  bool refuse_late = false;            // see EngineOptions::refuse_late
  bool enable_prefix_caching = true;
  std::string scheduling_policy = "auto";
  std::string activation_type = "auto";  // auto: int8 for quantised weights, bf16 for BF16; f32
  std::string log_plans;                 // a file for the plan log; empty: none
  std::string chat_template_path;        // empty: the model's own

  BeliefOptions beliefs;
  ClusterOptions cluster;  // if on(), as complete_cluster_options() leaves them

  // See EngineOptions::cache_events.
  CacheEventSink* cache_events = nullptr;
  // See EngineOptions::map.
  MapSink* map = nullptr;

  // For evaluation only: called with the logits of sampled rows, or of every row if `tap_all_rows`, on a
  // thread of the executor's.
  LogitsTap tap;
  bool tap_all_rows = false;

  // Opens the GPU for `device`. Empty: as this build can (open_cuda_gpu.h). Tests have a fake GPU.
  std::function<Result<std::unique_ptr<Gpu>>()> open_gpu;
};

// The number of compute threads: the option's, else one per core, except that with more than two cores one is
// left to everything else.
int compute_threads(const RuntimeOptions& options);
// The cores of the compute threads and those of all other threads; both empty if nothing is pinned, as beside
// a GPU.
CpuShares cpu_shares(const RuntimeOptions& options);

// A model that is loaded and the engine that runs it. The destructor stops the engine, and closes the disk
// tier, if there is one, so that the next start can reuse what it holds.
class Runtime {
 public:
  virtual ~Runtime() = default;
  virtual Engine& engine() = 0;
  virtual const Tokenizer& tokenizer() const = 0;
  virtual const ChatTemplate* chat_template() const = 0;          // null: the model has none
  virtual const SamplingDefaults& sampling_defaults() const = 0;  // what the model's files say
  virtual Pooling pooling() const = 0;                            // as the model's files say
  virtual uint32_t embedding_size() const = 0;                    // values of a hidden row
  virtual uint32_t max_model_len() const = 0;                     // tokens
  virtual std::string model_id() const = 0;                       // equal for equal files

  // Why nothing can run until the process is restarted, in one line; "": all is well. Any thread; takes no
  // lock.
  virtual std::string failure() const = 0;

  // Every tier and buffer with its bytes, for people.
  virtual std::string memory_report() const = 0;
  // Has no node if the instance is in no cluster.
  virtual const JoinedCluster& joined() const = 0;
};

// An error is one line that names the file or the flag at fault, or the memory that is missing.
Result<std::unique_ptr<Runtime>> load_runtime(const RuntimeOptions& options);

}  // namespace kvasir
