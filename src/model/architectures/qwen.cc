// Qwen 2, 2.5 (with biases of Q, K and V) and Qwen 3 (without, but with norms of Q and K); OLMo 2, which has
// no norms before attention and feed-forward, but behind them.
#include "model/architectures/spec_reader.h"

namespace kvasir {

// The window of its metadata is not used: its configuration has it switched off.
Status describe_qwen2(SpecReader& reader) {
  reader.spec().split_pairs = true;
  return {};
}

Status describe_qwen3(SpecReader& reader) {
  reader.spec().split_pairs = true;
  reader.spec().qk_norm = QkNorm::kHead;
  return {};
}

Status describe_olmo2(SpecReader& reader) {
  reader.spec().split_pairs = true;
  reader.spec().qk_norm = QkNorm::kRow;
  return reader.refuse_counts({"attention.sliding_window"});
}

// The tensors of Q, K and V are one, and so are gate and up (tensor_table.cc takes them apart).
Status describe_phi3(SpecReader& reader) {
  reader.spec().split_pairs = true;
  return reader.read_window("attention.sliding_window", [](int32_t) { return true; });
}

}  // namespace kvasir
