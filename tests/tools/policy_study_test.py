"""bench/policy_study.py: its arithmetic by hand, and a whole study with a program that says fixed figures."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "policy_study.py"
spec = importlib.util.spec_from_file_location("policy_study", SCRIPT)
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)

# Stands in for kvasir simulate: writes down how it was called, and gives each policy figures of its own. `even` is better than
# `odd` with the seeds that choose, and worse with those that compare.
FAKE = r"""#!{python}
import json, os, pathlib, sys
words = sys.argv[1:]
here = os.path.dirname(os.path.abspath(sys.argv[0]))
with open(os.path.join(here, "calls"), "a") as calls:
    calls.write(json.dumps(words) + "\n")
after = lambda flag: words[words.index(flag) + 1]
first, seeds = int(after("--seed")), int(after("--seeds"))
policies = after("--scheduling-policy").split(",")
for i, policy in enumerate(policies):
    def run(seed):
        attained = dict(even=80 if seed < 6 else 60, odd=70, auto=66)[policy] + seed * 0.1
        out = dict(output_throughput=100.0, mean_e2el_ms=dict(even=1000, odd=2000, auto=900)[policy] + seed,
                   p99_e2el_ms=5000.0 * (2 if policy == "auto" else 1), p99_ttft_ms=100.0)
        if "--goodput" in words: out["attainment_joint"] = attained
        return out
    result = dict(label=policy, request_rate=2.5, runs=[run(first + k) for k in range(seeds)])
    name = "r.json" if len(policies) == 1 else "r-%d.json" % i
    pathlib.Path(after("--result-dir"), name).write_text(json.dumps(result))
