#!/usr/bin/env python3
"""Writes tests/golden/architecture_*.txt: what Hugging Face's transformers computes for a tiny model of each architecture.

    python3 make_architectures.py [--output FOLDER] [--keep FOLDER] [NAME...]

Needs numpy, torch and transformers; runs on the CPU. Each model is written as a folder (config.json, model.safetensors),
which AutoModelForCausalLM opens with eager attention. It computes twice: in float32, as it is, and with float64 in every
place where it says float32, so that the golden is free of its rounding. Both must agree. --keep leaves the folders there.

Mixtures of experts are written under the names of published files, which transformers 5 joins as it loads them. Their
tokens are such that no choice of an expert or a group is closer than a margin, so that no rounding changes one.

A golden has the config, the tensors, the tokens, and the logits of some token ids at some positions: around the
boundaries of blocks (64 positions) and attention leaves (256), and of windows. Positions from DECODED on come from runs
of one token with a cache, as text is generated.

    config JSON
    tensor NAME MEAN DEVIATION SIZE...     a '*' stands for the index of each layer; see values(). What only some
                                           layers have, or in other sizes, has a line for each of them
    weights HASH                           64-bit FNV-1a over the tensors, sorted by name
    tokens ID...
    ids ID...                              the token ids whose logits follow
    position P LOGIT...
"""

import argparse
import contextlib
import json
import re
import struct
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).resolve().parent
MASK = 0xFFFFFFFFFFFFFFFF
TOKENS, DECODED = 420, 380
POSITIONS = [0, 1, 7, 40, 63, 64, 95, 96, 97, 130, 191, 192, 255, 256, 257, 258, 300, 352, 353, 379, 380, 400, 419]
IDS = 60
MARGINS = {"deepseek_v2": 2e-5, "deepseek_v3": 1e-4, "dots1": 1e-4}  # of experts' probabilities; else of their scores:
MARGIN = 5e-4
FLOAT32_BOUND = 1e-3  # of the logits' root mean square: transformers' own rounding

# What models have in common. Published files of transformers 4 lie in most of the forms below.
COMMON = {
    "vocab_size": 320, "hidden_size": 96, "intermediate_size": 160, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 1024, "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "float32",
    "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}
WIDE = {"hidden_size": 128}  # where a head is the width divided by the heads
DEEPSEEK = {
    "hidden_size": 96, "num_key_value_heads": 4, "rms_norm_eps": 1e-6, "kv_lora_rank": 32, "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16, "v_head_dim": 24, "n_routed_experts": 16, "num_experts_per_tok": 4, "n_shared_experts": 2, "n_group": 4,
    "topk_group": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 48, "moe_layer_freq": 1, "ep_size": 1,
    "attention_bias": False, "pretraining_tp": 1,
}
LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "attention_bias": False, "mlp_bias": False}
GEMMA2 = {
    "model_type": "gemma2", "architectures": ["Gemma2ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh",
    "hidden_act": "gelu_pytorch_tanh", "query_pre_attn_scalar": 32, "sliding_window": 96, "tie_word_embeddings": True,
    "attn_logit_softcapping": 20.0, "final_logit_softcapping": 12.0, "attention_bias": False,
}
GEMMA3 = {
    "model_type": "gemma3_text", "architectures": ["Gemma3ForCausalLM"], "hidden_activation": "gelu_pytorch_tanh",
    "num_hidden_layers": 6, "query_pre_attn_scalar": 32, "sliding_window": 96, "sliding_window_pattern": 6,
    "rope_theta": 1000000.0, "rope_local_base_freq": 10000.0, "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    "tie_word_embeddings": True, "attention_bias": False,
}
PHI3 = {"model_type": "phi3", "architectures": ["Phi3ForCausalLM"], "sliding_window": None, "attention_bias": False}
LONGROPE = {
    "partial_rotary_factor": 0.75,
    "rope_scaling": {
        "type": "longrope",
        "short_factor": [1.0 + 0.05 * i for i in range(12)],
        "long_factor": [1.0 + 0.4 * i for i in range(12)],
    },
}
LLAMA4 = {"model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], "intermediate_size": 64,
          "intermediate_size_mlp": 160, "attention_bias": False, "rope_theta": 500000.0, "attn_temperature_tuning": True}
QWEN_MOE = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 64, "decoder_sparse_step": 1,
            "mlp_only_layers": [], "use_sliding_window": False, "sliding_window": None}
