"""tools/reproduce.py with a program that says fixed figures: what runs, what is kept, and what the page has.

The page is what draw_page is given; with its path in KVASIR_DRAW_PAGE it is drawn, too.
"""

import contextlib
import io
import json
import os
import pathlib
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import reproduce  # noqa: E402

# Writes what `kvasir simulate --experiment` does of a run named "curve" with two rates, and of others with one.
PROGRAM = """#!/usr/bin/env python3
import json, pathlib, sys
a = sys.argv
experiment, name, out = (a[a.index(flag) + 1] for flag in ("--experiment", "--experiment-runs", "--result-dir"))
folder = pathlib.Path(__file__).parent
with open(folder / "ran", "a") as ran:
    ran.write(f"{pathlib.Path(experiment).stem}/{name} {'few' if '--num-prompts' in a else ''}\\n")
if (folder / f"fails-{name}").exists():
    print("kvasir simulate: no <room>", file=sys.stderr)
    sys.exit(1)
run = next(r for r in json.load(open(experiment))["runs"] if r["name"] == name)
flags = run["args"]
many = flags[flags.index("--scheduling-policy") + 1].split(",") if "--scheduling-policy" in flags else []
for policy, faster in (("vllm", 1), ("auto", 2), *((policy, 1) for policy in many if policy not in ("vllm", "auto"))):
    points = [{"request_rate": rate, "attainment_joint": 90 - 10 * rate / faster, "mean_ttft_ms": 100 * rate / faster,
               "intervals": {"mean_ttft_ms": {"half_width": 10}}} for rate in ((1, 2) if name == "curve" else (1,))]
    result = {"label": policy, "points": points} if len(points) > 1 else {"label": policy, "seed": 0, **points[0]}
    (pathlib.Path(out) / f"{name}-{policy}.json").write_text(json.dumps(result))
if name == "search":
    for file in pathlib.Path(out).iterdir():
        file.unlink()
figures = {"run": name, "effective": [{"policy": "auto", "rate": 3.5, "more": True, "attained": 90}] if name == "search" else [], "paper": []}
(pathlib.Path(out) / f"{name}.figures.json").write_text(json.dumps(figures))
print(f"of no use\\n== printed by {name} & more")
"""
# Keeps what it is given.
DRAW = """#!/usr/bin/env python3
import pathlib, sys
pathlib.Path(sys.argv[1]).with_suffix(".json").write_text(sys.stdin.read())
pathlib.Path(sys.argv[1]).touch()
"""


def of_kind(blocks, kind):
    """All blocks of a kind, those within folds too."""
    found = []
    for block in blocks:
        found += [block] if kind in block else []
        found += of_kind(block.get("blocks", []), kind)
    return found


class ReproduceTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for name in ("experiments", "docs"):
            (self.root / name).mkdir()
        self.program = self.root / "kvasir"
        self.program.write_text(PROGRAM)
        self.program.chmod(0o755)
        (self.root / "docs" / "reproduction.md").write_text(
            "# Title\n\n| claim | verdict |\n|---|---|\n| up to <9> times, `x` | **holds** |\n\n| other | table |\n")
        paper = [{"policy": "vllm", "rate": 2, "key": "attainment_joint", "value": 90},
                 {"policy": "auto", "over": "vllm", "most": True, "key": "mean_ttft_ms", "value": 2},
                 {"policy": "auto", "less": "vllm", "rate": 2, "key": "attainment_joint", "value": 5, "to": 20}]
        self.describe("ellm-fig1", [{"name": "curve", "args": ["--model", "a", "--goodput", "ttft:150", "tpot:9", "--scheduling-policy", "vllm,auto"], "paper": paper},
                                    {"name": "len-10", "args": ["--model", "a"]}, {"name": "len-20", "args": ["--model", "a"]}])
        self.describe("ellm-fig10", [{"name": "search", "args": []}])
        self.describe("auto-core", [{"name": "point", "args": []}])
        self.draw = self.root / "draw_page"
        self.draw.write_text(DRAW)
        self.draw.chmod(0o755)
        self.addCleanup(setattr, reproduce, "ROOT", reproduce.ROOT)
        reproduce.ROOT = self.root

    def describe(self, name, runs):
        (self.root / "experiments" / f"{name}.json").write_text(
            json.dumps({"title": f"Title of {name}", "source": "A & B", "runs": runs}))

    def reproduce(self, *flags):
        """(exit code, what ran, what was printed)."""
        (self.root / "ran").write_text("")
        said = io.StringIO()
        argv = ["reproduce", "--out", str(self.root / "out"), "--kvasir", str(self.program), "--draw-page", str(self.draw), *flags]
        with unittest.mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(said):
            code = reproduce.main()
        return code, [line.strip() for line in (self.root / "ran").read_text().splitlines()], said.getvalue()

    def blocks(self, kind):
        page = json.loads((self.root / "out" / "index.json").read_text(encoding="utf-8"))
        return of_kind(page["blocks"], kind)

    def texts(self):
        return [block["text"] for block in self.blocks("text")]

    def chart(self, title, kind):
        """The only one with this title and lines or rows."""
        found = [chart for block in self.blocks("charts") for chart in block["charts"] if chart["title"] == title and kind in chart]
        self.assertEqual(len(found), 1, title)
        return found[0]

    def rows(self, head):
        """Of the tables that begin with this head."""
        return [row for block in self.blocks("table") if block["table"]["heads"][:len(head)] == head for row in block["table"]["rows"]]

    def test_it_goes_on_where_it_was(self):
        everything = ["ellm-fig1/curve", "ellm-fig1/len-10", "ellm-fig1/len-20", "ellm-fig10/search"]
        code, ran, said = self.reproduce()
        self.assertEqual((code, ran), (0, everything), "those of no paper only by name")
        self.assertIn("[4/4] ellm-fig10 search", said)
        self.assertEqual(self.reproduce()[1], [])
        self.assertEqual(self.reproduce("auto-core")[1], ["auto-core/point"])
        (self.root / "out" / "ellm-fig1" / "len-10.run.json").write_text("{")
        self.assertEqual(self.reproduce()[1], ["ellm-fig1/len-10"])
        self.describe("ellm-fig10", [{"name": "search", "args": ["--seeds", "2"]}])
        self.assertEqual(self.reproduce()[1], ["ellm-fig10/search"], "its flags have changed")
        self.assertEqual(self.reproduce("--num-prompts", "5", "ellm-fig10")[1], ["ellm-fig10/search few"])
        self.assertIn("Of 5 requests a run only", self.texts()[0])
        self.assertEqual(self.reproduce("ellm-fig10")[1], ["ellm-fig10/search"])

    def test_another_build_is_said_and_runs_only_if_asked(self):
        self.reproduce("ellm-fig1")
        self.program.write_text(PROGRAM + "\n")
        self.assertEqual(self.reproduce("ellm-fig1")[1], [])
        self.assertIn("Of another build of kvasir than the present one: all", self.texts())
        self.describe("ellm-fig1", [{"name": "new", "args": []}, {"name": "len-10", "args": ["--model", "a"]}])
        self.assertEqual(self.reproduce("ellm-fig1")[1], ["ellm-fig1/new"])
        self.assertIn("Of another build of kvasir than the present one: len-10", self.texts())
        self.assertEqual(len(self.reproduce("ellm-fig1", "--again")[1]), 1)
        self.assertFalse([text for text in self.texts() if "another build" in text])

    def test_names_choose(self):
        self.assertEqual(self.reproduce("ellm-fig1")[1], ["ellm-fig1/curve", "ellm-fig1/len-10", "ellm-fig1/len-20"])
        self.assertEqual(self.reproduce("ellm-fig10", "auto")[1], ["auto-core/point", "ellm-fig10/search"])
        with self.assertRaisesRegex(SystemExit, "begins with 'nothing'; there are auto-core, ellm-fig1, ellm-fig10"):
            self.reproduce("nothing")

    def test_what_fails_is_said_and_runs_again(self):
        (self.root / "fails-len-10").touch()
        code, ran, said = self.reproduce("ellm-fig1")
        self.assertEqual((code, len(ran)), (1, 3))
        self.assertIn("len-10 FAILED: kvasir simulate: no <room>", said)
        self.assertIn("len-10 failed: kvasir simulate: no <room>", self.texts())
        (self.root / "fails-len-10").unlink()
        self.assertEqual(self.reproduce("ellm-fig1")[:2], (0, ["ellm-fig1/len-10"]))

    def test_the_paper_beside_ours(self):
        self.reproduce("ellm")
        # vllm has 100 ms a request/s and auto half of it, each +- 10; they attain 70 and 80 % at 2 requests/s.
        self.assertEqual(self.rows(["run", "policy", "requests/s", "figure"]), [
            ["curve", "vllm", "2", "All bounds met", {"value": 90, "unit": "%"}, {"value": 70, "unit": "%"}, "0.78"],
            ["curve", "auto / vllm", "greatest", "Mean TTFT, times that of another", {"value": 2, "unit": ""},
             {"value": 0.5, "unit": "", "half": unittest.mock.ANY}, "0.25"],
            ["curve", "auto − vllm", "2", "All bounds met, points more than another",
             {"value": 5, "unit": "", "to": 20}, {"value": 10, "unit": ""}, "1.00"]])
        # At 1 request/s: 50 +- 10 over 100 +- 10; at 2 the quotient is the same and surer.
        half = self.rows(["run", "policy", "requests/s", "figure"])[1][5]["half"]
        self.assertAlmostEqual(half, 0.5 * (0.2**2 + 0.1**2)**0.5)
        rows = self.chart("All bounds met, points more than another", "rows")["rows"]
        self.assertEqual(rows, [{"name": "auto − vllm, 2/s", "points": [{"value": 5, "to": 20, "system": 1, "hollow": True},
                                                                         {"value": 10, "half": 0, "system": 0}]}])

    # Quotients of 2 and 4, and differences of 10 and 30, in two seeds: 12.706 times the deviation over the root of two.
    def test_intervals_over_pairs_of_a_seed(self):
        def of(policy, figures):
            return {"label": policy, "points": [{"request_rate": 2, "x": sum(figures) / 2, "intervals": {"x": {"half_width": 99}}}],
                    "of_seeds": [{"request_rate": 2, "seed": seed, "x": figure} for seed, figure in enumerate(figures)]}
        kept = {"results": [of("auto", [20, 40]), of("vllm", [10, 10])]}
        entry = {"policy": "auto", "key": "x"}
        for rate in (2, None):
            quotient = reproduce.ours_at({**entry, "over": "vllm"}, kept, {}, rate)
            self.assertEqual(quotient[0], 3)
            self.assertAlmostEqual(quotient[1], 12.706)
            self.assertAlmostEqual(reproduce.ours_at({**entry, "less": "vllm"}, kept, {}, rate)[1], 127.06)
        for result in kept["results"]:
            del result["of_seeds"]
        self.assertAlmostEqual(reproduce.ours_at({**entry, "less": "vllm"}, kept, {}, 2)[1], 99 * 2**0.5, msg="only means are kept")

    def test_charts_over_the_rate(self):
        self.reproduce("ellm-fig1")
        ttft = self.chart("Mean TTFT", "bands")
        self.assertEqual((ttft["unit"], ttft["bounds"]), ("ms", [{"name": "bound on TTFT", "value": 150}]))
        self.assertEqual(ttft["lines"][1], {"name": "auto", "system": 1, "x": [1, 2], "y": [50, 100], "half": [10, 10]})
        attained = [c for block in self.blocks("charts") for c in block["charts"] if c["title"] == "All bounds met" and "lines" in c]
        self.assertEqual(attained[0]["lines"][2], {"name": "vllm, the paper's", "system": 0, "x": [2], "y": [90], "half": [0], "hollow": True})
        self.assertEqual(attained[0]["y_max"], 100)
        multiple = self.chart("Mean TTFT, times that of another", "lines")
        self.assertEqual((multiple["lines"][0]["name"], multiple["lines"][0]["y"]), ("auto / vllm", [0.5, 0.5]))
        self.assertEqual(multiple["bands"], [{"name": "paper, up to: auto / vllm", "low": 2, "high": 2, "system": 0}])
        points = self.chart("All bounds met, points more than another", "lines")
        self.assertEqual((points["lines"][0]["y"], points["bands"][0]["low"], points["bands"][0]["high"]), ([5, 10], 5, 20))
        files = [chart["file"] for block in self.blocks("charts") for chart in block["charts"]]
        self.assertEqual(len(files), len(set(files)))

    def test_charts_over_the_runs(self):
        self.reproduce("ellm-fig1")
        charts = next(block for block in self.blocks("fold") if block["fold"] == "Over the runs len-…")["blocks"][0]["charts"]
        self.assertEqual(charts[1]["rows"][0], {"name": "10", "points": [{"value": 50, "half": 0, "system": 1, "lane": 1},
                                                                         {"value": 100, "half": 0, "system": 0, "lane": 0}]})
        self.assertEqual(charts[1]["systems"], ["vllm", "auto"], "as in the curves of the experiment")
        self.describe("ellm-fig2", [{"name": f"len-{n}", "args": []} for n in ("1k", "2k", "64k")])
        self.reproduce("ellm-fig2")
        line = self.chart("Mean TTFT", "lines")
        self.assertEqual((line["lines"][0]["x"], line["log_x"]), ([1000, 2000, 64000], True))

    def test_every_figure_of_the_papers_has_a_name_and_is_drawn(self):
        entries = []
        for path in sorted((pathlib.Path(__file__).resolve().parents[2] / "experiments").glob("*.json")):
            for run in json.loads(path.read_text(encoding="utf-8"))["runs"]:
                entries += [(run["name"], entry, (1.5, 0)) for entry in run.get("paper", [])]
        self.assertGreater(len(entries), 600)
        self.assertEqual({entry["key"] for _, entry, _ in entries} - set(reproduce.FIGURES), set())
        charts, numbers = reproduce.beside_paper(entries)
        points = [point for chart in charts for row in chart["rows"] for point in row["points"]]
        self.assertEqual(sum(point.get("hollow", False) for point in points), len(entries))
        self.assertEqual(len(points), 2 * len(entries))
        self.assertEqual(len(numbers["table"]["rows"]), len(entries))
        self.assertLessEqual(max(len(chart["rows"]) for chart in charts), reproduce.MOST_ROWS)

    def test_systems_can_be_told(self):
        """Charts have at most twenty, with one number each; in an experiment of few a policy has one number everywhere."""
        def systems(run):
            fold = next(block for block in self.blocks("fold") if block["fold"] == f"Over the rate: {run}")
            return [{line["name"]: line["system"] for line in chart["lines"]} for chart in fold["blocks"][0]["charts"] if chart["title"] == "Mean TTFT"]
        def run(name, policies):
            return {"name": name, "args": ["--scheduling-policy", ",".join(policies)]}
        self.describe("ellm-fig1", [run("curve", ["p0"]), run("len-10", ["p1", "vllm"])])
        self.reproduce("ellm-fig1")
        self.assertEqual(systems("curve"), [{"p0": 0, "vllm": 2, "auto": 3}])
        self.describe("ellm-fig1", [run("curve", [f"p{i}" for i in range(25)]), run("len-10", [f"q{i}" for i in range(18)])])
        self.reproduce("ellm-fig1")
        first, second = systems("curve")
        self.assertEqual(first, {f"p{i}": i for i in range(20)})
        self.assertEqual(second, {**{f"p{i}": i - 20 for i in range(20, 25)}, "auto": 5, "vllm": 6})

    def test_the_rest_of_the_page(self):
        self.reproduce("ellm")
        self.assertEqual(self.blocks("table")[0]["table"], {"heads": ["claim", "verdict"], "rows": [["up to <9> times, x", "holds"]],
                                                            "names": 1, "texts": True})
        self.assertIn("A & B", self.texts())
        self.assertEqual(self.rows(["run", "policy", "requests/s"])[-1], ["search", "auto", {"value": 3.5, "unit": "", "before": "≥ "}])
        self.assertIn("printed by curve & more\n", [block["printed"] for block in self.blocks("printed")])
        self.assertEqual(self.rows(["flag of all runs"]), [["model", "a"]])
        self.assertEqual(self.rows(["run", "goodput"]), [["curve", "ttft:150 tpot:9", "vllm,auto"], ["len-10", "", ""], ["len-20", "", ""]])

    def test_figures_over_other_runs(self):
        over = {"policy": "vllm", "over": "auto", "over_runs": ["len-10", "curve"], "rate": 1, "key": "mean_ttft_ms"}
        self.describe("sarathi-a", [{"name": "curve", "args": []}, {"name": "len-10", "args": []},
                                    {"name": "own", "args": [], "paper": [{**over, "value": 0.2, "to": 0.4}, {**over, "value": 2, "to": 5},
                                                                          {**over, "value": 7, "over_runs": ["none"]}]}])
        self.reproduce("sarathi")
        # 100 ms over 50 and 50: beyond the one range, below the other.
        rows = self.rows(["run", "policy", "requests/s", "figure"])
        self.assertEqual([(row[1], row[5] and row[5]["value"], row[6]) for row in rows],
                         [("vllm / auto (len-10 + curve)", 1, "2.50"), ("vllm / auto (len-10 + curve)", 1, "0.50"), ("vllm / auto (none)", None, "")])

    def test_what_the_paper_says_may_change_without_a_run(self):
        self.reproduce("ellm-fig1")
        self.describe("ellm-fig1", [{"name": "len-10", "args": ["--model", "a"], "paper": [
            {"policy": "auto", "key": "mean_ttft_ms", "value": 100}]}])
        self.assertEqual(self.reproduce("ellm-fig1")[1], [])
        self.assertEqual([row[-1] for row in self.rows(["run", "policy", "requests/s", "figure"])], ["0.50"])

    def test_commands_of_the_repository(self):
        folder = self.root / "experiments" / "commands"
        folder.mkdir()
        (self.root / "say.py").write_text("import sys\nprint('Caption\\n\\n| a | b |\\n|---|---|\\n| ' + sys.argv[1] + ' | **2** |')\n")
        (folder / "distkv-fig2.json").write_text(json.dumps({"title": "C", "source": "S", "runs": [{"name": "one", "command": ["say.py", "KVASIR"]}]}))
        code, ran, _ = self.reproduce("distkv")
        self.assertEqual((code, ran), (0, []))
        self.assertIn("Caption", self.texts())
        self.assertEqual(self.rows(["a", "b"]), [[str(self.program.resolve()), "2"]])
        self.assertIn("1 runs, of which 1 are there already", self.reproduce("distkv")[2])

    def test_how_long_it_takes(self):
        (self.root / "experiments" / "seconds.tsv").write_text("# said\nellm-fig1\tcurve\t7200\nellm-fig1\tlen-10\t3600\n")
        with self.assertRaises(SystemExit), contextlib.redirect_stdout(io.StringIO()) as said:
            with unittest.mock.patch.object(sys, "argv", ["reproduce", "--help"]):
                reproduce.main()
        self.assertIn("How long: 2 of 4 runs take 3.0 h of one core; 2 have not been measured.", said.getvalue())
        self.assertIn("of what is left 2 of 3 runs take 3.0 h of one core; 1 have not been measured", self.reproduce("ellm-fig1", "--record-seconds")[2])
        self.assertRegex(self.texts()[0], r"3 of 3 runs are here. 3 of them took \d+ s of one core \(0.00 CPU hours\). By what has been "
                                          r"recorded, 3 of 3 runs take \d s of one core\.")
        recorded = (self.root / "experiments" / "seconds.tsv").read_text().splitlines()
        self.assertEqual([line.split("\t")[:2] for line in recorded[1:]], [["ellm-fig1", "curve"], ["ellm-fig1", "len-10"], ["ellm-fig1", "len-20"]])
        self.assertTrue(all(0 < float(line.split("\t")[2]) < 60 for line in recorded[1:]), recorded)

    def test_a_page_of_what_is_there(self):
        self.reproduce("ellm-fig10")
        self.assertEqual(self.reproduce("ellm", "--page-only")[:2], (0, []))
        self.assertIn("Not run: curve, len-10, len-20", self.texts())
        self.draw.unlink()
        with self.assertRaisesRegex(SystemExit, "there is no .*draw_page"):
            self.reproduce("ellm", "--page-only")

    @unittest.skipUnless(os.environ.get("KVASIR_DRAW_PAGE"), "KVASIR_DRAW_PAGE is not set")
    def test_it_is_drawn(self):
        self.draw = pathlib.Path(os.environ["KVASIR_DRAW_PAGE"])
        self.assertEqual(self.reproduce("ellm")[0], 0)
        page = (self.root / "out" / "index.html").read_text(encoding="utf-8")
        for part in ("<td>90 %</td><td>70 %</td><td>0.78</td>", "<title>vllm, the paper&#39;s: 90 % at 2</title>", "bound on TTFT 150 ms",
                     "<title>auto: 50 ms +- 10 ms at 1</title>", "<td>≥ 3.5</td>", "up to &lt;9&gt; times, x"):
            self.assertIn(part, page)
        charts = list((self.root / "out" / "charts").glob("*.svg"))
        self.assertIn("ellm-fig1-curve-mean-ttft.svg", [chart.name for chart in charts])
        # Each chart is in the page twice: wide, and for a phone.
        self.assertEqual(page.count('<svg class="wide"'), len(charts))
        self.assertEqual(page.count('<svg class="phone"'), len(charts))


if __name__ == "__main__":
    unittest.main()
