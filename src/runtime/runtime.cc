#include "runtime/runtime.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <thread>
#include <utility>

#include "base/file.h"
#include "base/log.h"
#include "base/units.h"
#include "cache/tiers/disk_file.h"
#include "cache/tiers/memory_link.h"
#include "model/files/inspect.h"
#include "model/files/model_file.h"
#include "runtime/beliefs.h"
#include "runtime/device_limits.h"
#include "runtime/engine_options.h"
#include "runtime/join_cluster.h"
#include "runtime/serving_device.h"
#include "sched/beliefs/cost_beliefs.h"
#include "sched/registry.h"

namespace kvasir {
namespace {

// How long copies to the disk may take after the last request has ended. Later ones are not kept.
constexpr Nanos kSavePatience = 5 * kNanosPerSecond;

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

// Describes the link between device and host for people; empty if there is no host tier.
std::string link_report(const RuntimeOptions& options) {
  if (options.kv_offloading_bytes == 0) return "";
  if (options.link_gbytes_per_s == 0) return ", link as fast as the machine";
  return fmt::format(", emulated link of {} GB/s", options.link_gbytes_per_s);
}

// Members are destroyed in reverse: the engine first, then what runs its steps and moves its bytes, and the
// model's file last.
class LoadedRuntime final : public Runtime {
 public:
  ~LoadedRuntime() override;
  Engine& engine() override { return *engine_; }
  const Tokenizer& tokenizer() const override { return *tokenizer_; }
  const ChatTemplate* chat_template() const override { return chat_template_.get(); }
  uint32_t max_model_len() const override { return engine_->options().max_model_len; }
  std::string model_id() const override { return to_hex(file_->fingerprint()); }
  const SamplingDefaults& sampling_defaults() const override { return file_->sampling_defaults(); }
  Pooling pooling() const override { return file_->pooling(); }
  uint32_t embedding_size() const override { return static_cast<uint32_t>(file_->spec().dim); }
  std::string failure() const override { return device_->failure(); }
  std::string memory_report() const override;
  const JoinedCluster& joined() const override { return joined_; }

  Status load(const RuntimeOptions& options);

 private:
  Status load_text(const RuntimeOptions& options);
  Status join(const RuntimeOptions& options, const Decoder::Options& decoder, const CacheOptions& cache);
  Status make_link(const RuntimeOptions& options, const CacheOptions& cache);

  Status open_disk(const RuntimeOptions& options, const CacheOptions& cache);
  void restore_prefixes();
  Status make_beliefs(const RuntimeOptions& options, const std::string& numerics_id);
  void log_start(const RuntimeOptions& options) const;

  std::unique_ptr<ModelFile> file_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> chat_template_;
  std::unique_ptr<ServingDevice> device_;
  MonotonicClock clock_;
  JoinedCluster joined_;
  std::unique_ptr<DiskFile> disk_;  // null: there is no disk tier

  std::unique_ptr<MemoryLink> link_;  // null: the device's is the only tier
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<PlanLog> plan_log_;
  std::unique_ptr<LengthPredictor> lengths_;  // null: no predictor of its own
  std::string lengths_file_;                  // "": not kept
  std::unique_ptr<CostBeliefs> costs_;        // null: no beliefs about costs
  std::unique_ptr<Engine> engine_;
  std::string link_report_;
  std::string hidden_report_;
};

// For a policy that keeps X: its size beside that of K and V.
std::string describe_hidden_cache(const RuntimeOptions& options, const ModelFile& model,
                                  const Decoder::Options& decoder) {
  if (model.spec().is_latent())
    return ", hidden cache: none, as the rows of latent attention are smaller than X";
  if (model.spec().is_recurrent()) return ", hidden cache: none, as layers with states have no X";
  const FormBytes forms = x_forms(options, model, decoder);
  const double ratio = x_to_kv(model.spec(), forms, decoder.kv_type);
  return fmt::format(", hidden cache: X ({}) takes {:.2f} of what K and V take{}",
                     ops::activation_type_name(forms.x_type), ratio,
                     ratio < 1 ? "" : ", so it is never chosen");
}

Status LoadedRuntime::load_text(const RuntimeOptions& options) {
  KV_ASSIGN_OR_RETURN(TokenizerData data, file_->read_tokenizer());
  std::optional<std::string> source = data.chat_template;
  KV_ASSIGN_OR_RETURN(Tokenizer tokenizer, Tokenizer::create(std::move(data)));
  tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer));
  if (tokenizer_->vocab_size() > file_->spec().vocab_size) {
    return error(ErrorCode::kCorrupt,
                 "{}: the tokenizer has {} tokens, the embedding {} rows: the file is damaged",
                 options.model_path, tokenizer_->vocab_size(), file_->spec().vocab_size);
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
      // Completions work without it; the answer to a chat request will say why that does not.
      log_warning("the model's chat template is not usable: {}", parsed.status().message());
    }
  }
  return {};
}

