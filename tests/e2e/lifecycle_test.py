"""Start and end of `kvasir serve`: readiness, signals, drain, mistakes on the command line."""

import http.client
import json
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading
import time
import unittest

from support import Server, binary, clean_environment, model_path, run, stream_events

CHAT = "/v1/chat/completions"


def start_stream(server, max_tokens):
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    connection.request("POST", CHAT, json.dumps({
        "messages": [{"role": "user", "content": "Tell me a story."}], "stream": True, "ignore_eos": True,
        "max_tokens": max_tokens}))
    response = connection.getresponse()
    events = stream_events(response)
    next(events)
    next(events)
    return connection, events


class Unready(Server):
    """A server that may not be ready when the constructor returns."""

    def __init__(self, *flags):
        self.start([binary(), "serve", model_path(), "--kv-cache-memory-bytes", "256MiB", *flags],
                   env=clean_environment())
        self.port = int(flags[flags.index("--port") + 1])


class Lifecycle(unittest.TestCase):
    def test_the_curl_line_works(self):
        with Server() as server:
            line = server.tries()
            data = line[line.index("-d '") + 4:line.rindex("'")]
            status, _, answer = server.ask("POST", CHAT, data)
            self.assertEqual(status, 200, answer)
            self.assertIn(f":{server.port}{CHAT}", line)
            self.assertTrue(any("memory" in text for text in server.log))
            self.assertEqual(server.stop(), 0)

    def test_sigterm_lets_running_requests_finish(self):
        with Server() as server:
            connection, events = start_stream(server, 60)
            server.signal()
            # Readiness fails first, while the stream goes on.
            end = time.monotonic() + 10
            while server.ask("GET", "/health")[0] != 503 and time.monotonic() < end:
                pass
            status, headers, _ = server.ask("POST", CHAT, {"messages": [{"role": "user", "content": "a"}]})
            self.assertEqual(status, 503)
            self.assertIn("retry-after", headers)
            rest = list(events)
            self.assertEqual(rest[-1], "[DONE]")
            self.assertEqual(json.loads(rest[-2])["choices"][0]["finish_reason"], "length")
            connection.close()
            self.assertEqual(server.wait(), 0)

    def test_the_shutdown_timeout_ends_what_is_left(self):
        with Server("--shutdown-timeout", "0.3") as server:
            connection, events = start_stream(server, 4000)
            begin = time.monotonic()
            server.signal(signal.SIGINT)
            rest = list(events)
            self.assertIn("error", json.loads(rest[-2]))
            self.assertEqual(rest[-1], "[DONE]")
            connection.close()
            self.assertEqual(server.wait(), 0)
            self.assertLess(time.monotonic() - begin, 20)

    def test_a_second_signal_stops_at_once(self):
        with Server("--shutdown-timeout", "600") as server:
            connection, events = start_stream(server, 4000)
            server.signal()
            time.sleep(0.2)
            self.assertIsNone(server.process.poll())
            server.signal()
            self.assertEqual(list(events)[-1], "[DONE]")
            connection.close()
            self.assertEqual(server.wait(20), 0)

    def test_a_signal_while_loading_ends_it_at_once(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            with tempfile.TemporaryDirectory() as folder:
                template = os.path.join(folder, "template")
                os.mkfifo(template)  # nothing writes to it, so that loading does not end
                process = subprocess.Popen(
                    [binary(), "serve", model_path(), "--port", "0", "--chat-template", template],
                    stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=clean_environment())
                blocked, end = 0, time.monotonic() + 20
                while not blocked >> (number - 1) & 1 and time.monotonic() < end:
                    with open(f"/proc/{process.pid}/status") as status:
                        blocked = next(int(line.split()[1], 16) for line in status if line.startswith("SigBlk"))
                process.send_signal(number)
                output, log = process.communicate(timeout=20)
                self.assertEqual(process.returncode, 128 + number, log)
                self.assertEqual(output, "")
                self.assertEqual(log.count("\n"), 1, log)
                self.assertIn(signal.Signals(number).name, log)

    def test_probes_while_it_loads(self):
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            template = os.path.join(folder, "template")
            os.mkfifo(template)  # loading does not end before something is written to it
            with Unready("--port", str(port), "--chat-template", template) as server:
                end = time.monotonic() + 20
                while True:
                    try:
                        status, headers, answer = server.ask("GET", "/readyz")
                        break
                    except ConnectionError:
                        self.assertLess(time.monotonic(), end)
                        time.sleep(0.02)
                self.assertEqual(status, 503)
                self.assertIn("retry-after", headers)
                self.assertIn("still loading", json.loads(answer)["error"]["message"])
                self.assertEqual(server.ask("GET", "/livez")[0], 200)
                with open(template, "w", encoding="utf-8") as file:
                    file.write("{% for m in messages %}{{ m.content }}{% endfor %}")
                server.wait_ready()
                self.assertEqual(server.ask("GET", "/readyz")[0], 200)
                self.assertEqual(server.stop(), 0)

    def test_drain_delay(self):
        with Server("--drain-delay", "3", "--admin-port", "0") as server:
            found = re.search(r"admin port: http://127.0.0.1:(\d+)", "".join(server.log))
            admin_port = int(found.group(1))

            def probe(path):
                connection = http.client.HTTPConnection("127.0.0.1", admin_port, timeout=10)
                connection.request("GET", path)
                response = connection.getresponse()
                answer = response.status, response.read().decode()
                connection.close()
                return answer

            self.assertEqual(probe("/readyz")[0], 200)
            connection, events = start_stream(server, 3500)
            begin = time.monotonic()
            server.signal()
            while probe("/readyz")[0] == 200:
                self.assertLess(time.monotonic() - begin, 2)
            self.assertIn("about to shut down", probe("/readyz")[1])
            # What still comes is served, and its connection closes.
            self.assertEqual(probe("/health")[0], 200)
            body = {"messages": [{"role": "user", "content": "a"}], "max_tokens": 2}
            status, headers, answer = server.ask("POST", CHAT, body)
            self.assertEqual(status, 200, answer)
            self.assertEqual(headers["connection"], "close")
            while probe("/health")[0] == 200:
                time.sleep(0.02)
            self.assertGreater(time.monotonic() - begin, 2.5)
            status, headers, _ = server.ask("POST", CHAT, body)
            self.assertEqual((status, headers["connection"]), (503, "close"))
            self.assertIn("retry-after", headers)
            self.assertEqual(probe("/livez")[0], 200)
            # The stream that runs ends by itself, and the admin port answers until then.
            tokens = 0
            for event in events:
                tokens += 1
                if tokens % 500 == 0 and event != "[DONE]":
                    self.assertEqual(probe("/readyz")[0], 503)
                last = event
            self.assertEqual(last, "[DONE]")
            connection.close()
            self.assertEqual(server.wait(), 0)

    def test_a_second_signal_ends_the_drain_delay(self):
        with Server("--drain-delay", "600", "--shutdown-timeout", "600") as server:
            connection, events = start_stream(server, 3500)
            server.signal()
            while server.ask("GET", "/readyz")[0] == 200:
                pass
            self.assertIsNone(server.process.poll())
            server.signal()
            rest = list(events)
            self.assertIn("error", json.loads(rest[-2]))
            connection.close()
            self.assertEqual(server.wait(20), 0)

    def test_memory_that_the_system_refuses(self):
        with Server("--admin-port", "0") as server:
            def ask(text):
                return server.ask("POST", CHAT, {"messages": [{"role": "user", "content": text}], "max_tokens": 8,
                                                 "temperature": 0})

            status, _, answer = ask("What is a raven?")
            self.assertEqual(status, 200)
            right = json.loads(answer)["choices"]
            pid = server.process.pid
            unlimited = resource.prlimit(pid, resource.RLIMIT_AS)
            statuses = []

            def send_much(number):
                try:
                    statuses.append(ask(f"{number} " + "raven " * 2_000_000)[0])
                except (OSError, http.client.HTTPException):
                    statuses.append(0)  # not even a short answer could be sent

            for spare in (0, 1 << 20, 8 << 20, 32 << 20):
                with open(f"/proc/{pid}/statm") as statm:
                    mapped = int(statm.read().split()[0]) * resource.getpagesize()
                resource.prlimit(pid, resource.RLIMIT_AS, (mapped + spare, unlimited[1]))
                clients = [threading.Thread(target=send_much, args=(i,)) for i in range(6)]
                for client in clients:
                    client.start()
                for client in clients:
                    client.join()
                resource.prlimit(pid, resource.RLIMIT_AS, unlimited)
                status, _, answer = ask("What is a raven?")
                self.assertEqual((status, json.loads(answer)["choices"]), (200, right))
            # Refused for want of memory, or for their length where there was enough.
            self.assertLessEqual(set(statuses), {0, 400, 500, 503}, statuses)
            self.assertGreater(statuses.count(503), 0, statuses)
            self.assertEqual(server.stop(), 0)

    def test_idle_clients_do_not_hold_up_the_end(self):
        with Server() as server:
            idle = [server.socket() for _ in range(20)]
            half = server.socket()
            half.sendall(b"GET /hea")
            begin = time.monotonic()
            self.assertEqual(server.stop(), 0)
            self.assertLess(time.monotonic() - begin, 5)
            for s in idle + [half]:
                s.close()

    def test_flags_and_environment(self):
        with tempfile.NamedTemporaryFile("w", suffix=".keys") as keys:
            keys.write("from-file\n\n  \n")
            keys.flush()
            environment = {"KVASIR_SERVED_MODEL_NAME": "from-environment", "KVASIR_MAX_MODEL_LEN": "512",
                           "KVASIR_API_KEY": "from-environment", "KVASIR_HOST": "127.0.0.1",
                           "KVASIR_ENABLE_PREFIX_CACHING": "false"}
            with Server("--max-model-len", "256", "--api-key-file", keys.name, environment=environment) as server:
                for key in ("from-file", "from-environment"):
                    status, _, answer = server.ask("GET", "/v1/models",
                                                   headers={"Authorization": "Bearer " + key})
                    self.assertEqual(status, 200)
                    model = json.loads(answer)["data"][0]
                    self.assertEqual(model["id"], "from-environment")
                    self.assertEqual(model["max_model_len"], 256)
                self.assertEqual(server.ask("GET", "/v1/models")[0], 401)
                self.assertIn('enable_prefix_caching="False"', server.ask("GET", "/metrics")[2].decode())
                self.assertEqual(server.stop(), 0)

    def test_named_keys_are_read_again_and_have_prefixes_of_their_own(self):
        def new(name):
            made = run("key", name)
            self.assertEqual(made.returncode, 0, made.stderr)
            return made.stdout.splitlines()[0].split()[-1], "\n".join(made.stdout.splitlines()[2:]) + "\n"

        (alice, alice_entry), (bob, bob_entry) = new("alice"), new("bob")
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as keys:
            def write(text):
                keys.seek(0)
                keys.truncate()
                keys.write(text)
                keys.flush()

            def ask(key, text="The raven flew over the fjord and came back. " * 20):
                status, headers, answer = server.ask(
                    "POST", "/v1/completions", {"prompt": text, "max_tokens": 4, "temperature": 0, "logprobs": 1},
                    headers={"Authorization": "Bearer " + key})
                return status, headers, json.loads(answer)

            write("keys:\n" + alice_entry + "    tokens_per_minute: 100000\n" + bob_entry)
            with Server("--api-keys", keys.name) as server:
                first, again, other = ask(alice), ask(alice), ask(bob)
                cached = [a[2]["usage"]["prompt_tokens_details"]["cached_tokens"] for a in (first, again, other)]
                self.assertEqual((cached[0], cached[2]), (0, 0))
                self.assertGreater(cached[1], 0)
                self.assertEqual(first[2]["choices"], again[2]["choices"])
                self.assertEqual(first[2]["choices"], other[2]["choices"])
                self.assertEqual(first[1]["x-ratelimit-limit-tokens"], "100000")
                self.assertNotIn("x-ratelimit-limit-tokens", other[1])
                self.assertEqual(server.metric("key_requests_total", key="alice"), 2)

                write("keys:\n" + bob_entry + "    color: red\n")
                server.signal(signal.SIGHUP)
                self.assertTrue(server.wait_log("the old API keys stay in use: .*bob|color"))
                self.assertEqual(ask(alice)[0], 200)
                write("keys:\n" + bob_entry)
                server.signal(signal.SIGHUP)
                self.assertTrue(server.wait_log("API keys were read again"))
                end = time.monotonic() + 10
                while ask(alice, "a")[0] != 401 and time.monotonic() < end:
                    pass
                self.assertEqual(ask(alice, "a")[0], 401)
                self.assertEqual(ask(bob)[0], 200)
                self.assertEqual(server.stop(), 0)
            write("keys:\n" + alice_entry + bob_entry)
            with Server("--api-keys", keys.name, "--share-prefixes") as server:
                self.assertEqual(ask(alice)[2]["usage"]["prompt_tokens_details"]["cached_tokens"], 0)
                self.assertGreater(ask(bob)[2]["usage"]["prompt_tokens_details"]["cached_tokens"], 0)

    def test_a_reload_that_hangs_holds_up_no_signal(self):
        with tempfile.TemporaryDirectory() as folder:
            keys = os.path.join(folder, "keys")
            with open(keys, "w", encoding="utf-8") as file:
                file.write("a-key\n")
            with Server("--api-key-file", keys, "--shutdown-timeout", "5") as server:
                os.unlink(keys)
                os.mkfifo(keys)  # as a file on a server that hangs
                server.signal(signal.SIGHUP)
                time.sleep(0.3)
                server.signal()
                self.assertEqual(server.wait(), 0)
                self.assertTrue(any("the reload that SIGHUP began has not ended" in line for line in server.log), server.log)

    def test_mistakes_get_one_line(self):
        model = model_path()
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            cases = [
                ([model, "--port", str(port)], 1, str(port)),
                ([model, "--host", "no such host", "--port", "0"], 1, "no such host"),
                (["/nonexistent.gguf", "--port", "0"], 1, "/nonexistent.gguf"),
                ([model, "--port", "0", "--scheduling-policy", "chaos"], 1, "chaos"),
                ([model, "--port", "0", "--kv-cache-memory-bytes", "1KiB"], 1, "kv-cache-memory-bytes"),
                ([model, "--port", "0", "--max-model-len", "99999999"], 1, "max-model-len"),
                ([model, "--port", "0", "--kv-cache-memory-bytes", "8MiB", "--kv-offloading-size", "8MiB",
                  "--max-model-len", "8192"], 1, "--kv-offloading-size"),
                ([model, "--port", "0", "--kv-offloading-size", "999999"], 1, "--kv-offloading-size"),
                ([model, "--port", "0", "--link-gbytes-per-s", "1"], 1, "--kv-offloading-size"),
                ([model, "--kv-offloading-size", "lots"], 2, "--kv-offloading-size"),
                ([model, "--max-decode-stall-ms", "-1"], 2, "--max-decode-stall-ms"),
                ([model, "--port", "0", "--api-key-file", "/nonexistent"], 1, "api-key-file"),
                ([model, "--port", "0", "--api-keys", "/nonexistent"], 1, "api-keys"),
                ([model, "--port", "70000"], 2, "port"),
                ([model, "--admin-host", "0.0.0.0"], 2, "--admin-port"),
                ([model, "--kv-cache-memory-bytes", "lots"], 2, "kv-cache-memory-bytes"),
                ([model, "--no-such-flag"], 2, "no-such-flag"),
                ([], 2, "model"),
            ]
            for arguments, code, named in cases:
                result = run("serve", *arguments)
                self.assertEqual(result.returncode, code, (arguments, result.stderr))
                complaint = [line for line in result.stderr.splitlines()
                             if " info " not in line and not line.startswith("Run with --help")]
                self.assertEqual(len(complaint), 1, (arguments, result.stderr))
                self.assertIn(named, complaint[0])
                self.assertEqual(result.stdout, "")

    def test_many_clients_that_come_and_go(self):
        with Server() as server:
            def visit(seed):
                for i in range(15):
                    s = server.socket()
                    data = json.dumps({"messages": [{"role": "user", "content": f"{seed} {i}"}], "max_tokens": 3,
                                       "stream": (seed + i) % 2 == 0}).encode()
                    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(data)}\r\n\r\n".encode()
                    whole = head + data
                    s.sendall(whole[:len(whole) - (i % 3)])
                    if i % 5 == 0 and i % 3 == 0:
                        s.recv(10)
                    s.close()

            threads = [threading.Thread(target=visit, args=(n,)) for n in range(8)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
            server.wait_metric("num_requests_running", 0)
            server.wait_metric("num_requests_waiting", 0)
            self.assertEqual(server.metric("kv_blocks", state="used"), 0)
            self.assertEqual(server.ask("POST", CHAT, {"messages": [{"role": "user", "content": "hi"}],
                                                       "max_tokens": 2})[0], 200)
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
