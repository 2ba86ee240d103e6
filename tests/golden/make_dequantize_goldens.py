#!/usr/bin/env python3
"""Writes tests/golden/dequantize.txt: hashes of what the package gguf makes of random blocks of every quantised type.

    python3 make_dequantize_goldens.py [OUTPUT]

Needs numpy and gguf (`pip install gguf`). tests/golden/dequantize_golden_test.cc makes the same bytes by the same
generator, and compares the hash of the f32 values bit for bit (64-bit FNV-1a).
"""

import sys
from pathlib import Path

import gguf
import numpy as np

BLOCKS = 64
# Places of the f16 numbers in a block. Their bit 14 is cleared, which makes any bits a finite number below 2. The scale of
# MXFP4 is a byte: it has the place of an f16's upper byte, and its first blocks have the exponents at both ends.
EXPONENTS = [0, 1, 2, 254, 255]
HALVES = {
    "Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q2_K": [80, 82], "Q3_K": [108],
    "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [-1],
}  # fmt: skip


def fnv1a(raw):
    value = 0xCBF29CE484222325
    for byte in raw:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def random_bytes(seed, count):
    """The upper bytes of a linear congruential generator."""
    state, out = seed, bytearray()
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        out.append(state >> 56)
    return out


def main():
    output = Path(sys.argv[1]) if len(sys.argv) == 2 else Path(__file__).resolve().parent / "dequantize.txt"
    lines = [f"# {BLOCKS} blocks each; the type, and the hash of the values as the Python package gguf has them"]
    for name, places in HALVES.items():
        kind = gguf.GGMLQuantizationType[name]
        size = gguf.GGML_QUANT_SIZES[kind][1]
        raw = random_bytes(fnv1a(name.encode()), BLOCKS * size)
        for block in range(0, len(raw), size):
            for place in places:
                raw[block + place + 1] &= 0xBF
        for block, exponent in enumerate(EXPONENTS if name == "MXFP4" else []):
            raw[block * size] = exponent
        values = gguf.dequantize(np.frombuffer(bytes(raw), np.uint8).reshape(1, -1), kind)
        assert not np.isnan(values).any() and (name == "MXFP4" or np.isfinite(values).all())
        lines.append(f"{name} {fnv1a(values.astype('<f4').tobytes()):016x}")
    output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
