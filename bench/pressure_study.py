#!/usr/bin/env python3
"""Scheduling policies under memory pressure, each served and loaded in turn on this machine. One command:

    pressure_study.py --model M.gguf --out DIR [--policies vllm,sarathi] [--length-scale 0.25] [--seconds 120]
    pressure_study.py --model M.gguf --out DIR --trace lengths.csv
    pressure_study.py --model M.gguf --out DIR --overload [--overload-seconds 300]

Requests have lengths like ShareGPT's first turns (`kvasir bench --dataset-name sharegpt --length-scale`) or, with --trace,
those of a CSV file with the columns prompt and output, end where the dataset says (--force-output-lengths, which no scheduler sees) and arrive as a Poisson process. The KV cache holds
--mean-requests mean requests. The study measures, in this order:

1. unloaded: one request at a time on the baseline policy. Its mean TTFT and TPOT and the 99th percentile of its TBT, times
   fixed multiples, are the SLOs of all that follows, for every policy alike; or those that --slos names.
2. capacity: requests per second of the baseline policy with --closed requests at once, always.
3. the sweep: each policy at each multiple of that capacity with each seed, on a server of its own. The policies' order turns
   from point to point, so that a machine that slows down favours none.

Each policy is served as it is meant to be: those that cut prompts into chunks with the budget that the bound on TBT allows
(chunk_tokens), vllm-swap and layerkv with a host tier, all without a bound on decode stalls of the server's own.

DIR gets a JSON result of each point, study.json with 1 and 2, table.md and report.html. What is in DIR already is not
run again: delete a file to measure it again. Settings that differ from DIR's are refused. --overload, after the sweep's
first two steps at least, offers ten times the capacity to every policy and checks what a server owes then: refusals that
come early, /health that says 200, memory that does not grow, goodput that does not break down.
"""

import argparse
import csv
import json
import math
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

START_LIMIT_S = 600
# First turns of ShareGPT, in tokens: what kvasir bench draws. The longest output is its bound for every request.
SHAREGPT = {"mean_prompt": 161.31, "mean_output": 337.99, "longest_output": 991, "longest_total": 2048}
T975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
        2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042)
CHUNKED = ("sarathi", "fastgen", "priority", "apt-serve-s", "cacheopt")  # policies that cut prompts into chunks
SWAPPING = ("vllm-swap", "layerkv", "s3")  # those that are nothing of their own without a host tier
SLO_KINDS = ("ttft", "tpot", "tbt", "e2el")
UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
SETTINGS = ("length_scale", "trace", "mean_requests", "kv_cache_dtype", "block_size", "baseline", "slos", "slo_ttft", "slo_tpot",
            "slo_tbt", "slo_e2el", "slo_kinds", "p99_tbt", "relative_slo", "slo_reference",
            "send_slo", "seconds", "max_num_seqs", "drain_timeout", "closed", "closed_prompts",
            "unloaded_prompts", "serve_flag", "policy_flag", "bench_flag")  # of a study: the same in all its runs
COLUMNS = (("mean_ttft_ms", "TTFT mean, ms"), ("p99_ttft_ms", "TTFT p99, ms"), ("p100_ttft_ms", "TTFT largest, ms"),
           ("p99_itl_ms", "TBT p99, ms"),
           ("attainment_ttft", "TTFT met, %"), ("attainment_tpot", "mean TPOT met, %"),
           ("mean_e2el_ms", "E2EL mean, ms"), ("output_throughput", "tokens/s"),
           ("attainment_p99_tbt", "P99 TBT met, %"), ("attainment_max_tbt", "every TBT met, %"),
           ("attainment_e2el", "E2EL met, %"), ("attainment_joint", "all met, %"), ("request_goodput", "goodput, req/s"),
           ("preemptions", "preemptions"), ("unserved_percent", "unserved, %"))


# --- Arithmetic -----------------------------------------------------------------------------------------------------


