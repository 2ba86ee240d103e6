"""bench/fidelity.py: its arithmetic by hand, and a whole study with a program that says fixed figures."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "fidelity.py"
spec = importlib.util.spec_from_file_location("fidelity", SCRIPT)
fidelity = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fidelity)

# Stands in for kvasir. Simulated runs are 10 % faster than real ones, and serve 12 requests a second at the most.
FAKE = r"""#!{python}
import http.server, json, os, pathlib, sys
words = sys.argv[1:]
with open(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "calls"), "a") as calls:
    calls.write(json.dumps(words) + "\n")
after = lambda flag: words[words.index(flag) + 1]
if words[0] == "profile":
    pathlib.Path(after("--truth")).write_text("truth")
    print("a table")
elif words[0] in ("bench", "simulate"):
    n, closed = int(after("--num-prompts")), "--max-concurrency" in words
    rate = 10.0 if closed else float(after("--request-rate"))
    speed = 0.9 if words[0] == "simulate" else 1.0
    result = dict(submitted=n, completed=n, unserved=0, request_throughput=rate, duration=n / min(rate, 12) + 0.5,
                  mean_e2el_ms=500, median_ttft_ms=10 * speed, p99_ttft_ms=20 * speed, median_itl_ms=2 * speed,
                  p99_itl_ms=4 * speed, output_throughput=100 / speed, length_mismatches=0)
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


def result(**changed):
    return dict(median_ttft_ms=10, p99_ttft_ms=20, median_itl_ms=2, p99_itl_ms=4, output_throughput=100) | changed


class Arithmetic(unittest.TestCase):
    def test_served_share(self):
        # 100 requests at 10 a second, each of a second: 11 s where all is served.
        run = {"completed": 100, "duration": 11}
        self.assertEqual(fidelity.served_share(run, 10, 1000), 1.0)
        self.assertAlmostEqual(fidelity.served_share(run | {"duration": 13.5}, 10, 1000), 0.8)
        self.assertEqual(fidelity.served_share(run | {"duration": 0.5}, 10, 1000), 1.0)

    def test_saturation_is_the_last_before_the_first_that_fails(self):
        self.assertEqual(fidelity.saturation({0.8: 1, 0.9: 0.95, 1.0: 0.94, 1.1: 0.96}), 0.9)
        self.assertIsNone(fidelity.saturation({0.8: 0.9}))

    def test_compare(self):
        rows = fidelity.compare([result(), result(p99_ttft_ms=30), result(p99_ttft_ms=25)], result(p99_ttft_ms=20))
        self.assertEqual([r["error"] for r in rows if r["key"] != "p99_ttft_ms"], [0, 0, 0, 0])
        p99 = rows[1]
        self.assertEqual((p99["real"], p99["simulated"]), (25, 20))
        self.assertAlmostEqual(p99["spread"], 40)
        self.assertAlmostEqual(p99["error"], -20)

    def test_summary(self):
        points = {"a": fidelity.compare([result()], result(median_itl_ms=3)),
                  "b": fidelity.compare([result()], result(median_itl_ms=1.8, p99_itl_ms=4.2, p99_ttft_ms=21))}
        s = fidelity.summary(points)
        self.assertAlmostEqual(s["worst"], 50)
        self.assertEqual(s["worst_at"], "a, TBT P50, ms")
        self.assertEqual((s["beyond"], s["figures"]), (1, 10))
        self.assertEqual(s["median"], 0)
        self.assertIn("| a | TBT P50, ms | 2 | 0.0 % | 3 | +50.0 % |", fidelity.table(points))


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
                               str(self.root / "out"), "--seconds", "10", "--loads", "0.5", "--repeats", "2",
                               "--candidates", "1,1.2,1.3", *flags], capture_output=True, text=True, timeout=100)

    def calls(self, command):
        return [c for c in map(json.loads, (self.root / "calls").read_text().splitlines()) if c[0] == command]

    def test_whole_study_and_resumption(self):
        done = self.study()
        self.assertEqual(done.returncode, 0, done.stderr)
        # Two policies at half the capacity of 10 and at saturation, 12.
        self.assertIn("| vllm, 0.5 x = 5 req/s | TTFT P50, ms | 10 | 0.0 % | 9 | -10.0 % |", done.stdout)
        self.assertIn("| sarathi, 1.2 x = 12 req/s | tokens/s | 100 | 0.0 % | 111.1 | +11.1 % |", done.stdout)
        self.assertIn("Median error 10.0 % (target 10), worst 11.1 % (target 20;", done.stdout)
        self.assertEqual((self.root / "out" / "table.md").read_text(), done.stdout)
        self.assertEqual(len(self.calls("profile")), 1)
        self.assertEqual(self.calls("profile")[0][-2:], ["--threads", "1"])
        real = [c for c in self.calls("bench") if "--request-rate" in c]
        self.assertEqual(len(real), 8)
        simulated = self.calls("simulate")[-1]
        for flag in ("--request-rate", "--num-prompts", "--seed", "--length-scale", "--dataset-name"):
            self.assertEqual(simulated[simulated.index(flag) + 1], next(
                c[c.index(flag) + 1] for c in real if c[c.index("--label") + 1] == "sarathi"
                and c[c.index("--request-rate") + 1] == "12"))
        self.assertTrue(all("--threads" in c for c in self.calls("serve")))
        self.assertTrue(all("--no-enable-prefix-caching" in c for c in self.calls("serve") + self.calls("simulate")))
        # Again: only the one that is gone.
        (self.root / "out" / "real-vllm-0.5x-1.json").unlink()
        again = self.study()
        self.assertEqual(again.stdout, done.stdout)
        self.assertEqual(len([c for c in self.calls("bench") if "--request-rate" in c]), 9)
        self.assertIn("was made with another seed", self.study("--seed", "5").stderr)

    def test_nothing_is_served(self):
        done = self.study("--loads", "1.3", "--candidates", "1.4")
        self.assertIn("does not serve 95 %", done.stderr)
        self.assertNotEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
