"""tools/reproduce.py with a program that says fixed figures: what runs, what is kept, and what the page has."""

import contextlib
import io
import json
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
points = [{"request_rate": rate, "attainment_joint": 90 - 10 * rate, "mean_ttft_ms": 100 * rate} for rate in ((1, 2) if name == "curve" else (1,))]
for policy in ("vllm", "auto"):
    result = {"label": policy, "points": points} if len(points) > 1 else {"label": policy, "seed": 0, **points[0]}
    (pathlib.Path(out) / f"{name}-{policy}.json").write_text(json.dumps(result))
figures = {"run": name, "effective": [{"policy": "auto", "rate": 3.5, "more": True, "attained": 90}] if name == "search" else [],
           "paper": [{**entry, "ours": 45.0} for entry in run.get("paper", [])]}
(pathlib.Path(out) / f"{name}.figures.json").write_text(json.dumps(figures))
print(f"printed by {name} & more")
"""


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
        paper = [{"policy": "vllm", "rate": 2, "key": "attainment_joint", "value": 90}, {"policy": "auto", "over": "vllm", "most": True,
                                                                                        "key": "mean_ttft_ms", "value": 0}]
        self.describe("ellm-fig1", [{"name": "curve", "args": ["--model", "a"], "paper": paper}, {"name": "len-10", "args": []},
                                    {"name": "len-20", "args": []}])
        self.describe("ellm-fig10", [{"name": "search", "args": []}])
        self.describe("auto-core", [{"name": "point", "args": []}])
        self.addCleanup(setattr, reproduce, "ROOT", reproduce.ROOT)
        reproduce.ROOT = self.root

    def describe(self, name, runs):
        (self.root / "experiments" / f"{name}.json").write_text(
            json.dumps({"title": f"Title of {name}", "source": "A & B", "runs": runs}))

    def reproduce(self, *flags):
        """(exit code, what ran, what was printed)."""
        (self.root / "ran").write_text("")
        said = io.StringIO()
        argv = ["reproduce", "--out", str(self.root / "out"), "--kvasir", str(self.program), *flags]
        with unittest.mock.patch.object(sys, "argv", argv), contextlib.redirect_stdout(said):
            code = reproduce.main()
        return code, [line.strip() for line in (self.root / "ran").read_text().splitlines()], said.getvalue()

    def page(self):
        return (self.root / "out" / "index.html").read_text(encoding="utf-8")

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
        self.assertIn("of 5 requests a run only", self.page())
        self.assertEqual(self.reproduce("ellm-fig10")[1], ["ellm-fig10/search"])

    def test_another_build_is_said_and_runs_only_if_asked(self):
        self.reproduce("ellm-fig1")
        self.program.write_text(PROGRAM + "\n")
        self.assertEqual(self.reproduce("ellm-fig1")[1], [])
        self.assertIn("Of another build of kvasir than the present one: curve, len-10, len-20", self.page())
        self.assertEqual(len(self.reproduce("ellm-fig1", "--again")[1]), 3)
        self.assertNotIn("Of another build", self.page())

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
        self.assertIn("len-10 failed: kvasir simulate: no &lt;room&gt;", self.page())
        (self.root / "fails-len-10").unlink()
        self.assertEqual(self.reproduce("ellm-fig1")[:2], (0, ["ellm-fig1/len-10"]))

    def test_the_page(self):
        self.reproduce("ellm")
        page = self.page()
        self.assertIn("<td>up to &lt;9&gt; times, <code>x</code></td>".replace("</td>", ""), page)
        self.assertIn("<b>holds</b>", page)
        self.assertNotIn("<th>other", page)
        self.assertIn("A &amp; B", page)
        self.assertIn("<td>curve<td>vllm<td>2<td>attainment_joint<td class=n>90<td class=n>45", page)
        self.assertIn("<td>curve<td>auto / vllm<td>greatest<td>mean_ttft_ms<td class=n>0<td class=n>45", page)
        self.assertIn("0.50 of the paper's", page)
        self.assertIn("<title>vllm: the paper's 90 at 2</title>", page)
        self.assertIn("<title>auto: 70 at 2</title>", page)
        self.assertIn("<title>auto: 80 at 20</title>", page, "runs with one rate are drawn over the runs")
        self.assertIn("<td>search<td>auto<td class=n>≥ 3.5", page)
        self.assertIn("printed by curve &amp; more", page)

    def test_figures_over_other_runs(self):
        over = {"policy": "vllm", "over": "auto", "over_runs": ["len-10", "curve"], "rate": 1, "key": "mean_ttft_ms"}
        self.describe("sarathi-a", [{"name": "curve", "args": []}, {"name": "len-10", "args": []},
                                    {"name": "own", "args": [], "paper": [{**over, "value": 0.2, "to": 0.4}, {**over, "value": 2, "to": 5},
                                                                          {**over, "value": 7, "over_runs": ["none"]}]}])
        self.reproduce("sarathi")
        page = self.page()
        # 100 ms over 100 and 100: beyond the one range, below the other.
        self.assertIn("<td>own<td>vllm / auto (len-10 + curve)<td>1<td>mean_ttft_ms<td class=n>0.2 to 0.4<td class=n>0.5<td>", page)
        self.assertIn("1.25 of the paper's", page)
        self.assertIn("<td class=n>2 to 5<td class=n>0.5<td>", page)
        self.assertIn("0.25 of the paper's", page)
        self.assertIn("<td>vllm / auto (none)<td>1<td>mean_ttft_ms<td class=n>7<td class=n>–<td></tr>", page)

    def test_a_page_of_what_is_there(self):
        self.reproduce("ellm-fig10")
        self.assertEqual(self.reproduce("ellm", "--page-only")[:2], (0, []))
        self.assertIn("Not run: curve, len-10, len-20", self.page())

    def test_ticks(self):
        self.assertEqual(reproduce.ticks(0, 100, False), [0, 20, 40, 60, 80, 100])
        self.assertEqual(reproduce.ticks(3, 300, True), [5, 10, 20, 50, 100, 200])
        self.assertEqual(reproduce.ticks(200, 300, True), [200, 220, 240, 260, 280, 300])


if __name__ == "__main__":
    unittest.main()
