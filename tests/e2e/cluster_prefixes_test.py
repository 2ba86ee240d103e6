"""The beginning of a prompt that a peer has computed is copied from there, or attended there, and the answer has the
same bits.

KVASIR_CLUSTER_LONG=1 prints what that saves with a larger model, too.
"""

import json
import os
import pathlib
import tempfile
import threading
import time
import unittest

from cluster import Cluster, alone, answer_of, body, make_model, need_etcd, prompt_of

LONG = os.environ.get("KVASIR_CLUSTER_LONG") == "1"
BLOCKS = ("--block-size", "16")
PROMPT, SHARED = 420, 400  # tokens; of which all requests have the first ones in common
CACHED = 400  # whole blocks of those
LEAF = 256  # tokens that are attended together: of what is shared
HOST = ("--kv-offloading-size", "0.001")


def setUpModule():
    global scratch, MODEL
    need_etcd()
    scratch = tempfile.TemporaryDirectory()
    MODEL = make_model(pathlib.Path(scratch.name) / "model.gguf", "--preset", "tiny-gqa", "--dim", "128", "--heads", "4",
                       "--kv-heads", "2", "--context", "65536")


def tearDownModule():
    scratch.cleanup()


def prompt(seed):
    """One of those that begin alike."""
    return prompt_of(SHARED) + prompt_of(PROMPT - SHARED, seed)


def ask(instance, tokens, max_tokens=24):
    """The answer, and how many tokens of the prompt were cached."""
    status, _, raw = instance.ask("POST", "/v1/completions", body(tokens, max_tokens), timeout=120)
    usage = json.loads(raw).get("usage", {}) if status == 200 else {}
    return answer_of(status, raw), usage.get("prompt_tokens_details", {}).get("cached_tokens")


