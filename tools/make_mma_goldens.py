"""Writes tests/golden/fused16.txt: what a published model of Hopper's tensor cores gives for the cases of
tests/ops/fused16_cases.cc.

The model is MMA-Sim (arXiv 2511.10909), the PyPI package mmasim, whose authors validated it on the hardware. It runs on
torch; Debian's python3-torch, which is for CPUs, does:

    /usr/bin/python3 -m venv --system-site-packages build/mmasim-venv
    build/mmasim-venv/bin/pip install --no-deps mmasim
    build/mmasim-venv/bin/python tools/make_mma_goldens.py

The cases are made a second time here; the golden has a hash of them, so the test sees where the two differ.
"""

import importlib.metadata
import pathlib
import struct
import sys
import types

import torch

# What torch before 2.9 lacks, and the arithmetic of f64, for which mmasim compiles an extension: no case uses them.
sys.modules["mmasim.arithmetic.fma"] = types.ModuleType("fma")
for name in ("float8_e8m0fnu", "float8_e5m2", "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz"):
    if not hasattr(torch, name):
        setattr(torch, name, name)

from mmasim.arithmetic.fdpa import MMA_T_FDPA  # noqa: E402
from mmasim.nv_ptx import sim  # noqa: E402

CASES = 6000
MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
RANGES = [
    (120, 130, 116, 130, 110, 140),
    (0, 190, 0, 190, 0, 254),
    (120, 130, 120, 130, 100, 127),
    (110, 124, 110, 124, 0, 0),
    (55, 66, 55, 66, 0, 8),
    (0, 1, 240, 254, 100, 130),
    (0, 120, 0, 120, 0, 1),
    (184, 189, 184, 189, 240, 254),
    (120, 130, 120, 130, 120, 130),
    (96, 127, 96, 127, 96, 127),
    (100, 120, 100, 120, 127, 140),
    (127, 127, 127, 127, 120, 127),
]
CORNERS = [0x0000, 0x0001, 0x007F, 0x0080, 0x3F80, 0x7F7F, 0x7F80, 0x7F81]


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


class Random:
    """src/base/random.h"""

    def __init__(self, seed, counter):
        self.seed, self.counter = seed, counter

    def bits(self):
        h = mix((self.seed + GOLDEN) & MASK)
        h = mix(h ^ ((2 * GOLDEN) & MASK))
        h = mix((h + (self.counter + 1) * GOLDEN) & MASK)
        self.counter += 1
        return mix((h + GOLDEN) & MASK)

    def below(self, n):
        return self.bits() % n

    def element(self, low, high):
        bits = self.bits()
        return (bits & 0x807F) | ((low + (bits >> 32) % (high - low + 1)) << 7)

    def number(self, low, high):
        upper = self.element(low, high)
        return (upper << 16) | (self.bits() & 0xFFFF)

    def corner(self):
        bits = self.bits()
        return CORNERS[(bits >> 32) % 8] | (bits & 0x8000)


def value(bf16):
    return struct.unpack("<f", struct.pack("<I", bf16 << 16))[0]


def make_case(index):
    """The bits of the accumulator, of a and of b."""
    random = Random(16, index * 256)
    kind = index % len(RANGES)
    a_low, a_high, b_low, b_high, acc_low, acc_high = RANGES[kind]
    acc = random.number(acc_low, acc_high)
    a, b = [], []
    for _ in range(16):
        a.append(random.element(a_low, a_high))
        b.append(random.element(b_low, b_high))
    if kind == 2:
        for i in range(0, 16, 2):
            a[i + 1] = a[i] ^ 0x8000
            b[i + 1] = b[i] ^ random.below(3)
    elif kind == 3:
        a[0] = random.element(130, 132)
        acc = struct.unpack("<I", struct.pack("<f", -value(a[0]) * value(b[0])))[0]
    elif kind == 6:
        for i in range(16):
            if random.below(4) != 0:
                a[i] &= 0x8000
            if random.below(4) != 0:
                b[i] &= 0x8000
        if random.below(2) == 0:
            acc = 0 if random.below(2) == 0 else 1 << 31
    elif kind == 8:
        for _ in range(1 + random.below(2)):
            place = random.below(33)
            if place < 16:
                a[place] = random.corner()
            elif place < 32:
                b[place - 16] = random.corner()
            else:
                acc = random.corner() << 16
    elif kind == 11:
        for i in range(16):
            if random.below(8) != 0:
                a[i] = 0x3FFF
            if random.below(8) != 0:
                b[i] = 0x3FFF
    return acc, a, b


def fnv1a(data):
    h = 0xCBF29CE484222325
    for byte in data:
        h = ((h ^ byte) * 0x100000001B3) & MASK
    return h


def main():
    cases = [make_case(i) for i in range(CASES)]
    packed = b"".join(struct.pack("<I32H", acc, *a, *b) for acc, a, b in cases)

    def signed(values, dtype, bits):
        return torch.tensor([v - (1 << bits) if v >> (bits - 1) else v for v in values], dtype=dtype)

    acc = signed([c[0] for c in cases], torch.int32, 32).view(torch.float32)
    a = signed([v for c in cases for v in c[1]], torch.int16, 16).view(torch.bfloat16).view(CASES, 16)
    b = signed([v for c in cases for v in c[2]], torch.int16, 16).view(torch.bfloat16).view(CASES, 16)
    # As sim.MMA("Hopper", "m16n8k16.f32.bf16.bf16.f32") makes it; sim.WGMMA has the same numbers.
    products = sim._mma_L_max_bytes["Hopper"] // 2
    model = MMA_T_FDPA(
        sim._mma_F_bits["Hopper"], "RZ-FP32", products, sim._mma_e_zero_for_fp32["Hopper"], "bf16", "bf16")
    results = model.dpa(a, b, acc).view(torch.int32)

    path = pathlib.Path(__file__).resolve().parent.parent / "tests" / "golden" / "fused16.txt"
    with path.open("w") as out:
        out.write("# mma.sync.m16n8k16 and wgmma.m64nNk16 of Hopper, f32 += bf16 * bf16: the results of the cases\n")
        out.write("# 0, 1, ... of tests/ops/fused16_cases.cc, as bits. What is not a number is 7fffffff.\n")
        out.write(f"# By tools/make_mma_goldens.py from mmasim {importlib.metadata.version('mmasim')}.\n")
        out.write(f"cases {CASES} {fnv1a(packed):016x}\n")
        words = [f"{v & 0xFFFFFFFF:08x}" for v in results.tolist()]
        for i in range(0, CASES, 12):
            out.write(" ".join(words[i : i + 12]) + "\n")


if __name__ == "__main__":
    main()
