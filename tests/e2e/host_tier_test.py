"""A server whose device tier holds a few blocks, with a host tier behind it: the same text, an orderly end."""

import http.client
import json
import re
import signal
import threading
import time
import unittest

from support import Server, run, model_path, stream_events

COMPLETIONS = "/v1/completions"
# A block of 16 tokens takes 360 KiB: 11 of them lie beside the stage ring, and the host holds 182.
TIERS = ("--block-size", "16", "--kv-offloading-size", "0.0625")
DEVICE = "8MiB"
LONG = "".join(f"On day {i} the raven found {i * 7 % 13} berries. " for i in range(20))
SHORT = [f"A raven named {name} once" for name in ("Munin", "Hugin", "Corax", "Bran", "Poe", "Odin")]


def body(prompt, max_tokens, **more):
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}


def ask(server, prompt, max_tokens, timeout=120):
    status, _, answer = server.ask("POST", COMPLETIONS, body(prompt, max_tokens), timeout=timeout)
    answer = json.loads(answer)
    return answer["choices"][0]["text"] if status == 200 else answer


def ask_all(server, requests):
    answers = [None] * len(requests)

    def one(i):
        answers[i] = ask(server, *requests[i])

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def start_stream(server, prompt, max_tokens):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", COMPLETIONS, json.dumps(body(prompt, max_tokens, stream=True)))
    events = stream_events(connection.getresponse())
    next(events)
    return connection, events


class HostTier(unittest.TestCase):
    def check_nothing_is_left(self, server):
        server.wait_metric("num_requests_running", 0)
        server.wait_metric("link_transfers_in_flight", 0)
        server.wait_metric("link_queued_bytes", 0)
        server.wait_metric("kv_tier_used_bytes", 0)

    def check_log(self, server):
        for line in server.log:
            self.assertNotRegex(line, r"(?i) (error|fatal) |check failed|leak|sanitizer")

    def test_the_text_is_that_of_a_server_with_room(self):
        # The long ones are nearly twice what the device tier holds; the short ones fit, but not together.
        streamed = [(LONG, 8), (LONG[100:], 8), (SHORT[0], 40)]
        crowd = [(prompt, 48) for prompt in SHORT]
        with Server("--block-size", "16") as server:
            want_streamed, want_crowd = ask_all(server, streamed), ask_all(server, crowd)
            self.assertEqual(server.metric("kv_tier_bytes", tier="host"), 0)
            self.assertNotIn("kvasir:link_", server.ask("GET", "/metrics")[2].decode())
        for policy in ("sarathi", "vllm", "vllm-swap"):
            with self.subTest(policy), Server(*TIERS, "--scheduling-policy", policy, memory=DEVICE) as server:
                self.assertEqual(ask_all(server, streamed), want_streamed)
                self.assertEqual(ask_all(server, crowd), want_crowd)
                self.assertGreater(server.metric("engine_steps_staged_total"), 0)
                self.assertGreater(server.metric("link_bytes_total", **{"from": "device", "to": "host"}), 0)
                self.assertGreater(server.metric("link_bytes_total", **{"from": "host", "to": "device"}), 0)
                swapped = server.metric("preemptions_by_kind_total", kind="swap")
                self.assertEqual(swapped > 0, policy == "vllm-swap")
                self.assertEqual(server.metric("num_preemptions_total"),
                                 server.metric("preemptions_by_kind_total"))
                self.check_nothing_is_left(server)
                self.assertEqual(server.stop(), 0)
                self.check_log(server)

    def test_what_is_shown(self):
        with Server(*TIERS, "--link-gbytes-per-s", "2.5", "--max-decode-stall-ms", "200",
                    memory=DEVICE) as server:
            report = next(line for line in server.log if line.startswith("memory: "))
            self.assertRegex(report, "host tier 64.00 MiB = 182 blocks of 16 tokens")
            self.assertIn("stage ring", report)
            self.assertIn("emulated link of 2.5 GB/s", report)
            self.assertTrue(server.wait_log(r" info .*emulated link of 2\.5 GB/s"), server.log)
            device = server.metric("kv_tier_bytes", tier="device", form="kv")
            ring = server.metric("kv_stage_ring_bytes")
            self.assertGreater(ring, 0)
            # What is smaller than a block stays unused.
            self.assertLessEqual(device + ring, 8 << 20)
            self.assertGreater(device + ring, (8 << 20) - 400_000)
            page = server.ask("GET", "/metrics")[2].decode()
            self.assertEqual(len(re.findall(r'link_transfers_total\{.*emulated="true"\} ', page)), 1)

    def test_what_is_too_large_for_all_tiers_is_refused(self):
        with Server(*TIERS, memory=DEVICE) as server:
            largest = json.loads(server.ask("GET", "/v1/models")[2])["data"][0]["max_model_len"]
            self.assertEqual(largest, 188 * 16)
            for prompt, max_tokens in ((" raven" * 3000, 1), (LONG, 2900)):
                status, _, answer = server.ask("POST", COMPLETIONS, body(prompt, max_tokens))
                self.assertEqual(status, 400, answer)
                self.assertIn(str(largest), json.loads(answer)["error"]["message"])
        with Server("--block-size", "16", memory=DEVICE) as server:
            alone = json.loads(server.ask("GET", "/v1/models")[2])["data"][0]["max_model_len"]
            self.assertLess(alone, largest / 5)

    def test_generate_takes_the_same_flags(self):
        want = run("generate", model_path(), "--kv-cache-memory-bytes", "64MiB", "--prompt", LONG,
                   "--max-tokens", "8", "--temperature", "0")
        got = run("generate", model_path(), "--kv-cache-memory-bytes", DEVICE, *TIERS,
                  "--max-decode-stall-ms", "0", "--prompt", LONG, "--max-tokens", "8", "--temperature", "0")
        self.assertEqual(got.returncode, 0, got.stderr)
        self.assertEqual(got.stdout, want.stdout)

    def test_sigterm_with_transfers_in_flight(self):
        # A step of the long request moves 7 MB: a third of a second at one speed, ten at the other.
        for speed in ("0.02", "0.0008"):
            with self.subTest(speed), Server(*TIERS, "--link-gbytes-per-s", speed, "--shutdown-timeout", "0.5",
                                             memory=DEVICE) as server:
                connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
                connection.request("POST", COMPLETIONS, json.dumps(body(LONG, 100, stream=True)))
                end = time.monotonic() + 30
                while server.metric("link_queued_bytes") == 0:
                    self.assertLess(time.monotonic(), end)
                begin = time.monotonic()
                server.signal(signal.SIGTERM)
                rest = list(stream_events(connection.getresponse()))
                self.assertIn("error", json.loads(rest[-2]))
                self.assertEqual(rest[-1], "[DONE]")
                connection.close()
                self.assertEqual(server.wait(), 0)
                self.assertLess(time.monotonic() - begin, 12)
                self.check_log(server)

    def test_a_client_that_leaves_with_transfers_in_flight(self):
        with Server(*TIERS, "--link-gbytes-per-s", "0.02", "--max-decode-stall-ms", "50",
                    memory=DEVICE) as server:
            connection, events = start_stream(server, LONG, 100)
            next(events)
            want = ask(server, SHORT[0], 8)
            self.assertGreater(server.metric("kv_tier_used_bytes", tier="host"), 0)
            connection.close()
            server.wait_metric("request_success_total", 1, finished_reason="abort")
            self.assertEqual(ask(server, SHORT[0], 8), want)
            self.check_nothing_is_left(server)
            self.assertEqual(server.stop(), 0)
            self.check_log(server)


if __name__ == "__main__":
    unittest.main(verbosity=2)
