#!/usr/bin/env python3
"""Compares the types that `kvasir convert` gives each tensor with those that llama.cpp's quantiser gives.

    python3 compare_recipes.py --kvasir build/release/kvasir --llama-quantize BIN [--only PART] [--types q4_k_m,...]

Needs the packages numpy and gguf. Makes models of random weights, of the shapes below, has both programs quantise each to
every type, and compares tensor by tensor. Prints a line for each difference that is not one of DECIDED, and the counts.
Exits with 1 if there is one.
"""

import argparse
import collections
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "tools"))
from make_model import make_vocabulary  # noqa: E402

TYPES = ("q8_0 q4_0 q4_1 q5_0 q5_1 q2_k q3_k_m q4_k_m q5_k_m q6_k iq4_nl iq4_xs mxfp4_moe f16 bf16 f32").split()
STORED = {"f32": np.float32, "f16": np.float16, "bf16": None}

# What we do in another way: by type asked for, llama.cpp's type and ours. docs/models.md says why.
DECIDED = {("q2_k", "Q4_0", "IQ4_NL"), ("q3_k_m", "Q4_0", "IQ4_NL")}


@dataclass
class Shape:
    architecture: str
    layers: int
    dim: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    tied: bool = True
    stored: str = "f16"

    def __str__(self):
        return (f"{self.architecture}-{self.layers}x{self.dim}-{self.heads}:{self.kv_heads}x{self.head_dim}-{self.ffn}"
                f"-{'tied' if self.tied else 'untied'}-{self.stored}")


SHAPES = [
    *(Shape("llama", layers, 256, 8, 2, 32, 512, tied=layers % 2 == 0) for layers in (1, 2, 7, 8, 15, 16, 17, 22, 26)),
    *(Shape("llama", 32, 256, 8, kv_heads, 32, 512, tied) for kv_heads in (8, 4, 2, 1) for tied in (True, False)),
    Shape("llama", 16, 256, 8, 2, 32, 512, stored="f32"),
    Shape("llama", 16, 256, 8, 2, 32, 512, stored="bf16"),
    # Rows that are no multiple of 256, in all or some tensors.
    Shape("llama", 9, 576, 9, 3, 64, 1536),
    Shape("llama", 9, 576, 9, 3, 64, 1536, tied=False),
    Shape("llama", 4, 256, 4, 2, 32, 288, tied=False),
    Shape("llama", 4, 96, 3, 3, 32, 256),
    # Nor of 32.
    Shape("llama", 4, 80, 5, 1, 16, 176),
    Shape("llama", 4, 80, 5, 5, 16, 256, tied=False),
    # llama.cpp takes these for the models of 65, 70 and 72 billion parameters.
    *(Shape("llama", 80, 256, 8, kv_heads, 32, 256, tied=False) for kv_heads in (8, 4, 1)),
    *(Shape("qwen2", 80, 256, 8, kv_heads, 32, 256, tied=False) for kv_heads in (8, 1)),
    Shape("qwen3", 80, 256, 8, 1, 32, 256, tied=False),
    Shape("qwen2", 24, 896, 14, 2, 64, 1024),
    Shape("qwen3", 28, 256, 4, 2, 64, 512),
    Shape("qwen3", 36, 256, 8, 2, 64, 512, tied=False),
    Shape("gemma2", 26, 256, 8, 4, 32, 512),
    Shape("gemma3", 18, 640, 4, 1, 256, 2048),
    Shape("gemma3", 34, 256, 8, 4, 64, 512),
    Shape("phi3", 32, 256, 8, 8, 32, 512, tied=False),
    Shape("phi3", 40, 256, 8, 2, 32, 512, tied=False),
    Shape("phi3", 6, 96, 3, 3, 32, 160, tied=False),
    Shape("smollm3", 36, 256, 8, 2, 32, 512),
    Shape("granite", 40, 256, 8, 2, 32, 512),
    Shape("olmo2", 16, 256, 8, 8, 32, 512, tied=False),
    Shape("mistral3", 26, 256, 8, 2, 32, 512, tied=False),
]


