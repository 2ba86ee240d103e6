#!/usr/bin/env python3
"""Runs the experiments of experiments/, and writes one page with the papers' figures beside ours. ./dev reproduce calls it.

    reproduce.py [NAME…] [--out build/reproduce] [--num-prompts N] [--jobs N] [--again] [--page-only]

A NAME chooses the experiment of that name, as layerkv-fig8, or else those whose file begins with it: layerkv, cacheopt,
apt-serve, ellm, distkv (Infinite-LLM), sarathi; all of those by default. Each run is a call of `kvasir simulate`; its result is kept in --out, and a
run that is there with the same flags is not run again: the command may be stopped at any time and goes on where it was.
"""

import argparse
import hashlib
import html
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAPERS = {"layerkv": "LayerKV", "cacheopt": "CacheOpt", "apt-serve": "Apt-Serve", "ellm": "eLLM", "distkv": "Infinite-LLM",
          "sarathi": "Sarathi-Serve"}
# What is drawn, of what a result has: (key, title, whether the axis is logarithmic).
CHARTS = [("attainment_joint", "all bounds met, %", False), ("mean_ttft_ms", "mean TTFT, ms", True),
          ("p99_ttft_ms", "P99 TTFT, ms", True), ("mean_tpot_ms", "mean TPOT, ms", True),
          ("output_throughput", "output tokens/s", False), ("mean_e2el_ms", "mean E2EL, ms", True)]
COLOURS = ["#4269d0", "#efb118", "#ff725c", "#6cc5b0", "#3ca951", "#ff8ab7", "#a463f2", "#97bbf5", "#9c6b4e", "#9498a0"]


# --- Runs -------------------------------------------------------------------------------------------------------------


def chosen(names):
    """[(experiment's name, its JSON)] of those whose name begins with one of `names`; of the papers by default."""
    files = {path.stem: path for path in sorted((ROOT / "experiments").glob("*.json"))}
    for name in names:
        if not any(stem.startswith(name) for stem in files):
            sys.exit(f"reproduce: no file of experiments/ begins with '{name}'; there are {', '.join(files)}")
    def is_wanted(stem):
        return any(stem == name or (name not in files and stem.startswith(name)) for name in names or PAPERS)
    return [(stem, json.loads(path.read_text(encoding="utf-8"))) for stem, path in files.items() if is_wanted(stem)]


