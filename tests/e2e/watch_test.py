"""A server seen from outside: its access log, its traces, its metrics under vLLM's names, the dashboard and the alerts."""

import http.server
import io
import json
import os
import pathlib
import re
import signal
import subprocess
import tempfile
import threading
import time
import unittest

from prometheus_client.parser import text_string_to_metric_families

from support import Server, model_path, run

ROOT = pathlib.Path(__file__).resolve().parents[2]
CHAT = "/v1/chat/completions"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = "00f067aa0ba902b7"

# vLLM's documentation of its metrics, as far as Kvasir has them; with those of earlier versions.
OF_VLLM = {
    "num_requests_running": "gauge", "num_requests_waiting": "gauge", "kv_cache_usage_perc": "gauge",
    "gpu_cache_usage_perc": "gauge", "cache_config_info": "gauge",
    "prompt_tokens": "counter", "generation_tokens": "counter", "request_success": "counter",
    "num_preemptions": "counter", "prefix_cache_queries": "counter", "prefix_cache_hits": "counter",
    "time_to_first_token_seconds": "histogram", "inter_token_latency_seconds": "histogram",
    "time_per_output_token_seconds": "histogram", "request_time_per_output_token_seconds": "histogram",
    "e2e_request_latency_seconds": "histogram", "request_queue_time_seconds": "histogram",
    "request_inference_time_seconds": "histogram", "request_prefill_time_seconds": "histogram",
    "request_decode_time_seconds": "histogram", "request_prompt_tokens": "histogram",
    "request_generation_tokens": "histogram", "iteration_tokens_total": "histogram",
    "request_params_n": "histogram", "request_params_max_tokens": "histogram",
    # These are in vLLM's example dashboard for Grafana, and the last of them nowhere else.
    "gpu_prefix_cache_queries": "counter", "gpu_prefix_cache_hits": "counter",
    "request_max_num_generation_tokens": "histogram",
}
VLLM_BUCKETS = {
    "time_to_first_token_seconds": [.001, .005, .01, .02, .04, .06, .08, .1, .25, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80, 160,
                                    640, 2560],
    "inter_token_latency_seconds": [.01, .025, .05, .075, .1, .15, .2, .3, .4, .5, .75, 1, 2.5, 5, 7.5, 10, 20, 40, 80],
    "e2e_request_latency_seconds": [.3, .5, .8, 1, 1.5, 2, 2.5, 5, 10, 15, 20, 30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680],
    "iteration_tokens_total": [1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384],
}


def body(text="Say a word.", **fields):
    return {"messages": [{"role": "user", "content": text}], "max_tokens": 4, "temperature": 0, "ignore_eos": True,
            **fields}


def wait_for(condition, what, seconds=20):
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise AssertionError(f"not in {seconds} s: {what}")
        time.sleep(0.02)


class Collector:
    """Takes traces; `answer(number)` is a status, or None to hang."""

    def __init__(self, answer=lambda number: 200):
        self.posts, self.spans, collector = [], [], self
        self.done = threading.Event()

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                data = self.rfile.read(int(self.headers["Content-Length"]))
                collector.posts.append((self.path, self.headers["Content-Type"], data))
                status = answer(len(collector.posts) - 1)
                if status is None:
                    collector.done.wait(120)
                    return
                if status == 200:
                    for resource in json.loads(data)["resourceSpans"]:
                        for scope in resource["scopeSpans"]:
                            collector.spans += scope["spans"]
                self.send_response(status)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.done.set()
        self.server.shutdown()
        self.server.server_close()


def attributes(span):
    values = {}
    for entry in span["attributes"]:
        (kind, value), = entry["value"].items()
        values[entry["key"]] = [v["stringValue"] for v in value["values"]] if kind == "arrayValue" else value
    return values


class Watched(Server):
    """Knows which lines came on standard error."""

    def __init__(self, *flags):
        self.stderr = []
        super().__init__(*flags)

    def _read(self, stream):
        super()._read(self._noted(stream) if stream is self.process.stderr else stream)

    def _noted(self, stream):
        for line in stream:
            self.stderr.append(line)
            yield line