class Prefixes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with alone(MODEL, "8MiB", *BLOCKS, "--no-enable-prefix-caching") as instance:
            cls.wanted = {seed: ask(instance, prompt(seed))[0] for seed in range(1, 5)}

    def cluster(self, count, *flags, policy="sarathi", memory="2MiB"):
        return Cluster(MODEL, count, *BLOCKS, *flags, policy=policy, memory=memory)

    def check(self, cluster, instance, seed, cached):
        answer, found = ask(cluster[instance], prompt(seed))
        self.assertEqual(answer, self.wanted[seed])
        self.assertEqual(found, cached, f"{instance}, seed {seed}")

    def check_end(self, cluster):
        cluster.wait_quiet()
        self.assertEqual(cluster.bad_lines(), [])
        self.assertEqual(cluster.crashed(), [])

    def copied(self, policy, *flags):
        with self.cluster(2, "--cluster-prefixes", "fetch", *flags, policy=policy) as cluster:
            self.check(cluster, "n1", 1, 0)
            self.check(cluster, "n2", 2, CACHED)
            n1, n2 = cluster["n1"], cluster["n2"]
            self.assertEqual(n2.metric("external_prefix_cache_queries_total"), PROMPT // 16 * 16)
            self.assertEqual(n2.metric("external_prefix_cache_hits_total"), CACHED)
            self.assertGreater(n2.metric("peer_prefix_bytes_total"), 0)
            self.assertEqual(n2.metric("peer_prefix_bytes_total") % CACHED, 0)
            self.assertEqual(n1.metric("peer_prefix_tokens_total", event="shown"), CACHED)
            # It has them itself from now on, and shows them in turn.
            self.check(cluster, "n2", 3, CACHED)
            self.assertEqual(n2.metric("external_prefix_cache_hits_total"), CACHED)
            self.check(cluster, "n1", 4, CACHED)
            self.check_end(cluster)

    def test_chunked_prefills(self):
        self.copied("sarathi")

    def test_whole_prompts(self):
        self.copied("vllm")

    def test_a_policy_with_a_host_tier(self):
        self.copied("layerkv", *HOST)

    def test_a_policy_that_borrows(self):
        self.copied("distkv")

    def attended(self, policy, *flags):
        with self.cluster(2, "--cluster-prefixes", "attend", *flags, policy=policy) as cluster:
            self.check(cluster, "n1", 1, 0)
            self.check(cluster, "n2", 2, LEAF)
            n1, n2 = cluster["n1"], cluster["n2"]
            self.assertEqual(n2.metric("peer_prefix_tokens_total", event="attended"), LEAF)
            self.assertEqual(n2.metric("external_prefix_cache_hits_total"), 0)
            self.assertGreater(n2.metric("remote_queries_total"), 0)
            self.check_end(cluster)
            cluster.wait(lambda: n1.metric("peer_cells", state="lent") or None, 10, "it has given them back")

    def test_attended_by_chunked_prefills(self):
        self.attended("sarathi")

    def test_attended_by_whole_prompts(self):
        self.attended("vllm")

    def test_attended_by_a_policy_with_a_host_tier(self):
        self.attended("layerkv", *HOST)

    def test_attended_by_a_policy_that_borrows(self):
        self.attended("distkv")

    def test_a_peer_that_dies_while_it_is_attended(self):
        with alone(MODEL, "8MiB", *BLOCKS, "--no-enable-prefix-caching") as instance:
            wanted = ask(instance, prompt(2), 400)[0]
        with self.cluster(2, "--cluster-prefixes", "attend") as cluster:
            self.check(cluster, "n1", 1, 0)
            answers = []
            asking = threading.Thread(target=lambda: answers.append(ask(cluster["n2"], prompt(2), 400)))
            asking.start()
            while cluster["n2"].metric("remote_queries_total") == 0 and asking.is_alive():
                time.sleep(0.01)
            self.assertTrue(asking.is_alive(), "it ended before the peer could be killed")
            cluster["n1"].kill()
            asking.join()
            self.assertEqual(answers, [(wanted, LEAF)])
            self.assertGreater(cluster["n2"].metric("peer_cells_total", event="lost"), 0)

    def test_by_cost(self):
        """Whatever it decides, the answers are right; what was not copied was computed."""
        with self.cluster(3, "--cluster-prefixes", "cost") as cluster:
            self.check(cluster, "n1", 1, 0)
            for seed, name in ((2, "n2"), (3, "n3"), (4, "n1")):
                self.assertEqual(ask(cluster[name], prompt(seed))[0], self.wanted[seed])
            self.check_end(cluster)

    def test_never(self):
        with self.cluster(2, "--cluster-prefixes", "never") as cluster:
            self.check(cluster, "n1", 1, 0)
            self.check(cluster, "n2", 2, 0)
            self.assertEqual(cluster.total("external_prefix_cache_queries_total"), 0)
            self.check_end(cluster)

    def test_a_peer_that_does_not_answer(self):
        """It goes on without, long before the peer counts as dead."""
        with self.cluster(2, "--cluster-prefixes", "fetch", "--cluster-ttl", "30") as cluster:
            self.check(cluster, "n1", 1, 0)
            cluster["n1"].stop_for_now()
            begin = time.monotonic()
            self.check(cluster, "n2", 2, 0)
            self.assertLess(time.monotonic() - begin, 10)
            self.assertGreater(cluster["n2"].metric("peer_prefix_tokens_total", event="late"), 0)
            cluster["n1"].go_on()
            self.check(cluster, "n1", 3, CACHED)
            self.check_end(cluster)

    def test_a_peer_that_dies(self):
        with self.cluster(3, "--cluster-prefixes", "fetch") as cluster:
            self.check(cluster, "n1", 1, 0)
            self.check(cluster, "n2", 2, CACHED)
            cluster["n1"].kill()
            self.check(cluster, "n3", 3, CACHED)
            cluster["n2"].kill()
            self.check(cluster, "n3", 4, CACHED)
            cluster.wait_quiet()

    @unittest.skipUnless(LONG, "takes KVASIR_CLUSTER_LONG=1")
    def test_time_to_first_token(self):
        model = make_model(pathlib.Path(scratch.name) / "12x768.gguf", "--preset", "mha-12x768", "--weights", "q4_1",
                           "--context", "8192")
        print("tokens  cached  first token, ms: computed  of a peer  cached here  bytes copied", flush=True)
        for tokens in (256, 1024):
            times = []
            for prefixes in ("never", "cost"):
                with Cluster(model, 2, "--cluster-prefixes", prefixes, policy="sarathi", memory="512MiB") as cluster:
                    for i in range(3):  # what steps and paths cost is learnt meanwhile
                        for name in ("n1", "n2", "n2"):
                            begin = time.monotonic()
                            _, cached = ask(cluster[name], prompt_of(tokens + 1, i), 1)
                            times.append((prefixes, name, i, time.monotonic() - begin, cached))
                    copied = cluster["n2"].metric("peer_prefix_bytes_total") / 3
            of = {(t[0], t[1], n % 3): t[3] * 1e3 for n, t in enumerate(times) if t[2] == 2}
            cached = [t[4] for t in times if t[2] == 2][4]
            print(f"{tokens:6} {cached:7} {of['never', 'n2', 1]:26.0f} {of['cost', 'n2', 1]:10.0f} "
                  f"{of['cost', 'n2', 2]:12.0f} {copied:13.0f}", flush=True)
            self.assertGreater(cached, 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
