// Cohere 2 (Command R7B, Command A): one LayerNorm without a bias before attention and feed-forward, which
// both take what it gives. Three layers in four have a window and RoPE, which turns neighbouring values; the
// others have neither.
#include "model/architectures/spec_reader.h"

namespace kvasir {

Status describe_cohere2(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  spec.parallel = true;
  KV_RETURN_IF_ERROR(reader.read_positive("logit_scale", 1e6F, spec.logit_scale));
  KV_ASSIGN_OR_RETURN(const std::vector<bool> windowed, reader.read_windows(4));
  for (size_t l = 0; l < windowed.size(); ++l) spec.layer_specs[l].rope = windowed[l] ? 0 : -1;
  return {};
}

}  // namespace kvasir
