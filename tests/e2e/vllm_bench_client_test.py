"""What `vllm bench serve` sends, and how it reads the answers, with a real model; vLLM itself is too large to install here.

The requests of its backends `openai` and `openai-chat`, and what it asks before them, as vLLM has them at commit
02cfb534df56 (vllm/benchmarks/serve.py, lib/endpoint_request_func.py).
"""

import codecs
import concurrent.futures
import json
import time
import unittest

from support import Server

PROMPT = "The raven is a large black bird that lives"


def events(response):
    """As that client finds them: it strips each piece that the network gives before it joins them, so that a piece must
    not end within an event, and takes a rest for an event that is whole JSON."""
    decode = codecs.getincrementaldecoder("utf-8")().decode
    rest = ""
    while piece := response.read1(65536):
        *found, rest = (rest + decode(piece.strip())).split("\n\n")
        try:
            json.loads(rest.removeprefix("data: "))
        except ValueError:
            whole = rest == "data: [DONE]"
        else:
            whole = rest.startswith("data: ")
        if whole:
            found.append(rest)
            rest = ""
        for event in filter(None, map(str.strip, found)):
            if not event.startswith(":"):
                yield event.removeprefix("data: ")


class VllmBench(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = Server("--served-model-name", "smol")

    @classmethod
    def tearDownClass(cls):
        code = cls.server.stop()
        assert code == 0, cls.server.log

    def measure(self, path, payload):
        """Of one request what the benchmark counts: text, tokens of output and of prompt, time to the first chunk, latency."""
        connection = self.server.connection(60)
        begin = last = time.monotonic()
        connection.request("POST", path, json.dumps(payload), {"Content-Type": "application/json",
                                                               "x-request-id": "bench-12ab-7"})
        response = connection.getresponse()
        self.assertEqual(response.status, 200)
        self.assertEqual(response.getheader("x-request-id"), "bench-12ab-7")
        text, first, usage = "", None, {}
        for data in events(response):
            if data == "[DONE]":
                continue
            chunk = json.loads(data)
            if chunk.get("choices"):
                choice, last = chunk["choices"][0], time.monotonic()
                first = first or last
                text += (choice["delta"].get("content") if "delta" in choice else choice.get("text")) or ""
            else:
                usage = chunk.get("usage") or usage
        connection.close()
        self.assertIsNotNone(first)
        return text, usage["completion_tokens"], usage["prompt_tokens"], first - begin, last - begin

    def completion(self, prompt, tokens, **more):
        return self.measure("/v1/completions", {
            "model": "smol", "prompt": prompt, "repetition_penalty": 1.0, "max_tokens": tokens, "logprobs": None,
            "stream": True, "stream_options": {"include_usage": True}, **more})

    def chat(self, content, tokens, **more):
        return self.measure("/v1/chat/completions", {
            "model": "smol", "messages": [{"role": "user", "content": content}], "max_completion_tokens": tokens,
            "stream": True, "stream_options": {"include_usage": True}, **more})

    def ask(self, path, body=None):
        status, _, answer = self.server.ask("POST" if body else "GET", path, body)
        self.assertEqual(status, 200, answer)
        return json.loads(answer)

    def test_what_it_asks_first(self):
        model = self.ask("/v1/models")["data"][0]
        self.assertEqual((model["id"], model["root"]), ("smol", "smol"))  # the name, and what it takes for the tokenizer's
        tokens = self.ask("/tokenize", {"model": "smol", "prompt": PROMPT, "add_special_tokens": False})["tokens"]
        self.assertGreater(len(tokens), 5)
        self.assertEqual(self.ask("/detokenize", {"model": "smol", "tokens": tokens})["prompt"], PROMPT)
        self.assertEqual(self.server.ask("GET", "/metrics")[0], 200)

    def test_completions(self):
        tokens = self.ask("/tokenize", {"model": "smol", "prompt": PROMPT, "add_special_tokens": False})["tokens"]
        text, output, prompt, _, _ = self.completion(PROMPT, 24, temperature=0, ignore_eos=True)
        self.assertEqual((output, prompt), (24, len(tokens)))
        whole = self.ask("/v1/completions", {"prompt": PROMPT, "max_tokens": 24, "temperature": 0, "ignore_eos": True})
        self.assertEqual(text, whole["choices"][0]["text"])
        # A trace has its prompts as tokens.
        self.assertEqual(self.completion(tokens, 24, temperature=0, ignore_eos=True)[:3], (text, 24, len(tokens)))
        # Options --logprobs, --top-p and so on.
        more = {"logprobs": 2, "top_p": 0.9, "top_k": 20, "min_p": 0.01, "temperature": 0.5, "frequency_penalty": 0.1,
                "presence_penalty": 0.1, "repetition_penalty": 1.1}
        self.assertEqual(self.completion(PROMPT, 8, ignore_eos=True, **more)[1], 8)

    def test_chat(self):
        parts = [{"type": "text", "text": "Tell me about ravens."}]
        text, output, _, _, _ = self.chat(parts, 24, temperature=0, ignore_eos=True)
        self.assertEqual(output, 24)
        whole = self.ask("/v1/chat/completions", {
            "messages": [{"role": "user", "content": "Tell me about ravens."}], "max_tokens": 24, "temperature": 0,
            "ignore_eos": True})
        self.assertEqual(text, whole["choices"][0]["message"]["content"])

    def test_many_at_once(self):
        with concurrent.futures.ThreadPoolExecutor(16) as threads:
            got = list(threads.map(lambda i: self.completion(f"Number {i} is", 8 + i, ignore_eos=True)[1], range(32)))
        self.assertEqual(got, [8 + i for i in range(32)])

    def test_the_first_chunk_is_the_first_token(self):
        # The prompt takes hundreds of times longer than the one token after the first.
        for measured in (self.chat("A raven is not a crow. " * 100, 2, ignore_eos=True),
                         self.completion("A crow is not a raven. " * 100, 2, ignore_eos=True)):
            self.assertGreater(measured[3], measured[4] / 2)

    def test_a_refusal_has_a_reason(self):
        connection = self.server.connection(60)
        connection.request("POST", "/v1/completions", json.dumps({"prompt": PROMPT, "max_tokens": 10 ** 6}),
                           {"Content-Type": "application/json"})
        response = connection.getresponse()
        self.assertEqual((response.status, response.reason), (400, "Bad Request"))
        connection.close()


if __name__ == "__main__":
    unittest.main(verbosity=2)
