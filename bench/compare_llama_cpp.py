#!/usr/bin/env python3
"""Kvasir's speed beside llama.cpp's: one request alone, the two programs in turn. Prints a Markdown table.

    compare_llama_cpp.py --ours "build/release/kvasir eval MODEL.gguf --speed --threads 2" \\
        --peer-python VENV/bin/python --model MODEL.gguf [--threads 2] [--pairs 5]

The other Python needs numpy and xllamacpp, and runs this file again with --peer. Each run is a process of its own
and prints `prefill_tok_s=... decode_tok_s=...`: the median over its repetitions of a prefill of --prefill-tokens
random tokens with one sampled, and of --decode-tokens steps after a prompt of 16. Which of the two begins changes
from pair to pair, so that a machine that slows down favours neither; ratios are taken within a pair.

llama.cpp runs with its own defaults (f16 K and V, flash attention as it sees fit).
"""

import argparse
import os
import re
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path

SPEED = re.compile(r"prefill_tok_s=([0-9.]+) decode_tok_s=([0-9.]+)")
SHORT_PROMPT = 16


def run_peer(o):
    """One run of llama.cpp, in the Python that has it."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "golden"))
    import numpy as np
    from llama_cpp_peer import Peer

    random = np.random.default_rng(1)
    longest = max(o.prefill_tokens, SHORT_PROMPT + o.decode_tokens)
    prefill, decode = [], []
    with Peer(o.model, longest, o.threads, outputs=1) as peer:
        for repetition in range(o.repetitions + 1):
            prompt = random.integers(0, peer.vocab_size, o.prefill_tokens).tolist()
            peer.clear()
            start = time.perf_counter()
            peer.decode(prompt, 0, logits="last").argmax()
            prefill_s = time.perf_counter() - start
            prompt = random.integers(0, peer.vocab_size, SHORT_PROMPT).tolist()
            peer.clear()
            token = int(peer.decode(prompt, 0, logits="last").argmax())
            start = time.perf_counter()
            for step in range(o.decode_tokens):
                token = int(peer.decode([token], SHORT_PROMPT + step, logits="last").argmax())
            decode_s = time.perf_counter() - start
            if repetition > 0:  # the first touches the memory
                prefill.append(o.prefill_tokens / prefill_s)
                decode.append(o.decode_tokens / decode_s)
        print(f"prefill_tok_s={statistics.median(prefill):.1f} decode_tok_s={statistics.median(decode):.1f}")
        print(f"peer={peer.describe()}")


def speeds_of(command):
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    found = SPEED.search(done.stdout)
    if done.returncode != 0 or not found:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode} and printed no speeds: run it by hand")
    return (float(found[1]), float(found[2])), done.stdout


def compare(o):
    ours = shlex.split(o.ours)
    peer = [o.peer_python, __file__, "--peer", "--model", o.model, "--threads", str(o.threads),
            "--prefill-tokens", str(o.prefill_tokens), "--decode-tokens", str(o.decode_tokens),
            "--repetitions", str(o.repetitions)]
    pairs, description = [], ""
    for number in range(o.pairs):
        results = {}
        for who in ("ours", "peer") if number % 2 == 0 else ("peer", "ours"):
            results[who], text = speeds_of(ours if who == "ours" else peer)
            if who == "peer":
                description = text.partition("peer=")[2].strip()
        pairs.append((results["ours"], results["peer"]))
        print(f"pair {number + 1}: ours {results['ours']}, llama.cpp {results['peer']} tokens/s", file=sys.stderr)

    print(f"{o.pairs} pairs of runs on {os.cpu_count()} CPUs, load average at the end {os.getloadavg()[0]:.1f}; "
          f"llama.cpp with {o.threads} threads. Ours: `{o.ours}`. Peer: {description}.\n")
    print("| one request alone | kvasir, tokens/s | llama.cpp, tokens/s | ratio (of pairs: median, least, greatest) |")
    print("|---|---|---|---|")
    for index, what in enumerate((f"prefill of {o.prefill_tokens}", f"decode of {o.decode_tokens}")):
        mine, theirs = [p[0][index] for p in pairs], [p[1][index] for p in pairs]
        ratios = [a / b for a, b in zip(mine, theirs)]
        print(f"| {what} tokens | {statistics.median(mine):.1f} | {statistics.median(theirs):.1f} | "
              f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f}) |")


def main():
    parser = argparse.ArgumentParser(description="Measure kvasir and llama.cpp in turn.")
    parser.add_argument("--ours", help="the command that measures kvasir")
    parser.add_argument("--peer-python", default=sys.executable, help="a Python with xllamacpp; default: this one")
    parser.add_argument("--model", required=True, help="the GGUF file for llama.cpp")
    parser.add_argument("--threads", type=int, default=2, help="of llama.cpp (2)")
    parser.add_argument("--prefill-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=3, help="of llama.cpp inside a run (3)")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--peer", action="store_true", help="run llama.cpp once, and nothing else")
    o = parser.parse_args()
    if o.peer:
        run_peer(o)
    elif o.ours:
        compare(o)
    else:
        parser.error("give --ours COMMAND")


if __name__ == "__main__":
    main()
