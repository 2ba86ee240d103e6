// Mixtures of experts whose attention is that of a model without them: Qwen 2 and 3, OLMoE (the norms of
// OLMo 2's Q and K, before attention and feed-forward those of Llama), and dots.llm1, whose experts are
// chosen as in DeepSeek-V3. Qwen's hybrids, of which Qwen 3.5 is there without experts, too. gpt-oss, which
// has sinks, biases everywhere, windows in every other layer, and a norm before the feed-forward under
// another name. Mixtral and Granite are in llama.cc.
#include "model/architectures/spec_reader.h"

namespace kvasir {
namespace {

// Old files do not say how wide an expert is: those that a row takes are together as wide as a layer without
// experts would be.
Status read_qwen_experts(SpecReader& reader, const ExpertSpec& like) {
  KV_RETURN_IF_ERROR(reader.read_experts(like));
  ModelSpec& spec = reader.spec();
  if (reader.has("expert_feed_forward_length")) return {};
  spec.experts.ffn_dim = (spec.ffn_dim + spec.experts.used - 1) / spec.experts.used;
  return {};
}

// Three layers of four are recurrent. Attention has a gate, and RoPE turns a part of a head.
Status read_qwen_hybrid(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  spec.split_pairs = true;
  spec.qk_norm = QkNorm::kHead;
  spec.output_gate = true;
  spec.ffn_norm_name = "post_attention_norm";
  KV_RETURN_IF_ERROR(reader.read_further_layers());
  return reader.read_recurrence();
}

Status read_hybrid_experts(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  KV_RETURN_IF_ERROR(read_qwen_experts(reader, {.renormalise = true}));
  if (spec.experts.shared_ffn_dim == 0) spec.experts.shared_ffn_dim = spec.ffn_dim;
  return {};
}

}  // namespace

Status describe_qwen2moe(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  spec.split_pairs = true;
  KV_RETURN_IF_ERROR(read_qwen_experts(reader, {}));
  if (spec.experts.shared_ffn_dim == 0) spec.experts.shared_ffn_dim = spec.ffn_dim;
  return {};
}

Status describe_qwen3moe(SpecReader& reader) {
  reader.spec().split_pairs = true;
  reader.spec().qk_norm = QkNorm::kHead;
  return read_qwen_experts(reader, {.renormalise = true});
}

Status describe_qwen3next(SpecReader& reader) {
  KV_RETURN_IF_ERROR(read_qwen_hybrid(reader));
  return read_hybrid_experts(reader);
}

// Text is at the same place in all of M-RoPE's sections, so that these are one RoPE.
Status describe_qwen35(SpecReader& reader) {
  KV_RETURN_IF_ERROR(read_qwen_hybrid(reader));
  reader.spec().recurrent.by_turns = true;
  return reader.refuse_counts({"expert_count"});
}

Status describe_qwen35moe(SpecReader& reader) {
  KV_RETURN_IF_ERROR(read_qwen_hybrid(reader));
  reader.spec().recurrent.by_turns = true;
  return read_hybrid_experts(reader);
}

Status describe_olmoe(SpecReader& reader) {
  reader.spec().split_pairs = true;
  reader.spec().qk_norm = QkNorm::kRow;
  return reader.read_experts({});
}

Status describe_dots1(SpecReader& reader) {
  reader.spec().split_pairs = true;
  reader.spec().qk_norm = QkNorm::kHead;
  return reader.read_experts({.gating = Gating::kSigmoid});
}

// Its YaRN does not round to whole pairs.
Status describe_gpt_oss(SpecReader& reader) {
  ModelSpec& spec = reader.spec();
  spec.split_pairs = true;
  spec.sinks = true;
  spec.activation = Activation::kClampedSwiglu;
  spec.ffn_norm_name = "post_attention_norm";
  KV_RETURN_IF_ERROR(reader.read_rope(YarnBorders::kExact));
  KV_RETURN_IF_ERROR(
      reader.read_window("attention.sliding_window", [](int32_t layer) { return layer % 2 == 0; }));
  return reader.read_experts({.renormalise = true});
}

}  // namespace kvasir
