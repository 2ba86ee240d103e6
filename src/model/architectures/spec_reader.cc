#include "model/architectures/spec_reader.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "model/files/small_vector.h"

namespace kvasir {
namespace {

// Bounds far above any model; they keep products of two of them inside int32 or int64.
constexpr uint32_t kMaxLayers = 1024;
constexpr uint32_t kMaxDim = 1 << 16;
constexpr uint32_t kMaxFfn = 1 << 20;
constexpr uint32_t kMaxExperts = 4096;
constexpr int32_t kMaxExpertsUsed = 256;
constexpr uint32_t kMaxHeads = 1024;
constexpr uint32_t kMaxHeadDim = 1024;
constexpr uint32_t kMaxVocab = 1 << 24;
constexpr uint32_t kMaxContext = 1 << 24;

}  // namespace

SpecReader::SpecReader(const Gguf& file, std::string architecture) : file_(file) {
  spec_.architecture = std::move(architecture);
}

Status SpecReader::read_common(NormKind norm) {
  spec_.norm = norm;
  if (auto name = file_.get_string("general.name"); name.ok()) spec_.name = *name;
  KV_RETURN_IF_ERROR(read_count("block_count", kMaxLayers, spec_.layers));
  KV_RETURN_IF_ERROR(read_count("context_length", kMaxContext, spec_.context_length));
  KV_RETURN_IF_ERROR(read_count("embedding_length", kMaxDim, spec_.dim));
  int32_t of_experts = 0;  // a model whose layers all have experts may give no other width
  if (!has("feed_forward_length") && has("expert_feed_forward_length")) {
    KV_RETURN_IF_ERROR(read_count("expert_feed_forward_length", kMaxFfn, of_experts));
  }
  KV_RETURN_IF_ERROR(read_count("feed_forward_length", kMaxFfn, spec_.ffn_dim, of_experts));
  spec_.layer_specs.resize(static_cast<size_t>(spec_.layers));
  KV_RETURN_IF_ERROR(read_heads());
  const int32_t score_dim =
      spec_.is_latent() ? spec_.latent.nope_dim + spec_.latent.rope_dim : spec_.head_dim;
  spec_.query_scale = 1.0F / std::sqrt(static_cast<float>(score_dim));
  KV_RETURN_IF_ERROR(read_rope(YarnBorders::kWhole));
  const std::string_view epsilon =
      norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon" : "attention.layer_norm_epsilon";
  KV_RETURN_IF_ERROR(file_.get_f32(full(epsilon)).status());  // no default: a wrong one changes every output
  KV_RETURN_IF_ERROR(read_positive(epsilon, 1.0F, spec_.norm_epsilon));
  KV_RETURN_IF_ERROR(read_vocabulary());
  if (has("attention.causal")) {
    KV_ASSIGN_OR_RETURN(const bool causal, file_.get_bool(full("attention.causal")));
    if (!causal) return unsupported("attention is not causal, which is not supported");
  }
  return refuse_factors({"attention.clamp_kqv"});
}

Status SpecReader::read_exact() {
  constexpr std::string_view kSplit = "kvasir.split_pairs";
  if (file_.has(kSplit)) {
    KV_ASSIGN_OR_RETURN(const bool split, file_.get_bool(kSplit));
    if (split && spec_.is_latent()) return unsupported("kvasir.split_pairs is not supported");
    spec_.split_pairs = split && !spec_.ropes.empty();
  }
  constexpr std::string_view kUnitNorm = "kvasir.unit_norm";
  if (file_.has(kUnitNorm)) {
    KV_ASSIGN_OR_RETURN(const bool norms, file_.get_bool(kUnitNorm));
    spec_.qk_norm = norms ? QkNorm::kUnit : QkNorm::kNone;
  }
  float length = 0;  // 0: not given
  KV_RETURN_IF_ERROR(read_exact_number("query_pre_attn_scalar", length));
  if (length > 0) spec_.query_scale = 1.0F / std::sqrt(length);
  std::vector<int32_t> windows, ropes, experts;
  KV_RETURN_IF_ERROR(read_by_layer("kvasir.layer_windows", 0, INT32_MAX, windows));
  KV_RETURN_IF_ERROR(
      read_by_layer("kvasir.layer_ropes", -1, static_cast<int32_t>(spec_.ropes.size()) - 1, ropes));
  KV_RETURN_IF_ERROR(read_by_layer("kvasir.layer_experts", 0, spec_.experts.count > 0 ? 1 : 0, experts));
  std::vector<int32_t> recurrent;
  KV_RETURN_IF_ERROR(read_by_layer("kvasir.layer_recurrent", 0, spec_.is_recurrent() ? 1 : 0, recurrent));
  for (size_t l = 0; l < recurrent.size(); ++l) spec_.layer_specs[l].recurrent = recurrent[l] != 0;
  for (size_t l = 0; l < experts.size(); ++l) spec_.layer_specs[l].experts = experts[l] != 0;
  for (size_t l = 0; l < windows.size(); ++l) spec_.layer_specs[l].window = windows[l];
  for (size_t l = 0; l < ropes.size(); ++l) spec_.layer_specs[l].rope = ropes[l];
  return {};
}

Status SpecReader::read_exact_number(std::string_view key, float& out) const {
  const std::string name = fmt::format("kvasir.{}", key);
  if (!file_.has(name)) return {};
  KV_ASSIGN_OR_RETURN(out, file_.get_f32(name));
  if (out > 0 && out <= 1e6F) return {};
  return error(ErrorCode::kCorrupt, "{}: {} is {}, not above 0; fetch the model again", file_.origin(), key,
               out);
}

Status SpecReader::read_by_layer(std::string_view key, int32_t least, int32_t most,
                                 std::vector<int32_t>& out) const {
  if (!file_.has(key)) return {};
  KV_ASSIGN_OR_RETURN(out, file_.get_i32s(key));
  const bool fit = std::all_of(out.begin(), out.end(), [&](int32_t v) { return v >= least && v <= most; });
  if (fit && out.size() == spec_.layer_specs.size()) return {};
  return error(ErrorCode::kCorrupt,
               "{}: metadata '{}' does not have a number from {} to {} for each of {} layers; "
               "convert the model again",
               file_.origin(), key, least, most, spec_.layers);
}

Status SpecReader::read_count(std::string_view key, uint32_t most, int32_t& out, int32_t otherwise) const {
  const std::string name = full(key);
  const GgufValue* given = file_.find(name);
  if (otherwise != 0 && given == nullptr) {
    out = otherwise;
    return {};
  }
  int64_t value = 0;
  if (given != nullptr && given->type == GgufType::kArray) {
    KV_ASSIGN_OR_RETURN(const std::vector<int32_t> values, file_.get_i32s(name));
    if (values.empty() ||
        std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) != values.end()) {
      return unsupported("'{}' differs from layer to layer, which is not supported", name);
    }
    value = values[0];
  } else {
    KV_ASSIGN_OR_RETURN(value, file_.get_u32(name));
  }
  if (value < 1 || value > int64_t{most}) {
    return error(ErrorCode::kCorrupt, "{}: metadata '{}' is {}, not from 1 to {}; convert the model again",
                 file_.origin(), name, value, most);
  }
  out = static_cast<int32_t>(value);
  return {};
}