QWEN_NEXT = QWEN_MOE | {
    "model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "num_hidden_layers": 5, "norm_topk_prob": True,
    "shared_expert_intermediate_size": 96, "partial_rotary_factor": 0.25, "full_attention_interval": 4,
    "attention_bias": False, "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 16,
    "linear_value_head_dim": 32, "linear_conv_kernel_dim": 4,
}
QWEN35 = {
    "num_hidden_layers": 5, "full_attention_interval": 4, "attention_bias": False, "attn_output_gate": True,
    "linear_num_key_heads": 2, "linear_num_value_heads": 6, "linear_key_head_dim": 16, "linear_value_head_dim": 32,
    "linear_conv_kernel_dim": 4, "mamba_ssm_dtype": "float32", "mtp_num_hidden_layers": 1,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25,
                        "mrope_interleaved": True, "mrope_section": [2, 1, 1]},
}
QWEN35_MOE = QWEN35 | {
    "model_type": "qwen3_5_moe_text", "architectures": ["Qwen3_5MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 3,
    "moe_intermediate_size": 64, "shared_expert_intermediate_size": 96,
}
GRANITE_MOE = {"num_local_experts": 6, "num_experts_per_tok": 2, "intermediate_size": 64, "embedding_multiplier": 6.0,
               "residual_multiplier": 0.6, "attention_multiplier": 0.125, "logits_scaling": 2.0, "attention_bias": False,
               "tie_word_embeddings": True}
CONFIGS = {
    "llama": LLAMA,
    "llama_rope_llama3": LLAMA | {
        "tie_word_embeddings": True,
        "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                         "original_max_position_embeddings": 64},
    },
    "llama_rope_linear": LLAMA | {"rope_scaling": {"type": "linear", "factor": 4.0}},
    "llama_rope_yarn": LLAMA | {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256},
    },
    "llama_yarn_factor": LLAMA | {
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256, "attention_factor": 0.8},
    },
    "llama_bias": LLAMA | {"attention_bias": True},
    "mistral": {"model_type": "mistral", "architectures": ["MistralForCausalLM"], "sliding_window": 256},
    "ministral": {
        "model_type": "ministral", "architectures": ["MinistralForCausalLM"], "sliding_window": 96,
        "layer_types": ["sliding_attention", "full_attention", "full_attention", "sliding_attention"],
    },
    "ministral3": {
        "model_type": "ministral3", "architectures": ["Ministral3ForCausalLM"], "sliding_window": None,
        "rope_parameters": {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 8.0, "beta_fast": 32.0, "beta_slow": 1.0,
                            "original_max_position_embeddings": 100, "mscale": 1.0, "mscale_all_dim": 1.0,
                            "llama_4_scaling_beta": 0.3},
    },
    "qwen2": WIDE | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": False,
                     "sliding_window": 96, "max_window_layers": 2, "tie_word_embeddings": True},
    "qwen3": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": False,
              "use_sliding_window": False, "sliding_window": None, "rope_theta": 1000000.0},
    "qwen2_windows": WIDE | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "use_sliding_window": True,
                             "sliding_window": 96, "max_window_layers": 2},
    "qwen3_bias": {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "attention_bias": True,
                   "use_sliding_window": False, "sliding_window": None},
    "gemma2": GEMMA2,
    "gemma3": GEMMA3,
    "gemma4": {"model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"],
               "hidden_activation": "gelu_pytorch_tanh", "num_hidden_layers": 6, "num_key_value_heads": 4,
               "head_dim": 256, "global_head_dim": 512, "num_global_key_value_heads": 1, "attention_k_eq_v": True,
               "sliding_window": 96, "hidden_size_per_layer_input": 0, "num_kv_shared_layers": 0,
               "enable_moe_block": False, "use_double_wide_mlp": False, "use_bidirectional_attention": "vision",
               "final_logit_softcapping": 12.0, "tie_word_embeddings": True, "attention_bias": False,
               "layer_types": ["sliding_attention", "sliding_attention", "full_attention"] * 2,
               "rope_parameters": {
                   "full_attention": {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1000000.0},
                   "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
               }},
    "gemma3_nested": {key: value for key, value in GEMMA3.items() if not key.startswith("rope_")} | {
        "rope_parameters": {
            "full_attention": {"rope_type": "linear", "factor": 4.0, "rope_theta": 500000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 20000.0},
        },
    },
    "cohere2": WIDE | {"model_type": "cohere2", "architectures": ["Cohere2ForCausalLM"], "layer_norm_eps": 1e-5,
                       "logit_scale": 0.26, "sliding_window": 96, "sliding_window_pattern": 4, "attention_bias": False,
                       "tie_word_embeddings": True, "rope_theta": 50000.0, "rotary_pct": 1.0, "layer_switch": 4,
                       "position_embedding_type": "rope_gptj", "use_parallel_block": True},
    "cohere2_layers": WIDE | {"model_type": "cohere2", "architectures": ["Cohere2ForCausalLM"], "layer_norm_eps": 1e-5,
                              "logit_scale": 0.5, "sliding_window": 96, "attention_bias": True, "tie_word_embeddings": True,
                              "layer_types": ["full_attention", "sliding_attention", "full_attention", "sliding_attention"]},
    "glm4": {"model_type": "glm4", "architectures": ["Glm4ForCausalLM"], "attention_bias": True,
             "partial_rotary_factor": 0.5, "rms_norm_eps": 1e-5},
    "phi3": WIDE | PHI3 | {"sliding_window": 256},
    "phi4": WIDE | PHI3 | {"num_attention_heads": 8, "num_key_value_heads": 2, "rope_theta": 250000.0},
    "phi4_mini": PHI3 | LONGROPE | {"hidden_size": 192, "num_attention_heads": 6, "num_key_value_heads": 2,
                                    "original_max_position_embeddings": 128, "sliding_window": 262144,
                                    "tie_word_embeddings": True},
    "phi3_longrope": WIDE | PHI3 | LONGROPE | {"original_max_position_embeddings": 128},
    "phi3_longrope_short": WIDE | PHI3 | LONGROPE | {"original_max_position_embeddings": 512},
    "smollm3": WIDE | {"model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 1, 1, 0],
                       "no_rope_layer_interval": 4, "attention_bias": False, "mlp_bias": False, "use_sliding_window": False,
                       "tie_word_embeddings": True},
    "smollm3_windows": WIDE | {"model_type": "smollm3", "architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 0, 1, 0],
                               "use_sliding_window": True, "sliding_window": 96, "attention_bias": True},
    "granite": WIDE | {"model_type": "granite", "architectures": ["GraniteForCausalLM"], "embedding_multiplier": 6.0,
                       "residual_multiplier": 0.6, "attention_multiplier": 0.125, "logits_scaling": 2.0,
                       "attention_bias": False, "mlp_bias": False, "tie_word_embeddings": True},
    "mixtral": {"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "sliding_window": None, "num_local_experts": 6,
                "num_experts_per_tok": 2, "intermediate_size": 64, "output_router_logits": False,
                "router_aux_loss_coef": 0.02},
    "qwen2_moe": WIDE | QWEN_MOE | {"model_type": "qwen2_moe", "architectures": ["Qwen2MoeForCausalLM"],
                                    "shared_expert_intermediate_size": 96, "norm_topk_prob": False},
    "qwen3_moe": QWEN_MOE | {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "norm_topk_prob": True},
    "qwen3_moe_sparse": QWEN_MOE | {"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
                                    "norm_topk_prob": False, "decoder_sparse_step": 2, "mlp_only_layers": [3]},
    "olmoe": WIDE | {"model_type": "olmoe", "architectures": ["OlmoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 3,
                     "intermediate_size": 64, "norm_topk_prob": False, "clip_qkv": None, "attention_bias": False},
    "granitemoe": WIDE | GRANITE_MOE | {"model_type": "granitemoe", "architectures": ["GraniteMoeForCausalLM"]},
    "granitemoeshared": WIDE | GRANITE_MOE | {"model_type": "granitemoeshared", "shared_intermediate_size": 96,
                                              "architectures": ["GraniteMoeSharedForCausalLM"]},
    "dots1": {"model_type": "dots1", "architectures": ["Dots1ForCausalLM"], "n_routed_experts": 16, "num_experts_per_tok": 4,
              "n_shared_experts": 2, "n_group": 4, "topk_group": 2, "first_k_dense_replace": 1, "moe_intermediate_size": 48,
              "norm_topk_prob": True, "routed_scaling_factor": 1.5, "sliding_window": None, "attention_bias": False},
    "deepseek_v2": DEEPSEEK | {"model_type": "deepseek_v2", "architectures": ["DeepseekV2ForCausalLM"], "q_lora_rank": None,
                               "topk_method": "group_limited_greedy", "scoring_func": "softmax", "norm_topk_prob": False,
                               "routed_scaling_factor": 1.5, "aux_loss_alpha": 0.001, "seq_aux": True,
                               "rope_scaling": {"type": "yarn", "factor": 8, "beta_fast": 32, "beta_slow": 1, "mscale": 0.707,
                                                "mscale_all_dim": 0.707, "original_max_position_embeddings": 128}},
    "deepseek_v3": DEEPSEEK | {"model_type": "deepseek_v3", "architectures": ["DeepseekV3ForCausalLM"], "q_lora_rank": 48,
                               "topk_method": "noaux_tc", "scoring_func": "sigmoid", "norm_topk_prob": True,
                               "routed_scaling_factor": 2.5, "num_nextn_predict_layers": 1,
                               "rope_scaling": {"type": "yarn", "factor": 4, "beta_fast": 32, "beta_slow": 1, "mscale": 1.0,
                                                "mscale_all_dim": 1.0, "original_max_position_embeddings": 256}},
    "llama4": LLAMA4 | {"attention_chunk_size": 8192, "interleave_moe_layer_step": 1, "num_local_experts": 6,
                        "num_experts_per_tok": 1, "use_qk_norm": True},
    "llama4_chunks": LLAMA4 | {"attention_chunk_size": 96, "interleave_moe_layer_step": 2, "num_local_experts": 8,
                               "num_experts_per_tok": 2, "use_qk_norm": True, "no_rope_layers": [1, 0, 1, 1],
                               "floor_scale": 60, "attn_scale": 0.4},
    "llama4_plain": LLAMA4 | {"attention_chunk_size": 256, "interleave_moe_layer_step": 2, "num_local_experts": 8,
                              "num_experts_per_tok": 1, "use_qk_norm": False, "attn_temperature_tuning": False},
    "gpt_oss": {"model_type": "gpt_oss", "architectures": ["GptOssForCausalLM"], "num_local_experts": 8,
                "num_experts_per_tok": 3, "intermediate_size": 64, "sliding_window": 128, "attention_bias": True,
                "swiglu_limit": 7.0, "rope_theta": 150000.0,
                "rope_scaling": {"rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False,
                                 "original_max_position_embeddings": 128}},
    "qwen3_next": QWEN_NEXT,
    "qwen3_next_types": QWEN_NEXT | {"num_hidden_layers": 4, "decoder_sparse_step": 2, "mlp_only_layers": [1],
                                     "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_conv_kernel_dim": 3,
                                     "layer_types": ["full_attention", "linear_attention", "full_attention",
                                                     "linear_attention"]},
    "qwen3_5": QWEN35 | {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "tie_word_embeddings": True},
    "qwen3_5_types": QWEN35 | {"model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "num_hidden_layers": 4,
                               "linear_num_key_heads": 3, "linear_num_value_heads": 3, "linear_conv_kernel_dim": 3,
                               "layer_types": ["full_attention", "linear_attention", "full_attention",
                                               "linear_attention"]},
    "qwen3_5_moe": QWEN35_MOE,
    "olmo2": WIDE | {"model_type": "olmo2", "architectures": ["Olmo2ForCausalLM"], "attention_bias": False},
}
OPT = {
    "model_type": "opt", "architectures": ["OPTForCausalLM"], "vocab_size": 320, "hidden_size": 128,
    "word_embed_proj_dim": 128, "ffn_dim": 160, "num_hidden_layers": 4, "num_attention_heads": 4,
    "max_position_embeddings": 1024, "do_layer_norm_before": True, "enable_bias": True, "activation_function": "relu",
    "layer_norm_elementwise_affine": True, "tie_word_embeddings": True, "torch_dtype": "float32", "bos_token_id": 2,
    "eos_token_id": 2, "pad_token_id": 1, "dropout": 0.0, "attention_dropout": 0.0,
}


