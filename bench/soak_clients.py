"""The clients of bench/soak.py, each a process of its own: load, faults, ten thousand idle sockets, and a watcher.

Every function of CLIENTS runs until its pipe says stop, and then sends back what it has seen as a dictionary.
"""

import asyncio
import collections
import json
import random
import re
import resource
import select
import signal
import socket
import time

HOST = "127.0.0.1"
LONGEST_SECONDS = 120  # that a closed loop goes on after its stop, until streams have ended
TCP_REPAIR = 19  # Linux: a socket that is closed with this option vanishes, and its peer hears nothing
CHUNK = re.compile(rb"([0-9a-f]+)\r\n")


def raise_file_limit():
    """To the hard limit, and root may raise that; the limit that holds."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for wanted in (max(hard, 65536), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, wanted))
            return wanted
        except (ValueError, OSError):
            continue
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def request_bytes(path, body, more="", length=None):
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n{more}"
    return (head + f"Content-Length: {len(data) if length is None else length}\r\n\r\n").encode() + data


# --- What is asked for, and what comes back ---


class Prompt:
    """A request whose answer at temperature 0 is known, once it has been asked for unloaded."""

    def __init__(self, path, fields):
        self.path, self.fields = path, fields
        self.text, self.tokens = None, 0

    def request(self, stream, bounds=None, salt=None):
        body = {**self.fields, "temperature": 0, "stream": stream}
        if stream:
            body["stream_options"] = {"include_usage": True}
        if bounds:
            body["slo"] = {"ttft_ms": bounds["ttft_ms"], "tpot_ms": bounds["tpot_ms"]}
        if salt:
            body["cache_salt"] = salt
        return request_bytes(self.path, body)


def prompts(count, seed=5):
    """Of 10 to 90 words, with 8 to 48 tokens of output; the same for a seed."""
    draw = random.Random(seed)
    words = ("raven", "river", "seven", "copper", "winter", "letter", "under", "garden", "silver", "engine", "north", "paper",
             "quiet", "orange", "market", "window", "people", "island", "yellow", "number", "story", "music", "train", "cloud")
    made = []
    for i in range(count):
        text = f"Tell me story {i} of: " + " ".join(draw.choices(words, k=draw.randint(10, 90)))
        most = draw.randint(8, 48)
        if i % 2:
            made.append(Prompt("/v1/completions", {"prompt": text, "max_tokens": most}))
        else:
            made.append(Prompt("/v1/chat/completions", {"messages": [{"role": "user", "content": text}], "max_tokens": most}))
    return made


def text_of(choice):
    return (choice.get("delta") or choice.get("message") or {}).get("content") or choice.get("text") or ""


def joined_chunks(data):
    """A body that came in chunks, whole."""
    out, at = [], 0
    while found := CHUNK.match(data, at):
        size = int(found.group(1), 16)
        out.append(data[found.end():found.end() + size])
        at = found.end() + size + 2
    return b"".join(out)


def read_answer(body, chunked):
    """(text, tokens, whether it ended as it should) of an answer with status 200."""
    if not chunked:
        answer = json.loads(body)
        return text_of(answer["choices"][0]), answer["usage"]["completion_tokens"], True
    text, tokens, done = [], 0, False
    for line in joined_chunks(body).split(b"\n"):
        if line == b"data: [DONE]":
            done = True
        elif line.startswith(b"data: "):
            event = json.loads(line[6:])
            if "error" in event:
                return "".join(text), tokens, False
            text += [text_of(choice) for choice in event["choices"]]
            tokens = (event.get("usage") or {}).get("completion_tokens", tokens)
    return "".join(text), tokens, done


class Exchange(asyncio.Protocol):
    """A connection, and the request on it. `ended` is a future while there is one: True once the answer is whole."""

    def __init__(self):
        self.transport, self.ended, self.pooled = None, None, False
        self.data, self.body_at, self.length, self.status = bytearray(), 0, None, 0
        self.first = self.last = 0.0
        self.leave_after = None  # events, and then the client leaves

    def begin(self, data, loop):
        self.data, self.body_at, self.length, self.status = bytearray(), 0, None, 0
        self.first = self.last = 0.0
        self.ended = loop.create_future()
        self.transport.write(data)
        return self.ended

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        if self.ended is None or self.ended.done():
            return
        self.data += data
        if not self.body_at:
            at = self.data.find(b"\r\n\r\n")
            if at < 0:
                return
            head = bytes(self.data[:at]).lower()
            self.body_at, self.status = at + 4, int(head[9:12])
            self.pooled = b"connection: keep-alive" in head
            length = re.search(rb"content-length: (\d+)", head)
            self.length = int(length.group(1)) if length else None
        if len(self.data) > self.body_at:
            self.last = time.monotonic()
            self.first = self.first or self.last
        if self.leave_after is not None and self.data.count(b"data: ", self.body_at) > self.leave_after:
            self.ended.set_result(False)
        elif len(self.data) - self.body_at == self.length if self.length is not None else self.data.endswith(b"\r\n0\r\n\r\n"):
            self.ended.set_result(True)

    def connection_lost(self, exc):
        self.pooled = False
        if self.ended is not None and not self.ended.done():
            self.ended.set_result(False)


class Load:
    """Requests with known answers. What is seen of them is in `seen`, which goes over a pipe."""

    def __init__(self, port, made, bounds, seed, addresses):
        self.port, self.prompts, self.bounds = port, made, bounds
        self.draw = random.Random(seed)
        self.addresses = addresses
        self.pool = []
        self.loop = asyncio.get_running_loop()
        self.begun = time.monotonic()
        self.seen = {"statuses": collections.Counter(), "right": 0, "right_tokens": 0, "wrong": [], "broken": [], "left": 0, "unanswered": 0,
                     "good_by_second": collections.Counter(), "ttft_ms": [], "tpot_ms": [], "e2e_ms": [], "refusal_ms": [],
                     "met": []}

    async def connected(self):
        while self.pool:
            connection = self.pool.pop()
            if connection.pooled and not connection.transport.is_closing():
                return connection, True
        made = await self.loop.create_connection(Exchange, HOST, self.port, local_addr=(self.draw.choice(self.addresses), 0))
        return made[1], False

    async def one(self, leaves=False):
        """One request, from its connection to the last byte, and what it was like."""
        prompt, stream = self.draw.choice(self.prompts), self.draw.random() < 0.75
        salt = f"{self.draw.getrandbits(64):x}" if self.draw.random() < 0.5 else None
        data = prompt.request(stream, self.bounds, salt)
        begun = time.monotonic()
        for _ in range(3):  # the server may close a connection that waits for its next request at any moment
            try:
                connection, used = await self.connected()
            except OSError:
                continue
            connection.leave_after = self.draw.randrange(20) if leaves and stream else None
            ended = connection.begin(data, self.loop)
            if leaves and not stream:
                self.loop.call_later(self.draw.random(), lambda f=ended: f.done() or f.set_result(False))
            whole = await ended
            if whole or leaves or connection.status or not used:
                break
        else:
            self.seen["unanswered"] += 1
            return
        if not whole:
            self.seen["left" if leaves else "unanswered"] += 1
            # With a reset or with an end, as it comes.
            (connection.transport.abort if self.draw.random() < 0.5 else connection.transport.close)()
            return
        self.note(prompt, connection, begun)
        if connection.pooled and self.draw.random() < 0.5:
            connection.ended = None
            self.pool.append(connection)
        else:
            connection.transport.close()

    def note(self, prompt, connection, begun):
        seen, now = self.seen, time.monotonic()
        seen["statuses"][connection.status] += 1
        if connection.status != 200:
            seen["refusal_ms"].append(1e3 * (now - begun))
            return
        streamed = connection.length is None
        text, tokens, ended = read_answer(bytes(connection.data[connection.body_at:]), streamed)
        if not ended:
            seen["broken"].append(text[:200])
        elif (text, tokens) != (prompt.text, prompt.tokens):
            seen["wrong"].append([prompt.text, text])
        else:
            seen["right"] += 1
            seen["right_tokens"] += tokens
        ttft = 1e3 * (connection.first - begun)
        tpot = 1e3 * (connection.last - connection.first) / max(1, tokens - 1)
        e2e = 1e3 * (now - begun)
        if streamed:
            seen["ttft_ms"].append(ttft)
            seen["tpot_ms"].append(tpot)
        seen["e2e_ms"].append(e2e)
        if self.bounds is None:
            return
        most = self.bounds
        # An answer that is not streamed has the time that a stream within both bounds may take.
        met = (ttft <= most["ttft_ms"] and tpot <= most["tpot_ms"]) if streamed else (
            e2e <= most["ttft_ms"] + most["tpot_ms"] * (tokens - 1))
        if met:
            seen["good_by_second"][int(now - self.begun)] += 1


async def until_stopped(pipe):
    while not pipe.poll():
        await asyncio.sleep(0.05)
    pipe.recv()


async def open_loop(pipe, port, made, bounds, seed, rate, left_share):
    """A Poisson process of `rate` requests per second, whatever becomes of them; of a share the client leaves early."""
    load = Load(port, made, bounds, seed, [f"127.0.0.{i}" for i in range(2, 18)])
    stopped = asyncio.ensure_future(until_stopped(pipe))
    tasks, offered, most = set(), 0, 0
    begun = at = time.monotonic()
    while not stopped.done():
        now = time.monotonic()
        while at <= now:
            task = asyncio.ensure_future(load.one(load.draw.random() < left_share))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            offered += 1
            at += load.draw.expovariate(rate)
        most = max(most, len(tasks))
        await asyncio.sleep(max(0.001, at - now))
    seconds = time.monotonic() - begun
    for task in tasks:
        task.cancel()
    return {**load.seen, "offered": offered, "seconds": seconds, "most_in_flight": most}


async def closed_loop(pipe, port, made, bounds, seed, clients):
    """So many clients, each with one request after the other; until half as many streams have ended, too."""
    load = Load(port, made, bounds, seed, [HOST])
    stopped = asyncio.ensure_future(until_stopped(pipe))

    async def client():
        while True:
            await load.one()

    begun = time.monotonic()
    tasks = [asyncio.ensure_future(client()) for _ in range(clients)]
    await stopped
    last = time.monotonic() + LONGEST_SECONDS
    while len(load.seen["ttft_ms"]) < (clients + 1) // 2 and time.monotonic() < last:
        await asyncio.sleep(0.05)
    seconds = time.monotonic() - begun
    seen = {**load.seen, "statuses": collections.Counter(load.seen["statuses"])}
    for task in tasks:
        task.cancel()
    return {**seen, "offered": sum(seen["statuses"].values()), "seconds": seconds}


# --- Faults ---


def bad_requests():
    """(name, bytes, status or None where the connection just ends, whether it is large)."""
    chat, plain = "/v1/chat/completions", "/v1/completions"
    chunked = f"POST {plain} HTTP/1.1\r\nHost: {HOST}\r\nTransfer-Encoding: chunked\r\n\r\n"
    small = {"prompt": "x", "max_tokens": 1}

    def with_field(**field):
        return request_bytes(plain, {**small, **field})

    return [
        ("no JSON", request_bytes(chat, b'{"messages": ['), 400, False),
        ("JSON that is no object", request_bytes(chat, b"[1,2]"), 400, False),
        ("bytes that are no UTF-8", request_bytes(plain, b'{"prompt":"\xff\xfe"}'), 400, False),
        ("nested a hundred thousand deep", request_bytes(chat, b'{"messages":' + b"[" * 100_000), 400, False),
        ("messages: a number", request_bytes(chat, {"messages": 5}), 400, False),
        ("max_tokens: a text", with_field(max_tokens="many"), 400, False),
        ("temperature: an object", with_field(temperature={}), 400, False),
        ("n: too large", with_field(n=100_000), 400, False),
        ("an unknown model", with_field(model="nothing"), 404, False),
        ("a prompt too long", with_field(prompt="word " * 60_000), 400, True),
        ("a length beyond the limit", request_bytes(plain, b"{", length=1 << 40), 413, False),
        ("chunks beyond the limit", chunked.encode() + (b"100000\r\n" + b" " * (1 << 20) + b"\r\n") * 17, 413, True),
        ("a body cut off", request_bytes(plain, b'{"prompt"', length=500), None, False),
        ("a chunk size that is none", chunked.encode() + b"zz\r\nab\r\n", 400, False),
        ("a chunk longer than its size", chunked.encode() + b"2\r\nabcdef\r\n0\r\n\r\n", 400, False),
        ("two lengths", request_bytes(plain, small, more="Transfer-Encoding: chunked\r\n"), 400, False),
        ("a bare LF", f"GET /health HTTP/1.1\nHost: {HOST}\n\n".encode(), 400, False),
        ("a NUL in the head", f"GET /health HTTP/1.1\r\nHost: {HOST}\r\nX: \0\r\n\r\n".encode(), 400, False),
        ("a head beyond the limit", f"GET /health HTTP/1.1\r\nHost: {HOST}\r\nX: {'a' * 40_000}\r\n\r\n".encode(), 431, False),
        ("a ClientHello of TLS", b"\x16\x03\x01\x00\x05\x01\x00\x00\x01\x03\r\n\r\n", 400, False),
        ("an unknown path", f"GET /nothing HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode(), 404, False),
        ("a wrong method", f"DELETE {chat} HTTP/1.1\r\nHost: {HOST}\r\n\r\n".encode(), 405, False),
    ]


async def send_bad(port, case, loop, seconds=30):
    """The status of the answer, None if the connection ends without one, -1 if nothing comes."""
    name, data, _, _ = case
    try:
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(HOST, port, local_addr=("127.0.0.18", 0), limit=1 << 16), seconds)
    except (OSError, asyncio.TimeoutError):
        return -1
    try:
        writer.write(data)
        if name == "a body cut off":
            writer.write_eof()
        line = await asyncio.wait_for(reader.readline(), seconds)
        return int(line.split()[1]) if line else None
    except ConnectionError:
        return None
    except asyncio.TimeoutError:
        return -1
    finally:
        writer.transport.abort()


class Faults:
    def __init__(self, port, bounds, seed):
        self.port, self.draw = port, random.Random(seed)
        self.slo = {"slo": {"ttft_ms": bounds["ttft_ms"], "tpot_ms": bounds["tpot_ms"]}, "stream": True, "ignore_eos": True}
        self.loop = asyncio.get_running_loop()
        self.seen = collections.Counter()
        self.bad = collections.Counter()
        self.cases = bad_requests()

    async def opened(self, address, small=False):
        """A socket; a small one takes as few bytes on its way as the kernel allows, on either side."""
        s = socket.socket()
        if small:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2304)
            s.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
        s.bind((address, 0))
        s.setblocking(False)
        await self.loop.sock_connect(s, (HOST, self.port))
        return s

    async def repeat(self, one, pause=1.0):
        while True:
            try:
                await one()
            except OSError:
                self.seen["connections that failed"] += 1
            await asyncio.sleep(pause * self.draw.random())

    async def slow_reader(self):
        """Asks for an answer of 200 KB and reads a byte per second of it, until the server has had enough."""
        s = await self.opened("127.0.0.19", small=True)
        try:
            body = {"messages": [{"role": "user", "content": "Count to a hundred."}], "max_tokens": 150, "logprobs": True,
                    "top_logprobs": 20, **self.slo}
            await self.loop.sock_sendall(s, request_bytes("/v1/chat/completions", body))
            head = b""
            for _ in range(300):
                byte = await self.loop.sock_recv(s, 1)
                if not byte:
                    raise ConnectionError
                head += byte
                if len(head) == 12 and head[9:] != b"200":
                    self.seen["slow readers that were refused"] += 1
                    return
                await asyncio.sleep(1)
            self.seen["slow readers that still read after 300 s"] += 1
        except ConnectionError:
            self.seen["slow readers that the server closed"] += 1
        finally:
            s.close()

    async def half_open(self):
        """Silent in the middle of a head or a body, or behind its sending side's end; or gone without a word."""
        s = await self.opened("127.0.0.20")
        try:
            whole = request_bytes("/v1/completions", {"prompt": "Count on:", "max_tokens": 200, **self.slo})
            kind = self.draw.choice(("head", "body", "end", "vanish"))
            await self.loop.sock_sendall(s, {"head": whole[:40], "body": whole[:-20]}.get(kind, whole))
            self.seen[f"half-open: {kind}"] += 1
            if kind == "end":
                s.shutdown(socket.SHUT_WR)
            if kind == "vanish":
                await asyncio.sleep(self.draw.random())
                try:
                    s.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
                except OSError:
                    self.seen["half-open: vanish was not permitted"] += 1
                return
            while await asyncio.wait_for(self.loop.sock_recv(s, 65536), 60):
                pass
        except (ConnectionError, asyncio.TimeoutError):
            pass
        finally:
            s.close()

    async def bad_request(self):
        case = self.draw.choices(self.cases, [0.1 if large else 1 for _, _, _, large in self.cases])[0]
        status = await send_bad(self.port, case, self.loop)
        self.seen["bad requests"] += 1
        if status != case[2]:
            self.bad[f"{case[0]}: {status}, not {case[2]}"] += 1


