"""`guidellm` against the server, with a real model: what it counts of prompts from a file."""

import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

from support import Server


class GuideLlm(unittest.TestCase):
    def test_a_benchmark(self):
        with Server("--served-model-name", "smol") as server, tempfile.TemporaryDirectory() as folder:
            data, report = pathlib.Path(folder, "prompts.jsonl"), pathlib.Path(folder, "report.json")
            data.write_text("".join(json.dumps({"prompt": f"Tell me about the number {i}.", "output_tokens_count": 12}) + "\n"
                                    for i in range(16)), encoding="utf-8")
            for kind in ("text_completions", "chat_completions"):
                done = subprocess.run(
                    [sys.executable, "-m", "guidellm", "benchmark", "--target", server.url, "--rate-type", "concurrent",
                     "--rate", "4", "--max-requests", "16", "--data", data, "--output-path", report],
                    env={**os.environ, "HF_HOME": folder, "HF_HUB_OFFLINE": "1", "GUIDELLM__PREFERRED_ROUTE": kind},
                    capture_output=True, text=True, timeout=300, check=False)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                (benchmark,) = json.loads(report.read_text(encoding="utf-8"))["benchmarks"]
                requests = benchmark["requests"]
                self.assertEqual([len(requests[k]) for k in ("successful", "errored", "incomplete")], [16, 0, 0])
                for request in requests["successful"]:
                    self.assertEqual(request["output_tokens"], 12)
                    text = request["prompt"]
                    asked = {"prompt": text} if kind == "text_completions" else {
                        "messages": [{"role": "user", "content": text}]}
                    tokens = json.loads(server.ask("POST", "/tokenize", asked)[2])["tokens"]
                    self.assertEqual(request["prompt_tokens"], len(tokens))


if __name__ == "__main__":
    unittest.main(verbosity=2)
