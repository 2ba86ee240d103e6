#!/usr/bin/env python3
"""Whether a server can be trusted: ten times its capacity, with faults, for minutes. One command:

    soak.py [--minutes 10] [--kvasir build/release/kvasir] [--model M.gguf] [--json FILE]

It starts a server with an admin port and measures what follows. The server has all cores but the last one; the clients have
that, since what they compute is none of its work (--share-cores: all have all).

1. unloaded: the answer of each of its prompts at temperature 0, one after the other.
2. capacity: requests per second of as many clients as the server runs requests at once, each with one request after the other.
   The bounds of what follows are multiples of what these requests saw, so that a server at its capacity meets them.
3. overload: ten times that, as a Poisson process; half of the requests have a salt, so that no cached prefix helps. Beside
   them clients that leave in the middle of streams, others that read a byte per second, half-open connections, bad requests
   of twenty-two kinds, and ten thousand sockets that say nothing. Every second the memory of the server is read; twenty times
   a second a process of its own asks the admin port over new connections, and a program that only answers, for comparison.
4. afterwards: what is still open or held once all clients are gone; the capacity again; SIGTERM.

It prints a table of criteria and writes all that was measured to --json. Exit code 1: a criterion fails. The admin port's
times, the goodput and the memory's slope also measure what else the machine does; the table says how much that was.
docs/operating.md has results.
"""

import argparse
import contextlib
import json
import math
import multiprocessing
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import soak_clients as clients

ROOT = Path(__file__).resolve().parent.parent
WARM_SECONDS = 5
SETTLE_SECONDS = 90  # a connection that has vanished lasts as long as --timeout-keep-alive
MOST_ADMIN_MS = 100
LEAST_GOODPUT = 0.9
MOST_GROWTH_PER_HOUR = 0.01
STEADY_SHARE = 0.8  # of the overload: the memory's slope is taken over its end
TICKS = os.sysconf("SC_CLK_TCK")


# --- Arithmetic -------------------------------------------------------------------------------------------------------