// Joins the cluster of instances that lend each other memory.
Status LoadedRuntime::join(const RuntimeOptions& options, const Decoder::Options& decoder,
                           const CacheOptions& cache) {
  const ModelSpec& config = file_->spec();
  if (config.score_cap != 0 || config.has_windows() || config.has_other_heads()) {
    return error(
        ErrorCode::kUnsupported,
        "--cluster: {} attends to windows, caps scores or has heads of two sizes, which instances cannot "
        "compute for each other yet; serve it without --cluster",
        options.model_path);
  }
  if (config.is_recurrent()) {
    return error(
        ErrorCode::kUnsupported,
        "--cluster: {} has recurrent layers, whose states instances cannot lend each other yet; serve it "
        "without --cluster",
        options.model_path);
  }
  if (config.is_latent()) {
    return error(ErrorCode::kUnsupported,
                 "--cluster: {} has latent attention, which instances cannot compute for each other yet; "
                 "serve it without --cluster",
                 options.model_path);
  }
  ClusterModel model;
  model.numerics_id = cache.numerics_id;
  MemoryShape& shape = model.memory.shape;
  shape.geometry = cache.geometry;
  shape.kv = {1, config.kv_heads, config.head_dim, cache.geometry.block_tokens, decoder.kv_type};
  shape.queries_per_kv = config.heads / config.kv_heads;
  model.geometry = fmt::format("{} kv_heads={} head_dim={} queries_per_kv={}", geometry_name(cache.geometry),
                               config.kv_heads, config.head_dim, shape.queries_per_kv);
  model.memory.tiers[index_of(Tier::kDevice)] = {device_->device_tier().data(), cache.device_bytes};
  model.memory.tiers[index_of(Tier::kHost)] = {device_->host_tier().data(), cache.host_bytes};
  model.borrowable_cells = cache.borrowable_cells();
  model.attended_cells = cache.attended_cells;
  model.prefix_cells = cache.prefix_cells;
  model.computes_prompts = shares_prompts(options);
  const uint64_t own = cache.device_bytes + (cache.borrowed_bytes > 0 ? 0 : cache.host_bytes);
  const uint64_t lent =
      options.cluster.lend_bytes == UINT64_MAX ? own / 2 : std::min(options.cluster.lend_bytes, own);

  model.lend_cap_cells = static_cast<uint32_t>(lent / cache.geometry.kv_cell_bytes());
  KV_ASSIGN_OR_RETURN(joined_, join_cluster(options.cluster, &model, clock_));
  return {};
}

// Makes the link between the tiers and to borrowed memory.
Status LoadedRuntime::make_link(const RuntimeOptions& options, const CacheOptions& cache) {
  if (cache.host_bytes + cache.disk_bytes + cache.peers_bytes() == 0) return {};
  MemoryLinkOptions link = link_options(options, *device_);
  link.disk = disk_.get();
  if (disk_) {
    KV_ASSIGN_OR_RETURN(link.disk_buffers, device_->disk_buffers(disk_->buffer_bytes()));
  }
  if (cache.peers_bytes() > 0) {
    link.peers = &joined_.node->memory();
    link.borrowed_begin = cache.peers_begin();
    link.borrowed_bytes = cache.peers_bytes();
  }
  link_ = std::make_unique<MemoryLink>(std::move(link), clock_);
  link_report_ = link_report(options);
  return {};
}

Status LoadedRuntime::open_disk(const RuntimeOptions& options, const CacheOptions& cache) {
  DiskFileOptions disk;
  disk.directory = options.kv_offloading_dir;
  disk.bytes = cache.disk_bytes;
  disk.numerics_id = cache.numerics_id;
  disk.model = to_hex(file_->fingerprint());
  disk.geometry = geometry_name(cache.geometry);
  disk.max_piece_bytes = round_up(cache.geometry.largest_piece_bytes(), kDiskAlign);
  Result<std::unique_ptr<DiskFile>> file = DiskFile::open(std::move(disk));
  if (!file.ok()) {
    return error(file.status().code(), "--kv-offloading-dir {}: {}", options.kv_offloading_dir,
                 file.status().message());
  }
  disk_ = *std::move(file);
  KV_CHECK(disk_->bytes() == cache.disk_bytes, "the file has {} bytes, the tier {}", disk_->bytes(),
           cache.disk_bytes);
  return {};
}

