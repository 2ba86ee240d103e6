#!/usr/bin/env python3
"""Writes tests/golden/llama_cpp_*.txt: what llama.cpp predicts at every position of the evaluation text.

    python3 make_llama_cpp_goldens.py SmolLM2-135M-Instruct.Q4_1.gguf [--threads N] [--output FOLDER]

Needs numpy and the package xllamacpp. Two files are written. For llama_cpp_q4_1.txt llama.cpp runs the model as
it is, with the int8 activations of its quantised kernels. For llama_cpp_f32.txt it runs a copy of the model whose
weights are the float32 values that the blocks stand for, so that nothing is rounded on the way. Both keep K and V
in f32, with flash attention off.

Lines that begin with `#` are for people. `chunk NAMES TOKENS` begins a piece of text: the files of
tests/golden/text, one after the other, run from position 0 with an empty cache. Then follows one line for each
position: the token there, and the five tokens that llama.cpp finds most likely to be next, each with a number in
thousandths of a nat: of the first its negative log-probability, of the others how far they are below the first.
"""

import argparse
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

from llama_cpp_peer import Peer

FOLDER = Path(__file__).resolve().parent
sys.path.insert(0, str(FOLDER.parents[1] / "tools"))
from gguf_io import ALIGNMENT, TENSOR_TYPES, GgufReader  # noqa: E402

CHUNKS = [
    ["c_code", "python_code"],
    ["deutsch", "dialogue", "francais"],
    ["letter", "narrative"],
    ["recipe", "science"],
]
CONTEXT = 1024
TOP = 5
MILLI = 1000.0


class CopyReader(GgufReader):
    """Knows where the metadata ends, so that it can be copied as it is."""

    def _take_entry(self):
        entry = super()._take_entry()
        self.metadata_end = self._position
        return entry


def write_as_f32(source, target):
    """A copy of a model with every tensor in f32."""
    model = CopyReader(source)
    with open(source, "rb") as file:
        header = [file.read(model.metadata_end)]
    offset = 0
    for name, (shape, _, _) in model.tensors.items():
        raw = name.encode()
        header.append(struct.pack("<Q", len(raw)) + raw)
        header.append(struct.pack(f"<I{len(shape)}Q", len(shape), *shape[::-1]))
        header.append(struct.pack("<IQ", TENSOR_TYPES["f32"][0], offset))
        offset += -(-int(np.prod(shape)) * 4 // ALIGNMENT) * ALIGNMENT
    alignment = model.metadata.get("general.alignment", ALIGNMENT)
    with open(target, "wb") as file:
        file.write(b"".join(header))
        file.write(bytes(-file.tell() % alignment))
        for name in model.tensors:
            file.write(model.tensor(name).astype("<f4").tobytes())
            file.write(bytes(-file.tell() % ALIGNMENT))


def lines_of(tokens, logits):
    for token, row in zip(tokens, logits.astype(np.float64)):
        order = np.lexsort((np.arange(row.size), -row))[:TOP]  # ties go to the smaller id
        best = row[order[0]]
        numbers = [np.log(np.exp(row - best).sum()), *(best - row[order[1:]])]
        pairs = " ".join(f"{id} {round(number * MILLI)}" for id, number in zip(order, numbers))
        yield f"{token} {pairs}"


def write_golden(path, model, title, threads):
    with Peer(model, CONTEXT, threads, kv_f32=True, flash_attention="off") as peer:
        out = [f"# {title}; f32 K and V, no flash attention, chunks of at most {CONTEXT} tokens", f"# {peer.describe()}"]
        for names in CHUNKS:
            text = "".join((FOLDER / "text" / f"{name}.txt").read_text(encoding="utf-8") for name in names)
            tokens = peer.tokenize(text)
            peer.clear()
            out.append(f"chunk {'+'.join(names)} {len(tokens)}")
            out.extend(lines_of(tokens, peer.decode(tokens, 0)))
    path.write_text("\n".join(out) + "\n", encoding="utf-8")


def main():
    parser = argparse.ArgumentParser(description="Write what llama.cpp predicts on the evaluation text.")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--output", type=Path, default=FOLDER)
    options = parser.parse_args()
    name = Path(options.model).name
    write_golden(options.output / "llama_cpp_q4_1.txt", options.model, name, options.threads)
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "f32.gguf"
        write_as_f32(options.model, copy)
        write_golden(options.output / "llama_cpp_f32.txt", copy, f"{name}, weights as f32", options.threads)


if __name__ == "__main__":
    main()
