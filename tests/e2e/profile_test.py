"""`kvasir profile` over a tiny model, and what `kvasir serve` makes of it."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

from support import Server, run

TOOLS = pathlib.Path(__file__).resolve().parent.parent.parent / "tools"
COEFFICIENTS = ("step_s", "prefill_row_s", "pair_s", "decode_row_s", "context_s", "projected_token_s")


class Profile(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        root = pathlib.Path(cls.folder.name)
        cls.model = str(root / "tiny.gguf")
        subprocess.run([sys.executable, TOOLS / "make_model.py", cls.model, "--preset", "tiny-mha", "--weights",
                        "q8_0"], check=True, capture_output=True)
        cls.cache = str(root / "cache")
        cls.output = root / "profile.json"
        cls.disk = root / "disk"
        cls.disk.mkdir()
        cls.tiers = ("--kv-offloading-size", "16MiB", "--kv-offloading-dir", str(cls.disk),
                     "--kv-offloading-disk-size", "32MiB")
        cls.result = run("profile", cls.model, "--seconds", "2", "--output", str(cls.output), *cls.tiers,
                         XDG_CACHE_HOME=cls.cache)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def serve(self, *flags):
        return Server(*flags, memory="16MiB",
                      environment={"XDG_CACHE_HOME": self.cache, "KVASIR_TEST_MODEL": self.model})

    def setUp(self):
        # The server takes its model from the environment of this test.
        self.before = os.environ.get("KVASIR_TEST_MODEL")
        os.environ["KVASIR_TEST_MODEL"] = self.model

    def tearDown(self):
        if self.before is None:
            del os.environ["KVASIR_TEST_MODEL"]
        else:
            os.environ["KVASIR_TEST_MODEL"] = self.before

    def test_measures_and_keeps(self):
        self.assertEqual(self.result.returncode, 0, self.result.stderr)
        for expected in ("prefill of s tokens:", "decode:", "recomputation of a token:", "device->host:",
                         "host->device:", "device->disk:", "disk->device:", "step fit error: mean"):
            self.assertIn(expected, self.result.stdout)
        kept = list(pathlib.Path(self.cache, "kvasir", "profiles").glob("*.json"))
        self.assertEqual(len(kept), 1)
        self.assertEqual(kept[0].read_text(), self.output.read_text())
        profile = json.loads(kept[0].read_text())
        costs = profile["costs"]
        for name in COEFFICIENTS:
            self.assertGreaterEqual(costs[name], 0, name)
        self.assertGreater(sum(costs[name] for name in COEFFICIENTS), 0)
        self.assertEqual({(link["from"], link["to"]) for link in costs["links"]},
                         {("device", "host"), ("host", "device"), ("device", "disk"), ("disk", "device"),
                          ("host", "disk"), ("disk", "host")})
        self.assertGreater(profile["step_fit_error"]["observations"], 2, "there are fewer in its time on a busy machine")
        self.assertEqual(list(self.disk.iterdir()), [], "nothing is left on the disk")

    def test_serve_finds_it(self):
        with self.serve(*self.tiers) as server:
            self.assertTrue(server.wait_log(r"cost profile \S+: 0 minutes old, fit error"), server.log)
            # The engine hears of what was learnt beside it when it plans its next step.
            end = time.monotonic() + 30
            while server.metric("cost_model_steps_total") == 0 and time.monotonic() < end:
                server.ask("POST", "/v1/completions", {"prompt": "a raven", "max_tokens": 40, "ignore_eos": True})
            self.assertGreater(server.metric("cost_model_steps_total"), 0)
            self.assertEqual(server.stop(), 0)
        kept = next(pathlib.Path(self.cache, "kvasir", "profiles").glob("*.json"))
        whole = kept.read_text()
        kept.write_text(whole[:-20])
        with self.serve(*self.tiers) as server:
            self.assertEqual(server.stop(), 0)
            log = "".join(server.log)
            self.assertIn("not a cost profile", log)
            self.assertIn("costs are learnt from real steps", log, "the damaged one was not named")
        kept.write_text(whole)
        with self.serve() as server:
            self.assertEqual(server.stop(), 0)
            self.assertIn("no cost profile", "".join(server.log), "other tiers are another fingerprint")
        with self.serve("--cost-profile", str(self.output)) as server:
            self.assertEqual(server.stop(), 0)
            self.assertIn("of another machine, model or setting", "".join(server.log))

    def test_what_is_wrong_is_one_line(self):
        bad = pathlib.Path(self.folder.name, "bad.json")
        text = self.output.read_text()
        for damaged in ("", "{}", text[:-20], text.replace('"kvasir_cost_profile": 1', '"kvasir_cost_profile": 2'),
                        re.sub(r'"pair_s": [^,]*', '"pair_s": -1', text)):
            bad.write_text(damaged)
            result = run("serve", self.model, "--port", "0", "--cost-profile", str(bad),
                         XDG_CACHE_HOME=self.cache)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(result.stderr.splitlines()[-1],
                             f"kvasir serve: {bad}: not a cost profile: remove it, or let `kvasir profile` write it "
                             "anew")
        result = run("serve", self.model, "--port", "0", "--length-predictor", "psychic")
        self.assertIn("--length-predictor", result.stderr.splitlines()[-1])
        self.assertIn("constant:N", result.stderr.splitlines()[-1])
        self.assertEqual(run("profile", __file__).returncode, 1)

    def test_lengths_are_kept(self):
        path = pathlib.Path(self.folder.name, "lengths.txt")
        with self.serve("--length-predictor-file", str(path)) as server:
            self.assertEqual(server.stop(), 0)
        first = path.read_text()
        head, rest = first.split("\n", 1)
        self.assertTrue(head.startswith("kvasir output lengths, vocabulary "))
        self.assertTrue(rest.startswith("kvasir-length-predictor online 1\n"))
        with self.serve("--length-predictor-file", str(path)) as server:
            self.assertEqual(server.stop(), 0)
        self.assertEqual(path.read_text(), first)
        path.write_text("kvasir output lengths, vocabulary 7-0123456789abcdef\n" + rest)
        result = run("serve", self.model, "--port", "0", "--length-predictor-file", str(path))
        self.assertEqual(result.returncode, 1)
        self.assertIn("of another model", result.stderr.splitlines()[-1])
        path.write_text("nonsense")
        result = run("serve", self.model, "--port", "0", "--length-predictor-file", str(path))
        self.assertEqual(result.returncode, 1)
        self.assertIn("lengths.txt", result.stderr.splitlines()[-1])
        self.assertEqual(path.read_text(), "nonsense", "what it cannot read it does not replace")
        missing = str(pathlib.Path(self.folder.name, "no", "such", "folder"))
        with self.serve("--length-predictor-file", missing) as server:
            self.assertEqual(server.stop(), 0)
            self.assertEqual(sum("what was learnt of output lengths is lost" in line for line in server.log), 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
