#!/usr/bin/env python3
"""Kvasir's speed beside other engines', on one machine and in turn. Prints a Markdown table.

    compare_peers.py alone --model A.gguf --llama-bench BUILD/bin/llama-bench [--peer-model B.gguf] [--context-tokens 4096]
    compare_peers.py alone --model A.gguf B.gguf --threads 1 2 --llama-bench BUILD/bin/llama-bench
    compare_peers.py alone --model A.gguf --xllamacpp-python VENV/bin/python
    compare_peers.py streams --model A.gguf --llama-server BUILD/bin/llama-server [--peer-model B.gguf] [--streams 16]
    compare_peers.py streams --model A.gguf --peer-server "any OpenAI server's command with {port} and {threads}"

`alone` is one request at a time inside a process: a prefill of --prefill-tokens random tokens, and --decode-tokens steps
after a prompt of --context-tokens, whose own time is not counted. `streams` is a server under the closed loop of `kvasir
bench`, client and server on the same cores: --streams requests at once; with --streams 1 it is one request alone, seen
through the server.

Several files and numbers of threads are compared one after the other, each in pairs of its own, and share a table.
Every run is a process of its own. Which of the two begins changes from pair to pair, so that a machine that slows down
favours neither; ratios are taken within a pair, and above 1 Kvasir is the faster. Both have the same number of threads
and 16 bits for each element of K and V: bf16 here, f16 in llama.cpp by its default. Caches of prompts are off on both
sides; all else is each engine's default.
"""

import argparse
import json
import os
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

SPEED = re.compile(r"prefill_tok_s=([0-9.]+) decode_tok_s=([0-9.]+)")
START_LIMIT_S = 600  # some servers compile when they start


