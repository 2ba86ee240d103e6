#!/usr/bin/env python3
"""Compares the simulator's truth with published measurements of whole steps, which it was not fitted to.

    check_published.py build/kvasir FOLDER [--engine NAME] [--by-cards]

FOLDER holds the measurements. Prints a Markdown table: for each source, model and phase the median and the worst
absolute error, and the median error with its sign. docs/simulator-truth.md says what is compared.
"""

import argparse
import collections
import csv
import gzip
import io
import pathlib
import statistics
import subprocess
import sys
import tempfile

COLUMNS = ("prefill_rows", "history", "chunks", "decode_rows", "decode_context", "sampled")
CONTEXT = 1024  # of decoding rows where a source does not say it
MODELS = {"facebook/opt-13b": "opt-13b", "facebook/opt-66b": "opt-66b"}


def prefill(rows, history=0, chunks=1):
    return {"prefill_rows": rows, "history": history, "chunks": chunks, "sampled": chunks}


def decode(rows, context):
    """context: of each row."""
    return {"decode_rows": rows, "decode_context": rows * context, "sampled": rows}


class Case:
    """A measured time, and the steps that make it up."""

    def __init__(self, source, model, device, tensor, phase, steps, milliseconds, engine):
        self.row = (source, model, phase)
        self.run = (model, device, tensor, engine)
        self.steps, self.milliseconds = steps, milliseconds


def read(path):
    opened = gzip.open(path, "rt") if path.name.endswith(".gz") else open(path)
    with opened as file:
        return list(csv.DictReader(file))


def distserve(folder):
    """Their fits of measured iterations, over a grid of loads that fit the cards."""
    limits = {(r["model"], r["tp"]): int(r["max_num_tokens"])
              for r in read(folder / "distserve_opt_a100_80g_max_kv_tokens.csv") if r["pp"] == "1"}
    fits = collections.defaultdict(dict)
    for r in read(folder / "distserve_opt_a100_80g_fit.csv"):
        fits[r["engine"], r["model"], r["tp"]][r["phase"]] = [float(r[c]) for c in ("a_ms", "b_ms", "c_ms")]
    for (engine, model, tp), fit in fits.items():
        name, tensor = MODELS[model], int(tp)
        # SwiftTransformer is C++; vLLM was Python, with Ray between its cards. Neither used graphs then.
        overhead = "python" if engine == "vllm" else "eager"
        source = f"DistServe ({engine})"
        a, b, c = fit["prefill"]
        for length, batch in ((64, 1), (128, 1), (256, 1), (512, 1), (1024, 1), (2048, 1), (256, 4), (512, 4)):
            time = a + b * batch * length + max(c, 0) * batch * length**2
            yield Case(source, f"{name} TP{tp}", "a100-80g", tensor, "prefill",
                       [prefill(length, 0, batch)], time, overhead)
        for batch in (1, 4, 16, 32, 64, 96, 128, 256):
            for context in (128, 512, 1024, 2000):
                if batch * context > limits[model, tp]:
                    continue
                a, b, c = fit["decoding_smallbs" if batch < 95 else "decoding_largebs"]
                yield Case(source, f"{name} TP{tp}", "a100-80g", tensor, "decode", [decode(batch, context)],
                           a + b * batch * context + c * batch, overhead)


def splitwise(folder):
    """Medians over repetitions; a token's context is the prompt and half of what is generated."""
    groups = collections.defaultdict(list)
    devices = {"a100-80gb": "a100-80g", "h100-80gb": "h100"}
    for r in read(folder / "splitwise_perf_model_ms.csv.gz"):
        if r["model"] == "llama2-70b" and r["hardware"] in devices:
            key = (r["hardware"], int(r["tp"]), *(int(r[c]) for c in ("prompt_size", "batch_size", "token_size")))
            groups[key].append((float(r["prompt_time_ms"]), float(r["token_time_ms"])))
    for (hardware, tp, prompt, batch, tokens), times in groups.items():
        device, model = devices[hardware], f"llama-2-70b TP{tp}"
        source = f"Splitwise ({device})"
        phase = "prefill" if batch == 1 else "prefill, batched"
        yield Case(source, model, device, tp, phase, [prefill(prompt, 0, batch)],
                   statistics.median(t[0] for t in times), "python")
        yield Case(source, model, device, tp, "decode", [decode(batch, prompt + tokens / 2)],
                   statistics.median(t[1] for t in times), "python")


