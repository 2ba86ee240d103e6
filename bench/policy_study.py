#!/usr/bin/env python3
"""One policy against the best of all others, in the simulator, over the points of an experiment's file. One command:

    policy_study.py --experiment experiments/auto-core.json --subject auto --out DIR [--kvasir BINARY] [--points REGEX]

A point is a run of the file: a system, a workload, a load, bounds. Its other policies are those for one instance (--rivals). They are
simulated with seeds 1 to 5, and the best of them is chosen: by attainment of all bounds, or, where requests have none, by
mean E2EL. Those that seed 1 shows far behind its best (15 points of attainment; 1.5 times the mean E2EL) are not simulated with the
other four. The subject and that rival are then simulated with seeds 6 to 10, common to both. So the rival is the best of
many on other seeds than those that compare; the maximum over the seeds that compare would be flattered.

Compared are paired differences by seed:

  bounds     attainment, in points: not inferior if the difference is above -2, ahead if it is above 2.
             Where attainment is level (within 2 points): output tokens/s, not inferior if the ratio is above 0.97.
  no bounds  mean E2EL: not inferior if the ratio is below 1.05, ahead below 0.95.

p-values are of one-sided paired t tests against those margins, corrected by Holm over the points; where attainment is level, not
inferior means in both. Guard: the subject's P99
E2EL beside that of the rival, at most 1.5 times.

A run with "trace" has requests of its own: "parts" with "share", and ranges "prompt" and "output" in tokens, from which
lengths are drawn evenly, anew for the seeds that choose and for those that compare; the script writes them as traces into DIR.

DIR gets a file for each point, results.json and table.md. What is in DIR is not run again: delete a file to run it again, or
give --again for the subject alone. Other settings than those of a file are refused.
"""

import argparse
import hashlib
import json
import math
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# CacheOpt with late requests last, which attains more than with them critical, as the paper has them.
RIVALS = ("vllm,vllm-swap,vllm-random,orca,fastgen,sarathi,priority,rlp,s3,hcache,layerkv,apt-serve,apt-serve-s,"
          "cacheopt:late=last:preempt-for=running,ellm")
CHOOSING, COMPARING = 1, 6  # the first of the seeds that choose the rival, and of those that compare
KEPT = ("attainment_joint", "output_throughput", "request_throughput", "mean_ttft_ms", "p99_ttft_ms", "mean_itl_ms", "p99_itl_ms",
        "mean_e2el_ms", "p99_e2el_ms", "p99.9_e2el_ms", "judged", "completed", "preemptions", "mean_queue_ms")
POINTS, TOKENS, LATENCY, TAIL = 2.0, 0.03, 0.05, 1.5  # margins: of attainment, tokens/s, mean E2EL; of P99 E2EL
FAR_POINTS, FAR_LATENCY = 15.0, 1.5  # behind the best of the first seed: no rival


def t_tail(t, freedom):
    """P(T > t) of Student's t, by Simpson's rule over the angle atan(t / sqrt(freedom))."""
    if math.isinf(t):
        return 0.0 if t > 0 else 1.0
    scale = math.gamma((freedom + 1) / 2) / (math.sqrt(math.pi) * math.gamma(freedom / 2))
    low, high, n = math.atan(t / math.sqrt(freedom)), math.pi / 2, 2000
    width = (high - low) / n
    total = sum((1 if i in (0, n) else 4 if i % 2 else 2) * max(0.0, math.cos(low + i * width)) ** (freedom - 1)
                for i in range(n + 1))
    return min(1.0, max(0.0, scale * width / 3 * total))


def p_above(values, margin):
    """The one-sided p-value of "the mean is not above the margin"."""
    mean = statistics.fmean(values) - margin
    if len(values) < 2:
        return 1.0
    error = statistics.stdev(values) / math.sqrt(len(values))
    if error == 0:
        return 0.0 if mean > 0 else 1.0
    return t_tail(mean / error, len(values) - 1)