Status SpecReader::read_positive(std::string_view key, float most, float& out) const {
  const std::string name = full(key);
  if (!file_.has(name)) return {};
  KV_ASSIGN_OR_RETURN(const float value, file_.get_f32(name));
  if (!(value > 0 && value <= most)) {
    return error(ErrorCode::kCorrupt,
                 "{}: metadata '{}' is {}, not above 0 and at most {}; convert the model again",
                 file_.origin(), name, value, most);
  }
  out = value;
  return {};
}

Status SpecReader::read_optional(std::string_view key, float most, float& out) const {
  const std::string name = full(key);
  if (!file_.has(name)) return {};
  KV_ASSIGN_OR_RETURN(const float value, file_.get_f32(name));
  return value == 0 ? Status() : read_positive(key, most, out);
}

Status SpecReader::read_window_size(std::string_view key, int32_t& out) const {
  const std::string name = full(key);
  if (!file_.has(name)) return {};
  KV_ASSIGN_OR_RETURN(const uint32_t value, file_.get_u32(name));
  if (value > kMaxContext) return read_count(key, kMaxContext, out);  // refused by name
  out = static_cast<int32_t>(value);
  return {};
}

Result<std::vector<bool>> SpecReader::read_windows(int32_t period) {
  const std::string pattern = full("attention.sliding_window_pattern");
  const GgufValue* given = file_.find(pattern);
  std::vector<bool> windowed;
  if (given != nullptr && given->type == GgufType::kArray) {
    std::vector<int32_t> by_layer;
    KV_RETURN_IF_ERROR(read_by_layer(pattern, 0, 1, by_layer));
    windowed.assign(by_layer.begin(), by_layer.end());
  } else {
    KV_RETURN_IF_ERROR(read_count("attention.sliding_window_pattern", kMaxLayers, period, period));
    for (int32_t l = 1; l <= spec_.layers; ++l) windowed.push_back(l % period != 0);
  }
  KV_RETURN_IF_ERROR(read_window("attention.sliding_window", [&windowed](int32_t layer) -> bool {
    return windowed[static_cast<size_t>(layer)];
  }));
  return windowed;
}