def figures_alone(result):
    """What a result of one rate and one seed says of it: numbers, without lists of requests."""
    return {key: value for key, value in result.items() if not isinstance(value, (dict, list))}


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
        same = kept["args"] == run["args"] and kept["paper"] == run.get("paper", []) and kept["num_prompts"] == self.options.num_prompts
        return kept if same else None

    def is_done(self, experiment, run):
        kept = self.kept(experiment, run)
        return kept is not None and not kept["error"] and not (self.options.again and kept["digest"] != self.digest)

    def run(self, experiment, run):
        """Runs it and keeps the result; the error's line, empty if there is none."""
        folder = self.options.out / experiment
        folder.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        with tempfile.TemporaryDirectory(dir=folder) as results:
            command = [str(self.options.kvasir), "simulate", "--experiment", str(ROOT / "experiments" / f"{experiment}.json"),
                       "--experiment-runs", run["name"], "--save-result", "--result-dir", results, "--no-progress"]
            if self.options.num_prompts:
                command += ["--num-prompts", str(self.options.num_prompts)]
            if self.options.jobs:
                command += ["--jobs", str(self.options.jobs)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            error = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            read = {path.name: json.loads(path.read_text(encoding="utf-8")) for path in sorted(Path(results).iterdir())}
        figures = read.pop(f"{run['name']}.figures.json", None)
        kept = {"args": run["args"], "paper": run.get("paper", []), "num_prompts": self.options.num_prompts, "digest": self.digest,
                "seconds": time.monotonic() - begun, "error": error, "figures": figures,
                "results": [{"label": result["label"], "points": result.get("points") or [figures_alone(result)]} for result in read.values()],
                "said": done.stdout}
        temporary = self.path(experiment, run).with_suffix(".tmp")
        temporary.write_text(json.dumps(kept), encoding="utf-8")
        os.replace(temporary, self.path(experiment, run))
        return error


def duration(seconds):
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def run_all(runs, experiments):
    """Runs what is not kept; how many failed."""
    every = [(name, run) for name, experiment in experiments for run in experiment["runs"]]
    left = [(name, run) for name, run in every if not runs.is_done(name, run)]
    print(f"{len(every)} runs, of which {len(every) - len(left)} are there already, in {runs.options.out}", flush=True)
    failed, begun = 0, time.monotonic()
    for i, (name, run) in enumerate(left):
        print(f"[{i + 1}/{len(left)}] {name} {run['name']} ", end="", flush=True)
        error = runs.run(name, run)
        failed += bool(error)
        passed = time.monotonic() - begun
        rest = f", about {duration(passed / (i + 1) * (len(left) - i - 1))} left" if i + 1 < len(left) else ""
        print(f"{'FAILED: ' + error if error else duration(runs.kept(name, run)['seconds'])}{rest}", flush=True)
    return failed


# --- The page ---------------------------------------------------------------------------------------------------------


def text(value):
    return html.escape(str(value))


def number(value):
    return "–" if value is None else f"{value:.4g}"


def ticks(low, high, logarithmic):
    """A handful of round values within [low, high]."""
    if logarithmic and high > 4 * low:
        decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
        fine = (1,) if len(decades) > 4 else (1, 2, 5)
        return [m * 10.0**d for d in decades for m in fine if low <= m * 10.0**d <= high]
    step = 10 ** math.floor(math.log10((high - low) / 3 or 1))
    step *= next(m for m in (1, 2, 5, 10) if (high - low) / (m * step) <= 5)
    return [step * i for i in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]


def chart(title, series, logarithmic, labels=None, papers=None):
    """An SVG of {name: [(x, y)]}; with `labels` x is an index of them. `papers` has points of the paper, likewise, which are squares."""
    papers = {name: line for name, line in (papers or {}).items() if name in series}
    points = [point for lines in (series, papers) for line in lines.values() for point in line]
    if not points:
        return ""
    logarithmic = logarithmic and min(y for _, y in points) > 0
    low, high = min(y for _, y in points), max(y for _, y in points)
    low = low if logarithmic else min(0, low)
    if high <= low:
        low, high = (low / 2, low * 2) if logarithmic else (low, low + 1)
    left, right = min(x for x, _ in points), max(x for x, _ in points)
    width, height, margin, below = 330, 190, 56, 40
    scale = math.log if logarithmic else float

    def at_x(x):
        return margin + (width - margin - 12) * ((x - left) / (right - left) if right > left else 0.5)

    def at_y(y):
        return height - below - (height - below - 26) * (scale(y) - scale(low)) / (scale(high) - scale(low))

    out = [f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="{text(title)}">',
           f'<text x="{margin}" y="14" class="t">{text(title)}</text>']
    for y in ticks(low, high, logarithmic):
        out.append(f'<line x1="{margin}" x2="{width - 12}" y1="{at_y(y):.1f}" y2="{at_y(y):.1f}" class="g"/>'
                   f'<text x="{margin - 5}" y="{at_y(y) + 3:.1f}" class="y">{y:g}</text>')
    for x, label in enumerate(labels) if labels else [(x, f"{x:.3g}") for x in ticks(left, right, False) or [left]]:
        out.append(f'<text x="{at_x(x):.1f}" y="{height - below + 14}" class="x">{text(label)}</text>')
    if not labels:
        out.append(f'<text x="{(margin + width) / 2}" y="{height - 8}" class="x">requests/s</text>')
    for i, (name, line) in enumerate(series.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y in sorted(line))
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out += [f'<circle cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" r="2.6" fill="{colour}"><title>{text(name)}: {number(y)} at '
                f"{text(labels[x] if labels else f'{x:.4g}')}</title></circle>" for x, y in line]
        out += [f'<rect x="{at_x(x) - 4:.1f}" y="{at_y(y) - 4:.1f}" width="8" height="8" fill="none" stroke="{colour}" stroke-width="2">'
                f"<title>{text(name)}: the paper's {number(y)} at {x:.4g}</title></rect>" for x, y in papers.get(name, [])]
    return "".join(out) + "</svg>"


def legend(names):
    return '<p class="l">' + " ".join(f'<span><i style="background:{COLOURS[i % len(COLOURS)]}"></i>{text(name)}</span>'
                                      for i, name in enumerate(names)) + "</p>"


def points_of(result):
    """[(rate, figures)] of a policy's result."""
    return [(point["request_rate"], point) for point in result["points"] if isinstance(point.get("request_rate"), (int, float))]


def curves(kept):
    """The charts of a run with several rates."""
    results = [result for result in kept["results"] if len(points_of(result)) > 1]
    if not results:
        return ""
    papers = {}
    for entry in kept["figures"]["paper"]:
        if "rate" in entry and "over" not in entry:
            papers.setdefault(entry["key"], {}).setdefault(entry["policy"], []).append((entry["rate"], entry["value"]))
    charts = [chart(title, {r["label"]: [(x, p[key]) for x, p in points_of(r) if p.get(key) is not None] for r in results}, logarithmic,
                    papers=papers.get(key)) for key, title, logarithmic in CHARTS]
    return legend([r["label"] for r in results]) + "".join(charts)


def family(run):
    """The name without its last part: runs of one family differ in one setting."""
    return run["name"].rpartition("-")[0]


def curves_over_runs(runs):
    """The charts of the runs of one family with a single rate each, over the runs: [(run, kept)]."""
    labels = [run["name"].rpartition("-")[2] for run, _ in runs]
    policies = list(dict.fromkeys(r["label"] for _, kept in runs for r in kept["results"]))
    out = []
    for key, title, logarithmic in CHARTS:
        series = {policy: [] for policy in policies}
        for i, (_, kept) in enumerate(runs):
            for r in kept["results"]:
                if r["points"][0].get(key) is not None:
                    series[r["label"]].append((i, r["points"][0][key]))
        out.append(chart(title, {name: line for name, line in series.items() if line}, logarithmic, labels))
    return legend(policies) + "".join(out)


def figure_of(kept, entry, policy):
    """The policy's figure of a run under the entry's key, at its rate or the only one; None where it has none."""
    points = [p for r in kept["results"] if r["label"] == policy for p in r["points"]]
    values = [p.get(entry["key"]) for p in points if "rate" not in entry or p.get("request_rate") == entry["rate"]]
    return values[0] if len(values) == 1 else None


def over_other_runs(run, entry, kept):
    """The entry with "ours", where it is a multiple of other runs, each of which was run by itself. `kept`: of all runs, by name."""
    if "over_runs" not in entry:
        return entry
    parts = [figure_of(kept[other], entry, entry["over"]) if other in kept else None for other in entry["over_runs"]]
    own, known = figure_of(kept[run], entry, entry["policy"]), None not in parts and sum(parts) != 0
    return {**entry, "ours": own / sum(parts) if known and own is not None else None}


def share_of_paper(entry):
    """Ours over the paper's figure, or over the nearer end of its range; None where one is not known."""
    if entry["ours"] is None or not entry["value"]:
        return None
    return entry["ours"] / min(max(entry["ours"], entry["value"]), entry.get("to", entry["value"]))


def paper_table(entries):
    """[(run, an entry of `paper` with "ours")] as a table and, where figures are of one kind, as a picture."""
    rows = []
    for run, entry in entries:
        who = text(entry["policy"]) + (f" / {text(entry['over'])}" if "over" in entry else "")
        if "over_runs" in entry:
            who += text(f" ({' + '.join(entry['over_runs'])})")
        where = "greatest" if entry.get("most") else f"{entry['rate']:g}" if "rate" in entry else ""
        stated = number(entry["value"]) + (f" to {number(entry['to'])}" if "to" in entry else "")
        share = share_of_paper(entry)
        bar = "" if share is None else (f'<svg width="120" height="12" role="img" aria-label="{share:.2f} of the paper\'s"><line x1="60" x2="60" '
                                        f'y1="0" y2="12" class="g"/><circle cx="{60 + 56 * max(-1, min(1, math.log2(share) / 2)) if share > 0 else 4:.1f}" '
                                        f'cy="6" r="4" fill="{COLOURS[0]}"/></svg>')
        rows.append(f"<tr><td>{text(run)}<td>{who}<td>{where}<td>{text(entry['key'])}<td class=n>{stated}"
                    f"<td class=n>{number(entry['ours'])}<td>{bar}")
    return ('<table><tr><th>run<th>policy<th>requests/s<th>figure<th>paper<th>ours<th title="from a quarter of the paper\'s to four '
            'times it, logarithmic">ours over the paper\'s, ¼ to 4</tr>' + "</tr>".join(rows) + "</tr></table>")


def experiment_section(runs, name, experiment):
    out = [f'<section id="{name}"><h3>{text(experiment["title"])}</h3><p>{text(experiment["source"])}</p>',
           f"<p class=s>{text(experiment.get('note', ''))}</p>",
           f"<p class=s><code>kvasir simulate --experiment experiments/{name}.json</code></p>"]
    kept = [(run, runs.kept(name, run)) for run in experiment["runs"]]
    missing = [run["name"] for run, k in kept if k is None]
    if missing:
        out.append(f"<p class=w>Not run: {text(', '.join(missing))}</p>")
    out += [f"<p class=w>{text(run['name'])} failed: {text(k['error'])}</p>" for run, k in kept if k and k["error"]]
    kept = [(run, k) for run, k in kept if k and not k["error"]]
    older = [run["name"] for run, k in kept if k["digest"] != runs.digest]
    if older:
        out.append(f"<p class=w>Of another build of kvasir than the present one: {text(', '.join(older))}</p>")
    by_name = {run["name"]: k for run, k in kept}
    entries = [(run["name"], over_other_runs(run["name"], entry, by_name)) for run, k in kept for entry in k["figures"]["paper"]]
    if entries:
        out.append(paper_table(entries))
    effective = [(run["name"], f) for run, k in kept for f in k["figures"]["effective"]]
    if effective:
        out.append("<table><tr><th>run<th>policy<th>effective throughput, requests/s</tr>" + "".join(
            f"<tr><td>{text(run)}<td>{text(f['policy'])}<td class=n>{'≥ ' if f['more'] else ''}{number(f['rate'])}</tr>" for run, f in effective) +
                   "</table>")
    single = [(run, k) for run, k in kept if k["results"] and all(len(points_of(r)) < 2 for r in k["results"])]
    for one in dict.fromkeys(family(run) for run, _ in single):
        of_family = [(run, k) for run, k in single if family(run) == one]
        if len(of_family) > 1:
            out.append(f"<h4>{text(one)}</h4>" + curves_over_runs(of_family))
    for run, k in kept:
        drawn = curves(k)
        out.append((f"<h4>{text(run['name'])}</h4>{drawn}" if drawn else "") +
                   f"<details><summary>{text(run['name'])}: what it printed ({duration(k['seconds'])})</summary><pre>{text(k['said'])}</pre></details>")
    return "\n".join(out) + "</section>"


def claims():
    """The first table of docs/reproduction.md as HTML: what is claimed, and what we found."""
    lines = (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8").splitlines()
    begin = next((i for i, line in enumerate(lines) if line.startswith("|")), len(lines))
    rows = []
    for line in lines[begin:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))])
    def inline(cell):
        cell = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", cell)
        return re.sub(r"`([^`]*)`", r"<code>\1</code>", re.sub(r"\*\*([^*]*)\*\*", r"<b>\1</b>", text(cell)))
    out = ["<tr>" + "".join(f"<th>{inline(c)}" for c in rows[0]) + "</tr>"] if rows else []
    out += ["<tr>" + "".join(f"<td>{inline(c)}" for c in row) + "</tr>" for row in rows[2:]]
    return "<table>" + "\n".join(out) + "</table>"


