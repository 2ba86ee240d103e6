#!/usr/bin/env python3
"""Writes a GGUF model of any llama shape, or one with latent attention, with random weights and a byte-level tokenizer. Needs
numpy.

    make_model.py --preset tiny-gqa --weights q8_0 tiny.gguf
    make_model.py --layers 4 --dim 256 --heads 4 --ffn 512 --vocab 1024 --context 4096 small.gguf
    make_model.py --preset 16-experts --weights q4_0 experts.gguf

The same options, seed and numpy version give the same bytes. What such a model says is noise; its shapes,
types and speed are those of a real one.
"""

import argparse
import sys
import zlib

import numpy as np

from gguf_io import TENSOR_TYPES, GgufWriter

PRESETS = {
    "tiny-mha": dict(layers=2, dim=96, heads=3, kv_heads=3, head_dim=32, ffn=160, vocab=512, context=2048),
    "tiny-gqa": dict(layers=3, dim=128, heads=4, kv_heads=2, head_dim=32, ffn=192, vocab=512, context=2048),
    "mha-12x768": dict(layers=12, dim=768, heads=12, kv_heads=12, head_dim=64, ffn=2048, vocab=32000, context=4096),
    "smollm2": dict(layers=30, dim=576, heads=9, kv_heads=3, head_dim=64, ffn=1536, vocab=49152, context=8192,
                    rope_base=100000.0),
    "tinyllama": dict(layers=22, dim=2048, heads=32, kv_heads=4, head_dim=64, ffn=5632, vocab=32000, context=2048,
                      tied=False),
    # A mixture as Mixtral is one, of 0.9 billion weights: a row passes through 0.17 billion of them.
    "16-experts": dict(layers=12, dim=1024, heads=16, kv_heads=4, head_dim=64, ffn=1408, vocab=32000, context=4096,
                       experts=16, experts_used=2),
    # Latent attention of DeepSeek-V2-Lite's size without its experts, and the same heads with keys and values of their own.
    "latent": dict(layers=12, dim=1024, heads=16, kv_heads=16, head_dim=192, ffn=2816, vocab=32000, context=8192, kv_rank=512,
                   rope_dim=64, value_dim=128),
    # Three layers of four with a gated delta rule, as in Qwen3-Next, and experts with a shared one.
    "hybrid": dict(layers=12, dim=1024, heads=8, kv_heads=2, head_dim=128, ffn=704, vocab=32000, context=8192, experts=16,
                   experts_used=2, architecture="qwen3next", key_heads=8, value_heads=16, state_dim=128),
    # Sinks, windows of 128 positions in every other layer, biases and experts, as in gpt-oss.
    "sinks": dict(layers=12, dim=1024, heads=16, kv_heads=4, head_dim=64, ffn=1408, vocab=32000, context=8192, experts=16,
                  experts_used=2, architecture="gpt-oss"),
    "16-heads": dict(layers=12, dim=1024, heads=16, kv_heads=16, head_dim=192, ffn=2816, vocab=32000, context=8192),
}
PRESETS_ALONE = ("architecture", "kv_rank", "rope_dim", "value_dim", "key_heads", "value_heads", "state_dim")
SIZES = ("layers", "dim", "heads", "kv_heads", "head_dim", "ffn", "vocab", "context")
FILE_TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q4_1": 3, "q8_0": 7, "bf16": 32}  # general.file_type

CHUNK_VALUES = 1 << 22  # float32 values held at a time
# Queries and keys are a little larger than the rest, so that attention prefers some positions to others. The
# embedding is smaller, or a tied model would mostly repeat its last token; the last norm makes up for it, so that
# the logits spread (a deviation of about 2).
ATTENTION_SCALE = 1.5
EMBEDDING_SCALE = 0.5
OUTPUT_NORM_MEAN = 4.0

SPECIAL_TOKENS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONTROL, NORMAL = 3, 1
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
WORDS = (
    "the of and to in is that it for was on are as with be at this have from or by one not but what all were when "
    "we there can an your which their said if will each about how up out them then many some so these would other "
    "into has more her two like him see time could no make than first been its who now people my made over did down "
    "only way find use may water long little very after words called just where most know memory attention token "
    "block layer cache request sequence hello world"
).split()
SPACE = "\u0120"  # how the byte-to-character mapping writes a space


