"""Clusters for the end-to-end tests: etcd and instances, on this host or each on a host of its own.

A host is a network namespace; a bridge in another one is their switch. The machine's own network is not touched.
"""

import base64
import ctypes
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import unittest

from support import SKIPPED, Server, binary, clean_environment

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
NAME = "test"  # of the cluster in etcd
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000
PR_SET_PDEATHSIG = 1


def lacking(network):
    """What there is not on this machine, or None; network: that hosts need, too."""
    missing = [program for program in ("etcd", "ip")[:2 if network else 1] if not shutil.which(program)]
    if missing:
        return f"{' and '.join(missing)} not found: apt-get install etcd-server iproute2"
    if network and os.geteuid() != 0:
        return "network namespaces need root"
    if network and subprocess.run(["ip", "netns", "add", prefix() + "try"], capture_output=True).returncode != 0:
        return "no network namespace can be made here"
    if network:
        ip("netns", "del", prefix() + "try")
    return None


def need(network=False):
    """The end of a test, as skipped, that cannot run here."""
    wrong = lacking(network)
    if wrong:
        raise unittest.SkipTest(wrong)


def need_etcd():
    """The end of the program, as CTest's skipped, that cannot run here."""
    wrong = lacking(network=False)
    if wrong:
        print(f"skipped: {wrong}")
        sys.exit(SKIPPED)


def make_model(path, *options):
    subprocess.run([sys.executable, TOOLS / "make_model.py", path, *options], check=True)
    return str(path)


def certificate_flags(folder, *names, make=True):
    """The flags of a certificate of these names, of the authority in the folder; make: anew."""
    if make:
        subprocess.run([TOOLS / "cluster_certificates.sh", folder, ",".join(names)], check=True)
    return ["--cluster-ssl-certfile", f"{folder}/{names[0]}.pem", "--cluster-ssl-keyfile",
            f"{folder}/{names[0]}-key.pem", "--cluster-ssl-ca-certs", f"{folder}/ca.pem"]


# ---------------------------------------------------------------- hosts


def prefix():
    return f"kvasir-{os.getpid()}-"


def ip(*arguments):
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


def namespaces():
    return [line.split()[0] for line in ip("netns", "list").splitlines() if line.strip()]


class Network:
    """Hosts at one switch. Their links can be cut, and one can be made deaf to another."""

    def __init__(self):
        for name in namespaces():  # of runs that were killed
            found = re.match(r"kvasir-(\d+)-", name)
            if found and not os.path.exists(f"/proc/{found.group(1)}"):
                ip("netns", "del", name)
        self.hosts = {}
        self.made = []
        self.switch = self._namespace("switch")
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")

    def _namespace(self, name):
        ip("netns", "add", prefix() + name)
        self.made.append(prefix() + name)
        ip("-n", prefix() + name, "link", "set", "lo", "up")
        return prefix() + name

    def add(self, host):
        if host in self.hosts:
            return
        number = len(self.hosts) + 1
        namespace = self._namespace(host)
        port = f"port{number}"
        ip("-n", self.switch, "link", "add", port, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        ip("-n", self.switch, "link", "set", port, "master", "bridge", "up")
        ip("-n", namespace, "addr", "add", f"10.77.0.{number}/24", "dev", "eth0")
        ip("-n", namespace, "link", "set", "eth0", "up")
        # The kernel tells that the link runs up to a second later, and programs leave out devices that do not run.
        give_up = time.monotonic() + 30
        while "state UP" not in ip("-n", namespace, "link", "show", "eth0"):
            if time.monotonic() > give_up:
                raise RuntimeError(f"the link of {host} does not come up")
            time.sleep(0.02)
        self.hosts[host] = (namespace, port, f"10.77.0.{number}")

    def namespace(self, host):
        return self.hosts[host][0]

    def address(self, host):
        return self.hosts[host][2]

    def cut(self, host):
        ip("-n", self.switch, "link", "set", self.hosts[host][1], "down")

    def mend(self, host):
        ip("-n", self.switch, "link", "set", self.hosts[host][1], "up")

    def part(self, one, other):
        """Neither reaches the other; both reach all the rest."""
        for a, b in ((one, other), (other, one)):
            ip("-n", self.namespace(a), "route", "replace", "blackhole", self.address(b) + "/32")

    def join(self, one, other):
        for a, b in ((one, other), (other, one)):
            ip("-n", self.namespace(a), "route", "del", "blackhole", self.address(b) + "/32")

    def close(self):
        for name in self.made:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)


