"""bench/tpot_grid.py: its arithmetic by hand, and a whole grid with a program that says fixed figures."""

import argparse
import importlib.util
import json
import math
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "tpot_grid.py"
spec = importlib.util.spec_from_file_location("tpot_grid", SCRIPT)
grid = importlib.util.module_from_spec(spec)
spec.loader.exec_module(grid)

# Stands in for kvasir: writes down how it was called, and answers as that command would.
FAKE = r"""#!{python}
import http.server, json, os, pathlib, sys
words = sys.argv[1:]
here = os.path.dirname(os.path.abspath(sys.argv[0]))
with open(os.path.join(here, "calls"), "a") as calls:
    calls.write(json.dumps(words) + "\n")
after = lambda flag: words[words.index(flag) + 1]
if words[0] == "inspect":
    print("KV per token, f32:    2.00 KiB\nKV per token, bf16:   1.00 KiB")
elif words[0] == "eval":
    print("prefill_tok_s=1000.0 decode_tok_s=100.0")
elif words[0] == "profile":
    pathlib.Path(after("--output")).write_text("profile")
elif words[0] == "bench":
    lines = [json.loads(line) for line in open(after("--dataset-path"))]
    n, label = len(lines), after("--label")
    tokens = sum(line["prompt"].count(" ") for line in lines)
    result = dict(submitted=n, completed=n, unserved=0, refused=0, failed=0, request_goodput=3.0 if label == "ellm" else 2.0,
                  output_throughput=50.0, mean_tpot_ms=10.4, median_itl_ms=9.0, attainment_tpot=100.0, length_mismatches=0,
                  total_input_tokens=tokens * (2 if os.path.exists(os.path.join(here, "other-tokenizer")) else 1))
    pathlib.Path(after("--result-dir"), after("--result-filename")).write_text(json.dumps(result))
else:
    class Pages(http.server.BaseHTTPRequestHandler):
        steps = 0
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            if self.path == "/metrics":
                Pages.steps += 100
                self.wfile.write(('# TYPE kvasir:engine_steps_total counter\n'
                                  'kvasir:engine_steps_total{model_name="m"} %d\n'
                                  'kvasir:engine_steps_staged_total{model_name="m"} %d\n'
                                  % (Pages.steps, Pages.steps // 4)).encode())
        def log_message(self, *_):
            pass
    http.server.HTTPServer(("127.0.0.1", int(after("--port"))), Pages).serve_forever()
"""


def record(goodput, **more):
    return {"request_goodput": goodput, "output_throughput": 10.0, "mean_tpot_ms": 5.0, "attainment_tpot": 50.0,
            "unserved": 0, "failed": 0, "refused": 0, "counters": {}, **more}


