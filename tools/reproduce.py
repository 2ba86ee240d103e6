#!/usr/bin/env python3
"""Runs the experiments of experiments/, and writes one page with the papers' figures beside ours. ./dev reproduce calls it.

    reproduce.py [NAME…] [--out build/reproduce] [--num-prompts N] [--jobs N] [--again] [--page-only]

A NAME chooses the experiment of that name, as layerkv-fig8, or else those whose file begins with it: layerkv, cacheopt,
apt-serve, ellm, distkv (Infinite-LLM), sarathi; all of those by default. Each run is a call of `kvasir simulate`, or, of
experiments/commands/, of a program of this repository; its result is kept in --out, and a run that is there with the same
flags is not run again: the command may be stopped at any time and goes on where it was. --out gets index.html, and each
chart as an SVG file in charts/.
"""

import argparse
import hashlib
import json
import math
import operator
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAPERS = {"layerkv": "LayerKV", "cacheopt": "CacheOpt", "apt-serve": "Apt-Serve", "ellm": "eLLM", "distkv": "Infinite-LLM",
          "sarathi": "Sarathi-Serve"}
# Of the keys of results: what people call them, the unit, and which bound is one on it.
FIGURES = {
    "attainment_joint": ("All bounds met", "%", ""), "attainment_ttft": ("Bound on TTFT met", "%", ""),
    "attainment_tpot": ("Bound on TPOT met", "%", ""), "attainment_max_tbt": ("Bound on TBT met", "%", ""),
    "attainment_p99_tbt": ("Bound on P99 TBT met", "%", ""), "mean_ttft_ms": ("Mean TTFT", "ms", "ttft"),
    "p99_ttft_ms": ("P99 TTFT", "ms", "ttft"), "mean_tpot_ms": ("Mean TPOT", "ms", "tpot"),
    "p99_itl_ms": ("P99 time between tokens", "ms", "tbt"), "mean_e2el_ms": ("Mean end-to-end latency", "ms", "e2el"),
    "mean_normalised_latency_ms": ("Mean latency per token of output", "ms", ""),
    "mean_queue_ms": ("Mean time in the queue", "ms", ""), "mean_preempted_ms": ("Mean time preempted", "ms", ""),
    "p99_preempted_ms": ("P99 time preempted", "ms", ""), "preemptions": ("Preemptions", "", ""),
    "output_throughput": ("Output, tokens/s", "", ""), "request_throughput": ("Throughput, requests/s", "", ""),
    "steady_throughput": ("Throughput without the ends, requests/s", "", ""),
    "effective_throughput": ("Effective throughput, requests/s", "", ""), "mean_running_requests": ("Requests that run", "", ""),
    "time_at_batch_limit": ("Time at the limit of the batch", "%", "")}
# What is drawn of each run.
DRAWN = ("attainment_joint", "mean_ttft_ms", "p99_ttft_ms", "mean_tpot_ms", "p99_itl_ms", "output_throughput", "mean_e2el_ms",
         "mean_normalised_latency_ms")
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)  # Student's t with 1, 2, … degrees of freedom
MOST_ROWS = 24  # of a chart
MOST_BANDS = 3  # likewise
MOST_SYSTEMS = 20


# --- Runs -------------------------------------------------------------------------------------------------------------


def chosen(names):
    """[(experiment's name, its JSON)] of those whose name begins with one of `names`; of the papers by default."""
    files = {path.stem: path for path in sorted((ROOT / "experiments").rglob("*.json"), key=lambda path: path.stem)}
    for name in names:
        if not any(stem.startswith(name) for stem in files):
            sys.exit(f"reproduce: no file of experiments/ begins with '{name}'; there are {', '.join(files)}")
    def is_wanted(stem):
        return any(stem == name or (name not in files and stem.startswith(name)) for name in names or PAPERS)
    return [(stem, json.loads(path.read_text(encoding="utf-8"))) for stem, path in files.items() if is_wanted(stem)]


def figures_alone(result):
    """What a result of one rate and one seed says of it: numbers, without lists of requests."""
    return {key: value for key, value in result.items() if not isinstance(value, (dict, list))}


def flags_of(run):
    return run["command"] if "command" in run else run["args"]