async def faults(pipe, port, bounds, seed, slow, half):
    f = Faults(port, bounds, seed)
    tasks = [asyncio.ensure_future(t) for t in
             [f.repeat(f.slow_reader) for _ in range(slow)] + [f.repeat(f.half_open, 10) for _ in range(half)] +
             [f.repeat(f.bad_request, 0.2) for _ in range(2)]]
    await until_stopped(pipe)
    # Until all have ended: asyncio.wait_for() of Python 3.11 loses a cancellation that comes together with its result.
    while tasks:
        for task in tasks:
            task.cancel()
        _, tasks = await asyncio.wait(tasks, timeout=0.1)
    return {"seen": dict(f.seen), "wrong_statuses": dict(f.bad)}


def idle(pipe, port, count):
    """Holds `count` sockets that say nothing, from forty addresses, and opens those again that the server closes."""
    raise_file_limit()
    poller, held, opened, failed, waiting = select.epoll(), {}, 0, 0, count
    while not pipe.poll():
        # A few at a time, so that the queue of the listening socket is not what is tested.
        for _ in range(min(waiting, 40)):
            s = socket.socket()
            s.bind((f"127.0.1.{1 + opened % 40}", 0))
            s.setblocking(False)
            opened += 1
            failed += s.connect_ex((HOST, port)) not in (0, 115)
            held[s.fileno()] = s
            poller.register(s, select.EPOLLIN | select.EPOLLRDHUP)
            waiting -= 1
        for fd, _ in poller.poll(0.02, 500):
            poller.unregister(fd)
            held.pop(fd).close()
            waiting += 1
    pipe.recv()
    at_end = len(held)
    for s in held.values():
        s.close()
    return {"opened": opened, "failed": failed, "held_at_the_end": at_end}


