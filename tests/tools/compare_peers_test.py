"""bench/compare_peers.py with programs that print fixed figures: how each is run, and which way the ratios go."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "compare_peers.py"

# Stands in for every program: writes down how it was called, and answers as that program would.
FAKE = r"""#!{python}
import http.server, json, os, pathlib, sys
me, words = pathlib.Path(sys.argv[0]).name, sys.argv[1:]
with open(os.path.join(os.path.dirname(os.path.abspath(sys.argv[0])), "calls"), "a") as calls:
    calls.write(json.dumps([me] + words) + "\n")
after = lambda flag: words[words.index(flag) + 1]
if words[0] == "eval":
    print("prefill_tok_s=300.0 decode_tok_s=50.0")
elif me == "llama-bench":
    print(json.dumps([{{"samples_ts": [1, 100, 900] if "-d" not in words else [24, 25, 26]}}]))
elif words[0] == "bench":
    ours = "Kvasir" in __import__("urllib.request").request.urlopen(after("--base-url") + "/health").read().decode()
    tokens = int(after("--num-prompts")) * int(after("--random-output-len"))
    result = dict(failed=0, total_output_tokens=tokens - int(os.environ.get("LOST", "0")),
                  output_throughput=600 if ours else 200, mean_ttft_ms=10 if ours else 50, mean_tpot_ms=4 if ours else 6)
    pathlib.Path(after("--result-dir"), after("--result-filename")).write_text(json.dumps(result))
else:
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"Kvasir" if words[0] == "serve" else b"peer")
        def log_message(self, *_):
            pass
    http.server.HTTPServer(("127.0.0.1", int(after("--port"))), Health).serve_forever()
"""


class ComparePeers(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        for name in ("kvasir", "llama-bench", "llama-server"):
            path = pathlib.Path(self.folder.name, name)
            path.write_text(FAKE.format(python=sys.executable))
            path.chmod(0o755)

    def program(self, name):
        return str(pathlib.Path(self.folder.name, name))

    def compare(self, *flags, **environment):
        return subprocess.run([sys.executable, str(SCRIPT), flags[0], "--kvasir", self.program("kvasir"), "--model",
                               "ours.gguf", *flags[1:]], capture_output=True, text=True, timeout=60,
                              env={**os.environ, **environment})

    def calls(self):
        lines = pathlib.Path(self.folder.name, "calls").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def test_alone(self):
        result = self.compare("alone", "--llama-bench", self.program("llama-bench"), "--peer-model", "theirs.gguf",
                              "--pairs", "2", "--threads", "3", "--context-tokens", "4096")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("| prefill of 512 tokens, tokens/s | 300.0 | 100.0 | 3.00 (3.00 to 3.00) |", result.stdout)
        self.assertIn("| decode of 128 tokens after 4096, tokens/s | 50.0 | 25.0 | 2.00 (2.00 to 2.00) |", result.stdout)
        calls = self.calls()
        # The order changes from pair to pair; the peer needs two runs for its two figures.
        self.assertEqual([c[0] for c in calls],
                         ["kvasir", "llama-bench", "llama-bench", "llama-bench", "llama-bench", "kvasir"])
        self.assertEqual(calls[0][calls[0].index("--threads") + 1], "3")
        self.assertEqual(calls[0][calls[0].index("--context-tokens") + 1], "4096")
        self.assertIn("ours.gguf", calls[0])
        for call in calls[1:5]:
            self.assertEqual(call[call.index("-t") + 1], "3")
            self.assertEqual(call[call.index("-m") + 1], "theirs.gguf")
        self.assertEqual(calls[2][calls[2].index("-d") + 1], "4096")

    def test_several_files_and_threads(self):
        result = self.compare("alone", "second.gguf", "--llama-bench", self.program("llama-bench"), "--peer-model",
                              "theirs.gguf", "second.gguf", "--threads", "1", "2", "--pairs", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        runs = [(c[c.index("-m") + 1], c[c.index("-t") + 1]) for c in self.calls() if c[0] == "llama-bench"]
        self.assertEqual(runs[::2], [("theirs.gguf", "1"), ("theirs.gguf", "2"), ("second.gguf", "1"), ("second.gguf", "2")])
        ours = [c for c in self.calls() if c[0] == "kvasir"]
        self.assertEqual(["ours.gguf" in c for c in ours], [True, True, False, False])
        self.assertEqual([c[c.index("--threads") + 1] for c in ours], ["1", "2", "1", "2"])
        for start in ("ours.gguf and theirs.gguf | 1", "ours.gguf and theirs.gguf | 2", "second.gguf | 1", "second.gguf | 2"):
            self.assertIn(f"| {start} | prefill of 512 tokens, tokens/s | 300.0 | 100.0 | 3.00", result.stdout)

    def test_as_many_files_of_the_peer(self):
        result = self.compare("alone", "--llama-bench", self.program("llama-bench"), "--peer-model", "a.gguf", "b.gguf")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("name as many", result.stderr)

    def test_streams(self):
        result = self.compare("streams", "--llama-server", self.program("llama-server"), "--pairs", "1", "--streams",
                              "4", "--prompts", "8")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("| 4 streams of 128 + 64 tokens: output tokens/s | 600.0 | 200.0 | 3.00", result.stdout)
        self.assertIn("| mean time to the first token, ms | 10.0 | 50.0 | 5.00", result.stdout)
        self.assertIn("| mean time per further token, ms | 4.0 | 6.0 | 1.50", result.stdout)

    def test_any_server(self):
        result = self.compare("streams", "--peer-server", f"{self.program('llama-server')} other --port {{port}}",
                              "--peer-name", "another", "--pairs", "1")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("| | kvasir | another |", result.stdout)

    def test_lost_tokens_are_no_result(self):
        result = self.compare("streams", "--llama-server", self.program("llama-server"), "--pairs", "1", LOST="1")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("not be comparable", result.stderr)

    def test_a_program_that_is_not_there(self):
        result = self.compare("alone", "--llama-bench", self.program("nothing"), "--pairs", "1")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("cannot be run", result.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main(verbosity=2)