def cpu_seconds():
    """Of all programs that this one has run."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Runs:
    """The folder of results: a folder for each experiment, in it RUN.run.json and what `kvasir simulate` wrote."""

    def __init__(self, options):
        self.options = options
        self.digest = hashlib.sha256(options.kvasir.read_bytes()).hexdigest()[:16] if options.kvasir.exists() else ""

    def path(self, experiment, run):
        return self.options.out / experiment / f"{run['name']}.run.json"

    def kept(self, experiment, run):
        """What is known of a run with these flags, or None."""
        try:
            kept = json.loads(self.path(experiment, run).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return kept if kept["args"] == flags_of(run) and kept["num_prompts"] == self.options.num_prompts else None

    def is_done(self, experiment, run):
        kept = self.kept(experiment, run)
        return kept is not None and not kept["error"] and not (self.options.again and kept["digest"] != self.digest)

    def run(self, experiment, run):
        """Runs it and keeps the result; the error's line, empty if there is none."""
        folder = self.options.out / experiment
        folder.mkdir(parents=True, exist_ok=True)
        begun, cpu_begun = time.monotonic(), cpu_seconds()
        with tempfile.TemporaryDirectory(dir=folder) as results:
            if "command" in run:
                command = [sys.executable, *(part.replace("KVASIR", str(self.options.kvasir)) for part in run["command"])]
            else:
                command = [str(self.options.kvasir), "simulate", "--experiment", str(ROOT / "experiments" / f"{experiment}.json"),
                           "--experiment-runs", run["name"], "--save-result", "--result-dir", results, "--no-progress"]
                command += ["--num-prompts", str(self.options.num_prompts)] if self.options.num_prompts else []
                command += ["--jobs", str(self.options.jobs)] if self.options.jobs else []
            done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
            error = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            read = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(results).iterdir())}
        figures = read.pop(f"{run['name']}.figures.json", None)
        kept = {"args": flags_of(run), "num_prompts": self.options.num_prompts, "digest": self.digest,
                "seconds": time.monotonic() - begun, "cpu_seconds": cpu_seconds() - cpu_begun, "error": error, "figures": figures,
                "results": [{"label": result["label"], "points": result.get("points") or [figures_alone(result)],
                             "of_seeds": [figures_alone(one) for one in result.get("runs", [])]} for result in read.values()],
                "said": done.stdout}
        temporary = self.path(experiment, run).with_suffix(".tmp")
        temporary.write_text(json.dumps(kept), encoding="utf-8")
        os.replace(temporary, self.path(experiment, run))
        return error


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def recorded_seconds():
    """{(experiment, run): the CPU seconds that it took when the file was written}."""
    try:
        lines = (ROOT / "experiments" / "seconds.tsv").read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    rows = (line.split("\t") for line in lines if line and not line.startswith("#"))
    return {(experiment, run): float(seconds) for experiment, run, seconds in rows}


def expected(names):
    """How long these runs take, in words: [(experiment, run)]."""
    recorded = recorded_seconds()
    known = [recorded[name] for name in names if name in recorded]
    rest = len(names) - len(known)
    return (f"{len(known)} of {len(names)} runs take {duration(sum(known))} of one core" + (f"; {rest} have not been measured" if rest else ""))


def run_all(runs, experiments):
    """Runs what is not kept; how many failed."""
    every = [(name, run) for name, experiment in experiments for run in experiment["runs"]]
    left = [(name, run) for name, run in every if not runs.is_done(name, run)]
    print(f"{len(every)} runs, of which {len(every) - len(left)} are there already, in {runs.options.out}", flush=True)
    if left and not runs.options.num_prompts:
        print(f"of what is left {expected([(name, run['name']) for name, run in left])}", flush=True)
    failed = 0
    for i, (name, run) in enumerate(left):
        print(f"[{i + 1}/{len(left)}] {name} {run['name']} ", end="", flush=True)
        error = runs.run(name, run)
        failed += bool(error)
        print("FAILED: " + error if error else duration(runs.kept(name, run)["seconds"]), flush=True)
    return failed


# --- Figures ----------------------------------------------------------------------------------------------------------


def called(key):
    return FIGURES.get(key, (key.replace("_", " "), "", ""))


