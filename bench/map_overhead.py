#!/usr/bin/env python3
"""What the live map of the cache costs a server: tokens/s with no viewer, with one and with ten, in paired windows of one run.

    map_overhead.py [--rounds 20] [--seconds 5] [--streams 16] [--kvasir BINARY] [--model FILE] [--serve-flag FLAG]…

So many streams are kept open, each a completion that begins anew when it has ended. In each round
the numbers of viewers follow each other, in turned order every other time; a viewer reads GET /cache/stream and does
nothing else. The server computes with one thread, which is the engine's, and has all cores but the last, which the clients
have. Printed for each number, with 95 % intervals (Student's t): the share of the engine's thread that frames and words
take, as the server's metrics count it; and, against the window without viewers in the same round, tokens/s as a geometric
mean of ratios, and the processor time of all other threads, which make and send the lines, in milliseconds per second.
Tokens/s depend on what else the machine does; the rest hardly.
"""

import argparse
import http.client
import json
import math
import multiprocessing
import os
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import soak
import soak_clients

ROOT = Path(__file__).resolve().parents[1]
T_95 = {5: 2.57, 6: 2.45, 7: 2.36, 8: 2.31, 9: 2.26, 10: 2.23, 12: 2.18, 15: 2.13, 20: 2.09, 30: 2.04}  # by degrees of freedom


def interval(values):
    """(mean, half of the 95 % interval)."""
    if len(values) < 2:
        return statistics.fmean(values), math.inf
    freedom = len(values) - 1
    t = next((t for most, t in sorted(T_95.items(), reverse=True) if most <= freedom), 12.7)
    return statistics.fmean(values), t * statistics.stdev(values) / math.sqrt(len(values))


def keep_streams(port, count, tokens):
    """A process: streams that begin anew for ever."""
    def one(number):
        draw = random.Random(number)
        while True:
            body = {"prompt": f"{draw.random()} A raven is a bird that " * 4, "max_tokens": draw.randint(tokens // 2, tokens), "ignore_eos": True, "stream": True}
            connection = http.client.HTTPConnection(soak_clients.HOST, port, timeout=600)
            connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            if answer.status != 200:
                print(f"POST /v1/completions: {answer.status} {answer.read(300)!r}", file=sys.stderr)
                os._exit(1)
            while answer.read(65536):
                pass
            connection.close()

    for number in range(count):
        threading.Thread(target=one, args=(number,), daemon=True).start()
    threading.Event().wait()


def keep_viewers(port, count, frames):
    """A process: so many viewers; counts the frames of the first."""
    def one(number):
        connection = http.client.HTTPConnection(soak_clients.HOST, port, timeout=600)
        connection.request("GET", "/cache/stream")
        answer = connection.getresponse()
        if answer.status != 200:
            print(f"GET /cache/stream: {answer.status} {answer.read(300)!r}", file=sys.stderr)
            os._exit(1)
        while line := answer.readline():
            if number == 0 and line.startswith(b'data: {"f"'):
                frames.value += 1

    for number in range(count):
        threading.Thread(target=one, args=(number,), daemon=True).start()
    threading.Event().wait()


def cpu_of_threads(pid):
    """Seconds of processor time of each thread."""
    seconds = {}
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            seconds[thread.name] = int((thread / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
        except OSError:
            pass  # it has ended
    return seconds


def window(server, viewers, seconds):
    """Tokens/s, milliseconds per second of all threads but the busiest, frames/s, percent of the engine's thread for the map."""
    frames = multiprocessing.Value("l", 0)
    process = multiprocessing.Process(target=keep_viewers, args=(server.port, viewers, frames), daemon=True)
    if viewers:
        process.start()
    time.sleep(1)  # the first frame is a whole map
    seen, before, began, shown = server.metrics(), cpu_of_threads(server.pid), time.monotonic(), frames.value
    time.sleep(seconds)
    lasted, after, shown = time.monotonic() - began, cpu_of_threads(server.pid), frames.value - shown
    now = server.metrics()
    tokens, spent_on_map = (now[name] - seen[name] for name in ("generation_tokens_total", "cache_map_seconds_total"))
    spent = sorted((now - before.get(thread, 0) for thread, now in after.items()), reverse=True)
    if viewers:
        process.kill()
        process.join()
    if tokens == 0:
        sys.exit(f"the server generated nothing for {lasted:.0f} s: take longer windows")
    if viewers and shown == 0:
        sys.exit("no viewer got a frame")
    return tokens / lasted, 1e3 * sum(spent[1:]) / lasted, shown / lasted, 100 * spent_on_map / lasted


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rounds", type=int, default=20)
    add("--seconds", type=float, default=5, help="of a window (default: 5)")
    add("--streams", type=int, default=16)
    add("--tokens", type=int, default=1500, help="of each answer, or down to half of that (default: 1500)")
    add("--viewers", type=int, nargs="+", default=[1, 10])
    add("--kvasir", default=str(ROOT / "build/release/kvasir"))
    add("--model", help="a model file (default: the one that tools/fetch_model.py fetches)")
    add("--serve-flag", action="append", default=[], help="a further flag of the server; may be repeated")
    o = parser.parse_args()
    if o.model is None:
        o.model = subprocess.run([sys.executable, ROOT / "tools/fetch_model.py"], capture_output=True, text=True, check=True).stdout.strip()
    o.serve_flags = ["--threads", "1", "--max-num-seqs", str(o.streams), *o.serve_flag]
    return o


def main():
    o = options()
    multiprocessing.set_start_method("fork")
    o.server_cores, client_cores = soak.divided_cores()
    os.sched_setaffinity(0, client_cores)
    with tempfile.TemporaryDirectory() as folder:
        server = soak.Server(o, f"{folder}/log")
        try:
            streams = multiprocessing.Process(target=keep_streams, args=(server.port, o.streams, o.tokens), daemon=True)
            streams.start()
            time.sleep(10)
            ratios, costs, shares = ({n: [] for n in o.viewers} for _ in range(3))
            for number in range(o.rounds):
                order = [0, *o.viewers] if number % 2 == 0 else [*reversed(o.viewers), 0]
                seen = {n: window(server, n, o.seconds) for n in order}
                for n in o.viewers:
                    ratios[n].append(math.log(seen[n][0] / seen[0][0]))
                    costs[n].append(seen[n][1] - seen[0][1])
                    shares[n].append(seen[n][3])
                print(f"round {number + 1}: " + "; ".join(
                    f"{n}: {seen[n][0]:.1f} tokens/s, other threads {seen[n][1]:.1f} ms/s, {seen[n][2]:.1f} frames/s, map {seen[n][3]:.3f} %"
                    for n in sorted(seen)), file=sys.stderr, flush=True)
            streams.kill()
        finally:
            server.process.kill()
    print(f"{soak.machine()}; {o.streams} streams, {o.rounds} rounds of windows of {o.seconds:g} s\n")
    print("| viewers | engine's thread for the map | tokens/s against none | other threads, ms per second more |\n|---|---|---|---|")
    for n in o.viewers:
        mean, half = interval(ratios[n])
        low, middle, high = (100 * (math.exp(x) - 1) for x in (mean - half, mean, mean + half))
        cost, error = interval(costs[n])
        share, of_share = interval(shares[n])
        print(f"| {n} | {share:.3f} ± {of_share:.3f} % | {middle:+.2f} % [{low:+.2f}, {high:+.2f}] | {cost:+.2f} ± {error:.2f} |")


if __name__ == "__main__":
    main()
