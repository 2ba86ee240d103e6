"""bench/pressure_study.py: its arithmetic by hand, and a whole study with a program that says fixed figures."""

import argparse
import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "pressure_study.py"
spec = importlib.util.spec_from_file_location("pressure_study", SCRIPT)
study = importlib.util.module_from_spec(spec)
spec.loader.exec_module(study)

# Stands in for kvasir: writes down how it was called, and answers as that command would.
FAKE = r"""#!{python}
import http.server, json, os, pathlib, sys
words = sys.argv[1:]
with open(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "calls"), "a") as calls:
    calls.write(json.dumps(words) + "\n")
after = lambda flag: words[words.index(flag) + 1]
if words[0] == "inspect":
    print("KV per token, f32:    2.00 KiB\nKV per token, bf16:   1.00 KiB")
elif words[0] == "bench" and "--compare" in words:
    pathlib.Path(after("--html")).write_text("page")
elif words[0] == "bench":
    n = int(after("--num-prompts"))
    result = dict(submitted=n, completed=n - 1, unserved=1, refused=1, failed=0, request_throughput=2.0,
                  request_goodput=1.5, mean_ttft_ms=10, p99_ttft_ms=20, mean_tpot_ms=2, p99_itl_ms=3, p99_e2el_ms=100,
                  attainment_joint=50, median_refusal_ms=4.0, max_refusal_ms=9.0, preemptions=None, length_mismatches=0)
    if "--length-scale" in words and float(after("--length-scale")) == 0.3:
        result["length_mismatches"] = 2
    pathlib.Path(after("--result-dir"), after("--result-filename")).write_text(json.dumps(result))
else:
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
        def log_message(self, *_):
            pass
    http.server.HTTPServer(("127.0.0.1", int(after("--port"))), Health).serve_forever()
"""