def quantile(values, q):
    """The least value that is not below a share q of them; NaN of none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, math.ceil(q * len(ordered)) - 1))] if ordered else math.nan


def line_through(points):
    """(slope, its standard error) by least squares through (x, y)."""
    n = len(points)
    mean_x, mean_y = statistics.fmean(x for x, _ in points), statistics.fmean(y for _, y in points)
    spread = sum((x - mean_x) ** 2 for x, _ in points)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in points) / spread
    left = sum((y - mean_y - slope * (x - mean_x)) ** 2 for x, y in points)
    return slope, math.sqrt(left / (n - 2) / spread)


def growth_per_hour(samples, block_seconds):
    """(growth of (second, bytes) per hour as a share of their mean, its standard error): the line goes through means of
    blocks, since neighbouring seconds tell the same. NaN with fewer than three blocks."""
    blocks = {}
    for second, size in samples:
        blocks.setdefault(int(second // block_seconds), []).append((second, size))
    means = [tuple(map(statistics.fmean, zip(*block))) for block in blocks.values()]
    if len(means) < 3:
        return math.nan, math.nan
    slope, error = line_through(means)
    mean = statistics.fmean(size for _, size in samples)
    return 3600 * slope / mean, 3600 * error / mean


def goodput(seen, skip=0):
    """Requests per second that met their bounds, without the first `skip` seconds."""
    whole = int(seen["seconds"])
    return sum(n for second, n in seen["good_by_second"].items() if skip <= second < whole) / max(1, whole - skip)


def bounds_of(seen):
    """Milliseconds for the first token, and for each further one in the mean: what 95 of 100 requests saw at the capacity,
    doubled, and for the first token a second at least, as a chat needs it."""
    return {"ttft_ms": math.ceil(max(1000, 2 * quantile(seen["ttft_ms"], 0.95))),
            "tpot_ms": math.ceil(2 * quantile(seen["tpot_ms"], 0.95))}


def criteria(m):
    """(what, whether it holds, what was seen, whether other programs on the machine can change it) of all that was measured."""
    load, watched, faults = m["overload"], m["watched"], m["faults"]
    admin = watched["admin_ms"]
    seen = [m["before"], load, m["after"]]
    wrong, broken = sum(len(s["wrong"]) for s in seen), sum(len(s["broken"]) for s in seen)
    errors = {status: n for s in seen for status, n in s["statuses"].items() if status not in (200, 429, 503)}
    peak = max(m["before_goodput"], m["after_goodput"])
    growth, error = m["growth_per_hour"]
    leaks = {key: [m["rest_before"][key], value] for key, value in m["rest_after"].items() if value > m["rest_before"][key]}
    return [
        ("the process lives, and ends by SIGTERM with code 0", m["exit_code"] == 0, f"code {m['exit_code']}", False),
        ("each answer that completed is right, byte for byte", wrong == 0 and broken == 0 and load["right"] > 0,
         f"{sum(s['right'] for s in seen):,} right, {wrong} wrong, {broken} ended with an error", False),
        ("further answers are refusals: 503 or 429", not errors, f"{load['statuses'].get(503, 0) + load['statuses'].get(429, 0):,}"
         f" refusals, others: {errors or 'none'}", False),
        ("each bad request gets its status", not faults["wrong_statuses"],
         f"{faults['seen'].get('bad requests', 0):,} sent, wrong: {faults['wrong_statuses'] or 'none'}", False),
        ("nothing is left behind: descriptors, threads, connections, requests, KV blocks", not leaks,
         ", ".join(f"{key} {value:g}" for key, value in m["rest_after"].items()) + (f"; before: {leaks}" if leaks else ""), False),
        (f"the admin port answers within {MOST_ADMIN_MS} ms", not watched["failed"] and max(admin) <= MOST_ADMIN_MS,
         f"{len(admin):,} times: p50 {quantile(admin, .5):.1f}, p99 {quantile(admin, .99):.1f}, max {max(admin):.1f} ms"
         f" ({len(watched['failed'])} failed)", True),
        (f"goodput is at least {LEAST_GOODPUT:.0%} of its peak", 0 < LEAST_GOODPUT * peak <= m["overload_goodput"],
         f"{m['overload_goodput']:.2f} of {peak:.2f} requests/s" + (f": {m['overload_goodput'] / peak:.1%}" if peak > 0 else ""), True),
        (f"its own memory grows by less than {MOST_GROWTH_PER_HOUR:.0%} per hour", growth < MOST_GROWTH_PER_HOUR,
         f"{growth:+.2%} ± {error:.2%} per hour of {m['own_mib'][1]:.1f} MiB", True),
    ]


# --- The machine and the server ---------------------------------------------------------------------------------------


def cpu_of(pid):
    """Seconds of CPU of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def cpu_of_machine():
    """Seconds in which some core worked."""
    user, nice, system, _, _, irq, softirq = map(int, Path("/proc/stat").read_text(encoding="ascii").split()[1:8])
    return (user + nice + system + irq + softirq) / TICKS