class AccessLog(unittest.TestCase):
    def lines(self, path, count):
        """The objects of the file, once there are so many."""
        read = []

        def enough():
            text = path.read_bytes() if path.exists() else b""
            read[:] = text.decode("utf-8").splitlines()
            return len(read) >= count and text.endswith(b"\n")

        wait_for(enough, f"{count} lines in {path}")
        return [json.loads(line) for line in read]

    def test_a_file_that_logrotate_moves(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "access.log")
            with Server("--access-log", str(path), "--log-format", "json", "--api-key", "sk-secret-of-test") as server:
                key = {"Authorization": "Bearer sk-secret-of-test"}
                self.assertEqual(server.ask("POST", CHAT, body("A secret prompt."), {**key, "X-Request-Id": "mine-1"})[0], 200)
                self.assertEqual(server.ask("POST", CHAT, body(), {"Authorization": "Bearer sk-wrong"})[0], 401)
                self.assertEqual(server.ask("GET", "/health?key=sk-secret-of-test")[0], 200)
                server.ask("POST", "/v1/%0a\"{", body(), {**key, "X-Request-Id": '"},{"x":"'})
                raw = server.socket()
                raw.sendall(b"GET /\xff\xfe\r\n\x00\n HTTP/1.1\r\n\r\n")
                raw.recv(100)
                raw.close()
                connection = server.connection(60)
                connection.request("POST", CHAT, json.dumps(body(max_tokens=4000, stream=True)), key)
                connection.getresponse().read(200)
                connection.sock.close()
                connection.close()
                lines = self.lines(path, 6)
                self.assertEqual(lines[0]["request_id"], "mine-1")
                self.assertEqual((lines[0]["key"], lines[0]["status"], lines[0]["end"]), ("api-key-1", 200, "complete"))
                self.assertEqual((lines[0]["method"], lines[0]["path"]), ("POST", CHAT))
                self.assertEqual(lines[0]["output_tokens"], 4)
                self.assertEqual(lines[0]["finish_reason"], "length")
                self.assertGreater(lines[0]["prompt_tokens"], 5)
                self.assertGreater(lines[0]["ttft_ms"], 0)
                self.assertGreater(lines[0]["duration_ms"], lines[0]["ttft_ms"])
                self.assertGreater(lines[0]["bytes"], 100)
                self.assertEqual([line["status"] for line in lines[1:3]], [401, 200])
                self.assertEqual((lines[5]["status"], lines[5]["end"]), (499, "client_gone"))
                self.assertGreater(lines[5]["output_tokens"], 0)

                path.rename(path.with_suffix(".1"))
                server.signal(signal.SIGHUP)
                self.assertTrue(server.wait_log("log files were opened again"))
                self.assertEqual(server.ask("GET", "/version", headers=key)[0], 200)
                self.assertEqual([line["path"] for line in self.lines(path, 1)], ["/version"])
                self.assertEqual(server.metric("access_log_lines_dropped_total"), 0)
                self.assertEqual(server.stop(), 0)
                for text in (path.read_text(), path.with_suffix(".1").read_text(), "".join(server.log)):
                    self.assertNotIn("sk-", text)
                    self.assertNotIn("secret prompt", text)

    def test_every_line_of_standard_error_is_json(self):
        with Watched("--log-format", "json") as server:
            for name in ('a"b', "new\nline", "b\\x", "gr\u00fc\u00dfe", "\u2028"):
                self.assertEqual(server.ask("POST", CHAT, body(**{name: 1}))[0], 200)
            server.ask("GET", "/%ff%00")
            self.assertTrue(server.wait_log('"path":"/%ff%00"'))
            self.assertEqual(server.stop(), 0)
            lines = [json.loads(line) for line in server.stderr]
            self.assertGreaterEqual(sum(line["message"] == "request" for line in lines), 6)
            unknown = [line for line in lines if "unknown and ignored" in line["message"]]
            self.assertEqual(len(unknown), 5)
            for line in unknown:
                self.assertTrue(line["request_id"].startswith("req-"))
                self.assertEqual(line["key"], "-")

    def test_levels_and_none(self):
        with Server("--log-level", "warning") as server:
            self.assertEqual(server.ask("POST", CHAT, body(unknown_thing=1))[0], 200)
            self.assertTrue(server.wait_log("unknown_thing"))
            self.assertEqual(server.stop(), 0)
            self.assertFalse([line for line in server.log if " info " in line])
        with Server("--access-log", "none") as server:
            self.assertEqual(server.ask("POST", CHAT, body())[0], 200)
            self.assertEqual(server.stop(), 0)
            self.assertFalse([line for line in server.log if "status=200" in line])

    def test_what_is_wrong_is_said(self):
        for flags, code, named in (
                (("--access-log", "/nonexistent/a.log"), 1, "--access-log /nonexistent/a.log"),
                (("--otlp-endpoint", "127.0.0.1:4318"), 1, "--otlp-endpoint: it must begin with http://"),
                (("--otlp-endpoint", "http://me:hush@h"), 1, "--otlp-endpoint: it may have only"),
                (("--log-level", "loud"), 2, "--log-level"), (("--log-format", "xml"), 2, "--log-format"),
                (("--metrics-prefix", "x"), 2, "--metrics-prefix")):
            result = run("serve", model_path(), "--port", "0", *flags)
            self.assertEqual(result.returncode, code, (flags, result.stderr))
            self.assertIn(named, result.stderr)
            self.assertNotIn("hush", result.stderr)
        result = run("serve", model_path(), "--port", "0", "--log-format", "json", "--otlp-endpoint", "x")
        self.assertEqual(result.returncode, 1)
        line = json.loads(result.stderr)
        self.assertEqual(line["level"], "error")
        self.assertIn("--otlp-endpoint: it must begin", line["message"])

    def test_a_reader_that_leaves_does_not_end_the_server(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "fifo")
            os.mkfifo(path)
            reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
            with Server("--access-log", path) as server:
                self.assertEqual(server.ask("GET", "/health")[0], 200)
                os.close(reader)
                self.assertEqual(server.ask("GET", "/version")[0], 200)
                wait_for(lambda: server.metric("access_log_lines_dropped_total") > 0, "a line without a reader")
                self.assertEqual(server.stop(), 0)


