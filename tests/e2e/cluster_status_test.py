"""`kvasir cluster status`: an empty cluster, two instances and what one has of the other, a directory that is down."""

import json
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

from cluster import NAME, Etcd, certificate_flags, need_etcd
from support import Server, binary, clean_environment, model_path, run


def setUpModule():
    need_etcd()
    model_path()


class ClusterStatus(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.etcd = Etcd(None, self.folder)
        self.addCleanup(self.etcd.kill)
        self.tls = certificate_flags(self.folder, "reader")

    def status(self):
        result = run("cluster", "status", "--json", *self.tls, KVASIR_CLUSTER=self.etcd.url)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        return json.loads(result.stdout)

    def wait_status(self, condition, what, seconds=30):
        end = time.monotonic() + seconds
        while not condition(last := self.status()):
            if time.monotonic() > end:
                raise AssertionError(f"{what}: {json.dumps(last, indent=1)}")
            time.sleep(0.1)
        return last

    def member(self, name, *flags, certificate=None):
        """certificate: of another name; "": none."""
        tls = certificate_flags(self.folder, certificate or name) if certificate != "" else ()
        return Server("--cluster", self.etcd.url, "--cluster-name", name, *tls, "--cluster-lend-size", "16MiB", "--scheduling-policy", "distkv", "--threads", "1",
                      "--no-enable-prefix-caching", *flags, memory="16MiB")

    def test_what_is_not_there(self):
        table = run("cluster", "status", *self.tls, "--cluster", self.etcd.url)
        self.assertEqual((table.returncode, table.stdout), (0, f"cluster '{NAME}': no instances, no gManager\n"))
        self.assertEqual(self.status()["instances"], [])
        self.etcd.kill()
        for url, said in ((self.etcd.url, self.etcd.url), ("http://x", "etcd://"), ("etcd://127.0.0.1:0", "--cluster")):
            down = run("cluster", "status", *self.tls, "--cluster", url, "--timeout", "0.5")
            self.assertEqual((down.returncode, down.stdout), (1, ""), url)
            self.assertEqual(len(down.stderr.splitlines()), 1, down.stderr)
            self.assertTrue(down.stderr.startswith("kvasir cluster status: --cluster"), down.stderr)
            self.assertIn(said, down.stderr)
        self.assertEqual(run("cluster", "status").returncode, 2)
        self.assertEqual(run("cluster").returncode, 2)
        self.assertIn("--json", run("cluster", "status", "--help").stdout)

    def test_two_instances_and_what_one_has_of_the_other(self):
        # One that listens everywhere is found at its name, as a number.
        everywhere = ("--host", "0.0.0.0", "--cluster-listen", "0.0.0.0:0", "--cluster-advertise-host", "localhost")
        with self.member("a") as a, self.member("b", *everywhere) as b:
            both = self.wait_status(
                lambda s: len(s["ledger"]) == 2 and all(len(i["status"]["links"]) == 1 for i in s["instances"]), "no ledger")
            self.assertEqual([i["instance"] for i in both["instances"]], ["a", "b"])
            self.assertEqual([i["http_address"] for i in both["instances"]], [a.url, b.url])
            for i in both["instances"]:
                self.assertTrue(i["transport_address"].startswith("127.0.0.1:"), i)
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
            lent = self.wait_status(lambda s: s["debts"], "nothing is lent", seconds=120)
            debt = lent["debts"][0]
            self.assertEqual((debt["debtor"], debt["creditor"]), ("a", "b"))
            self.assertEqual(debt["bytes"], debt["cells"] * 64 * 768)
            measured = self.wait_status(lambda s: any("latency_us" in link for link in s["links"]),
                                             "no query was measured", seconds=120)
            link = next(link for link in measured["links"] if "latency_us" in link)
            self.assertEqual((link["from"], link["to"]), ("a", "b"))
            table = run("cluster", "status", *self.tls, "--cluster", self.etcd.url).stdout
            self.assertRegex(table, rf"^cluster '{NAME}': 2 instances, gManager [ab] \(term \d+\)\n")
            self.assertRegex(table, r"\nb +[0-9a-f]{8} +(leads|member)[a-z, ]* +\d+ \(\d+\.\d MiB\) ")
            self.assertIn("\nlinks, as measured by the asking instance\n", table)
            client.join()
            self.assertEqual(answers[0][0], 200)
            self.wait_status(lambda s: not s["debts"], "it was not given back")

            b.process.kill()
            gone = self.wait_status(lambda s: len(s["instances"]) == 1, "its lease does not end")
            self.assertEqual(gone["instances"][0]["instance"], "a")
            self.assertEqual(a.stop(), 0)

    def test_a_manager_alone_says_how_it_is(self):
        tls = certificate_flags(self.folder, "gm")
        manager = subprocess.Popen([binary(), "gmanager", "--cluster", self.etcd.url, *tls], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                   stdin=subprocess.DEVNULL, text=True, env=clean_environment())
        self.addCleanup(manager.stdout.close)
        self.addCleanup(manager.wait)
        self.addCleanup(manager.kill)
        url = re.search(r"its status: (http://127\.0\.0\.1:\d+)/cluster/status\n", manager.stdout.readline()).group(1)
        alone = self.wait_status(lambda s: s["leader"] and s["instances"][0]["status"]["leader"] == "gm", "it does not lead")
        self.assertEqual(alone["instances"][0]["http_address"], "")
        self.assertEqual(alone["instances"][0]["status"]["total_cells"], 0)
        ask = lambda path: urllib.request.urlopen(url + path, timeout=10).read().decode()  # noqa: E731
        self.assertEqual(json.loads(ask("/cluster/status"))["instance"], "gm")
        self.assertIn("kvasir:cluster_leads{", ask("/metrics"))
        for path in ("/livez", "/readyz", "/health"):
            self.assertEqual(json.loads(ask(path)), {"status": "ok"})
        for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/"), ("POST", "/admin/drain")):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(urllib.request.Request(url + path, method=method), timeout=10)
            self.assertEqual(refused.exception.code, 404, path)

    def test_the_status_is_where_the_metrics_are(self):
        with self.member("a", "--admin-port", "0") as a:
            both = self.wait_status(lambda s: s["leader"], "it does not lead")
            self.assertEqual(both["instances"][0]["status"]["instance"], "a")
            self.assertEqual(a.ask("GET", "/cluster/status")[0], 404)
            # One that does not answer is listed, and why.
            a.signal(signal.SIGSTOP)
            hangs = run("cluster", "status", *self.tls, "--cluster", self.etcd.url, "--timeout", "0.5")
            a.signal(signal.SIGCONT)
            self.assertRegex(hangs.stdout, r"\na: no status from http://127\.0\.0\.1:\d+: it does not answer in time\n")
        with Server(memory="16MiB") as alone:
            self.assertEqual(alone.ask("GET", "/cluster/status")[0], 404)
        self.assertEqual(self.etcd.range("kvasir/test/status/"), {})

    def test_who_is_no_member_does_not_get_in(self):
        """Without a certificate, or with one of another authority, etcd tells nothing."""
        other = self.folder / "other"
        other.mkdir()
        for tls in ((), certificate_flags(other, "b")):
            out = run("cluster", "status", *tls, "--cluster", self.etcd.url, "--timeout", "1")
            self.assertEqual((out.returncode, len(out.stderr.splitlines())), (1, 1), out.stderr)
            self.assertIn("does not answer", out.stderr)
        self.assertEqual(self.status()["instances"], [])

    def test_on_one_machine_none_needs_a_certificate(self):
        plain = self.folder / "plain"
        plain.mkdir()
        self.etcd.kill()
        self.etcd = Etcd(None, plain, tls=False)
        self.addCleanup(self.etcd.kill)
        self.tls = ()
        with self.member("a", certificate="") as a, self.member("c", certificate="") as c:
            self.wait_status(lambda s: len(s["ledger"]) == 2, "no ledger")
            for instance in (a, c):
                self.assertEqual(instance.metric("cluster_peers"), 1)

    def test_wrong_flags_are_told_before_the_model_is_loaded(self):
        tls = certificate_flags(self.folder, "a")
        for flag, *others in (("--cluster", "http://x"),
                              ("--cluster-ssl-keyfile", self.etcd.url, *tls[:2], *tls[4:]),
                              ("--cluster-ssl-certfile", self.etcd.url, "--cluster-ssl-certfile", "/no/file", *tls[2:]),
                              ("--cluster-ssl-certfile", self.etcd.url, *tls, "--cluster-name", "b"),
                              ("--cluster-name", self.etcd.url, "--cluster-name", "a/b"),
                              ("--cluster-location", self.etcd.url, "--cluster-location", b"rack\xff"),
                              ("--cluster-location", self.etcd.url, "--cluster-location", "r" * 257),
                              ("--cluster-listen", self.etcd.url, "--cluster-listen", "here"),
                              ("--cluster-listen", self.etcd.url, "--cluster-listen", "10.1.2.3:0"),
                              ("--cluster-advertise-host", self.etcd.url, *tls, "--cluster-listen", "0.0.0.0:0"),
                              ("--cluster-advertise-host", self.etcd.url, "--cluster-advertise-host", "10.1.2.3"),
                              ("--cluster-advertise-host", self.etcd.url, "--cluster-advertise-host", "h:1"),
                              ("--cluster", "etcd://10.1.2.3")):
            wrong = subprocess.run([binary(), "serve", "/no/such/model", "--port", "0", "--cluster", *others],
                                   capture_output=True, env=clean_environment(), timeout=60)
            told = wrong.stderr.decode(errors="replace")
            self.assertEqual((wrong.returncode, len(told.splitlines())), (1, 1), told)
            self.assertIn(flag, told)
            self.assertNotIn("/no/such/model", told)


if __name__ == "__main__":
    unittest.main(verbosity=2)