STYLE = """
:root{color-scheme:light dark}body{font:15px/1.45 system-ui,sans-serif;max-width:1100px;margin:2em auto;padding:0 1em}
table{border-collapse:collapse;margin:.6em 0;display:block;overflow-x:auto}td,th{padding:.2em .6em;border-bottom:1px solid #8884;text-align:left;vertical-align:top}
.n{text-align:right;font-variant-numeric:tabular-nums}.s{font-size:.9em;opacity:.8}.w{color:#c33}svg text{font:10px system-ui,sans-serif;fill:currentColor}
svg .t{font-size:12px}svg .y{text-anchor:end}svg .x{text-anchor:middle}svg .g{stroke:#8885}.l i{display:inline-block;width:.8em;height:.8em;margin:0 .3em 0 .8em}
pre{overflow-x:auto;font-size:12px}section{border-top:1px solid #8884}
"""


def page(runs, experiments):
    seconds = sum(k["seconds"] for name, e in experiments for run in e["runs"] if (k := runs.kept(name, run)))
    out = ["<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
           f"<title>Kvasir: the papers' figures</title><style>{STYLE}</style><h1>The papers' figures, and ours</h1>",
           f"<p>Made by <code>./dev reproduce</code> in {duration(seconds)} of simulations"
           + (f", <b>of {runs.options.num_prompts} requests a run only</b>" if runs.options.num_prompts else "") + ". The paper's figures are those of its text; "
           "where it prints only a picture there is none. In charts the paper's points are squares.</p>", "<h2>Claims, as docs/reproduction.md judges them</h2>", claims()]
    for prefix, paper in PAPERS.items():
        own = [(name, e) for name, e in experiments if name.startswith(prefix)]
        if own:
            out.append(f"<h2>{paper}</h2><ul>" + "".join(f'<li><a href="#{name}">{text(e["title"])}</a>' for name, e in own) + "</ul>")
            out += [experiment_section(runs, name, e) for name, e in own]
    rest = [(name, e) for name, e in experiments if not name.startswith(tuple(PAPERS))]
    out += [experiment_section(runs, name, e) for name, e in rest]
    return "\n".join(out) + "</html>\n"