def points_of(result):
    """[(rate, figures)] of a policy's result."""
    return [(point["request_rate"], point) for point in result["points"] if isinstance(point.get("request_rate"), (int, float))]


def measured(point, key):
    """(the mean over seeds, half of its interval or 0), or None."""
    if point.get(key) is None:
        return None
    return point[key], point.get("intervals", {}).get(key, {}).get("half_width") or 0


def figure_of(kept, policy, key, rate):
    """Likewise, of a policy in a run, at a rate; where that is None, the mean over all rates."""
    if key == "effective_throughput":
        return next(((found["rate"], 0) for found in kept["figures"]["effective"] if found["policy"] == policy), None)
    points = [point for result in kept["results"] if result["label"] == policy for point in result["points"]]
    if rate is not None:
        points = [p for p in points if isinstance(p.get("request_rate"), (int, float)) and abs(p["request_rate"] / rate - 1) < 1e-6]
    values = [value for point in points if (value := measured(point, key))]
    if len(values) < 2:
        return values[0] if values else None
    return sum(mean for mean, _ in values) / len(values), 0


def over(one, other):
    """The quotient of two means; the interval is that of independent ones."""
    if one is None or other is None or other[0] == 0:
        return None
    value = one[0] / other[0]
    return value, abs(value) * math.hypot(one[1] / one[0] if one[0] else 0, other[1] / other[0])


def less(one, other):
    return None if one is None or other is None else (one[0] - other[0], math.hypot(one[1], other[1]))


def of_seeds(kept, policy, key, rate):
    """{seed: the figure} of a policy at a rate, or at the only one; empty where only means are kept."""
    ones = [one for result in kept["results"] if result["label"] == policy for one in result.get("of_seeds", []) if one.get(key) is not None]
    if rate is None:
        return {one["seed"]: one[key] for one in ones} if len({one["request_rate"] for one in ones}) == 1 else {}
    return {one["seed"]: one[key] for one in ones if abs(one["request_rate"] / rate - 1) < 1e-6}


def half_width(values):
    """Half of the 95 % interval of the mean."""
    return T_975[min(len(values) - 2, len(T_975) - 1)] * statistics.stdev(values) / math.sqrt(len(values))


def by_pairs(value, entry, other, kept, rate, join):
    """`value` with the interval over pairs of the same seed, where these are kept."""
    one, two = (of_seeds(kept, policy, entry["key"], rate) for policy in (entry["policy"], other))
    pairs = [join(one[seed], two[seed]) for seed in sorted(one.keys() & two.keys()) if join is operator.sub or two[seed]]
    return (value[0], half_width(pairs)) if value and len(pairs) > 1 else value


def ours_at(entry, kept, of_runs, rate):
    own = figure_of(kept, entry["policy"], entry["key"], rate)
    if "less" in entry:
        return by_pairs(less(own, figure_of(kept, entry["less"], entry["key"], rate)), entry, entry["less"], kept, rate, operator.sub)
    if "over_runs" in entry:
        parts = [figure_of(of_runs[run], entry["over"], entry["key"], rate) if run in of_runs else None for run in entry["over_runs"]]
        return over(own, None if None in parts else (sum(mean for mean, _ in parts), math.hypot(*(half for _, half in parts))))
    if "over" not in entry:
        return own
    return by_pairs(over(own, figure_of(kept, entry["over"], entry["key"], rate)), entry, entry["over"], kept, rate, operator.truediv)


def rates_of(kept):
    return sorted({rate for result in kept["results"] for rate, _ in points_of(result)})


def ours(entry, kept, of_runs):
    """Ours beside a figure of the paper: (value, half of its interval), or None. `of_runs`: {run: what is kept of it}."""
    if not entry.get("most"):
        return ours_at(entry, kept, of_runs, entry.get("rate"))
    found = [value for rate in rates_of(kept) if (value := ours_at(entry, kept, of_runs, rate))]
    return max(found, default=None)


def who(entry):
    name = entry["policy"] + (f" / {entry['over']}" if "over" in entry else f" − {entry['less']}" if "less" in entry else "")
    return name + (f" ({' + '.join(entry['over_runs'])})" if "over_runs" in entry else "")


