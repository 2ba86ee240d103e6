#!/usr/bin/env python3
"""Policies under a bound on TPOT, on a grid that is fixed before it is run, each point served for real. One command:

    tpot_grid.py --out DIR [--policies vllm:batch=tpot,vllm-swap:batch=tpot,hcache:batch=tpot,ellm] [--seeds 3]

A point is a model, a prefix length, a bound on the mean TPOT, a device memory and the speed of an emulated link. Its
load is a closed batch: --seconds' worth of requests that are all there at once, so that memory binds, with prompts and
forced outputs of random lengths around the prefix's and --output. Prefix caches are off, and there is no bound on decode
stalls but what a policy has itself.

The study measures first, for each model:

1. a token: seconds of a prompt's token (`kvasir eval --speed`). A link of ratio x moves the K and V of a token in x
   times that. Llama-2-13B on an A100 behind PCIe 4 has 0.82 MB at some 25 GB/s, 0.033 ms, against 0.14 ms: 0.23.
2. steady TPOT: the mean with as many requests in flight as the device memory holds, on the reference policy with
   memory for more. An SLO is a multiple of it, in whole milliseconds, the same for every policy.

Device memory is in mean requests (prefix and output) that fit. All policies serve a point with one seed before the next
seed comes, and their order turns from point to point. A run during which more than --most-steal of the CPU time was
stolen is made once more, and the second one counts. One server of each policy serves all that differs in SLO and seed only. What
else runs on the machine is not seen as stolen: leave it alone.

Goodput: requests whose mean TPOT met the bound, per second until the last request ended. The ratio is that of the subject
(--subject; ellm, or the last of --policies) to the best baseline of the point, the one with the greatest mean goodput over
the same seeds, which favours the baselines. Its interval is that of a ratio of means over paired seeds.

DIR gets grid.json, table.md and picture.svg, beside the models and a file for each run. What is in DIR already is not run
again: delete a file to measure it again. Settings that differ from DIR's are refused. --quick: two points with two seeds.
"""

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
import urllib.request
from collections import namedtuple
from pathlib import Path
from xml.sax.saxutils import escape

sys.path.insert(0, str(Path(__file__).resolve().parent))
import pressure_study as study  # noqa: E402
from pressure_study import names, readable, say, turned  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
POLICIES = "vllm:batch=tpot,vllm-swap:batch=tpot,hcache:batch=tpot,ellm"
# The grid: 54 points. A decode step alone takes some 11 tokens' time here, and some 120 on the A100: 0.02 is the link of
# which a step moves as many tokens as there.
SLICES = ("mha:prefix=32,128:slo=2,4:memory=4:link=1,0.23,0.05,0.02",
          "mha:prefix=512:slo=2,4:memory=4:link=0.23,0.05,0.02",
          "mha:prefix=32,128:slo=2,4:memory=12:link=0.23,0.05",
          "gqa:prefix=32,128:slo=2,4:memory=4:link=0.23,0.05,0.02",
          "smollm2:prefix=32:slo=2,4:memory=4:link=0.23,0.05,0.02")
QUICK = ("mha:prefix=32:slo=1.5,4:memory=4:link=0.05",)
MADE = {  # flags of tools/make_model.py
    "mha": "--layers 6 --dim 512 --heads 8 --ffn 1408 --vocab 4096 --context 2048 --weights q8_0",
    "gqa": "--layers 6 --dim 512 --heads 8 --kv-heads 2 --ffn 1408 --vocab 4096 --context 2048 --weights q8_0",
}
FETCHED = {"smollm2": "SmolLM2-135M-Instruct.Q4_1.gguf"}  # by tools/fetch_model.py
WORDS = ("the of and to in is that it for was on are as with be at this have from or by one not but what all were when we "
         "there can an your which their said if will each about how up out them then many some so").split()  # a token each
DIMENSIONS = ("prefix", "slo", "memory", "link")
WITHOUT_HOST = ("vllm", "fcfs", "orca")  # policies that keep nothing on a host tier
# Of /metrics: what is kept of each run, as differences. The last three are of policies that choose a ratio r.
COUNTERS = ("engine_steps_total", "engine_steps_staged_total", "engine_stalled_seconds_total", "engine_deferred_rows_total",
            "kv_tokens_computed_again_total", "kv_tokens_projected_total", "num_preemptions_total",
            "preemptions_by_kind_total", "link_bytes_total", "link_busy_seconds_total",
            "partial_history_steps_total", "partial_history_ratio_sum_total", "partial_history_tokens_total")
SETTINGS = ("policies", "slices", "output", "range_ratio", "seconds", "drain_timeout", "kv_cache_dtype", "block_size",
            "kv_layer_group", "host_size", "threads", "max_num_seqs", "reference", "most_steal", "profile_seconds",
            "serve_flag", "policy_flag", "bench_flag")  # of a study: the same in all its runs