Status SpecReader::read_experts(const ExpertSpec& like, bool required) {
  ExpertSpec& e = spec_.experts;
  uint32_t count = 0;
  if (file_.has(full("expert_count"))) {
    KV_ASSIGN_OR_RETURN(count, file_.get_u32(full("expert_count")));
  }
  if (count == 0 && !required) return refuse_counts({"expert_used_count"});
  e = like;
  KV_RETURN_IF_ERROR(read_count("expert_count", kMaxExperts, e.count));
  KV_RETURN_IF_ERROR(read_count("expert_used_count", static_cast<uint32_t>(e.count), e.used));
  if (e.used > kMaxExpertsUsed) {
    return unsupported("rows of {} experts are not supported (at most {})", e.used, kMaxExpertsUsed);
  }
  KV_RETURN_IF_ERROR(read_count("expert_feed_forward_length", kMaxFfn, e.ffn_dim, spec_.ffn_dim));
  // The shared expert's width is given, or how many of the others it is as wide as.
  if (has("expert_shared_feed_forward_length")) {
    KV_ASSIGN_OR_RETURN(const uint32_t width, file_.get_u32(full("expert_shared_feed_forward_length")));
    if (width > 0) {
      KV_RETURN_IF_ERROR(read_count("expert_shared_feed_forward_length", kMaxFfn, e.shared_ffn_dim));
    }
  } else if (has("expert_shared_count")) {
    KV_ASSIGN_OR_RETURN(const uint32_t shared, file_.get_u32(full("expert_shared_count")));
    if (shared > kMaxFfn / static_cast<uint32_t>(e.ffn_dim)) {
      return error(ErrorCode::kCorrupt, "{}: {} shared experts of {} are too wide; convert the model again",
                   file_.origin(), shared, e.ffn_dim);
    }
    e.shared_ffn_dim = static_cast<int32_t>(shared) * e.ffn_dim;
  }
  KV_RETURN_IF_ERROR(read_gating(e));
  uint32_t dense = 0;
  if (has("leading_dense_block_count")) {
    KV_ASSIGN_OR_RETURN(dense, file_.get_u32(full("leading_dense_block_count")));
  }
  for (uint32_t l = dense; l < spec_.layer_specs.size(); ++l) spec_.layer_specs[l].experts = true;
  return {};
}

