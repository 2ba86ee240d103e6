#!/usr/bin/env python3
"""Tables in Markdown from the results of kvasir-gpu and bench/gpu_peers.py.

gpu_tables.py results.jsonl [more.jsonl]
"""

import json
import sys


def read(paths):
    facts = []
    for path in paths:
        with open(path, encoding="utf-8") as file:
            for line in file:
                try:
                    facts.append(json.loads(line))
                except ValueError:
                    print(f"gpu_tables.py: not JSON: {line[:80]!r}", file=sys.stderr)
    return facts


def table(title, heads, rows):
    if not rows:
        return
    print(f"\n### {title}\n")
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")


def number(value, digits=1):
    return "" if value is None else f"{value:,.{digits}f}"


def device(facts):
    for f in facts:
        if f.get("part") == "device" and "name" in f:
            print(f"{f['name']}, {f['multiprocessors']} multiprocessors, {f['memory_bytes'] / 2**30:.0f} GiB, "
                  f"L2 {f['l2_bytes'] / 2**20:.0f} MiB, driver for CUDA {f['driver']}, {f['host_cores']} host cores")


def problems(facts):
    rows = [(f["part"] if f["part"] != "step" else f["step"], f["result"])
            for f in facts if "result" in f and f["result"] != "ok"]
    rows += [(f.get("part", ""), f["error"]) for f in facts if "error" in f]
    rows += [(f["step"], f"exit status {f['exit']}") for f in facts if f.get("part") == "step" and f.get("exit", 0) != 0]
    rows += [(f"check {f['form']}", f"{f['mismatches']:,} of {f['outputs']:,} differ") for f in facts if f.get("good") is False]
    rows += [(f["part"], f"{f['bad']} of {f['runs']} runs have wrong outputs") for f in facts if f.get("bad")]
    rows += [(f"gemm {f['matrix']}, {f['rows']} rows, {f['kernel']}", f"{f['unequal']} of {f['sampled']} outputs are wrong")
             for f in facts if f.get("unequal") and f["kernel"].startswith(("stream", "wide"))]
    rows += [(f"{f['what']} of {f.get('batch', 1)} x {f.get('context', f.get('rows'))}", "other bits")
             for f in facts if f.get("same_bits") is False]
    rows += [(f"{f['what']} of {f.get('batch', 1)} x {f.get('context', f.get('rows'))}", "not finite")
             for f in facts if f.get("finite") is False]
    table("What failed", ("part", "why"), rows)


def checks(facts):
    found = [f for f in facts if f.get("part") == "check" and "form" in f]
    table("Instructions against their models", ("form", "outputs", "differ", "bits of not-a-number differ", ""),
          [(f["form"], f"{f['outputs']:,}", f"{f['mismatches']:,}", f"{f.get('nan_bits', 0):,}",
            ("as it should" if f["good"] else "**not as it should**")) for f in found])
    kinds = [(f["form"], kind, *counts) for f in found for kind, counts in f.get("kinds", {}).items()
             if not f["good"] and (counts[1] or counts[2])]
    table("Where forms and models differ", ("form", "operands", "outputs", "differ", "bits of not-a-number"), kinds)


def tests(facts):
    table("Kernels against the reference", ("runs", "with a wrong output"),
          [(f["runs"], f["bad"]) for f in facts if f.get("part") == "test-gemm" and "runs" in f])
    table("Wrong runs", ("kernel", "accumulates", "features", "k", "rows", "wrong", "of", "beyond"),
          [(f["kernel"], f["accumulates"], f["features"], f["k"], f["rows"], f["wrong"], f["outputs"], f["written_beyond"]) for f in facts if f.get("part") == "test-gemm" and "kernel" in f])


def floors(facts):
    found = [f for f in facts if f.get("part") == "floor" and "what" in f]
    table("What the device does at best", ("", "GB/s", "us"),
          [(f["what"], number(f.get("gb_s")), number(f.get("us"), 2) if "gb_s" not in f else "") for f in found])


def links(facts):
    found = [f for f in facts if f.get("part") == "link"]
    table("Copies between host and device, GB/s", ("method", "unit, KiB", "to device", "to host", "both, each way"),
          [(f["method"], f["unit_bytes"] >> 10, number(f["to device"]), number(f["to host"]), number(f["both, each"]))
           for f in found if "method" in f])
    rest = [f for f in found if "what" in f] + [f for f in facts if f.get("part") == "gates" and "what" in f]
    table("Events, pinning, marks and gates", ("", "us", "GB/s", ""),
          [(f["what"], number(f.get("us"), 2), number(f.get("gb_s"), 2),
            {True: "permitted", False: "not permitted"}.get(f.get("permitted"), f.get("room", f.get("error", "")))) for f in rest])


def products(facts):
    found = [f for f in facts if f.get("part") in ("gemm", "peers") and "matrix" in f and "us" in f]
    matrices = list(dict.fromkeys(f["matrix"] for f in found))
    for matrix in matrices:
        of_matrix = [f for f in found if f["matrix"] == matrix]
        rows = []
        for count in sorted({f["rows"] for f in of_matrix}):
            here = [f for f in of_matrix if f["rows"] == count]

            def best(prefix):
                some = [f for f in here if f["kernel"].startswith(prefix)]
                return min(some, key=lambda f: f["us"]) if some else None

            ours = best("stream") or best("wide")
            chosen = next((f for f in here if f["kernel"].endswith(("*", "overlapping"))), ours)
            peer, first = best("cublaslt"), next((f for f in here if f["kernel"] == "cublaslt"), None)
            torch, triton = best("torch"), best("triton")
            wrong = sum(f["unequal"] for f in here if f["kernel"].startswith(("stream", "wide")))
            rows.append((
                count, ours["kernel"].rstrip(" *") if ours else "", number(chosen["us"]) if chosen else "",
                number(ours["us"]) if ours else "", number(first["us"]) if first else "", number(peer["us"]) if peer else "",
                number(torch["us"]) if torch else "", number(triton["us"]) if triton else "",
                number(ours["tflops"]) if ours else "", number(100 * ours["of_floor"]) + " %" if ours else "",
                number(100 * peer["us"] / ours["us"]) + " %" if ours and peer else "",
                ("ok" if wrong == 0 else f"**{wrong} wrong**") if ours else ""))
        first = of_matrix[0]
        table(f"{matrix}: {first['features']:,} x {first['k']:,}",
              ("rows", "our best", "chosen, us", "best, us", "cuBLASLt, us", "its best of 8, us", "torch, us",
               "Triton fixed tile, us", "ours, TFLOP/s", "of the rate of reads", "speed of our best against cuBLASLt's", "bits"), rows)


