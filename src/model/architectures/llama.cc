// Llama and what shares its shape: Llama 1 to 3, Mistral, Yi, TinyLlama, SmolLM 2, the R1 distills of Llama;
// SmolLM 3 and Granite, which change constants. RoPE turns neighbouring values, Q and K are ordered for that.
#include "model/architectures/architecture.h"

namespace kvasir {

// Mistral 7B v0.1 has a window in every layer.
Status describe_llama(SpecReader& reader) {
  KV_RETURN_IF_ERROR(reader.refuse_counts({"expert_count", "expert_used_count"}));
  KV_RETURN_IF_ERROR(
      reader.refuse_factors({"logit_scale", "embedding_scale", "residual_scale", "attention.scale",
                             "attn_logit_softcapping", "final_logit_softcapping"}));
  return reader.read_window("attention.sliding_window", [](int32_t) { return true; });
}

// Every fourth layer has no RoPE.
Status describe_smollm3(SpecReader& reader) {
  for (int32_t l = 3; l < reader.spec().layers; l += 4)
    reader.spec().layer_specs[static_cast<size_t>(l)].rope = -1;
  return {};
}

Status describe_granite(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  KV_RETURN_IF_ERROR(reader.refuse_counts({"expert_count"}));
  KV_RETURN_IF_ERROR(reader.read_optional("attention.scale", 1e3F, spec.query_scale));
  KV_RETURN_IF_ERROR(reader.read_optional("embedding_scale", 1e6F, spec.embedding_scale));
  KV_RETURN_IF_ERROR(reader.read_optional("residual_scale", 1e6F, spec.residual_scale));
  float divisor = 1;  // logits are divided by it
  KV_RETURN_IF_ERROR(reader.read_optional("logit_scale", 1e6F, divisor));
  spec.logit_scale = 1 / divisor;
  return {};
}

}  // namespace kvasir