def kv_bytes_per_token(inspected, dtype):
    """Of the text that `kvasir inspect` prints."""
    found = re.search(rf"^KV per token, {re.escape(dtype)}: +([0-9.]+) (\w+)", inspected, re.MULTILINE)
    if not found or found[2] not in UNITS:
        sys.exit(f"kvasir inspect names no 'KV per token, {dtype}': is --kv-cache-dtype right?")
    return float(found[1]) * UNITS[found[2]]


def trace_lengths(path):
    """What SHAREGPT has, of a trace."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            lengths = [(int(row["prompt"]), int(row["output"])) for row in csv.DictReader(file)]
    except (OSError, KeyError, TypeError, ValueError) as problem:
        sys.exit(f"--trace {path} cannot be read as CSV with the columns prompt and output: {problem!r}")
    if not lengths:
        sys.exit(f"--trace {path} has no requests")
    prompts, outputs = zip(*lengths)
    return {"mean_prompt": statistics.fmean(prompts), "mean_output": statistics.fmean(outputs),
            "longest_output": max(outputs), "longest_total": max(p + n for p, n in lengths)}


def lengths_of(o):
    """In tokens: the mean prompt and output, the longest output and the longest sum of both."""
    lengths = trace_lengths(o.trace) if o.trace else SHAREGPT
    return {key: value * o.length_scale for key, value in lengths.items()}


def kv_budget(bytes_per_token, mean_requests, lengths, block_size):
    """Bytes for so many mean requests, and no less than the longest one needs; each request's last block is half full in
    the mean."""
    mean = lengths["mean_prompt"] + lengths["mean_output"] + block_size / 2
    longest = math.ceil(lengths["longest_total"] / block_size + 1) * block_size
    tokens = max(mean_requests * mean, longest)
    return math.ceil(tokens / block_size) * block_size * bytes_per_token


def slos_of(unloaded, o):
    """Milliseconds: --slos, or, from the unloaded run, multiples of what one request alone gets."""
    if o.slos:
        return dict(o.slos)
    ttft, tpot, tbt, e2el = (unloaded[key] for key in ("mean_ttft_ms", "mean_tpot_ms", "p99_itl_ms", "p99_e2el_ms"))
    bounds = {"ttft": ttft * o.slo_ttft, "tpot": tpot * o.slo_tpot, "tbt": tbt * o.slo_tbt, "e2el": e2el * o.slo_e2el}
    return {key: math.ceil(bounds[key]) for key in o.slo_kinds}  # what a server takes is whole


def mean_interval(values):
    """The mean and the half width of its 95 % interval by Student's t (0 for one value)."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return mean, 0.0
    freedom = len(values) - 1
    t = T975[freedom - 1] if freedom <= len(T975) else 1.96 + 2.4 / freedom
    return mean, t * statistics.stdev(values) / math.sqrt(len(values))


def readable(value, digits):
    """So many digits, and never an exponent for a large number."""
    return f"{value:.0f}" if abs(value) >= 10 ** digits else f"{value:.{digits}g}"


def cell(results, key):
    values = [r[key] for r in results if r.get(key) is not None]
    if not values:
        return "–"
    mean, half = mean_interval(values)
    return readable(mean, 4) if len(values) < 2 else f"{readable(mean, 4)} ± {readable(half, 2)}"


def with_shares(result):
    submitted = result.get("submitted", 0)
    result["unserved_percent"] = 100 * result["unserved"] / submitted if submitted else None
    return result


def turned(items, by):
    """The list, begun `by` places further on."""
    by %= len(items)
    return items[by:] + items[:by]


