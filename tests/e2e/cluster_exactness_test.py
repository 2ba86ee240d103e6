"""Contexts that no instance of a cluster can hold give the bits of one large instance.

KVASIR_CLUSTER_LONG=1 takes a real model and one of its size, too, and prints what queries cost.
"""

import math
import os
import pathlib
import tempfile
import unittest

from cluster import Cluster, alone, ask, ask_all, make_model, need, need_etcd, prompt_of
from support import model_path, shard

LONG = os.environ.get("KVASIR_CLUSTER_LONG") == "1"
BLOCKS = ("--block-size", "16")
# Two small models and their memory, of which an instance holds OWN tokens beside the stage ring.
HEADS = {"gqa": "2", "mha": "4"}
MEMORY = {"gqa": "1MiB", "mha": "2MiB"}
OWN = 1024
# Bytes of a query of one row in one layer of "gqa": 4 heads of 32 in float32 behind a header; the name of a cell of 16
# tokens, of which a leaf of 256 positions has 16. And of the answer: m, l and o of each head for each subtree.
QUERY = 144 + 4 * 32 * 4
CELL_NAME, CELLS_OF_LEAF = 4, 256 // 16
REPLY_HEADER, RECORD = 48, 4 * (2 + 32) * 4


def setUpModule():
    global scratch, MODELS
    need_etcd()
    if LONG:
        model_path()
    scratch = tempfile.TemporaryDirectory()
    MODELS = {name: make_model(pathlib.Path(scratch.name) / f"{name}.gguf", "--preset", "tiny-gqa", "--dim", "128",
                               "--heads", "4", "--kv-heads", heads, "--context", "65536")
              for name, heads in HEADS.items()}


def tearDownModule():
    scratch.cleanup()


def cluster_of(name, count, *flags, hosts=False):
    return Cluster(MODELS[name], count, *BLOCKS, "--no-enable-prefix-caching", "--cluster-lend-size", MEMORY[name],
                   *flags, memory=MEMORY[name], hosts=hosts)


class Reference:
    """Answers of one large instance, each computed once."""

    answers = {}

    @classmethod
    def of(cls, model, asks, memory="64MiB"):
        asks = [(tuple(prompt), max_tokens) for prompt, max_tokens in asks]
        lacking = [a for a in asks if (model, a) not in cls.answers]
        if lacking:
            with alone(model, memory, *BLOCKS) as instance:
                for prompt, max_tokens in lacking:
                    cls.answers[model, (prompt, max_tokens)] = ask(instance, prompt, max_tokens, 1200)
        return [cls.answers[model, a] for a in asks]