def connect_in(namespace, address, timeout):
    """A connection from within a namespace, whatever thread this is."""
    if namespace is None:
        return socket.create_connection(address, timeout)
    with open("/proc/thread-self/ns/net") as own, open(f"/run/netns/{namespace}") as other:
        for_me = lambda file: LIBC.setns(file.fileno(), CLONE_NEWNET)  # noqa: E731
        if for_me(other) != 0:
            raise OSError(ctypes.get_errno(), "setns")
        try:
            made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        finally:
            for_me(own)
    made.settimeout(timeout)
    try:
        made.connect(address)
    except OSError:
        made.close()
        raise
    return made


class Connection(http.client.HTTPConnection):
    def __init__(self, namespace, port, timeout, tls=None):
        super().__init__("127.0.0.1", port, timeout=timeout)
        self.namespace, self.tls = namespace, tls

    def connect(self):
        self.sock = connect_in(self.namespace, (self.host, self.port), self.timeout)
        if self.tls:
            self.sock = self.tls.wrap_socket(self.sock, server_hostname=self.host)


def dies_with_me():
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def on_host(network, host):
    return ["ip", "netns", "exec", network.namespace(host)] if network else []


def free_ports(count):
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [s.getsockname()[1] for s in taken]
    for s in taken:
        s.close()
    return ports


# ---------------------------------------------------------------- processes


class Etcd:
    """tls: with a certificate of the authority in the directory, and for clients that have one."""

    def __init__(self, network, directory, tls=True):
        self.network, self.directory = network, directory
        if network:
            network.add("etcd")
        self.namespace = network.namespace("etcd") if network else None
        self.host = network.address("etcd") if network else "127.0.0.1"
        self.port, self.peer_port = (2379, 2380) if network else free_ports(2)
        self.tls = None
        if tls:
            certificate_flags(directory, "etcd", "127.0.0.1", self.host)
            self.tls = ssl.create_default_context(cafile=directory / "ca.pem")
            self.tls.load_cert_chain(directory / "etcd.pem", directory / "etcd-key.pem")
        self.process = None
        self.start()

    def start(self):
        listen = "0.0.0.0" if self.network else "127.0.0.1"
        peer = f"http://127.0.0.1:{self.peer_port}"
        scheme = "https" if self.tls else "http"
        certificates = ["--client-cert-auth", "--trusted-ca-file", self.directory / "ca.pem", "--cert-file",
                        self.directory / "etcd.pem", "--key-file", self.directory / "etcd-key.pem"] if self.tls else []
        with open(self.directory / "etcd.log", "a") as log:
            self.process = subprocess.Popen(
                [*on_host(self.network, "etcd"), "etcd", "--data-dir", self.directory / "etcd",
                 "--listen-client-urls", f"{scheme}://{listen}:{self.port}",
                 "--advertise-client-urls", f"{scheme}://{self.host}:{self.port}", *certificates,
                 "--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer,
                 "--initial-cluster", f"default={peer}"],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, preexec_fn=dies_with_me)
        end = time.monotonic() + 30
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError("etcd did not start: " + (self.directory / "etcd.log").read_text()[-2000:])
            time.sleep(0.05)

    def answers(self):
        try:
            return self.range("kvasir/") is not None
        except OSError:
            return False

    def range(self, start, end=None):
        """{key: value} of a range of keys; of a prefix, without `end`."""
        end = end or start[:-1] + chr(ord(start[-1]) + 1)
        connection = Connection(self.namespace, self.port, 10, self.tls)
        try:
            code = lambda text: base64.b64encode(text.encode()).decode()  # noqa: E731
            connection.request("POST", "/v3/kv/range", json.dumps({"key": code(start), "range_end": code(end)}))
            response = connection.getresponse()
            body = response.read()
            if response.status != 200:
                raise OSError(f"etcd: {response.status} {body}")
            return {base64.b64decode(kv["key"]).decode(): base64.b64decode(kv.get("value", "")).decode()
                    for kv in json.loads(body).get("kvs", [])}
        except http.client.HTTPException as error:
            raise OSError(f"etcd: {error!r}") from error
        finally:
            connection.close()

    def kill(self):
        self.process.kill()
        self.process.wait()

    @property
    def url(self):
        return f"etcd://{self.host}:{self.port}/{NAME}"


