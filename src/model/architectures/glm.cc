// GLM-4 (0414): norms before and behind attention and feed-forward; RoPE turns neighbouring values of a part
// of each head.
#include "model/architectures/spec_reader.h"

namespace kvasir {

// Files with sections of RoPE are of models that read images, too, and have another order of rows.
Status describe_glm4(SpecReader& reader) {
  if (reader.has("rope.dimension_sections")) {
    return reader.unsupported("'glm4.rope.dimension_sections' is not supported");
  }
  return reader.refuse_counts({"nextn_predict_layers"});
}

}  // namespace kvasir
