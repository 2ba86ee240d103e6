"""Attention of one query over KV at a peer: the query goes there, or K and V come here. With --split: attention of one
instance of 8 cards beside that of two of 4 cards that have half of the KV each.

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


def attention_us(kvasir, model, device, lengths, layers, cards=1):
    """Of one decoding row over so many tokens, in one layer."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as steps:
        steps.write("decode_rows,decode_context\n")
        steps.writelines(f"1,{n}\n" for n in lengths)
        steps.flush()
        out = subprocess.run([kvasir, "simulate", "--model", model, "--device", device,
                              "--tensor-parallel-size", str(cards), "--price", steps.name],
                             capture_output=True, text=True, check=True).stdout
    return [1e3 * float(row["attention_ms"]) / layers for row in csv.DictReader(out.splitlines())]


def network(name):
    """Microseconds of latency, and per byte."""
    spec = json.loads((CATALOGUE / "networks" / f"{name}.json").read_text())
    return 1e6 * spec["latency_s"], 1e6 / (spec["bytes_per_s"] * spec["efficiency"])


def shipped_bytes(heads, dim, tokens):
    """A query and its partial results, the most that a run of so many tokens' leaves has of them."""
    leaves = math.ceil(tokens / LEAF_TOKENS)
    partials = 2 * max(1, math.ceil(math.log2(leaves)))
    return heads * FLOAT_BYTES * (dim + partials * (dim + 2))


def table_of_costs(options, lengths, heads, kv_heads, layers, dim):
    attend = attention_us(options.kvasir, options.model, options.device, lengths, layers)
    print("| tokens | attention alone | network | query and answer, KiB | K and V, MiB | query goes there | K and V come"
          " here | ratio |")
    print("|---|---|---|---|---|---|---|---|")
    for tokens, alone in zip(lengths, attend):
        shipped = shipped_bytes(heads, dim, tokens)
        fetched = 2 * kv_heads * dim * KV_BYTES * tokens
        for name in ("nvlink", "infiniband", "ethernet"):
            latency, us_per_byte = network(name)
            there = 2 * latency + shipped * us_per_byte + alone
            here = 2 * latency + fetched * us_per_byte + alone
            print(f"| {tokens:,} | {alone:.0f} us | {name} | {shipped / 1024:.0f} | {fetched / 2**20:.1f} | {there:.0f} us |"
                  f" {here:.0f} us | {here / there:.1f} |")


def table_of_splits(options, lengths, heads, layers, dim):
    """Cards of both instances work at one time; each sends the queries of its own heads."""
    whole = attention_us(options.kvasir, options.model, options.device, lengths, layers, cards=8)
    half = attention_us(options.kvasir, options.model, options.device, [n // 2 for n in lengths], layers, cards=4)
    latency, us_per_byte = network("nvlink")
    print("| tokens | 8 cards | 2 x 4 cards, attention | communication | of 8 cards' attention | in all | ratio |")
    print("|---|---|---|---|---|---|---|")
    for tokens, one, two in zip(lengths, whole, half):
        moved = 2 * latency + shipped_bytes(heads // 4, dim, tokens // 2) * us_per_byte
        print(f"| {tokens:,} | {one:.0f} us | {two:.0f} us | {moved:.1f} us | {100 * moved / one:.1f} % |"
              f" {two + moved:.0f} us | {(two + moved) / one:.2f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--kvasir", default="build/release/kvasir")
    parser.add_argument("--model", default="llama-2-7b")
    parser.add_argument("--device", default="a100-80g")
    parser.add_argument("--lengths", default="1000,5000,10000,50000,100000")
    parser.add_argument("--split", action="store_true")
    options = parser.parse_args()
    model = json.loads((CATALOGUE / "models" / f"{options.model}.json").read_text())
    heads, kv_heads, layers = (model[key] for key in ("num_attention_heads", "num_key_value_heads", "num_hidden_layers"))
    dim = model.get("head_dim", model["hidden_size"] // heads)
    lengths = [int(n) for n in options.lengths.split(",")]
    if options.split:
        table_of_splits(options, lengths, heads, layers, dim)
    else:
        table_of_costs(options, lengths, heads, kv_heads, layers, dim)


if __name__ == "__main__":
    main()