def options():
    parser = argparse.ArgumentParser(prog="./dev reproduce", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="an experiment, or all whose name begins so (default: those of the papers)")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "reproduce", help="folder of the results and of index.html")
    parser.add_argument("--kvasir", type=Path, default=ROOT / "build" / "release" / "kvasir", help="the program")
    parser.add_argument("--num-prompts", type=int, default=0, help="requests of each run, for a quick look: figures then cannot be compared with the papers'")
    parser.add_argument("--jobs", type=int, default=0, help="simulations at once (default: one for each core)")
    parser.add_argument("--again", action="store_true", help="run anew what another build of kvasir has run")
    parser.add_argument("--page-only", action="store_true", help="run nothing: write the page of what is there")
    return parser.parse_args()


def main():
    o = options()
    experiments = chosen(o.names)
    o.out.mkdir(parents=True, exist_ok=True)
    runs = Runs(o)
    failed = 0
    if not o.page_only:
        if not o.kvasir.exists():
            sys.exit(f"reproduce: there is no {o.kvasir}: run ./dev build first")
        failed = run_all(runs, experiments)
    written = o.out / "index.html"
    written.write_text(page(runs, experiments), encoding="utf-8")
    print(f"the page: {written}")
    return 1 if failed else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nreproduce: stopped; the same command goes on from here")