class Arithmetic(unittest.TestCase):
    def test_kv_budget(self):
        text = "KV per token, f32:    45.00 KiB\nKV per token, bf16:   22.50 KiB\n"
        self.assertEqual(study.kv_bytes_per_token(text, "bf16"), 23040)
        with self.assertRaises(SystemExit):
            study.kv_bytes_per_token(text, "q8_0")
        # 499.3 + 8 tokens a request; 25 of them are 12,682.5, which is 793 blocks of 16.
        self.assertEqual(study.kv_budget(1, 25, study.SHAREGPT, 16), 793 * 16)
        # One mean request is less than the longest, of 2,048 tokens and a block.
        self.assertEqual(study.kv_budget(2, 1, study.SHAREGPT, 16), 2 * 2064)

    def test_lengths_of_a_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "lengths.csv")
            path.write_text("prompt,output\n100,20\n300,10\n")
            o = study.parse(["--model", "m", "--out", "x", "--trace", str(path), "--length-scale", "0.5"])
            self.assertEqual(study.lengths_of(o),
                             {"mean_prompt": 100, "mean_output": 7.5, "longest_output": 10, "longest_total": 155})
            for wrong in ("prompt,output\n", "prompt\n100\n", "prompt,output\n100,many\n"):
                path.write_text(wrong)
                with self.assertRaises(SystemExit):
                    study.lengths_of(o)

    def test_intervals(self):
        mean, half = study.mean_interval([2, 4, 6])
        self.assertEqual(mean, 4)
        self.assertAlmostEqual(half, 4.9686, 3)
        self.assertEqual(study.mean_interval([5]), (5, 0.0))
        self.assertEqual(study.cell([{"a": 2}, {"a": 4}, {"a": 6}], "a"), "4 ± 5")
        self.assertEqual(study.cell([{"a": None}], "a"), "–")
        self.assertEqual(study.cell([{"a": 12345}, {"a": 12345}], "a"), "12345 ± 0")
        self.assertEqual(study.readable(160, 2), "160")

    def test_slos(self):
        o = study.parse(["--model", "m", "--out", "x", "--slo-tbt", "5"])
        alone = {"mean_ttft_ms": 10, "mean_tpot_ms": 2, "p99_itl_ms": 3, "p99_e2el_ms": 100}
        self.assertEqual(study.slos_of(alone, o), {"ttft": 200, "tpot": 12, "tbt": 15, "e2el": 600})

        o = study.parse(["--model", "m", "--out", "x", "--slo-tbt", "5", "--slo-kinds", "ttft,tbt"])
        self.assertEqual(study.slos_of(alone, o), {"ttft": 200, "tbt": 15})
        with self.assertRaises(argparse.ArgumentTypeError):
            study.kinds("ttft,itl")

        o = study.parse(["--model", "m", "--out", "x", "--slos", "ttft:2000,tbt:500"])
        self.assertEqual(study.slos_of(alone, o), {"ttft": 2000, "tbt": 500})
        for wrong in ("ttft", "ttft:0", "itl:5", "ttft:1.5"):
            with self.assertRaises(argparse.ArgumentTypeError):
                study.bounds(wrong)

    def test_policies_are_what_they_are_meant_to_be(self):
        alone = {"mean_ttft_ms": 10}
        # A row takes 0.25 ms, so 30 ms have room for 120: 96 in whole 32s. No fewer than sequences run.
        self.assertEqual(study.chunk_tokens(alone, {"tbt": 60}, 40, 64), 96)
        self.assertEqual(study.chunk_tokens(alone, {"tbt": 10}, 40, 64), 64)
        o = study.parse(["--model", "m", "--out", "x", "--policy-flag", "vllm-swap=--kv-offloading-size=1MiB",
                         "--policy-flag", "fastgen=--max-num-batched-tokens=7"])
        plan = {"chunk_tokens": 96}
        self.assertEqual(study.policy_flags(o, "vllm", plan), [])
        self.assertEqual(study.policy_flags(o, "sarathi", plan), ["--max-num-batched-tokens=96"])
        self.assertEqual(study.policy_flags(o, "fastgen", plan), ["--max-num-batched-tokens=7"])
        self.assertEqual(study.policy_flags(o, "vllm-swap", plan), ["--kv-offloading-size=1MiB"])
        o = study.parse(["--model", "m", "--out", "x", "--policy-flag", "layerkv:slo=off=--threads=1"])
        self.assertEqual(study.policy_flags(o, "layerkv:slo=off", plan), ["--kv-offloading-size=128MiB", "--threads=1"])
        self.assertEqual(study.policy_flags(o, "vllm-swap", plan), ["--kv-offloading-size=128MiB"])
        self.assertEqual(study.policy_flags(o, "layerkv", plan), ["--kv-offloading-size=128MiB"])
        self.assertEqual(study.policy_flags(o, "layerkv:slo=on", plan), ["--kv-offloading-size=128MiB"])

    def test_slos_can_be_kept_from_the_server(self):
        slos = {"ttft": 100, "tbt": 15}
        o = study.parse(["--model", "m", "--out", "x"])
        self.assertEqual(study.slo_flags(o, slos), ["--slo", "ttft:100", "tbt:15"])
        o = study.parse(["--model", "m", "--out", "x", "--no-send-slo"])
        self.assertEqual(study.slo_flags(o, slos), ["--goodput", "ttft:100", "max_tbt:15"])
        o = study.parse(["--model", "m", "--out", "x", "--p99-tbt"])
        self.assertEqual(study.slo_flags(o, slos), ["--slo", "ttft:100", "tbt:15", "--goodput", "ttft:100", "p99_tbt:15"])
        o = study.parse(["--model", "m", "--out", "x", "--p99-tbt", "--no-send-slo"])
        self.assertEqual(study.slo_flags(o, slos), ["--goodput", "ttft:100", "p99_tbt:15"])

    def test_order_turns(self):
        self.assertEqual(study.turned(["a", "b", "c"], 0), ["a", "b", "c"])
        self.assertEqual(study.turned(["a", "b", "c"], 4), ["b", "c", "a"])

    def test_growth(self):
        # 100 MiB at once, then 2 MiB a minute: what comes first is left out.
        samples = [(0, 0), (1, 0), (2, 0)] + [(t, (100 << 20) + t * (2 << 20) / 60) for t in range(3, 9)]
        self.assertAlmostEqual(study.growth_per_minute(samples), 2, 6)
        self.assertEqual(study.growth_per_minute([]), 0)

    def test_unserved_share(self):
        self.assertEqual(study.with_shares({"submitted": 8, "unserved": 2})["unserved_percent"], 25)

    def test_overload_says_when_health_is_not_truthful(self):
        result = {"submitted": 9, "completed": 1, "refused": 8, "failed": 0, "request_goodput": 1.0}
        row = study.overload_row("p", result, {200: 3, 503: 1}, [(0, 1 << 20), (1, 0)], 2.0)
        self.assertFalse(row["health_truthful"])
        self.assertEqual(row["goodput_share"], 0.5)
        self.assertEqual(row["rss_mib"], [1, 1])
        self.assertIn("200 × 3, 503 × 1 (!)", study.overload_table([row | {"median_refusal_ms": None}]))


