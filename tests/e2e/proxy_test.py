"""Requests that servers and proxies read in different ways, sent through nginx: neither sees one that the other does not."""

import collections
import json
import os
import pathlib
import re
import selectors
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

from support import SKIPPED, Server

CASES = pathlib.Path(__file__).resolve().parent.parent / "golden" / "request_framing.json"

CONFIGURATION = """
daemon off;
{user}
worker_processes 1;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 1024; }}
http {{
  log_format seen '$remote_port $status "$upstream_status" $request_uri';
  access_log {folder}/access.log seen;
  client_body_temp_path {folder}/body;
  proxy_temp_path {folder}/proxy;
  fastcgi_temp_path {folder}/fastcgi;
  scgi_temp_path {folder}/scgi;
  uwsgi_temp_path {folder}/uwsgi;
  client_max_body_size 32m;
  keepalive_requests 1000;
  upstream kvasir {{ server 127.0.0.1:{backend}; keepalive 8; }}
  server {{
    listen 127.0.0.1:{port} backlog=1024;
    location / {{
      proxy_pass http://kvasir;
      proxy_http_version 1.1;
      proxy_set_header Host localhost;
      proxy_set_header Connection "";
      proxy_request_buffering off;
    }}
  }}
}}
"""


def nginx():
    found = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
    if found is None:
        print("skipped: there is no nginx; ./dev test installs it")
        sys.exit(SKIPPED)
    return found


class Proxy:
    """nginx in front of a port, in a folder of its own."""

    def __init__(self, backend):
        program = nginx()
        self.folder = tempfile.TemporaryDirectory()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        configuration = pathlib.Path(self.folder.name) / "nginx.conf"
        configuration.write_text(CONFIGURATION.format(
            folder=self.folder.name, backend=backend, port=self.port, user="user root;" if os.getuid() == 0 else ""))
        self.process = subprocess.Popen([program, "-p", self.folder.name, "-c", str(configuration)],
                                        stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 30
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
                return
            except OSError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.02)

    def stop(self):
        """Ends it in order, so that its log is whole: (port of the client, status, status of the server, target) each."""
        self.process.send_signal(3)  # SIGQUIT
        self.process.wait(30)
        log = (pathlib.Path(self.folder.name) / "access.log").read_text(encoding="latin-1")
        self.folder.cleanup()
        return re.findall(r'^(\d+) (\d+) "([^"]*)" ?(.*)$', log, re.MULTILINE)


def bytes_of(text):
    return re.sub(r"\{(\d+)\}", lambda found: "a" * int(found.group(1)), text).encode("latin-1")


def statuses(answers):
    """Of all answers in what came over one connection."""
    found = []
    if answers and b"HTTP/1." not in answers:
        return [200]  # nginx answers HTTP/0.9, without a head
    while answers:
        head, separator, rest = answers.partition(b"\r\n\r\n")
        if not separator or not head.startswith(b"HTTP/1."):
            raise AssertionError(f"no answer: {answers[:200]!r}")
        found.append(int(head.split(b" ")[1]))
        length = re.search(rb"^content-length: *(\d+)", head, re.IGNORECASE | re.MULTILINE)
        if length:
            answers = rest[int(length.group(1)):]
        elif b"chunked" in head.lower():
            answers = rest.partition(b"0\r\n\r\n")[2]
        else:
            answers = b""
    return found


class Framing(unittest.TestCase):
    def exchange(self, port, cases):
        """Sends each over a connection of its own: for the connection's local port, all that came back."""
        selector = selectors.DefaultSelector()
        received = {}
        for send in cases:
            s = socket.create_connection(("127.0.0.1", port), timeout=30)
            s.sendall(send)
            received[s.getsockname()[1]] = b""
            selector.register(s, selectors.EVENT_READ)
        # What keeps its connection is done when nothing comes any more.
        while ready := selector.select(timeout=1.5):
            for key, _ in ready:
                try:
                    got = key.fileobj.recv(65536)
                except ConnectionResetError:
                    got = b""
                received[key.fileobj.getsockname()[1]] += got
                if not got:
                    selector.unregister(key.fileobj)
                    key.fileobj.close()
        for key in list(selector.get_map().values()):
            key.fileobj.close()
        return received

    def counted(self, server):
        """Requests by status."""
        text = server.ask("GET", "/metrics")[2].decode()
        found = re.findall(r'kvasir:http_requests_total\{.*status="(\w+)"\} (\d+)', text)
        return collections.Counter({status: int(count) for status, count in found})

    def test_each_case_through_a_proxy(self):
        cases = [c for c in json.loads(CASES.read_text(encoding="utf-8")) if c["family"] != "semantics"]
        nginx()
        with Server() as server:
            proxy = Proxy(server.port)
            before = self.counted(server)
            received = self.exchange(proxy.port, [bytes_of(case["send"]) for case in cases])
            counted = self.counted(server) - before
            log = proxy.stop()
            seen = collections.defaultdict(list)
            for port, status, upstream, target in log:
                seen[int(port)].append((int(status), upstream, target))
            for case, (port, answers) in zip(cases, received.items()):
                with self.subTest(f"{case['family']}: {case['name']}"):
                    got = statuses(answers)
                    # As many answers as nginx saw requests, and its own answers or those of the server.
                    self.assertEqual(got, [status for status, _, _ in seen[port]][:len(got)], (answers, seen[port]))
            # The server has answered what nginx asked it, and nothing else. The first look at the metrics counts, too.
            asked = collections.Counter(upstream for _, _, upstream, _ in log if upstream.isdigit())
            counted["200"] -= 1
            self.assertEqual(+collections.Counter({s: n for s, n in counted.items() if s != "499"}), asked)
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