def growth_per_minute(samples):
    """MiB per minute by least squares through (seconds, bytes), the first third left out: buffers fill then."""
    kept = samples[len(samples) // 3:]
    if len(kept) < 2:
        return 0.0
    t0, b0 = statistics.fmean(t for t, _ in kept), statistics.fmean(b for _, b in kept)
    spread = sum((t - t0) ** 2 for t, _ in kept)
    slope = sum((t - t0) * (b - b0) for t, b in kept) / spread if spread else 0.0
    return slope * 60 / (1 << 20)


def table(points, policies):
    """Markdown. `points`: {(policy, multiple): [results of the seeds]}."""
    results = [r for seeds in points.values() for r in seeds]
    there = [(key, title) for key, title in COLUMNS if any(r.get(key) is not None for r in results)]
    lines = ["| rate, × capacity | policy | seeds | " + " | ".join(title for _, title in there) + " |",
             "|---|---|---|" + "---|" * len(there)]
    for multiple in sorted({m for _, m in points}):
        for policy in policies:
            results = points.get((policy, multiple), [])
            if results:
                cells = " | ".join(cell(results, key) for key, _ in there)
                lines.append(f"| {multiple:g} | {policy} | {len(results)} | {cells} |")
    return "\n".join(lines) + "\n"


# --- Servers --------------------------------------------------------------------------------------------------------


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def health(url):
    """The status of GET /health, or 0 when there is no answer."""
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as answer:
            return answer.status
    except urllib.error.HTTPError as answer:
        return answer.code
    except (urllib.error.URLError, OSError):
        return 0


def chunk_tokens(unloaded, slos, mean_prompt, fewest):
    """The budget of a step for policies that cut prompts into chunks, as Sarathi-Serve derives it: what may go beside decodes
    within the bound on TBT. A row takes what the unloaded TTFT says, and half of the bound is left to the decodes."""
    row_ms = unloaded["mean_ttft_ms"] / mean_prompt
    tbt = slos.get("tbt", math.inf)
    return max(fewest, 512 if tbt == math.inf else int(tbt / 2 / row_ms) // 32 * 32)


def policy_flags(o, policy, study):
    """What makes the policy what it is meant to be, and --policy-flag POLICY=WORD, which comes last and so wins."""
    own = []
    system = policy.split(":")[0]  # without its settings
    if system in CHUNKED and study:
        own.append(f"--max-num-batched-tokens={study['chunk_tokens']}")
    split = (flag.split("=--", 1) for flag in o.policy_flag)  # a name may have settings, with a = of their own
    named = ["--" + word for name, word in split if name in (policy, system)]
    if system in SWAPPING and not any(word.startswith("--kv-offloading-size") for word in named):
        own.append("--kv-offloading-size=128MiB")
    given = {word.split("=")[0] for word in named}
    return [word for word in own if word.split("=")[0] not in given] + named


class Server:
    """`kvasir serve` with one policy, as a context."""

    def __init__(self, o, policy, budget, study=None, flags=()):
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [o.kvasir, "serve", o.model, "--port", str(self.port), "--scheduling-policy", policy,
                        "--kv-cache-memory-bytes", str(int(budget)), "--kv-cache-dtype", o.kv_cache_dtype, "--block-size",
                        str(o.block_size), "--no-enable-prefix-caching", "--max-decode-stall-ms", "0", "--max-num-seqs",
                        str(o.max_num_seqs), *o.serve_flag, *flags, *policy_flags(o, policy, study)]
        self.log = Path(o.out, f"server-{policy}.log")

    def __enter__(self):
        try:
            with open(self.log, "w") as log:
                self.process = subprocess.Popen(self.command, stdout=log, stderr=log, start_new_session=True)
        except OSError as problem:
            sys.exit(f"{self.command[0]} cannot be run: {problem.strerror}")
        end = time.monotonic() + START_LIMIT_S
        while health(self.url) != 200:
            if self.process.poll() is not None:
                sys.exit(f"the server ended with {self.process.returncode} before it could serve: {self.log} says why")
            if time.monotonic() > end:
                self.stop()
                sys.exit(f"the server was not ready after {START_LIMIT_S} s: {self.log} may say why")
            time.sleep(0.1)
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            return self.stop()
        if kind is None:
            sys.exit(f"the server ended with {self.process.returncode} under load: {self.log} says why")

    def stop(self):
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(90)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def rss(self):
        """Bytes, or 0 when it is gone."""
        try:
            found = re.search(r"^VmRSS:\s+(\d+) kB", Path(f"/proc/{self.process.pid}/status").read_text(), re.MULTILINE)
            return int(found[1]) * 1024 if found else 0
        except OSError:
            return 0


# --- Runs -----------------------------------------------------------------------------------------------------------


def bench(o, url, path, label, prompts, seed, *flags):
    """One run of `kvasir bench`, whose result is left at `path` when it is whole."""
    part = path.with_suffix(".part")
    longest = max(1, round(lengths_of(o)["longest_output"]))
    dataset = ["trace", "--dataset-path", o.trace] if o.trace else ["sharegpt"]
    if o.trace and "--request-rate" not in flags:
        flags = ("--request-rate", "inf", *flags)  # a trace without arrivals has no rate of its own
    command = [o.kvasir, "bench", "--base-url", url, "--dataset-name", *dataset, "--length-scale", str(o.length_scale),
               "--force-output-lengths", "--max-tokens", str(longest), "--num-prompts", str(prompts), "--seed", str(seed),
               "--label", label, "--no-progress", "--save-result", "--result-dir", str(part.parent), "--result-filename",
               part.name, *o.bench_flag, *flags]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not part.exists():
        sys.exit(f"kvasir bench ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    result = json.loads(part.read_text())
    if result.get("interrupted"):
        sys.exit("interrupted")
    if result.get("length_mismatches") and not o.allow_other_lengths:
        sys.exit(f"{label}: {result['length_mismatches']} of {result['completed']} outputs have not the forced length, so "
                 f"that policies would not be compared on the same work: does this server know forced_output_tokens?")
    os.replace(part, path)
    return with_shares(result)


def known(path):
    return with_shares(json.loads(path.read_text())) if path.exists() else None


def slo_flags(o, slos):
    """Sent to the server and counted, or only counted. Of a bound on TBT every gap counts, or the 99th percentile of a
    request's own. With --relative-slo each request has bounds of its own."""
    if o.relative_slo:
        return ["--relative-slo", o.relative_slo, "--slo-reference", o.slo_reference]

    def flag(name, tbt):
        return [name, *(f"{tbt if key == 'tbt' else key}:{value}" for key, value in slos.items())]

    counted = flag("--goodput", "p99_tbt" if o.p99_tbt else "max_tbt") if o.p99_tbt or not o.send_slo else []
    return (flag("--slo", "tbt") if o.send_slo else []) + counted


def prepare(o):
    """Steps 1 and 2, or what DIR has of them."""
    path = Path(o.out, "study.json")
    settings = {key: getattr(o, key) for key in SETTINGS}
    settings["model"] = Path(o.model).name
    if path.exists():
        study = json.loads(path.read_text())
        different = sorted(key for key in settings if study["settings"].get(key) != settings[key])
        if different:
            sys.exit(f"{path} was made with another {', '.join(different)}: take another --out")
        return study
    inspected = subprocess.run([o.kvasir, "inspect", o.model], stdout=subprocess.PIPE, text=True)
    if inspected.returncode != 0:
        sys.exit(f"{o.kvasir} inspect {o.model} ended with {inspected.returncode}: run it by hand")
    per_token = kv_bytes_per_token(inspected.stdout, o.kv_cache_dtype)
    lengths = lengths_of(o)
    budget = kv_budget(per_token, o.mean_requests, lengths, o.block_size)
    say(f"KV cache: {budget / (1 << 20):.1f} MiB for {o.mean_requests:g} mean requests of "
        f"{lengths['mean_prompt'] + lengths['mean_output']:.0f} tokens, {per_token / 1024:.1f} KiB a token")
    with Server(o, o.baseline, budget) as server:
        alone = bench(o, server.url, Path(o.out, "unloaded.json"), "unloaded", o.unloaded_prompts, 1000,
                      "--max-concurrency", "1", "--num-warmups", "2")
        closed = bench(o, server.url, Path(o.out, "capacity.json"), "capacity", o.closed_prompts, 1001,
                       "--max-concurrency", str(o.closed))
    slos = slos_of(alone, o)
    study = {"settings": settings, "kv_bytes": int(budget), "slos_ms": slos,
             "chunk_tokens": chunk_tokens(alone, slos, lengths["mean_prompt"], o.max_num_seqs),
             "capacity": closed["request_throughput"], "cpus": os.cpu_count()}
    path.write_text(json.dumps(study, indent=1) + "\n")
    return study


def point_path(o, policy, multiple, seed):
    return Path(o.out, f"{policy}-{multiple:g}x-seed{seed}.json")


def sweep(o, study):
    """Runs what is missing. The order of the policies turns with each rate and seed."""
    number = 0
    for seed in range(o.seeds):
        for multiple in o.rates:
            for policy in turned(o.policies, number):
                path = point_path(o, policy, multiple, seed)
                if path.exists():
                    continue
                rate = multiple * study["capacity"]
                say(f"{policy}, {multiple:g} × capacity ({rate:.3g} req/s), seed {seed}")
                with Server(o, policy, study["kv_bytes"], study) as server:
                    bench(o, server.url, path, policy, max(1, round(rate * o.seconds)), seed, "--request-rate",
                          f"{rate:.6g}", "--drain-timeout", str(o.drain_timeout), "--num-warmups", "2",
                          *slo_flags(o, study["slos_ms"]))
            number += 1


def results_of(o):
    points = {}
    for policy in o.policies:
        for multiple in o.rates:
            found = [known(point_path(o, policy, multiple, seed)) for seed in range(o.seeds)]
            points[policy, multiple] = [r for r in found if r is not None]
    return points


def merged(o, policy):
    """A result file of all runs of a policy, as kvasir bench --compare reads it."""
    runs = []
    for multiple in o.rates:
        for seed in range(o.seeds):
            result = known(point_path(o, policy, multiple, seed))
            if result:
                runs.append(result)
    path = Path(o.out, f"all-{policy}.json")
    path.write_text(json.dumps({**runs[0], "label": policy, "seeds": o.seeds, "runs": runs}) + "\n")
    return path


def report(o, study):
    text = describe(study) + "\n" + table(results_of(o), o.policies)
    Path(o.out, "table.md").write_text(text)
    print(text, end="")
    files = [str(merged(o, policy)) for policy in o.policies]
    page = Path(o.out, "report.html")
    done = subprocess.run([o.kvasir, "bench", "--compare", *files, "--html", str(page)], stdout=subprocess.PIPE)
    if done.returncode != 0:
        sys.exit(f"kvasir bench --compare ended with {done.returncode}")
    say(f"Report: {page}")


def describe(study):
    s, slos = study["settings"], study["slos_ms"]
    tbt = "P99 TBT" if s.get("p99_tbt") else "every TBT"
    names = {"ttft": "TTFT", "tpot": "mean TPOT", "tbt": tbt, "e2el": "E2EL"}
    times = {"ttft": "mean", "tpot": "mean", "tbt": "p99", "e2el": "p99"}
    bounds = ", ".join(f"{names[key]} {value:.0f} ms" + ("" if s["slos"] else f" ({s['slo_' + key]:g} × {times[key]})")
                       for key, value in slos.items())
    return (f"{s['model']}, {study['cpus']} CPUs; lengths of {Path(s['trace']).name if s.get('trace') else 'ShareGPT'} × {s['length_scale']:g}; KV cache "
            f"{study['kv_bytes'] / (1 << 20):.1f} MiB ({s['mean_requests']:g} mean requests); capacity of {s['baseline']} "
            f"{study['capacity']:.4g} req/s. SLOs{'' if s['slos'] else ' from the unloaded latencies'}: {bounds}. "
            f"\"All met\" and goodput take them together.\n")


# --- Overload -------------------------------------------------------------------------------------------------------


class Watch(threading.Thread):
    """Samples /health and the memory of a server every second."""

    def __init__(self, server):
        super().__init__(daemon=True)
        self.server, self.statuses, self.memory, self.ended = server, {}, [], threading.Event()

    def run(self):
        start = time.monotonic()
        while not self.ended.wait(1):
            status = health(self.server.url)
            self.statuses[status] = self.statuses.get(status, 0) + 1
            self.memory.append((time.monotonic() - start, self.server.rss()))


def overload_row(policy, result, statuses, samples, best):
    """What is checked, as a dictionary; `best` is the best goodput of the sweep, or None."""
    memory = [(t, b) for t, b in samples if b > 0]
    return {"policy": policy, "submitted": result["submitted"], "completed": result["completed"],
            "refused": result["refused"], "failed": result["failed"],
            "median_refusal_ms": result.get("median_refusal_ms"), "max_refusal_ms": result.get("max_refusal_ms"),
            "goodput_share": result["request_goodput"] / best if best else None,
            "health": {str(k): v for k, v in sorted(statuses.items())},
            "health_truthful": set(statuses) == {200},
            "rss_mib": [round(memory[0][1] / (1 << 20)), round(memory[-1][1] / (1 << 20))] if memory else None,
            "rss_growth_mib_per_minute": growth_per_minute(memory)}


def overload_table(rows):
    lines = ["| policy | submitted | completed | refused | failed | refusal, ms (median, longest) | goodput of the best | "
             "/health | RSS, MiB (first, last; per minute) |", "|---|---|---|---|---|---|---|---|---|"]
    for r in rows:
        refusal = "–" if r["median_refusal_ms"] is None else f"{r['median_refusal_ms']:.1f}, {r['max_refusal_ms']:.1f}"
        share = "–" if r["goodput_share"] is None else f"{100 * r['goodput_share']:.0f} %"
        answers = ", ".join(f"{status} × {count}" for status, count in r["health"].items())
        rss = "–" if r["rss_mib"] is None else "{}, {}; ".format(*r["rss_mib"]) + f"{r['rss_growth_mib_per_minute']:+.2f}"
        lines.append(f"| {r['policy']} | {r['submitted']} | {r['completed']} | {r['refused']} | {r['failed']} | {refusal} | "
                     f"{share} | {answers}{'' if r['health_truthful'] else ' (!)'} | {rss} |")
    return "\n".join(lines) + "\n"


def overload(o, study):
    rows = []
    rate = o.overload_rate * study["capacity"]
    for policy in o.policies:
        path = Path(o.out, f"overload-{policy}.json")
        watched = Path(o.out, f"overload-{policy}.watch.json")
        if not (path.exists() and watched.exists()):
            say(f"{policy}, {o.overload_rate:g} × capacity ({rate:.3g} req/s) for {o.overload_seconds} s")
            with Server(o, policy, study["kv_bytes"], study, ["--refuse-late"]) as server:
                watch = Watch(server)
                watch.start()
                bench(o, server.url, path, f"{policy}, overload", max(1, round(rate * o.overload_seconds)), 2000,
                      "--request-rate", f"{rate:.6g}", "--drain-timeout", str(o.drain_timeout), *slo_flags(o, study["slos_ms"]))
                watch.ended.set()
                watch.join()
            watched.write_text(json.dumps({"health": watch.statuses, "rss": watch.memory}) + "\n")
        seen = json.loads(watched.read_text())
        goodputs = [statistics.fmean(r["request_goodput"] for r in results)
                    for (p, _), results in results_of(o).items() if p == policy and results]
        rows.append(overload_row(policy, known(path), {int(k): v for k, v in seen["health"].items()}, seen["rss"],
                                 max(goodputs, default=None)))
    text = describe(study) + f"\n{o.overload_rate:g} × capacity for {o.overload_seconds} s:\n\n" + overload_table(rows)
    Path(o.out, "overload.md").write_text(text)
    print(text, end="")


def say(text):
    print(text, file=sys.stderr, flush=True)


def numbers(text):
    return [float(part) for part in text.split(",") if part]


def bounds(text):
    out = {}
    for part in names(text):
        key, _, value = part.partition(":")
        if key not in SLO_KINDS or not value.isdigit() or int(value) == 0:
            raise argparse.ArgumentTypeError(f"{part} is none of ttft:MS, tpot:MS, tbt:MS, e2el:MS")
        out[key] = int(value)
    return out


def kinds(text):
    for key in names(text):
        if key not in SLO_KINDS:
            raise argparse.ArgumentTypeError(f"{key} is none of {', '.join(SLO_KINDS)}")
    return names(text)


def names(text):
    return [part for part in text.split(",") if part]


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", required=True, help="the GGUF file")
    add("--out", required=True, help="the folder of the results")
    add("--kvasir", default="build/release/kvasir", help="the program (build/release/kvasir)")
    add("--policies", type=names, default=["orca", "vllm", "vllm-swap", "sarathi", "fastgen", "priority"],
        help="commas between (orca,vllm,vllm-swap,sarathi,fastgen,priority)")
    add("--baseline", default="vllm", help="whose latency and capacity set SLOs and rates (vllm)")
    add("--trace", metavar="FILE", help="requests have the lengths of this CSV file (columns prompt and output), in place of "
        "ShareGPT's, in an order drawn by the seed")
    add("--length-scale", type=float, default=0.25, help="of those lengths (0.25)")
    add("--mean-requests", type=float, default=25, help="that the KV cache holds (25)")
    add("--kv-cache-dtype", default="bf16")
    add("--block-size", type=int, default=16, help="tokens (16: a small part of a scaled request)")
    add("--max-num-seqs", type=int, default=64, help="requests that run at once (64)")
    add("--rates", type=numbers, default=[0.5, 0.7, 0.9, 1.1, 1.3], help="multiples of the capacity (0.5,0.7,0.9,1.1,1.3)")
    add("--seeds", type=int, default=3)
    add("--seconds", type=float, default=120, help="of arrivals at each point (120)")
    add("--drain-timeout", type=float, default=60, help="seconds after the last arrival of a point (60)")
    add("--unloaded-prompts", type=int, default=40, help="requests, one at a time (40)")
    add("--closed", type=int, default=64, help="requests at once for the capacity (64)")
    add("--closed-prompts", type=int, default=256, help="requests for the capacity (256)")
    add("--slos", type=bounds, default={}, metavar="KEY:MS,…", help="bounds that are taken as they are, of ttft, tpot, tbt "
        "and e2el, and no others; without it all four, as below")
    add("--slo-ttft", type=float, default=20, help="times the unloaded mean TTFT (20)")
    add("--slo-tpot", type=float, default=6, help="times the unloaded mean TPOT (6)")
    add("--slo-tbt", type=float, default=20, help="times the unloaded 99th percentile of TBT (20)")
    add("--slo-e2el", type=float, default=6, help="times the unloaded 99th percentile of E2EL (6)")
    add("--slo-kinds", type=kinds, default=list(SLO_KINDS), help="those of the four that there are bounds of "
        "(ttft,tpot,tbt,e2el)")
    add("--p99-tbt", action="store_true", help="a request meets its bound on TBT with the 99th percentile of its gaps, in "
        "place of every gap")
    add("--relative-slo", metavar="LOW:HIGH", help="bounds of each request's own in the sweep, as kvasir bench draws them, in "
        "place of the same ones for all; needs --slo-reference")
    add("--slo-reference", metavar="ttft:MS,tbt:MS", help="the means that they are multiples of")
    add("--no-send-slo", dest="send_slo", action="store_false", help="keep the SLOs from the server")
    add("--overload", action="store_true", help="ten times the capacity in place of the sweep")
    add("--overload-rate", type=float, default=10, help="times the capacity (10)")
    add("--overload-seconds", type=float, default=180)
    add("--serve-flag", action="append", default=[], help="one more word for kvasir serve, as --serve-flag=--threads=2")
    add("--policy-flag", action="append", default=[], metavar="POLICY=--FLAG",
        help="one more word for kvasir serve with that policy, as sarathi=--max-num-batched-tokens=128")
    add("--bench-flag", action="append", default=[], help="one more word for kvasir bench")
    add("--allow-other-lengths", action="store_true", help="go on where outputs have not the forced lengths")
    return parser.parse_args(arguments)


def main():
    o = parse(None)
    if any("=--" not in flag for flag in o.policy_flag):
        sys.exit("--policy-flag takes POLICY=--FLAG")
    if bool(o.relative_slo) != bool(o.slo_reference):
        sys.exit("--relative-slo and --slo-reference need each other")
    if not o.policies or not o.rates or o.seeds < 1:
        sys.exit("--policies, --rates and --seeds must name at least one")
    Path(o.out).mkdir(parents=True, exist_ok=True)
    study = prepare(o)
    say(describe(study))
    if o.overload:
        overload(o, study)
        return
    sweep(o, study)
    report(o, study)


if __name__ == "__main__":
    main()