Point = namedtuple("Point", ("model", *DIMENSIONS))


# --- Arithmetic -----------------------------------------------------------------------------------------------------


def slice_points(text):
    """MODEL:prefix=32,128:slo=…:memory=…:link=…: all combinations, as they are served: what a server is started for
    changes slowest."""
    model, *parts = text.split(":")
    values = {}
    for part in parts:
        key, _, numbers = part.partition("=")
        try:
            values[key] = [float(number) for number in numbers.split(",")]
        except ValueError:
            values[key] = []
    if set(values) != set(DIMENSIONS) or len(parts) != len(DIMENSIONS) or any(
            not v or min(v) <= 0 for v in values.values()):
        raise argparse.ArgumentTypeError(f"{text} is not MODEL:prefix=…:slo=…:memory=…:link=… with numbers above 0")
    return [Point(model, int(prefix), slo, memory, link) for prefix, memory, link, slo in
            itertools.product(values["prefix"], values["memory"], values["link"], values["slo"])]


def grid_of(slices):
    points = [point for text in slices for point in slice_points(text)]
    return list(dict.fromkeys(points))


def point_name(p):
    return f"{p.model}-prefix{p.prefix}-slo{p.slo:g}-memory{p.memory:g}-link{p.link:g}"


def device_bytes(bytes_per_token, requests, prefix, output, range_ratio, block_size):
    """For so many mean requests, whose last block is half full in the mean, and no less than the longest one needs."""
    mean = requests * (prefix + output + block_size / 2)
    longest = longest_request(prefix, output, range_ratio) + 2 * block_size
    return math.ceil(max(mean, longest) / block_size) * block_size * bytes_per_token


def longest_request(prefix, output, range_ratio):
    """Tokens that a server must take at the most, with a few that a tokenizer may add."""
    return math.ceil((prefix + output) * (1 + range_ratio)) + 16


def drawn_requests(seed, count, prefix, output, range_ratio):
    """Lines of a custom dataset: prompts whose words are a token each, and output lengths."""
    draw = random.Random(seed)

    def length(mean):
        return max(2, draw.randint(math.ceil(mean * (1 - range_ratio)), math.floor(mean * (1 + range_ratio))))

    return [{"prompt": "".join(" " + draw.choice(WORDS) for _ in range(length(prefix))), "max_tokens": length(output)}
            for _ in range(count)]


def link_gbytes_per_s(bytes_per_token, token_s, ratio):
    """With which the K and V of a token are moved in `ratio` times what computing one takes."""
    return bytes_per_token / (ratio * token_s) / 1e9


def slo_ms(steady_tpot_ms, multiple):
    """Whole, as a server takes it."""
    return max(1, round(steady_tpot_ms * multiple))


def request_count(seconds, prefix, output, memory, token_s, steady_tpot_ms):
    """That the reference policy would serve in that time with its memory full, and no fewer than twice what memory
    holds, so that some wait."""
    each = prefix * token_s + output * steady_tpot_ms / 1e3 / memory
    return max(math.ceil(2 * memory), round(seconds / each))


def prefill_and_decode(text):
    """Tokens per second, of what `kvasir eval --speed` prints."""
    found = re.search(r"prefill_tok_s=([0-9.]+) decode_tok_s=([0-9.]+)", text)
    if not found:
        sys.exit(f"kvasir eval --speed printed no speeds: {text.strip()}")
    return float(found[1]), float(found[2])


def cpu_times(text):
    """All and stolen jiffies, of /proc/stat. Guests' time is in user's already."""
    fields = [int(word) for word in text.split("\n", 1)[0].split()[1:9]]
    return sum(fields), fields[7] if len(fields) > 7 else 0


def steal_share(before, after):
    total = after[0] - before[0]
    return (after[1] - before[1]) / total if total > 0 else 0.0


def counters_of(text):
    """{name or name{label=value,…}: value} of COUNTERS; the labels of the whole server are left out."""
    found = {}
    for name, labels, value in re.findall(r"^kvasir:(\w+)\{([^}]*)\} (\S+)$", text, re.MULTILINE):
        if name in COUNTERS:
            own = [f"{k}={v}" for k, v in re.findall(r'(\w+)="([^"]*)"', labels) if k not in ("model_name", "emulated")]
            found[name + ("{" + ",".join(own) + "}" if own else "")] = float(value)
    return found


def grown(before, after):
    return {key: value - before.get(key, 0.0) for key, value in after.items()}


def ratio_share(counters):
    """The share of steps in which r was above 0: as the policy counted its choices, else the steps that read through the
    stage ring; None where no step is known."""
    some, none = (counters.get(f"partial_history_steps_total{{ratio={kind}}}") for kind in ("some", "zero"))
    if some is not None and none is not None:
        return some / (some + none) if some + none else None
    steps = counters.get("engine_steps_total")
    return counters.get("engine_steps_staged_total", 0.0) / steps if steps else None


