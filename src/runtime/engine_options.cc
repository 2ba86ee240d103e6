#include "runtime/engine_options.h"

#include <fmt/format.h>

#include "base/units.h"
#include "contract/numerics_id.h"
#include "exec/gpu/gpu_model.h"
#include "model/architectures/cache_layers.h"
#include "runtime/device_limits.h"
#include "sched/registry.h"

namespace kvasir {
namespace {

// Of the layers that a group may have, as many as never mix those that have a window with others.
uint32_t layers_of_one_kind(const CacheGeometry& geometry, std::span<const uint32_t> windows) {
  const auto mixes = [&](uint32_t in_group) {
    for (uint32_t l = 1; l < geometry.layers; ++l) {
      if (l % in_group != 0 && (windows[l] > 0) != (windows[l - 1] > 0)) return true;
    }
    return false;
  };
  for (uint32_t n = geometry.layers_per_group; n > 0; --n) {
    if (!mixes(n)) return ceil_div(geometry.layers, n) <= kMaxLayerGroups ? n : geometry.layers_per_group;
  }
  return geometry.layers_per_group;
}

// The bytes of a piece with which there are no more layer groups than there can be: `piece`, those of K and
// V, or more, where a recurrent layer's state would else be in too many parts.
Result<uint64_t> piece_with_states(const RuntimeOptions& options, const ModelSpec& config, uint64_t piece) {
  constexpr uint64_t kMostTimes = 4;
  if (!config.is_recurrent()) return piece;
  const auto step = static_cast<uint64_t>(CacheLayers::matrix_unit_floats(config.recurrent)) * sizeof(float);
  for (uint64_t wider = piece; wider <= kMostTimes * piece; wider += step) {
    const uint32_t layers = CacheLayers(config, wider).count();
    if (layers > 0 && layers <= kMaxLayerGroups) return wider;
  }
  return error(ErrorCode::kInvalidArgument,
               "--block-size {}: the state of a recurrent layer ({}) is too large beside K and V of a block "
               "({}); use a "
               "larger block",
               options.block_size,
               format_bytes(static_cast<uint64_t>(config.recurrent.state_floats()) * sizeof(float)),
               format_bytes(piece));
}

}  // namespace

Result<std::unique_ptr<ModelFile>> open_model(const RuntimeOptions& options) {
  const QuantizationRecipe* recipe = nullptr;
  if (!options.quantization.empty()) {
    recipe = find_recipe(options.quantization);
    if (recipe == nullptr) {
      return error(ErrorCode::kInvalidArgument, "--quantization {}: there are {}", options.quantization,
                   fmt::join(recipe_names(), ", "));
    }
  }
  KV_ASSIGN_OR_RETURN(std::unique_ptr<ModelFile> file, ModelFile::open(options.model_path));
  if (recipe != nullptr) KV_RETURN_IF_ERROR(file->quantize_as(*recipe));
  return file;
}

uint32_t batched_tokens(const RuntimeOptions& options) {
  if (options.max_num_batched_tokens > 0) return options.max_num_batched_tokens;
  return policy_traits(options.scheduling_policy).whole_prompts ? 2048 : 512;
}

bool borrows(const RuntimeOptions& options) {
  return options.cluster.on() && options.cluster.borrow_bytes > 0 &&
         policy_traits(options.scheduling_policy).borrows;
}

bool shares_prefixes(const RuntimeOptions& options) {
  return options.cluster.on() && options.cluster.prefixes != "never" && options.enable_prefix_caching;
}

// A tier with cells at peers holds keys and values alone, and is the host's.
bool attends_prefixes(const RuntimeOptions& options) {
  return shares_prefixes(options) && options.cluster.prefixes != "fetch" &&
         options.cluster.borrow_bytes > 0 && options.kv_offloading_disk_bytes == 0;
}

bool shares_prompts(const RuntimeOptions& options) {
  return options.cluster.on() && options.cluster.prompts != "never" && options.enable_prefix_caching;
}

EngineOptions engine_options(const RuntimeOptions& options) {
  EngineOptions engine;
  engine.limits = {options.max_num_seqs, batched_tokens(options), options.long_prefill_token_threshold};
  engine.max_decode_stall = from_seconds(options.max_decode_stall_ms / 1e3);
  engine.max_num_queued_reqs = options.max_num_queued_reqs;
  engine.max_num_queued_tokens = options.max_num_queued_tokens;
  engine.refuse_late = options.refuse_late;
  engine.cache.prefix_caching = options.enable_prefix_caching;
  engine.cache.tells_events = options.cache_events != nullptr;
  engine.cache_events = options.cache_events;
  engine.map = options.map;
  if (shares_prefixes(options)) {
    engine.peer_prefixes = options.cluster.prefixes == "fetch"    ? PeerPrefixUse::kFetch
                           : options.cluster.prefixes == "attend" ? PeerPrefixUse::kAttend
                                                                  : PeerPrefixUse::kByCost;
  }
  if (shares_prompts(options)) {
    engine.peer_prompts =
        options.cluster.prompts == "always" ? PeerPromptUse::kAlways : PeerPromptUse::kByCost;
  }
  return engine;
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

Result<CacheGeometry> make_geometry(const RuntimeOptions& options, uint32_t layers,
                                    uint64_t kv_plane_bytes_per_token_layer, uint64_t x_bytes_per_token_layer,
                                    uint32_t kv_planes) {
  CacheGeometry geometry;
  geometry.block_tokens = options.block_size;
  if (options.block_size < 16 || options.block_size % 16 != 0 || 256 % options.block_size != 0) {
    return error(ErrorCode::kInvalidArgument, "--block-size {}: there are 16, 32, 64, 128 and 256",
                 options.block_size);
  }
  geometry.layers = layers;
  // Copies move by layer groups, so with a second tier a group has one layer.
  const bool tiers =
      options.kv_offloading_bytes + options.kv_offloading_disk_bytes > 0 || options.cluster.on();
  const uint32_t usual = tiers ? 1 : geometry.layers;
  geometry.layers_per_group = options.kv_layer_group == 0 ? usual : options.kv_layer_group;
  if (geometry.layers_per_group > geometry.layers || geometry.groups() > kMaxLayerGroups) {
    return error(ErrorCode::kInvalidArgument,
                 "--kv-layer-group {}: the model has {} layers, and there can be {} groups",
                 options.kv_layer_group, geometry.layers, kMaxLayerGroups);
  }
  geometry.kv_plane_bytes_per_token_layer = kv_plane_bytes_per_token_layer;
  geometry.kv_planes = kv_planes;
  return policy_traits(options.scheduling_policy).keeps_x ? with_x(geometry, x_bytes_per_token_layer)
                                                          : geometry;
}

CacheGeometry with_x(CacheGeometry layout, uint64_t x_bytes_per_token_layer) {
  const bool pays = layout.kv_planes > 1 && x_bytes_per_token_layer < layout.kv_bytes_per_token_layer();
  layout.x_bytes_per_token_layer = pays ? x_bytes_per_token_layer : 0;
  return layout;
}

FormBytes x_forms(const RuntimeOptions& options, const ModelFile& model, const Decoder::Options& decoder) {
  const ModelSpec& config = model.spec();
  if (!is_on_gpu(options)) return form_bytes(config, x_type_of(model.weights(), decoder.activation));
  FormBytes forms = form_bytes(config, ops::ActivationType::kBf16);
  forms.x_per_token_layer = gpu_x_bytes(config);
  forms.x_per_token = forms.x_per_token_layer * static_cast<uint64_t>(config.layers);
  return forms;
}

Result<CacheGeometry> make_geometry(const RuntimeOptions& options, const ModelFile& model,
                                    const Decoder::Options& decoder) {
  const ModelSpec& config = model.spec();
  const uint64_t plane = config.kv_plane_bytes_per_token_layer(decoder.kv_type);
  const uint64_t piece = plane * static_cast<uint64_t>(config.kv_planes()) * options.block_size;
  KV_ASSIGN_OR_RETURN(const uint64_t wider, piece_with_states(options, config, piece));
  const CacheLayers layers(config, wider);
  if (config.is_recurrent() && options.kv_layer_group > 1) {
    return error(ErrorCode::kUnsupported,
                 "--kv-layer-group {}: a model with recurrent layers has groups of one layer; leave it out",
                 options.kv_layer_group);
  }
  if (config.is_recurrent() && batched_tokens(options) < options.block_size) {
    return error(
        ErrorCode::kUnsupported,
        "--max-num-batched-tokens {}: a model with recurrent layers goes on from the end of a block, so "
        "a step must have room for one ({}); give more tokens or a smaller --block-size",
        batched_tokens(options), options.block_size);
  }
  RuntimeOptions of_layers = options;
  if (config.is_recurrent()) of_layers.kv_layer_group = 1;  // so that groups with states hold nothing else
  KV_ASSIGN_OR_RETURN(
      CacheGeometry geometry,
      make_geometry(of_layers, layers.count(), plane,
                    config.is_recurrent() ? 0 : x_forms(options, model, decoder).x_per_token_layer,
                    static_cast<uint32_t>(config.kv_planes())));
  if (config.is_recurrent()) {
    geometry.layers_per_group = 1;
    if (wider > piece) geometry.least_piece_bytes = wider;
    geometry.set_states(layers.windows(config, options.block_size));
    return geometry;
  }
  // No GPU has been shown to leave holes in block tables alone: there all cells are kept.
  if (is_on_gpu(options)) return geometry;
  add_windows(options, config.windows(), geometry);
  return geometry;
}

void add_windows(const RuntimeOptions& options, std::span<const uint32_t> by_layer, CacheGeometry& layout) {
  if (options.kv_layer_group == 0) layout.layers_per_group = layers_of_one_kind(layout, by_layer);
  layout.set_windows(by_layer);
}

std::string geometry_name(const CacheGeometry& g) {
  return fmt::format("block_tokens={} layers={} layers_per_group={} kv={}{} x={}", g.block_tokens, g.layers,
                     g.layers_per_group, g.kv_plane_bytes_per_token_layer, g.kv_planes == 1 ? "x1" : "",
                     g.x_bytes_per_token_layer) +
         (g.states ? fmt::format(" states={}", g.piece_bytes(Form::kKv)) : "");
}

Status check_limits(const RuntimeOptions& options) {
  KV_RETURN_IF_ERROR(check_device(options));
  if (batched_tokens(options) < options.max_num_seqs) {
    return error(
        ErrorCode::kInvalidArgument,
        "--max-num-batched-tokens {} is less than --max-num-seqs {}: every running sequence needs a token "
        "of the budget; raise the one or lower the other",
        batched_tokens(options), options.max_num_seqs);
  }
  if (options.max_num_seqs == 0 || options.max_num_queued_reqs == 0) {
    return error(ErrorCode::kInvalidArgument, "--max-num-seqs and --max-num-queued-reqs must be at least 1");
  }
  if (options.kv_offloading_bytes == 0 && options.link_gbytes_per_s > 0) {
    return error(ErrorCode::kInvalidArgument,
                 "--link-gbytes-per-s {}: there is no host tier to link; give --kv-offloading-size, too",
                 options.link_gbytes_per_s);
  }
  if (borrows(options) && options.kv_offloading_disk_bytes > 0) {
    return error(
        ErrorCode::kInvalidArgument,
        "--cluster and --kv-offloading-disk-size: where memory is borrowed of peers there is no disk tier; "
        "leave one of them out, or give --cluster-borrow-size 0");
  }
  if (options.kv_offloading_dir.empty() != (options.kv_offloading_disk_bytes == 0)) {
    return error(ErrorCode::kInvalidArgument,
                 "--kv-offloading-dir '{}' and --kv-offloading-disk-size {}: a disk tier needs both, a "
                 "directory and a size",
                 options.kv_offloading_dir, format_bytes(options.kv_offloading_disk_bytes));
  }
  return {};
}

std::string numerics_of(const PackedModel& model, ops::ActivationMode activation, ops::KvType kv_type) {
  NumericsId numerics;
  numerics.arithmetic = ops::kArithmetic;
  numerics.weight_types = model.weight_types();
  numerics.activation_type = model.activation_types(activation);
  numerics.kv_type = ops::kv_type_name(kv_type);
  return numerics.to_string();
}

}  // namespace kvasir
