#!/usr/bin/env python3
"""Writes tests/golden/logits_*.txt: what Hugging Face's transformers computes for the tiny models of the tests.

    build/release/tests/golden/write_tiny_models FOLDER
    python3 make_logits_goldens.py FOLDER [OUTPUT_FOLDER]

Needs numpy, torch and transformers; runs on the CPU in float32. Each model's weights are read as the float32
values that its blocks stand for and loaded into LlamaForCausalLM. Of that, one thing is replaced: the angles of
RoPE are products in float64. In float32 they are off by some 3e-5 radians at position 600, which alone moved
logits by more than 1e-4.

A golden has the hash of the model's bytes (64-bit FNV-1a), the tokens, and all logits at some of the positions,
chosen around the boundaries of the engine's attention leaves (256 positions) and its blocks.
"""

import sys
from pathlib import Path

import numpy as np
import torch
import transformers

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1] / "tools"))
from gguf_io import GgufReader  # noqa: E402

TOKENS = 600
ROTATION_BOUND = 5e-4  # what the exact angles may change: they are the same rotation
POSITIONS = [0, 1, 63, 64, 255, 256, 300, 511, 512, TOKENS - 1]


def fnv1a(raw):
    value = 0xCBF29CE484222325
    for byte in raw:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def halves_from_pairs(matrix, heads):
    """Rows of Q or K: the file turns rows 2i and 2i+1 of a head together, transformers i and i + head_dim/2."""
    rows, columns = matrix.shape
    return matrix.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def config_of(model):
    meta = model.metadata
    rope = {"rope_type": "default", "rope_theta": meta["llama.rope.freq_base"]}
    if "llama.rope.scaling.factor" in meta:
        assert meta["llama.rope.scaling.type"] == "linear"
        rope |= {"rope_type": "linear", "factor": meta["llama.rope.scaling.factor"]}
    return transformers.LlamaConfig(
        vocab_size=meta["llama.vocab_size"],
        hidden_size=meta["llama.embedding_length"],
        intermediate_size=meta["llama.feed_forward_length"],
        num_hidden_layers=meta["llama.block_count"],
        num_attention_heads=meta["llama.attention.head_count"],
        num_key_value_heads=meta["llama.attention.head_count_kv"],
        head_dim=meta["llama.attention.key_length"],
        max_position_embeddings=meta["llama.context_length"],
        rms_norm_eps=meta["llama.attention.layer_norm_rms_epsilon"],
        tie_word_embeddings="output.weight" not in model.tensors,
        rope_parameters=rope,
        hidden_act="silu",
        attention_bias="blk.0.attn_q.bias" in model.tensors,
        mlp_bias=False,
        attn_implementation="eager",
    )


def weights_of(model, config):
    def tensor(name):
        return model.tensor(name + ".weight")

    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    out = {"model.embed_tokens": tensor("token_embd"), "model.norm": tensor("output_norm")}
    out["lm_head"] = out["model.embed_tokens"] if config.tie_word_embeddings else tensor("output")
    for layer in range(config.num_hidden_layers):
        ours, theirs = f"blk.{layer}.", f"model.layers.{layer}."
        out[theirs + "self_attn.q_proj"] = halves_from_pairs(tensor(ours + "attn_q"), heads)
        out[theirs + "self_attn.k_proj"] = halves_from_pairs(tensor(ours + "attn_k"), kv_heads)
        out[theirs + "self_attn.v_proj"] = tensor(ours + "attn_v")
        out[theirs + "self_attn.o_proj"] = tensor(ours + "attn_output")
        out[theirs + "input_layernorm"] = tensor(ours + "attn_norm")
        out[theirs + "post_attention_layernorm"] = tensor(ours + "ffn_norm")
        out[theirs + "mlp.gate_proj"] = tensor(ours + "ffn_gate")
        out[theirs + "mlp.up_proj"] = tensor(ours + "ffn_up")
        out[theirs + "mlp.down_proj"] = tensor(ours + "ffn_down")
    out = {name + ".weight": value for name, value in out.items()}
    if config.attention_bias:
        out |= biases_of(model, config)
    return {name: torch.from_numpy(np.array(value)) for name, value in out.items()}


def biases_of(model, config):
    """Of Q, K and V; transformers has one for the output, too, which is zero here."""
    heads = {"q": config.num_attention_heads, "k": config.num_key_value_heads}
    out = {}
    for layer in range(config.num_hidden_layers):
        theirs = f"model.layers.{layer}.self_attn."
        for part in "qkv":
            bias = model.tensor(f"blk.{layer}.attn_{part}.bias")
            if part in heads:  # turned as the rows are
                bias = halves_from_pairs(bias[:, None], heads[part])[:, 0]
            out[f"{theirs}{part}_proj.bias"] = bias
        out[theirs + "o_proj.bias"] = np.zeros(config.hidden_size, np.float32)
    return out


class ExactRotation(torch.nn.Module):
    """Stands for LlamaRotaryEmbedding: the same cosines and sines, by angles in float64."""

    def __init__(self, model, config):
        super().__init__()
        rope = config.rope_parameters
        half = np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim
        frequencies = rope["rope_theta"] ** -half / rope.get("factor", 1.0)
        if "rope_freqs.weight" in model.tensors:
            frequencies = frequencies / model.tensor("rope_freqs.weight")
        self.frequencies = torch.from_numpy(frequencies)

    def forward(self, x, position_ids, **_):
        angles = position_ids[..., None].to(torch.float64) * self.frequencies
        angles = torch.cat((angles, angles), dim=-1)
        return angles.cos().to(x.dtype), angles.sin().to(x.dtype)


def logits_of(model, tokens):
    config = config_of(model)
    llama = transformers.LlamaForCausalLM(config).to(torch.float32).eval()
    llama.load_state_dict(weights_of(model, config), strict=True)
    if "rope_freqs.weight" in model.tensors:  # transformers has no option for free factors
        llama.model.rotary_emb.inv_freq /= torch.from_numpy(model.tensor("rope_freqs.weight").copy())
    with torch.no_grad():
        untouched = llama(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
        llama.model.rotary_emb = ExactRotation(model, config)
        exact = llama(torch.tensor([tokens]), use_cache=False).logits[0].numpy()
    difference = np.abs(untouched - exact).max()
    assert difference < ROTATION_BOUND, f"the exact angles change logits by {difference}"
    return exact


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__.split("\n\n")[1])
    models = sorted(Path(sys.argv[1]).glob("*.gguf"))
    if not models:
        sys.exit(f"{sys.argv[1]} holds no .gguf file; run write_tiny_models first")
    output = Path(sys.argv[2]) if len(sys.argv) == 3 else FOLDER
    torch.set_num_threads(1)
    for path in models:
        model = GgufReader(path)
        vocab = model.metadata["llama.vocab_size"]
        tokens = np.random.default_rng(fnv1a(path.stem.encode())).integers(0, vocab, TOKENS).tolist()
        logits = logits_of(model, tokens)
        lines = [
            f"# {path.name} in float32 by transformers {transformers.__version__}, torch {torch.__version__}",
            f"model {fnv1a(path.read_bytes()):016x}",
            "tokens " + " ".join(map(str, tokens)),
        ]
        lines += [f"position {p} " + " ".join(f"{x:.7g}" for x in logits[p]) for p in POSITIONS]
        (output / f"logits_{path.stem}.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{path.stem}: logits from {logits.min():.2f} to {logits.max():.2f}, deviation {logits.std():.2f}")


if __name__ == "__main__":
    main()
