"""Starts the binary and talks to it; shared by the end-to-end tests."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest

SKIPPED = 77  # what CTest takes for a skipped test


def model_path():
    """The real model, or the end of the test as skipped."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    default = os.path.join(cache, "kvasir", "models", "SmolLM2-135M-Instruct.Q4_1.gguf")
    path = os.environ.get("KVASIR_TEST_MODEL") or default
    if not os.path.exists(path):
        print(f"skipped: no model at {path}; ./dev test fetches it, or set KVASIR_TEST_MODEL")
        sys.exit(SKIPPED)
    return path


def shard(loader, tests, pattern):
    """For `load_tests` of a long file: with KVASIR_SHARD=i/n every nth of its tests, from the ith on."""
    first, count = map(int, os.environ.get("KVASIR_SHARD", "0/1").split("/"))

    def cases(suite):
        for test in suite:
            yield from cases(test) if isinstance(test, unittest.TestSuite) else [test]

    return unittest.TestSuite(list(cases(tests))[first::count])


def binary():
    return os.environ["KVASIR_BINARY"]


def clean_environment(**extra):
    """Without flags that the user's shell may set."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("KVASIR_")}
    return {**kept, **extra}


def run(*arguments, timeout=120, **environment):
    return subprocess.run([binary(), *arguments], capture_output=True, text=True, timeout=timeout,
                          env=clean_environment(**environment), stdin=subprocess.DEVNULL)


class Server:
    """`kvasir serve` on a free port; ready when the constructor returns."""

    def __init__(self, *flags, environment=None, memory="256MiB"):
        self.start([binary(), "serve", model_path(), "--port", "0", "--kv-cache-memory-bytes", memory, *flags],
                   env=clean_environment(**(environment or {})))
        self.wait_ready()

    def start(self, command, **popen):
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **popen)
        self.log = []
        self.readers = [threading.Thread(target=self._read, args=(stream,), daemon=True)
                        for stream in (self.process.stdout, self.process.stderr)]
        for reader in self.readers:
            reader.start()
        self.port = None

    def wait_ready(self, seconds=60):
        end = time.monotonic() + seconds
        while not self.tries():
            if self.process.poll() is not None or time.monotonic() > end:
                self.process.kill()
                raise RuntimeError("the server did not start: " + "".join(self.log))
            time.sleep(0.02)

    def _read(self, stream):
        for line in stream:
            self.log.append(line)
            found = re.match(r"listening on https?://[^ ]*:(\d+) ", line)
            if found:
                self.port = int(found.group(1))

    def tries(self):
        """The curl line that the server offers, once it has."""
        return next((line for line in list(self.log) if line.startswith("try: curl ")), None)

    def wait_log(self, pattern, seconds=10):
        """The match, once it has come, or None: a thread of the server's writes the lines of its log, and the two streams may be
        read in another order than written."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, "".join(list(self.log)))):
            if time.monotonic() > end:
                return None
            time.sleep(0.02)
        return found

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def connection(self, timeout):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)

    def ask(self, method, path, body=None, headers=None, timeout=120):
        """(status, headers, body) of one request over a connection of its own."""
        connection = self.connection(timeout)
        data = body if body is None or isinstance(body, (str, bytes)) else json.dumps(body)
        connection.request(method, path, body=data, headers=headers or {})
        response = connection.getresponse()
        answer = response.status, {k.lower(): v for k, v in response.getheaders()}, response.read()
        connection.close()
        return answer

    def metric(self, name, **labels):
        """The sum of the samples of a metric that have these labels."""
        total = 0.0
        for line in self.ask("GET", "/metrics")[2].decode().splitlines():
            found = re.match(r"kvasir:(\w+)\{(.*)\} (\S+)$", line)
            if found and found.group(1) == name:
                if all(f'{key}="{value}"' in found.group(2) for key, value in labels.items()):
                    total += float(found.group(3))
        return total

    def wait_metric(self, name, wanted, seconds=30, **labels):
        end = time.monotonic() + seconds
        while self.metric(name, **labels) != wanted:
            if time.monotonic() > end:
                raise AssertionError(f"{name} {labels} is {self.metric(name, **labels)}, not {wanted}")
            time.sleep(0.02)

    def socket(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def signal(self, number=signal.SIGTERM):
        self.process.send_signal(number)

    def wait(self, timeout=60):
        code = self.process.wait(timeout)
        for reader in self.readers:
            reader.join(timeout)
        self.process.stdout.close()
        self.process.stderr.close()
        return code

    def stop(self):
        """Ends the server; its exit code."""
        if self.process.poll() is None:
            self.signal()
        try:
            return self.wait()
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.wait()


# Arguments of a call that ends soon, whatever the model.
TOOL_SCHEMA = {"type": "object", "additionalProperties": False, "required": ["place", "days"],
               "properties": {"place": {"type": "string", "maxLength": 16},
                              "days": {"type": "integer", "minimum": 1, "maximum": 7}}}

# The model repeats what its prompt ends with, so that the output has a call, and thoughts before it.
TOOL_TEMPLATE = """{%- for t in tools or [] %}{{ t.function.name }}: {{ t | tojson }}
{% endfor %}{%- for m in messages %}<|im_start|>{{ m.role }}
{%- if m.reasoning %}<think>{{ m.reasoning }}</think>{% endif %}{{ m.content }}
{%- for c in m.tool_calls %}<tool_call>
{"name": "{{ c.function.name }}", "arguments": {{ c.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if enable_thinking %}T{% endif %}<|im_start|>assistant
"""


class ToolServer(Server):
    """Serves the model as smol, with TOOL_TEMPLATE."""

    def __init__(self, *flags):
        with tempfile.NamedTemporaryFile("w", suffix=".jinja", encoding="utf-8") as file:
            file.write(TOOL_TEMPLATE)
            file.flush()
            super().__init__("--served-model-name", "smol", "--chat-template", file.name, *flags)


def stream_events(response):
    """The payloads of an event stream that http.client reads."""
    for line in response:
        text = line.decode().rstrip("\n")
        if text.startswith("data: "):
            yield text[len("data: "):]
