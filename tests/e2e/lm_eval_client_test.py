"""`lm-eval` against the server, with a real model: its log-likelihoods, with this server as the tokenizer, and its generations."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from support import Server

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What llama.cpp computes of two of the questions when it rounds nothing (docs/accuracy.md), in nats.
LLAMA_CPP = {
    "The capital of France is": {"Paris": -0.2581, "Lisbon": -10.0569, "Berlin": -6.9207, "Havana": -12.0492},
    "The capital of Japan is": {"Moscow": -11.3731, "Oslo": -13.0719, "Tokyo": -0.3522, "Warsaw": -16.5105},
}

SAYS = """task: says
dataset_path: json
dataset_kwargs:
  data_files:
    test: {}
test_split: test
output_type: generate_until
doc_to_text: "{{{{question}}}}"
doc_to_target: "{{{{choices[answer]}}}}"
generation_kwargs:
  until: ["\\n", "."]
  max_gen_toks: 8
metric_list:
  - metric: exact_match
"""


class LmEval(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "smol", "--activation-type", "f32", "--kv-cache-dtype", "f32")
        cls.folder = tempfile.TemporaryDirectory()
        subprocess.run([sys.executable, ROOT / "tools" / "choices.py", "make", cls.folder.name], check=True)
        data = json.dumps(cls.folder.name + "/choices.jsonl")
        pathlib.Path(cls.folder.name, "says.yaml").write_text(SAYS.format(data), encoding="utf-8")

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()
        code = cls.server.stop()
        assert code == 0, cls.server.log

    def evaluate(self, task, path, *more, **arguments):
        """(its samples, what it computed) of a model whose URL ends with `path`."""
        arguments = {"model": "smol", "base_url": self.server.url + path, **arguments}
        with tempfile.TemporaryDirectory() as out:
            done = subprocess.run(
                [sys.executable, "-m", "lm_eval", "--model_args", ",".join(f"{k}={v}" for k, v in arguments.items()),
                 "--tasks", task, "--include_path", self.folder.name, "--output_path", out, "--log_samples", *more],
                env={**os.environ, "HF_HOME": self.folder.name, "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"},
                capture_output=True, text=True, timeout=300, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            (samples,) = pathlib.Path(out).rglob(f"samples_{task}_*.jsonl")
            (results,) = pathlib.Path(out).rglob("results_*.json")
            lines = samples.read_text(encoding="utf-8").splitlines()
            return [json.loads(line) for line in lines], json.loads(results.read_text(encoding="utf-8"))["results"][task]

    def ask(self, path, **body):
        status, _, answer = self.server.ask("POST", path, body)
        self.assertEqual(status, 200, answer)
        return json.loads(answer)

    def tokens(self, text):
        return self.ask("/tokenize", prompt=text, add_special_tokens=False)["tokens"]

    def log_likelihood(self, context, continuation):
        prompt = self.tokens(context + continuation)
        lists = self.ask("/v1/completions", prompt=prompt, echo=True, max_tokens=1, logprobs=1)["choices"][0]["logprobs"]
        return sum(lists["token_logprobs"][len(self.tokens(context)):-1])

    def test_log_likelihoods(self):
        # It finds by itself that the server tokenises.
        samples, results = self.evaluate("choices", "/v1/completions", "--model", "local-completions", "--limit", "40",
                                         "--batch_size", "8")
        self.assertGreater(results["acc,none"], 0.5)
        self.assertEqual(len(samples), 40)
        for sample in samples[::4]:
            doc = sample["doc"]
            for choice, response in zip(doc["choices"], sample["filtered_resps"]):
                self.assertEqual(float(response[0]), self.log_likelihood(doc["question"], " " + choice))
        found = {s["doc"]["question"]: [float(r[0]) for r in s["filtered_resps"]] for s in samples}
        for question, values in LLAMA_CPP.items():
            for value, expected in zip(found[question], values.values(), strict=True):
                self.assertAlmostEqual(value, expected, delta=0.001)
        again, _ = self.evaluate("choices", "/v1/completions", "--model", "local-completions", "--limit", "40",
                                 num_concurrent=8, tokenizer_backend="remote")
        self.assertEqual([s["filtered_resps"] for s in again], [s["filtered_resps"] for s in samples])

    def test_generations(self):
        more = {"temperature": 0, "stop": ["\n", "."], "max_tokens": 8}
        samples, _ = self.evaluate("says", "/v1/completions", "--model", "local-completions", "--limit", "12")
        for sample in samples:
            text = self.ask("/v1/completions", prompt=sample["doc"]["question"], **more)["choices"][0]["text"]
            self.assertEqual(sample["resps"], [[text]])
            self.assertRegex(text, r"\A[^.\n]+\Z")
        samples, _ = self.evaluate("says", "/v1/chat/completions", "--model", "local-chat-completions", "--limit", "12",
                                   "--apply_chat_template", num_concurrent=4)
        for sample in samples:
            messages = [{"role": "user", "content": sample["doc"]["question"]}]
            text = self.ask("/v1/chat/completions", messages=messages, **more)["choices"][0]["message"]["content"]
            self.assertEqual(sample["resps"], [[text]])


if __name__ == "__main__":
    unittest.main(verbosity=2)