def what(entry):
    """(what the figure is, its unit)."""
    title, unit, _ = called(entry["key"])
    if "over" in entry:
        return title.split(",")[0] + ", times that of another", ""
    if "less" in entry:
        return (title + ", points more than another", "") if unit == "%" else (title + ", more than another", unit)
    return title, unit


# --- The page: what apps/report/page_json.h draws ---------------------------------------------------------------------


def table(heads, rows, names=1, texts=False):
    return {"table": {"heads": heads, "rows": rows, "names": names, "texts": texts}}


def cell(value, unit, to=None, half=0):
    if value is None:
        return None
    return {"value": value, "unit": unit, **({"to": to} if to is not None else {}), **({"half": half} if half else {})}


def is_wide(values):
    """Whether they need a logarithmic axis."""
    return bool(values) and min(values) > 0 and max(values) > 20 * min(values)


def bounds_of(args, key):
    """The bounds on this figure that a run's flags have."""
    flags = settings(args)
    out = {}
    for part in (flags.get("--goodput", "") + " " + flags.get("--slo", "")).split():
        name, _, value = part.partition(":")
        if called(key)[2] and name.endswith(called(key)[2]) and re.fullmatch(r"[0-9.]+", value):
            out.setdefault(float(value), name)
    return [{"name": f"bound on {name.upper().replace('_', ' ')}", "value": value} for value, name in out.items()]


def line_chart(key, series, x, args=(), extra=(), bands=(), title="", unit=None):
    """`series`: {(name, system): [(x, (mean, half))]}; `extra`: the paper's points, likewise."""
    alike = {}
    for one in bands:
        alike.setdefault((one["low"], one["high"]), []).append(one)
    # One that is of several policies is named by none of them.
    bands = [{**ones[0], "name": ones[0]["name"] if len({one["name"] for one in ones}) == 1 else ones[0]["name"].split(":")[0]}
             for ones in alike.values()] if len(alike) <= MOST_BANDS else []
    lines = [{"name": name, "system": system, "x": [x for x, _ in points], "y": [value for _, (value, _) in points],
              "half": [half for _, (_, half) in points], **({"hollow": True} if hollow else {})}
             for drawn, hollow in ((series, False), (dict(extra), True)) for (name, system), points in drawn.items() if points]
    if not any(not line.get("hollow") for line in lines):
        return None
    values = [y for line in lines for y in line["y"]] + [value for one in bands for value in (one["low"], one["high"])]
    unit = called(key)[1] if unit is None else unit
    return {"title": title or called(key)[0], "x": x, "y": "%" if unit == "%" else "", "unit": unit, "lines": lines, "bands": bands,
            "bounds": bounds_of(args, key), "log_y": unit != "%" and is_wide(values), **({"y_max": 100} if unit == "%" else {})}


def systems_of(runs):
    """{policy: the number by which the charts of these runs tell it}: [(run, kept)]."""
    order = [policy for run, _ in runs for policy in settings(flags_of(run)).get("--scheduling-policy", "").split(",")]
    labels = [result["label"] for _, kept in runs for result in kept["results"]]
    return {label: i for i, label in enumerate(dict.fromkeys([policy for policy in order if policy in labels] + labels))}


def curves(run, kept, systems):
    """The charts of a run with several rates."""
    results = [result for result in kept["results"] if len(points_of(result)) > 1]
    if not results:
        return []
    results.sort(key=lambda result: systems[result["label"]])
    entries = run.get("paper", [])
    own = [entry for entry in entries if "over" not in entry and "less" not in entry and entry["policy"] in systems]
    charts = []
    for key in dict.fromkeys([*DRAWN, *(entry["key"] for entry in own)]):
        for begin in range(0, max(systems.values()) + 1, MOST_SYSTEMS):
            numbers = {name: i - begin for name, i in systems.items() if begin <= i < begin + MOST_SYSTEMS}
            series = {(result["label"], numbers[result["label"]]): [(x, value) for x, point in points_of(result) if (value := measured(point, key))]
                      for result in results if result["label"] in numbers}
            extra, bands = {}, []
            for entry in own:
                if entry["key"] != key or entry["policy"] not in numbers:
                    continue
                if "rate" in entry and "to" not in entry:
                    extra.setdefault((f"{entry['policy']}, the paper's", numbers[entry["policy"]]), []).append((entry["rate"], (entry["value"], 0)))
                else:
                    bands.append(band(entry, numbers[entry["policy"]]))
            charts.append(line_chart(key, series, "requests per second", run["args"], extra, bands))
    # Multiples of another policy's figure, over the rate.
    compared = {}
    for entry in entries:
        if ("over" in entry or "less" in entry) and "over_runs" not in entry and entry["key"] != "effective_throughput":
            compared.setdefault((entry["key"], what(entry)), {}).setdefault(who(entry), []).append(entry)
    for (key, (title, unit)), by_pair in compared.items():
        series, extra, bands = {}, {}, []
        for i, (name, of_pair) in enumerate(by_pair.items()):
            series[name, i] = [(rate, value) for rate in rates_of(kept) if (value := ours_at(of_pair[0], kept, {}, rate))]
            extra[f"{name}, the paper's", i] = [(e["rate"], (e["value"], 0)) for e in of_pair if "rate" in e and "to" not in e]
            bands += [band(entry, i) for entry in of_pair if "rate" not in entry or "to" in entry]
        charts.append(line_chart(key, series, "requests per second", (), extra, bands, title, unit))
    return [chart for chart in charts if chart]


