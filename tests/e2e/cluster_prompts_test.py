"""Rows of a prompt that a peer computes, and then lends where they lie: the answer has the bits of one large instance."""

import pathlib
import tempfile
import threading
import time
import unittest

from cluster import Cluster, alone, ask, ask_all, make_model, need_etcd, prompt_of

BLOCKS = ("--block-size", "16")
MEMORY = "1MiB"  # 1024 tokens of this model, and a stage ring
# Of 98 blocks 64 fit, beside two that are being written: 36 have to go, which are 3 leaves of 16 blocks.
PROMPT, OUTPUT, GONE = 1536, 32, 768
TOKEN_BYTES = 768  # K and V
FLAGS = ("--cluster-lend-size", MEMORY, "--cluster-fetch", "never", "--cluster-ttl", "30")
SLOW = ("--max-num-batched-tokens", "4", "--max-num-seqs", "4")


def setUpModule():
    global scratch, MODEL, HEAVY
    need_etcd()
    scratch = tempfile.TemporaryDirectory()
    shape = ("--preset", "tiny-gqa", "--kv-heads", "2", "--context", "65536")
    MODEL = make_model(pathlib.Path(scratch.name) / "model.gguf", *shape, "--dim", "128", "--heads", "4")
    # The same K and V for each token, and rows that take about fifteen times as long.
    HEAVY = make_model(pathlib.Path(scratch.name) / "heavy.gguf", *shape, "--dim", "512", "--heads", "16")


def tearDownModule():
    scratch.cleanup()


def prompts(instance, event):
    return instance.metric("peer_prompt_tokens_total", event=event)