class Arithmetic(unittest.TestCase):
    def test_the_grid(self):
        points = grid.slice_points("m:prefix=32,64:slo=1.5,4:memory=4:link=1,0.5")
        self.assertEqual(len(points), 8)
        # Servers are shared by neighbours: the SLO changes fastest.
        self.assertEqual(points[:3], [grid.Point("m", 32, 1.5, 4, 1), grid.Point("m", 32, 4, 4, 1),
                                      grid.Point("m", 32, 1.5, 4, 0.5)])
        self.assertEqual(grid.point_name(points[2]), "m-prefix32-slo1.5-memory4-link0.5")
        self.assertEqual(len(grid.grid_of(["m:prefix=1:slo=1:memory=1:link=1"] * 2)), 1)
        self.assertGreaterEqual(len(grid.grid_of(grid.SLICES)), 48)
        self.assertEqual(len(grid.grid_of(grid.QUICK)), 2)
        for wrong in ("m", "m:prefix=1:slo=1:memory=1", "m:prefix=1:slo=1:memory=1:link=0",
                      "m:prefix=x:slo=1:memory=1:link=1", "m:prefix=1:slo=1:memory=1:link=1:link=2", "m:prefix=1:slo=1:memory=1:speed=1"):
            with self.assertRaises(argparse.ArgumentTypeError):
                grid.slice_points(wrong)

    def test_what_a_point_means(self):
        # 4 requests of 32 + 48 tokens, each with half a block of 16 more: 352 tokens.
        self.assertEqual(grid.device_bytes(10, 4, 32, 48, 0.33, 16), 3520)
        # One is less than the longest: 80 × 1.25 + 16, and two blocks.
        self.assertEqual(grid.longest_request(32, 48, 0.25), 116)
        self.assertEqual(grid.device_bytes(1, 1, 32, 48, 0.25, 16), 160)
        # Llama-2-13B: 0.82 MB in 0.23 × 0.14 ms is 25 GB/s.
        self.assertAlmostEqual(grid.link_gbytes_per_s(0.82e6, 0.14e-3, 0.23), 25.5, 1)
        self.assertEqual([grid.slo_ms(7.4, 1.5), grid.slo_ms(0.1, 1)], [11, 1])
        # A request takes 32 ms for its prompt and 48 × 20 / 4 = 240 ms of the batch.
        self.assertEqual(grid.request_count(2.72, 32, 48, 4, 1e-3, 20), 10)
        self.assertEqual(grid.request_count(1, 32, 48, 4, 1e-3, 20), 8)

    def test_requests(self):
        lines = grid.drawn_requests(1, 200, 32, 48, 0.25)
        prompts, outputs = [line["prompt"].count(" ") for line in lines], [line["max_tokens"] for line in lines]
        self.assertEqual((min(prompts), max(prompts), min(outputs), max(outputs)), (24, 40, 36, 60))
        self.assertEqual(lines, grid.drawn_requests(1, 200, 32, 48, 0.25))
        self.assertNotEqual(lines, grid.drawn_requests(2, 200, 32, 48, 0.25))

    def test_what_is_read(self):
        self.assertEqual(grid.prefill_and_decode("prefill_tok_s=6246.7 decode_tok_s=766.2\n"), (6246.7, 766.2))
        with self.assertRaises(SystemExit):
            grid.prefill_and_decode("")
        before = grid.cpu_times("cpu  10 0 10 70 0 0 0 10 5 0\ncpu0 1 2 3\n")
        self.assertEqual(before, (100, 10))
        self.assertEqual(grid.steal_share(before, grid.cpu_times("cpu  20 0 20 130 0 0 0 30 5 0\n")), 0.2)
        self.assertEqual(grid.steal_share(before, before), 0)
        page = ('# HELP kvasir:engine_steps_total Steps.\nkvasir:engine_steps_total{model_name="m"} 7\n'
                'kvasir:link_bytes_total{model_name="m",from="host",to="device",emulated="true"} 5\n'
                'kvasir:other_total{model_name="m"} 5\n')
        found = grid.counters_of(page)
        self.assertEqual(found, {"engine_steps_total": 7, "link_bytes_total{from=host,to=device}": 5})
        self.assertEqual(grid.grown({"engine_steps_total": 3}, found)["engine_steps_total"], 4)

    def test_how_often_a_ratio_was_chosen(self):
        self.assertIsNone(grid.ratio_share({}))
        self.assertEqual(grid.ratio_share({"engine_steps_total": 8, "engine_steps_staged_total": 2}), 0.25)
        counted = {"engine_steps_total": 8, "engine_steps_staged_total": 2, "partial_history_steps_total{ratio=some}": 3,
                   "partial_history_steps_total{ratio=zero}": 1, "partial_history_ratio_sum_total": 1.5}
        self.assertEqual(grid.ratio_share(counted), 0.75)
        self.assertEqual(grid.ratio_mean(counted), 0.5)
        self.assertIsNone(grid.ratio_mean({}))

    def test_paired_ratio(self):
        # Always twice as much: no doubt, however much both vary.
        ratio, half = grid.paired_ratio([2, 4, 6], [1, 2, 3])
        self.assertEqual(ratio, 2)
        self.assertAlmostEqual(half, 0)
        # 3 / 2; deviations 0.5, -1, 0.5 from it have the deviation 0.866, so 4.303 × 0.866 / √3 / 2.
        ratio, half = grid.paired_ratio([2, 2, 5], [1, 2, 3])
        self.assertEqual(ratio, 1.5)
        self.assertAlmostEqual(half, 1.0758, 3)
        self.assertIsNone(grid.paired_ratio([0, 0], [0, 0]))
        self.assertEqual(grid.paired_ratio([1, 0], [0, 0]), (math.inf, None))
        self.assertEqual(grid.paired_ratio([3], [2]), (1.5, None))

    def test_certainty(self):
        self.assertEqual([grid.surely(r) for r in (None, {"mean": 2, "half": None}, {"mean": 1.2, "half": 0.3})], [0, 0, 0])
        self.assertEqual([grid.surely({"mean": mean, "half": 0.1}) for mean in (1.2, 0.8)], [1, -1])
        self.assertEqual(grid.with_half({"mean": 1.5, "half": None}), "1.5")

    def test_rows(self):
        point = grid.Point("m", 32, 1.5, 4, 1)
        runs = {"a": [record(1), record(3), record(9)], "b": [record(2), record(1), None],
                "ellm": [record(4), record(4), record(9)]}
        row = grid.row_of(point, {"slo_ms": 12, "requests": 8}, ["a", "b", "ellm"], "ellm", runs)
        # The third seed is not there for all.
        self.assertEqual(row["policies"]["a"]["request_goodput"]["seeds"], [1, 3])
        self.assertEqual((row["best"], row["ratio"]["mean"]), ("a", 2))
        self.assertIsNone(row["r_share"])
        s = grid.summary([row, {**row, "ratio": None}, {**row, "ratio": {"mean": 0.5, "half": 0.1}}])
        self.assertEqual((s["points"], s["with_ratio"], s["surely_above_1"], s["surely_below_1"]), (3, 2, 0, 1))
        self.assertAlmostEqual(s["geometric_mean"], 1)
        empty = grid.row_of(point, {"slo_ms": 12, "requests": 8}, ["a", "ellm"], "ellm", {"a": [None], "ellm": [None]})
        self.assertIsNone(empty["ratio"])
        self.assertIn("| m | 32 | 1.5 | 12 | 4 | 1 | 8 | – | – | – | – | – |", grid.table([empty], ["a", "ellm"], "ellm"))
        self.assertIsNone(grid.summary([empty]))

    def test_picture(self):
        self.assertEqual([grid.colour({"mean": m}) for m in (1, 2, 9, 0.5, 0)],
                         ["#ffffff", "#2166ac", "#2166ac", "#b2182b", "#b2182b"])
        self.assertEqual(grid.colour(None), "#d9d9d9")
        row = {"point": grid.Point("m", 32, 1.5, 4, 1)._asdict(), "ratio": {"mean": 1.5, "half": 0.1}, "r_share": 0.2}
        other = {"point": grid.Point("m<", 64, 4, 4, 1)._asdict(), "ratio": {"mean": math.inf, "half": None},
                 "r_share": 0}
        text = grid.picture([row, other], "ellm")
        xml.etree.ElementTree.fromstring(text)
        self.assertEqual(text.count("<circle"), 1)
        self.assertIn(">1.50</text>", text)
        self.assertIn(">∞</text>", text)

    def test_flags(self):
        o = grid.parse(["--out", "x", "--policies", "vllm:batch=tpot,vllm-swap,ellm", "--policy-flag",
                        "vllm:batch=tpot=--threads=2", "--policy-flag", "vllm-swap=--max-num-seqs=3"])
        self.assertEqual((o.subject, len(o.points)), ("ellm", len(grid.grid_of(grid.SLICES))))
        self.assertEqual(grid.host_flags(o, "vllm:batch=tpot", 2.5), [])
        self.assertEqual(grid.host_flags(o, "ellm", 2.5), ["--kv-offloading-size", "256MiB", "--kv-layer-group", "1",
                                                           "--link-gbytes-per-s", "2.5"])
        self.assertEqual(grid.own_flags(o, "vllm:batch=tpot"), ["--threads=2"])
        self.assertEqual(grid.own_flags(o, "vllm-swap"), ["--max-num-seqs=3"])
        self.assertEqual(grid.parse(["--out", "x", "--policies", "vllm,vllm-swap"]).subject, "vllm-swap")


