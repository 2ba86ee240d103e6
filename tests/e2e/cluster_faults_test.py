"""What dies, hangs or is cut off in a cluster while instances answer by each other's memory: the answers stay right.

KVASIR_FAULT_SCHEDULES: how many random schedules of faults in a row; KVASIR_FAULT_SEED: of the first of them. From
four on they run with each model, and with and without prefix caching.
"""

import os
import pathlib
import random
import signal
import tempfile
import time
import unittest
from typing import NamedTuple

from cluster import Cluster, Load, alone, ask, certificate_flags, make_model, need, need_etcd, prompt_of
from support import shard

SCHEDULES = int(os.environ.get("KVASIR_FAULT_SCHEDULES", "2"))
SEED = int(os.environ.get("KVASIR_FAULT_SEED", "1"))
LONG = SCHEDULES >= 10
TTL = 3  # seconds until a silent instance counts as dead
STOPPED = 12  # longer than any wait
BLOCKS = ("--block-size", "16")
# An instance holds 1024 tokens: two need others' memory, two now and then their own.
KV_HEADS = {"gqa": "2", "mha": "4"}
MEMORY = {"gqa": "1MiB", "mha": "2MiB"}
QUESTIONS = {
    "n1": [(1050, 150), (1100, 60)],
    "n2": [(1040, 120), (1120, 40)],
    "n3": [(200, 60), (150, 30)],
    "n4": [(180, 50), (240, 20)],
}


class Variant(NamedTuple):
    """What a cluster runs."""
    model: str = "gqa"
    caching: bool = False

    @classmethod
    def of(cls, seed):
        return cls("mha" if seed & 1 else "gqa", bool(seed & 2))

    def __str__(self):
        return f"{self.model}, {'with' if self.caching else 'no'} caching"


def setUpModule():
    global scratch, ASKED
    need_etcd()
    scratch = tempfile.TemporaryDirectory()
    ASKED = {name: [(prompt_of(tokens, int(name[1]) * 10 + i), max_tokens) for i, (tokens, max_tokens) in enumerate(asks)]
             for name, asks in QUESTIONS.items()}


class Reference:
    """Models, each with the answers of one large instance."""

    made = {}

    @classmethod
    def of(cls, model):
        if model not in cls.made:
            path = make_model(pathlib.Path(scratch.name) / f"{model}.gguf", "--preset", "tiny-gqa", "--kv-heads",
                              KV_HEADS[model], "--context", "8192")
            with alone(path, "64MiB", *BLOCKS) as instance:
                cls.made[model] = path, {name: [ask(instance, *question) for question in asks]
                                         for name, asks in ASKED.items()}
        return cls.made[model]


def tearDownModule():
    scratch.cleanup()


def rising(instance, metric, seconds=60):
    """Returns when a counter rises."""
    end = time.monotonic() + seconds
    first = instance.metric(metric)
    while instance.metric(metric) <= first:
        if time.monotonic() > end:
            raise AssertionError(f"{metric} of {instance.name} stays {first}")
        time.sleep(0.01)


