#!/usr/bin/env python3
"""What the live map of the cache costs a server: tokens/s with no viewer, with one and with ten, in paired windows of one run.

    map_overhead.py [--rounds 20] [--seconds 5] [--streams 16] [--kvasir BINARY] [--model FILE] [--serve-flag FLAG]…

So many streams are kept open, each a completion that begins anew when it has ended. In each round
the numbers of viewers follow each other, in turned order every other time; a viewer reads GET /cache/stream and does
nothing else. A window's figures are divided by those of the window without viewers in the same round. Printed are the
geometric means with 95 % intervals (Student's t of the logarithms): tokens/s, and the server's CPU time per token.
"""

import argparse
import http.client
import json
import math
import multiprocessing
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
            sys.exit(f"GET /cache/stream: {answer.status} {answer.read(300)!r}")
        while line := answer.readline():
            if number == 0 and line.startswith(b'data: {"f"'):
                frames.value += 1

    for number in range(count):
        threading.Thread(target=one, args=(number,), daemon=True).start()
    threading.Event().wait()


def window(server, viewers, seconds):
    """Tokens/s, CPU seconds per token, frames/s."""
    frames = multiprocessing.Value("l", 0)
    process = multiprocessing.Process(target=keep_viewers, args=(server.port, viewers, frames), daemon=True)
    if viewers:
        process.start()
    time.sleep(1)  # the first frame is a whole map
    seen, began, cpu, shown = server.metrics(), time.monotonic(), soak.cpu_of(server.pid), frames.value
    time.sleep(seconds)
    tokens = server.metrics()["generation_tokens_total"] - seen["generation_tokens_total"]
    lasted, cpu, shown = time.monotonic() - began, soak.cpu_of(server.pid) - cpu, frames.value - shown
    if viewers:
        process.kill()
        process.join()
    if tokens == 0:
        sys.exit(f"the server generated nothing for {lasted:.0f} s: take longer windows")
    return tokens / lasted, cpu / tokens, shown / lasted


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
    o.serve_flags = ["--max-num-seqs", str(o.streams), *o.serve_flag]
    return o


def main():
    o = options()
    multiprocessing.set_start_method("fork")
    with tempfile.TemporaryDirectory() as folder:
        server = soak.Server(o, f"{folder}/log")
        try:
            streams = multiprocessing.Process(target=keep_streams, args=(server.port, o.streams, o.tokens), daemon=True)
            streams.start()
            time.sleep(10)
            gains = {n: [] for n in o.viewers}
            for number in range(o.rounds):
                order = [0, *o.viewers] if number % 2 == 0 else [*reversed(o.viewers), 0]
                seen = {n: window(server, n, o.seconds) for n in order}
                for n in o.viewers:
                    gains[n].append([math.log(a / b) for a, b in zip(seen[n][:2], seen[0][:2])])
                print(f"round {number + 1}: " + "; ".join(
                    f"{n}: {seen[n][0]:.1f} tokens/s, {1e3 * seen[n][1]:.2f} ms of CPU a token, {seen[n][2]:.1f} frames/s"
                    for n in sorted(seen)), file=sys.stderr, flush=True)
            streams.kill()
        finally:
            server.process.kill()
    print(f"{soak.machine()}; {o.streams} streams, {o.rounds} rounds of windows of {o.seconds:g} s\n")
    print("| viewers | tokens/s against none | CPU time per token against none |\n|---|---|---|")
    for n, logs in gains.items():
        cells = []
        for values in zip(*logs):
            mean, half = interval(values)
            cells.append(f"{100 * (math.exp(mean) - 1):+.2f} % [{100 * (math.exp(mean - half) - 1):+.2f}, {100 * (math.exp(mean + half) - 1):+.2f}]")
        print(f"| {n} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