def output_of(command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    except OSError as problem:
        sys.exit(f"{command[0]} cannot be run: {problem.strerror}")
    if done.returncode != 0:
        sys.exit(f"{shlex.join(command)} ended with {done.returncode}: run it by hand")
    return done.stdout


# --- One request alone: each function makes one run and returns [prefill, decode] in tokens per second --------------


def speeds_in(command):
    text = output_of(command)
    found = SPEED.search(text)
    if not found:
        sys.exit(f"{shlex.join(command)} printed no speeds: run it by hand")
    return [float(found[1]), float(found[2])]


def size_flags(o):
    return ["--threads", str(o.threads), "--prefill-tokens", str(o.prefill_tokens), "--decode-tokens",
            str(o.decode_tokens), "--context-tokens", str(o.context_tokens), "--repetitions", str(o.repetitions)]


def kvasir_alone(o):
    return speeds_in([o.kvasir, "eval", o.model, "--speed", "--kv-cache-dtype", "bf16", *size_flags(o)])


def xllamacpp_alone(o):
    return speeds_in([o.xllamacpp_python, __file__, "xllamacpp", "--model", o.peer_model, *size_flags(o)])


def llama_bench_alone(o):
    common = [o.llama_bench, "-m", o.peer_model, "-t", str(o.threads), "-r", str(o.repetitions), "-o", "json"]
    speeds = []
    for sizes in (["-p", str(o.prefill_tokens), "-n", "0"],
                  ["-p", "0", "-n", str(o.decode_tokens), "-d", str(o.context_tokens)]):
        (result,) = json.loads(output_of(common + sizes))
        speeds.append(statistics.median(result["samples_ts"]))
    return speeds


def run_xllamacpp(o):
    """One run of llama.cpp in this process, whose Python has xllamacpp and numpy."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "golden"))
    import numpy as np
    from llama_cpp_peer import Peer

    random = np.random.default_rng(1)
    longest = max(o.prefill_tokens, o.context_tokens + o.decode_tokens)
    prefill, decode = [], []
    with Peer(o.model, longest, o.threads, outputs=1) as peer:
        for repetition in range(o.repetitions + 1):
            prompt = random.integers(0, peer.vocab_size, o.prefill_tokens).tolist()
            peer.clear()
            start = time.perf_counter()
            peer.decode(prompt, 0, logits="last").argmax()
            prefill_s = time.perf_counter() - start
            prompt = random.integers(0, peer.vocab_size, o.context_tokens).tolist()
            peer.clear()
            token = int(peer.decode(prompt, 0, logits="last").argmax())
            start = time.perf_counter()
            for step in range(o.decode_tokens):
                token = int(peer.decode([token], o.context_tokens + step, logits="last").argmax())
            decode_s = time.perf_counter() - start
            if repetition > 0:  # the first touches the memory
                prefill.append(o.prefill_tokens / prefill_s)
                decode.append(o.decode_tokens / decode_s)
        print(f"prefill_tok_s={statistics.median(prefill):.1f} decode_tok_s={statistics.median(decode):.1f}")
        print(f"peer={peer.describe()}", file=sys.stderr)


def compare_alone(o):
    peer = llama_bench_alone if o.llama_bench else xllamacpp_alone
    rows = [(f"prefill of {o.prefill_tokens} tokens, tokens/s", True),
            (f"decode of {o.decode_tokens} tokens after {o.context_tokens}, tokens/s", True)]
    compare(o, rows, lambda: kvasir_alone(o), lambda: peer(o))


# --- Servers: each run starts one, loads it and stops it -----------------------------------------------------------


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def wait_until_ready(server, url, command):
    end = time.monotonic() + START_LIMIT_S
    while time.monotonic() < end:
        if server.poll() is not None:
            sys.exit(f"{command} ended with {server.returncode} before it could serve: run it by hand")
        try:
            with urllib.request.urlopen(url + "/health", timeout=5) as answer:
                if answer.status == 200:
                    return
        except (urllib.error.URLError, OSError):
            pass
        time.sleep(0.1)
    sys.exit(f"{command} was not ready after {START_LIMIT_S} s")


def stop(server):
    os.killpg(server.pid, signal.SIGTERM)
    try:
        server.wait(60)
    except subprocess.TimeoutExpired:
        os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def load(o, url):
    """What `kvasir bench` measures on the server at this URL."""
    with tempfile.TemporaryDirectory() as folder:
        output_of([o.kvasir, "bench", "--base-url", url, "--num-prompts", str(o.prompts), "--max-concurrency",
                   str(o.streams), "--num-warmups", str(o.streams), "--random-input-len", str(o.input_tokens),
                   "--random-output-len", str(o.output_tokens), "--ignore-eos", "--save-result", "--result-dir",
                   folder, "--result-filename", "result.json"])
        result = json.loads(Path(folder, "result.json").read_text())
    wanted = o.prompts * o.output_tokens
    if result["failed"] or result["total_output_tokens"] != wanted:
        sys.exit(f"{url}: {result['failed']} of {o.prompts} requests failed, and {result['total_output_tokens']} tokens "
                 f"came where {wanted} were asked for: the figures would not be comparable")
    return [result["output_throughput"], result["mean_ttft_ms"], result["mean_tpot_ms"]]


def serve_and_load(o, template):
    port = free_port()
    command = template.replace("{port}", str(port)).replace("{threads}", str(o.threads))
    try:
        server = subprocess.Popen(shlex.split(command), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                                  start_new_session=True)
    except OSError as problem:
        sys.exit(f"{command}: cannot be run: {problem.strerror}")
    try:
        url = f"http://127.0.0.1:{port}"
        wait_until_ready(server, url, command)
        return load(o, url)
    finally:
        if server.poll() is None:
            stop(server)


def our_server(o):
    return f"{shlex.quote(o.kvasir)} serve {shlex.quote(o.model)} --port {{port}} --threads {{threads}} " \
           f"--kv-cache-dtype bf16 --kv-cache-memory-bytes 1GiB --no-enable-prefix-caching"


def peer_server(o):
    # llama-server parts its context among the slots; with some vocabularies a random word is several tokens.
    context = o.streams * (4 * o.input_tokens + o.output_tokens)
    return o.peer_server or f"{shlex.quote(o.llama_server)} -m {shlex.quote(o.peer_model)} --port {{port}} " \
        f"-t {{threads}} -np {o.streams} -c {context} --no-cache-prompt --cache-ram 0"


def compare_streams(o):
    load_words = f"{o.streams} streams of {o.input_tokens} + {o.output_tokens} tokens"
    rows = [(f"{load_words}: output tokens/s", True), ("mean time to the first token, ms", False),
            ("mean time per further token, ms", False)]
    compare(o, rows, lambda: serve_and_load(o, our_server(o)), lambda: serve_and_load(o, peer_server(o)))


# --- Pairs ----------------------------------------------------------------------------------------------------------


def run_pairs(o, run_ours, run_peer):
    pairs = []
    for number in range(o.pairs):
        if number % 2 == 0:
            ours, theirs = run_ours(), run_peer()
        else:
            theirs, ours = run_peer(), run_ours()
        pairs.append((ours, theirs))
        figures = ["; ".join(f"{x:.1f}" for x in side) for side in (ours, theirs)]
        print(f"pair {number + 1}: kvasir {figures[0]}, {o.peer_name} {figures[1]}", file=sys.stderr)
    return pairs


def compare(o, rows, run_ours, run_peer):
    """`rows`: what each figure of a run is, and whether more of it is better."""
    models, threads = o.model, o.threads
    lines = []
    for model, peer_model in zip(models, o.peer_model):
        files = Path(model).name if model == peer_model else f"{Path(model).name} and {Path(peer_model).name}"
        for count in threads:
            o.model, o.peer_model, o.threads = model, peer_model, count
            print(f"{files}, {count} threads", file=sys.stderr)
            pairs = run_pairs(o, run_ours, run_peer)
            for index, (what, more_is_better) in enumerate(rows):
                ours, theirs = [p[0][index] for p in pairs], [p[1][index] for p in pairs]
                ratios = [a / b if more_is_better else b / a for a, b in zip(ours, theirs)]
                lines.append(f"| {files} | {count} | {what} | {statistics.median(ours):.1f} | "
                             f"{statistics.median(theirs):.1f} | {statistics.median(ratios):.2f} ({min(ratios):.2f} to "
                             f"{max(ratios):.2f}) |")
    print(f"{o.pairs} pairs on {os.cpu_count()} CPUs, load average at the end {os.getloadavg()[0]:.1f}.\n")
    print(f"| | threads | | kvasir | {o.peer_name} | how many times as fast (of pairs: median, least, greatest) |")
    print("|---|---|---|---|---|---|")
    print("\n".join(lines))


def add_size_flags(parser):
    parser.add_argument("--prefill-tokens", type=int, default=512)
    parser.add_argument("--decode-tokens", type=int, default=128)
    parser.add_argument("--context-tokens", type=int, default=16, help="prompt before the decoded tokens (16)")
    parser.add_argument("--repetitions", type=int, default=3, help="inside a run, whose median counts (3)")


def add_pair_flags(parser):
    parser.add_argument("--kvasir", default="build/release/kvasir", help="the program (build/release/kvasir)")
    parser.add_argument("--model", required=True, nargs="+", help="GGUF files for kvasir")
    parser.add_argument("--peer-model", nargs="+", help="the peer's files; default: the same")
    parser.add_argument("--threads", type=int, nargs="+", default=[2], help="of both engines (2)")
    parser.add_argument("--peer-name", default="llama.cpp", help="for the table (llama.cpp)")
    parser.add_argument("--pairs", type=int, default=5)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_subparsers(dest="what", required=True)
    alone = what.add_parser("alone", help="one request at a time, inside a process")
    add_pair_flags(alone)
    add_size_flags(alone)
    peer = alone.add_mutually_exclusive_group(required=True)
    peer.add_argument("--llama-bench", help="llama.cpp's program of this name")
    peer.add_argument("--xllamacpp-python", help="a Python that has xllamacpp and numpy")
    streams = what.add_parser("streams", help="servers under load")
    add_pair_flags(streams)
    streams.add_argument("--streams", type=int, default=16, help="requests at once (16)")
    streams.add_argument("--prompts", type=int, default=64, help="requests of a run (64)")
    streams.add_argument("--input-tokens", type=int, default=128)
    streams.add_argument("--output-tokens", type=int, default=64)
    peer = streams.add_mutually_exclusive_group(required=True)
    peer.add_argument("--llama-server", help="llama.cpp's program of this name")
    peer.add_argument("--peer-server", help="a server's whole command; {port} and {threads} are filled in")
    once = what.add_parser("xllamacpp", help="one run of xllamacpp (used by alone)")
    once.add_argument("--model", required=True)
    once.add_argument("--threads", type=int, default=2)
    add_size_flags(once)
    o = parser.parse_args()
    if o.what == "xllamacpp":
        run_xllamacpp(o)
        return
    o.peer_model = o.peer_model or o.model
    if len(o.peer_model) != len(o.model):
        sys.exit(f"--model names {len(o.model)} files and --peer-model {len(o.peer_model)}: name as many")
    (compare_alone if o.what == "alone" else compare_streams)(o)


if __name__ == "__main__":
    main()