def sarathi(folder):
    """Yi-34B on two A100 PCIe cards with NVLink; figure 9: a prompt in chunks, its steps added up."""
    for r in read(folder / "sarathi_batch_times_ms.csv"):
        rows, decoding = int(r["prefill_tokens"]), int(r["decode_tokens"])
        if r["experiment"] == "figure-9":
            chunk = int(r["chunk_size"])
            steps = [prefill(min(chunk, rows - at), at) for at in range(0, rows, chunk)]
            phase = "prefill, chunked" if chunk < rows else "prefill"
        else:
            step = {**(prefill(rows) if rows else {}), **(decode(decoding, CONTEXT) if decoding else {})}
            step["sampled"] = decoding + (1 if rows else 0)
            steps = [step]
            phase = "hybrid" if rows and decoding else "prefill" if rows else "decode"
        yield Case("Sarathi-Serve", "yi-34b-200k TP2", "a100-80g-pcie", 2, phase, steps, float(r["time_ms"]),
                   "python")


def price(binary, run, steps):
    """Milliseconds of each step."""
    model, device, tensor, engine = run
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as table:
        writer = csv.DictWriter(table, COLUMNS, restval=0)
        writer.writeheader()
        writer.writerows({**step, "chunks": step.get("chunks", 1)} for step in steps)
        table.flush()
        done = subprocess.run(
            [binary, "simulate", "--model", model.split()[0], "--device", device, "--tensor-parallel-size",
             str(tensor), "--engine-overhead", engine, "--price", table.name],
            capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{binary}: {done.stderr or done.stdout}")
    return [float(row["total_ms"]) for row in csv.DictReader(io.StringIO(done.stdout))]


def errors_of(binary, cases, engine, by_cards):
    """Signed relative errors by row of the table."""
    runs = collections.defaultdict(list)
    for case in cases:
        model, device, tensor, own = case.run
        runs[model, device, tensor, engine or own].append(case)
    out = collections.defaultdict(list)
    for run, members in runs.items():
        times = iter(price(binary, run, [step for case in members for step in case.steps]))
        for case in members:
            predicted = sum(next(times) for _ in case.steps)
            source, model, phase = case.row
            row = (source, model if by_cards else model.split()[0], phase)
            out[row].append(predicted / case.milliseconds - 1)
    return out


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary", help="the program kvasir")
    parser.add_argument("folder", type=pathlib.Path, help="the folder of the measurements")
    parser.add_argument("--engine", help="one engine overhead for all, instead of each source's own")
    parser.add_argument("--by-cards", action="store_true", help="a line for each number of cards")
    arguments = parser.parse_args()
    cases = [*distserve(arguments.folder), *splitwise(arguments.folder), *sarathi(arguments.folder)]
    errors = errors_of(arguments.binary, cases, arguments.engine, arguments.by_cards)
    print("| source | model | phase | cases | median error % | worst % | median signed % |")
    print("|---|---|---|---|---|---|---|")
    by_source = collections.defaultdict(list)
    for row, signed in [*sorted(errors.items())]:
        by_source[row[0]] += signed
        print_row(*row, signed)
    for source, signed in sorted(by_source.items()):
        print_row(source, "all", "all", signed)
    print_row("all", "all", "all", [e for signed in errors.values() for e in signed])


def print_row(source, model, phase, signed):
    absolute = [abs(e) for e in signed]
    print(f"| {source} | {model} | {phase} | {len(signed)} | {100 * statistics.median(absolute):.1f} | "
          f"{100 * max(absolute):.1f} | {100 * statistics.median(signed):+.1f} |")


if __name__ == "__main__":
    main()
