"""--kv-events-config and --kv-events-endpoint from a router's side: what the events say can be reused is what requests find."""

import json
import time
import unittest

import msgpack
import zmq

from support import Server, model_path, run

BLOCK = 16
TOPIC = "kv@one@smol"


class Router:
    """Keeps what a server has said, as a router does."""

    def __init__(self, server):
        found = server.wait_log(r"KV events on (\S+), replays on (\S+)")
        self.context = zmq.Context()
        self.events = self.context.socket(zmq.SUB)
        self.events.setsockopt(zmq.SUBSCRIBE, b"kv@")
        self.events.connect(found.group(1))
        self.replays = self.context.socket(zmq.DEALER)
        self.replays.connect(found.group(2))
        self.replays.setsockopt(zmq.RCVTIMEO, 20_000)
        self.next = 0
        self.blocks = {}  # (hash of the block before, tokens): hash; of all blocks that were ever stored
        self.media = {}   # of those that can be reused: hash to medium
        self.seen_media = set()
        self.payloads = []

    def close(self):
        self.context.destroy(linger=0)

    def replay(self, first):
        self.replays.send_multipart([b"", first.to_bytes(8, "big")])
        while True:
            empty, number, payload = self.replays.recv_multipart()
            assert empty == b""
            if number == b"\xff" * 8:
                assert payload == b""
                return
            yield int.from_bytes(number, "big"), payload

    def catch_up(self):
        """Reads all that was published: what the subscription has missed is replayed."""
        for number, payload in self.replay(self.next):
            self.read(number, payload)

    def read(self, number, payload):
        assert number == self.next, (number, self.next)
        self.next += 1
        self.payloads.append(payload)
        seconds, events, rank = msgpack.unpackb(payload)
        assert seconds > 1.7e9 and rank == 0
        assert number > 0 or events[0] == {"type": "AllBlocksCleared"}
        for event in events:
            getattr(self, event.pop("type"))(**event)

    def AllBlocksCleared(self):
        self.media.clear()

    def BlockStored(self, block_hashes, parent_block_hash, token_ids, block_size, lora_id, medium, lora_name):
        assert block_size == BLOCK and len(token_ids) == BLOCK * len(block_hashes)
        assert lora_id is None and lora_name is None
        self.seen_media.add(medium)
        for i, block in enumerate(block_hashes):
            assert block not in self.media
            self.blocks[parent_block_hash, tuple(token_ids[i * BLOCK:(i + 1) * BLOCK])] = block
            self.media[block] = medium
            parent_block_hash = block

    def BlockRemoved(self, block_hashes, medium):
        for block in block_hashes:
            assert self.media.pop(block) == medium

    def reusable(self, tokens):
        """How many tokens of a prompt the server has, as far as this router knows."""
        block = None
        for begin in range(0, len(tokens) - BLOCK, BLOCK):  # never the last token
            block = self.blocks.get((block, tuple(tokens[begin:begin + BLOCK])))
            if block not in self.media:
                return begin
        return (len(tokens) - 1) // BLOCK * BLOCK


def prompt(topic, number):
    return f"Of {topic} there is much to tell. " + "".join(
        f"On day {i} the {topic} found {i * 7 % 13} berries. " for i in range(20)) + f"Question {number}:"


