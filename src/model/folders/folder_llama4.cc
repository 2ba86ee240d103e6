#include "model/folders/folder_llama4.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace kvasir {
namespace {

// Queries of layers without RoPE grow, where that is switched on; published files switch it on by a number.
void write_llama4_temperature(FolderConfig& c) {
  const nlohmann::json* tuning = c.fields.find("attn_temperature_tuning");
  const bool grows = tuning == nullptr || (tuning->is_number() ? *tuning != 0 : *tuning == true);
  const double scale = c.fields.number("attn_scale").value_or(0.1);
  const int64_t interval = c.fields.integer("floor_scale", 1, 1 << 24).value_or(8192);
  c.out.set_f32(c.key("attention.temperature_scale"), grows ? static_cast<float>(scale) : 0);
  c.out.set_u32(c.key("attention.temperature_length"), static_cast<uint32_t>(interval));
}

// turned: layers with RoPE, which attend within chunks where "layer_types" does not say which do.
void write_llama4_chunks(FolderConfig& c, const std::vector<bool>& turned) {
  const int64_t chunk = c.fields.is_null("attention_chunk_size")
                            ? 0
                            : c.fields.integer("attention_chunk_size", 1, INT32_MAX).value_or(8192);
  std::vector<int32_t> windows;
  for (const bool has : c.layers_of_type("chunked_attention", turned))
    windows.push_back(has ? static_cast<int32_t>(chunk) : 0);
  c.out.set_i32s("kvasir.layer_windows", windows);
}

}  // namespace

void describe_llama4(FolderConfig& c) {
  if (!c.fields.has("intermediate_size_mlp")) {
    c.fields.unsupported("intermediate_size_mlp", "where a whole number is needed; fetch the file again");
  }
  c.read_sizes();
  c.read_rms_epsilon();
  c.require_activation("hidden_act", "silu");
  c.fields.refuse("mlp_bias");
  c.read_attention_bias();
  c.read_rope();
  write_llama4_chunks(c, c.read_turned_layers());
  write_llama4_temperature(c);
  c.out.set_bool("kvasir.unit_norm", c.fields.flag("use_qk_norm", true));
  c.read_experts("num_local_experts", "intermediate_size");
  const int64_t step = c.fields.integer("interleave_moe_layer_step", 1, 1024).value_or(1);
  c.out.set_u32(c.key("interleave_moe_layer_step"), static_cast<uint32_t>(step));
  const auto layers = c.fields.integers("moe_layers");
  c.write_expert_layers([&](int64_t layer) {
    return layers ? std::find(layers->begin(), layers->end(), layer) != layers->end()
                  : (layer + 1) % step == 0;
  });
  c.fields.ignore({"for_llm_compressor"});
}

}  // namespace kvasir
