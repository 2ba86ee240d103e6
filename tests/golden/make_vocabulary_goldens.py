#!/usr/bin/env python3
"""Writes tests/golden/vocabularies.txt: hashes of the ids that originals give the texts of splits.txt.

    python3 make_vocabulary_goldens.py MATERIAL [OUTPUT_FOLDER]

Needs the package `tokenizers`; MATERIAL is the folder that tools/fetch_tokenizers.py fills. A line is the name of a GGUF file,
and for each twenty texts the 64-bit FNV-1a hash of their ids, one text's after the other, as make_tokenizer_goldens.py has it.
"""

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

from compare_tokenizers import composed_otherwise, sources
from make_tokenizer_goldens import fnv1a
from tokenizer_cases import random_texts

TEXTS_OF_A_HASH = 20


def main():
    material = Path(sys.argv[1])
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else Path(__file__).parent)
    texts = random_texts(1000, 20261124)
    assert not composed_otherwise(texts)
    lines = []
    for make, gguf in sources(material).values():
        if gguf is None:
            continue
        judge = Tokenizer.from_str(json.dumps(make()))
        ids = [e.ids for e in judge.encode_batch(texts, add_special_tokens=False)]
        blocks = [sum(ids[i : i + TEXTS_OF_A_HASH], []) for i in range(0, len(ids), TEXTS_OF_A_HASH)]
        lines.append(gguf.name + " " + " ".join(f"{fnv1a(b):016x}" for b in blocks) + "\n")
    (folder / "vocabularies.txt").write_text("".join(lines))
    print(f"vocabularies.txt: {len(lines)} vocabularies")


if __name__ == "__main__":
    main()
