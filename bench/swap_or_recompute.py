"""Swapping a sequence out and in over the host's link, or recomputing it alone in a step: milliseconds by its length.

Steps are those of `kvasir simulate --price`, the link that of the simulator's catalogue. Prints a table in Markdown.
"""

import argparse
import csv
import json
import pathlib
import subprocess
import tempfile

CATALOGUE = pathlib.Path(__file__).resolve().parent.parent / "apps" / "simulate" / "catalog"
KV_BYTES = 2
TRANSFER_MS = 0.01  # of a transfer's start


def recompute_ms(options, lengths):
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as steps:
        steps.write("prefill_rows\n" + "".join(f"{n}\n" for n in lengths))
        steps.flush()
        out = subprocess.run([options.kvasir, "simulate", "--model", options.model, "--device", options.device, "--engine-overhead",
                              "python", "--max-model-len", str(2 * max(lengths)), "--price", steps.name],
                             capture_output=True, text=True, check=True).stdout
    return [float(row["total_ms"]) for row in csv.DictReader(out.splitlines())]


def token_bytes(model):
    """K and V of a token in all layers."""
    if "kv_lora_rank" in model:  # one row for all heads
        return KV_BYTES * model["num_hidden_layers"] * (model["kv_lora_rank"] + model["qk_rope_head_dim"])
    heads = model["num_attention_heads"]
    return 2 * KV_BYTES * model["num_hidden_layers"] * model.get("num_key_value_heads", heads) * model.get("head_dim", model["hidden_size"] // heads)


def swap_ms(tokens, bytes_per_token, bytes_per_s):
    return 2 * (TRANSFER_MS + 1e3 * tokens * bytes_per_token / bytes_per_s)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--kvasir", default="build/release/kvasir")
    parser.add_argument("--model", default="opt-13b")
    parser.add_argument("--device", default="a100-80g")
    parser.add_argument("--lengths", default="64,256,512,1024,2048,4000,8192")
    options = parser.parse_args()
    model = json.loads((CATALOGUE / "models" / f"{options.model}.json").read_text())
    link = json.loads((CATALOGUE / "devices" / f"{options.device}.json").read_text())["pcie"]
    bytes_per_token = token_bytes(model)
    lengths = [int(n) for n in options.lengths.split(",")]
    print("| tokens | recomputing | swapping out and in | ratio | equal at a link of |\n|---|---|---|---|---|")
    for tokens, step in zip(lengths, recompute_ms(options, lengths)):
        swap = swap_ms(tokens, bytes_per_token, link["bytes_per_s"] * link["efficiency"])
        equal = 2 * tokens * bytes_per_token / (step - 2 * TRANSFER_MS) / 1e6
        print(f"| {tokens:,} | {step:,.1f} ms | {swap:,.1f} ms | {step / swap:.1f} | {equal:.1f} GB/s |")


if __name__ == "__main__":
    main()
