// DeepSeek-V2 and V3: latent attention, whose RoPE turns neighbouring values of its own part of a head; dense
// layers first, then mixtures of experts with a shared one. V2 chooses by a softmax and V3 by sigmoids with a
// bias; old files of V2 do not say which.
#include <cmath>

#include "model/architectures/spec_reader.h"

namespace kvasir {
namespace {

// What YaRN adds to the length of queries and of keys, each once: 1 + multiplier · ln(factor). Cosines and
// sines have no factor of their own then.
Status read_query_scale(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  KV_RETURN_IF_ERROR(reader.refuse_factors({"rope.scaling.attn_factor"}));
  float multiplier = 0, factor = 1;
  KV_RETURN_IF_ERROR(reader.read_optional("rope.scaling.yarn_log_multiplier", 1e3F, multiplier));
  if (multiplier == 0) return {};
  KV_RETURN_IF_ERROR(reader.read_optional("rope.scaling.factor", 1e6F, factor));
  const float longer = factor > 1 ? 1 + multiplier * std::log(factor) : 1;
  spec.query_scale *= longer * longer;
  for (Rope& rope : spec.ropes) rope.attention_factor = 1;
  return {};
}

}  // namespace

Status describe_deepseek2(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  if (!spec.is_latent())
    return reader.unsupported("attention without 'deepseek2.attention.kv_lora_rank' is not supported");
  KV_RETURN_IF_ERROR(read_query_scale(reader));
  return reader.read_experts({}, false);
}

}  // namespace kvasir