def band(entry, system):
    return {"name": f"paper{', up to' if entry.get('most') and 'to' not in entry else ''}: {who(entry)}", "low": entry["value"],
            "high": entry.get("to", entry["value"]), "system": system}


def family(run):
    """The name without its last part: runs of one family differ in one setting."""
    return run["name"].rpartition("-")[0]


def setting_of(run):
    """The last part, as a number if it is one."""
    last = run["name"].rpartition("-")[2]
    found = re.fullmatch(r"([0-9.]+)(k?)", last)
    return last, float(found[1]) * (1000 if found[2] else 1) if found else None


def curves_over_runs(runs, systems):
    """The charts of the runs of one family with a single rate each, over the runs: [(run, kept)]."""
    labels = [setting_of(run) for run, _ in runs]
    charts = []
    for key in DRAWN:
        found = [(label, systems[result["label"]], value) for label, (_, kept) in zip(labels, runs)
                 for result in kept["results"] if (value := measured(result["points"][0], key))]
        if not found:
            continue
        lanes = {system: lane for lane, system in enumerate(sorted({system for _, system, _ in found}))}
        if all(number is not None for _, number in labels) and len({number for _, number in labels}) > 2:
            series = {(name, i): sorted((number, value) for (_, number), system, value in found if system == i)
                      for name, i in systems.items()}
            chart = line_chart(key, series, f"{family(runs[0][0])}: the number in the run's name", runs[0][0]["args"])
            chart["log_x"] = is_wide([number for _, number in labels])
            charts.append(chart)
            continue
        rows = [{"name": name, "points": [{"value": value, "half": half, "system": system, "lane": lanes[system]}
                                          for (label, _), system, (value, half) in found if label == name]} for name, _ in labels]
        charts.append({"title": called(key)[0], "x": "%" if called(key)[1] == "%" else "", "unit": called(key)[1], "systems": list(systems), "rows": rows,
                       "bounds": bounds_of(runs[0][0]["args"], key), "log_x": called(key)[1] != "%" and is_wide([v for *_, (v, _) in found])})
    return charts


def share_of_paper(entry, value):
    """Ours over the paper's figure, or over the nearer end of its range; None where one is not known."""
    if value is None or not entry["value"]:
        return None
    return value[0] / min(max(value[0], entry["value"]), entry.get("to", entry["value"]))


