"""What dies, hangs or is cut off in a cluster while instances answer by each other's memory: the answers stay right.

KVASIR_FAULT_SCHEDULES: how many random schedules of faults in a row; KVASIR_FAULT_SEED: of the first of them.
"""

import os
import pathlib
import random
import tempfile
import time
import unittest

from cluster import Cluster, Load, alone, ask, make_model, need, prompt_of

SCHEDULES = int(os.environ.get("KVASIR_FAULT_SCHEDULES", "3"))
SEED = int(os.environ.get("KVASIR_FAULT_SEED", "1"))
TTL = 3  # seconds until who is silent is dead
BLOCKS = ("--block-size", "16")
FLAGS = (*BLOCKS, "--no-enable-prefix-caching", "--cluster-lend-size", "1MiB", "--cluster-ttl", str(TTL))
# An instance holds 1024 tokens: two need others' memory, two now and then their own.
QUESTIONS = {
    "n1": [(1050, 150), (1100, 60)],
    "n2": [(1040, 120), (1120, 40)],
    "n3": [(200, 60), (150, 30)],
    "n4": [(180, 50), (240, 20)],
}


def setUpModule():
    global scratch, MODEL, ASKED, ANSWERS
    need()
    scratch = tempfile.TemporaryDirectory()
    MODEL = make_model(pathlib.Path(scratch.name) / "gqa.gguf", "--preset", "tiny-gqa", "--context", "8192")
    with alone(MODEL, "64MiB", *BLOCKS) as instance:
        ASKED = {name: [(prompt_of(tokens, int(name[1]) * 10 + i), max_tokens)
                        for i, (tokens, max_tokens) in enumerate(asks)] for name, asks in QUESTIONS.items()}
        ANSWERS = {name: [ask(instance, *question) for question in asks] for name, asks in ASKED.items()}


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
    def cluster(self, *flags, count=4, hosts=False):
        cluster = Cluster(MODEL, count, *FLAGS, *flags, hosts=hosts)
        self.addCleanup(cluster.close)
        return cluster

    def load(self, cluster):
        load = Load(cluster, ASKED, ANSWERS)
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
        late = sum(s["borrowed"]["late_replies"] for s in cluster.statuses().values())
        wrong = sum(s["borrowed"]["wrong_replies"] for s in cluster.statuses().values())
        print(f"{what}: {load}; all answered {answered:.1f} s after; late replies {late}, wrong {wrong}", flush=True)
        self.assertEqual(cluster.bad_lines(), [])

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
        cluster = self.cluster()
        load = self.load(cluster)
        before = cluster.statuses()["n3"]["epoch"]
        rising(cluster["n3"], "lent_queries_total")
        cluster["n3"].stop_for_now()
        time.sleep(TTL * 2.4)
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
        epochs = {name: s["epoch"] for name, s in cluster.statuses().items()}
        cluster.etcd.kill()
        # Nothing is lent anew meanwhile. Who needs only its own memory goes on.
        time.sleep(TTL * 1.5)
        load.wait_answers(["n3", "n4"])
        cluster.etcd.start()
        self.check(cluster, load, "etcd killed")
        # A lease outlives a restart of etcd.
        self.assertEqual({name: s["epoch"] for name, s in cluster.statuses().items()}, epochs)

    # ---- links

    def test_link_is_cut(self):
        need(network=True)
        cluster = self.cluster(hosts=True)
        cuts = [("creditor's, shortly", TTL / 3, True), ("idle, for long", TTL * 2, False)]
        if SCHEDULES > 3:
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
        rising(cluster["n3"], "lent_queries_total")
        cluster.network.part("n1", "n3")
        time.sleep(TTL * 2)
        load.wait_answers()
        cluster.network.join("n1", "n3")
        self.check(cluster, load, "a creditor out of reach of a debtor")

    # ---- all of it

    def test_random_schedules(self):
        need(network=True)
        cluster = self.cluster(hosts=True)
        for seed in range(SEED, SEED + SCHEDULES):
            with self.subTest(seed=seed):
                load = self.load(cluster)
                said = self.random_schedule(cluster, random.Random(seed))
                self.check(cluster, load, f"seed {seed}: {said}")

    def random_schedule(self, cluster, rng):
        """One to three instances with a fault each, perhaps etcd, too, and the end of it all."""
        network, said, events = cluster.network, [], []
        for name in rng.sample(sorted(cluster.instances), rng.randint(1, 3)):
            instance = cluster[name]
            kinds = {
                "killed": (instance.kill, lambda: None),
                "told to leave": (instance.leave, lambda instance=instance: instance.wait(90)),
                "stopped": (instance.stop_for_now, instance.go_on),
                "cut off": (lambda name=name: network.cut(name), lambda name=name: network.mend(name)),
                "without etcd": (lambda name=name: network.part(name, "etcd"),
                                 lambda name=name: network.join(name, "etcd")),
            }
            kind = rng.choice(sorted(kinds))
            begin, lasts = rng.uniform(0, 2), rng.choice((0.3, 1, TTL, 2.5 * TTL)) * rng.uniform(0.7, 1.3)
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


if __name__ == "__main__":
    unittest.main(verbosity=2)