class Prompts(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with alone(MODEL, "8MiB", *BLOCKS, "--no-enable-prefix-caching") as instance:
            cls.wanted = {seed: ask(instance, prompt_of(PROMPT, seed), OUTPUT) for seed in range(1, 7)}
        with alone(HEAVY, "8MiB", *BLOCKS, "--no-enable-prefix-caching") as instance:
            cls.heavy = {seed: ask(instance, prompt_of(PROMPT, seed), OUTPUT) for seed in (1, 2)}

    def cluster(self, count, use="always", *flags, policy="distkv", model=None):
        return Cluster(model or MODEL, count, *BLOCKS, *FLAGS, "--cluster-prompts", use, *flags, memory=MEMORY, policy=policy)

    def check(self, instance, seed):
        self.assertEqual(ask(instance, prompt_of(PROMPT, seed), OUTPUT), self.wanted[seed], f"seed {seed}")

    def check_end(self, cluster):
        cluster.wait_quiet()
        self.assertEqual(cluster.bad_lines(), [])
        self.assertEqual(cluster.crashed(), [])

    def test_computed(self):
        """K and V of what the peer has computed never cross the network. The others' do, from the end of the request on, as
        long as its blocks are idle; each goes once at most."""
        only_these = "distkv:spill=off"
        with self.cluster(2, "never", policy=only_these) as cluster:
            self.check(cluster["n1"], 1)
            self.assertEqual(cluster.total("peer_prompt_tokens_total"), 0)
            self.assertGreaterEqual(cluster["n1"].metric("remote_written_bytes_total"), GONE * TOKEN_BYTES)
            self.check_end(cluster)
        with self.cluster(2, policy=only_these) as cluster:
            n1, n2 = cluster["n1"], cluster["n2"]
            self.check(n1, 1)
            self.assertEqual(prompts(n1, "asked"), GONE)
            self.assertEqual(prompts(n1, "computed"), GONE)
            self.assertEqual(prompts(n2, "for_peers"), GONE)
            written = n1.metric("remote_written_bytes_total")
            print(f"{written:.0f} bytes of K and V streamed out where a peer has computed {GONE} tokens")
            self.assertLessEqual(written, (PROMPT + OUTPUT - GONE) * TOKEN_BYTES)
            self.assertEqual(n1.metric("remote_read_bytes_total"), 0)
            self.assertGreater(n2.metric("lent_queries_total"), 0)
            self.check(n1, 2)  # in place of the first, whose cells are still borrowed
            self.check_end(cluster)

    def test_several_at_once(self):
        """By cost, and always; whatever is decided, the answers are right."""
        for use in ("cost", "always"):
            with self.subTest(use), self.cluster(4, use) as cluster:
                asks = [(f"n{i}", i) for i in (1, 2, 3, 4)] + [("n1", 5), ("n2", 6)]
                answers = ask_all([(cluster[name], prompt_of(PROMPT, seed), OUTPUT) for name, seed in asks])
                for (name, seed), answer in zip(asks, answers):
                    self.assertEqual(answer, self.wanted[seed], f"{name}, seed {seed}")
                # By cost it depends on how fast the machine copies.
                if use == "always":
                    self.assertGreater(sum(prompts(i, "asked") for i in cluster.alive()), 0)
                    self.assertGreater(sum(prompts(i, "computed") for i in cluster.alive()), 0)
                self.check_end(cluster)

    def test_a_lender_that_refuses(self):
        with self.cluster(1) as cluster:
            cluster.flags[cluster.flags.index("--cluster-prompts") + 1] = "never"
            cluster.add("n2", "n3")
            self.check(cluster["n1"], 1)
            self.assertEqual(prompts(cluster["n1"], "asked"), GONE)
            self.assertEqual(prompts(cluster["n1"], "computed"), 0)
            self.assertEqual(prompts(cluster["n2"], "for_peers") + prompts(cluster["n3"], "for_peers"), 0)
            self.check_end(cluster)

    def test_a_lender_that_spends_no_time_on_peers(self):
        with self.cluster(1) as cluster:
            cluster.flags += ["--cluster-lend-compute", "0"]
            cluster.add("n2")
            self.check(cluster["n1"], 1)
            self.assertEqual(prompts(cluster["n1"], "asked"), GONE)
            self.assertEqual(prompts(cluster["n2"], "for_peers"), 0)
            self.check_end(cluster)

    def test_one_prompt_after_the_other(self):
        """What earlier prompts have left at the peer makes room for the next: a part of each is computed there."""
        with self.cluster(2, "always", "--cluster-borrow-size", MEMORY) as cluster:
            n1, computed = cluster["n1"], 0
            for seed in self.wanted:
                self.check(n1, seed)
                self.assertGreater(prompts(n1, "computed"), computed, f"seed {seed}")
                computed = prompts(n1, "computed")
            self.check_end(cluster)

    # ---- while a peer computes: its rows take 192 steps

    def slow(self, *lenders):
        cluster = self.cluster(1, model=HEAVY)
        try:
            cluster.flags[cluster.flags.index("--scheduling-policy") + 1] = "sarathi"
            cluster.flags += SLOW
            cluster.add(*lenders)
        except BaseException:
            cluster.close()
            raise
        return cluster

    def busy(self, cluster):
        return next((i for i in cluster.alive() if i.name != "n1" and i.metric("num_requests_running") == 1), None)

    def begin(self, cluster, seed, **how):
        """Asks n1. The peer that computes rows for it, stopped; the request's thread; and its answer, when it comes."""
        answers = []

        def run():
            try:
                answers.append(ask(cluster["n1"], prompt_of(PROMPT, seed), OUTPUT, **how))
            except Exception as error:  # for the assertions that follow
                answers.append(type(error))  # the error itself would keep the connection open

        thread = threading.Thread(target=run)
        thread.start()
        end = time.monotonic() + 30
        while (lender := self.busy(cluster)) is None:
            self.assertLess(time.monotonic(), end, "no peer computes anything")
            self.assertTrue(thread.is_alive(), f"it has ended, computed {prompts(cluster['n1'], 'computed')}: {answers}")
        lender.stop_for_now()
        self.assertEqual(prompts(cluster["n1"], "computed"), 0, "it waits for them")
        return lender, thread, answers

    def check_idle(self, instance):
        instance.wait_metric("num_requests_running", 0)
        self.assertEqual(prompts(instance, "for_peers"), 0)
        self.assertEqual(instance.metric("peer_cells", state="lent"), 0)

    def test_a_lender_that_is_killed_meanwhile(self):
        """The next one computes them."""
        with self.slow("n2", "n3") as cluster:
            lender, thread, answers = self.begin(cluster, 1)
            lender.kill()
            thread.join()
            self.assertEqual(answers, [self.heavy[1]])
            self.assertEqual(prompts(cluster["n1"], "asked"), GONE)
            self.assertEqual(prompts(cluster["n1"], "computed"), GONE)
            self.check_end(cluster)

    def test_a_request_that_is_cancelled_meanwhile(self):
        with self.slow("n2") as cluster:
            n1 = cluster["n1"]
            lender, thread, answers = self.begin(cluster, 1, timeout=3)
            thread.join()
            self.assertEqual(answers, [TimeoutError])
            n1.wait_metric("num_requests_waiting", 0)
            lender.go_on()
            self.check_idle(lender)
            self.assertEqual(ask(n1, prompt_of(PROMPT, 2), OUTPUT), self.heavy[2])
            self.assertEqual(prompts(n1, "computed"), GONE)
            self.check_end(cluster)

    def test_an_owner_that_is_killed_meanwhile(self):
        with self.slow("n2", "n3") as cluster:
            lender, thread, _ = self.begin(cluster, 1)
            cluster["n1"].kill()
            thread.join()
            lender.go_on()
            self.check_idle(lender)
            self.check_end(cluster)


if __name__ == "__main__":
    unittest.main(verbosity=2)