void LoadedRuntime::restore_prefixes() {
  const std::vector<DiskEntry> entries = disk_->load();
  if (entries.empty()) return;
  const size_t blocks = engine_->restore_prefixes(entries);
  log_info("{}: {} of prefixes from before can be reused", disk_->path(),
           count_of(blocks * engine_->options().cache.geometry.block_tokens, "token"));
}

LoadedRuntime::~LoadedRuntime() {
  if (engine_ && lengths_ && !lengths_file_.empty()) {
    engine_->stop();
    save_predictor(*lengths_, learnt_of(*lengths_, *tokenizer_, model_id()), lengths_file_);
  }
  if (!disk_) return;
  std::vector<DiskEntry> entries = disk_->load();  // if the start failed, the entries from before are kept
  if (engine_) {
    engine_->stop();
    entries = engine_->save_prefixes(kSavePatience);
  }
  // Without the link nothing writes to the file any more. It first ends transfers that no entry names.
  engine_.reset();
  executor_.reset();
  link_.reset();
  const Status status = disk_->save(entries);
  if (!status.ok()) {
    log_warning("the disk tier starts empty next time: {}", status.message());
    return;
  }
  log_info("{}: keeps {} for the next start", disk_->path(), count_of(entries.size(), "copy", "copies"));
}

Status LoadedRuntime::make_beliefs(const RuntimeOptions& options, const std::string& numerics_id) {
  if (options.beliefs.given == nullptr) {
    KV_ASSIGN_OR_RETURN(lengths_, load_predictor(options.beliefs, *tokenizer_, model_id()));
    lengths_file_ = options.beliefs.length_predictor_file;
  }
  const CostFingerprint here =
      cost_fingerprint(options, file_->spec(), numerics_id, device_->cost_place(options));
  KV_ASSIGN_OR_RETURN(CostModel costs, costs_to_begin_with(options.beliefs, here));
  costs.expert_share = file_->spec().expert_share();
  costs_ = std::make_unique<CostBeliefs>(CostLearner(costs), CostBeliefs::Learns::kOnThread,
                                         cpu_shares(options).others);
  return {};
}

Status LoadedRuntime::load(const RuntimeOptions& options) {
  KV_RETURN_IF_ERROR(check_device(options));
  Decoder::Options decoder;
  KV_ASSIGN_OR_RETURN(decoder.kv_type, kv_type_from(options.kv_cache_dtype));
  KV_ASSIGN_OR_RETURN(decoder.activation, activation_from(options.activation_type));
  decoder.tap_all_rows = options.tap_all_rows;
  KV_ASSIGN_OR_RETURN(device_, make_serving_device(options, decoder));
  KV_ASSIGN_OR_RETURN(file_, open_model(options));
  for (const std::string& warning : file_->warnings()) log_warning("{}", warning);
  KV_RETURN_IF_ERROR(load_text(options));
  KV_ASSIGN_OR_RETURN(std::unique_ptr<Policy> policy, make_policy(options.scheduling_policy));
  KV_RETURN_IF_ERROR(check_limits(options));
  EngineOptions engine = engine_options(options);
  engine.vocab_size = file_->spec().vocab_size;
  KV_ASSIGN_OR_RETURN(engine.cache.geometry, make_geometry(options, *file_, decoder));
  if (policy_traits(options.scheduling_policy).keeps_x)
    hidden_report_ = describe_hidden_cache(options, *file_, decoder);

  KV_RETURN_IF_ERROR(device_->load_weights(options, *file_, engine));
  file_->release_pages();
  KV_RETURN_IF_ERROR(device_->size(options, engine));
  if (!options.log_plans.empty()) {
    KV_ASSIGN_OR_RETURN(plan_log_, PlanLog::create(options.log_plans, options.scheduling_policy));
  }
  KV_RETURN_IF_ERROR(device_->map_tiers(engine.cache));
  if (engine.cache.disk_bytes > 0) KV_RETURN_IF_ERROR(open_disk(options, engine.cache));
  if (options.cluster.on()) KV_RETURN_IF_ERROR(join(options, decoder, engine.cache));
  KV_RETURN_IF_ERROR(make_link(options, engine.cache));

  PeerMemory* const peers = joined_.node ? &joined_.node->memory() : nullptr;
  KV_ASSIGN_OR_RETURN(executor_, device_->make_executor(options, engine, clock_, link_.get(), peers));
  if (options.beliefs.used) KV_RETURN_IF_ERROR(make_beliefs(options, engine.cache.numerics_id));
  engine_ = std::make_unique<Engine>(
      engine, std::move(policy), *executor_, clock_, plan_log_.get(), link_.get(),
      Beliefs{costs_.get(), options.beliefs.given ? options.beliefs.given : lengths_.get()},
      joined_.node.get());
  log_start(options);
  if (disk_) restore_prefixes();
  return {};
}

