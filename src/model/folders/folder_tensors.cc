#include "model/folders/folder_tensors.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>

#include "base/units.h"
#include "model/files/latent_rows.h"
#include "model/files/layer_name.h"
#include "model/files/small_vector.h"
#include "model/folders/stacked_experts.h"
#include "ops/det_math.h"

namespace kvasir {
namespace {

// Where a decoder's tensors begin: by itself, in a wrapper of text and images (before and since transformers
// 5), and OPT's. The longest that fits is meant.
constexpr std::string_view kPrefixes[] = {"model.language_model.",
                                          "language_model.model.",
                                          "language_model.",
                                          "model.decoder.",
                                          "decoder.",
                                          "model."};
// What belongs to images.
constexpr std::string_view kImageParts[] = {
    "vision_tower.",          "vision_model.",   "visual.",
    "multi_modal_projector.", "vision_encoder.", "vision_language_adapter.",
    "embed_vision.",          "audio_tower.",    "embed_audio."};

// What follows from the configuration, or is of no use to a decoder.
constexpr std::string_view kHarmless[] = {"rotary_emb.inv_freq", "rotary_emb.cos_cached",
                                          "rotary_emb.sin_cached", "position_ids"};

// What a layer's experts may be called where they are in one tensor.
constexpr TensorName kJoinedExperts[] = {
    {"mlp.experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"mlp.experts.down_proj", "ffn_down_exps.weight"},
};

std::string_view without_prefix(std::string_view name) {
  for (std::string_view prefix : kPrefixes) {
    if (name.starts_with(prefix)) return name.substr(prefix.size());
  }
  return name;
}

bool is_of_images(std::string_view name) {
  if (name.starts_with("model.")) name.remove_prefix(6);
  return std::any_of(std::begin(kImageParts), std::end(kImageParts),
                     [name](std::string_view part) { return name.starts_with(part); });
}

bool is_harmless(std::string_view name) {
  return std::any_of(std::begin(kHarmless), std::end(kHarmless),
                     [name](std::string_view ending) { return name.ends_with(ending); });
}

// Quantisers write one for each matrix.
bool is_bias_of_zeros(const SafetensorsTensor& tensor) {
  const auto& data = tensor.tensor.data;
  return tensor.name.ends_with(".bias") &&
         std::all_of(data.begin(), data.end(), [](std::byte b) { return b == std::byte{0}; });
}

// The place of '*' taken by a number.
std::string numbered(std::string_view pattern, int64_t number) {
  const size_t star = pattern.find('*');
  return fmt::format("{}{}{}", pattern.substr(0, star), number, pattern.substr(star + 1));
}

// The number below `count` that has the place of '*'.
std::optional<int64_t> expert_in(std::string_view name, std::string_view pattern, int64_t count) {
  const size_t star = pattern.find('*');
  if (star == std::string_view::npos || !name.starts_with(pattern.substr(0, star))) return std::nullopt;
  int64_t number = -1;
  std::from_chars(name.data() + star, name.data() + name.size(), number);
  const bool is_one = number >= 0 && number < count && name == numbered(pattern, number);
  return is_one ? std::optional(number) : std::nullopt;
}

// Theirs is the whole name.
bool is_whole(const TensorName& role) {
  return role.ours.ends_with(".bias") || role.ours.ends_with(".weight");
}

class TensorMapper {
 public:
  TensorMapper(FolderConfig& config, std::optional<bool> tied, std::vector<std::string>& warnings)
      : config_(config),
        tied_(tied),
        warnings_(warnings),
        stacked_(config.out),
        dense_roles_({roles(false, false), recurrent_roles(false, false)}),
        expert_roles_({roles(true, config.shared_expert), recurrent_roles(true, config.shared_expert)}) {}

  Status run(const std::vector<WeightsFile>& files) {
    for (const WeightsFile& file : files) {
      for (const SafetensorsTensor& tensor : file.content.tensors) KV_RETURN_IF_ERROR(add(file, tensor));
    }
    if (image_tensors_ > 0) {
      warnings_.push_back(
          fmt::format("{}: {} tensors of images ({}) are not used: this program reads text only", origin(),
                      image_tensors_, format_bytes(image_bytes_)));
    }
    if (further_tensors_ > 0) {
      warnings_.push_back(fmt::format("{}: {} tensors of layers behind the last one are not used", origin(),
                                      further_tensors_));
    }
    KV_RETURN_IF_ERROR(stacked_.check_pairs(origin()));
    KV_RETURN_IF_ERROR(require_all());
    return settle_output();
  }

 private:
  // ".../config.json" without the name of the file.
  std::string origin() const {
    const std::string& path = config_.fields.origin();
    return path.substr(0, path.find_last_of('/'));
  }
  // Of a recurrent layer.
  std::vector<TensorName> recurrent_roles(bool with_experts, bool shared) const {
    std::vector<TensorName> out = roles(with_experts, shared);
    std::erase_if(out, [](const TensorName& role) { return role.theirs.starts_with("self_attn."); });
    const auto& recurrence = config_.architecture.recurrence;
    out.insert(out.end(), recurrence.begin(), recurrence.end());
    return out;
  }
  // Queries of latent attention come from a rank, or they do not; experts have tensors of their own, or they
  // do not.
  std::vector<TensorName> roles(bool with_experts, bool shared) const {
    std::vector<TensorName> out = config_.architecture.layer_tensors(with_experts, shared);
    if (with_experts && config_.joined_experts) {
      std::erase_if(out, [](const TensorName& role) { return role.ours.ends_with(".*"); });
      out.insert(out.end(), std::begin(kJoinedExperts), std::end(kJoinedExperts));
    }
    if (config_.kv_rank == 0) return out;
    std::erase_if(out, [this](const TensorName& role) {
      const bool of_rank = role.ours.starts_with("attn_q_");
      return config_.q_rank > 0 ? role.ours == "attn_q" : of_rank;
    });
    return out;
  }
  Status add(const WeightsFile& file, const SafetensorsTensor& tensor);
  Status add_kv_b(const WeightsFile& file, const SafetensorsTensor& tensor, const std::string& name);
  Status add_as(const WeightsFile& file, const SafetensorsTensor& tensor, const std::string& name);
  Status add_by_turns(const WeightsFile& file, const SafetensorsTensor& tensor, const std::string& name,
                      const HeadOrder& order);
  Status there_twice(const WeightsFile& file, const SafetensorsTensor& tensor) const;
  std::string name_of(std::string_view theirs) const;
  bool is_norm_less_one(std::string_view ours) const {
    return config_.architecture.norms_less_one && ours.ends_with("_norm.weight") &&
           !ours.ends_with(".ssm_norm.weight");
  }
  static bool is_looked_up(std::string_view ours) {
    return ours == "token_embd.weight" || ours == "position_embd.weight";
  }
  bool has_bias(std::string_view ours) const {
    return std::find(config_.biases.begin(), config_.biases.end(), ours) != config_.biases.end();
  }
  Status missing(std::string_view theirs) const {
    return error(ErrorCode::kCorrupt,
                 "{}: the tensor '{}' is missing; the folder is incomplete; fetch it again", origin(),
                 theirs);
  }
  const std::vector<TensorName>& roles_of(uint64_t layer) const {
    const size_t recurrent = config_.is_recurrent(layer) ? 1 : 0;
    return config_.has_experts(layer) ? expert_roles_[recurrent] : dense_roles_[recurrent];
  }
  Status require_all() const;
  Status require(int64_t layer, const TensorName& role) const;
  Status settle_output();

  FolderConfig& config_;
  const std::optional<bool> tied_;
  std::vector<std::string>& warnings_;
  StackedExperts stacked_;
  const std::array<std::vector<TensorName>, 2> dense_roles_, expert_roles_;  // with attention, recurrent
  // The output matrix is added when it is known whether it is the embedding.
  const WeightsFile* output_file_ = nullptr;
  const SafetensorsTensor* output_ = nullptr;
  size_t image_tensors_ = 0, further_tensors_ = 0;
  uint64_t image_bytes_ = 0;
};

// As a GGUF file calls it; empty where its role is not known, or where it is a bias that the configuration
// does not have.
std::string TensorMapper::name_of(std::string_view theirs) const {
  const std::string_view name = without_prefix(theirs);
  if (name == "lm_head.weight") return "output.weight";
  for (const TensorName& role : config_.architecture.model_tensors) {
    if (name == role.theirs) return std::string(role.ours);
  }
  const auto parsed = parse_layer_name(name, "layers.");
  if (!parsed) return {};
  std::string_view stem = parsed->rest;
  const size_t dot = stem.rfind('.');
  const std::string_view ending = dot == std::string_view::npos ? "" : stem.substr(dot);
  stem = stem.substr(0, dot);
  for (const TensorName& role : roles_of(parsed->layer)) {
    if (is_whole(role) && role.theirs == parsed->rest)
      return fmt::format("blk.{}.{}", parsed->layer, role.ours);
    const auto expert = expert_in(stem, role.theirs, config_.experts);
    if (expert && ending == ".weight") {
      return fmt::format("blk.{}.{}.weight", parsed->layer, numbered(role.ours, *expert));
    }
    if (role.theirs != stem) continue;
    if (ending == ".weight" || (ending == ".bias" && has_bias(role.ours)))
      return fmt::format("blk.{}.{}{}", parsed->layer, role.ours, ending);
  }
  return {};
}

Status TensorMapper::add(const WeightsFile& file, const SafetensorsTensor& tensor) {
  if (is_of_images(tensor.name)) {
    image_tensors_ += 1;
    image_bytes_ += tensor.tensor.data.size();
    return {};
  }
  if (is_harmless(tensor.name)) return {};
  if (tensor.name.starts_with("mtp.") && !config_.recurrent_layers.empty()) {
    ++further_tensors_;
    return {};
  }
  const auto in_layer = parse_layer_name(without_prefix(tensor.name), "layers.");
  if (config_.architecture.stacked_experts && in_layer && StackedExperts::has(in_layer->rest)) {
    return stacked_.add(file.path, in_layer->layer, in_layer->rest, tensor.tensor);
  }
  const auto layers = static_cast<uint64_t>(config_.layers);
  if (in_layer && in_layer->layer >= layers &&
      in_layer->layer < layers + static_cast<uint64_t>(config_.further_layers)) {
    ++further_tensors_;
    return {};
  }
  const std::string name = name_of(tensor.name);
  if (name.empty() && config_.quantized && is_bias_of_zeros(tensor)) return {};
  if (name.empty()) {
    return error(ErrorCode::kUnsupported,
                 "{}: the tensor {} is none that a {} of this configuration has, and may change what the "
                 "model computes; use another model",
                 file.path, gguf_quoted(tensor.name), config_.architecture.model_type);
  }
  if (name == "output.weight") {
    if (output_ != nullptr) return there_twice(file, tensor);
    output_file_ = &file;
    output_ = &tensor;
    return {};
  }
  if (config_.kv_rank > 0 && name.ends_with(".attn_k_b.weight")) return add_kv_b(file, tensor, name);
  return add_as(file, tensor, name);
}

// One matrix of a folder becomes two of a GGUF file.
Status TensorMapper::add_kv_b(const WeightsFile& file, const SafetensorsTensor& tensor,
                              const std::string& name) {
  const std::array<uint64_t, 4> wanted = {
      static_cast<uint64_t>(config_.kv_rank),
      static_cast<uint64_t>(config_.heads * (config_.nope_dim + config_.value_dim)), 1, 1};
  if (tensor.tensor.shape != wanted) {
    return error(ErrorCode::kCorrupt, "{}: the tensor {} is {} x {} where config.json asks for {} x {}",
                 file.path, gguf_quoted(tensor.name), tensor.tensor.shape[1], tensor.tensor.shape[0],
                 wanted[1], wanted[0]);
  }
  if (tensor.tensor.rows != nullptr) {
    return error(ErrorCode::kUnsupported,
                 "{}: {} is quantised, which is not supported for latent attention; use the model in BF16",
                 file.path, gguf_quoted(tensor.name));
  }
  LatentParts parts = split_kv_b(tensor.tensor, config_.heads, config_.nope_dim, config_.value_dim);
  std::string values = name;
  values.replace(values.rfind("attn_k_b"), 8, "attn_v_b");
  const bool is_new = config_.out.add_rows(name, parts.k_b, std::move(parts.k_rows)) &&
                      config_.out.add_rows(values, parts.v_b, std::move(parts.v_rows));
  return is_new ? Status() : there_twice(file, tensor);
}

// A GGUF file has what softplus is multiplied by, under a name without an ending.
constexpr std::string_view kRates = ".ssm_a.weight";
std::string name_of_rates(const std::string& name) {
  return name.substr(0, name.rfind('.'));
}
std::vector<float> rates_of(std::vector<float> logs) {
  for (float& value : logs) value = -static_cast<float>(ops::det_exp(static_cast<double>(value)));
  return logs;
}

// What belongs to value heads, in the order of GGUF files.
Status TensorMapper::add_by_turns(const WeightsFile& file, const SafetensorsTensor& tensor,
                                  const std::string& name, const HeadOrder& order) {
  const ValueHeads& heads = config_.value_heads;
  GgufTensor named = tensor.tensor;
  named.name = tensor.name;
  const bool is_convolution = name.ends_with(".ssm_conv1d.weight");
  const bool is_matrix = name.ends_with(".ssm_beta.weight") || name.ends_with(".ssm_alpha.weight");
  if (is_matrix || (order.of > 1 && !is_convolution)) {
    KV_ASSIGN_OR_RETURN(auto rows, rows_by_turns(file.path, named, order, heads));
    return config_.out.add_rows(name, tensor.tensor, std::move(rows)) ? Status() : there_twice(file, tensor);
  }
  const int64_t count = order.before + heads.heads * order.of;
  std::vector<float> values;
  if (is_convolution) {  // [channels][1][taps]
    if (named.shape[1] == 1) named.shape = {named.shape[0], named.shape[2], 1, 1};
    const auto taps = static_cast<int64_t>(named.shape[0]);
    KV_RETURN_IF_ERROR(read_small_vectors(file.path, named, count, taps, values));
    const bool is_new = config_.out.add_vectors(name, by_turns(values, taps, order, heads), named.shape[0]);
    return is_new ? Status() : there_twice(file, tensor);
  }
  KV_RETURN_IF_ERROR(read_small_vector(file.path, named, count, values));
  const bool are_logs = name.ends_with(kRates);
  if (are_logs) values = rates_of(std::move(values));
  return config_.out.add_vector(are_logs ? name_of_rates(name) : name, by_turns(values, 1, order, heads))
             ? Status()
             : there_twice(file, tensor);
}

Status TensorMapper::add_as(const WeightsFile& file, const SafetensorsTensor& tensor,
                            const std::string& name) {
  bool is_new = false;
  if (tensor.tensor.rows != nullptr && is_looked_up(name)) {
    return error(ErrorCode::kUnsupported,
                 "{}: the embedding ({}) is quantised, which is not supported; use the model in BF16",
                 file.path, gguf_quoted(tensor.name));
  }
  if (const auto layer = parse_layer_name(name); layer && config_.value_heads.heads > 0) {
    const HeadOrder order = head_order(layer->rest, config_.value_heads);
    if (order.of > 0) return add_by_turns(file, tensor, name, order);
  }
  if (name.ends_with(kRates)) {
    std::vector<float> values;
    GgufTensor logs = tensor.tensor;
    logs.name = tensor.name;
    KV_RETURN_IF_ERROR(read_small_vector(file.path, logs, static_cast<int64_t>(logs.values()), values));
    is_new = config_.out.add_vector(name_of_rates(name), rates_of(values));
  } else if (name.ends_with(".ssm_conv1d.weight") && tensor.tensor.shape[1] == 1) {
    GgufTensor taps = tensor.tensor;  // [channels][1][taps]
    taps.shape = {taps.shape[0], taps.shape[2], 1, 1};
    taps.dimensions = 2;
    is_new = config_.out.add_tensor(name, taps);
  } else if (is_norm_less_one(name)) {
    std::vector<float> values;
    GgufTensor norm = tensor.tensor;
    norm.name = tensor.name;
    KV_RETURN_IF_ERROR(read_small_vector(file.path, norm, static_cast<int64_t>(norm.values()), values));
    for (float& value : values) value += 1;
    is_new = config_.out.add_vector(name, values);
  } else {
    is_new = config_.out.add_tensor(name, tensor.tensor);
  }
  return is_new ? Status() : there_twice(file, tensor);
}

Status TensorMapper::there_twice(const WeightsFile& file, const SafetensorsTensor& tensor) const {
  return error(ErrorCode::kCorrupt,
               "{}: the tensor {} is there twice, perhaps in another file; fetch the files again", file.path,
               gguf_quoted(tensor.name));
}

Status TensorMapper::require_all() const {
  const auto has = [this](std::string_view ours) { return config_.out.find_tensor(ours) != nullptr; };
  for (const TensorName& role : config_.architecture.model_tensors) {
    if (!has(role.ours)) return missing(role.theirs);
  }
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    for (const TensorName& role : roles_of(static_cast<uint64_t>(layer))) {
      KV_RETURN_IF_ERROR(require(layer, role));
    }
  }
  return {};
}

Status TensorMapper::require(int64_t layer, const TensorName& role) const {
  const auto has = [this](const std::string& ours) { return config_.out.find_tensor(ours) != nullptr; };
  const bool is_key = static_cast<size_t>(layer) < config_.keys_as_values.size() &&
                      config_.keys_as_values[static_cast<size_t>(layer)];
  if (is_key && role.ours == "attn_v") return {};
  const bool is_numbered = role.ours.find('*') != std::string_view::npos;
  for (int64_t i = 0; i < (is_numbered ? config_.experts : 1); ++i) {
    const std::string ours = is_numbered ? numbered(role.ours, i) : std::string(role.ours);
    const std::string theirs = is_numbered ? numbered(role.theirs, i) : std::string(role.theirs);
    const std::string_view ending = is_whole(role) ? "" : ".weight";
    const std::string full = ours == "ssm_a.weight" ? "ssm_a" : ours + std::string(ending);
    if (!has(fmt::format("blk.{}.{}", layer, full))) {
      return missing(fmt::format("layers.{}.{}{}", layer, theirs, ending));
    }
    if (has_bias(ours) && !has(fmt::format("blk.{}.{}.bias", layer, ours))) {
      return missing(fmt::format("layers.{}.{}.bias", layer, theirs));
    }
  }
  return {};
}

// An output matrix that is there and is not the embedding is the model's own, whatever the configuration
// leaves out; against what it says is refused, since readers differ about it.
Status TensorMapper::settle_output() {
  const bool tied = tied_.value_or(config_.architecture.defaults.tie_word_embeddings);
  if (output_ == nullptr) return tied ? Status() : missing("lm_head.weight");
  const std::span<const std::byte> data = output_->tensor.data;
  const std::span<const std::byte> embedding = config_.out.find_tensor("token_embd.weight")->data;
  const bool same =
      tied && data.size() == embedding.size() && std::memcmp(data.data(), embedding.data(), data.size()) == 0;
  if (same) return {};
  if (tied_ && *tied_) {
    return error(
        ErrorCode::kUnsupported,
        "{}: 'tie_word_embeddings' is true, and '{}' is not the embedding; set it to false, or remove the "
        "tensor",
        config_.fields.origin(), output_->name);
  }
  return add_as(*output_file_, *output_, "output.weight");
}

}  // namespace

Status add_folder_tensors(const std::vector<WeightsFile>& files, std::optional<bool> tied,
                          FolderConfig& config, std::vector<std::string>& warnings) {
  if (config.architecture.joined_experts) {
    const auto is_joined = [](const SafetensorsTensor& t) {
      return t.name.ends_with(kJoinedExperts[0].theirs) && !t.name.starts_with("mtp.");
    };
    config.joined_experts = std::any_of(files.begin(), files.end(), [&](const WeightsFile& file) {
      return std::any_of(file.content.tensors.begin(), file.content.tensors.end(), is_joined);
    });
  }
  return TensorMapper(config, tied, warnings).run(files);
}

}  // namespace kvasir