def beside_paper(entries):
    """[(run, an entry of `paper`, ours)] as charts, one for each kind of figure, and as a table."""
    kinds = {}
    for run, entry, value in entries:
        kinds.setdefault(what(entry), []).append((run, entry, value))
    charts = []
    for (title, unit), alike in kinds.items():
        for begin in range(0, len(alike), MOST_ROWS):
            rows, values = [], []
            part = alike[begin:begin + MOST_ROWS]
            for run, entry, value in part:
                name = who(entry) + (f", {entry['rate']:g}/s" if "rate" in entry else ", greatest" if entry.get("most") else "")
                points = [{"value": entry["value"], "to": entry.get("to", 0), "system": 1, "hollow": True}]
                points += [{"value": value[0], "half": value[1], "system": 0}] if value else []
                values += [point["value"] for point in points]
                rows.append({"name": name if all(other == run for other, *_ in part) else f"{run}: {name}", "points": points})
            charts.append({"title": title, "x": "%" if unit == "%" else "", "unit": unit, "systems": ["ours", "the paper's"], "rows": rows,
                           "log_x": unit != "%" and is_wide(values)})
    rows = []
    for run, entry, value in entries:
        title, unit = what(entry)
        share = share_of_paper(entry, value)
        rows.append([run, who(entry), "greatest" if entry.get("most") else f"{entry['rate']:g}" if "rate" in entry else "", title,
                     cell(entry["value"], unit, entry.get("to")), cell(*(value[0], unit, None, value[1]) if value else (None, unit)),
                     "" if share is None else f"{share:.2f}"])
    return charts, table(["run", "policy", "requests/s", "figure", "paper", "ours", "ours over the paper's"], rows, names=4)


def settings(args):
    """{flag: its values as a text}."""
    out, flag = {}, ""
    for arg in args:
        if arg.startswith("--"):
            flag = arg
            out[flag] = ""
        else:
            out[flag] = f"{out.get(flag, '')} {arg}".strip()
    return out


def settings_of(experiment):
    """The flags that all runs have, and those that differ."""
    of_runs = {run["name"]: settings(run["args"]) for run in experiment["runs"] if "args" in run}
    if not of_runs:
        return []
    flags = list(dict.fromkeys(flag for own in of_runs.values() for flag in own))
    common = [flag for flag in flags if len({own.get(flag) for own in of_runs.values()}) == 1]
    differing = [flag for flag in flags if flag not in common]
    first = next(iter(of_runs.values()))
    blocks = [table(["flag of all runs", "value"], [[flag.lstrip("-"), first[flag] or "yes"] for flag in common], texts=True)]
    if differing:
        blocks.append(table(["run", *(flag.lstrip("-") for flag in differing)],
                            [[name, *(own[flag] or "yes" if flag in own else "" for flag in differing)] for name, own in of_runs.items()], texts=True))
    return [{"fold": "Settings", "blocks": blocks}]


def plain(cell_text):
    """A cell of Markdown as text."""
    return re.sub(r"\*\*|`|(?<!\w)\*(?=\w)|(?<=\w)\*(?!\w)", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell_text.strip())).replace("\\|", "|")


def blocks_of(markdown, texts=False):
    """The tables and lines of a text in Markdown. `texts`: its tables have no figures."""
    rows, out = [], []
    for line in [*markdown.splitlines(), ""]:
        if line.startswith("|"):
            rows.append([plain(part) for part in re.split(r"(?<!\\)\|", line.strip()[1:].removesuffix("|"))])
            continue
        if rows:
            out.append(table(rows[0], rows[2:], texts=texts))
            rows = []
        if line.strip():
            out.append({"text": plain(line)})
    return out


def charts_block(charts, name, files):
    """`files`: how many charts of each name there are so far."""
    for chart in charts:
        stem = re.sub(r"[^a-z0-9]+", "-", f"{name} {chart['title']}".lower()).strip("-")
        files[stem] = files.get(stem, 0) + 1
        chart["file"] = stem if files[stem] == 1 else f"{stem}-{files[stem]}"
    return [{"charts": charts}] if charts else []


