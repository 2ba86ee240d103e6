#!/usr/bin/env python3
"""How true `kvasir simulate` is to `kvasir serve` on this machine. One command:

    fidelity.py --model M.gguf --out DIR [--truth FILE] [--seconds 25] [--threads 1]

1. truth: `kvasir profile --full` measures this machine, unless --truth names a file that it has written. It runs other
   requests than the following steps.
2. capacity: requests per second of each policy with --closed requests at once, always, for real.
3. each policy at --loads multiples of its capacity and at saturation, the highest load at which by the simulator 95 % of
   the offered load is served: --repeats runs for real, and one simulated. Requests have lengths like ShareGPT's first turns
   (`--dataset-name sharegpt --length-scale`), forced output lengths, no shared prefixes, and arrive as a Poisson process;
   the same seed gives both sides the same requests at the same times.

The served share of a run is the time of its arrivals over its duration, less the mean latency of a request at the lowest
load: what is offered and not served lengthens a run beyond that.

With --threads 1 a core of two is left to the server's I/O and the client. With as many threads as cores those take time
from the steps, which the profile's load shows to the simulator in the mean only.

DIR gets each JSON result and table.md. What is in DIR already is not run again; settings that differ are refused.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import pressure_study as study  # noqa: E402

METRICS = (("median_ttft_ms", "TTFT P50, ms"), ("p99_ttft_ms", "TTFT P99, ms"), ("median_itl_ms", "TBT P50, ms"),
           ("p99_itl_ms", "TBT P99, ms"), ("output_throughput", "tokens/s"))
SERVED = 0.95
TARGET_MEDIAN, TARGET_WORST = 10, 20  # percent


# --- Arithmetic -----------------------------------------------------------------------------------------------------


def served_share(result, rate, idle_e2el_ms):
    """Of the offered load. `rate`: requests per second that were offered."""
    arrivals = result["completed"] / rate
    beyond = result["duration"] - idle_e2el_ms / 1e3
    return min(1.0, arrivals / beyond) if beyond > 0 else 1.0


def saturation(shares):
    """The highest multiple up to which all serve enough. `shares`: {multiple: served share}."""
    best = None
    for multiple in sorted(shares):
        if shares[multiple] < SERVED:
            break
        best = multiple
    return best


def compare(real, simulated):
    """Rows of a point: real results of several runs, and the simulated one."""
    rows = []
    for key, title in METRICS:
        values = [r[key] for r in real]
        mean = statistics.fmean(values)
        rows.append({"key": key, "title": title, "real": mean, "simulated": simulated[key],
                     "spread": 100 * (max(values) - min(values)) / mean if mean else 0.0,
                     "error": 100 * (simulated[key] / mean - 1) if mean else 0.0})
    return rows


def summary(points):
    """Of the errors' sizes. `points`: {name: rows of compare()}."""
    errors = [(abs(row["error"]), name, row["title"]) for name, rows in points.items() for row in rows]
    worst = max(errors)
    return {"median": statistics.median(e for e, _, _ in errors), "worst": worst[0], "worst_at": f"{worst[1]}, {worst[2]}",
            "beyond": sum(e > TARGET_WORST for e, _, _ in errors), "figures": len(errors),
            "spread": statistics.median(row["spread"] for rows in points.values() for row in rows)}


def number(value):
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def table(points):
    lines = ["| policy, load | figure | real | spread | simulated | error |", "|---|---|---|---|---|---|"]
    for name, rows in points.items():
        lines += [f"| {name} | {r['title']} | {number(r['real'])} | {r['spread']:.1f} % | {number(r['simulated'])} | "
                  f"{r['error']:+.1f} % |" for r in rows]
    s = summary(points)
    lines += ["", f"Median error {s['median']:.1f} % (target {TARGET_MEDIAN}), worst {s['worst']:.1f} % (target "
              f"{TARGET_WORST}; {s['worst_at']}), {s['beyond']} of {s['figures']} beyond that; median spread of the real "
              f"runs {s['spread']:.1f} %."]
    return "\n".join(lines) + "\n"


# --- Runs -----------------------------------------------------------------------------------------------------------