class WholeGrid(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.program = self.root / "kvasir"
        self.program.write_text(FAKE.replace("{python}", sys.executable))
        self.program.chmod(0o755)

    def run_grid(self, *flags):
        return subprocess.run([sys.executable, str(SCRIPT), "--kvasir", str(self.program), "--out", str(self.root / "out"),
                               "--quick", "--policies", "vllm:batch=tpot,vllm-swap,ellm", "--model", "mha=m.gguf",
                               "--most-steal", "1", *flags], capture_output=True, text=True, timeout=100)

    def calls(self, command):
        lines = (self.root / "calls").read_text().splitlines()
        return [c for c in map(json.loads, lines) if c[0] == command]

    def runs(self):
        return [c for c in self.calls("bench") if c[c.index("--label") + 1] not in ("warm-up", "steady")]

    def test_grid_and_resumption(self):
        done = self.run_grid()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("2 points × 3 policies × 2 seeds: 12 runs to make", done.stderr)
        # 10.4 ms × 1.5 and × 4; 1 KiB a token of 1 ms in 0.05 of that.
        self.assertIn("| mha | 32 | 1.5 | 16 | 4 | 0.05 | 16 | 2 ± 0 | 2 ± 0 | 3 ± 0 | 1.5 ± 0 | vllm:batch=tpot | 25 |",
                      done.stdout)
        self.assertIn("| mha | 32 | 4 | 42 |", done.stdout)
        serves = self.calls("serve")
        self.assertEqual([c[c.index("--scheduling-policy") + 1] for c in serves],
                         ["vllm", "vllm:batch=tpot", "vllm-swap", "ellm"])
        self.assertNotIn("--link-gbytes-per-s", serves[1])
        self.assertEqual(serves[3][serves[3].index("--link-gbytes-per-s") + 1], "0.02048")
        self.assertEqual(serves[3][serves[3].index("--kv-cache-memory-bytes") + 1], str(352 * 1024))
        self.assertIn("--no-enable-prefix-caching", serves[3])
        runs = self.runs()
        # All policies at a point with one seed, then its next SLO, and the order turns.
        self.assertEqual([c[c.index("--label") + 1] for c in runs[:6]],
                         ["vllm:batch=tpot", "vllm-swap", "ellm", "vllm-swap", "ellm", "vllm:batch=tpot"])
        self.assertEqual([c[c.index("--slo") + 1] for c in runs[:4]], ["tpot:16"] * 3 + ["tpot:42"])
        out = self.root / "out"
        result = json.loads((out / "grid.json").read_text())
        self.assertEqual(result["grid"][0]["ratio"], {"mean": 1.5, "half": 0.0})
        self.assertEqual(result["grid"][0]["link_gbytes_per_s"], 0.02048)
        self.assertEqual((result["subject"], result["redone"]), ("ellm", 0))
        xml.etree.ElementTree.fromstring((out / "picture.svg").read_text())
        # What is there is not made again.
        (out / "runs" / "mha-prefix32-slo4-memory4-link0.05-ellm-seed1.json").unlink()
        self.assertEqual(self.run_grid().returncode, 0)
        self.assertEqual(len(self.runs()), 13)
        self.assertEqual(len(self.calls("serve")), 5)
        self.assertIn("was made with another output", self.run_grid("--output", "9").stderr)

    def test_stolen_time(self):
        # Nothing is less than that, so each run is made twice, and no more often.
        done = self.run_grid("--most-steal", "-1", "--profile-seconds", "0")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads((self.root / "out" / "grid.json").read_text())["redone"], 12)
        self.assertEqual(len([c for c in self.calls("bench") if c[c.index("--label") + 1] == "ellm"]), 8)
        self.assertEqual(self.calls("profile"), [])

    def test_other_prompts_are_another_grid(self):
        (self.root / "other-tokenizer").touch()
        self.assertIn("would have other lengths than the grid's", self.run_grid().stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
