#!/usr/bin/env python3
"""Writes tests/golden/folder_values.txt: hashes of the values of matrices that folders have quantised.

    python3 make_folder_goldens.py [--judge FOLDER] [--logits]

Needs numpy. tests/model/quantized_folder_test.cc makes the same tensors by the same generator, and compares the hash of
the f32 values (64-bit FNV-1a; -0 counts as 0). Integers have exact values, or those rounded to the type of the scales;
FP8 has products in f32, rounded to BF16.

--logits also writes tests/golden/folder_logits.txt: what transformers computes with these values in float64 for tiny models
of the architecture llama; tests/golden/folder_golden_test.cc makes the same models as folders. Needs torch and transformers.

--judge compares the values with what other programs compute, bit for bit: it needs torch, transformers (FP8) and a
folder with the unpacked sdists of autoawq 0.2.9, gptqmodel 7.7.0 and compressed-tensors 0.20.1, whose own functions are
called (gptqmodel's dequantize_weight with a stand-in for its module).
"""

import argparse
import importlib.util
import sys
from pathlib import Path

import numpy as np

ROWS, COLUMNS = 128, 256
MASK = 0xFFFFFFFFFFFFFFFF

# Format, bits, group, type of the scales, and what else there is.
CASES = {
    "awq_128": ("awq", 4, 128, "F16", ""),
    "awq_32": ("awq", 4, 32, "F16", ""),
    "awq_whole": ("awq", 4, 256, "F16", ""),
    "gptq_4_64": ("gptq", 4, 64, "F16", ""),
    "gptq_4_order": ("gptq", 4, 64, "F16", "order"),
    "gptq_4_middle": ("gptq", 4, 128, "F16", "middle"),
    "gptq_8_128": ("gptq", 8, 128, "F16", ""),
    "gptq_8_middle": ("gptq", 8, 32, "F16", "middle"),
    "gptq_v2_4_128": ("gptq_v2", 4, 128, "F16", ""),
    "gptq_v2_4_order": ("gptq_v2", 4, 32, "BF16", "order"),
    "packed_4_128": ("packed", 4, 128, "BF16", "middle"),
    "packed_4_32_zeros": ("packed", 4, 32, "F16", ""),
    "packed_8_whole": ("packed", 8, 256, "BF16", "middle"),
    "bytes_whole": ("bytes", 8, 256, "BF16", "middle"),
    "fp8_blocks": ("fp8_blocks", 8, 0, "F32", ""),
    "fp8_rows": ("fp8_rows", 8, 0, "BF16", ""),
    "fp8_one": ("fp8_one", 8, 0, "F32", ""),
}


def fnv1a(raw):
    value = 0xCBF29CE484222325
    for byte in raw:
        value = ((value ^ byte) * 0x100000001B3) & MASK
    return value


def random_bytes(name, count):
    """The upper bytes of a linear congruential generator."""
    state, out = fnv1a(name.encode()), bytearray()
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & MASK
        out.append(state >> 56)
    return np.frombuffer(bytes(out), np.uint8)


def words(name, *shape):
    return random_bytes(name, 4 * int(np.prod(shape))).view("<u4").reshape(shape)


# Bits of a scale that stay random, and those that are set: any sign and size (for all types numbers of F16), or a factor
# of 2, positive, of matrices of which models are made.
SCALES = {"F16": (0xBFFF, 0), "BF16": (0x83FF, 0x3800), "F32": (0x80FFFFFF, 0x38000000)}
EVEN_SCALES = {"F16": (0x03FF, 0x2000), "BF16": (0x007F, 0x3C00), "F32": (0x007FFFFF, 0x3A000000)}


def scales(name, kind, even, *shape):
    random, fixed = (EVEN_SCALES if even else SCALES)[kind]
    width = 4 if kind == "F32" else 2
    bits = (random_bytes(name, width * int(np.prod(shape))).view(f"<u{width}") & random) | fixed
    if kind == "F16":
        return bits.astype("<u2").view(np.float16).astype(np.float32).reshape(shape)
    if kind == "BF16":
        bits = bits.astype(np.uint32) << 16
    return bits.astype("<u4").view(np.float32).reshape(shape)