def memory_of(pid):
    """(bytes of the process's own pages, those of files that it maps, which the kernel takes and gives as it likes)."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return tuple(1024 * int(re.search(rf"^Rss{kind}:\s+(\d+) kB", status, re.MULTILINE)[1]) for kind in ("Anon", "File"))


def divided_cores(share=False):
    """(cores of the server, those of the clients); with `share`, or where there is only one, each has all."""
    cores = sorted(os.sched_getaffinity(0))
    return (cores[:-1], cores[-1:]) if len(cores) > 1 and not share else (cores, cores)


class Server:
    """`kvasir serve` with an admin port; ready when the constructor returns."""

    def __init__(self, options, log):
        self.log = log
        environment = {k: v for k, v in os.environ.items() if not k.startswith("KVASIR_")}
        with open(log, "w", encoding="utf-8") as out:
            self.process = subprocess.Popen(
                [options.kvasir, "serve", options.model, "--port", "0", "--admin-port", "0", *options.serve_flags],
                stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, env=environment,
                preexec_fn=lambda: os.sched_setaffinity(0, options.server_cores))
        self.pid = self.process.pid
        end = time.monotonic() + 120
        while "\ntry: curl " not in self.said():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                sys.exit("the server did not start:\n" + self.said())
            time.sleep(0.1)
        self.port = int(re.search(r"^listening on http://[^ ]*:(\d+)", self.said(), re.MULTILINE)[1])
        self.admin_port = int(re.search(r"^admin port: http://[^ ]*:(\d+)", self.said(), re.MULTILINE)[1])

    def said(self):
        return Path(self.log).read_text(encoding="utf-8", errors="replace")

    def metrics(self):
        """{name{labels without the model}: value} of those that a leak would show in."""
        found = {}
        for name, labels, value in re.findall(r"^kvasir:(\w+)\{([^}]*)\} (\S+)$", clients.ask(self.admin_port, "/metrics")[1],
                                              re.MULTILINE):
            found[name + "".join(re.findall(r',(?:state|status)="(\w+)"', labels))] = float(value)
        return found

    def at_rest(self):
        """What must be as before once nobody asks any more."""
        metrics = self.metrics()
        names = {"http_connections": "connections", "num_requests_running": "running", "num_requests_waiting": "waiting",
                 "kv_blocksused": "KV blocks in use", "http_body_bytes": "bytes of bodies"}
        return {"descriptors": len(os.listdir(f"/proc/{self.pid}/fd")), "threads": len(os.listdir(f"/proc/{self.pid}/task")),
                **{title: metrics[name] for name, title in names.items()}}

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None


class Client:
    """A process of soak_clients.py."""

    def __init__(self, function, *arguments):
        self.name = function.__name__
        self.pipe, theirs = multiprocessing.Pipe()
        self.process = multiprocessing.Process(target=clients.run_client, args=(function, theirs, *arguments), daemon=True)
        self.process.start()
        theirs.close()

    def stop(self):
        """What it has seen."""
        self.pipe.send("stop")
        if not self.pipe.poll(clients.LONGEST_SECONDS + 60):
            sys.exit(f"{self.name} of the soak does not end")
        try:
            seen = self.pipe.recv()
            self.cpu_seconds = sum(self.pipe.recv())
        except EOFError:
            sys.exit("a client of the soak has ended too early: its error is above")
        self.process.join()
        return seen


# --- The phases -------------------------------------------------------------------------------------------------------


def learn_answers(server, made):
    """Each prompt alone; streamed and not, it must give the same."""
    import http.client
    connection = http.client.HTTPConnection(clients.HOST, server.port, timeout=120)
    for prompt in made:
        answers = []
        for stream in (True, False):
            connection.request("POST", prompt.path, prompt.request(stream).partition(b"\r\n\r\n")[2],
                               {"Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
            if answer.status != 200:
                sys.exit(f"an unloaded request got {answer.status}: {body[:300]!r}")
            # http.client has joined the chunks; read_answer() takes them as they came.
            raw = b"%x\r\n%b\r\n" % (len(body), body) if stream else body
            answers.append(clients.read_answer(raw, stream))
        if answers[0] != answers[1]:
            sys.exit(f"streamed and unstreamed answers differ: {answers}")
        prompt.text, prompt.tokens, _ = answers[0]
    connection.close()


def closed(server, made, bounds, options, seconds):
    """A closed loop of as many clients as requests may run, and the server's share of the machine meanwhile. A slow machine
    takes longer than `seconds`: half as many streams have ended, too."""
    client = Client(clients.closed_loop, server.port, made, bounds, 3, options.max_num_seqs)
    began, cpu, machine = time.monotonic(), cpu_of(server.pid), cpu_of_machine()
    time.sleep(seconds)
    seen = client.stop()
    if not seen["ttft_ms"]:
        sys.exit(f"no stream has ended in {seen['seconds']:.0f} s: {dict(seen['statuses'])}\n{server.said()[-2000:]}")
    lasted, cpu, machine = time.monotonic() - began, cpu_of(server.pid) - cpu, cpu_of_machine() - machine
    return seen, {"server": cpu / lasted, "clients": client.cpu_seconds / lasted,
                  "others": (machine - cpu - client.cpu_seconds) / lasted}


def overload(server, made, bounds, rate, options):
    """Everything at once; fills in the parts `overload`, `watched`, `faults`, `idle` and the samples of the memory."""
    answering = Client(clients.control)
    control_port = answering.pipe.recv()
    started = [
        ("overload", Client(clients.open_loop, server.port, made, bounds, 7, rate, 0.05)),
        ("faults", Client(clients.faults, server.port, bounds, 9, options.slow_readers, options.half_open)),
        ("idle", Client(clients.idle, server.port, options.idle)),
        ("watched", Client(clients.watch, server.admin_port, control_port))]
    began, cpu, machine = time.monotonic(), cpu_of(server.pid), cpu_of_machine()
    samples, of_files, most_connections, next_report = [], [], 0, min(30, 30 * options.minutes)
    while (now := time.monotonic() - began) < 60 * options.minutes:
        if server.process.poll() is not None:
            sys.exit(f"the server has ended with code {server.process.returncode}:\n{server.said()[-2000:]}")
        own, files = memory_of(server.pid)
        samples.append((now, own))
        of_files.append((now, files))
        if now >= next_report:
            next_report += 30
            seen = server.metrics()
            most_connections = max(most_connections, seen["http_connections"])
            print(f"{now:4.0f} s: {own / 2**20:.1f} MiB, {seen['http_connections']:.0f} connections, "
                  f"{seen['num_requests_running']:.0f} run, {seen['num_requests_waiting']:.0f} wait", flush=True)
        time.sleep(max(0, int(now) + 1 - (time.monotonic() - began)))
    lasted, cpu, machine = time.monotonic() - began, cpu_of(server.pid) - cpu, cpu_of_machine() - machine
    result = {name: client.stop() for name, client in started}
    answering.stop()
    own = sum(client.cpu_seconds for _, client in [*started, ("", answering)])
    result["overload_cores"] = {"server": cpu / lasted, "clients": own / lasted, "others": (machine - cpu - own) / lasted}
    result["clients_cpu_s"] = {name: client.cpu_seconds for name, client in started}
    result["own_bytes"], result["file_bytes"] = samples, of_files
    result["most_connections"] = most_connections
    return result


def warm_up(server):
    """One of each bad request: threads that begin with the first work of a kind are no leak."""
    async def all_of_them():
        loop = clients.asyncio.get_running_loop()
        return [(case, await clients.send_bad(server.port, case, loop)) for case in clients.bad_requests()]

    for case, status in clients.asyncio.run(all_of_them()):
        if status != case[2]:
            sys.exit(f"{case[0]}: {status}, not {case[2]}")


def settled(server, before):
    """At rest, as soon as nothing is above `before`, or after SETTLE_SECONDS."""
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        now = server.at_rest()
        if all(value <= before[key] for key, value in now.items()) or time.monotonic() > end:
            return now
        time.sleep(0.5)


def measure(options):
    made = clients.prompts(options.prompts)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(options, f"{folder}/log")
        with contextlib.ExitStack() as cleanup:
            cleanup.callback(server.process.kill)
            m = {"machine": machine(), "flags": options.serve_flags, "server_cores": options.server_cores, "client_cores": options.client_cores}
            learn_answers(server, made)
            warm_up(server)
            closed(server, made, None, options, min(WARM_SECONDS, options.capacity_seconds))
            before, _ = closed(server, made, None, options, options.capacity_seconds)
            m["capacity"] = before["offered"] / before["seconds"]
            m["bounds"] = bounds_of(before)
            # The same again, now with bounds: what meets them at the capacity is the peak.
            m["before"], m["before_cores"] = closed(server, made, m["bounds"], options, options.capacity_seconds)
            m["before_goodput"] = goodput(m["before"], 1)
            print(f"capacity: {m['capacity']:.1f} requests/s; bounds: {m['bounds']['ttft_ms']} ms to the first token, "
                  f"{m['bounds']['tpot_ms']} ms for each further one; goodput {m['before_goodput']:.2f} requests/s", flush=True)
            time.sleep(1)
            m["rest_before"] = server.at_rest()
            generated = server.metrics()["generation_tokens_total"]
            m.update(overload(server, made, m["bounds"], options.overload * m["capacity"], options))
            m["overload_goodput"] = goodput(m["overload"], min(10, int(6 * options.minutes)))
            m["rest_after"] = settled(server, m["rest_before"])
            m["overload_tokens"] = server.metrics()["generation_tokens_total"] - generated
            m["after"], m["after_cores"] = closed(server, made, m["bounds"], options, options.capacity_seconds)
            m["after_goodput"] = goodput(m["after"], 1)
            m["metrics"] = server.metrics()
            m["exit_code"] = server.stop()
            m["log"] = server.said()[-4000:]
    begin = (1 - STEADY_SHARE) * 60 * options.minutes
    for samples, growth, sizes in (("own_bytes", "growth_per_hour", "own_mib"), ("file_bytes", "file_growth_per_hour", "file_mib")):
        m[growth] = growth_per_hour([s for s in m[samples] if s[0] >= begin], 20)
        m[sizes] = [size / 2**20 for size in (m[samples][0][1], m[samples][-1][1], max(size for _, size in m[samples]))]
    return m


def machine():
    cpu = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return f"{cpu[1] if cpu else 'unknown CPU'}, {os.cpu_count()} cores"


# --- What is said -----------------------------------------------------------------------------------------------------


def milliseconds(values):
    return f"{quantile(values, .5):.1f} / {quantile(values, .99):.1f} / {max(values, default=math.nan):.1f}"


def cores(share):
    return f"server {share['server']:.2f}, clients {share['clients']:.2f}, others {share['others']:.2f}"


def report(m):
    """Two tables in Markdown."""
    load, watched, metrics = m["overload"], m["watched"], m["metrics"]
    rows = [
        ("machine", m["machine"]),
        ("cores of the server, of the clients", f"{m['server_cores']}, {m['client_cores']}"),
        ("capacity", f"{m['capacity']:.1f} requests/s"),
        ("bounds", f"first token {m['bounds']['ttft_ms']} ms, mean of the further ones {m['bounds']['tpot_ms']} ms"),
        ("goodput at the capacity before, in the overload, at the capacity after",
         f"{m['before_goodput']:.2f}, {m['overload_goodput']:.2f}, {m['after_goodput']:.2f} requests/s"),
        ("offered", f"{load['offered'] / load['seconds']:.0f} requests/s for {load['seconds']:.0f} s, "
                    f"at most {load['most_in_flight']} at once"),
        ("answered", ", ".join(f"{status}: {n:,}" for status, n in sorted(load["statuses"].items())) +
         f"; the client left: {load['left']:,}; no answer: {load['unanswered']:,}"),
        ("tokens generated in the overload, and of right answers", f"{m['overload_tokens']:,.0f}, {load['right_tokens']:,}"),
        ("served: time to the first token, p50 / p99 / max", milliseconds(load["ttft_ms"]) + " ms"),
        ("served: mean time per further token", milliseconds(load["tpot_ms"]) + " ms"),
        ("refusals: time until they are read", milliseconds(load["refusal_ms"]) + " ms"),
        ("connections", f"most seen {m['most_connections']:.0f}; idle ones: {m['idle']['opened']:,} opened, "
                        f"{m['idle']['held_at_the_end']:,} held at the end"),
        ("faults", ", ".join(f"{name}: {n:,}" for name, n in sorted(m["faults"]["seen"].items()))),
        ("slow readers that the server ended", f"{metrics['http_slow_readers_total']:.0f}"),
        ("admin port, p50 / p99 / max", milliseconds(watched["admin_ms"]) + " ms"),
        ("a program that only answers, likewise", milliseconds(watched["control_ms"]) + " ms"),
        ("the watcher woke up late by", milliseconds(watched["late_ms"]) + " ms"),
        ("memory of its own at the begin, the end, at most", " / ".join(f"{v:.1f}" for v in m["own_mib"]) + " MiB"),
        ("pages of files in memory, likewise", " / ".join(f"{v:.1f}" for v in m["file_mib"]) +
         f" MiB; {m['file_growth_per_hour'][0]:+.2%} ± {m['file_growth_per_hour'][1]:.2%} per hour"),
        ("cores in use at the capacity, before and after", f"{cores(m['before_cores'])}; {cores(m['after_cores'])}"),
        ("cores in use in the overload", cores(m["overload_cores"])),
        ("tokens of right answers by CPU second of the server, before, in the overload, after",
         ", ".join(f"{m[phase]['right_tokens'] / m[phase]['seconds'] / m[phase + '_cores']['server']:.0f}" for phase in ("before", "overload", "after"))),
    ]
    lines = ["| measured | |", "|---|---|"] + [f"| {name} | {value} |" for name, value in rows]
    lines += ["", "| criterion | | seen |", "|---|---|---|"]
    lines += [f"| {what} | {'holds' if holds else '**fails**'} | {seen} |" for what, holds, seen, _ in criteria(m)]
    return "\n".join(lines)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10, help="of overload (default: 10)")
    parser.add_argument("--kvasir", default=str(ROOT / "build" / "release" / "kvasir"), help="the program")
    parser.add_argument("--model", help="a model file (default: the one that tools/fetch_model.py fetches)")
    parser.add_argument("--json", help="where everything that was measured goes")
    parser.add_argument("--overload", type=float, default=10, help="offered load in multiples of the capacity (default: 10)")
    parser.add_argument("--capacity-seconds", type=float, default=20, help="of each measurement of the capacity (default: 20)")
    parser.add_argument("--prompts", type=int, default=48, help="different ones (default: 48)")
    parser.add_argument("--idle", type=int, default=10_000, help="sockets that say nothing (default: 10,000)")
    parser.add_argument("--slow-readers", type=int, default=8, help="clients that read a byte per second (default: 8)")
    parser.add_argument("--half-open", type=int, default=64, help="half-open connections at once (default: 64)")
    parser.add_argument("--max-num-seqs", type=int, default=16, help="requests that the server runs at once (default: 16)")
    parser.add_argument("--serve-flag", action="append", default=[], help="a further flag of the server; may be repeated")
    parser.add_argument("--share-cores", action="store_true", help="the server and the clients use the same cores")
    options = parser.parse_args()
    options.server_cores, options.client_cores = divided_cores(options.share_cores)
    if options.minutes <= 0:
        parser.error("--minutes must be above 0")
    if options.model is None:
        found = subprocess.run([sys.executable, ROOT / "tools" / "fetch_model.py"], capture_output=True, text=True, check=False)
        if found.returncode != 0:
            sys.exit(found.stderr.strip())
        options.model = found.stdout.strip()
    most = options.idle + 4096
    options.serve_flags = ["--max-num-seqs", str(options.max_num_seqs), "--kv-cache-memory-bytes", "256MiB", "--refuse-late",
                           "--max-connections", str(most), "--max-connections-per-address", str(most), *options.serve_flag]
    if clients.raise_file_limit() < most + 256:
        sys.exit(f"too few open files are allowed for --idle {options.idle}: raise the hard limit (ulimit -Hn {most + 256}) or "
                 "take fewer")
    return options


def main():
    options = arguments()
    multiprocessing.set_start_method("fork")
    os.sched_setaffinity(0, options.client_cores)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))  # and nothing that was started is left
    m = measure(options)
    m["criteria"] = [{"what": what, "holds": bool(holds), "seen": seen, "disturbed": disturbed}
                     for what, holds, seen, disturbed in criteria(m)]
    print(report(m))
    if options.json:
        Path(options.json).write_text(json.dumps(m, indent=1), encoding="utf-8")
    return 0 if all(c["holds"] for c in m["criteria"]) else 1


if __name__ == "__main__":
    sys.exit(main())