class Instance(Server):
    """`kvasir serve` as a member of a cluster, or alone. started: how often; killed: it is not there by intent."""

    def __init__(self, name, arguments, network=None):
        self.name, self.arguments, self.network = name, arguments, network
        self.started = 0
        self.killed = True
        self.left = 0.0  # when it was told to
        self.past_log = []

    def begin(self):
        self.past_log += getattr(self, "log", [])
        self.start([*on_host(self.network, self.name), binary(), "serve", *self.arguments, "--port", "0"],
                   env=clean_environment(), stdin=subprocess.DEVNULL, preexec_fn=dies_with_me)

    def wait_ready(self, seconds=60):
        super().wait_ready(seconds)
        self.started += 1
        self.killed, self.left = False, 0.0

    def connection(self, timeout):
        return Connection(self.network.namespace(self.name) if self.network else None, self.port, timeout)

    def kill(self):
        self.killed = True
        self.process.kill()
        self.wait()

    def leave(self):
        self.left = time.monotonic()
        self.killed = True
        self.signal(signal.SIGTERM)

    def terminate(self):
        """SIGTERM; its exit code."""
        self.leave()
        return self.wait(90)

    def stop_for_now(self):
        self.signal(signal.SIGSTOP)

    def go_on(self):
        self.signal(signal.SIGCONT)

    def whole_log(self):
        return self.past_log + list(self.log)


