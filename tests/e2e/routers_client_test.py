"""Two servers behind the routers of vLLM and SGLang, which know nothing of Kvasir.

With their cache-aware policy a request goes where its prefix is, so more of the prompts is reused than in turns. vLLM's policy
kv_aware reads KV events, and counts on what is then reused."""

import concurrent.futures
import http.client
import json
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from support import Server, clean_environment

PREFIXES = 8
ROUNDS = 4
# Five of the prefixes fit, so that a server forgets what it is asked for in turns.
BLOCK = 16
MEMORY = "32MiB"  # 91 blocks
EVENTS = {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:*", "replay_endpoint": "tcp://127.0.0.1:*"}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Router:
    """A router of either kind before these servers; ready when the constructor returns."""

    def __init__(self, module, policy, servers, *flags):
        self.port = free_port()
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(
            [sys.executable, "-m", f"{module}.launch_router", "--host", "127.0.0.1", "--port", str(self.port),
             "--policy", policy, "--prometheus-port", str(free_port()), "--worker-urls",
             *(server.url for server in servers), *flags],
            stdout=self.log, stderr=subprocess.STDOUT, env=clean_environment(HF_HUB_OFFLINE="1"))
        end = time.monotonic() + 60
        while self.status("/v1/models") != 200:
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(self.stop())
            time.sleep(0.1)

    def status(self, path):
        try:
            return self.ask("GET", path)[0]
        except OSError:
            return 0

    def ask(self, method, path, body=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        connection.request(method, path, body=body and json.dumps(body),
                           headers={"Content-Type": "application/json"})
        response = connection.getresponse()
        answer = response.status, response.read()
        connection.close()
        return answer

    def stop(self):
        """What it printed."""
        self.process.terminate()
        self.process.wait(30)
        with self.log:
            self.log.seek(0)
            return self.log.read().decode(errors="replace")


def workload():
    """Questions about eight documents, in an order that is random in each round."""
    order = random.Random(1)
    documents = []
    for d in range(PREFIXES):
        words = [order.choice(("raven", "wolf", "horse", "salmon", "eagle", "squirrel", "serpent", "goat"))
                 for _ in range(220)]
        documents.append(f"{chr(ord('A') + d) * 3}: " + " ".join(words))
    for number in range(ROUNDS):
        for document in order.sample(documents, PREFIXES):
            yield f"{document} Question {number}:"


class Routers(unittest.TestCase):
    def serve(self):
        servers = [Server("--block-size", str(BLOCK), "--threads", "1", "--served-model-name", "smol",
                          "--kv-events-config", json.dumps(EVENTS), memory=MEMORY) for _ in range(2)]
        for server in servers:
            self.addCleanup(server.__exit__)
        return servers

    def ask(self, router, prompt):
        status, answer = router.ask("POST", "/v1/completions", {
            "model": "smol", "prompt": prompt, "max_tokens": 2, "temperature": 0})
        self.assertEqual(status, 200, answer)
        return json.loads(answer)["usage"]

    def measure(self, module, policy):
        """The share of the prompts' tokens that was reused."""
        servers = self.serve()
        router = Router(module, policy, servers)
        try:
            # Some at once: without any load a router may send all that it does not know to one server.
            with concurrent.futures.ThreadPoolExecutor(4) as pool:
                usages = list(pool.map(lambda prompt: self.ask(router, prompt), workload()))
            cached = sum(usage["prompt_tokens_details"]["cached_tokens"] for usage in usages)
            total = sum(usage["prompt_tokens"] for usage in usages)
            self.check_answers(router)
        finally:
            log = router.stop()
        asked = [server.metric("request_success_total") for server in servers]
        self.assertTrue(all(asked), f"{asked}: one server had everything; {log[-2000:]}")
        self.assertGreaterEqual(sum(server.metric("prefix_cache_hits_total") for server in servers), cached)
        print(f"{module} {policy}: {cached} of {total} tokens of prompts were reused; requests {asked}", flush=True)
        return cached / total

    def check_answers(self, router):
        """Chats pass, whole and streamed."""
        body = {"model": "smol", "messages": [{"role": "user", "content": "What is a raven?"}], "max_tokens": 4,
                "temperature": 0}
        status, answer = router.ask("POST", "/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        text = json.loads(answer)["choices"][0]["message"]["content"]
        status, answer = router.ask("POST", "/v1/chat/completions", {**body, "stream": True})
        self.assertEqual(status, 200, answer)
        events = re.findall(r"^data: (.*)$", answer.decode(), re.MULTILINE)
        self.assertEqual(events[-1], "[DONE]")
        pieces = [json.loads(event)["choices"][0]["delta"].get("content", "") for event in events[:-1]]
        self.assertEqual("".join(pieces), text)

    def check(self, module):
        in_turns = self.measure(module, "round_robin")
        aware = self.measure(module, "cache_aware")
        # Each prefix is computed once, if no server has more than fit: three quarters of the requests find theirs.
        self.assertGreater(aware, 0.5)
        self.assertGreater(aware, in_turns + 0.1)

    def test_the_router_of_vllm(self):
        self.check("vllm_router")

    def test_the_router_of_vllm_reads_kv_events(self):
        servers = self.serve()
        flags = ["--kv-event-block-size", str(BLOCK), "--kv-event-model", "smol", "--log-level", "debug"]
        for server in servers:
            events, replays = server.wait_log(r"KV events on (\S+), replays on (\S+)").groups()
            flags += ["--kv-event-source", f"{server.url}={events}",
                      "--kv-event-replay-source", f"{server.url}={replays}"]
        router = Router("vllm_router", "kv_aware", servers, *flags)
        try:
            cached = []
            for prompt in workload():
                cached.append(self.ask(router, prompt)["prompt_tokens_details"]["cached_tokens"])
                for server in servers:
                    server.wait_metric("num_requests_running", 0)
                time.sleep(0.1)  # for the last events to be read
        finally:
            log = re.sub(r"\x1b\[[0-9;]*m", "", router.stop())
        counted_on = [int(found) for found in re.findall(r" credited_prefix_tokens=(\d+)", log)]
        print(f"vllm_router kv_aware counted on {counted_on}, reused were {cached}", flush=True)
        self.assertEqual(len(counted_on), len(cached))
        # Prefixes were found, and were evicted.
        self.assertGreater(sum(tokens > 0 for tokens in cached), 4)
        self.assertGreater(sum(tokens == 0 for tokens in cached[PREFIXES:]), 4)
        # An event may come late once.
        self.assertLessEqual(sum(a != b for a, b in zip(counted_on, cached)), 1)

    def test_the_router_of_sglang(self):
        self.check("sglang_router")


if __name__ == "__main__":
    unittest.main(verbosity=2)