def ratio_mean(counters):
    """The mean r of those steps in which it was above 0, or None."""
    some, total = counters.get("partial_history_steps_total{ratio=some}"), counters.get("partial_history_ratio_sum_total")
    return total / some if some and total is not None else None


def mean_interval(values):
    """As pressure_study has it, but that one value has no interval: None."""
    mean, half = study.mean_interval(values)
    return mean, half if len(values) > 1 else None


def paired_ratio(subject, baseline):
    """The ratio of the means and the half width of its 95 % interval (None for one pair), from pairs: Student's t over
    the deviations from that ratio. None: both are nothing; infinite where only the baseline is."""
    base = statistics.fmean(baseline)
    if base == 0:
        return None if statistics.fmean(subject) == 0 else (math.inf, None)
    ratio = statistics.fmean(subject) / base
    _, half = mean_interval([s - ratio * b for s, b in zip(subject, baseline)])
    return ratio, None if half is None else half / base


def surely(ratio):
    """1: above 1 with its whole interval, -1: below; 0: one cannot say."""
    if not ratio or ratio["half"] is None or abs(ratio["mean"] - 1) <= ratio["half"]:
        return 0
    return 1 if ratio["mean"] > 1 else -1


def best_of(goodputs):
    """The policy with the greatest mean; the first of equals. `goodputs`: {policy: [of each seed]}."""
    return max(goodputs, key=lambda policy: statistics.fmean(goodputs[policy]))


def summary(rows):
    """Of the points whose ratio is a number."""
    ratios = [r["ratio"] for r in rows if r["ratio"] and math.isfinite(r["ratio"]["mean"]) and r["ratio"]["mean"] > 0]
    if not ratios:
        return None
    return {"points": len(rows), "with_ratio": len(ratios),
            "geometric_mean": math.exp(statistics.fmean(math.log(r["mean"]) for r in ratios)),
            "least": min(r["mean"] for r in ratios), "greatest": max(r["mean"] for r in ratios),
            "surely_above_1": sum(surely(r) > 0 for r in ratios), "surely_below_1": sum(surely(r) < 0 for r in ratios),
            "some_ratio_chosen": sum(bool(r["r_share"]) for r in rows)}


def row_of(point, load, policies, subject, runs):
    """A point's figures. `runs`: {policy: [a run's record for each seed]}; what a policy lacks a seed of is left out."""
    row = {"point": point._asdict(), **load, "policies": {}, "best": None, "ratio": None, "r_share": None, "r_mean": None}
    seeds = [s for s in range(max(map(len, runs.values()), default=0)) if all(len(r) > s and r[s] for r in runs.values())]
    for policy in policies if seeds else ():
        results = [runs[policy][s] for s in seeds]
        row["policies"][policy] = figures = {}
        for key in ("request_goodput", "output_throughput", "mean_tpot_ms", "attainment_tpot"):
            values = [r[key] or 0.0 for r in results]
            mean, half = mean_interval(values)
            figures[key] = {"mean": mean, "half": half, "seeds": values}
        figures["unserved"] = sum(r["unserved"] for r in results)
        figures["failed"] = sum(r["failed"] + r["refused"] for r in results)
        figures["counters"] = {key: statistics.fmean(r["counters"].get(key, 0.0) for r in results)
                               for key in sorted({k for r in results for k in r["counters"]})}
    baselines = {p: row["policies"][p]["request_goodput"]["seeds"] for p in row["policies"] if p != subject}
    if baselines and subject in row["policies"]:
        row["best"] = best_of(baselines)
        ratio = paired_ratio(row["policies"][subject]["request_goodput"]["seeds"], baselines[row["best"]])
        row["ratio"] = {"mean": ratio[0], "half": ratio[1]} if ratio else None
        counters = row["policies"][subject]["counters"]
        row["r_share"], row["r_mean"] = ratio_share(counters), ratio_mean(counters)
    return row


# --- What comes out -------------------------------------------------------------------------------------------------


def with_half(figure, digits=3):
    mean = readable(figure["mean"], digits)
    return mean if figure["half"] is None else f"{mean} ± {readable(figure['half'], 2)}"


def ratio_text(ratio):
    if not ratio:
        return "–"
    return with_half(ratio) if math.isfinite(ratio["mean"]) else "∞"


