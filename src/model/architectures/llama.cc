// Llama and what shares its shape: Llama 1 to 3, Mistral, Yi, TinyLlama, SmolLM 2, the R1 distills of Llama;
// Mixtral, with experts; Ministral 3, SmolLM 3 and Granite, which change constants. RoPE turns neighbouring
// values, and GGUF files order Q and K for that. OPT, which is older and has other parts.
#include "model/architectures/spec_reader.h"

namespace kvasir {

// Mistral 7B v0.1 has a window in every layer.
Status describe_llama(SpecReader& reader) {
  KV_RETURN_IF_ERROR(reader.read_experts({.renormalise = true}, false));
  KV_RETURN_IF_ERROR(
      reader.refuse_factors({"logit_scale", "embedding_scale", "residual_scale", "attention.scale",
                             "attn_logit_softcapping", "final_logit_softcapping"}));
  return reader.read_window("attention.sliding_window", [](int32_t) { return true; });
}

// Queries grow with the position, past the contexts of the time before RoPE was scaled.
Status describe_mistral3(SpecReader& reader) {
  KV_RETURN_IF_ERROR(reader.refuse_counts({"expert_count"}));
  KV_RETURN_IF_ERROR(describe_llama(reader));
  ModelSpec& spec = reader.spec();
  KV_RETURN_IF_ERROR(reader.read_optional("attention.temperature_scale", 1e3F, spec.temperature_scale));
  KV_RETURN_IF_ERROR(reader.read_count("rope.scaling.original_context_length", 1U << 24,
                                       spec.temperature_interval, spec.context_length));
  // 1 says that YaRN's factor of cosines and sines is divided by itself; the file's own stays.
  float log_multiplier = 0;
  KV_RETURN_IF_ERROR(reader.read_optional("rope.scaling.yarn_log_multiplier", 1e3F, log_multiplier));
  if (log_multiplier == 1) {
    spec.ropes[0].attention_factor = 1;
    KV_RETURN_IF_ERROR(
        reader.read_optional("rope.scaling.attn_factor", 1e3F, spec.ropes[0].attention_factor));
  }
  if (log_multiplier != 0 && log_multiplier != 1) {
    return reader.unsupported("'mistral3.rope.scaling.yarn_log_multiplier' is {}, which is not supported",
                              log_multiplier);
  }
  return {};
}

// Learned positions instead of RoPE; the first two rows of their table are not used.
Status describe_opt(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  spec.activation = Activation::kRelu;
  spec.gated = false;
  spec.learned_positions = true;
  spec.position_offset = 2;
  spec.ropes.clear();
  for (LayerSpec& layer : spec.layer_specs) layer.rope = -1;
  return {};
}

// Every fourth layer has no RoPE.
Status describe_smollm3(SpecReader& reader) {
  for (int32_t l = 3; l < reader.spec().layers; l += 4)
    reader.spec().layer_specs[static_cast<size_t>(l)].rope = -1;
  return {};
}

static Status read_factors(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  KV_RETURN_IF_ERROR(reader.read_optional("attention.scale", 1e3F, spec.query_scale));
  KV_RETURN_IF_ERROR(reader.read_optional("embedding_scale", 1e6F, spec.embedding_scale));
  KV_RETURN_IF_ERROR(reader.read_optional("residual_scale", 1e6F, spec.residual_scale));
  float divisor = 1;  // logits are divided by it
  KV_RETURN_IF_ERROR(reader.read_optional("logit_scale", 1e6F, divisor));
  spec.logit_scale = 1 / divisor;
  return {};
}

Status describe_granite(SpecReader& reader) {
  KV_RETURN_IF_ERROR(reader.refuse_counts({"expert_count"}));
  return read_factors(reader);
}

Status describe_granitemoe(SpecReader& reader) {
  KV_RETURN_IF_ERROR(read_factors(reader));
  return reader.read_experts({.renormalise = true});
}

}  // namespace kvasir
