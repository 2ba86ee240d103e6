#!/usr/bin/env python3
"""Writes tests/golden/quantize.txt: hashes of the blocks that the package gguf makes of rows of pseudo-random values.

    python3 make_quantize_goldens.py [OUTPUT]

Needs numpy and gguf (`pip install gguf`). tests/model/quantize_test.cc makes the same values by the same generator, and
compares the hash of the bytes (64-bit FNV-1a).
"""

import sys
from pathlib import Path

import gguf
import numpy as np

BLOCKS = 128
TYPES = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "MXFP4"]


def fnv1a(raw):
    value = 0xCBF29CE484222325
    for byte in raw:
        value = ((value ^ byte) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return value


def values(seed):
    """Cubes of uniform numbers; each block has a power of two as its size, and every eighth is zero or constant."""
    state, out = seed, np.zeros(BLOCKS * 32, np.float32)
    for i in range(len(out)):
        state = (state * 6364136223846793005 + 1442695040888963407) & 0xFFFFFFFFFFFFFFFF
        uniform = np.float32((state >> 40) - (1 << 23)) / np.float32(1 << 23)
        block = i // 32
        size = np.float32(2.0 ** (block % 29 - 20))
        out[i] = uniform * uniform * uniform * size
        if block % 8 == 7:
            out[i] = np.float32(0) if block % 16 == 7 else size
    return out


def main():
    output = Path(sys.argv[1]) if len(sys.argv) == 2 else Path(__file__).resolve().parent / "quantize.txt"
    lines = [f"# {BLOCKS} blocks each; the type, and the hash of the bytes that the Python package gguf makes"]
    for name in TYPES:
        raw = gguf.quantize(values(fnv1a(name.encode())).reshape(1, -1), gguf.GGMLQuantizationType[name])
        lines.append(f"{name} {fnv1a(raw.tobytes()):016x}")
    output.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