def table(rows, policies, subject):
    def lines(key, title, more):
        heads = ["model", "prefix", "SLO, ×", "SLO, ms", "memory, requests", "link, ×", "requests"]
        yield f"**{title}**\n"
        yield "| " + " | ".join(heads + policies + [head for head, _ in more]) + " |"
        yield "|" + "---|" * (len(heads) + len(policies) + len(more))
        for row in rows:
            p = row["point"]
            cells = [p["model"], str(p["prefix"]), f"{p['slo']:g}", str(row["slo_ms"]), f"{p['memory']:g}",
                     f"{p['link']:g}", str(row["requests"])]
            cells += [with_half(row["policies"][q][key]) if q in row["policies"] else "–" for q in policies]
            yield "| " + " | ".join(cells + [text(row) for _, text in more]) + " |"

    def share(row):
        mean = "" if row["r_mean"] is None else f" (mean {row['r_mean']:.2g})"
        return "–" if row["r_share"] is None else f"{100 * row['r_share']:.3g}{mean}"

    more = [(f"{subject} / best", lambda row: ratio_text(row["ratio"])), ("best", lambda row: row["best"] or "–"),
            ("r > 0, % of steps", share)]
    goodput = lines("request_goodput", "Goodput under the SLO, requests per second", more)
    return "\n".join([*goodput, "", *lines("output_throughput", "Output tokens per second", [])]) + "\n"


def colour(ratio):
    """White for 1, blue for twice as much and more, red for half as much and less; grey for nothing."""
    if not ratio:
        return "#d9d9d9"
    mean = ratio["mean"]
    depth = 1.0 if mean == math.inf else -1.0 if mean <= 0 else max(-1.0, min(1.0, math.log2(mean)))
    end = (33, 102, 172) if depth > 0 else (178, 24, 43)
    return "#" + "".join(f"{round(255 + (e - 255) * abs(depth)):02x}" for e in end)


