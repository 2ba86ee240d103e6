"""`kvasir cluster status`: an empty cluster, two instances and what one has of the other, a directory that is down."""

import json
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from support import SKIPPED, Server, run

if not shutil.which("etcd"):
    print("skipped: etcd not found: apt-get install etcd-server")
    sys.exit(SKIPPED)


def free_ports(count):
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in taken]
    for s in taken:
        s.close()
    return ports


class Etcd:
    """Ready when an empty cluster can be read."""

    def __init__(self, folder):
        client, peer = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        self.process = subprocess.Popen(
            ["etcd", "--name", "e", "--data-dir", folder, "--listen-client-urls", client, "--advertise-client-urls",
             client, "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", f"e={peer}"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.url = client.replace("http://", "etcd://") + "/blue"
        end = time.monotonic() + 30
        while run("cluster", "status", "--cluster", self.url, "--timeout", "0.5").returncode != 0:
            if time.monotonic() > end or self.process.poll() is not None:
                self.process.kill()
                raise RuntimeError("etcd did not start")
            time.sleep(0.1)

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def status(self):
        result = run("cluster", "status", "--json", KVASIR_CLUSTER=self.url)
        assert result.returncode == 0 and result.stderr == "", result
        return json.loads(result.stdout)

    def wait_status(self, condition, what, seconds=30):
        end = time.monotonic() + seconds
        while not condition(last := self.status()):
            if time.monotonic() > end:
                raise AssertionError(f"{what}: {json.dumps(last, indent=1)}")
            time.sleep(0.1)
        return last


class ClusterStatus(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.etcd = Etcd(self.folder.name)

    def tearDown(self):
        self.etcd.stop()
        self.folder.cleanup()

    def member(self, name):
        return Server("--cluster", self.etcd.url, "--cluster-name", name, "--cluster-token", "t",
                      "--cluster-lend-size", "16MiB", "--scheduling-policy", "distkv", "--threads", "1",
                      "--no-enable-prefix-caching", memory="16MiB")

    def test_what_is_not_there(self):
        table = run("cluster", "status", "--cluster", self.etcd.url)
        self.assertEqual((table.returncode, table.stdout), (0, "cluster 'blue': no instances, no gManager\n"))
        self.assertEqual(self.etcd.status()["instances"], [])
        self.etcd.stop()
        for url, said in ((self.etcd.url, self.etcd.url), ("http://x", "etcd://"), ("etcd://127.0.0.1:0", "--cluster")):
            down = run("cluster", "status", "--cluster", url, "--timeout", "0.5")
            self.assertEqual((down.returncode, down.stdout), (1, ""), url)
            self.assertEqual(len(down.stderr.splitlines()), 1, down.stderr)
            self.assertTrue(down.stderr.startswith("kvasir cluster status: --cluster"), down.stderr)
            self.assertIn(said, down.stderr)
        self.assertEqual(run("cluster", "status").returncode, 2)
        self.assertEqual(run("cluster").returncode, 2)
        self.assertIn("--json", run("cluster", "status", "--help").stdout)

    def test_two_instances_and_what_one_has_of_the_other(self):
        with self.member("a") as a, self.member("b") as b:
            both = self.etcd.wait_status(
                lambda s: len(s["ledger"]) == 2 and all(len(i["status"]["links"]) == 1 for i in s["instances"]), "no ledger")
            self.assertEqual([i["instance"] for i in both["instances"]], ["a", "b"])
            self.assertEqual([i["http_address"] for i in both["instances"]], [a.url, b.url])
            self.assertEqual([i["leads"] for i in both["instances"]].count(True), 1)
            self.assertEqual(both["incompatible"], [])
            self.assertEqual(both["debts"], [])
            # 30 layers of 64 tokens with 2 x 3 heads of 64 in bf16.
            self.assertEqual({i["status"]["cell_bytes"] for i in both["instances"]}, {64 * 768})

            # 769 tokens: one has room for 640.
            answers = []
            words = " ".join(str(n) for n in range(190))
            client = threading.Thread(target=lambda: answers.append(a.ask(
                "POST", "/v1/completions", {"prompt": words, "max_tokens": 120, "ignore_eos": True}, timeout=300)))
            client.start()
            lent = self.etcd.wait_status(lambda s: s["debts"], "nothing is lent", seconds=120)
            debt = lent["debts"][0]
            self.assertEqual((debt["debtor"], debt["creditor"]), ("a", "b"))
            self.assertEqual(debt["bytes"], debt["cells"] * 64 * 768)
            measured = self.etcd.wait_status(lambda s: any("latency_us" in link for link in s["links"]),
                                             "no query was measured", seconds=120)
            link = next(link for link in measured["links"] if "latency_us" in link)
            self.assertEqual((link["from"], link["to"]), ("a", "b"))
            table = run("cluster", "status", "--cluster", self.etcd.url).stdout
            self.assertRegex(table, r"^cluster 'blue': 2 instances, gManager [ab] \(term \d+\)\n")
            self.assertRegex(table, r"\nb +[0-9a-f]{8} +(leads|member)[a-z, ]* +\d+ \(\d+\.\d MiB\) ")
            self.assertIn("\nlinks, as measured by who asked\n", table)
            client.join()
            self.assertEqual(answers[0][0], 200)
            self.etcd.wait_status(lambda s: not s["debts"], "it was not given back")

            b.process.kill()
            gone = self.etcd.wait_status(lambda s: len(s["instances"]) == 1, "its lease does not end")
            self.assertEqual(gone["instances"][0]["instance"], "a")
            self.assertEqual(a.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