class Cluster:
    """etcd and `count` instances, n1 and so on. hosts: each has a network namespace of its own."""

    def __init__(self, model, count, *flags, memory="1MiB", hosts=False, policy="distkv", threads=1):
        need(network=hosts)
        # In memory, where there is: etcd waits for the disk at each write.
        memory_files = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        for left in pathlib.Path(memory_files or tempfile.gettempdir()).glob("kvasir-[0-9]*-etcd-*"):  # by runs killed
            if not os.path.exists(f"/proc/{left.name.split('-')[1]}"):
                shutil.rmtree(left, ignore_errors=True)
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix=prefix() + "etcd-", dir=memory_files))
        self.instances = {}
        self.network = self.etcd = self.gmanager = None
        self.flags = ["-t", str(threads), "--kv-cache-memory-bytes", memory, "--scheduling-policy", policy, *flags]
        self.model = model
        self.caches = "--no-enable-prefix-caching" not in flags
        try:
            self.network = Network() if hosts else None
            self.etcd = Etcd(self.network, self.directory)
            self.add(*(f"n{i + 1}" for i in range(count)))
        except BaseException:
            self.close()
            raise

    def member_flags(self, name):
        if self.network:
            self.network.add(name)
        host = self.network.address(name) if self.network else "127.0.0.1"
        return ["--cluster", self.etcd.url, "--cluster-name", name, "--cluster-listen", f"{host}:0",
                *certificate_flags(self.directory, name)]

    def add(self, *names):
        """Starts instances, or starts them again; they are members when it returns."""
        for name in names:
            if name not in self.instances:
                arguments = [self.model, *self.member_flags(name), *self.flags]
                self.instances[name] = Instance(name, arguments, self.network)
            self.instances[name].begin()
        for name in names:
            self.instances[name].wait_ready()
        if self.instances:
            self.wait_members()

    def add_gmanager(self, name="gm"):
        arguments = ["gmanager", *self.member_flags(name), *transport_flags(self.flags)]
        self.gmanager = subprocess.Popen([*on_host(self.network, name), binary(), *arguments],
                                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                         env=clean_environment(), stdin=subprocess.DEVNULL, preexec_fn=dies_with_me)

    def __getitem__(self, name):
        return self.instances[name]

    def alive(self):
        return [i for i in self.instances.values() if not i.killed]

    # ---- what they say of themselves

    def statuses(self):
        """Of those that answer."""
        out = {}
        for instance in self.alive():
            try:
                code, _, raw = instance.ask("GET", "/cluster/status", timeout=5)
            except (OSError, http.client.HTTPException):
                continue
            if code == 200:
                out[instance.name] = json.loads(raw)
        return out

    def leader(self):
        """Its name, as etcd has it."""
        return next(iter(self.etcd.range(f"kvasir/{NAME}/leader").values()), "")

    def wait(self, what, seconds, wanted):
        """Until `what()` is None; else it is what is said to be wrong."""
        end = time.monotonic() + seconds
        time.sleep(0.25)  # a status may be so old
        while True:
            try:
                wrong = what()
            except OSError as error:
                wrong = repr(error)
            if wrong is None:
                return
            if self.crashed():
                raise AssertionError("\n".join(self.crashed()))
            if time.monotonic() > end:
                raise AssertionError(f"{wanted}: {wrong} after {seconds} s")
            time.sleep(0.1)

    def wait_members(self, seconds=60):
        self.wait(lambda: self.strangers(), seconds, "all know each other")

    def strangers(self):
        statuses = self.statuses()
        names = {i.name for i in self.alive()}
        for name in names:
            if name not in statuses or statuses[name]["epoch"] == 0:
                return f"{name} is no member"
            known = {link["peer"]: link["epoch"] for link in statuses[name]["links"]}
            for other in names - {name}:
                if known.get(other) != statuses.get(other, {}).get("epoch", 0):
                    return f"{name} does not know {other}"
        leaders = {statuses[name]["leader"] for name in names}
        return None if len(leaders) == 1 and "" not in leaders else f"leaders: {leaders}"

    def disagreement(self):
        """What is wrong with the books of instances that have nothing to do, or None."""
        wrong = self.strangers()
        if wrong:
            return wrong
        statuses = self.statuses()
        if self.caches:
            return self.words_of_loans()
        for name, s in statuses.items():
            if s["free_cells"] != s["total_cells"]:
                return f"{name} has {s['free_cells']} of {s['total_cells']} cells free; {self.held()}"
            if s["settling"]:
                return f"{name} settles debts"
            for link in s["links"]:
                if link["lent_cells"] or link["borrowed_cells"]:
                    return self.held()
        for line in next((s["ledger"] for s in statuses.values() if "ledger" in s), []):
            if line["lent"] or line["owed"] or line["free"] != line["total"]:
                return f"ledger: {line}"
        if not any("ledger" in s for s in statuses.values()):
            return "no instance has a ledger"
        return None

    def words_of_loans(self):
        """As disagreement(), where histories are kept for reuse, at peers too: the instances that disagree about what is lent."""
        wrong = {pair: words for pair, words in self.debts().items() if words[0] != words[1]}
        if wrong:
            return f"{wrong}; {self.held()}"
        return None

    def held(self):
        states = ("borrowed", "recalled", "lent")
        engines = {i.name: [int(i.metric("peer_cells", state=state)) for state in states] for i in self.alive()}
        return f"debts {self.debts()}; {', '.join(states)} by the engines: {engines}"

    def debts(self):
        """{(creditor, debtor): (cells by the creditor's word, by the debtor's)}"""
        out = {}
        for name, s in self.statuses().items():
            for link in s["links"]:
                if link["lent_cells"]:
                    pair = out.setdefault((name, link["peer"]), [0, 0])
                    pair[0] = link["lent_cells"]
                if link["borrowed_cells"]:
                    pair = out.setdefault((link["peer"], name), [0, 0])
                    pair[1] = link["borrowed_cells"]
        return out

    def wait_quiet(self, seconds=60):
        for instance in self.alive():
            instance.wait_metric("num_requests_running", 0, seconds)
        self.wait(self.disagreement, seconds, "the books agree")

    def total(self, metric):
        return sum(i.metric(metric) for i in self.alive())

    def bad_lines(self):
        """Lines of the logs that no fault explains."""
        bad = re.compile(r"(?i) (fatal|error) |check failed|leak|sanitizer")
        no_memory = "the scheduling policy found no way to go on"  # the request is told, and asks again
        return [f"{i.name}: {line}" for i in self.instances.values() for line in i.whole_log()
                if bad.search(line) and no_memory not in line]

    def crashed(self):
        return [f"{i.name}: {i.process.returncode}\n" + "".join(i.log[-20:]) for i in self.instances.values()
                if not i.killed and i.process.poll() is not None]

    # ---- the end

    def close(self):
        print("\n".join(self.crashed()), end="")
        for instance in self.instances.values():
            process = getattr(instance, "process", None)
            instance.killed = True
            if process and process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.kill()
            if process:
                instance.wait()
        for process in (self.gmanager, self.etcd.process if self.etcd else None):
            if process and process.poll() is None:
                process.kill()
            if process:
                process.wait()
        if self.network:
            self.network.close()
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def transport_flags(flags):
    """Those of `flags` that every member takes."""
    out = []
    for flag, value in zip(flags, flags[1:]):
        if flag in ("--cluster-ttl",):
            out += [flag, value]
    return out


# ---------------------------------------------------------------- requests


def prompt_of(tokens, seed=0, vocab=500):
    """Token ids; no two seeds share a prefix."""
    return [3 + (i * 7919 + seed * 104729 + i * i * 31 + seed * i) % (vocab - 3) for i in range(tokens)]


def body(prompt, max_tokens):
    return {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "logprobs": 3}