class Exactness(unittest.TestCase):
    def check(self, cluster, model, asks, memory="64MiB", timeout=300):
        """`asks` are (instance, prompt, max_tokens), asked at once."""
        wanted = Reference.of(model, [(prompt, max_tokens) for _, prompt, max_tokens in asks], memory)
        before = cluster.total("remote_queries_total"), cluster.total("lent_queries_total")
        answers = ask_all([(cluster[name], prompt, max_tokens) for name, prompt, max_tokens in asks], timeout)
        for (name, prompt, _), answer, want in zip(asks, answers, wanted):
            self.assertEqual(answer, want, f"{name}, {len(prompt)} tokens")
        asked = cluster.total("remote_queries_total") - before[0]
        answered = cluster.total("lent_queries_total") - before[1]
        return asked, answered

    def check_end(self, cluster):
        self.assertEqual(cluster.total("remote_failed_total"), 0)
        cluster.wait_quiet()
        self.assertEqual(cluster.bad_lines(), [])
        self.assertEqual(cluster.crashed(), [])

    def three_budgets(self, name, *flags, hosts):
        # On a busy machine it would be cheaper to fetch than to ask.
        with cluster_of(name, 4, "--cluster-fetch", "never", *flags, hosts=hosts) as cluster:
            # All that there is: 252 blocks, of which the oldest twelve leaves take all that the other three can lend.
            asked, answered = self.check(cluster, MODELS[name], [("n1", prompt_of(4 * OWN - 104), 40)])
            self.assertGreater(asked, 0)
            self.assertGreater(answered, asked)  # a query goes to all that have some of the history
            self.assertEqual(len([i for i in cluster.alive() if i.metric("lent_queries_total") > 0]), 3)
            # One that needs others, and one on each of the others that does not.
            asks = [("n1", prompt_of(3 * OWN // 2, 1), 48)]
            asks += [(f"n{i}", prompt_of(OWN // 4 * (i - 1), i), 64) for i in (2, 3, 4)]
            asked, _ = self.check(cluster, MODELS[name], asks)
            self.assertGreater(asked, 0)
            self.check_end(cluster)

    def test_more_than_there_is(self):
        """Each needs others' memory, and there is enough for two: the rest wait."""
        with cluster_of("gqa", 4) as cluster:
            asks = [(f"n{i}", prompt_of(3 * OWN // 2 + 50 * i, 10 + i), 32) for i in (1, 2, 3, 4)]
            asked, _ = self.check(cluster, MODELS["gqa"], asks)
            self.assertGreater(asked, 0)
            self.check_end(cluster)

    def test_between_hosts(self):
        need(network=True)
        for name in MODELS:
            with self.subTest(name):
                self.three_budgets(name, hosts=True)

    def test_on_one_host(self):
        for name in MODELS if LONG else ("gqa",):
            with self.subTest(name):
                self.three_budgets(name, hosts=False)

    def test_query_or_fetch(self):
        asks = [("n1", prompt_of(2 * OWN + 300, 5), 48), ("n2", prompt_of(OWN // 2, 6), 48)]
        for flags in (("--cluster-fetch", "never"), ("--cluster-fetch", "cost"), ("--cluster-fetch", "always"),
                      ("--cluster-lend-compute", "0"), ("--cluster-lend-compute", "0", "--cluster-fetch", "never")):
            with self.subTest(flags), cluster_of("gqa", 4, *flags) as cluster:
                asked, answered = self.check(cluster, MODELS["gqa"], asks)
                fetched = cluster.total("remote_fetched_bytes_total")
                print(*flags, f"{asked:.0f} queries, {fetched:.0f} bytes fetched", flush=True)
                self.assertGreater(asked, 0)
                if "always" in flags or "0" in flags:
                    self.assertGreater(fetched, 0)
                    self.assertEqual(answered, 0)
                else:
                    self.assertGreater(answered, 0)
                self.check_end(cluster)

    def test_bytes_of_a_query(self):
        """Those of decodes, by how many leaves of a history lie at one creditor."""
        lengths = (1000, 7000) + ((2000, 4000, 15000, 31000) if LONG else ())
        flags = ("--cluster-borrow-size", "64MiB", "--cluster-fetch", "never")
        with cluster_of("gqa", 1, *flags) as cluster:
            cluster.flags[cluster.flags.index("--kv-cache-memory-bytes") + 1] = "64MiB"
            cluster.flags[cluster.flags.index("--cluster-lend-size") + 1] = "64MiB"
            cluster.add("n2")
            rows = []
            for length in sorted(lengths):
                # On a busy machine the prompt's blocks now and then reach the creditor in other steps the second time: then the
                # difference has partial results of the prompt, too.
                for _ in range(3):
                    leaves, sent, back = self.costs_of_decodes(cluster, length)
                    if back <= self.most_back(leaves):
                        break
                rows.append((leaves, sent, back))
            print("leaves  query bytes  partial bytes  bytes of K and V", flush=True)
            for leaves, sent, back in rows:
                print(f"{leaves:6.1f}  {sent:11.0f}  {back:13.0f}  {leaves * 256 * 256:16.0f}", flush=True)
            self.assertGreater(rows[-1][0], 3 * rows[0][0])
            for leaves, sent, back in rows:
                self.assertLessEqual(sent, QUERY + CELL_NAME * leaves * CELLS_OF_LEAF, f"{leaves} leaves")
                self.assertLessEqual(back, self.most_back(leaves), f"{leaves} leaves")
            self.check_end(cluster)

    @staticmethod
    def most_back(leaves):
        """Bytes of an answer. However a run is aligned, it is of at most so many whole subtrees: of 30 leaves, from the second
        on, 1, 2, 4, 8, 8, 4, 2 and 1. Of a mean it holds, too, since the logarithm bends downwards."""
        return REPLY_HEADER + RECORD * (2 * math.log2(leaves + 2) - 2)

    def costs_of_decodes(self, cluster, length):
        """(leaves, bytes sent, bytes that came back) of a query: what 33 tokens cost beyond one."""
        costs = []
        for max_tokens in (1, 33):
            before = self.costs(cluster)
            self.check(cluster, MODELS["gqa"], [("n1", prompt_of(length + OWN, length), max_tokens)])
            costs.append([after - b for after, b in zip(self.costs(cluster), before)])
        queries, *of_all = [b - a for a, b in zip(*costs)]
        return [x / queries for x in of_all]

    @staticmethod
    def costs(cluster):
        borrowed = cluster.statuses()["n1"]["borrowed"]
        return [borrowed[key] for key in ("queries", "leaf_rows", "query_bytes", "partial_bytes")]

    @unittest.skipUnless(LONG, "takes KVASIR_CLUSTER_LONG=1")
    def test_models_of_real_size(self):
        need(network=True)
        mha = make_model(pathlib.Path(scratch.name) / "mha-12x768.gguf", "--preset", "mha-12x768", "--weights", "q4_1")
        for model, memory, lend, own in ((model_path(), "24MiB", "20MiB", 992), (mha, "42MiB", "40MiB", 1024)):
            for hosts in (True, False):
                with self.subTest(model=model, hosts=hosts), Cluster(
                        model, 4, *BLOCKS, "--no-enable-prefix-caching", "--cluster-lend-size", lend,
                        memory=memory, hosts=hosts) as cluster:
                    asked, answered = self.check(cluster, model, [("n1", prompt_of(3 * own - 32), 32)], "512MiB", 1200)
                    print(model, f"{asked:.0f} queries", flush=True)
                    self.assertGreater(asked, 0)
                    asks = [("n1", prompt_of(3 * own // 2, 1), 16)]
                    asks += [(f"n{i}", prompt_of(own // 4 * (i - 1), i), 32) for i in (2, 3, 4)]
                    self.check(cluster, model, asks, "512MiB", 1200)
                    self.check_end(cluster)


load_tests = shard


if __name__ == "__main__":
    unittest.main(verbosity=2)