class KvEvents(unittest.TestCase):
    def server(self, *flags, **config):
        config = {"enable_kv_cache_events": True, "endpoint": "tcp://127.0.0.1:*",
                  "replay_endpoint": "tcp://127.0.0.1:*", "topic": TOPIC, **config}
        server = Server("--block-size", str(BLOCK), "--kv-events-config", json.dumps(config), *flags,
                        memory="12MiB")  # 34 blocks
        self.addCleanup(server.__exit__)
        return server

    def ask(self, server, text, **more):
        """How many tokens of the prompt were there already."""
        status, _, answer = server.ask("POST", "/v1/completions",
                                       {"prompt": text, "max_tokens": 2, "temperature": 0, **more})
        self.assertEqual(status, 200, answer)
        return json.loads(answer)["usage"]["prompt_tokens_details"]["cached_tokens"]

    def wait_for(self, router, tokens):
        """Until the router knows all whole blocks of a prompt that was just served."""
        end = time.monotonic() + 20
        while True:
            router.catch_up()
            if router.reusable(tokens) == (len(tokens) - 1) // BLOCK * BLOCK:
                return
            self.assertLess(time.monotonic(), end, "the router was not told")

    def check(self, *flags):
        server = self.server(*flags)
        router = Router(server)
        self.addCleanup(router.close)
        found = 0
        for number in range(4):
            for topic in ("raven", "wolf", "horse", "salmon"):
                text = prompt(topic, number)
                tokens = json.loads(server.ask("POST", "/tokenize", {"prompt": text})[2])["tokens"]
                router.catch_up()
                predicted = router.reusable(tokens)
                self.assertEqual(self.ask(server, text), predicted, f"{topic} {number}")
                found += predicted
                # The turn that has ended the request tells what it has left.
                self.wait_for(router, tokens)
                if number % 2 == 0:  # at once again, while it is there
                    found += self.ask(server, text)
                    self.wait_for(router, tokens)
        self.assertGreater(found, 0)
        return server, router

    def test_a_router_knows_what_the_device_has(self):
        server, router = self.check()
        router.catch_up()
        self.assertEqual(router.seen_media, {"GPU"})
        removed = len(set(router.blocks.values())) - len(router.media)
        self.assertGreater(removed, 10, "not everything had room")
        # The subscription says the same as the replays.
        self.assertTrue(router.events.poll(10_000))
        topic, number, payload = router.events.recv_multipart()
        self.assertEqual(topic, TOPIC.encode())
        self.assertEqual(payload, router.payloads[int.from_bytes(number, "big")])
        self.assertEqual([n for n, _ in router.replay(router.next - 2)], [router.next - 2, router.next - 1])
        # Blocks of a request with a salt are not told.
        known = dict(router.media)
        self.ask(server, "A short secret that is longer than a block of sixteen tokens, so that one is full.",
                 cache_salt="x")
        router.catch_up()
        self.assertLessEqual(router.media.items(), known.items())
        self.assertEqual(server.metric("kv_event_messages_total"), router.next)
        self.assertEqual(server.metric("kv_events_dropped_total"), 0)
        self.assertEqual(server.metric("kv_event_replay_bytes"), sum(map(len, router.payloads)))
        self.assertEqual(server.stop(), 0)

    def test_a_router_knows_which_tier_has_it(self):
        _, router = self.check("--kv-offloading-size", "24MiB")
        self.assertEqual(router.seen_media, {"GPU", "CPU"})

    def test_an_address_alone_is_enough(self):
        server = Server("--block-size", str(BLOCK), "--kv-events-endpoint", "tcp://127.0.0.1:*")
        self.addCleanup(server.__exit__)
        found = server.wait_log(r"KV events on (tcp://127\.0\.0\.1:\d+)\n")
        context = zmq.Context()
        self.addCleanup(context.destroy, linger=0)
        events = context.socket(zmq.SUB)
        self.addCleanup(events.close, linger=0)
        events.setsockopt(zmq.SUBSCRIBE, b"")
        events.connect(found.group(1))
        stored = []
        for number in range(200):  # a subscription takes a moment
            self.ask(server, prompt("crow", number))
            while events.poll(50):
                stored += [e for e in msgpack.unpackb(events.recv_multipart()[2])[1] if e["type"] == "BlockStored"]
            if stored:
                break
        self.assertTrue(stored)
        self.assertEqual(server.stop(), 0)

    def test_what_is_wrong_is_said(self):
        for config, message in (("tcp://*:5557", "not valid JSON"), ('{"endpiont": "x"}', "'endpiont'"),
                                ('{"enable_kv_cache_events": true, "endpoint": "x"}', "'endpoint' x")):
            ended = run("serve", model_path(), "--port", "0", "--kv-events-config", config)
            self.assertEqual(ended.returncode, 1)
            self.assertIn("--kv-events-config: ", ended.stderr)
            self.assertIn(message, ended.stderr)
        for flags, message in (
                (("--kv-events-endpoint", "5557"), "--kv-events-endpoint: must be tcp://"),
                (("--kv-events-endpoint", "tcp://nowhere"), "--kv-events-endpoint tcp://nowhere: "),
                (("--kv-events-endpoint", "tcp://*:*", "--kv-events-config", "{}"), "give one of them"),
                (("--kv-events-endpoint", "tcp://*:*", "--no-enable-prefix-caching"), "there is nothing to tell")):
            ended = run("serve", model_path(), "--port", "0", *flags)
            self.assertEqual(ended.returncode, 1)
            self.assertEqual(len(ended.stderr.splitlines()), 1, ended.stderr)
            self.assertIn(message, ended.stderr)
        ended = run("serve", model_path(), "--port", "0", "--no-enable-prefix-caching", "--kv-events-config",
                    '{"enable_kv_cache_events": true}')
        self.assertEqual(ended.returncode, 1)
        self.assertIn("--no-enable-prefix-caching", ended.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
