#include "apps/runtime.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/units.h"
#include "contract/numerics_id.h"
#include "exec/cpu/cpu_executor.h"
#include "model/model_file.h"
#include "model/packed_model.h"
#include "model/tokenizer_gguf.h"
#include "ops/cpu/isa.h"
#include "sched/registry.h"

namespace kvasir {
namespace {

// The share of the memory that is available after loading which K and V get by default.
constexpr double kDefaultKvShare = 0.5;

// The number in a file of the control group; nothing where there is none, or it says "max".
std::optional<uint64_t> cgroup_number(const char* file) {
  std::ifstream in(std::string("/sys/fs/cgroup/") + file);
  uint64_t value = 0;
  if (in >> value) return value;
  return std::nullopt;
}

// Bytes that the system, or this container, could give without swapping.
uint64_t available_memory() {
  std::ifstream in("/proc/meminfo");
  std::string line;
  uint64_t available = UINT64_MAX;
  while (std::getline(in, line)) {
    if (line.starts_with("MemAvailable:")) available = std::strtoull(line.c_str() + 13, nullptr, 10) * kKiB;
  }
  const auto limit = cgroup_number("memory.max"), used = cgroup_number("memory.current");
  if (limit && used) available = std::min(available, *limit - std::min(*limit, *used));
  return available;
}

// The cores that this process may use: its affinity, and the container's share of time.
int available_cores() {
  int cores = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::ifstream in("/sys/fs/cgroup/cpu.max");
  uint64_t quota_us = 0, period_us = 0;
  if (in >> quota_us >> period_us && period_us > 0) {
    cores = std::min<int>(cores, std::max<int>(1, static_cast<int>(quota_us / period_us)));
  }
  return cores;
}

Result<std::string> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  if (!in || !(text << in.rdbuf())) {
    return error(ErrorCode::kIo, "{}: cannot be read; does the file exist?", path);
  }
  return text.str();
}

Result<ops::KvType> kv_type_from(const std::string& text) {
  for (ops::KvType type : ops::kKvTypes) {
    if (text == ops::kv_type_name(type)) return type;
  }
  return error(ErrorCode::kInvalidArgument, "--kv-cache-dtype {}: there are bf16, f32 and q8_0", text);
}

Result<ops::ActivationMode> activation_from(const std::string& text) {
  for (ops::ActivationMode mode : {ops::ActivationMode::kAuto, ops::ActivationMode::kF32}) {
    if (text == ops::activation_mode_name(mode)) return mode;
  }
  return error(ErrorCode::kInvalidArgument, "--activation-type {}: there are auto and f32", text);
}

// Members are destroyed in reverse: the engine first, the model's file last.
class CpuRuntime final : public Runtime {
 public:
  Engine& engine() override { return *engine_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const ChatTemplate* chat_template() const override { return chat_template_.get(); }
  uint32_t max_model_len() const override { return engine_->options().max_model_len; }
  std::string memory_report() const override;

  Status load(const RuntimeOptions& options);

 private:
  Status load_text(const RuntimeOptions& options);
  Status size_cache(const RuntimeOptions& options, EngineOptions& engine) const;

  std::unique_ptr<ModelFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
  std::unique_ptr<PackedModel> packed_;
  Arena device_;
  MonotonicClock clock_;
  std::unique_ptr<CpuExecutor> executor_;
  std::unique_ptr<PlanLog> plan_log_;
  std::unique_ptr<Engine> engine_;
};

Status CpuRuntime::load_text(const RuntimeOptions& options) {
  KV_ASSIGN_OR_RETURN(TokenizerData data, read_tokenizer_data(file_->gguf()));
  std::optional<std::string> source = data.chat_template;
  KV_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::create(std::move(data)));
  tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer));
  if (tokenizer_->vocab_size() > file_->config().vocab_size) {
    return error(ErrorCode::kCorrupt,
                 "{}: the tokenizer has {} tokens, the embedding {} rows: the file is damaged",
                 options.model_path, tokenizer_->vocab_size(), file_->config().vocab_size);
  }
  if (!options.chat_template_path.empty()) {
    KV_ASSIGN_OR_RETURN(source, read_file(options.chat_template_path));
  }
  if (source) {
    auto parsed = ChatTemplate::parse(*source);
    if (parsed.ok()) {
      chat_template_ = std::make_unique<ChatTemplate>(std::move(parsed).value());
    } else if (!options.chat_template_path.empty()) {
      return parsed.status();
    } else {
      // Completions work without it; chat requests will say why they do not.
      log_warning("the model's chat template is not usable: {}", parsed.status().message());
    }
  }
  return {};
}