class StuckLog(Server):
    """One whose standard error is a pipe that is not read, and is full once fill() was called."""

    def start(self, command, **popen):
        self.unread, self.end = os.pipe()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=self.end, text=True, **popen)
        self.process.stderr = io.StringIO()
        self.log = []
        self.readers = [threading.Thread(target=self._read, args=(self.process.stdout,), daemon=True)]
        self.readers[0].start()

    def fill(self):
        os.set_blocking(self.end, False)
        try:
            while True:
                os.write(self.end, b"." * 4096)
        except BlockingIOError:
            os.set_blocking(self.end, True)


class FullPipe(unittest.TestCase):
    def test_a_full_pipe_as_standard_error_stops_nothing(self):
        with StuckLog() as server:
            server.fill()
            for i in range(20):
                self.assertEqual(server.ask("POST", CHAT, body(**{f"unknown_{i}": 1}))[0], 200)
            server.signal(signal.SIGHUP)
            self.assertEqual(server.ask("GET", "/health")[0], 200)
            self.assertEqual(server.metric("log_lines_dropped_total"), 0, "they wait")
            self.assertEqual(server.stop(), 0)
        for end in (server.unread, server.end):
            os.close(end)


class Traces(unittest.TestCase):
    def collector(self, *arguments):
        collector = Collector(*arguments)
        self.addCleanup(collector.close)
        return collector

    def test_the_spans_of_a_request(self):
        collector = self.collector()
        with Server("--otlp-endpoint", collector.url, "--served-model-name", "smol",
                    environment={"OTEL_SERVICE_NAME": "my-service"}) as server:
            status, headers, _ = server.ask("POST", CHAT, body(n=2), {
                "traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"})
            self.assertEqual(status, 200)
            wait_for(lambda: len(collector.spans) >= 7, "spans")
            self.assertEqual({path for path, _, _ in collector.posts}, {"/v1/traces"})
            resource = json.loads(collector.posts[0][2])["resourceSpans"][0]["resource"]
            self.assertEqual(attributes(resource)["service.name"], "my-service")
            root, = (span for span in collector.spans if span["kind"] == 2)
            self.assertEqual((root["traceId"], root["parentSpanId"], root["traceState"]), (TRACE, PARENT, "vendor=1"))
            self.assertEqual(headers["traceresponse"], f"00-{TRACE}-{root['spanId']}-01")
            told = attributes(root)
            self.assertEqual(told["gen_ai.request.model"], "smol")
            self.assertEqual(told["gen_ai.operation.name"], "chat")
            self.assertEqual(told["gen_ai.usage.output_tokens"], "8")
            self.assertEqual(told["gen_ai.response.finish_reasons"], ["length", "length"])
            self.assertEqual(told["http.response.status_code"], "200")
            begin, end = int(root["startTimeUnixNano"]), int(root["endTimeUnixNano"])
            self.assertLess(abs(begin / 1e9 - time.time()), 60)
            children = [span for span in collector.spans if span is not root]
            self.assertEqual(sorted(span["name"] for span in children), ["decode"] * 2 + ["prefill"] * 2 + ["queue"] * 2)
            for span in children:
                self.assertEqual((span["traceId"], span["parentSpanId"]), (TRACE, root["spanId"]))
                self.assertLessEqual(begin, int(span["startTimeUnixNano"]))
                self.assertLessEqual(int(span["startTimeUnixNano"]), int(span["endTimeUnixNano"]))
                self.assertLessEqual(int(span["endTimeUnixNano"]), end)
            # Not sampled: passed on, not sent.
            _, headers, _ = server.ask("POST", CHAT, body(), {"traceparent": f"00-{TRACE}-{PARENT}-00"})
            self.assertTrue(headers["traceresponse"].endswith("-00"))
            server.ask("POST", "/v1/completions", {"prompt": "One, two,", "max_tokens": 2})
            wait_for(lambda: len(collector.spans) >= 11, "the next spans")
            self.assertEqual(len([span for span in collector.spans if span["kind"] == 2]), 2)
            server.wait_metric("trace_spans_exported_total", 11)
            self.assertNotIn(b"Say a word", b"".join(data for _, _, data in collector.posts))
            self.assertEqual(server.stop(), 0)

    def test_a_preempted_request_has_stalls(self):
        collector = self.collector()
        with Server("--otlp-endpoint", collector.url, "--scheduling-policy", "vllm", "--block-size", "16",
                    memory="12MiB") as server:
            def ask(number):
                server.ask("POST", CHAT, body(f"Count from {number}.", max_tokens=220))

            threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            preempted = server.metric("num_preemptions_total")
            self.assertGreater(preempted, 0, "the cache is too large for this test")
            self.assertEqual(server.stop(), 0)  # sends what is left
            stalls = [span for span in collector.spans if span["name"] == "stall"]
            self.assertEqual(len(stalls), preempted)
            self.assertTrue(any(int(span["endTimeUnixNano"]) > int(span["startTimeUnixNano"]) for span in stalls))

    def test_a_collector_that_hangs_or_fails_is_not_noticed(self):
        for answer, counter in ((lambda number: None, None), (lambda number: 500, "trace_spans_failed_total")):
            collector = self.collector(answer)
            with Server("--otlp-endpoint", collector.url) as server:
                for _ in range(10):
                    self.assertEqual(server.ask("POST", CHAT, body())[0], 200)
                wait_for(lambda: collector.posts, "a POST")
                if counter:
                    wait_for(lambda: server.metric(counter) > 0, counter)
                    self.assertTrue(server.wait_log("traces: the collector at .* it answers 500"))
                self.assertEqual(server.metric("trace_spans_exported_total"), 0)
                begin = time.monotonic()
                self.assertEqual(server.stop(), 0)
                self.assertLess(time.monotonic() - begin, 6, "the end did not wait for the collector")