void LoadedRuntime::log_start(const RuntimeOptions& options) const {
  const CacheOptions& cache = engine_->options().cache;
  if (policy_traits(options.scheduling_policy).offloads && cache.tier_bytes(cache.slower_tier()) == 0) {
    log_warning("--scheduling-policy {} has nowhere to move keys and values: give --kv-offloading-size, too",
                options.scheduling_policy);
  }
  log_info("{}: {}, numerics {}, {}, policy {}{}", options.model_path,
           count_of(static_cast<uint64_t>(file_->spec().layers), "layer"),
           engine_->options().cache.numerics_id, device_->kernels_text(options), options.scheduling_policy,
           link_report_);
}

std::string LoadedRuntime::memory_report() const {
  const EngineOptions& engine = engine_->options();
  const CacheOptions& cache = engine.cache;
  const CacheGeometry& g = cache.geometry;
  const auto tier = [&](uint64_t bytes, Tier of = Tier::kDevice) {
    const uint64_t block_bytes = g.cell_stride(Form::kKv, of) * g.groups();
    const uint64_t blocks = bytes / block_bytes;
    return fmt::format("{} = {} of {} tokens ({} tokens, {} each)", format_bytes(bytes),
                       count_of(blocks, "block"), g.block_tokens, blocks * g.block_tokens,
                       format_bytes(block_bytes / g.block_tokens));
  };
  std::string report =
      fmt::format("memory: {}, KV cache {}", device_->weights_text(), tier(cache.device_bytes));
  if (cache.stage_bytes > 0) {
    report += fmt::format(", stage ring {} = {} of one layer", format_bytes(cache.stage_bytes),
                          count_of(cache.stage_blocks(), "block"));
  }
  if (cache.host_bytes > 0) report += fmt::format(", host tier {}{}", tier(cache.host_bytes), link_report_);
  if (cache.borrowed_bytes > 0) report += fmt::format(", of peers up to {}", tier(cache.borrowed_bytes));
  if (disk_) {
    report += fmt::format(", disk tier {} in {}{} with {} of memory for checksums and {} for buffers",
                          tier(cache.disk_bytes, Tier::kDisk), disk_->path(),
                          disk_->direct() ? "" : " (through the page cache)",
                          format_bytes(DiskFile::checksum_bytes(cache.disk_bytes)),
                          format_bytes(disk_->buffer_bytes()));
  }
  report += hidden_report_;
  report += fmt::format(", activations {} for steps of {} tokens, longest request {} tokens",
                        format_bytes(device_->activation_bytes()), engine.limits.max_num_batched_tokens,
                        engine.max_model_len);
  const std::string windows = describe_windows(file_->spec(), engine.max_model_len);
  return windows.empty() ? report : fmt::format("{} ({})", report, windows);
}

}  // namespace

int compute_threads(const RuntimeOptions& options) {
  if (options.threads > 0) return options.threads;
  const int cores = available_cores();
  return cores > 2 ? cores - 1 : cores;
}

CpuShares cpu_shares(const RuntimeOptions& options) {
  if (is_on_gpu(options)) return {};
  return share_cpus(allowed_cpus(), compute_threads(options), options.pinning);
}

Result<std::unique_ptr<Runtime>> load_runtime(const RuntimeOptions& options) {
  auto runtime = std::make_unique<LoadedRuntime>();
  KV_RETURN_IF_ERROR(runtime->load(options));
  return std::unique_ptr<Runtime>(std::move(runtime));
}

}  // namespace kvasir