def config_of(name):
    if name == "opt":
        return OPT
    config = COMMON | CONFIGS[name]
    if name == "gemma4":
        del config["hidden_act"]
    if name in ("gemma3_nested", "gemma4") or name.startswith("qwen3_5"):  # their bases are in rope_parameters
        del config["rope_theta"]
    if name == "qwen3_5_moe":
        del config["intermediate_size"]
    if "layer_norm_eps" in config:
        del config["rms_norm_eps"]
    if "hidden_size" in CONFIGS[name]:  # as those files are: without it
        del config["head_dim"]
    return config


def fnv1a(raw, value=0xCBF29CE484222325):
    for byte in raw:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def random_bits(key, counters):
    """src/base/random.cc's random_bits(key, 0, counter), of an array of counters."""

    def mix(z):
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))

    golden = 0x9E3779B97F4A7C15
    with np.errstate(over="ignore"):
        h = mix(np.array([key + golden & MASK], np.uint64))
        h = mix(h ^ np.uint64(2 * golden & MASK))
        h = mix(h + (counters.astype(np.uint64) + np.uint64(1)) * np.uint64(golden))
        return mix(h + np.uint64(golden))


def values(name, count, mean, deviation):
    """tests/golden/architecture_golden.cc's tensor_values: nearly normal, each operation rounded to float32."""
    bits = random_bits(fnv1a(name.encode()), np.arange(count))
    total = np.zeros(count, np.int64)
    for part in range(4):
        total += (bits >> np.uint64(16 * part) & np.uint64(0xFFFF)).astype(np.int64)
    unit = (total - 2 * 65535).astype(np.float32) * np.float32(0.875 / 2**15)
    return np.float32(mean) + np.float32(deviation) * unit