def experiment_blocks(runs, name, experiment):
    blocks = [{"heading": experiment["title"], "id": name, "small": True}, {"text": experiment["source"]}]
    blocks += [{"text": experiment["note"], "dim": True}] if experiment.get("note") else []
    kept = [(run, runs.kept(name, run)) for run in experiment["runs"]]
    missing = [run["name"] for run, k in kept if k is None]
    blocks += [{"text": f"Not run: {', '.join(missing)}"}] if missing else []
    blocks += [{"text": f"{run['name']} failed: {k['error']}"} for run, k in kept if k and k["error"]]
    kept = [(run, k) for run, k in kept if k and not k["error"]]
    older = [run["name"] for run, k in kept if k["digest"] != runs.digest]
    blocks += [{"text": f"Of another build of kvasir than the present one: {'all' if len(older) == len(kept) else ', '.join(older)}"}] if older else []
    files, of_runs = {}, {run["name"]: k for run, k in kept}
    entries = [(run["name"], entry, ours(entry, k, of_runs)) for run, k in kept for entry in run.get("paper", [])]
    if entries:
        charts, numbers = beside_paper(entries)
        blocks += charts_block(charts, f"{name} paper", files) + [{"fold": "The paper's figures and ours as a table", "blocks": [numbers]}]
    effective = [(run["name"], f) for run, k in kept if k["figures"] for f in k["figures"]["effective"]]
    if effective:
        blocks.append({"fold": "Effective throughput", "blocks": [table(["run", "policy", "requests/s"], [
            [run, f["policy"], {**cell(f["rate"], ""), **({"before": "≥ "} if f["more"] else {})}] for run, f in effective], names=2)]})
    whole = systems_of(kept)

    def systems(some):
        """The same in all charts of the experiment, unless those are more than can be told."""
        return whole if len(whole) <= MOST_SYSTEMS else systems_of(some)

    single = [(run, k) for run, k in kept if k["results"] and all(len(points_of(r)) < 2 for r in k["results"])]
    over_runs = False
    for one in dict.fromkeys(family(run) for run, _ in single):
        of_family = [(run, k) for run, k in single if family(run) == one]
        drawn = charts_block(curves_over_runs(of_family, systems(of_family)), f"{name} {one}", files) if len(of_family) > 1 else []
        if drawn:
            blocks.append({"fold": f"Over the runs {one}-…" if one else "Over the runs", "open": not over_runs, "blocks": drawn})
            over_runs = True
    several = [(run, charts) for run, k in kept if (charts := curves(run, k, systems([(run, k)])))]
    for i, (run, charts) in enumerate(several):
        blocks.append({"fold": f"Over the rate: {run['name']}", "open": i == 0,
                       "blocks": charts_block(charts, f"{name} {run['name']}", files)})
    blocks += settings_of(experiment)
    for run, k in kept:
        if "command" in run:
            blocks += [{"heading": run["name"], "small": True}] if len(kept) > 1 else []
            blocks += [{"text": f"python3 {' '.join(run['command'])}".replace("KVASIR", "build/release/kvasir"), "dim": True}, *blocks_of(k["said"])]
    printed = [{"fold": f"{run['name']} ({duration(k['seconds'])})", "blocks": [{"printed": k["said"].partition("\n== ")[2] or k["said"]}]}
               for run, k in kept if "command" not in run]
    return blocks + ([{"fold": "What each run printed", "blocks": printed}] if printed else [])


def claims():
    """The first table of docs/reproduction.md: what is claimed, and what we found."""
    lines = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8")
    return [block for block in blocks_of(lines, texts=True) if "table" in block][:1]


def times_of(runs, experiments):
    """What each experiment took, as a table."""
    recorded, rows, whole = recorded_seconds(), [], [0, 0]
    for name, experiment in experiments:
        known = {run["name"]: k for run in experiment["runs"] if (k := runs.kept(name, run))}
        cpu = [k["cpu_seconds"] for k in known.values() if "cpu_seconds" in k]
        own = [recorded[name, run["name"]] for run in experiment["runs"] if (name, run["name"]) in recorded]
        whole[0], whole[1] = whole[0] + sum(cpu), whole[1] + len(cpu)
        rows.append([name, str(len(experiment["runs"])), str(len(known)), duration(sum(cpu)) if cpu else None,
                     f"{duration(sum(own))} ({len(own)} runs)" if own else None])
    return whole, table(["experiment", "runs", "are here", "took, of one core", "when recorded"], rows)


