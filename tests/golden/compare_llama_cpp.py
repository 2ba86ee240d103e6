#!/usr/bin/env python3
"""Compares the predictions of Kvasir and llama.cpp for a GGUF file, position by position.

    python3 compare_llama_cpp.py MODEL.gguf --write-logits build/asan/tests/golden/write_logits [--bos ID] [--tokens N]

Needs numpy and the package xllamacpp. The texts are English and German, the tokens are llama.cpp's. llama.cpp runs
the file as it is, with int8 activations and K and V in f32; Kvasir both as it is served and with everything in f32. Prints
the perplexity of each, the mean divergence of Kvasir's distribution from llama.cpp's (Kullback-Leibler, in nats), and
the share of positions at which both find the same token most likely.
"""

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np

from llama_cpp_peer import Peer

FOLDER = Path(__file__).resolve().parent
TEXTS = ["recipe", "deutsch", "dialogue"]  # of tests/golden/text


def log_softmax(row):
    row = row.astype(np.float64)
    row -= row.max()
    return row - np.log(np.exp(row).sum())


def kvasir_logits(options, tokens, precision, folder):
    listing, output = folder / "tokens", folder / "logits"
    listing.write_text(" ".join(map(str, tokens)))
    subprocess.run([options.write_logits, options.model, listing, precision, output], check=True)
    return np.fromfile(output, np.float32).reshape(len(tokens), -1)


def main():
    parser = argparse.ArgumentParser(description="Compare Kvasir with llama.cpp.")
    parser.add_argument("model")
    parser.add_argument("--write-logits", required=True, help="the program of that name")
    parser.add_argument("--bos", type=int, help="a token that begins the text")
    parser.add_argument("--tokens", type=int, default=600)
    options = parser.parse_args()
    text = "".join((FOLDER / "text" / f"{name}.txt").read_text(encoding="utf-8") for name in TEXTS)
    with Peer(options.model, options.tokens, 2, kv_f32=True, flash_attention="off") as peer:
        begin = [] if options.bos is None else [options.bos]
        tokens = (begin + peer.tokenize(text))[: options.tokens]
        theirs = peer.decode(tokens, 0)
        print(peer.describe())
    for precision in ("served", "f32"):
        with tempfile.TemporaryDirectory() as folder:
            ours = kvasir_logits(options, tokens, precision, Path(folder))
        losses, divergence, same = [], [], 0
        for position in range(len(tokens) - 1):
            p, q = log_softmax(theirs[position]), log_softmax(ours[position])
            losses.append((-p[tokens[position + 1]], -q[tokens[position + 1]]))
            divergence.append(np.sum(np.exp(p) * (p - q)))
            same += p.argmax() == q.argmax()
        peer_loss, our_loss = np.mean(losses, axis=0)
        print(f"{precision}: {len(losses)} predictions; perplexity {np.exp(our_loss):.3f}, of llama.cpp {np.exp(peer_loss):.3f}; "
              f"mean divergence {np.mean(divergence):.5f}, largest {np.max(divergence):.4f}; "
              f"the same token at {same / len(losses):.1%}")


if __name__ == "__main__":
    main()