"""


class Arithmetic(unittest.TestCase):
    def test_students_tail_is_that_of_the_tables(self):
        for t, freedom, p in ((2.776, 4, 0.025), (2.132, 4, 0.05), (1.0, 1, 0.25), (0.0, 7, 0.5), (-2.776, 4, 0.975)):
            self.assertAlmostEqual(study.t_tail(t, freedom), p, delta=2e-4)
        self.assertEqual(study.t_tail(float("inf"), 3), 0)

    def test_a_difference_is_judged_against_its_margin(self):
        # Mean 1, deviation 1, five values: against -2 t = 3 / (1 / sqrt 5) = 6.71, against 2 it is -2.24.
        values = [0, 0, 1, 2, 2]
        self.assertAlmostEqual(study.p_above(values, -2), study.t_tail(6.708, 4), places=5)
        self.assertGreater(study.p_above(values, 2), 0.9)
        self.assertEqual(study.p_above([3, 3, 3], 2), 0)
        self.assertEqual(study.p_above([2, 2, 2], 2), 1)
        self.assertEqual(study.p_above([5], 2), 1)

    def test_holm_multiplies_by_what_is_left_and_never_falls(self):
        self.assertEqual([round(p, 3) for p in study.holm([0.01, 0.04, 0.03])], [0.03, 0.06, 0.06])
        self.assertEqual(study.holm([0.9, 0.8]), [1.0, 1.0])

    def test_flags_go_with_their_values(self):
        self.assertEqual(study.without(["--a", "1", "--goodput", "x", "y", "--b"], "--goodput"), ["--a", "1", "--b"])

    def test_a_trace_has_its_parts_shares(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "t.csv")
            trace = {"parts": [{"share": 0.8, "prompt": [16, 64], "output": [1, 1]},
                               {"share": 0.2, "prompt": [100, 200], "output": [50, 60]}]}
            study.write_trace(path, trace, 1000, 1)
            lines = path.read_text().split()
            self.assertEqual(lines[0], "prompt,output")
            self.assertEqual(len(lines), 1001)
            short = sum(line.endswith(",1") for line in lines[1:])
            self.assertTrue(760 <= short <= 840, short)
            again = path.read_text()
            study.write_trace(path, trace, 1000, 1)
            self.assertEqual(again, path.read_text())
            study.write_trace(path, trace, 1000, 6)
            self.assertNotEqual(again, path.read_text())


class Study(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.at = pathlib.Path(self.folder.name)
        self.kvasir = self.at / "kvasir"
        self.kvasir.write_text(FAKE.replace("{python}", sys.executable))
        self.kvasir.chmod(0o755)
        self.experiment = self.at / "e.json"
        self.experiment.write_text(json.dumps({"title": "t", "runs": [
            {"name": "bounds", "args": ["--num-prompts", "10", "--request-rate", "1x", "--goodput", "ttft:5"]},
            {"name": "none", "args": ["--num-prompts", "10", "--request-rate", "1x"]}]}))

    def tearDown(self):
        self.folder.cleanup()

    def run_study(self, *more):
        return subprocess.run([sys.executable, str(SCRIPT), "--experiment", str(self.experiment), "--rivals", "odd,even", "--out",
                               str(self.at / "out"), "--kvasir", str(self.kvasir), "--jobs", "1", *more],
                              capture_output=True, text=True)

    def calls(self):
        return [json.loads(line) for line in (self.at / "calls").read_text().splitlines()]

    def test_the_rival_is_chosen_on_other_seeds_than_those_that_compare(self):
        done = self.run_study()
        self.assertEqual(done.returncode, 0, done.stderr)
        with_bounds, without = json.loads((self.at / "out/results.json").read_text())
        # `odd` would have been the better rival on the seeds that compare; it must not be taken.
        self.assertEqual(with_bounds["rival"], "even")
        self.assertAlmostEqual(with_bounds["gain"], 6)
        self.assertTrue(with_bounds["ahead"])
        self.assertEqual(with_bounds["tail"], 2)
        self.assertEqual(without["rival"], "even")
        self.assertAlmostEqual(without["gain"], 908 / 1008, places=3)
        self.assertTrue(without["ahead"])
        self.assertIn("2 points: ahead at 2 (2 with p < 0.05 after Holm), behind at 0", done.stdout)
        self.assertIn("ahead, tail", done.stdout)
        compared = self.calls()[2]
        self.assertEqual(compared[compared.index("--request-rate") + 1], "2.5")  # what 1x was with the first seeds
        self.assertEqual(compared[compared.index("--seed") + 1], "6")
        # `odd` takes twice as long without bounds: it is no rival, and the other seeds are not for it.
        chosen = [call[call.index("--scheduling-policy") + 1] for call in self.calls()]
        self.assertEqual(chosen, ["odd,even", "odd,even", "even,auto", "odd,even", "even", "even,auto"])

    def test_what_is_there_is_not_run_again(self):
        self.run_study()
        self.assertEqual(len(self.calls()), 6)
        self.run_study()
        self.assertEqual(len(self.calls()), 6)
        self.run_study("--again", "--points", "none")
        self.assertEqual(len(self.calls()), 7)
        last = self.calls()[-1]
        self.assertEqual(last[last.index("--scheduling-policy") + 1], "auto")

    def test_level_in_attainment_and_behind_in_tokens_is_behind(self):
        runs = {"6": dict(attainment_joint=70, output_throughput=100, p99_e2el_ms=1, p99_ttft_ms=1),
                "7": dict(attainment_joint=71, output_throughput=101, p99_e2el_ms=1, p99_ttft_ms=1)}
        slow = {seed: {**run, "output_throughput": 90} for seed, run in runs.items()}
        got = study.verdict({"name": "p", "subject": "auto", "rival": "odd",
                             "compared": {"auto": {"rate": 1, "seeds": slow}, "odd": {"rate": 1, "seeds": runs}}})
        self.assertTrue(got["level"] and got["behind"])
        self.assertGreater(got["p_not_inferior"], 0.5)

    def test_other_settings_than_those_of_the_results_are_refused(self):
        self.run_study()
        self.assertIn("was made with other settings", self.run_study("--seeds", "2").stderr)
        self.experiment.write_text(self.experiment.read_text().replace("ttft:5", "ttft:6"))
        done = self.run_study()
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("was made with other settings", done.stderr)


if __name__ == "__main__":
    unittest.main()