def run(command, what):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    except OSError as problem:
        sys.exit(f"{command[0]} cannot be run: {problem.strerror}")
    if done.returncode != 0:
        sys.exit(f"{what} ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def truth(o):
    path = Path(o.truth or Path(o.out, "truth.json"))
    if not path.exists():
        study.say(f"profile --full, about {o.profile_seconds:g} s")
        text = run([o.kvasir, "profile", o.model, "--full", "--truth", str(path), "--seconds", f"{o.profile_seconds:g}",
                    *engine_flags(o)], "kvasir profile")
        Path(o.out, "profile.txt").write_text(text)
    return path


def engine_flags(o):
    """Of all three commands."""
    return ["--kv-cache-memory-bytes", str(o.kv_bytes), "--kv-cache-dtype", o.kv_cache_dtype, "--block-size",
            str(o.block_size), "--max-num-seqs", str(o.max_num_seqs), "--threads", str(o.threads)]


def simulate(o, device, policy, rate, prompts, path):
    if path.exists():
        return json.loads(path.read_text())
    flags = [flag for pair in zip(*[iter(engine_flags(o))] * 2) if pair[0] != "--threads" for flag in pair]
    run([o.kvasir, "simulate", "--device", str(device), *flags, "--scheduling-policy", policy, "--no-enable-prefix-caching",
         "--max-decode-stall-ms", "0", "--dataset-name", "sharegpt", "--length-scale", str(o.length_scale), "--num-prompts",
         str(prompts), "--seed", str(o.seed), "--request-rate", f"{rate:.6g}", "--no-progress", "--save-result",
         "--result-dir", str(path.parent), "--result-filename", path.name, *o.simulate_flag], "kvasir simulate")
    if not path.exists():
        sys.exit(f"kvasir simulate has not written {path}")
    return json.loads(path.read_text())


def load_of(o, capacity, multiple):
    rate = capacity * multiple
    return rate, max(1, round(rate * o.seconds))


def find_saturation(o, device, policy, capacity):
    shares, idle = {}, None
    for multiple in sorted({min(o.loads), *o.candidates}):
        rate, prompts = load_of(o, capacity, multiple)
        result = simulate(o, device, policy, rate, prompts, Path(o.out, f"search-{policy}-{multiple:g}x.json"))
        idle = result["mean_e2el_ms"] if idle is None else idle
        shares[multiple] = served_share(result, rate, idle)
    found = saturation(shares)
    if found is None:
        sys.exit(f"{policy} does not serve {100 * SERVED:g} % even at {min(shares):g} x capacity: lower --candidates")
    return found


def capacity_of(o, policy):
    path = Path(o.out, f"capacity-{policy}.json")
    if not path.exists():
        study.say(f"{policy}: capacity")
        with study.Server(o, policy, o.kv_bytes) as server:
            study.bench(o, server.url, path, "capacity", o.closed_prompts, o.seed + 1000, "--max-concurrency", str(o.closed),
                        "--num-warmups", "2")
    return json.loads(path.read_text())["request_throughput"]


def real_path(o, policy, multiple, repeat):
    return Path(o.out, f"real-{policy}-{multiple:g}x-{repeat}.json")


def measure(o, loads):
    """Runs what is missing; `loads`: {(policy, multiple): capacity}. A repetition of all, then the next one."""
    for repeat in range(o.repeats):
        for (policy, multiple), capacity in study.turned(list(loads.items()), repeat):
            path = real_path(o, policy, multiple, repeat)
            if path.exists():
                continue
            rate, prompts = load_of(o, capacity, multiple)
            study.say(f"{policy}, {multiple:g} x capacity ({rate:.3g} req/s), run {repeat + 1} of {o.repeats}")
            with study.Server(o, policy, o.kv_bytes) as server:
                study.bench(o, server.url, path, policy, prompts, o.seed, "--request-rate", f"{rate:.6g}", "--num-warmups",
                            "2")


def check_settings(o):
    path = Path(o.out, "settings.json")
    settings = {key: getattr(o, key) for key in ("length_scale", "kv_cache_dtype", "block_size", "max_num_seqs", "threads",
                                                 "kv_bytes", "seconds", "seed", "closed", "closed_prompts", "serve_flag",
                                                 "bench_flag", "simulate_flag", "profile_seconds", "truth")}
    settings["model"] = Path(o.model).name
    if path.exists():
        known = json.loads(path.read_text())
        different = sorted(key for key in settings if known.get(key) != settings[key])
        if different:
            sys.exit(f"{path} was made with another {', '.join(different)}: take another --out")
    path.write_text(json.dumps(settings, indent=1) + "\n")


def study_all(o):
    device = truth(o)
    loads = {}
    for policy in o.policies:
        capacity = capacity_of(o, policy)
        for multiple in [*o.loads, o.saturation or find_saturation(o, device, policy, capacity)]:
            loads[policy, multiple] = capacity
    measure(o, loads)
    points, shares = {}, []
    for (policy, multiple), capacity in loads.items():
        rate, prompts = load_of(o, capacity, multiple)
        real = [json.loads(real_path(o, policy, multiple, r).read_text()) for r in range(o.repeats)]
        name = f"{policy}, {multiple:g} x = {rate:.3g} req/s"
        simulated = simulate(o, device, policy, rate, prompts, Path(o.out, f"simulated-{policy}-{multiple:g}x.json"))
        points[name] = compare(real, simulated)
        lowest = json.loads(real_path(o, policy, min(o.loads), 0).read_text())
        shares.append(f"{name}: {100 * statistics.fmean(served_share(r, rate, lowest['mean_e2el_ms']) for r in real):.1f} %")
    text = (f"{Path(o.model).stem}, {o.threads} of {os.cpu_count()} cores compute, ShareGPT's lengths x {o.length_scale:g}, "
            f"{o.seconds:g} s of arrivals, {o.repeats} real runs\n\n{table(points)}\nServed for real, of the offered load: "
            + "; ".join(shares) + "\n")
    Path(o.out, "table.md").write_text(text)
    print(text, end="")


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    model = os.environ.get("KVASIR_TEST_MODEL")
    add("--model", default=model, required=not model, help="the GGUF file (KVASIR_TEST_MODEL)")
    add("--out", required=True, help="the folder of the results")
    add("--kvasir", default="build/release/kvasir", help="the program (build/release/kvasir)")
    add("--truth", default="", help="a file of kvasir profile --full with the same flags (default: made here)")
    add("--profile-seconds", type=float, default=120, help="(120)")
    add("--policies", type=study.names, default=["vllm", "sarathi"], help="commas between (vllm,sarathi)")
    add("--loads", type=study.numbers, default=[0.5, 0.75], help="multiples of the capacity (0.5,0.75)")
    add("--candidates", type=study.numbers, default=[0.8, 0.85, 0.9, 0.95, 1.0, 1.05, 1.1],
        help="multiples of the capacity for saturation (0.8,0.85,...,1.1)")
    add("--saturation", type=float, default=0, help="this multiple in place of the one found by the simulator")
    add("--repeats", type=int, default=3, help="real runs of each load (3)")
    add("--seconds", type=float, default=25, help="of arrivals in each run (25)")
    add("--threads", type=int, default=1, help="that compute (1)")
    add("--seed", type=int, default=0)
    add("--length-scale", type=float, default=0.25, help="of ShareGPT's lengths (0.25)")
    add("--kv-cache-dtype", default="bf16")
    add("--kv-bytes", type=int, default=512 << 20, help="of the KV cache (512 MiB)")
    add("--block-size", type=int, default=64, help="tokens (64)")
    add("--max-num-seqs", type=int, default=64, help="requests that run at once (64)")
    add("--closed", type=int, default=32, help="requests at once for the capacity (32)")
    add("--closed-prompts", type=int, default=160, help="requests for the capacity (160)")
    add("--serve-flag", action="append", default=[], help="one more word for kvasir serve")
    add("--bench-flag", action="append", default=[], help="one more word for kvasir bench")
    add("--simulate-flag", action="append", default=[], help="one more word for kvasir simulate")
    o = parser.parse_args(arguments)
    if not o.policies or not o.loads or o.repeats < 1:
        parser.error("--policies, --loads and --repeats must name at least one")
    o.policy_flag, o.allow_other_lengths, o.trace = [], False, None
    return o


def main():
    o = parse(None)
    Path(o.out).mkdir(parents=True, exist_ok=True)
    check_settings(o)
    o.serve_flag = [*o.serve_flag, "--threads", str(o.threads)]
    study_all(o)


if __name__ == "__main__":
    main()