def published(name, shape, model_type):
    """The names and shapes that published files have for a tensor of transformers 5."""
    if model_type.startswith("granitemoe"):
        for ours, theirs in (("experts.gate_up_proj", "input_linear.weight"), ("experts.down_proj", "output_linear.weight"),
                             ("router.weight", "router.layer.weight")):
            name = name.replace(f"block_sparse_moe.{ours}", f"block_sparse_moe.{theirs}")
        return [(name, shape)]
    if model_type in ("gpt_oss", "llama4_text", "qwen3_5_moe_text"):
        return [(name, shape)]
    mixtral = model_type == "mixtral"
    if mixtral:
        name = name.replace(".mlp.", ".block_sparse_moe.")
    if name.endswith("experts.gate_up_proj"):
        parts = ("w1", "w3") if mixtral else ("gate_proj", "up_proj")
        return [(f"{name[:-12]}{e}.{part}.weight", (shape[1] // 2, shape[2])) for e in range(shape[0]) for part in parts]
    if name.endswith("experts.down_proj"):
        return [(f"{name[:-9]}{e}.{'w2' if mixtral else 'down_proj'}.weight", shape[1:]) for e in range(shape[0])]
    return [(name, shape)]


def statistics_of(name, shape, model_type):
    """Mean and deviation such that each part of a model matters, and logits have a deviation of some 2."""
    if name.endswith("e_score_correction_bias"):
        return 0.0, 0.1
    if name.endswith(("mlp.gate.weight", "mlp.router.weight", "block_sparse_moe.gate.weight", "router.layer.weight")):
        return 0.0, 1.5 / shape[-1] ** 0.5
    if name.endswith("A_log"):  # so that a state remembers some tens of tokens
        return -3.0, 1.0
    if name.endswith("linear_attn.norm.weight"):
        return 1.0, 0.1
    # The norms of these add 1.
    one = 1 if model_type in ("gemma2", "gemma3_text") or model_type.startswith(("qwen3_next", "qwen3_5")) else 0
    if name.endswith("layer_scalar"):
        return 0.9, 0.05
    if name.endswith("bias"):
        return 0.0, 0.3
    if name.endswith("sinks"):
        return 2.0, 1.0
    if name.endswith("feed_forward.router.weight"):
        return 0.0, 1.5 / shape[-1] ** 0.5
    if "feed_forward.experts." in name:
        return 0.0, 1.5 / shape[1] ** 0.5
    if ".experts." in name and model_type == "qwen3_5_moe_text":
        return 0.0, 1.0 / shape[-1] ** 0.5
    if name.endswith("experts.gate_up_proj"):  # of gpt-oss: columns are outputs, and some are cut
        return 0.0, 3.0 / shape[1] ** 0.5
    if name.endswith("experts.down_proj"):
        return 0.0, 0.3 / shape[1] ** 0.5
    if model_type == "gemma4_text" and name.endswith(("q_norm.weight", "k_norm.weight")):
        return 1.4 / shape[0] ** 0.25, 0.05  # scores are not scaled
    if name.endswith("q_norm.weight") or name.endswith("k_norm.weight"):
        return 1.3 - one, 0.15
    if any(part in name for part in ("post_feedforward_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm")) or (
        "post_attention_layernorm" in name and model_type in ("gemma2", "gemma3_text", "gemma4_text", "olmo2")
    ):
        return 0.7 - one, 0.1
    if "layers" in name and "norm" in name:
        return 1.0 - one, 0.1
    if "norm" in name:
        return 4.0 - one, 0.4
    if "embed" in name or "lm_head" in name:
        return 0.0, 0.5 / shape[1] ** 0.5
    scale = {"q_proj": 1.5, "q_b_proj": 1.5, "kv_a_proj_with_mqa": 1.5, "k_proj": 1.5, "qkv_proj": 1.3}.get(name.split(".")[-2], 1.0)
    return 0.0, scale / shape[-1] ** 0.5


class Model:
    """A folder's config and tensors."""

    def __init__(self, config):
        self.config = config
        hf = transformers.AutoConfig.for_model(**config)
        with torch.device("meta"):
            empty = transformers.AutoModelForCausalLM.from_config(hf)
        layouts = {}
        self.tensors = {}
        for fused, tensor in sorted(empty.state_dict().items()):
            if fused == "lm_head.weight" and config["tie_word_embeddings"]:
                continue
            for name, shape in published(fused, tuple(tensor.shape), config["model_type"]):
                statistics = statistics_of(name, shape, config["model_type"])
                layouts[name] = (*(float(f"{x:.7g}") for x in statistics), shape)
                self.tensors[name] = values(name, int(np.prod(shape)), *layouts[name][:2]).reshape(shape)
        self.tensors = dict(sorted(self.tensors.items()))
        self.layouts = {}  # the names as they are written, with '*' for a layer where each layer has the tensor
        for name, layout in layouts.items():
            pattern = re.sub(r"layers\.\d+\.", "layers.*.", name)
            of_all = all(layouts.get(pattern.replace("*", str(i), 1)) == layout for i in range(config["num_hidden_layers"]))
            assert self.layouts.setdefault(pattern if of_all else name, layout) == layout

    def hash(self):
        value = fnv1a(b"")
        for _, tensor in sorted(self.tensors.items()):
            value = fnv1a(tensor.tobytes(), value)
        return value

    def write(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps(self.config, indent=2) + "\n", encoding="utf-8")
        header, offset = {"__metadata__": {"format": "pt"}}, 0
        for name, tensor in self.tensors.items():
            end = offset + tensor.nbytes
            header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [offset, end]}
            offset = end
        raw = json.dumps(header).encode()
        raw += b" " * (-len(raw) % 8)
        data = b"".join(tensor.tobytes() for tensor in self.tensors.values())
        (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(raw)) + raw + data)


@contextlib.contextmanager
def float64_for_float32():
    """What code names float32 is float64 meanwhile: norms, softmax and angles cast to it explicitly."""
    saved = torch.float32, torch.float, torch.Tensor.float
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = saved
        torch.set_default_dtype(torch.float32)


def run(model, tokens):
    """The logits of all positions; those from DECODED on with a cache, token by token."""
    model.eval()
    with torch.no_grad():
        out = model(torch.tensor([tokens[:DECODED]]), use_cache=True)
        rows = [out.logits[0]]
        for position in range(DECODED, len(tokens)):
            out = model(torch.tensor([[tokens[position]]]), past_key_values=out.past_key_values, use_cache=True)
            rows.append(out.logits[0])
        return torch.cat(rows).to(torch.float64).numpy()


def margin_of(config, routers, scores):
    """How close the closest choice of an expert or a group was, of all routers' scores."""
    used, closest = config["num_experts_per_tok"], np.inf
    for router, rows in zip(routers, scores):
        values = rows.astype(np.float64)
        groups = config.get("n_group", 1)
        if groups > 1:
            softmax = config["model_type"] == "deepseek_v2"
            if softmax:
                values = np.exp(values - values.max(-1, keepdims=True))
                values /= values.sum(-1, keepdims=True)
            else:
                values = 1 / (1 + np.exp(-values)) + router.e_score_correction_bias.double().numpy()
            kept = config["topk_group"]
            by_group = values.reshape(len(values), groups, -1)
            best = np.sort(by_group, axis=-1)[:, :, -1 if softmax else -2:].sum(-1)
            ordered = np.sort(best, axis=-1)
            closest = min(closest, (ordered[:, -kept] - ordered[:, -kept - 1]).min())
            values = np.where((best >= ordered[:, -kept, None])[:, :, None], by_group, -np.inf).reshape(values.shape)
        ordered = np.sort(values, axis=-1)
        closest = min(closest, (ordered[:, -used] - ordered[:, -used - 1]).min())
    return closest


def margin_in(config, model, tokens):
    routers = [module for name, module in model.named_modules() if type(module).__name__.lower().endswith("router")]
    scores = []

    def score(module, inputs, _):  # some routers give probabilities
        bias = getattr(module, "bias", None)
        scores.append(torch.nn.functional.linear(inputs[0].reshape(-1, module.weight.shape[1]), module.weight, bias).numpy())

    hooks = [r.register_forward_hook(score) for r in routers]
    with torch.no_grad():
        model(torch.tensor([tokens]), use_cache=False)
    for hook in hooks:
        hook.remove()
    assert len(scores) == len(routers) > 0
    return margin_of(config, routers, scores)


def load(folder):
    model, report = transformers.AutoModelForCausalLM.from_pretrained(
        folder, attn_implementation="eager", experts_implementation="eager", output_loading_info=True)
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    return model


def tokens_with_margin(config, folder):
    """The first random tokens of which no choice of experts is close."""
    for attempt in range(300):
        seed = f"tokens {attempt}" if attempt else "tokens"
        tokens = (random_bits(fnv1a(seed.encode()), np.arange(TOKENS)) % np.uint64(config["vocab_size"])).tolist()
        if not any("experts" in key for key in config):
            return tokens
        model = load(folder) if attempt == 0 else model
        margin = margin_in(config, model, tokens)
        if margin >= MARGINS.get(config["model_type"], MARGIN):
            print(f"the closest choice of an expert is by {margin:.1e}, with '{seed}'")
            return tokens
    raise AssertionError("choices of experts are close with all tokens")


def logits_of(folder, tokens):
    rough_model = load(folder)
    tensors = rough_model.state_dict()
    rough = run(rough_model, tokens)
    with float64_for_float32():
        config = transformers.AutoConfig.from_pretrained(folder)
        model = transformers.AutoModelForCausalLM.from_config(
            config, attn_implementation="eager", experts_implementation="eager").double()
        missing = model.load_state_dict({k: v.double() for k, v in tensors.items()}, strict=False)
        assert not missing.unexpected_keys and set(missing.missing_keys) <= {"lm_head.weight"}, missing
        model.tie_weights()
        exact = run(model, tokens)
        with torch.no_grad():
            at_once = model(torch.tensor([tokens]), use_cache=False).logits[0]
        assert at_once.dtype == torch.float64
    off = np.abs(at_once.numpy() - exact).max()
    assert off < 1e-9, f"decoding differs from one pass by {off}"
    return rough, exact


def main():
    parser = argparse.ArgumentParser(description="Write what transformers computes for tiny models.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--output", type=Path, default=FOLDER)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.names or [*CONFIGS, "opt"]:
        config = config_of(name)
        model = Model(config)
        with tempfile.TemporaryDirectory() as scratch:
            folder = (options.keep or Path(scratch)) / name
            model.write(folder)
            tokens = tokens_with_margin(config, folder)
            rough, exact = logits_of(folder, tokens)
        scale = np.sqrt(np.mean(exact**2))
        rounding = np.abs(rough - exact).max() / scale
        print(f"{name}: root mean square {scale:.2f}, largest {np.abs(exact).max():.1f}; float32 is off by {rounding:.1e} of it")
        assert rounding < FLOAT32_BOUND
        ids = np.linspace(0, config["vocab_size"] - 1, IDS).astype(int)
        versions = f"transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"
        lines = [f"# by {versions}, in float64", f"config {json.dumps(config)}"]
        for pattern, (mean, deviation, shape) in model.layouts.items():
            lines.append(f"tensor {pattern} {mean} {deviation} " + " ".join(map(str, shape)))
        lines += [f"weights {model.hash():016x}", "tokens " + " ".join(map(str, tokens)), "ids " + " ".join(map(str, ids))]
        lines += [f"position {p} " + " ".join(f"{x:.7g}" for x in exact[p, ids]) for p in POSITIONS]
        (options.output / f"architecture_{name}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