// Decides how much memory K and V get and how long a request may be.
Status CpuRuntime::size_cache(const RuntimeOptions& options, EngineOptions& engine) const {
  const ModelConfig& config = file_->config();
  CacheOptions& cache = engine.cache;
  const uint64_t available = available_memory();
  cache.device_bytes = options.kv_cache_memory_bytes;
  if (cache.device_bytes > available) {
    return error(ErrorCode::kExhausted, "--kv-cache-memory-bytes {}: only {} of memory are available",
                 format_bytes(cache.device_bytes), format_bytes(available));
  }
  if (cache.device_bytes == 0) {
    cache.device_bytes = static_cast<uint64_t>(static_cast<double>(available) * kDefaultKvShare);
  }
  const uint64_t fit = Engine::longest_fit(cache);
  const auto context = static_cast<uint64_t>(config.context_length);
  if (fit == 0) {
    return error(
        ErrorCode::kExhausted,
        "--kv-cache-memory-bytes {}: one block of {} tokens needs {}; give more, or a smaller --block-size",
        format_bytes(cache.device_bytes), options.block_size, format_bytes(cache.geometry.kv_block_bytes()));
  }
  if (options.max_model_len > context) {
    return error(ErrorCode::kInvalidArgument, "--max-model-len {}: the model was trained for {} tokens",
                 options.max_model_len, context);
  }
  if (options.max_model_len > fit) {
    return error(ErrorCode::kExhausted,
                 "--max-model-len {}: the KV cache of {} holds {} tokens; give it more memory",
                 options.max_model_len, format_bytes(cache.device_bytes), fit);
  }
  engine.max_model_len =
      options.max_model_len > 0 ? options.max_model_len : static_cast<uint32_t>(std::min(context, fit));
  return {};
}