def byte_characters():
    """GPT-2's mapping: printable Latin-1 stands for itself, the other bytes for the characters from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    codes = {byte: byte for byte in printable} | {byte: 0x100 + i for i, byte in enumerate(others)}
    return [chr(codes[byte]) for byte in range(256)]


def merge_candidates():
    """Pairs (left, right) whose parts are tokens by the time the pair comes up."""
    for word in WORDS:
        left = SPACE
        for letter in word:
            yield left, letter
            left += letter
    letters = "abcdefghijklmnopqrstuvwxyz"
    pairs = [a + b for a in letters for b in letters]
    for pair in pairs:
        yield pair[0], pair[1]
    for left in pairs:
        for right in pairs:
            yield left, right


def make_vocabulary(size):
    """Tokens, token types and merges: special tokens, the 256 bytes, then merges until the size is reached."""
    tokens = SPECIAL_TOKENS + byte_characters()
    if size < len(tokens):
        sys.exit(f"--vocab {size} is too small; {len(tokens)} are needed for the bytes and the special tokens")
    known = set(tokens)
    merges = []
    for left, right in merge_candidates():
        if len(tokens) == size:
            break
        if left + right not in known:
            known.add(left + right)
            tokens.append(left + right)
            merges.append(f"{left} {right}")
    if len(tokens) < size:
        sys.exit(f"--vocab {size} is too large; at most {len(tokens)} tokens can be made")
    types = [CONTROL] * len(SPECIAL_TOKENS) + [NORMAL] * (size - len(SPECIAL_TOKENS))
    return tokens, types, merges


def normal_chunks(name, seed, rows, columns, mean, deviation):
    """Yields float32 arrays of whole rows. The stream depends on seed and name only, not on the chunk size."""
    random = np.random.Generator(np.random.SFC64([seed, zlib.crc32(name.encode())]))
    step = max(1, CHUNK_VALUES // columns)
    for begin in range(0, rows, step):
        shape = (min(step, rows - begin), columns)
        values = random.standard_normal(shape, dtype=np.float32)
        values *= np.float32(deviation)
        values += np.float32(mean)
        yield values


class ModelWriter:
    def __init__(self, out, options):
        self.out = out
        self.o = options

    def matrix(self, name, rows, columns, scale=1.0, kind=None):
        deviation = scale / np.sqrt(columns)
        self.out.add_tensor(name, (rows, columns), kind or self.o.weights,
                            lambda: normal_chunks(name, self.o.seed, rows, columns, 0.0, deviation))

    def experts(self, name, rows, columns):
        """The matrices of all experts in one tensor."""
        deviation, count = 1.0 / np.sqrt(columns), self.o.experts
        self.out.add_tensor(name, (count, rows, columns), self.o.weights,
                            lambda: normal_chunks(name, self.o.seed, count * rows, columns, 0.0, deviation))

    def heads(self, name, rows, columns):
        """A matrix for each head, in one tensor."""
        deviation, count = 1.0 / np.sqrt(columns), self.o.heads
        self.out.add_tensor(name, (count, rows, columns), self.o.weights,
                            lambda: normal_chunks(name, self.o.seed, count * rows, columns, 0.0, deviation))

    def norm(self, name, mean=1.0, size=None):
        size = size or self.o.dim
        self.out.add_tensor(name, (size,), "f32",
                            lambda: normal_chunks(name, self.o.seed, 1, size, mean, 0.1 * mean))

    def vectors(self, name, mean, deviation, *shape):
        rows, columns = shape if len(shape) == 2 else (1, *shape)
        self.out.add_tensor(name, shape, "f32", lambda: normal_chunks(name, self.o.seed, rows, columns, mean, deviation))

    def attention(self, prefix):
        o = self.o
        q_dim, kv_dim = o.heads * o.head_dim, o.kv_heads * o.head_dim
        gates = 2 if o.key_heads else 1  # a gate beside each query
        self.matrix(prefix + "attn_q.weight", gates * q_dim, o.dim, ATTENTION_SCALE)
        if not o.kv_rank:
            self.matrix(prefix + "attn_k.weight", kv_dim, o.dim, ATTENTION_SCALE)
            self.matrix(prefix + "attn_v.weight", kv_dim, o.dim)
            self.matrix(prefix + "attn_output.weight", o.dim, q_dim)
            if o.key_heads:
                self.norm(prefix + "attn_q_norm.weight", size=o.head_dim)
                self.norm(prefix + "attn_k_norm.weight", size=o.head_dim)
            if o.architecture == "gpt-oss":
                for role, size in (("q", q_dim), ("k", kv_dim), ("v", kv_dim), ("output", o.dim)):
                    self.vectors(f"{prefix}attn_{role}.bias", 0.0, 0.4, size)
                self.vectors(prefix + "attn_sinks.weight", 3.0, 1.0, o.heads)
            return
        self.matrix(prefix + "attn_kv_a_mqa.weight", o.kv_rank + o.rope_dim, o.dim, ATTENTION_SCALE)
        self.norm(prefix + "attn_kv_a_norm.weight", size=o.kv_rank)
        self.heads(prefix + "attn_k_b.weight", o.kv_rank, o.head_dim - o.rope_dim)
        self.heads(prefix + "attn_v_b.weight", o.value_dim, o.kv_rank)
        self.matrix(prefix + "attn_output.weight", o.dim, o.heads * o.value_dim)

    def recurrence(self, prefix):
        """A gated delta rule whose states remember some ten tokens."""
        o = self.o
        values = o.value_heads * o.state_dim
        channels = 2 * o.key_heads * o.state_dim + values
        self.matrix(prefix + "attn_qkv.weight", channels, o.dim)
        self.matrix(prefix + "attn_gate.weight", values, o.dim)
        self.matrix(prefix + "ssm_ba.weight", 2 * o.value_heads, o.dim)
        self.vectors(prefix + "ssm_conv1d.weight", 0.2, 0.5, channels, 4)
        self.vectors(prefix + "ssm_a", -0.15, 0.02, o.value_heads)
        self.vectors(prefix + "ssm_dt.bias", 0.0, 1.0, o.value_heads)
        self.norm(prefix + "ssm_norm.weight", size=o.state_dim)
        self.matrix(prefix + "ssm_out.weight", o.dim, values)

    def ffn_of_experts(self, prefix):
        o = self.o
        self.matrix(prefix + "ffn_gate_inp.weight", o.experts, o.dim, 2.0, kind="f32")
        self.experts(prefix + "ffn_gate_exps.weight", o.ffn, o.dim)
        self.experts(prefix + "ffn_up_exps.weight", o.ffn, o.dim)
        self.experts(prefix + "ffn_down_exps.weight", o.dim, o.ffn)
        if o.architecture == "gpt-oss":
            self.vectors(prefix + "ffn_gate_inp.bias", 0.0, 0.4, o.experts)
            for role, size in (("gate", o.ffn), ("up", o.ffn), ("down", o.dim)):
                self.vectors(f"{prefix}ffn_{role}_exps.bias", 0.0, 0.4, o.experts, size)
        if o.key_heads:
            self.matrix(prefix + "ffn_gate_shexp.weight", o.ffn, o.dim)
            self.matrix(prefix + "ffn_up_shexp.weight", o.ffn, o.dim)
            self.matrix(prefix + "ffn_down_shexp.weight", o.dim, o.ffn)
            self.vectors(prefix + "ffn_gate_inp_shexp.weight", 0.0, 1.0 / np.sqrt(o.dim), o.dim)

    def metadata(self):
        out, o = self.out, self.o
        arch = "deepseek2" if o.kv_rank else o.architecture or "llama"
        out.add_string("general.architecture", arch)
        out.add_string("general.name", o.name)
        out.add_u32("general.file_type", FILE_TYPES[o.weights])
        out.add_u32("general.quantization_version", 2)
        out.add_u32(f"{arch}.block_count", o.layers)
        out.add_u32(f"{arch}.context_length", o.context)
        out.add_u32(f"{arch}.embedding_length", o.dim)
        out.add_u32(f"{arch}.feed_forward_length", o.ffn)
        if o.experts:
            out.add_u32(f"{arch}.expert_count", o.experts)
            out.add_u32(f"{arch}.expert_used_count", o.experts_used)
        if o.key_heads:
            out.add_u32(f"{arch}.expert_feed_forward_length", o.ffn)
            out.add_u32(f"{arch}.expert_shared_feed_forward_length", o.ffn)
            out.add_u32(f"{arch}.ssm.conv_kernel", 4)
            out.add_u32(f"{arch}.ssm.state_size", o.state_dim)
            out.add_u32(f"{arch}.ssm.group_count", o.key_heads)
            out.add_u32(f"{arch}.ssm.time_step_rank", o.value_heads)
            out.add_u32(f"{arch}.ssm.inner_size", o.value_heads * o.state_dim)
            out.add_u32(f"{arch}.full_attention_interval", 4)
        if o.architecture == "gpt-oss":
            out.add_u32(f"{arch}.expert_feed_forward_length", o.ffn)
            out.add_u32(f"{arch}.attention.sliding_window", 128)
            out.add_string(f"{arch}.rope.scaling.type", "yarn")
            out.add_f32(f"{arch}.rope.scaling.factor", 2.0)
            out.add_u32(f"{arch}.rope.scaling.original_context_length", o.context // 2)
        out.add_u32(f"{arch}.attention.head_count", o.heads)
        if o.kv_rank:
            out.add_u32(f"{arch}.attention.head_count_kv", 1)
            out.add_u32(f"{arch}.attention.kv_lora_rank", o.kv_rank)
            out.add_u32(f"{arch}.attention.key_length", o.kv_rank + o.rope_dim)
            out.add_u32(f"{arch}.attention.value_length", o.kv_rank)
            out.add_u32(f"{arch}.attention.key_length_mla", o.head_dim)
            out.add_u32(f"{arch}.attention.value_length_mla", o.value_dim)
            out.add_u32(f"{arch}.leading_dense_block_count", o.layers)  # these three are for llama.cpp
            out.add_u32(f"{arch}.expert_feed_forward_length", o.ffn)
            out.add_u32(f"{arch}.expert_shared_count", 0)
            if o.yarn:
                out.add_string(f"{arch}.rope.scaling.type", "yarn")
                out.add_f32(f"{arch}.rope.scaling.factor", o.yarn)
                out.add_f32(f"{arch}.rope.scaling.yarn_log_multiplier", 0.0707)
                out.add_u32(f"{arch}.rope.scaling.original_context_length", int(o.context / o.yarn))
        else:
            out.add_u32(f"{arch}.attention.head_count_kv", o.kv_heads)
            out.add_u32(f"{arch}.attention.key_length", o.head_dim)
            out.add_u32(f"{arch}.attention.value_length", o.head_dim)
        out.add_u32(f"{arch}.rope.dimension_count", o.rope_dim or (o.head_dim // 2 if o.key_heads else o.head_dim))
        out.add_u32(f"{arch}.vocab_size", o.vocab)
        out.add_f32(f"{arch}.rope.freq_base", o.rope_base)
        out.add_f32(f"{arch}.attention.layer_norm_rms_epsilon", 1e-5)

    def tokenizer(self):
        tokens, types, merges = make_vocabulary(self.o.vocab)
        self.out.add_string("tokenizer.ggml.model", "gpt2")
        self.out.add_string("tokenizer.ggml.pre", "smollm")
        self.out.add_strings("tokenizer.ggml.tokens", tokens)
        self.out.add_i32s("tokenizer.ggml.token_type", types)
        self.out.add_strings("tokenizer.ggml.merges", merges)
        self.out.add_u32("tokenizer.ggml.bos_token_id", tokens.index("<|im_start|>"))
        self.out.add_u32("tokenizer.ggml.eos_token_id", tokens.index("<|im_end|>"))
        self.out.add_u32("tokenizer.ggml.unknown_token_id", tokens.index("<|endoftext|>"))
        self.out.add_bool("tokenizer.ggml.add_bos_token", False)
        self.out.add_bool("tokenizer.ggml.add_space_prefix", False)
        self.out.add_string("tokenizer.chat_template", CHAT_TEMPLATE)

    def tensors(self):
        o = self.o
        self.matrix("token_embd.weight", o.vocab, o.dim, EMBEDDING_SCALE, kind=o.embedding_weights)
        for layer in range(o.layers):
            prefix = f"blk.{layer}."
            self.norm(prefix + "attn_norm.weight")
            if o.key_heads and layer % 4 != 3:
                self.recurrence(prefix)
            else:
                self.attention(prefix)
            self.norm(prefix + ("post_attention_norm.weight" if o.architecture else "ffn_norm.weight"))
            if o.experts:
                self.ffn_of_experts(prefix)
                continue
            self.matrix(prefix + "ffn_gate.weight", o.ffn, o.dim)
            self.matrix(prefix + "ffn_up.weight", o.ffn, o.dim)
            self.matrix(prefix + "ffn_down.weight", o.dim, o.ffn)
        self.norm("output_norm.weight", OUTPUT_NORM_MEAN)
        if not o.tied:
            self.matrix("output.weight", o.vocab, o.dim, EMBEDDING_SCALE, kind=o.embedding_weights)


def parse_options(arguments):
    parser = argparse.ArgumentParser(description="Write a GGUF model with random weights.")
    parser.add_argument("output", help="the file to write")
    parser.add_argument("--preset", choices=sorted(PRESETS), help="a shape; the options below override it")
    for size in SIZES:
        parser.add_argument("--" + size.replace("_", "-"), type=int)
    parser.add_argument("--experts", type=int, help="experts of a layer, each of the width --ffn; default: no experts")
    parser.add_argument("--experts-used", type=int, help="those that a row passes through; default 2")
    parser.add_argument("--yarn", type=float, help="with latent attention: how much longer YaRN makes the context; mscale is 0.707")
    parser.add_argument("--weights", choices=sorted(TENSOR_TYPES), default="q8_0", help="default q8_0")
    parser.add_argument("--embedding-weights", choices=sorted(TENSOR_TYPES),
                        help="type of the embedding and the output matrix; default: as --weights")
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction,
                        help="whether the output matrix is the embedding; default: the preset's, else tied")
    parser.add_argument("--untied", dest="tied", action="store_false", help="the same as --no-tied")
    parser.add_argument("--rope-base", type=float, help="default: the preset's, else 10000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--name", help="general.name; default: from the shape")
    parser.set_defaults(tied=None)
    return parser, parser.parse_args(arguments)


def complete_options(parser, o):
    """Fills in what was not given and refuses shapes that cannot be."""
    preset = PRESETS.get(o.preset, {})
    for key in (*SIZES, "experts", "experts_used", "tied", "rope_base"):
        if getattr(o, key) is None:
            setattr(o, key, preset.get(key))
    for key in PRESETS_ALONE:
        setattr(o, key, preset.get(key, 0))
    if o.yarn and not o.kv_rank:
        parser.error("--yarn is for a preset with latent attention")
    o.tied = True if o.tied is None else o.tied
    o.rope_base = o.rope_base or 10000.0
    o.kv_heads = o.kv_heads or o.heads
    o.experts, o.experts_used = o.experts or 0, o.experts_used or 2
    if o.experts and not 0 < o.experts_used <= o.experts:
        parser.error("--experts-used must be from 1 to --experts")
    if o.head_dim is None and o.dim and o.heads:
        o.head_dim = o.dim // o.heads
    missing = ["--" + size.replace("_", "-") for size in SIZES if not getattr(o, size)]
    if missing:
        parser.error(f"give --preset, or also {' '.join(missing)}")
    if min(getattr(o, size) for size in SIZES) < 1:
        parser.error("every size must be at least 1")
    if o.heads % o.kv_heads:
        parser.error(f"--heads {o.heads} is not a multiple of --kv-heads {o.kv_heads}")
    if o.head_dim % 2:
        parser.error(f"--head-dim {o.head_dim} is odd; RoPE turns pairs")
    o.embedding_weights = o.embedding_weights or o.weights
    for kind in {o.weights, o.embedding_weights}:
        for what, size in (("--dim", o.dim), ("--ffn", o.ffn), ("heads times head-dim", o.heads * o.head_dim)):
            if size % TENSOR_TYPES[kind][1]:
                parser.error(f"{what} is {size}; {kind} needs a multiple of {TENSOR_TYPES[kind][1]}")
    o.name = o.name or f"random {o.preset or 'llama'} {o.layers}x{o.dim} {o.weights}"
    return o


def main(arguments=None):
    parser, options = parse_options(arguments)
    options = complete_options(parser, options)
    with GgufWriter(options.output) as out:
        model = ModelWriter(out, options)
        model.metadata()
        model.tokenizer()
        model.tensors()


if __name__ == "__main__":
    main()