def holm(p_values):
    """Corrected p-values, in the order given."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    out, most = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        most = max(most, min(1.0, (len(p_values) - rank) * p_values[i]))
        out[i] = most
    return out


def without(args, *names):
    """The flags without those names and the values that follow them."""
    out, skipping = [], False
    for arg in args:
        if arg.startswith("--"):
            skipping = arg in names
        if not skipping:
            out.append(arg)
    return out


def write_trace(path, trace, count, seed):
    """A trace of so many requests whose lengths are drawn from the parts, the same for a seed."""
    draw = random.Random(seed)
    parts = trace["parts"]
    lines = ["prompt,output"]
    for part in draw.choices(parts, [part["share"] for part in parts], k=count):
        lines.append(f"{draw.randint(*part['prompt'])},{draw.randint(*part['output'])}")
    path.write_text("\n".join(lines) + "\n")


def simulate(o, args, policies, seed, seeds, rate=None):
    """{policy: {"rate": requests/s, "seeds": {seed: {figure: value}}}}"""
    args = without(args, "--scheduling-policy", "--seed", "--seeds", "--metric-percentiles")
    if rate is not None:
        args = without(args, "--request-rate") + ["--request-rate", repr(rate)]
    out = {}
    with tempfile.TemporaryDirectory() as folder:
        command = [str(o.kvasir), "simulate", *args, "--scheduling-policy", ",".join(policies), "--seed", str(seed),
                   "--seeds", str(seeds), "--metric-percentiles", "50,99,99.9", "--no-progress", "--save-result",
                   "--result-dir", folder, "--result-filename", "r.json", "--jobs", str(o.jobs)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        for path in Path(folder).iterdir():
            result = json.loads(path.read_text())
            runs = result.get("runs", [result])
            out[result["label"]] = {
                "rate": result["request_rate"],
                "seeds": {str(seed + i): {key: run.get(key) for key in KEPT} for i, run in enumerate(runs)}}
    missing = set(policies) - set(out)
    if missing:
        sys.exit(f"no result of {', '.join(sorted(missing))}: there are {', '.join(sorted(out))}")
    return out


def mean_of(runs, key):
    values = [run[key] for run in runs.values() if run.get(key) is not None]
    return statistics.fmean(values) if values else None


def bounded(runs):
    return any(run.get("attainment_joint") is not None for run in runs.values())


def rank(runs):
    """Less is better: by attainment, then tokens/s; without bounds by mean E2EL."""
    if bounded(runs):
        return (-mean_of(runs, "attainment_joint"), -mean_of(runs, "output_throughput"))
    mean = mean_of(runs, "mean_e2el_ms")
    return (math.inf if mean is None else mean, 0)


def near(choosing):
    """The policies that are not far behind the best."""
    best = min(rank(point["seeds"])[0] for point in choosing.values())
    is_bounded = any(bounded(point["seeds"]) for point in choosing.values())
    limit = best + FAR_POINTS if is_bounded else best * FAR_LATENCY
    return [policy for policy, point in choosing.items() if rank(point["seeds"])[0] <= limit]


def choose(o, args):
    """The runs that choose the rival, of all seeds, for those that the first seed does not show far behind."""
    first = simulate(o, args, o.rivals, CHOOSING, 1)
    if o.seeds == 1:
        return first
    policies = near(first)
    rate = next(iter(first.values()))["rate"]
    rest = simulate(o, args, policies, CHOOSING + 1, o.seeds - 1, None if isinstance(rate, str) else rate)
    for policy in policies:
        first[policy]["seeds"].update(rest[policy]["seeds"])
    return first


def best_of(choosing):
    """The best policy of those that were simulated with all seeds."""
    most = max(len(point["seeds"]) for point in choosing.values())
    complete = [policy for policy, point in choosing.items() if len(point["seeds"]) == most]
    return min(complete, key=lambda policy: rank(choosing[policy]["seeds"]))


def ratios(subject, rival, key):
    return [subject[seed][key] / rival[seed][key] for seed in subject]


def verdict(point):
    """What a point's comparison says; p-values are not corrected yet."""
    subject, rival = (point["compared"][policy]["seeds"] for policy in (point["subject"], point["rival"]))
    out = {"name": point["name"], "rival": point["rival"], "rate": point["compared"][point["subject"]]["rate"]}
    if bounded(subject):
        gains = [subject[seed]["attainment_joint"] - rival[seed]["attainment_joint"] for seed in subject]
        out["figure"], out["values"] = "attainment", [mean_of(subject, "attainment_joint"), mean_of(rival, "attainment_joint")]
        out["gain"] = statistics.fmean(gains)
        out["p_not_inferior"], out["p_ahead"] = p_above(gains, -POINTS), p_above(gains, POINTS)
        out["behind"], out["ahead"] = out["gain"] < -POINTS, out["gain"] > POINTS
        out["level"] = abs(out["gain"]) <= POINTS
        tokens = ratios(subject, rival, "output_throughput")
        out["tokens"] = statistics.fmean(tokens)
        if out["level"]:
            out["behind"] = out["tokens"] < 1 - TOKENS
            out["p_not_inferior"] = max(out["p_not_inferior"], p_above(tokens, 1 - TOKENS))
    else:
        slower = ratios(subject, rival, "mean_e2el_ms")
        out["figure"], out["values"] = "mean E2EL, s", [mean_of(runs, "mean_e2el_ms") / 1e3 for runs in (subject, rival)]
        out["gain"] = statistics.fmean(slower)
        out["p_not_inferior"] = p_above([-r for r in slower], -(1 + LATENCY))
        out["p_ahead"] = p_above([-r for r in slower], -(1 - LATENCY))
        out["behind"], out["ahead"] = out["gain"] > 1 + LATENCY, out["gain"] < 1 - LATENCY
        out["level"] = not out["behind"] and not out["ahead"]
        out["tokens"] = statistics.fmean(ratios(subject, rival, "output_throughput"))
    out["tail"] = statistics.fmean(ratios(subject, rival, "p99_e2el_ms"))
    out["p99_ttft_s"] = [mean_of(runs, "p99_ttft_ms") / 1e3 for runs in (subject, rival)]
    return out