Status SpecReader::read_gating(ExpertSpec& e) const {
  bool of_chosen = false;  // a softmax of the chosen scores, whose weights have the sum 1
  if (has("expert_gating_func")) {
    KV_ASSIGN_OR_RETURN(const uint32_t function, file_.get_u32(full("expert_gating_func")));
    constexpr uint32_t kNone = 0, kSigmoid = 2, kSoftmaxOfChosen = 3;  // 1: softmax
    if (function > kSoftmaxOfChosen) {
      return unsupported("'{}' is {}, which is not supported", full("expert_gating_func"), function);
    }
    if (function != kNone) e.gating = function == kSigmoid ? Gating::kSigmoid : Gating::kSoftmax;
    of_chosen = function == kSoftmaxOfChosen;
    if (of_chosen) e.renormalise = true;
  }
  for (const std::string& name : {full("expert_weights_norm"), std::string("kvasir.expert_weights_norm")}) {
    if (!file_.has(name)) continue;
    KV_ASSIGN_OR_RETURN(e.renormalise, file_.get_bool(name));
    if (of_chosen && !e.renormalise) {
      return unsupported("'{}' is false beside a softmax of the chosen scores, which is not supported", name);
    }
  }
  KV_RETURN_IF_ERROR(read_optional("expert_weights_scale", 1e6F, e.weight_scale));
  for (const auto& [key, out] :
       {std::pair{"expert_group_count", &e.groups}, std::pair{"expert_group_used_count", &e.groups_used}}) {
    if (!has(key)) continue;
    KV_ASSIGN_OR_RETURN(const uint32_t value, file_.get_u32(full(key)));
    if (value > 0) KV_RETURN_IF_ERROR(read_count(key, static_cast<uint32_t>(e.count), *out));
  }
  const bool fit = e.count % e.groups == 0 && e.groups_used <= e.groups &&
                   int64_t{e.groups_used} * (e.count / e.groups) >= e.used &&
                   (e.groups == 1 || e.count / e.groups >= 2);
  if (!fit) {
    return error(ErrorCode::kCorrupt,
                 "{}: {} of {} groups of {} experts do not have {} to choose; convert the model again",
                 file_.origin(), e.groups_used, e.groups, e.count, e.used);
  }
  return {};
}

Status SpecReader::read_recurrence() {
  RecurrentSpec& r = spec_.recurrent;
  int32_t values = 0;
  KV_RETURN_IF_ERROR(read_count("ssm.conv_kernel", 64, r.taps));
  KV_RETURN_IF_ERROR(read_count("ssm.state_size", kMaxHeadDim, r.key_dim));
  KV_RETURN_IF_ERROR(read_count("ssm.group_count", kMaxHeads, r.key_heads));
  KV_RETURN_IF_ERROR(read_count("ssm.time_step_rank", kMaxHeads, r.value_heads));
  KV_RETURN_IF_ERROR(read_count("ssm.inner_size", kMaxFfn, values));
  if (r.value_heads % r.key_heads != 0 || values % r.value_heads != 0) {
    return error(
        ErrorCode::kCorrupt,
        "{}: {} values do not divide evenly among {} heads, or these among {} heads of keys; convert the "
        "model again",
        file_.origin(), values, r.value_heads, r.key_heads);
  }
  r.value_dim = values / r.value_heads;
  if (r.value_dim % ops::kLanes != 0 || r.key_dim % ops::kLanes != 0) {
    return unsupported("recurrent heads of {} keys and {} values are not supported (multiples of {})",
                       r.key_dim, r.value_dim, ops::kLanes);
  }
  int32_t interval = 4;
  KV_RETURN_IF_ERROR(read_count("full_attention_interval", kMaxLayers, interval, interval));
  for (int32_t l = 0; l < spec_.layers; ++l) {
    spec_.layer_specs[static_cast<size_t>(l)].recurrent = (l + 1) % interval != 0;
  }
  const std::string name = full("attention.recurrent_layers");
  if (const GgufValue* given = file_.find(name); given != nullptr) {
    if (given->type != GgufType::kArray || given->element != GgufType::kBool ||
        given->count < spec_.layer_specs.size()) {
      return error(ErrorCode::kCorrupt,
                   "{}: metadata '{}' does not say of each of {} layers whether it is recurrent; "
                   "convert the model again",
                   file_.origin(), name, spec_.layers);
    }
    for (size_t l = 0; l < spec_.layer_specs.size(); ++l) {
      spec_.layer_specs[l].recurrent = given->payload[l] != std::byte{0};
    }
  }
  if (spec_.attention_layers() == 0)
    return unsupported("a model whose layers are all recurrent is not supported");
  return {};
}

Status SpecReader::read_further_layers() {
  uint32_t further = 0;
  if (has("nextn_predict_layers")) {
    KV_ASSIGN_OR_RETURN(further, file_.get_u32(full("nextn_predict_layers")));
  }
  if (further == 0) return {};
  if (further >= static_cast<uint32_t>(spec_.layers)) {
    return error(ErrorCode::kCorrupt, "{}: of {} layers {} lie behind the last one; convert the model again",
                 file_.origin(), spec_.layers, further);
  }
  spec_.further_layers = static_cast<int32_t>(further);
  spec_.layers -= spec_.further_layers;
  spec_.layer_specs.resize(static_cast<size_t>(spec_.layers));
  return {};
}