def streams(facts):
    found = [f for f in facts if f.get("part") == "gemm" and f.get("kernel", "").startswith("stream")]
    names = list(dict.fromkeys(f["kernel"] for f in found))
    rows = []
    for key in dict.fromkeys((f["matrix"], f["rows"]) for f in found):
        here = {f["kernel"]: f for f in found if (f["matrix"], f["rows"]) == key}
        rows.append((*key, *(number(here[n]["us"]) if n in here else "" for n in names)))
    table("Few rows, us", ("matrix", "rows", *names), rows)


def tiles(facts):
    found = [f for f in facts if f.get("part") == "gemm" and f.get("kernel", "").startswith("wide")]
    names = list(dict.fromkeys(f["kernel"].rstrip(" *") for f in found))
    rows = []
    for key in dict.fromkeys((f["matrix"], f["rows"]) for f in found):
        here = {f["kernel"].rstrip(" *"): f for f in found if (f["matrix"], f["rows"]) == key}
        rows.append((*key, *(number(here[n]["us"]) + (" *" if here[n]["kernel"].endswith("*") else "") if n in here else ""
                             for n in names)))
    table("Tiles, us (* is chosen)", ("matrix", "rows", *names), rows)


def decode(facts):
    table("All products of a step", ("rows", "kernels overlap", "us", "GB/s", "of the rate of reads"),
          [(f["rows"], "yes" if f.get("overlaps") else "no", number(f["us"]), number(f["gb_s"]), number(100 * f["of_floor"]) + " %")
           for f in facts if f.get("part") == "decode-products" and "us" in f])


def leaves(facts):
    found = [f for f in facts if f.get("part") == "leaf" and "us" in f]
    table("Attention of one layer", ("", "sequences", "positions", "rows of a piece", "leaves, us", "with merge, us", "GB/s",
                                     "of the rate of reads", "TFLOP/s"),
          [(f["what"], f.get("batch", 1), f["keys"], f.get("rows_of_a_piece", 1), number(f["leaf_us"]), number(f["us"]),
            number(f.get("gb_s")), number(100 * f["of_floor"]) + " %" if "of_floor" in f else "", number(f.get("tflops")))
           for f in found])


def passes(facts):
    found = [f for f in facts if f.get("part") == "forward" and "us" in f]
    bits = lambda f: "" if f["same_bits"] is None else "the same" if f["same_bits"] else "**others**"
    table("Whole steps of decoding", ("sequences", "context", "kernels overlap", "ms", "tokens/s", "GB/s", "of the rate of reads",
                                      "bits against a batch of one"),
          [(f["batch"], number(f["context"], 0), "yes" if f["overlaps"] else "no", number(f["us"] / 1e3, 2), number(f["tokens_s"], 0),
            number(f["gb_s"]), number(100 * f["of_floor"]) + " %", bits(f)) for f in found if f["what"] == "decode"])
    table("Steps one after the other", ("model", "sequences", "steps queued", "queued as", "a step, us", "kernels alone, us", "pause, us",
                                        "host to queue it, us", "bits"),
          [(f["shape"], f["batch"], f["depth"], "graphs" if f["graphs"] else "kernels", number(f["us"]), number(f["device_us"]),
            number(f["pause_us"]), number(f["host_us"]), bits(f)) for f in facts if f.get("part") == "steps" and "us" in f])
    table("Whole prompts", ("tokens", "ms", "tokens/s", "TFLOP/s", "bits against pieces"),
          [(number(f["rows"], 0), number(f["us"] / 1e3, 2), number(f["tokens_s"], 0), number(f["tflops"]), bits(f))
           for f in found if f["what"] == "prefill"])


def others(facts):
    peers = [f for f in facts if f.get("part") == "peers"]
    table("torch's attention", ("", "batch", "queries", "keys", "us", "TFLOP/s", "GB/s"),
          [(f["what"], f["batch"], f["queries"], f["keys"], number(f["us"]), number(f["tflops"]), number(f["gb_s"]))
           for f in peers if f.get("kernel") == "sdpa" and "us" in f])
    table("torch: whole steps and prompts", ("", "sequences", "context", "ms", "tokens/s"),
          [(f["whole"], f["batch"], number(f["context"], 0), number(f["us"] / 1e3, 2), number(f["tokens_s"], 0))
           for f in peers if "whole" in f and "us" in f])
    table("Bits of one row among 1 to 1,024 rows", ("kernel", "different results", "rows that agree"),
          [(f["kernel"], f["different"], f["groups"]) for f in peers if "groups" in f])


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: gpu_tables.py results.jsonl [more.jsonl]")
    facts = read(sys.argv[1:])
    for part in (device, problems, checks, tests, floors, links, products, streams, tiles, decode, leaves, passes, others):
        part(facts)


if __name__ == "__main__":
    main()