# --- The watcher ---


def ask(port, path, timeout=10):
    """(milliseconds, body) of a GET over a connection of its own."""
    begun = time.monotonic()
    with socket.create_connection((HOST, port), timeout=timeout) as s:
        s.sendall(f"GET {path} HTTP/1.1\r\nHost: {HOST}\r\nConnection: close\r\n\r\n".encode())
        data = bytearray()
        while got := s.recv(65536):
            data += got
    took = 1e3 * (time.monotonic() - begun)
    head, _, body = bytes(data).partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 200 "):
        raise OSError(f"{path}: {head[:60]!r}")
    return took, body.decode()


def watch(pipe, admin_port, control_port):
    """Asks the admin port twenty times a second, and beside it a program that only answers, for comparison."""
    seen = {"admin_ms": [], "control_ms": [], "late_ms": [], "failed": []}
    paths = ("/health", "/metrics")
    at, i = time.monotonic(), 0
    while not pipe.poll():
        at = max(at + 0.05, time.monotonic() - 1)
        time.sleep(max(0, at - time.monotonic()))
        seen["late_ms"].append(1e3 * (time.monotonic() - at))
        try:
            seen["admin_ms"].append(ask(admin_port, paths[i % 2])[0])
        except OSError as e:
            seen["failed"].append(str(e))
        seen["control_ms"].append(ask(control_port, "/")[0])
        i += 1
    pipe.recv()
    return seen


def control(pipe):
    """A server that does nothing but answer. Sends its port first."""
    with socket.create_server((HOST, 0), backlog=64) as s:
        pipe.send(s.getsockname()[1])
        s.settimeout(0.2)
        while not pipe.poll():
            try:
                connection, _ = s.accept()
            except TimeoutError:
                continue
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    pipe.recv()
    return {}


def run_client(function, pipe, *arguments):
    """What each of these processes runs."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    raise_file_limit()
    result = function(pipe, *arguments)
    pipe.send(asyncio.run(result) if asyncio.iscoroutine(result) else result)
    pipe.send(resource.getrusage(resource.RUSAGE_SELF)[:2])
