#!/usr/bin/env python3
"""Writes tests/golden/splits.txt: texts, and where each pattern of tokenizer_cases.py cuts them.

    python3 make_split_goldens.py [OUTPUT_FOLDER]

Needs the package `tokenizers`, which cuts. The first line has the names of the patterns with tabs between them. Each further
line has as many 32-bit FNV-1a hashes, in hexadecimal with spaces between, of the lengths in bytes of the text's words as
little-endian uint32; then a tab and the text, escaped as make_tokenizer_goldens.py says.
"""

import struct
import sys
from pathlib import Path

from tokenizers import Regex, pre_tokenizers

from make_tokenizer_goldens import escape
from tokenizer_cases import PATTERNS, random_texts


def fnv1a(lengths):
    result = 0x811C9DC5
    for byte in struct.pack(f"<{len(lengths)}I", *lengths):
        result = (result ^ byte) * 0x01000193 % 2**32
    return result


def main():
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent)
    splitters = [pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r), "isolated") for r in rules]) for rules in PATTERNS.values()]
    lines = ["\t".join(PATTERNS) + "\n"]
    for text in random_texts(1000, 20261124):
        cuts = [[len(word.encode()) for word, _ in s.pre_tokenize_str(text)] for s in splitters]
        lines.append(" ".join(f"{fnv1a(c):08x}" for c in cuts) + "\t" + escape(text) + "\n")
    path = folder / "splits.txt"
    path.write_text("".join(lines), encoding="utf-8")
    print(f"{path.name}: {len(lines) - 1} texts, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