class Names(unittest.TestCase):
    def families(self, server):
        return {family.name: family for family in text_string_to_metric_families(server.ask("GET", "/metrics")[2].decode())}

    def test_what_reads_vllms_page_reads_ours(self):
        with Server("--metrics-prefix", "vllm", "--served-model-name", 'sm"ol\\') as server:
            self.assertEqual(server.ask("POST", CHAT, body())[0], 200)
            families = self.families(server)
            for name, kind in OF_VLLM.items():
                family = families[f"vllm:{name}"]
                self.assertEqual(family.type, kind, name)
                for sample in family.samples:
                    self.assertEqual(sample.labels["model_name"], 'sm"ol\\', name)
                    self.assertEqual(sample.labels["engine"], "0", name)
                self.assertNotIn(f"kvasir:{name}", families)
            for name, buckets in VLLM_BUCKETS.items():
                bounds = [float(s.labels["le"]) for s in families[f"vllm:{name}"].samples if s.name.endswith("_bucket")]
                self.assertEqual(bounds, [*buckets, float("inf")], name)
            ended = {s.labels["finished_reason"]: s.value for s in families["vllm:request_success"].samples
                     if s.name == "vllm:request_success_total"}
            self.assertEqual(ended, {"stop": 0, "length": 1, "abort": 0, "error": 0})
            longest = {s.name: s.value for s in families["vllm:request_max_num_generation_tokens"].samples}
            self.assertEqual(longest["vllm:request_max_num_generation_tokens_sum"], 4)
            self.assertIn("kvasir:kv_tier_bytes", families)

    def test_the_dashboard_and_the_alerts_name_metrics_that_exist(self):
        dashboard = json.loads((ROOT / "deploy/grafana/kvasir.json").read_text())
        texts = [target["expr"] for panel in dashboard["panels"] for target in panel.get("targets", ())]
        texts += [variable["query"]["query"] for variable in dashboard["templating"]["list"] if variable["type"] == "query"]
        texts += [line for line in (ROOT / "deploy/prometheus/alerts.yaml").read_text().splitlines()
                  if not line.lstrip().startswith(("#", "summary:", "description:"))]
        text = "\n".join(texts)
        either = set(re.findall(r"(?:\$\{prefix\}|\(kvasir\|vllm\)):(\w+)", text))
        ours = set(re.findall(r"(?<![|\w])kvasir:(\w+)", text))
        self.assertGreater(len(either), 12)
        self.assertGreater(len(ours), 20)
        collector = Collector()
        self.addCleanup(collector.close)
        with tempfile.TemporaryDirectory() as folder:
            keys = pathlib.Path(folder, "keys.yaml")
            keys.write_text("keys:\n  - name: alice\n    sha256: " + "ab" * 32 + "\n")
            for prefix in ("kvasir", "vllm"):
                with Server("--metrics-prefix", prefix, "--api-keys", str(keys), "--otlp-endpoint", collector.url,
                            "--kv-offloading-size", "16MiB", "--kv-offloading-dir", folder, "--kv-offloading-disk-size", "16MiB",
                            memory="16MiB") as server:
                    samples = {sample.name for family in self.families(server).values() for sample in family.samples}
                missing = {f"{prefix}:{name}" for name in either} - samples | {f"kvasir:{name}" for name in ours} - samples
                self.assertEqual(missing, set())

    def test_the_dashboard_is_what_grafana_reads(self):
        dashboard = json.loads((ROOT / "deploy/grafana/kvasir.json").read_text())
        self.assertEqual(dashboard["schemaVersion"], 39)  # Grafana 11's
        self.assertEqual(dashboard["templating"]["list"][0]["type"], "datasource")
        panels = dashboard["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        taken = set()
        for panel in panels:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            self.assertFalse(cells & taken, panel["title"])
            self.assertLessEqual(at["x"] + at["w"], 24)
            taken |= cells
            if panel["type"] != "row":
                self.assertEqual(panel["datasource"]["uid"], "${datasource}")
                self.assertTrue(panel["targets"])
        for wanted in ("Requests by status", "Time to first token", "Attainment by bound", "KV cache in use by tier", "Preemptions",
                       "Bytes moved between tiers", "In progress by key"):
            self.assertIn(wanted, [panel["title"] for panel in panels])


if __name__ == "__main__":
    unittest.main(verbosity=2)
