#!/usr/bin/env python3
"""Stores the weights of a GGUF model in another type, so that types can be compared on one model. Needs numpy.

    requantize.py MODEL.Q4_1.gguf MODEL.Q4_0.gguf --weights q4_0
    requantize.py MODEL.Q4_1.gguf MODEL.BF16.gguf --weights bf16 --embedding-weights bf16

A value is decoded and then rounded to the new type, so a type that is not wider than the old one loses twice: fit for
measuring speed, not quality. Vectors stay as they are.
"""

import argparse
import os
import struct
import sys

from gguf_io import TENSOR_TYPES, GgufReader, GgufWriter, U32
from make_model import FILE_TYPES

CHUNK_VALUES = 1 << 22  # float32 values held at a time
EMBEDDINGS = ("token_embd.weight", "output.weight")


def copy_metadata(model, out, kind):
    for key, (number, payload) in model.encoded_metadata.items():
        if key == "general.file_type":
            number, payload = U32, struct.pack("<I", FILE_TYPES[kind])
        out.add_encoded(key, number, payload)


def copy_tensor(model, out, name, kind):
    shape, old_kind, _ = model.tensors[name]
    columns = shape[-1]
    if columns % TENSOR_TYPES[kind][1]:
        sys.exit(f"{name} has rows of {columns}; {kind} needs a multiple of {TENSOR_TYPES[kind][1]}")

    def chunks():
        rows = max(1, CHUNK_VALUES // columns)
        for begin in range(0, shape[0], rows):
            yield model.rows(name, begin, min(shape[0], begin + rows))

    if len(shape) == 1 or kind == old_kind:
        out.add_encoded_tensor(name, shape, old_kind, lambda: model.raw(name)[0].tobytes())
    else:
        out.add_tensor(name, shape, kind, chunks)


def main():
    parser = argparse.ArgumentParser(description="Store the weights of a GGUF model in another type.")
    parser.add_argument("model", help="the GGUF file to read")
    parser.add_argument("output", help="the file to write")
    parser.add_argument("--weights", choices=sorted(TENSOR_TYPES), required=True, help="type of the matrices")
    parser.add_argument("--embedding-weights", choices=sorted(TENSOR_TYPES),
                        help="type of the embedding and the output matrix; default: as they are")
    o = parser.parse_args()
    if os.path.exists(o.output) and os.path.samefile(o.model, o.output):
        parser.error(f"{o.output} is the model itself; name another file")
    model = GgufReader(o.model)
    with GgufWriter(o.output) as out:
        copy_metadata(model, out, o.weights)
        for name, (shape, old_kind, _) in model.tensors.items():
            embedding = name in EMBEDDINGS
            kind = (o.embedding_weights or old_kind) if embedding else o.weights
            copy_tensor(model, out, name, kind if len(shape) > 1 else old_kind)


if __name__ == "__main__":
    main()
