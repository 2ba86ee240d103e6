"""Attention of one query over KV at a peer: the query goes there, or K and V come here.

Device times are those of `kvasir simulate --price`, networks those of the simulator's catalogue. Prints microseconds
per layer as a table in Markdown.
"""

import argparse
import csv
import json
import math
import pathlib
import subprocess
import tempfile

CATALOGUE = pathlib.Path(__file__).resolve().parent.parent / "apps" / "simulate" / "catalog"
LEAF_TOKENS = 256
FLOAT_BYTES = 4  # queries and partial results travel as float32
KV_BYTES = 2


def attention_us(kvasir, model, device, lengths, layers):
    """Of one decoding row over so many tokens, in one layer."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as steps:
        steps.write("decode_rows,decode_context\n")
        steps.writelines(f"1,{n}\n" for n in lengths)
        steps.flush()
        out = subprocess.run([kvasir, "simulate", "--model", model, "--device", device, "--price", steps.name],
                             capture_output=True, text=True, check=True).stdout
    return [1e3 * float(row["attention_ms"]) / layers for row in csv.DictReader(out.splitlines())]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvasir", default="build/release/kvasir")
    parser.add_argument("--model", default="llama-2-7b")
    parser.add_argument("--device", default="a100-80g")
    parser.add_argument("--lengths", default="1000,5000,10000,50000,100000")
    options = parser.parse_args()
    model = json.loads((CATALOGUE / "models" / f"{options.model}.json").read_text())
    heads, kv_heads, layers = (model[key] for key in ("num_attention_heads", "num_key_value_heads", "num_hidden_layers"))
    dim = model.get("head_dim", model["hidden_size"] // heads)
    lengths = [int(n) for n in options.lengths.split(",")]
    attend = attention_us(options.kvasir, options.model, options.device, lengths, layers)
    print("| tokens | attention alone | network | query and answer, KiB | K and V, MiB | query goes there | K and V come"
          " here | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for tokens, alone in zip(lengths, attend):
        leaves = math.ceil(tokens / LEAF_TOKENS)
        partials = 2 * max(1, math.ceil(math.log2(leaves)))  # the most that a run of leaves has subtrees
        shipped = heads * FLOAT_BYTES * (dim + partials * (dim + 2))
        fetched = 2 * kv_heads * dim * KV_BYTES * tokens
        for name in ("nvlink", "infiniband", "ethernet"):
            network = json.loads((CATALOGUE / "networks" / f"{name}.json").read_text())
            us_per_byte = 1e6 / (network["bytes_per_s"] * network["efficiency"])
            latency = 1e6 * network["latency_s"]
            there = 2 * latency + shipped * us_per_byte + alone
            here = 2 * latency + fetched * us_per_byte + alone
            print(f"| {tokens:,} | {alone:.0f} us | {name} | {shipped / 1024:.0f} | {fetched / 2**20:.1f} | {there:.0f} us |"
                  f" {here:.0f} us | {here / there:.1f} |")


if __name__ == "__main__":
    main()