class Model:
    """One GGUF file of a shape."""

    def __init__(self, path, shape):
        self.shape = shape
        self.random = np.random.default_rng(1)
        self.out = gguf.GGUFWriter(path, shape.architecture)
        self.metadata()
        self.tensors()
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()

    def metadata(self):
        o, s, a = self.out, self.shape, self.shape.architecture
        o.add_block_count(s.layers)
        o.add_context_length(2048)
        o.add_embedding_length(s.dim)
        o.add_feed_forward_length(s.ffn)
        o.add_head_count(s.heads)
        o.add_head_count_kv(s.kv_heads)
        o.add_key_length(s.head_dim)
        o.add_value_length(s.head_dim)
        o.add_rope_dimension_count(s.head_dim)
        o.add_rope_freq_base(10000.0)
        o.add_layer_norm_rms_eps(1e-5)
        o.add_vocab_size(512)
        if a in ("gemma2", "gemma3", "phi3"):
            o.add_sliding_window(256)
        if a == "gemma2":
            o.add_attn_logit_softcapping(50.0)
            o.add_final_logit_softcapping(30.0)
        if a == "granite":
            for name in ("logit_scale", "residual_scale", "embedding_scale", "attention.scale"):
                o.add_float32(f"granite.{name}", 0.5)
        tokens, types, merges = make_vocabulary(512)
        o.add_tokenizer_model("gpt2")
        o.add_tokenizer_pre("smollm")
        o.add_token_list(tokens)
        o.add_token_types(types)
        o.add_token_merges(merges)
        o.add_bos_token_id(1)
        o.add_eos_token_id(2)
        o.add_add_bos_token(False)

    def matrix(self, name, rows, columns):
        values = self.random.standard_normal((rows, columns), np.float32) / np.float32(np.sqrt(columns))
        if self.shape.stored == "bf16":
            kind = gguf.GGMLQuantizationType.BF16
            self.out.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            self.out.add_tensor(name, values.astype(STORED[self.shape.stored]))

    def vector(self, name, size):
        self.out.add_tensor(name, np.ones(size, np.float32))

    def tensors(self):
        s, a = self.shape, self.shape.architecture
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.matrix("token_embd.weight", 512, s.dim)
        for layer in range(s.layers):
            p = f"blk.{layer}."
            norms = ["attn_norm", "ffn_norm"] if a != "olmo2" else []
            norms += ["post_attention_norm", "post_ffw_norm"] if a in ("gemma2", "gemma3", "olmo2") else []
            for norm in norms:
                self.vector(f"{p}{norm}.weight", s.dim)
            if a in ("qwen3", "gemma3", "olmo2"):
                by_row = a == "olmo2"
                self.vector(p + "attn_q_norm.weight", q if by_row else s.head_dim)
                self.vector(p + "attn_k_norm.weight", kv if by_row else s.head_dim)
            if a == "phi3":
                self.matrix(p + "attn_qkv.weight", q + 2 * kv, s.dim)
                self.matrix(p + "ffn_up.weight", 2 * s.ffn, s.dim)
            else:
                for name, rows in (("attn_q", q), ("attn_k", kv), ("attn_v", kv)):
                    self.matrix(f"{p}{name}.weight", rows, s.dim)
                    if a == "qwen2":
                        self.vector(f"{p}{name}.bias", rows)
                self.matrix(p + "ffn_gate.weight", s.ffn, s.dim)
                self.matrix(p + "ffn_up.weight", s.ffn, s.dim)
            self.matrix(p + "attn_output.weight", s.dim, q)
            self.matrix(p + "ffn_down.weight", s.dim, s.ffn)
        self.vector("output_norm.weight", s.dim)
        if not s.tied:
            self.matrix("output.weight", 512, s.dim)


def types_of(path):
    reader = gguf.GGUFReader(path)
    kinds = {t.name: t.tensor_type.name for t in reader.tensors}
    return kinds, int(reader.get_field("general.file_type").contents())


def run(command):
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stdout[-2000:]}{done.stderr[-2000:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--kvasir", required=True)
    parser.add_argument("--llama-quantize", required=True)
    parser.add_argument("--only", default="", help="shapes whose name has this in it")
    parser.add_argument("--types", default=",".join(TYPES))
    options = parser.parse_args()
    compared, decided, unlike, files = 0, collections.Counter(), collections.Counter(), 0
    for shape in (s for s in SHAPES if options.only in str(s)):
        with tempfile.TemporaryDirectory() as folder:
            model, theirs, ours = (Path(folder) / f"{name}.gguf" for name in ("model", "theirs", "ours"))
            Model(model, shape)
            for kind in options.types.split(","):
                run([options.llama_quantize, model, theirs, kind.upper(), "2"])
                run([options.kvasir, "convert", model, ours, "--type", kind])
                (a, a_file), (b, b_file) = types_of(theirs), types_of(ours)
                files += 1
                if a.keys() != b.keys() or a_file != b_file:
                    unlike[(str(shape), kind)] += 1
                    print(f"{shape} {kind}: other tensors, or file types {a_file} and {b_file}")
                compared += len(a)
                for name in a:
                    if a[name] == b.get(name):
                        continue
                    if (kind, a[name], b[name]) in DECIDED:
                        decided[(kind, a[name], b[name])] += 1
                        continue
                    unlike[(str(shape), kind)] += 1
                    print(f"{shape} {kind} {name}: llama.cpp {a[name]}, here {b[name]}")
                ours.unlink()
        print(f"{shape}: done", file=sys.stderr)
    print(f"{files} files, {compared} tensors compared; {sum(unlike.values())} differ; decided otherwise:",
          ", ".join(f"{k}: {theirs} there, {ours} here: {n}" for (k, theirs, ours), n in decided.items()) or "none")
    return 1 if unlike else 0


if __name__ == "__main__":
    sys.exit(main())
