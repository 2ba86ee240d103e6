"""`kvasir train-predictor` over a tiny model, and what `kvasir serve` makes of what it has written."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from support import Server, run

TOOLS = pathlib.Path(__file__).resolve().parent.parent.parent / "tools"
REQUESTS = 150


class TrainPredictor(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.root = pathlib.Path(cls.folder.name)
        cls.model = str(cls.root / "tiny.gguf")
        subprocess.run([sys.executable, TOOLS / "make_model.py", cls.model, "--preset", "tiny-mha", "--weights", "q8_0"],
                       check=True, capture_output=True)
        cls.trace = cls.root / "trace.jsonl"
        lines = [{"prompt": f"{'a b c d'[i % 4:]} {i}", "temperature": 0.7, "kind": i % 4} for i in range(REQUESTS)]
        cls.trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
        cls.lengths = cls.root / "lengths.txt"
        cls.answered = cls.root / "answered.jsonl"
        cls.result = cls.train("--trace", str(cls.trace), "--output", str(cls.lengths), "--save-trace", str(cls.answered),
                               "--max-tokens", "24", "--resample", "2", "--resampled", "5")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def train(cls, *flags):
        return run("train-predictor", cls.model, "--kv-cache-memory-bytes", "32MiB", *flags)

    def test_answers_trains_and_reports(self):
        self.assertEqual(self.result.returncode, 0, self.result.stderr)
        for expected in ("150 requests, in time: 120 for training, then 30 for the test", "were cut, at 24 at the most",
                         "the best constant of the test", "hidden, trained", "were answered 3 times", "confidence, %",
                         "kept for an output", str(self.lengths)):
            self.assertIn(expected, self.result.stdout)

    def test_the_answers_lengths_are_kept(self):
        before = [json.loads(line) for line in self.trace.read_text().splitlines()]
        after = [json.loads(line) for line in self.answered.read_text().splitlines()]
        self.assertEqual([line["prompt"] for line in after], [line["prompt"] for line in before])
        for line in after:
            self.assertIn(line["finish_reason"], ("stop", "length"))
            self.assertTrue(1 <= line["output_tokens"] <= 24)
            self.assertTrue(line["finish_reason"] == "stop" or line["output_tokens"] == 24)
        self.assertEqual([len(line.get("again", [])) for line in after[120:]], [2] * 5 + [0] * 25)
        self.assertEqual({line["kind"] for line in after}, {0, 1, 2, 3})
        # With the lengths nothing need be answered, and the same is learnt.
        again = self.root / "again.txt"
        result = self.train("--trace", str(self.answered), "--output", str(again))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(again.read_text(), self.lengths.read_text())

    def test_serve_begins_with_it(self):
        kept = self.root / "kept.txt"
        kept.write_text(self.lengths.read_text())
        before = os.environ.get("KVASIR_TEST_MODEL")
        os.environ["KVASIR_TEST_MODEL"] = self.model
        try:
            with Server("--length-predictor", "hidden", "--length-predictor-file", str(kept), memory="16MiB") as server:
                server.ask("POST", "/v1/completions", {"prompt": "a b c", "max_tokens": 200})
                self.assertEqual(server.stop(), 0)
        finally:
            if before is None:
                del os.environ["KVASIR_TEST_MODEL"]
            else:
                os.environ["KVASIR_TEST_MODEL"] = before
        self.assertNotEqual(kept.read_text(), self.lengths.read_text(), "it has learnt nothing more")
        result = run("serve", self.model, "--port", "0", "--length-predictor", "online", "--length-predictor-file",
                     str(self.lengths))
        self.assertEqual(result.returncode, 1)
        self.assertIn("of a predictor of another kind", result.stderr.splitlines()[-1])

    def test_what_is_wrong_is_one_line(self):
        for text, said in (("{}\n", "\"prompt\" is missing"), ('{"prompt": "a"}\n' * 5, "5 requests say too little"),
                           ('{"prompt": ""}\n' * 120, "request 1"), ("[1]\n" * 120, "not a JSON object")):
            bad = self.root / "bad.jsonl"
            bad.write_text(text)
            result = self.train("--trace", str(bad))
            self.assertEqual(result.returncode, 1)
            self.assertIn(str(bad), result.stderr.splitlines()[-1])
            self.assertIn(said, result.stderr.splitlines()[-1])
        result = self.train("--trace", str(self.answered), "--output", str(self.root / "nowhere" / "lengths.txt"))
        self.assertEqual(result.returncode, 1)
        self.assertIn("nowhere", result.stderr.splitlines()[-1])


if __name__ == "__main__":
    unittest.main()