Status SpecReader::refuse_counts(std::initializer_list<std::string_view> keys) const {
  for (std::string_view key : keys) {
    const std::string name = full(key);
    if (!file_.has(name)) continue;
    KV_ASSIGN_OR_RETURN(const uint32_t value, file_.get_u32(name));
    if (value != 0) return unsupported("'{}' is {}, which is not supported", name, value);
  }
  return {};
}

Status SpecReader::refuse_factors(std::initializer_list<std::string_view> keys) const {
  for (std::string_view key : keys) {
    const std::string name = full(key);
    if (!file_.has(name)) continue;
    KV_ASSIGN_OR_RETURN(const float value, file_.get_f32(name));
    if (value != 0 && value != 1) return unsupported("'{}' is {}, which is not supported", name, value);
  }
  return {};
}

// Two ways of the same: of today's files "key_length" and "value_length" are those of the rows in the cache,
// and "..._mla" those of a head; in old ones they are a head's.
Status SpecReader::read_latent_heads() {
  LatentSpec& l = spec_.latent;
  KV_RETURN_IF_ERROR(read_count("attention.head_count", kMaxHeads, spec_.heads));
  KV_RETURN_IF_ERROR(
      read_count("attention.kv_lora_rank", static_cast<uint32_t>(ops::kMostLatentRow), l.rank));
  uint32_t q_rank = 0;
  if (has("attention.q_lora_rank")) {
    KV_ASSIGN_OR_RETURN(q_rank, file_.get_u32(full("attention.q_lora_rank")));
    if (q_rank > 0) KV_RETURN_IF_ERROR(read_count("attention.q_lora_rank", kMaxDim, l.q_rank));
  }
  KV_RETURN_IF_ERROR(read_count("rope.dimension_count", kMaxHeadDim, l.rope_dim));
  const bool both = has("attention.key_length_mla");
  int32_t key = 0;
  KV_RETURN_IF_ERROR(
      read_count(both ? "attention.key_length_mla" : "attention.key_length", kMaxHeadDim, key));
  KV_RETURN_IF_ERROR(
      read_count(both ? "attention.value_length_mla" : "attention.value_length", kMaxHeadDim, l.value_dim));
  l.nope_dim = key - l.rope_dim;
  spec_.kv_heads = 1;
  spec_.head_dim = l.rank + l.rope_dim;
  if (l.nope_dim < 1 || l.rope_dim % 2 != 0) {
    return error(ErrorCode::kCorrupt, "{}: RoPE turns {} of the {} values of a head; convert the model again",
                 file_.origin(), l.rope_dim, key);
  }
  if (l.rank % ops::kLanes != 0 || spec_.head_dim % ops::kLanes != 0 ||
      spec_.head_dim > ops::kMostLatentRow) {
    return unsupported("latent rows of {} and {} values are not supported (multiples of {}, at most {})",
                       l.rank, l.rope_dim, ops::kLanes, ops::kMostLatentRow);
  }
  return {};
}

Status SpecReader::read_kv_heads_by_layer(const std::string& key) {
  std::vector<int32_t> by_layer;
  KV_RETURN_IF_ERROR(read_by_layer(key, 1, spec_.heads, by_layer));
  spec_.kv_heads = by_layer.back();
  for (size_t l = 0; l < by_layer.size(); ++l) {
    if (spec_.heads % by_layer[l] != 0) {
      return error(ErrorCode::kCorrupt,
                   "{}: {} query heads do not divide evenly among {} KV heads; convert the model again",
                   file_.origin(), spec_.heads, by_layer[l]);
    }
    spec_.layer_specs[l].kv_heads = by_layer[l] != spec_.kv_heads ? by_layer[l] : 0;
  }
  return {};
}