def answer_of(status, raw):
    """What an answer says: its text, tokens and log-probabilities. Those are printed with as many digits as tell
    one float from all others, so equal answers have equal bits."""
    if status != 200:
        raise RuntimeError(f"{status} {raw[:300]!r}")
    choice = json.loads(raw)["choices"][0]
    if choice["finish_reason"] != "length":
        raise RuntimeError(f"it ended by {choice['finish_reason']}")
    return choice["text"], json.dumps(choice["logprobs"])


def ask(instance, prompt, max_tokens, timeout=300):
    status, _, raw = instance.ask("POST", "/v1/completions", body(prompt, max_tokens), timeout=timeout)
    return answer_of(status, raw)


def ask_all(asks, timeout=300):
    """Answers to (instance, prompt, max_tokens), asked at once; what failed is its exception."""
    answers = [None] * len(asks)

    def one(i):
        try:
            answers[i] = ask(*asks[i], timeout=timeout)
        except Exception as error:  # for the assertion that follows
            answers[i] = error

    threads = [threading.Thread(target=one, args=(i,)) for i in range(len(asks))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return answers


def alone(model, memory, *flags):
    """One large instance without a cluster, for reference. As a context manager."""
    instance = Instance("alone", [model, "-t", "1", "--kv-cache-memory-bytes", memory, *flags])
    instance.begin()
    instance.wait_ready()
    return instance


class Load:
    """Asks each instance the same questions again and again, and compares the answers, until stop().

    What fails is excused if the instance was killed meanwhile. That there is no memory now is no answer, but may be
    said: it is asked again, and counted.
    """

    def __init__(self, cluster, questions, answers, patience=240, pause=0.03):
        """questions: {instance: [(prompt, max_tokens)]}; answers: likewise; pause: seconds between questions, without which
        the answers take all of the machine's time."""
        self.cluster, self.patience, self.pause = cluster, patience, pause
        self.good = {name: 0 for name in questions}
        self.wrong, self.excused, self.refused = [], 0, 0
        self.begun_after = {name: 0.0 for name in questions}  # when the last good answer was asked for
        self.stopping = False
        self.threads = [threading.Thread(target=self._ask, args=(name, questions[name], answers[name]), daemon=True)
                        for name in questions]
        for thread in self.threads:
            thread.start()

    def _ask(self, name, questions, answers):
        i = 0
        while not self.stopping:
            if name not in self.cluster.instances or self.cluster[name].killed:
                time.sleep(0.05)
                continue
            done = self._one(self.cluster[name], *questions[i % len(questions)], answers[i % len(questions)])
            i += 1 if done else 0
            time.sleep(self.pause)

    def _one(self, instance, prompt, max_tokens, want):
        begun, life = time.monotonic(), instance.started
        while True:
            asked = time.monotonic()
            try:
                got = ask(instance, prompt, max_tokens, self.patience)
            except (RuntimeError, OSError, http.client.HTTPException, ValueError) as error:
                waits = time.monotonic() - begun < self.patience
                if (instance.killed or instance.started != life) and not 0 < asked < instance.left - 1:
                    self.excused += 1
                    return False
                if isinstance(error, RuntimeError) and "no memory" in str(error) and waits:
                    self.refused += 1
                    time.sleep(0.2)
                    if self.stopping:
                        return False
                    continue
                self.wrong.append(f"{instance.name}, {len(prompt)} tokens, after {time.monotonic() - begun:.1f} s: "
                                  f"{error!r}")
                time.sleep(1)
                return True
            if got != want:
                self.wrong.append(f"{instance.name}, {len(prompt)} tokens: another answer: {got[0]!r}, not {want[0]!r}")
            else:
                self.good[instance.name] += 1
                self.begun_after[instance.name] = asked
            return True

    def wait_answers(self, names=None, seconds=180):
        """Until each instance, or each of those, has given a right answer to what was asked after this."""
        now = time.monotonic()
        names = names or [i.name for i in self.cluster.alive() if i.name in self.good]
        while any(self.begun_after[name] < now for name in names) and not self.wrong:
            if time.monotonic() > now + seconds:
                late = [name for name in names if self.begun_after[name] < now]
                raise AssertionError(f"no answer of {late} in {seconds} s; refused {self.refused}")
            time.sleep(0.05)

    def stop(self):
        self.stopping = True
        end = time.monotonic() + self.patience + 10
        for thread in self.threads:
            thread.join(max(0.0, end - time.monotonic()))
        if any(thread.is_alive() for thread in self.threads):
            raise AssertionError("requests never ended")

    def __str__(self):
        return (f"{sum(self.good.values())} right, {len(self.wrong)} wrong, {self.refused} times no memory, "
                f"{self.excused} lost with their instance")