def table(verdicts):
    lines = ["| point | requests/s | best other (seeds 1-5) | figure | subject | that one | difference or ratio | tokens/s | P99 E2EL | "
             "P99 TTFT, s | |", "|---|---|---|---|---|---|---|---|---|---|---|"]
    for v in verdicts:
        gain = f"{v['gain']:+.1f}" if v["figure"] == "attainment" else f"{v['gain']:.2f}"
        state = "behind" if v["behind"] else "ahead" if v["ahead"] else "level"
        if v["tail"] > TAIL:
            state += ", tail"
        lines.append(f"| {v['name']} | {v['rate']:.3g} | `{v['rival']}` | {v['figure']} | {v['values'][0]:.1f} | {v['values'][1]:.1f} | "
                     f"{gain} | {v['tokens']:.2f} | {v['tail']:.2f} | {v['p99_ttft_s'][0]:.1f} / {v['p99_ttft_s'][1]:.1f} | {state} |")
    count = lambda key: sum(1 for v in verdicts if v[key])  # noqa: E731
    lines += ["", f"{len(verdicts)} points: ahead at {count('ahead')} ({sum(v['p_ahead'] < 0.05 for v in verdicts)} with p < 0.05 after "
                  f"Holm), behind at {count('behind')}; not inferior with p < 0.05 after Holm at "
                  f"{sum(v['p_not_inferior'] < 0.05 for v in verdicts)}; P99 E2EL above {TAIL} times the rival's at "
                  f"{sum(v['tail'] > TAIL for v in verdicts)}."]
    return "\n".join(lines) + "\n"


def run_point(o, run, digest):
    path = o.out / f"{run['name']}.json"
    settings = {"run": run, "subject": o.subject, "rivals": o.rivals, "seeds": o.seeds}
    point = json.loads(path.read_text()) if path.exists() else {"name": run["name"], "settings": settings}
    if point["settings"] != settings:
        sys.exit(f"{path} was made with other settings: delete it")

    def args_for(seed):
        args = run["args"]
        if "trace" not in run:
            return args
        trace = o.out / f"{run['name']}-{seed}.csv"
        write_trace(trace, run["trace"], int(args[args.index("--num-prompts") + 1]), seed)
        return args + ["--dataset-path", str(trace.resolve())]

    def keep():
        temporary = path.with_suffix(".tmp")
        temporary.write_text(json.dumps(point, indent=1))
        os.replace(temporary, path)

    if "choosing" not in point:
        point["choosing"] = choose(o, args_for(CHOOSING))
        point["binaries"] = {"choosing": digest}
        keep()
    point["rival"], point["subject"] = best_of(point["choosing"]), o.subject
    rate = next(iter(point["choosing"].values()))["rate"]
    rate = None if isinstance(rate, str) else rate
    compared = point.setdefault("compared", {})
    wanted = [p for p in (point["rival"], o.subject) if p not in compared or (p == o.subject and o.again)]
    if wanted and not o.rivals_only:
        compared.update(simulate(o, args_for(COMPARING), wanted, COMPARING, o.seeds, rate))
        point["binaries"].update({policy: digest for policy in wanted})
        keep()
    return point


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--experiment", type=Path, required=True, help="file with the points, of the form that kvasir simulate --experiment takes")
    add("--subject", default="auto", help="the policy that is compared with the best of the others (default: auto)")
    add("--rivals", default=RIVALS, help="the others, with commas between them")
    add("--out", type=Path, required=True, help="folder of the results")
    add("--kvasir", type=Path, default=ROOT / "build/release/kvasir")
    add("--points", default="", help="only those whose names match the regular expression")
    add("--seeds", type=int, default=5, help="to choose, and as many to compare (default: 5)")
    add("--jobs", type=int, default=os.cpu_count(), help="simulations at once")
    add("--again", action="store_true", help="simulate the subject again")
    add("--rivals-only", action="store_true", help="only choose the rivals")
    o = parser.parse_args()
    if not 1 <= o.seeds <= COMPARING - CHOOSING:
        parser.error(f"--seeds {o.seeds}: 1 to {COMPARING - CHOOSING}, or the seeds that compare are those that choose")
    o.rivals = [policy for policy in o.rivals.split(",") if policy != o.subject]
    return o


def main():
    o = options()
    o.out.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256(o.kvasir.read_bytes()).hexdigest()[:16]
    runs = [run for run in json.loads(o.experiment.read_text())["runs"] if re.search(o.points, run["name"])]
    points = []
    for i, run in enumerate(runs):
        print(f"{i + 1}/{len(runs)} {run['name']}", file=sys.stderr, flush=True)
        points.append(run_point(o, run, digest))
    verdicts = [verdict(p) for p in points if o.subject in p["compared"] and p["rival"] in p["compared"]]
    if not verdicts:
        return
    for key in ("p_not_inferior", "p_ahead"):
        for v, p in zip(verdicts, holm([v[key] for v in verdicts])):
            v[key] = p
    (o.out / "results.json").write_text(json.dumps(verdicts, indent=1))
    (o.out / "table.md").write_text(table(verdicts))
    print(table(verdicts))


if __name__ == "__main__":
    main()