def page(runs, experiments):
    (seconds, timed), times = times_of(runs, experiments)
    every = [(name, run["name"]) for name, experiment in experiments for run in experiment["runs"]]
    here = sum(runs.kept(name, run) is not None for name, experiment in experiments for run in experiment["runs"])
    few = f" Of {runs.options.num_prompts} requests a run only: such figures cannot be compared with the papers'." if runs.options.num_prompts else ""
    took = f" {timed} of them took {duration(seconds)} of one core ({seconds / 3600:.2f} CPU hours)." if timed else ""
    blocks = [{"text": f"Made by ./dev reproduce: {here} of {len(every)} runs are here.{took} By what has been recorded, {expected(every)}.{few}"},
              {"text": "The paper's figures are those of its text; where it prints only a picture there is none. In charts they are hollow marks, and, "
               "where the text gives a range or no rate, bands and lines. Error bars are 95 % intervals over seeds; those of quotients and differences "
               "are over pairs of the same seed, and where they are of several runs or rates take the parts for independent. Each chart is an SVG file in charts/.", "dim": True},
              {"links": [[paper, f"#{prefix}"] for prefix, paper in PAPERS.items() if any(name.startswith(prefix) for name, _ in experiments)]},
              {"heading": "Claims, as docs/reproduction.md judges them"}, *claims()]
    papers = list(PAPERS.items())
    for prefix, paper in papers:
        own = [(name, e) for name, e in experiments if name.startswith(prefix)]
        if own:
            blocks += [{"heading": paper, "id": prefix}, {"links": [[e["title"], f"#{name}"] for name, e in own]}]
            for name, e in own:
                blocks += experiment_blocks(runs, name, e)
    for name, e in experiments:
        if not name.startswith(tuple(PAPERS)):
            blocks += experiment_blocks(runs, name, e)
    return {"title": "The papers' figures, and ours", "blocks": [*blocks, {"heading": "How long it takes"}, times]}


def write_page(runs, experiments):
    """Draws it by the program that has the look of all reports."""
    subprocess.run([str(runs.options.draw_page), str(runs.options.out / "index.html"), str(runs.options.out / "charts")],
                   input=json.dumps(page(runs, experiments)), text=True, check=True)


def record_seconds(runs, experiments):
    recorded = recorded_seconds()
    for name, experiment in experiments:
        for run in experiment["runs"]:
            if "cpu_seconds" in (kept := runs.kept(name, run) or {}):
                recorded[name, run["name"]] = kept["cpu_seconds"]
    every = {(path.stem, run["name"]) for path in (ROOT / "experiments").rglob("*.json") for run in json.loads(path.read_text(encoding="utf-8"))["runs"]}
    lines = [f"{name}\t{run}\t{seconds:.3g}\n" for (name, run), seconds in sorted(recorded.items()) if (name, run) in every]
    file = ROOT / "experiments" / "seconds.tsv"
    head = [line + "\n" for line in (file.read_text(encoding="utf-8").splitlines() if file.exists() else []) if line.startswith("#")]
    file.write_text("".join(head + lines), encoding="utf-8")


def options():
    whole = [(name, run["name"]) for name, experiment in chosen([]) for run in experiment["runs"]]
    parser = argparse.ArgumentParser(prog="./dev reproduce", description=f"{__doc__}\nHow long: {expected(whole)}.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="an experiment, or all whose name begins so (default: those of the papers)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "reproduce", help="folder of the results and of index.html")
    parser.add_argument("--kvasir", type=Path, default=ROOT / "build" / "release" / "kvasir", help="the program")
    parser.add_argument("--draw-page", type=Path, default=ROOT / "build" / "release" / "draw_page", help="the program that draws the page")
    parser.add_argument("--num-prompts", type=int, default=0, help="requests of each run, for a quick look: figures then cannot be compared with the papers'")
    parser.add_argument("--jobs", type=int, default=0, help="simulations at once (default: one for each core)")
    parser.add_argument("--again", action="store_true", help="run anew what another build of kvasir has run")
    parser.add_argument("--page-only", action="store_true", help="run nothing: write the page of what is there")
    parser.add_argument("--record-seconds", action="store_true", help="write what the runs took to experiments/seconds.tsv")
    return parser.parse_args()


def main():
    o = options()
    o.out, o.kvasir = o.out.resolve(), o.kvasir.resolve()
    experiments = chosen(o.names)
    o.out.mkdir(parents=True, exist_ok=True)
    runs = Runs(o)
    failed = 0
    for program in [o.draw_page] if o.page_only else [o.draw_page, o.kvasir]:
        if not program.exists():
            sys.exit(f"reproduce: there is no {program}: run ./dev build first")
    if not o.page_only:
        failed = run_all(runs, experiments)
    if o.record_seconds:
        record_seconds(runs, experiments)
    write_page(runs, experiments)
    print(f"the page: {o.out / 'index.html'}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nreproduce: stopped; the same command goes on from here")