def picture(rows, subject):
    """An SVG: a heat map of the ratios, with columns by prefix and SLO, rows by the rest."""
    width, height, left, top = 84, 26, 230, 84
    columns = sorted({(r["point"]["prefix"], r["point"]["slo"]) for r in rows})
    order = list(dict.fromkeys(r["point"]["model"] for r in rows))
    lines = sorted({(order.index(r["point"]["model"]), r["point"]["memory"], -r["point"]["link"]) for r in rows})
    w, h = max(560, left + width * len(columns) + 20), top + height * len(lines) + 70
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{w}" height="{h}" viewBox="0 0 {w} {h}" '
           f'font-family="sans-serif" font-size="12">', f'<rect width="{w}" height="{h}" fill="white"/>']

    def text(x, y, what, anchor="middle", more=""):
        out.append(f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{more}>{escape(what)}</text>')

    text(10, 22, f"Goodput under the SLO: {subject} / best baseline", "start", ' font-size="15"')
    text(left - 10, top - 24, "prefix, tokens", "end")
    text(left - 10, top - 8, "SLO", "end")
    text(10, top - 8, "model, memory, link", "start")
    for i, (prefix, slo) in enumerate(columns):
        text(left + (i + 0.5) * width, top - 24, f"{prefix}")
        text(left + (i + 0.5) * width, top - 8, f"{slo:g} ×")
    for j, (model, memory, link) in enumerate(lines):
        text(left - 10, top + (j + 0.65) * height, f"{order[model]}, {memory:g} requests, {-link:g} ×", "end")
    for row in rows:
        p = row["point"]
        x = left + columns.index((p["prefix"], p["slo"])) * width
        y = top + lines.index((order.index(p["model"]), p["memory"], -p["link"])) * height
        ratio = row["ratio"]
        fill = colour(ratio)
        dark = sum(int(fill[i:i + 2], 16) for i in (1, 3, 5)) < 380
        out.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{fill}" stroke="#888"/>')
        ink = f' fill="{"white" if dark else "black"}"' + (' font-weight="bold"' if surely(ratio) else "")
        shown = "–" if not ratio else "∞" if ratio["mean"] == math.inf else f"{ratio['mean']:.2f}"
        text(x + width / 2, y + 0.65 * height, shown, more=ink)
        if row["r_share"]:
            out.append(f'<circle cx="{x + width - 11}" cy="{y + height / 2:g}" r="4.5" '
                       f'fill="{"white" if dark else "black"}"/>')
    y = top + height * len(lines) + 24
    text(10, y, "Dot: r > 0 in some step. Bold: the 95 % interval leaves 1 out. Grey: no goodput at all.", "start")
    x = 10
    for mean in (0.5, 0.71, 1.0, 1.41, 2.0):
        out.append(f'<rect x="{x}" y="{y + 12}" width="50" height="18" fill="{colour({"mean": mean})}" stroke="#888"/>')
        text(x + 25, y + 25, f"{mean:g}", more=f' fill="{"white" if mean in (0.5, 2.0) else "black"}"')
        x += 50
    return "\n".join([*out, "</svg>"]) + "\n"


def describe(settled, rows, redone, seconds):
    s = settled["settings"]
    lines = [f"{settled['cpus']} CPUs, {s['threads']} of them compute. Outputs {s['output']} tokens ± "
             f"{100 * s['range_ratio']:.0f} %, and prompts likewise.",
             "", "| model | a token, ms | decode alone, tokens of a prompt | KV of a token, KiB | link at 1 ×, GB/s |",
             "|---|---|---|---|---|"]
    for name, m in settled["models"].items():
        lines.append(f"| {name} | {1e3 * m['token_s']:.3f} | {m['decode_s'] / m['token_s']:.1f} | "
                     f"{m['bytes_per_token'] / 1024:g} | {link_gbytes_per_s(m['bytes_per_token'], m['token_s'], 1):.3g} |")
    runs = sum(len(f["request_goodput"]["seeds"]) for row in rows for f in row["policies"].values())
    lines += ["", f"{runs} runs, {seconds:.1f} s each in the mean; {redone} made again because of stolen CPU time (above "
              f"{100 * s['most_steal']:g} %)."]
    lost = {policy: [sum(row["policies"].get(policy, {}).get(key, 0) for row in rows) for key in ("unserved", "failed")]
            for policy in s["policies"]}
    lines += [f"{policy}: {unserved} requests were not served, of which {failed} failed or were refused."
              for policy, (unserved, failed) in lost.items() if unserved]
    overall = summary(rows)
    if overall:
        lines += ["", f"Ratio at {overall['with_ratio']} of {overall['points']} points: geometric mean "
                  f"{overall['geometric_mean']:.3g}, {overall['least']:.3g} to {overall['greatest']:.3g}; surely above 1 at "
                  f"{overall['surely_above_1']}, surely below at {overall['surely_below_1']}; r > 0 at "
                  f"{overall['some_ratio_chosen']}."]
    return "\n".join(lines) + "\n"


# --- Servers and runs -----------------------------------------------------------------------------------------------


def host_flags(o, policy, link):
    """What a policy with a host tier gets."""
    if policy.split(":")[0] in WITHOUT_HOST:
        return []
    flags = ["--kv-offloading-size", o.host_size, "--kv-layer-group", str(o.kv_layer_group)]
    return flags + (["--link-gbytes-per-s", f"{link:.6g}"] if link else [])


def own_flags(o, policy):
    """Of --policy-flag: the policy's own words. A name may have settings, with a = of their own."""
    split = (flag.split("=--", 1) for flag in o.policy_flag)
    return ["--" + word for name, word in split if name in (policy, policy.split(":")[0])]


class Server(study.Server):
    """`kvasir serve` with one policy for requests up to `longest` tokens: where the device tier has room for such a one,
    none of it is kept free for staging but by policies that stage."""

    def __init__(self, o, model, policy, device, longest, link=None, profile=None):
        self.port = study.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.command = [o.kvasir, "serve", model, "--port", str(self.port), "--scheduling-policy", policy,
                        "--kv-cache-memory-bytes", str(int(device)), "--kv-cache-dtype", o.kv_cache_dtype, "--block-size",
                        str(o.block_size), "--no-enable-prefix-caching", "--max-decode-stall-ms", "0", "--max-num-seqs",
                        str(o.max_num_seqs), "--max-model-len", str(longest), "--threads", str(o.threads),
                        *host_flags(o, policy, link), *(["--cost-profile", str(profile)] if profile else []),
                        *o.serve_flag, *own_flags(o, policy)]
        self.log = Path(o.out, f"server-{policy}.log")

    def counters(self):
        with urllib.request.urlopen(self.url + "/metrics", timeout=30) as answer:
            return counters_of(answer.read().decode())


def stat():
    try:
        return cpu_times(Path("/proc/stat").read_text())
    except OSError:
        return 0, 0


def load(o, server, path, label, prefix, requests, seed, *flags):
    """One run of `kvasir bench`, whose result is left at `path`."""
    lines = drawn_requests(seed, requests, prefix, o.output, o.range_ratio)
    prompts = Path(o.out, "measured", "prompts.jsonl")
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    longest = math.ceil(o.output * (1 + o.range_ratio)) + 1
    command = [o.kvasir, "bench", "--base-url", server.url, "--dataset-name", "custom", "--dataset-path", str(prompts),
               "--force-output-lengths", "--max-tokens", str(longest), "--label", label,
               "--drain-timeout", f"{o.drain_timeout:g}", "--no-progress", "--save-result", "--result-dir",
               str(path.parent), "--result-filename", path.name, *flags, *o.bench_flag]
    path.unlink(missing_ok=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if not path.exists():
        sys.exit(f"kvasir bench ended with {done.returncode}: {done.stderr.strip() or done.stdout.strip()}")
    result = json.loads(path.read_text())
    if result.get("interrupted"):
        sys.exit("interrupted")
    if result.get("length_mismatches"):
        sys.exit(f"{label}: {result['length_mismatches']} of {result['completed']} outputs have not the forced length, so "
                 f"that policies would not be compared on the same work")
    words = sum(line["prompt"].count(" ") for line in lines)
    if not result["unserved"] and not words <= result["total_input_tokens"] <= words + 2 * requests:
        sys.exit(f"{label}: prompts of {words} words have {result['total_input_tokens']} tokens, so that prefixes would "
                 f"have other lengths than the grid's: has the tokenizer a token for each common word?")
    return result


def calm(o, run):
    """What `run` returns, and whether it was called twice, since too much was stolen the first time."""
    for again in (False, True):
        begin, before = time.monotonic(), stat()
        result = run()
        share = steal_share(before, stat())
        if share <= o.most_steal:
            break
    return result, {"steal": share, "redone": again, "wall_s": time.monotonic() - begin}


def model_file(o, name):
    if name in o.model:
        return o.model[name]
    if name in MADE:
        path = Path(o.out, f"{name}.gguf")
        if not path.exists():
            part = path.with_suffix(".part")
            made = subprocess.run([o.python, str(ROOT / "tools" / "make_model.py"), *MADE[name].split(), "--name", name,
                                   str(part)])
            if made.returncode != 0:
                sys.exit("tools/make_model.py failed: --python must name a Python that has numpy, as .venv/bin/python")
            os.replace(part, path)
        return str(path)
    if name not in FETCHED:
        sys.exit(f"there is no model '{name}': give --model {name}=FILE")
    path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "kvasir", "models", FETCHED[name])
    if not path.exists():
        sys.exit(f"{path} is not there: run tools/fetch_model.py, or give --model {name}=FILE")
    return str(path)


def said(o, *words):
    """What the program printed. What it keeps of this machine stays in DIR."""
    here = {**os.environ, "XDG_CACHE_HOME": str(Path(o.out, "measured").resolve())}
    done = subprocess.run([o.kvasir, *words], env=here, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"kvasir {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    return done.stdout


def measure_model(o, name, file, points):
    """A token, its bytes, and the steady TPOT for each prefix and memory."""
    per_token = study.kv_bytes_per_token(said(o, "inspect", file), o.kv_cache_dtype)
    speed, noise = calm(o, lambda: prefill_and_decode(said(
        o, "eval", file, "--speed", "--prefill-tokens", "128", "--decode-tokens", "32", "--threads", str(o.threads),
        "--kv-cache-dtype", o.kv_cache_dtype)))
    model = {"file": Path(file).name, "bytes_per_token": per_token, "token_s": 1 / speed[0], "decode_s": 1 / speed[1],
             "steal": noise["steal"], "loads": {}}
    kinds = sorted({(p.prefix, p.memory) for p in points if p.model == name})
    room = max(device_bytes(per_token, 2 * memory, prefix, o.output, o.range_ratio, o.block_size)
               for prefix, memory in kinds)
    longest = max(longest_request(prefix, o.output, o.range_ratio) for prefix, _ in kinds)
    with Server(o, file, o.reference, room, longest) as server:
        for prefix, memory in kinds:
            path = Path(o.out, "measured", f"steady-{name}-prefix{prefix}-memory{memory:g}.json")
            load(o, server, path, "warm-up", prefix, 2, 2000)
            result, noise = calm(o, lambda: load(o, server, path, "steady", prefix, math.ceil(3 * memory), 1000,
                                                 "--max-concurrency", str(round(memory))))
            tpot = result["mean_tpot_ms"]
            requests = request_count(o.seconds, prefix, o.output, memory, model["token_s"], tpot)
            model["loads"][f"{prefix}/{memory:g}"] = {
                "steady_tpot_ms": tpot, "median_itl_ms": result["median_itl_ms"], "steal": noise["steal"],
                "requests": requests, "device_bytes": int(device_bytes(
                    per_token, memory, prefix, o.output, o.range_ratio, o.block_size))}
    return model


def prepare(o, points):
    """What is measured first, or what DIR has of it."""
    path = Path(o.out, "study.json")
    settings = {key: getattr(o, key) for key in SETTINGS}
    settings["models"] = {name: Path(file).name for name, file in sorted(o.model.items())}
    if path.exists():
        settled = json.loads(path.read_text())
        different = sorted(key for key in settings if settled["settings"].get(key) != settings[key])
        if different:
            sys.exit(f"{path} was made with another {', '.join(different)}: take another --out")
        return settled
    settled = {"settings": settings, "cpus": os.cpu_count(), "points": [p._asdict() for p in points], "models": {}}
    for name in dict.fromkeys(p.model for p in points):
        say(f"{name}: a token, and the steady TPOT")
        settled["models"][name] = measure_model(o, name, model_file(o, name), points)
    path.write_text(json.dumps(settled, indent=1) + "\n")
    return settled


def load_of(settled, p):
    """What a point's numbers mean on this machine."""
    model = settled["models"][p.model]
    own = model["loads"][f"{p.prefix}/{p.memory:g}"]
    return {"slo_ms": slo_ms(own["steady_tpot_ms"], p.slo), "requests": own["requests"], "device_bytes": own["device_bytes"],
            "link_gbytes_per_s": link_gbytes_per_s(model["bytes_per_token"], model["token_s"], p.link)}


def profile_of(o, settled, p):
    """A cost profile of the model behind that link, for every policy alike."""
    if not o.profile_seconds:
        return None
    path = Path(o.out, f"profile-{p.model}-link{p.link:g}.json")
    if not path.exists():
        part = path.with_suffix(".part")
        memory = max(m["device_bytes"] for m in settled["models"][p.model]["loads"].values())
        calm(o, lambda: said(
            o, "profile", model_file(o, p.model), "--seconds", f"{o.profile_seconds:g}", "--output", str(part),
            "--threads", str(o.threads), "--kv-cache-dtype", o.kv_cache_dtype, "--block-size", str(o.block_size),
            "--no-enable-prefix-caching", "--kv-cache-memory-bytes", str(max(memory, 16 << 20)), "--max-num-seqs",
            str(o.max_num_seqs), *host_flags(o, o.subject, load_of(settled, p)["link_gbytes_per_s"])))
        os.replace(part, path)
    return path


def run_path(o, p, policy, seed):
    return Path(o.out, "runs", f"{point_name(p)}-{policy}-seed{seed}.json")


def missing(o, points):
    return [(p, policy, seed) for p in points for policy in o.policies for seed in range(o.seeds)
            if not run_path(o, p, policy, seed).exists()]


def one_run(o, server, p, own, policy, seed):
    path = run_path(o, p, policy, seed)
    part = path.with_suffix(".part")

    def run():
        before = server.counters()
        result = load(o, server, part, policy, p.prefix, own["requests"], seed, "--slo", f"tpot:{own['slo_ms']}")
        result["counters"] = grown(before, server.counters())
        return result

    result, noise = calm(o, run)
    part.write_text(json.dumps({**result, **noise}) + "\n")
    os.replace(part, path)
    say(f"  {policy}: {result['request_goodput'] or 0:.3g} good/s, {result['output_throughput']:.4g} tokens/s, "
        f"{noise['wall_s']:.1f} s" + (f", {100 * noise['steal']:.0f} % stolen" if noise["steal"] > 0.02 else "")
        + (", a second time" if noise["redone"] else ""))


def run_grid(o, settled, points):
    """Runs what is missing. Servers live for all points that differ in their SLO only."""
    number, begin, made = 0, time.monotonic(), 0
    pending = missing(o, points)
    for _, group in itertools.groupby(points, key=lambda p: p._replace(slo=None)):
        group = list(group)
        wanted = missing(o, group)
        if not wanted:
            number += len(group) * o.seeds
            continue
        own = {p: load_of(settled, p) for p in group}
        first = own[group[0]]
        with contextlib.ExitStack() as stack:
            profile = profile_of(o, settled, group[0])
            servers = {}
            for policy in o.policies:
                if any(policy == q for _, q, _ in wanted):
                    servers[policy] = stack.enter_context(Server(
                        o, model_file(o, group[0].model), policy, first["device_bytes"],
                        longest_request(group[0].prefix, o.output, o.range_ratio), first["link_gbytes_per_s"], profile))
                    load(o, servers[policy], Path(o.out, "measured", "warm-up.json"), "warm-up", group[0].prefix,
                         math.ceil(1.5 * group[0].memory), 2000, "--slo", f"tpot:{own[group[-1]]['slo_ms']}")
            for seed in range(o.seeds):
                for p in group:
                    say(f"{point_name(p)}, seed {seed}: {own[p]['requests']} requests, TPOT {own[p]['slo_ms']} ms")
                    for policy in turned(o.policies, number):
                        if not run_path(o, p, policy, seed).exists():
                            one_run(o, servers[policy], p, own[p], policy, seed)
                            made += 1
                    number += 1
        spent = time.monotonic() - begin
        say(f"{made} of {len(pending)} runs, {spent / 60:.1f} min; some {spent / made * (len(pending) - made) / 60:.0f} min more")


def report(o, settled, points):
    def known(p, policy, seed):
        path = run_path(o, p, policy, seed)
        return json.loads(path.read_text()) if path.exists() else None

    rows, records = [], []
    for p in points:
        runs = {policy: [known(p, policy, seed) for seed in range(o.seeds)] for policy in o.policies}
        records += [r for results in runs.values() for r in results if r]
        rows.append(row_of(p, load_of(settled, p), o.policies, o.subject, runs))
    redone = sum(r["redone"] for r in records)
    seconds = statistics.fmean(r["wall_s"] for r in records) if records else 0.0
    text = describe(settled, rows, redone, seconds) + "\n" + table(rows, o.policies, o.subject)
    Path(o.out, "table.md").write_text(text)
    Path(o.out, "picture.svg").write_text(picture(rows, o.subject))
    finite = [{**r, "ratio": {"mean": None, "half": None, "infinite": True}}
              if r["ratio"] and r["ratio"]["mean"] == math.inf else r for r in rows]
    Path(o.out, "grid.json").write_text(json.dumps(
        {**settled, "subject": o.subject, "redone": redone, "mean_wall_s": seconds,
         "most_stolen": max((r["steal"] for r in records), default=0.0), "summary": summary(rows), "grid": finite},
        indent=1) + "\n")
    print(text, end="")
    say(f"Picture: {Path(o.out, 'picture.svg')}")


def estimate(o, points):
    """Seconds, before anything is measured."""
    groups = len({p._replace(slo=None) for p, _, _ in missing(o, points)})
    kinds = len({(p.model, p.prefix, p.memory) for p in points})
    profiles = len({(p.model, p.link) for p in points})
    first = 0 if Path(o.out, "study.json").exists() else kinds * o.seconds + 10
    runs = len(missing(o, points)) * o.seconds * 1.2
    return runs + groups * len(o.policies) * 3 + profiles * 1.3 * o.profile_seconds + first


def named_file(text):
    name, _, file = text.partition("=")
    if not name or not file:
        raise argparse.ArgumentTypeError(f"{text} is not NAME=FILE")
    return name, file


def parse(arguments):
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    venv = ROOT / ".venv" / "bin" / "python"
    add("--out", required=True, help="the folder of the results")
    add("--kvasir", default="build/release/kvasir", help="the program (build/release/kvasir)")
    add("--python", default=str(venv) if venv.exists() else sys.executable, help="with numpy, for tools/make_model.py")
    add("--policies", type=names, default=names(POLICIES), help=f"commas between ({POLICIES})")
    add("--subject", help="the policy that is compared with the best of the others (ellm, or the last)")
    add("--reference", default="vllm", help="whose steady TPOT the SLOs are multiples of (vllm)")
    add("--slice", dest="slices", action="append", metavar="MODEL:prefix=…:slo=…:memory=…:link=…",
        help="numbers with commas between, all combinations of which are points; may be given again. In place of: "
        + " ".join(SLICES))
    add("--model", type=named_file, action="append", default=[], metavar="NAME=FILE",
        help="a GGUF file for a slice's model")
    add("--seeds", type=int, default=3)
    add("--seconds", type=float, default=2.5, help="of load in each run, as the reference would serve it (2.5)")
    add("--drain-timeout", type=float, default=20, help="seconds after which a run ends and what is left is unserved (20)")
    add("--output", type=int, default=48, help="tokens of an output, in the mean (48)")
    add("--range-ratio", type=float, default=0.33, help="by which lengths differ from the mean at the most (0.33)")
    add("--kv-cache-dtype", default="bf16")
    add("--block-size", type=int, default=16)
    add("--kv-layer-group", type=int, default=1, help="where there is a host tier (1)")
    add("--host-size", default="256MiB", help="of the host tier, for policies that use one (256MiB)")
    add("--threads", type=int, default=1, help="that compute (1: the other of two cores is the client's and the link's)")
    add("--max-num-seqs", type=int, default=64, help="requests that run at once (64)")
    add("--profile-seconds", type=float, default=6, help="of `kvasir profile` for each model and link; 0: none (6)")
    add("--most-steal", type=float, default=0.2, help="share of CPU time above which a run is made once more (0.2)")
    add("--serve-flag", action="append", default=[], help="one more word for kvasir serve")
    add("--policy-flag", action="append", default=[], metavar="POLICY=--FLAG",
        help="one more word for kvasir serve with that policy")
    add("--bench-flag", action="append", default=[], help="one more word for kvasir bench")
    add("--quick", action="store_true", help="two points and two seeds")
    o = parser.parse_args(arguments)
    o.model = dict(o.model)
    o.slices = list(o.slices or (QUICK if o.quick else SLICES))
    if o.quick:
        o.seeds = min(o.seeds, 2)
    if any("=--" not in flag for flag in o.policy_flag):
        parser.error("--policy-flag takes POLICY=--FLAG")
    if len(o.policies) < 2 or len(set(o.policies)) < len(o.policies) or o.seeds < 1:
        parser.error("--policies must name two different ones at least, and --seeds be 1 at least")
    o.subject = o.subject or next((p for p in o.policies if p.split(":")[0] == "ellm"), o.policies[-1])
    if o.subject not in o.policies:
        parser.error(f"--subject {o.subject} is none of --policies")
    try:
        o.points = grid_of(o.slices)
    except argparse.ArgumentTypeError as problem:
        parser.error(f"--slice: {problem}")
    return o


def main():
    o = parse(None)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))  # and so the servers are
    for folder in ("runs", "measured"):
        Path(o.out, folder).mkdir(parents=True, exist_ok=True)
    say(f"{len(o.points)} points × {len(o.policies)} policies × {o.seeds} seeds: {len(missing(o, o.points))} runs to make, "
        f"some {estimate(o, o.points) / 60:.0f} min")
    settled = prepare(o, o.points)
    run_grid(o, settled, o.points)
    report(o, settled, o.points)


if __name__ == "__main__":
    main()
