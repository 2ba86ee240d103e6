#!/usr/bin/env python3
"""Writes a gpt-oss of random weights as a GGUF file, with the names and keys of llama.cpp's converter, to be compared with it.

    python3 make_gpt_oss.py OUT.gguf [--experts f32|mxfp4] [--rope plain|yarn|truncated]
    python3 compare_llama_cpp.py OUT.gguf --write-logits build/release/tests/golden/write_logits --tokens 420

Needs numpy and gguf. With `truncated` a key of Kvasir says that YaRN rounds to whole pairs, as llama.cpp does and the
published model does not.
"""

import argparse
import sys
from pathlib import Path

import gguf
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))
from make_model import make_vocabulary  # noqa: E402

LAYERS, DIM, HEADS, KV_HEADS, HEAD_DIM, FFN, EXPERTS, USED, VOCAB = 4, 256, 8, 2, 32, 192, 8, 3, 512


def main():
    parser = argparse.ArgumentParser(description="Write a gpt-oss of random weights.")
    parser.add_argument("output")
    parser.add_argument("--experts", choices=("f32", "mxfp4"), default="f32")
    parser.add_argument("--rope", choices=("plain", "yarn", "truncated"), default="plain")
    options = parser.parse_args()
    random = np.random.default_rng(3)
    out = gguf.GGUFWriter(options.output, "gpt-oss")
    for add, value in (
        (out.add_name, "random gpt-oss"), (out.add_block_count, LAYERS), (out.add_context_length, 4096),
        (out.add_embedding_length, DIM), (out.add_feed_forward_length, FFN), (out.add_expert_feed_forward_length, FFN),
        (out.add_expert_count, EXPERTS), (out.add_expert_used_count, USED), (out.add_head_count, HEADS),
        (out.add_head_count_kv, KV_HEADS), (out.add_key_length, HEAD_DIM), (out.add_value_length, HEAD_DIM),
        (out.add_rope_freq_base, 150000.0), (out.add_layer_norm_rms_eps, 1e-5), (out.add_sliding_window, 128),
    ):
        add(value)
    if options.rope != "plain":
        out.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        out.add_rope_scaling_factor(32.0)
        out.add_rope_scaling_orig_ctx_len(128)
    if options.rope == "truncated":
        out.add_bool("kvasir.yarn_truncate", True)
    tokens, types, merges = make_vocabulary(VOCAB)
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-4o")
    out.add_token_list(tokens)
    out.add_token_types(types)
    out.add_token_merges(merges)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_add_bos_token(False)

    def add(name, shape, deviation, mean=0.0):
        out.add_tensor(name, (mean + deviation * random.standard_normal(shape)).astype(np.float32))

    def matrix(name, rows, columns, scale=1.0):
        add(name, (rows, columns), scale / columns**0.5)

    def experts(name, rows, columns, scale):
        values = (scale / columns**0.5 * random.standard_normal((EXPERTS, rows, columns))).astype(np.float32)
        kind = gguf.GGMLQuantizationType[options.experts.upper()]
        out.add_tensor(name + ".weight", gguf.quantize(values, kind), raw_dtype=kind)
        add(name + ".bias", (EXPERTS, rows), 0.3)

    matrix("token_embd.weight", VOCAB, DIM, 0.5)
    matrix("output.weight", VOCAB, DIM, 0.5)
    add("output_norm.weight", DIM, 0.4, 4.0)
    for layer in range(LAYERS):
        part = f"blk.{layer}."
        add(part + "attn_norm.weight", DIM, 0.1, 1.0)
        add(part + "post_attention_norm.weight", DIM, 0.1, 1.0)
        for role, rows, scale in (("q", HEADS * HEAD_DIM, 1.5), ("k", KV_HEADS * HEAD_DIM, 1.5), ("v", KV_HEADS * HEAD_DIM, 1.0)):
            matrix(part + f"attn_{role}.weight", rows, DIM, scale)
            add(part + f"attn_{role}.bias", rows, 0.3)
        matrix(part + "attn_output.weight", DIM, HEADS * HEAD_DIM)
        add(part + "attn_output.bias", DIM, 0.3)
        add(part + "attn_sinks.weight", HEADS, 1.0, 2.0)
        matrix(part + "ffn_gate_inp.weight", EXPERTS, DIM, 2.0)
        add(part + "ffn_gate_inp.bias", EXPERTS, 0.3)
        experts(part + "ffn_gate_exps", FFN, DIM, 1.5)
        experts(part + "ffn_up_exps", FFN, DIM, 1.5)
        experts(part + "ffn_down_exps", DIM, FFN, 0.5)
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    main()