class WholeStudy(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = pathlib.Path(self.folder.name)
        self.program = self.root / "kvasir"
        self.program.write_text(FAKE.format(python=sys.executable))
        self.program.chmod(0o755)

    def study(self, *flags):
        return subprocess.run([sys.executable, str(SCRIPT), "--model", "m.gguf", "--kvasir", str(self.program), "--out",
                               str(self.root / "out"), "--policies", "vllm,other", "--rates", "0.5,1", "--seeds", "2",
                               "--seconds", "10", *flags], capture_output=True, text=True, timeout=100)

    def calls(self, command):
        lines = (self.root / "calls").read_text().splitlines()
        return [c for c in map(json.loads, lines) if c[0] == command]

    def test_sweep_and_resumption(self):
        done = self.study()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| 0.5 | other | 2 | 10 ± 0 | 20 ± 0 | 3 ± 0 |", done.stdout)
        self.assertIn("| 1.5 ± 0 | 10 ± 0 |", done.stdout)
        self.assertEqual((self.root / "out" / "report.html").read_text(), "page")
        serves = self.calls("serve")
        policies = [c[c.index("--scheduling-policy") + 1] for c in serves]
        # The baseline once; then the order turns from point to point.
        self.assertEqual(policies, ["vllm", "vllm", "other", "other", "vllm", "vllm", "other", "other", "vllm"])
        runs = [c for c in self.calls("bench") if "--slo" in c]
        self.assertEqual(len(runs), 8)
        self.assertEqual(runs[0][runs[0].index("--request-rate") + 1], "1")
        self.assertEqual(runs[0][runs[0].index("--num-prompts") + 1], "10")
        at = runs[0].index("--slo")
        self.assertEqual(runs[0][at + 1:at + 5], ["ttft:200", "tpot:12", "tbt:60", "e2el:600"])
        self.assertIn("--force-output-lengths", runs[0])
        self.assertNotIn("--tell-output-lengths", runs[0])
        (self.root / "out" / "other-1x-seed1.json").unlink()
        self.assertEqual(self.study().returncode, 0)
        self.assertEqual(len([c for c in self.calls("bench") if "--slo" in c]), 9)
        other = self.study("--mean-requests", "7")
        self.assertIn("was made with another mean_requests", other.stderr)
        # Overload, after the sweep.
        done = self.study("--overload", "--overload-seconds", "1")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("| other | 20 | 19 | 1 | 0 | 4.0, 9.0 | 100 % |", done.stdout)

    def test_other_lengths_are_no_comparison(self):
        done = self.study("--length-scale", "0.3")
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("forced_output_tokens", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