Status CpuRuntime::load(const RuntimeOptions& options) {
  KV_ASSIGN_OR_RETURN(file_, ModelFile::open(options.model_path));
  for (const std::string& warning : file_->warnings()) log_warning("{}: {}", options.model_path, warning);
  KV_RETURN_IF_ERROR(load_text(options));
  const ModelConfig& config = file_->config();
  Decoder::Options decoder;
  KV_ASSIGN_OR_RETURN(decoder.kv_type, kv_type_from(options.kv_cache_dtype));
  KV_ASSIGN_OR_RETURN(decoder.activation, activation_from(options.activation_type));
  decoder.tap_all_rows = options.tap_all_rows;
  KV_ASSIGN_OR_RETURN(std::unique_ptr<Policy> policy, make_policy(options.scheduling_policy));

  EngineOptions engine;
  CacheGeometry& geometry = engine.cache.geometry;
  geometry.block_tokens = options.block_size;
  if (options.block_size < 16 || options.block_size % 16 != 0 || 256 % options.block_size != 0) {
    return error(ErrorCode::kInvalidArgument, "--block-size {}: there are 16, 32, 64, 128 and 256",
                 options.block_size);
  }
  geometry.layers = static_cast<uint32_t>(config.layers);
  geometry.layers_per_group = options.kv_layer_group == 0 ? geometry.layers : options.kv_layer_group;
  if (geometry.layers_per_group > geometry.layers || geometry.groups() > kMaxLayerGroups) {
    return error(ErrorCode::kInvalidArgument,
                 "--kv-layer-group {}: the model has {} layers, and there can be {} groups",
                 options.kv_layer_group, geometry.layers, kMaxLayerGroups);
  }
  geometry.kv_plane_bytes_per_token_layer = config.kv_plane_bytes_per_token_layer(decoder.kv_type);
  if (options.max_num_batched_tokens < options.max_num_seqs) {
    return error(
        ErrorCode::kInvalidArgument,
        "--max-num-batched-tokens {} is less than --max-num-seqs {}: every running sequence needs a token "
        "of the budget; raise the one or lower the other",
        options.max_num_batched_tokens, options.max_num_seqs);
  }
  if (options.max_num_seqs == 0 || options.max_num_queued_reqs == 0) {
    return error(ErrorCode::kInvalidArgument, "--max-num-seqs and --max-num-queued-reqs must be at least 1");
  }
  engine.limits = {options.max_num_seqs, options.max_num_batched_tokens,
                   options.long_prefill_token_threshold};
  engine.max_num_queued_reqs = options.max_num_queued_reqs;
  engine.max_num_queued_tokens = options.max_num_queued_tokens;
  engine.cache.prefix_caching = options.enable_prefix_caching;

  KV_ASSIGN_OR_RETURN(packed_, PackedModel::make(*file_, static_cast<uint32_t>(config.context_length)));
  file_->release_pages();
  KV_RETURN_IF_ERROR(size_cache(options, engine));
  KV_ASSIGN_OR_RETURN(device_,
                      Arena::map(engine.cache.device_bytes, "the KV cache (--kv-cache-memory-bytes)"));
  NumericsId numerics;
  numerics.arithmetic = "fma";
  numerics.weight_types = packed_->weight_types();
  numerics.activation_type = packed_->activation_types(decoder.activation);
  numerics.kv_type = ops::kv_type_name(decoder.kv_type);
  engine.cache.numerics_id = numerics.to_string();

  const int threads = compute_threads(options);
  const CpuShares cpus = cpu_shares(options);
  const ops::IsaClass isa = ops::detect_isa();
  executor_ = std::make_unique<CpuExecutor>(*packed_, ops::kernels_for(isa), geometry, decoder,
                                            device_.data(), threads, clock_, cpus.team);
  KV_RETURN_IF_ERROR(executor_->reserve(options.max_num_batched_tokens));
  if (options.tap) executor_->set_tap(options.tap);
  if (!options.log_plans.empty()) {
    KV_ASSIGN_OR_RETURN(plan_log_, PlanLog::create(options.log_plans, options.scheduling_policy));
  }
  engine_ = std::make_unique<Engine>(engine, std::move(policy), *executor_, clock_, plan_log_.get());
  log_info("{}: {} layers, numerics {}, {} kernels{}, {} threads{}, policy {}", options.model_path,
           config.layers, engine.cache.numerics_id, ops::isa_name(isa),
           ops::has_bf16_dot() ? " with bf16 dot products" : "", threads,
           cpus.team.empty() ? "" : " (pinned)", options.scheduling_policy);
  return {};
}

std::string CpuRuntime::memory_report() const {
  const EngineOptions& engine = engine_->options();
  const CacheGeometry& g = engine.cache.geometry;
  const uint64_t blocks = engine.cache.device_bytes / g.kv_block_bytes();
  return fmt::format(
      "memory: weights {} (packed), KV cache {} = {} blocks of {} tokens ({} tokens, {} each), "
      "activations {} for steps of {} tokens, longest request {} tokens",
      format_bytes(packed_->bytes()), format_bytes(engine.cache.device_bytes), blocks, g.block_tokens,
      blocks * g.block_tokens, format_bytes(g.kv_block_bytes() / g.block_tokens),
      format_bytes(executor_->scratch_bytes()), engine.limits.max_num_batched_tokens, engine.max_model_len);
}

}  // namespace

int compute_threads(const RuntimeOptions& options) {
  if (options.threads > 0) return options.threads;
  const int cores = available_cores();
  return cores > 2 ? cores - 1 : cores;
}

CpuShares cpu_shares(const RuntimeOptions& options) {
  return share_cpus(allowed_cpus(), compute_threads(options), options.pinning);
}

Result<std::unique_ptr<Runtime>> load_runtime(const RuntimeOptions& options) {
  auto runtime = std::make_unique<CpuRuntime>();
  KV_RETURN_IF_ERROR(runtime->load(options));
  return std::unique_ptr<Runtime>(std::move(runtime));
}

}  // namespace kvasir