Status SpecReader::read_heads() {
  if (has("attention.kv_lora_rank")) {
    if (spec_.architecture != "deepseek2")
      return unsupported("latent attention (kv_lora_rank) is not supported");
    return read_latent_heads();
  }
  KV_RETURN_IF_ERROR(read_count("attention.head_count", kMaxHeads, spec_.heads));
  const std::string kv_heads = full("attention.head_count_kv");
  if (const GgufValue* given = file_.find(kv_heads);
      spec_.architecture == "gemma4" && given != nullptr && given->type == GgufType::kArray) {
    KV_RETURN_IF_ERROR(read_kv_heads_by_layer(kv_heads));
  } else {
    KV_RETURN_IF_ERROR(read_count("attention.head_count_kv", kMaxHeads, spec_.kv_heads, spec_.heads));
  }
  if (spec_.heads % spec_.kv_heads != 0) {
    return error(ErrorCode::kCorrupt,
                 "{}: {} query heads do not divide evenly among {} KV heads; convert the model again",
                 file_.origin(), spec_.heads, spec_.kv_heads);
  }
  if (!has("attention.key_length") && spec_.dim % spec_.heads != 0) {
    return error(ErrorCode::kCorrupt,
                 "{}: the width {} does not divide evenly among {} heads; convert the model again",
                 file_.origin(), spec_.dim, spec_.heads);
  }
  const int32_t even_share = spec_.dim % spec_.heads == 0 ? spec_.dim / spec_.heads : 0;
  KV_RETURN_IF_ERROR(read_count("attention.key_length", kMaxHeadDim, spec_.head_dim, even_share));
  int32_t value_length = 0;
  KV_RETURN_IF_ERROR(read_count("attention.value_length", kMaxHeadDim, value_length, even_share));
  if (value_length != spec_.head_dim) {
    return unsupported("keys have {} values a head and values {}, which is not supported", spec_.head_dim,
                       value_length);
  }
  if (spec_.head_dim % 2 != 0 || spec_.head_dim > static_cast<int32_t>(kMaxHeadDim)) {
    return unsupported("a head of {} values is not supported (even, at most {})", spec_.head_dim,
                       kMaxHeadDim);
  }
  return {};
}

// ---------------------------------------------------------------- RoPE

Status SpecReader::read_rope(YarnBorders borders) {
  Rope rope;
  KV_RETURN_IF_ERROR(read_count("rope.dimension_count", kMaxHeadDim, rope.dim, spec_.head_dim));
  if (rope.dim > spec_.head_dim || rope.dim % 2 != 0) {
    return error(ErrorCode::kCorrupt, "{}: RoPE turns {} of the {} values of a head; convert the model again",
                 file_.origin(), rope.dim, spec_.head_dim);
  }
  KV_RETURN_IF_ERROR(read_positive("rope.freq_base", 1e12F, rope.base));
  KV_RETURN_IF_ERROR(read_rope_scaling(rope, borders));
  spec_.ropes = {std::move(rope)};
  return {};
}

// A file that gives a factor without a type means "linear": that is what the writers of such files meant
// before the type was a key. Llama 3's scaling comes as a tensor of divisors, LongRoPE's as two.
Status SpecReader::read_rope_scaling(Rope& rope, YarnBorders borders) const {
  KV_RETURN_IF_ERROR(read_divisors("rope_freqs.weight", rope, rope.divisors));
  KV_RETURN_IF_ERROR(read_optional("rope.scaling.attn_factor", 1e3F, rope.attention_factor));
  std::string type = "linear";
  if (has("rope.scaling.type")) {
    KV_ASSIGN_OR_RETURN(type, file_.get_string(full("rope.scaling.type")));
  }
  if (type == "none") return {};
  if (has_tensor("rope_factors_long.weight")) {
    KV_RETURN_IF_ERROR(read_divisors("rope_factors_short.weight", rope, rope.divisors));
    KV_RETURN_IF_ERROR(read_divisors("rope_factors_long.weight", rope, rope.long_divisors));
    return read_count("rope.scaling.original_context_length", kMaxContext, rope.original_context,
                      spec_.context_length);
  }
  float factor = 1;
  KV_RETURN_IF_ERROR(
      read_optional(has("rope.scaling.factor") ? "rope.scaling.factor" : "rope.scale_linear", 1e6F, factor));
  if (type == "linear") {
    rope.linear_factor = factor;
    return {};
  }
  if (type == "yarn") return read_yarn(rope, factor, borders);
  return unsupported("RoPE scaling of type {} is not supported, only 'none', 'linear', 'yarn' and 'longrope'",
                     gguf_quoted(type));
}

