#include "model/folders/folder_deepseek.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace kvasir {
namespace {

// GGUF's numbers.
constexpr int64_t kSoftmax = 1, kSigmoid = 2;

// What configurations leave out.
struct ExpertDefaults {
  int64_t gating;
  int64_t shared = 0;
  int64_t dense = 0;
  double scale = 1;
  int64_t groups = 1;
  int64_t groups_used = 1;
};
constexpr ExpertDefaults kV2 = {.gating = kSoftmax, .shared = 2};
constexpr ExpertDefaults kV3 = {
    .gating = kSigmoid, .shared = 1, .dense = 3, .scale = 2.5, .groups = 8, .groups_used = 4};
constexpr ExpertDefaults kDots1 = {.gating = kSigmoid};

// Counts, norm and factor of experts as DeepSeek's configurations say them, and which layers have them.
void read_deepseek_experts(FolderConfig& c, const ExpertDefaults& otherwise) {
  c.read_experts("n_routed_experts", "moe_intermediate_size");
  const auto write = [&c](std::string_view name, int64_t value) {
    c.out.set_u32(c.key(name), static_cast<uint32_t>(value));
  };
  write("expert_gating_func", otherwise.gating);
  const int64_t shared = c.fields.integer("n_shared_experts", 0, INT32_MAX).value_or(otherwise.shared);
  c.shared_expert = shared > 0;
  write("expert_shared_count", shared);
  const int64_t dense = c.fields.integer("first_k_dense_replace", 0, INT32_MAX).value_or(otherwise.dense);
  write("leading_dense_block_count", dense);
  c.write_expert_layers([dense](int64_t layer) { return layer >= dense; });
  c.out.set_f32(c.key("expert_weights_scale"),
                static_cast<float>(c.fields.number("routed_scaling_factor").value_or(otherwise.scale)));
  if (c.fields.integer("moe_layer_freq", 1, INT32_MAX).value_or(1) != 1) {
    c.fields.unsupported("moe_layer_freq", "where only 1 is supported; use another model");
  }
  c.fields.ignore({"ep_size"});
}

void write_groups(FolderConfig& c, const ExpertDefaults& otherwise) {
  const int64_t groups = c.fields.integer("n_group", 1, INT32_MAX).value_or(otherwise.groups),
                used = c.fields.integer("topk_group", 1, INT32_MAX).value_or(otherwise.groups_used);
  c.out.set_u32(c.key("expert_group_count"), static_cast<uint32_t>(groups));
  c.out.set_u32(c.key("expert_group_used_count"), static_cast<uint32_t>(used));
}

// Sizes, RMSNorm, SiLU.
void read_deepseek_common(FolderConfig& c) {
  c.read_sizes();
  c.read_rms_epsilon();
  c.require_activation("hidden_act", "silu");
  c.fields.refuse("mlp_bias");
}

// Latent attention. Norms of the ranks have transformers' own epsilon, which is that of all published files.
void describe_deepseek(FolderConfig& c) {
  read_deepseek_common(c);
  c.read_latent_sizes();
  if (std::fabs(c.fields.number("rms_norm_eps").value_or(1e-6) - 1e-6) > 1e-12) {
    c.fields.unsupported("rms_norm_eps", "where only 1e-6 is supported; use another model");
  }
  c.fields.refuse("attention_bias");
  c.read_rope();
}

}  // namespace

void describe_deepseek_v2(FolderConfig& c) {
  describe_deepseek(c);
  read_deepseek_experts(c, kV2);
  const std::string method = c.fields.text("topk_method").value_or("greedy");
  if (method == "group_limited_greedy") {
    write_groups(c, kV2);
  } else if (method == "greedy") {
    c.fields.ignore({"n_group", "topk_group"});
  } else {
    c.fields.unsupported("topk_method", "where only greedy and group_limited_greedy are supported");
  }
  // transformers does not divide weights by their sum, whatever is said here; no published file asks for it.
  c.fields.refuse("norm_topk_prob");
  if (c.fields.text("scoring_func").value_or("softmax") != "softmax") {
    c.fields.unsupported("scoring_func", "where only 'softmax' is supported; use another model");
  }
}

void describe_deepseek_v3(FolderConfig& c) {
  describe_deepseek(c);
  read_deepseek_experts(c, kV3);
  write_groups(c, kV3);
  c.out.set_bool(c.key("expert_weights_norm"), c.fields.flag("norm_topk_prob", true));
  if (!c.fields.flag("rope_interleave", true)) {
    c.fields.unsupported("rope_interleave", "where only true is supported; use another model");
  }
  for (const auto& [field, wanted] : {std::pair{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}}) {
    if (c.fields.text(field).value_or(wanted) != wanted) {
      c.fields.unsupported(field, fmt::format("where only '{}' is supported; use another model", wanted));
    }
  }
  // Layers behind the last one, which guess further tokens.
  c.further_layers = c.fields.integer("num_nextn_predict_layers", 0, 1024).value_or(0);
}

void describe_dots1(FolderConfig& c) {
  read_deepseek_common(c);
  c.read_rope();
  c.read_attention_bias();
  const int64_t first = c.fields.integer("max_window_layers", 0, INT32_MAX).value_or(62);
  std::vector<bool> windowed;
  for (int64_t l = 0; l < c.layers; ++l) windowed.push_back(l >= first);
  c.write_windows(c.sliding_window(), windowed);
  read_deepseek_experts(c, kDots1);
  write_groups(c, kDots1);
  c.out.set_bool(c.key("expert_weights_norm"), c.fields.flag("norm_topk_prob", false));
  // The published configuration has the name of the method as that of the function; neither is looked at.
  for (const auto& [field, wanted] : {std::pair{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}}) {
    const std::string found = c.fields.text(field).value_or(wanted);
    if (found != wanted && found != "noaux_tc") {
      c.fields.unsupported(field, fmt::format("where only '{}' is supported; use another model", wanted));
    }
  }
}

}  // namespace kvasir