class Faults(unittest.TestCase):
    def cluster(self, count=4, hosts=False, ttl=TTL, variant=Variant()):
        path, self.answers = Reference.of(variant.model)
        memory = MEMORY[variant.model]
        cluster = Cluster(path, count, *BLOCKS, "--cluster-lend-size", memory,
                          "--cluster-ttl", str(ttl), *(() if variant.caching else ("--no-enable-prefix-caching",)),
                          memory=memory, hosts=hosts)
        self.addCleanup(cluster.close)
        return cluster

    def load(self, cluster):
        load = Load(cluster, ASKED, self.answers, **({"pause": 0} if LONG else {}))
        self.addCleanup(setattr, load, "stopping", True)
        load.wait_answers()
        return load

    def check_so_far(self, cluster, load):
        self.assertEqual("".join(cluster.crashed()), "")
        self.assertEqual("\n".join(load.wrong[:10]), "")

    def check(self, cluster, load, what):
        """After a fault: all answer again, rightly, and when they are quiet their books agree."""
        begin = time.monotonic()
        load.wait_answers()
        answered = time.monotonic() - begin
        load.stop()
        self.check_so_far(cluster, load)
        cluster.wait_quiet()
        # Late is what came when its operation had failed. What another life has sent never comes so far.
        statuses = cluster.statuses()
        late = sum(s["borrowed"]["late_replies"] for s in statuses.values())
        print(f"{what}: {load}; all answered {answered:.1f} s after; late replies {late}", flush=True)
        self.assertEqual({name: s["borrowed"]["wrong_replies"] for name, s in statuses.items()}, dict.fromkeys(statuses, 0))
        self.assertEqual(cluster.bad_lines(), [])

    @staticmethod
    def epochs(cluster):
        return {name: s["epoch"] for name, s in cluster.statuses().items()}

    # ---- processes

    def test_creditor_is_killed(self):
        cluster = self.cluster()
        load = self.load(cluster)
        rising(cluster["n3"], "lent_queries_total")
        cluster["n3"].kill()
        load.wait_answers()
        cluster.add("n3")
        self.check(cluster, load, "creditor killed")

    def test_debtor_is_killed(self):
        cluster = self.cluster()
        load = self.load(cluster)
        rising(cluster["n1"], "remote_queries_total")
        cluster["n1"].kill()
        self.check(cluster, load, "debtor killed")  # nothing is lent to it any more

    def test_creditor_is_stopped(self):
        cluster = self.cluster(ttl=5)
        load = self.load(cluster)
        before = cluster.statuses()["n3"]["epoch"]
        rising(cluster["n3"], "lent_queries_total")
        cluster["n3"].stop_for_now()
        time.sleep(STOPPED)
        cluster["n3"].go_on()
        self.check(cluster, load, "creditor stopped")
        self.assertNotEqual(cluster.statuses()["n3"]["epoch"], before)

    def test_join_and_leave(self):
        cluster = self.cluster(count=3)
        load = self.load(cluster)
        cluster.add("n4")
        rising(cluster["n4"], "lent_queries_total")
        begin = time.monotonic()
        self.assertEqual(cluster["n4"].terminate(), 0)
        left = time.monotonic() - begin
        load.wait_answers()
        failed = cluster.total("remote_failed_total")
        cluster.add("n4")
        self.assertEqual(cluster["n1"].terminate(), 0)  # one that owes
        cluster.add("n1")
        self.check(cluster, load, f"creditor left in {left:.1f} s, {failed:.0f} accesses failed")

    # ---- gManager and etcd

    def test_gmanager_is_killed(self):
        cluster = self.cluster()
        load = self.load(cluster)
        leader = cluster.leader()
        self.assertIn(leader, cluster.instances)
        cluster[leader].kill()
        load.wait_answers()
        cluster.add(leader)
        self.assertNotEqual(cluster.leader(), leader)
        self.check(cluster, load, "gManager killed, an instance")

    def test_gmanager_of_its_own_is_killed(self):
        cluster = self.cluster(count=0)
        cluster.add_gmanager()
        cluster.wait(lambda: None if cluster.leader() == "gm" else "it does not", 30, "gm leads")
        cluster.add("n1", "n2", "n3", "n4")
        load = self.load(cluster)
        self.assertEqual(cluster.leader(), "gm")
        cluster.gmanager.kill()
        cluster.gmanager.wait()
        self.check(cluster, load, "gManager killed, on its own")

    def test_etcd_is_killed(self):
        cluster = self.cluster()
        load = self.load(cluster)
        epochs = self.epochs(cluster)
        cluster.etcd.kill()
        # Nothing is lent anew meanwhile. An instance that needs only its own memory goes on.
        time.sleep(TTL * 1.5)
        load.wait_answers(["n3", "n4"])
        cluster.etcd.start()
        self.check(cluster, load, "etcd killed")
        # A lease outlives a restart of etcd.
        self.assertEqual(self.epochs(cluster), epochs)

    # ---- certificates

    def test_certificates_are_replaced(self):
        """While instances answer by each other's memory; what connects later has the new ones."""
        cluster = self.cluster()
        load = self.load(cluster)
        epochs = self.epochs(cluster)
        rising(cluster["n3"], "lent_queries_total")
        for name in cluster.instances:
            certificate_flags(cluster.directory, name)
            cluster[name].signal(signal.SIGHUP)
        for instance in cluster.instances.values():
            self.assertTrue(instance.wait_log("SIGHUP: cluster's certificates were read again"), instance.log)
        load.wait_answers()
        self.assertEqual(self.epochs(cluster), epochs)
        cluster["n3"].kill()
        cluster.add("n3")
        self.check(cluster, load, "certificates replaced, and a creditor killed")

    # ---- links

    def test_link_is_cut(self):
        need(network=True)
        cluster = self.cluster(hosts=True)
        cuts = [("creditor's, shortly", TTL / 3, True), ("idle, for long", TTL * 2, False)]
        if LONG:
            cuts += [("idle, shortly", 1, False), ("creditor's, for long", TTL * 2, True)]
        for what, seconds, busy in cuts:
            with self.subTest(what):
                before = cluster.statuses()["n3"]["epoch"]
                load = None
                if busy:
                    load = self.load(cluster)
                    rising(cluster["n3"], "lent_queries_total")
                cluster.network.cut("n3")
                time.sleep(seconds)
                cluster.network.mend("n3")
                cluster.wait_members()
                self.check(cluster, load or self.load(cluster), f"link cut, {what}")
                self.assertEqual(cluster.statuses()["n3"]["epoch"] != before, seconds > TTL)

    def test_etcd_is_out_of_reach(self):
        need(network=True)
        cluster = self.cluster(hosts=True)
        load = self.load(cluster)
        cluster.network.part("n3", "etcd")
        time.sleep(TTL * 2)
        cluster.network.join("n3", "etcd")
        self.check(cluster, load, "etcd out of reach of one")

    def test_two_peers_do_not_reach_each_other(self):
        need(network=True)
        cluster = self.cluster(hosts=True)
        load = self.load(cluster)
        epochs = self.epochs(cluster)
        rising(cluster["n3"], "lent_queries_total")
        cluster.network.part("n1", "n3")
        time.sleep(TTL * 2)
        load.wait_answers()
        cluster.network.join("n1", "n3")
        self.check(cluster, load, "a creditor out of reach of a debtor")
        self.assertEqual(self.epochs(cluster), epochs)

    def test_two_peers_do_not_reach_each_other_shortly(self):
        need(network=True)
        cluster = self.cluster(hosts=True)
        # Before and after an operation's deadline of 2 s, but within all leases.
        for seconds in (1, 0.8 * TTL):
            with self.subTest(seconds=seconds):
                load = self.load(cluster)
                epochs = self.epochs(cluster)
                rising(cluster["n3"], "lent_queries_total")
                cluster.network.part("n1", "n3")
                time.sleep(seconds)
                cluster.network.join("n1", "n3")
                self.check(cluster, load, f"a creditor out of reach of a debtor for {seconds:.1f} s")
                self.assertEqual(self.epochs(cluster), epochs)

    # ---- all of it

    def test_random_schedules(self):
        need(network=True)
        for first in range(SEED, SEED + min(SCHEDULES, 4)):
            cluster = self.cluster(hosts=True, variant=Variant.of(first))
            for seed in range(first, SEED + SCHEDULES, 4):
                with self.subTest(seed=seed):
                    load = self.load(cluster)
                    said = self.random_schedule(cluster, seed)
                    self.check(cluster, load, f"seed {seed} ({Variant.of(seed)}): {said}")
            cluster.close()

    def random_schedule(self, cluster, seed):
        """One to three instances with a fault each, perhaps etcd, too, and the end of it all."""
        rng, network, said, events = random.Random(seed), cluster.network, [], []
        names = sorted(cluster.instances)
        for i, name in enumerate(rng.sample(names, rng.randint(1, 3))):
            instance, neighbour = cluster[name], names[names.index(name) - 1]
            kinds = {
                "killed": (instance.kill, lambda: None),
                "told to leave": (instance.leave, lambda instance=instance: instance.wait(90)),
                "stopped": (instance.stop_for_now, instance.go_on),
                "cut off": (lambda name=name: network.cut(name), lambda name=name: network.mend(name)),
                "without etcd": (lambda name=name: network.part(name, "etcd"),
                                 lambda name=name: network.join(name, "etcd")),
                "without its neighbour": (lambda a=name, b=neighbour: network.part(a, b),
                                          lambda a=name, b=neighbour: network.join(a, b)),
                "stopped for long": (instance.stop_for_now, instance.go_on),
            }
            # Each kind has its turn, with each variant in turn.
            kind = sorted(kinds)[seed % len(kinds)] if i == 0 else rng.choice(sorted(kinds))
            begin, lasts = rng.uniform(0, 2), rng.choice((0.3, 1, TTL, 2.5 * TTL)) * rng.uniform(0.7, 1.3)
            lasts = STOPPED if kind == "stopped for long" else lasts
            events += [(begin, kinds[kind][0]), (begin + lasts, kinds[kind][1])]
            said.append(f"{name} {kind} at {begin:.1f} for {lasts:.1f} s")
        if rng.random() < 0.25:
            begin, lasts = rng.uniform(0, 2), rng.uniform(0.5, 2 * TTL)
            events += [(begin, cluster.etcd.kill), (begin + lasts, cluster.etcd.start)]
            said.append(f"etcd killed at {begin:.1f} for {lasts:.1f} s")
        start = time.monotonic()
        for at, event in sorted(events, key=lambda e: e[0]):
            time.sleep(max(0.0, start + at - time.monotonic()))
            event()
        cluster.add(*(i.name for i in cluster.instances.values() if i.killed))
        return ", ".join(said)


load_tests = shard


if __name__ == "__main__":
    unittest.main(verbosity=2)