def to_bf16(values):
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16).astype(np.uint32).view(np.float32)


def unpack(packed, bits, axis):
    """Codes along an axis, the lowest bits of a word first."""
    shifts = np.arange(0, 32, bits, dtype=np.uint32)
    codes = (np.expand_dims(packed, axis + 1) >> shifts.reshape([-1] + [1] * (packed.ndim - 1 - axis))) & ((1 << bits) - 1)
    shape = list(packed.shape)
    shape[axis] *= 32 // bits
    return codes.reshape(shape).astype(np.int64)


def in_awq_order(codes):
    """The i-th of eight codes is output 0, 2, 4, 6, 1, 3, 5, 7."""
    out = np.empty_like(codes)
    for i, output in enumerate([0, 2, 4, 6, 1, 3, 5, 7]):
        out[:, output::8] = codes[:, i::8]
    return out


def order_of(columns, groups):
    """Every input's group, far from in order."""
    return np.array([k * 5 % columns * groups // columns for k in range(columns)])


def integers(name, form, bits, group, kind, more, rows, columns, even):
    """Parts, and exact values [rows][columns]."""
    groups, per = columns // group, 32 // bits
    half = 1 << (bits - 1)
    index = order_of(columns, groups) if more == "order" else np.arange(columns) // group
    if form in ("awq", "gptq", "gptq_v2"):
        s = scales(name + ".scales", kind, even, groups, rows)
        z = words(name + ".qzeros", groups, rows // per)
        if more == "middle":
            z = np.full_like(z, sum((half - (form == "gptq")) << (bits * i) for i in range(per)))
        if form == "awq":
            w = words(name + ".qweight", columns, rows // per)
            codes, zeros = in_awq_order(unpack(w, 4, 1)), in_awq_order(unpack(z, 4, 1))
        else:
            w = words(name + ".qweight", columns // per, rows)
            # Stored zero points are less 1, taken off whole words.
            one = np.uint32(sum(1 << (bits * i) for i in range(per)) if form == "gptq" else 0)
            codes, zeros = unpack(w, bits, 0), unpack(z + one, bits, 1)
        parts = {"qweight": w, "qzeros": z, "scales": s, "g_idx": index}
        return parts, ((codes - zeros[index]).astype(np.float64) * s[index]).T
    s = scales(name + ".weight_scale", kind, even, rows, groups)
    parts, zeros = {"weight_scale": s}, np.full((rows, groups), half)
    if form == "bytes":
        parts["weight"] = random_bytes(name + ".weight", rows * columns).view(np.int8).reshape(rows, columns)
        codes = parts["weight"].astype(np.int64) + 128
    else:
        parts["weight_packed"] = words(name + ".weight_packed", rows, columns // per)
        codes = unpack(parts["weight_packed"], bits, 1)
        if more != "middle":
            parts["weight_zero_point"] = words(name + ".weight_zero_point", rows // per, groups)
            zeros = unpack(parts["weight_zero_point"], bits, 0)
    return parts, (codes - zeros[:, index]).astype(np.float64) * s[:, index]


def fp8_values():
    out = np.empty(256, np.float32)
    for code in range(256):
        exponent, fraction = code >> 3 & 15, code & 7
        value = fraction * 2.0**-9 if exponent == 0 else (8 + fraction) * 2.0 ** (exponent - 10)
        out[code] = -value if code & 128 else value
    return out


def fp8(name, form, kind, rows, columns, even):
    codes = random_bytes(name + ".weight", rows * columns).reshape(rows, columns).copy()
    codes[(codes & 127) == 127] ^= 1  # no NaN
    shape = {"fp8_blocks": (rows // 32, columns // 64), "fp8_rows": (rows, 1), "fp8_one": (1, 1)}[form]
    s = scales(name + ".weight_scale", kind, even, *shape)
    wide = np.repeat(np.repeat(s, rows // shape[0], 0), columns // shape[1], 1)
    return {"weight": codes, "weight_scale": s}, to_bf16(fp8_values()[codes] * wide)


def values_of(name, case, rows=ROWS, columns=COLUMNS, even=False):
    """Parts, exact values, and those that a folder gives."""
    form, bits, group, kind, more = case
    if form.startswith("fp8"):
        parts, values = fp8(name, form, kind, rows, columns, even)
        return parts, values, values
    parts, exact = integers(name, form, bits, group, kind, more, rows, columns, even)
    values = exact.astype(np.float32)
    if more == "order" or (bits == 8 and more != "middle"):  # not in blocks
        values = to_bf16(values) if kind == "BF16" else values.astype(np.float16).astype(np.float32)
    return parts, exact, values


def load_module(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def judged(folder, name):
    """What the other programs make of the same parts, [rows][columns]."""
    import torch
    from transformers.integrations.finegrained_fp8 import Fp8Dequantize

    form, bits, group, kind, _ = CASES[name]
    parts, exact, _ = values_of(name, CASES[name])
    number = {"F16": torch.float16, "BF16": torch.bfloat16, "F32": torch.float32}[kind]
    tensor = {key: torch.from_numpy(np.ascontiguousarray(part).view(np.int32) if part.dtype == np.uint32 else part.copy())
              for key, part in parts.items()}  # fmt: skip
    if form == "awq":
        awq = load_module("packing_utils", folder / "autoawq-0.2.9/awq/utils/packing_utils.py")
        out = awq.dequantize_gemm(tensor["qweight"], tensor["qzeros"], tensor["scales"].to(number), 4, group).T
    elif form.startswith("gptq"):
        source = (folder / "gptqmodel-7.7.0/gptqmodel/nn_modules/qlinear/__init__.py").read_text()
        begin = source.index("    def dequantize_weight(self")
        end = source.index("    def ", source.index("    def _dequantize_from_codes") + 8)
        scope = {"t": torch, "_torch_right_shift": torch.bitwise_right_shift}
        exec("class Stand:\n" + source[begin:source.rindex("\n", begin, end)].split("\n    @")[0], scope)
        stand = scope["Stand"]()
        stand.planar, stand.bits, stand.pack_factor, stand.maxq = False, bits, 32 // bits, 2**bits - 1
        stand.in_features, stand.g_idx, stand.scales = COLUMNS, tensor["g_idx"], tensor["scales"].to(number)
        stand.qweight, stand.qzeros = tensor["qweight"], tensor["qzeros"].clone()
        if form == "gptq":  # convert_gptq_v1_to_v2_format_module
            stand.qzeros += 0b00010001000100010001000100010001 if bits == 4 else 0b00000001000000010000000100000001
        shifts = torch.arange(0, 32, bits, dtype=torch.int32)
        stand.wf_unsqueeze_zero, stand.wf_unsqueeze_neg_one = shifts.view(1, 1, -1), shifts.view(1, -1, 1)
        stand.dequant_dtype = torch.int16 if bits == 8 else torch.int8
        stand._init_wf_unsqueeze_buffers = lambda: None
        out = stand.dequantize_weight().T
    elif form in ("packed", "bytes"):
        if form == "packed":
            helpers = load_module(
                "ct_helpers", folder / "compressed_tensors-0.20.1/src/compressed_tensors/compressors/pack_quantized/helpers.py"
            )
            codes = helpers.unpack_from_int32(tensor["weight_packed"], bits, torch.Size([ROWS, COLUMNS]))
        else:
            codes = tensor["weight"]
        s = tensor["weight_scale"].to(number).repeat_interleave(group, 1)
        if "weight_zero_point" in tensor:
            shape = torch.Size([ROWS, COLUMNS // group])
            codes = codes - helpers.unpack_from_int32(tensor["weight_zero_point"], bits, shape, 0).repeat_interleave(group, 1)
        out = codes.to(number) * s
    else:
        codes = tensor["weight"].view(torch.float8_e4m3fn)
        out = Fp8Dequantize(None)._dequantize_one(codes, tensor["weight_scale"].to(number), torch.bfloat16)
    want = exact if number == torch.float32 else to_bf16(exact.astype(np.float32)) if number == torch.bfloat16 else exact.astype(np.float16)
    assert np.array_equal(out.to(torch.float32).numpy(), want.astype(np.float32)), name


# Of the tiny models: the case of all of their matrices.
MODELS = {
    "awq": ("awq", 4, 128, "F16", ""),
    "gptq": ("gptq", 4, 32, "F16", ""),
    "gptq_order": ("gptq", 4, 64, "F16", "order"),
    "gptq_8": ("gptq", 8, 32, "F16", "middle"),
    "packed": ("packed", 4, 128, "BF16", "middle"),
    "fp8": ("fp8_blocks", 8, 0, "F32", ""),
}
WIDTH, FFN, HEADS, KV_HEADS, HEAD, VOCABULARY, LAYERS = 256, 384, 4, 2, 64, 96, 2
TOKENS, POSITIONS = 100, [0, 1, 30, 31, 32, 33, 63, 64, 65, 90, 98, 99]


def model_logits(form):
    """What transformers computes in float64 with the values of a model's matrices: [position][token]."""
    import torch
    import transformers

    config = transformers.LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=FFN, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, head_dim=HEAD, max_position_embeddings=128, rms_norm_eps=1e-5, tie_word_embeddings=False,
        attn_implementation="eager",
    )  # fmt: skip
    model = transformers.LlamaForCausalLM(config).double().eval()
    for name, parameter in model.named_parameters():
        rows, columns = (*parameter.shape, 1)[:2]
        if name.endswith("norm.weight"):
            values = np.ones(rows)
        elif name in ("model.embed_tokens.weight", "lm_head.weight"):
            bits = (random_bytes(name, 2 * rows * columns).view("<u2") & 0x80FF) | 0x3C00
            values = (bits.astype(np.uint32) << 16).view(np.float32)
        else:
            stem = name.removesuffix(".weight")
            values = values_of(f"{form}.{stem}", MODELS[form], rows, columns, even=True)[2]
        parameter.data = torch.from_numpy(values.astype(np.float64).reshape(parameter.shape))
    tokens = random_bytes("tokens", TOKENS) % VOCABULARY
    with torch.no_grad():
        return model(torch.from_numpy(tokens.astype(np.int64))[None]).logits[0].numpy()


def write_logits():
    lines = ["# Logits of tiny models whose matrices are quantised: form, position, one for each token (make_folder_goldens.py)"]
    for form in MODELS:
        logits = model_logits(form)
        print(f"{form}: root mean square {np.sqrt(np.mean(logits**2)):.3f}", file=sys.stderr)
        lines += [f"{form} {p} " + " ".join(f"{x:.8g}" for x in logits[p][::3]) for p in POSITIONS]
    (Path(__file__).resolve().parent / "folder_logits.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--judge", type=Path)
    parser.add_argument("--logits", action="store_true")
    arguments = parser.parse_args()
    if arguments.logits:
        write_logits()
    lines = [f"# {ROWS} rows of {COLUMNS} values: the case, and the hash of its values (make_folder_goldens.py)"]
    for name in CASES:
        values = (values_of(name, CASES[name])[2].astype(np.float32) + np.float32(0)).astype("<f4")
        assert np.isfinite(values).all(), name
        lines.append(f"{name} {fnv1a(values.tobytes()):016x}")
        if arguments.judge:
            judged(arguments.judge, name)
            print(f"{name}: the same values", file=sys.stderr)
    (Path(__file__).resolve().parent / "folder_values.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