// YaRN (Peng et al., 2023, section 3.2 and its public code): pairs that turn less than `slow` times within
// the original context are interpolated, those that turn more than `fast` times are kept, those between are
// mixed.
Status SpecReader::read_yarn(Rope& rope, float factor, YarnBorders borders) const {
  int32_t original = 0;
  KV_RETURN_IF_ERROR(
      read_count("rope.scaling.original_context_length", kMaxContext, original, spec_.context_length));
  float fast = 32, slow = 1;
  KV_RETURN_IF_ERROR(read_optional("rope.scaling.yarn_beta_fast", 1e6F, fast));
  KV_RETURN_IF_ERROR(read_optional("rope.scaling.yarn_beta_slow", 1e6F, slow));
  const auto dim = static_cast<double>(rope.dim);
  // The pair that turns so many times.
  const auto pair_of = [&](double turns) {
    return dim * std::log(original / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(static_cast<double>(rope.base)));
  };
  constexpr std::string_view kTruncate = "kvasir.yarn_truncate";
  if (file_.has(kTruncate)) {
    KV_ASSIGN_OR_RETURN(const bool truncate, file_.get_bool(kTruncate));
    borders = truncate ? YarnBorders::kWhole : YarnBorders::kExact;
  }
  double low = pair_of(fast), high = pair_of(slow);
  if (borders == YarnBorders::kWhole) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  rope.divisors.resize(static_cast<size_t>(rope.dim / 2));
  for (size_t i = 0; i < rope.divisors.size(); ++i) {
    const double interpolated = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    rope.divisors[i] = static_cast<float>(1 / (interpolated / factor + (1 - interpolated)));
  }
  // GGUF's rope.scaling.attn_factor, already there, comes on top of YaRN's own factor (section 3.4).
  if (factor > 1) rope.attention_factor *= 0.1F * std::log(factor) + 1;
  return {};
}

Status SpecReader::read_divisors(std::string_view tensor, const Rope& rope, std::vector<float>& out) const {
  const GgufTensor* found = file_.find_tensor(tensor);
  if (found == nullptr) return {};
  KV_RETURN_IF_ERROR(read_small_vector(file_.origin(), *found, rope.dim / 2, out));
  for (float divisor : out) {
    if (!(divisor > 0)) {
      return error(ErrorCode::kCorrupt,
                   "{}: the tensor '{}' holds a factor of {}, not above 0; convert the model again",
                   file_.origin(), tensor, divisor);
    }
  }
  return {};
}

// ---------------------------------------------------------------- vocabulary

Status SpecReader::read_vocabulary() {
  const GgufTensor* embedding = file_.find_tensor("token_embd.weight");
  if (embedding == nullptr) {
    return error(ErrorCode::kCorrupt,
                 "{}: the tensor 'token_embd.weight' is missing; the file is incomplete; fetch it again",
                 file_.origin());
  }
  const uint64_t rows = embedding->shape[1];
  if (rows > kMaxVocab) {
    return error(ErrorCode::kCorrupt,
                 "{}: 'token_embd.weight' has {} rows, more than {}; convert the model again", file_.origin(),
                 rows, kMaxVocab);
  }
  spec_.vocab_size = static_cast<int32_t>(rows);
  int32_t claimed = spec_.vocab_size;
  KV_RETURN_IF_ERROR(read_count("vocab_size", kMaxVocab, claimed, spec_.vocab_size));
  if (const GgufValue* tokens = file_.find("tokenizer.ggml.tokens");
      tokens != nullptr && tokens->count != rows) {
    return error(ErrorCode::kCorrupt,
                 "{}: the tokenizer has {} tokens and the embedding {} rows; convert the model again",
                 file_.origin(), tokens->count, rows);
  }
  if (claimed != spec_.vocab_size) {
    return error(ErrorCode::kCorrupt,
                 "{}: the metadata claims {} tokens and the embedding has {} rows; convert the model again",
                 file_.origin(), claimed, rows);
  }
  spec_.tied_embeddings = !has_tensor("output.weight");
  return {};
}

}  // namespace kvasir
