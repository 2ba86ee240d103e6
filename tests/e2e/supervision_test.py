"""A server under a supervisor that speaks systemd's protocols: this test. And `kvasir health`, the probe."""

import json
import os
import signal
import socket
import tempfile
import time
import unittest

from support import Server, binary, clean_environment, model_path, run

COMPLETION = {"prompt": "A raven is", "max_tokens": 8, "temperature": 0}


def start_stream(server):
    """The connection of a request that runs for long."""
    connection = server.connection(60)
    connection.request("POST", "/v1/completions", json.dumps(
        {**COMPLETION, "max_tokens": 4000, "ignore_eos": True, "stream": True}))
    response = connection.getresponse()
    assert response.status == 200, response.read()
    response.readline()
    return connection


class Supervisor:
    """The socket on which a service says how it fares."""

    def __init__(self, folder):
        self.path = os.path.join(folder, "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.path)
        self.socket.settimeout(60)

    def next(self):
        return self.socket.recv(4096).decode()

    def next_but_beats(self):
        """The next message that is no beat of the watchdog."""
        while (message := self.next()) == "WATCHDOG=1":
            pass
        return message

    def close(self):
        self.socket.close()


class SupervisedServer(Server):
    """Started as systemd starts it: with `listener` as its descriptor 3, where there is one."""

    def __init__(self, supervisor, *flags, listener=None, watchdog_s=None):
        environment = {"NOTIFY_SOCKET": supervisor.path}
        command = [binary(), "serve", model_path(), "--kv-cache-memory-bytes", "256MiB", *flags]
        options = {}
        if watchdog_s:
            environment["WATCHDOG_USEC"] = str(int(watchdog_s * 1e6))
        if listener:
            # Only the shell knows the process's number in time.
            start = f'exec 3<&{listener.fileno()}; LISTEN_FDS=1 LISTEN_PID=$$ exec "$@"'
            command = ["bash", "-c", start, "bash", *command]
            options["pass_fds"] = [listener.fileno()]
        self.start(command, env=clean_environment(**environment), **options)


class Supervision(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.supervisor = Supervisor(folder.name)
        self.addCleanup(self.supervisor.close)

    def test_ready_reloading_stopping(self):
        with SupervisedServer(self.supervisor, "--port", "0") as server:
            self.assertEqual(self.supervisor.next(), "READY=1")
            server.wait_ready()
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            before = time.monotonic_ns() // 1000
            server.signal(signal.SIGHUP)
            state, when = self.supervisor.next().split("\n")
            self.assertEqual(state, "RELOADING=1")
            name, micros = when.split("=")
            self.assertEqual(name, "MONOTONIC_USEC")
            self.assertTrue(before <= int(micros) <= time.monotonic_ns() // 1000, micros)
            self.assertEqual(self.supervisor.next(), "READY=1")
            self.assertEqual(server.stop(), 0)
            self.assertEqual(self.supervisor.next(), "STOPPING=1")

    def test_a_hangup_while_loading_is_not_ready(self):
        with tempfile.TemporaryDirectory() as folder:
            template = os.path.join(folder, "template")
            os.mkfifo(template)  # loading waits for what is written to it
            with SupervisedServer(self.supervisor, "--port", "0", "--chat-template", template) as server:
                writer = os.open(template, os.O_WRONLY)  # returns when the server reads
                server.signal(signal.SIGHUP)
                self.assertTrue(server.wait_log("SIGHUP"))
                self.supervisor.socket.setblocking(False)
                self.assertRaises(BlockingIOError, self.supervisor.next)
                self.supervisor.socket.settimeout(60)
                os.write(writer, b"{{ messages[0].content }}")
                os.close(writer)
                self.assertEqual(self.supervisor.next(), "READY=1")
                self.assertEqual(server.stop(), 0)

    def test_beats_while_it_runs_and_none_while_it_does_not(self):
        with SupervisedServer(self.supervisor, "--port", "0", watchdog_s=0.2) as server:
            self.assertEqual(self.supervisor.next(), "READY=1")
            self.assertEqual([self.supervisor.next() for _ in range(5)], ["WATCHDOG=1"] * 5)
            server.signal(signal.SIGSTOP)
            self.supervisor.socket.settimeout(1)
            with self.assertRaises(TimeoutError):
                for _ in range(20):  # those on their way
                    self.supervisor.next()
            self.supervisor.socket.settimeout(60)
            server.signal(signal.SIGCONT)
            self.assertEqual(self.supervisor.next(), "WATCHDOG=1")
            # And while requests finish.
            server.wait_ready()
            stream = start_stream(server)
            server.signal()
            self.assertEqual(self.supervisor.next_but_beats(), "STOPPING=1")
            self.assertEqual([self.supervisor.next() for _ in range(3)], ["WATCHDOG=1"] * 3)
            server.signal()
            self.assertEqual(server.wait(), 0)
            stream.close()

    def test_clients_of_an_inherited_socket_wait_while_the_server_is_replaced(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            answers = []
            # The flag gives way to the socket.
            for _ in range(2):
                early = socket.create_connection(("127.0.0.1", port), timeout=60)  # while no server runs
                early.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                with SupervisedServer(self.supervisor, "--port", "1", listener=listener) as server:
                    self.assertEqual(self.supervisor.next(), "READY=1")
                    server.wait_ready()
                    self.assertEqual(server.port, port)
                    self.assertIn(b" 200 ", early.recv(4096).splitlines()[0])
                    early.close()
                    status, _, answer = server.ask("POST", "/v1/completions", COMPLETION)
                    self.assertEqual(status, 200, answer)
                    answers.append(json.loads(answer)["choices"])
                    self.assertEqual(server.stop(), 0)
                    self.assertEqual(self.supervisor.next(), "STOPPING=1")
            self.assertEqual(answers[0], answers[1])

    def test_clients_wait_while_the_last_requests_of_the_old_server_run(self):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port = listener.getsockname()[1]
            with SupervisedServer(self.supervisor, listener=listener) as old:
                self.assertEqual(self.supervisor.next(), "READY=1")
                old.wait_ready()
                stream = start_stream(old)
                old.signal()
                self.assertTrue(old.wait_log("requests that run have"))
                client = socket.create_connection(("127.0.0.1", port), timeout=60)
                client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
                old.signal()  # ends the stream
                self.assertEqual(old.wait(), 0)
                stream.close()
            self.assertEqual(self.supervisor.next(), "STOPPING=1")
            with SupervisedServer(self.supervisor, listener=listener) as new:
                self.assertEqual(self.supervisor.next(), "READY=1")
                self.assertIn(b" 200 ", client.recv(4096).splitlines()[0])
                client.close()
                self.assertEqual(new.stop(), 0)

    def test_an_inherited_socket_that_cannot_be_used_is_named(self):
        with socket.socket() as silent:  # it does not listen
            with SupervisedServer(self.supervisor, listener=silent) as server:
                self.assertEqual(server.wait(), 1)
                self.assertTrue(server.wait_log("kvasir serve: .*LISTEN_FDS.*ListenStream="), server.log)


class Health(unittest.TestCase):
    def test_tells_who_can_serve(self):
        with Server("--admin-port", "0") as server:
            admin = next(line for line in server.log if line.startswith("admin port: "))
            ports = server.port, int(admin.rsplit(":", 1)[1])
            for port in ports:
                result = run("health", "--port", str(port))
                self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
            # As a container's: both commands read the same environment.
            self.assertEqual(run("health", KVASIR_PORT=str(server.port), KVASIR_HOST="0.0.0.0").returncode, 0)
            stream = start_stream(server)
            server.signal()
            end = time.monotonic() + 20
            while (result := run("health", "--port", str(server.port))).returncode == 0 and time.monotonic() < end:
                pass
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, r"^kvasir health: 127.0.0.1:\d+: it answered 503 .*\n$")
            server.signal()
            self.assertEqual(server.wait(), 0)
            stream.close()
        result = run("health", "--port", str(ports[0]))
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr, r"^kvasir health: 127.0.0.1:\d+: .*refused\n$")


if __name__ == "__main__":
    unittest.main(verbosity=2)
