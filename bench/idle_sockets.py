#!/usr/bin/env python3
"""Whether sockets that say nothing keep others out, with the server's default limits. One command:

    idle_sockets.py [--sockets 10000] [--addresses 200] [--times 200] [--not-reading] [--kvasir build/release/kvasir] [--model M.gguf]
                    [--serve-flag FLAG]…

It starts a server, opens the sockets from so many addresses of the loopback interface, waits for two seconds, and asks /health
over new connections from another address. With --not-reading each socket asks for a large file of the pages and never reads
the answer. Printed: the median and the longest time of an answer, how many sockets the server closed to make way, and its own
memory. Exit code 1: an answer is not 200, or a new connection was refused.
"""

import argparse
import http.client
import re
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

import soak_clients

ROOT = Path(__file__).resolve().parent.parent


def idle_socket(port, address, not_reading):
    made = socket.socket()
    if not_reading:
        # So little that the kernel's buffers do not take the file.
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    made.bind((address, 0))
    made.connect(("127.0.0.1", port))
    if not_reading:
        made.sendall(b"GET /assets/lib/highlight.js HTTP/1.1\r\nHost: localhost\r\n\r\n")
    return made


def own_mib(pid):
    status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"RssAnon:\s+(\d+)", status).group(1)) / 1024


def ask(port, path):
    """(status, body) over a new connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60, source_address=("127.0.0.2", 0))
    connection.request("GET", path)
    response = connection.getresponse()
    answer = response.status, response.read().decode()
    connection.close()
    return answer


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sockets", type=int, default=10_000)
    parser.add_argument("--addresses", type=int, default=200, help="from so many addresses (default: 200)")
    parser.add_argument("--times", type=int, default=200, help="questions (default: 200)")
    parser.add_argument("--not-reading", action="store_true")
    parser.add_argument("--kvasir", default=ROOT / "build/release/kvasir")
    parser.add_argument("--model")
    parser.add_argument("--serve-flag", action="append", default=[], help="of the server, as --serve-flag=--max-connections=500")
    options = parser.parse_args()
    if soak_clients.raise_file_limit() < options.sockets + 256:
        sys.exit(f"too few open files are allowed: raise the hard limit (ulimit -Hn {options.sockets + 256})")
    model = options.model or subprocess.run([sys.executable, ROOT / "tools/fetch_model.py"], capture_output=True, text=True,
                                            check=True).stdout.strip()
    command = [options.kvasir, "serve", model, "--port", "0", "--kv-cache-memory-bytes", "64MiB", "--access-log", "none",
               *options.serve_flag]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            listening = next(found for line in server.stdout if (found := re.match(r"listening on http://.*:(\d+) ", line)))
            port = int(listening.group(1))
            before = own_mib(server.pid)
            idle = [idle_socket(port, f"127.0.1.{1 + i % options.addresses}", options.not_reading) for i in range(options.sockets)]
            time.sleep(2)
            after = own_mib(server.pid)
            times, statuses = [], set()
            for _ in range(options.times):
                began = time.monotonic()
                statuses.add(ask(port, "/health")[0])
                times.append(1000 * (time.monotonic() - began))
            status, metrics = ask(port, "/metrics")
            if status != 200:
                sys.exit(f"the server refuses its probes: /health got {sorted(statuses)}, /metrics {status}")
            evicted, refused = (int(re.search(rf"http_connections_{what}_total\{{.*\}} (\d+)", metrics).group(1))
                                for what in ("evicted", "refused"))
            print(f"{len(idle):,} idle sockets from {options.addresses} addresses; {evicted:,} were closed to make way, {refused:,} "
                  f"refused; /health, {len(times)} times: median {statistics.median(times):.2f} ms, longest {max(times):.1f} ms; "
                  f"memory {before:.1f} MiB before, {after:.1f} MiB with the sockets")
            sys.exit(0 if statuses == {200} and refused == 0 else 1)
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
