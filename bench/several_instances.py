"""What instances that lend can hold and cost, beside one instance with all of the GPUs.

By default the longest request, in tokens, as the refusal of a greater --max-model-len names it. With --prices: the seconds
of a card for the same work, the large instance's over those of a small one, by `kvasir simulate --price`. Prints a table in
Markdown.
"""

import argparse
import csv
import re
import subprocess
import tempfile

DEVICE = ["--device", "a100-80g", "--engine-overhead", "python"]
# Name, model, layers of a cell, cards of a small instance, instances that lend.
CONTEXTS = [("7B, 2", "llama-2-7b", 4, 1, 2), ("13B, 4", "llama-2-13b", 5, 2, 2), ("70B, 8", "llama-2-70b", 10, 4, 2),
            ("13B, 8", "llama-2-13b", 5, 2, 4), ("7B, 16", "llama-2-7b", 4, 1, 16), ("7B, 32", "llama-2-7b", 4, 1, 32)]
# Name, model, cards of the large and of the small instance.
PRICES = [("7B, TP 2 over TP 1", "llama-2-7b", 2, 1), ("13B, TP 4 over TP 2", "llama-2-13b", 4, 2),
          ("70B, TP 8 over TP 4", "llama-2-70b", 8, 4), ("13B, TP 8 over TP 2", "llama-2-13b", 8, 2)]
PROMPTS = [2_000, 50_000, 150_000]
CONTEXT = 50_000  # of the sequences that decode


def simulate(kvasir, *flags):
    return subprocess.run([kvasir, "simulate", *DEVICE, *flags], capture_output=True, text=True, check=False)


def cards(number):
    """Tensor parallelism of at most 8 GPUs, and pipelines of such groups beyond."""
    stages = max(1, number // 8)
    return ["--tensor-parallel-size", str(number // stages)] + (["--pipeline-parallel-size", str(stages)] if stages > 1 else [])


def longest(kvasir, *flags):
    refused = simulate(kvasir, "--block-size", "256", "--no-enable-prefix-caching", "--num-prompts", "1", "--max-model-len", "30000000", *flags).stderr
    return int(re.search(r"hold requests of (\d+) tokens", refused)[1])


def print_contexts(kvasir):
    print("| model, GPUs | alone | lent | pre-assigned | lent / alone |\n|---|---|---|---|---|")
    for name, model, group, small, instances in CONTEXTS:
        flags = ["--model", model, "--kv-layer-group", str(group)]
        alone = longest(kvasir, *flags, *cards(small))
        lent = longest(kvasir, *flags, *cards(small), "--instances", str(instances), "--scheduling-policy", "distkv")
        whole = longest(kvasir, *flags, *cards(small * instances))
        print(f"| {name} | {alone:,} | {lent:,} | {whole:,} | {lent / alone:.3g} |")


def steps_ms(kvasir, model, tensor, sequences):
    """Of each prompt alone, and of so many sequences that decode."""
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as steps:
        steps.write("prefill_rows,decode_rows,decode_context\n" + "".join(f"{n},0,0\n" for n in PROMPTS) + f"0,{sequences},{sequences * CONTEXT}\n")
        steps.flush()
        out = simulate(kvasir, "--model", model, "--max-model-len", "200000", *cards(tensor), "--price", steps.name).stdout
    return [float(row["total_ms"]) for row in csv.DictReader(out.splitlines())]


def print_prices(kvasir):
    print("| | " + " | ".join(name for name, *_ in PRICES) + " |\n|" + "---|" * (len(PRICES) + 1))
    columns = []
    for _, model, large, small in PRICES:
        one, other = steps_ms(kvasir, model, large, large // small), steps_ms(kvasir, model, small, 1)
        columns.append([large * a / (small * b) for a, b in zip(one[:-1], other)] + [one[-1] / other[-1]])
    names = [f"a prompt of {n:,} tokens" for n in PROMPTS] + [f"a token of each sequence of {CONTEXT:,}, one on the small instance and as many for a card on the large one"]
    for name, row in zip(names, zip(*columns)):
        print(f"| {name} | " + " | ".join(f"{value:.2f}" for value in row) + " |")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--kvasir", default="build/release/kvasir")
    parser.add_argument("--prices", action="store_true")
    options = parser.parse_args()
    (print_prices if options.prices else print_contexts)(options.kvasir)


if __name__ == "__main__":
    main()
