"""Compares `kvasir plan` with an exhaustive run: a grid of rates x all policies x more seeds.

    python3 bench/plan_check.py --kvasir build/release/kvasir [--question NAME] [--seeds 4] [--prompts 2000] [--jobs 1]

The exhaustive run shares no code with the search: it is `kvasir simulate --trim 0.15`, first over a coarse grid of multiples
of the capacity with one seed, then over a grid 2.5 % apart around the best coarse rate, all policies with all seeds. A rate
is met when the mean over the seeds of requests that meet all bounds is at least 90 %, and the requests in the system do not
become more: from the first to the last third of the time between 30 and 95 % of the arrivals by at most 3 % of what arrives
meanwhile, by the run's timeline. It prints a Markdown row for each question.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

QUESTIONS = {
    "short": ("llama-2-7b", "l20", "random", ("--random-input-len", "200", "--random-output-len", "20", "--slo", "ttft:1000", "tbt:300")),
    "chat": ("opt-13b", "a100-40g", "alpaca", ("--slo", "ttft:1000", "tbt:200")),
    "code": ("llama-2-7b", "l20", "humaneval", ("--slo", "ttft:1000", "tbt:300")),
    "tight": ("llama-3-8b", "h100", "alpaca", ("--goodput", "ttft:500", "p99_tbt:25")),
    "long prompts": ("llama-3-8b", "l40s", "longbench", ("--slo", "ttft:4000", "tpot:150")),
    "bursts": ("opt-13b", "a100-40g", "humaneval", ("--slo", "ttft:2000", "tbt:500", "--arrival-cv", "3")),
}
PERCENT, STEP, GROWTH = 90, 0.025, 0.03


def run(command):
    began = time.time()
    done = subprocess.run(["nice", "-n", "10", *command], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout, time.time() - began


def sweep(o, flags, rates, seeds, policies="all"):
    """By policy and rate: the runs."""
    with tempfile.TemporaryDirectory() as folder:
        # No two policies' files have one name: with several, each has its policy's.
        run([o.kvasir, "simulate", *flags, "--scheduling-policy", policies, "--request-rate", rates, "--seeds", str(seeds),
             "--seed", "100", "--num-prompts", str(o.prompts), "--trim", "0.15", "--save-result", "--result-dir", folder,
             "--result-filename", "r.json", "--no-progress", "-j", str(o.jobs)])
        out = {}
        for path in pathlib.Path(folder).glob("r-*.json"):
            result = json.loads(path.read_text())
            by_rate = out.setdefault(path.stem[2:], {})
            for one in result.get("runs", [result]):
                by_rate.setdefault(one["request_rate"], []).append(one)
        return out


def growth(run, rate, prompts):
    """By how much the requests in the system become more, as a share of what arrives."""
    line = run["timeline"]
    inside = [r + w for r, w in zip(line["running"], line["waiting"])]
    begin, end = (round(share * prompts / rate / line["bin_s"]) for share in (0.3, 0.95))
    third = (end - begin) // 3
    more = statistics.fmean(inside[end - third:end]) - statistics.fmean(inside[begin:begin + third])
    return more / (2 * third * line["bin_s"] * rate)


def margin(runs, rate, prompts):
    attained = statistics.fmean(r["attainment_joint"] for r in runs) - PERCENT
    return min(attained, 100 * (GROWTH - statistics.fmean(growth(r, rate, prompts) for r in runs)))


def highest(by_rate, prompts):
    """Where the margin passes 0 for the last time, on the line between two rates; 0: it is never met."""
    points = sorted((rate, margin(runs, rate, prompts)) for rate, runs in by_rate.items())
    best = 0.0
    for i, (rate, value) in enumerate(points):
        if value < 0:
            continue
        best = rate
        if i + 1 < len(points) and points[i + 1][1] < 0:
            above, under = points[i + 1]
            best = rate + (above - rate) * value / (value - under)
    return best


def check(o, name):
    model, device, workload, bounds = QUESTIONS[name]
    flags = ["--model", model, "--device", device, "--workload", workload, *bounds]
    with tempfile.TemporaryDirectory() as folder:
        answer = pathlib.Path(folder, "plan.json")
        _, plan_s = run([o.kvasir, "plan", *flags, "--no-progress", "-j", str(o.jobs), "--json", str(answer), *o.plan_flag])
        plan = json.loads(answer.read_text())
    best = plan["policies"][0]
    level = [p["policy"] for p in plan["policies"] if p["best"] or p["level"]]
    began = time.time()
    coarse = {p: highest(r, o.prompts) for p, r in sweep(o, flags, o.coarse, 1).items()}
    middle = max(coarse.values())
    if middle == 0:
        sys.exit(f"{name}: no rate of the coarse grid is met")
    rates = ",".join(f"{middle * (1 + STEP) ** k:.6g}" for k in range(-4, 6))
    fine = {p: highest(r, o.prompts) for p, r in sweep(o, flags, rates, o.seeds).items()}
    exhaustive_s = time.time() - began
    order = sorted(fine, key=fine.get, reverse=True)
    truth = fine[order[0]]
    same = order[0] in level or fine[best["policy"]] >= 0.98 * truth
    print(f"| {name} | {model} on {device}, {workload}, {' '.join(bounds)} | {best['policy']}, {best['rate']:.3g} ± {best['half_width']:.2g} | "
          f"{order[0]}, {truth:.3g} | {100 * (best['rate'] / truth - 1):+.1f} % | {'yes' if same else 'no'} | {plan['binds']} | "
          f"{plan_s:.0f} | {exhaustive_s:.0f} |", flush=True)
    print(f"# {name}: exhaustive " + ", ".join(f"{p} {fine[p]:.3g}" for p in order[:6]) + f"; level in the plan: {', '.join(level)}",
          file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kvasir", default="build/release/kvasir")
    parser.add_argument("--question", action="append", choices=QUESTIONS, help="may be given again (default: all)")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--prompts", type=int, default=2000)
    parser.add_argument("--coarse", default="0.2x:1.6x:0.1x", help="rates of the coarse grid")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--plan-flag", action="append", default=[], help="one more flag for kvasir plan, as --plan-flag=--effort=2")
    o = parser.parse_args()
    print("| question | | plan | exhaustive | rate | policy the same or level | what binds | plan, s | exhaustive, s |\n"
          "|---|---|---|---|---|---|---|---|---|", flush=True)
    for name in o.question or QUESTIONS:
        check(o, name)


if __name__ == "__main__":
    main()
