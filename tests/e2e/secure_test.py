"""TLS, the admin port, and SIGHUP, from outside."""

import http.client
import json
import os
import signal
import ssl
import subprocess
import tempfile
import time
import unittest

from support import Server, model_path, run

CHAT = "/v1/chat/completions"
BODY = json.dumps({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "stream": True})


def certificate(folder, name):
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", f"/CN={name}", "-addext", "subjectAltName=IP:127.0.0.1",
                    "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"], check=True, capture_output=True)


class Tls(unittest.TestCase):
    def test_both_ports_speak_it_and_sighup_renews_it(self):
        with tempfile.TemporaryDirectory() as folder:
            certificate(folder, "first")
            files = "--ssl-certfile", f"{folder}/cert.pem", "--ssl-keyfile", f"{folder}/key.pem"
            with Server(*files, "--admin-port", "0") as server:
                self.assertIn("try: curl https://127.0.0.1:", server.tries())
                admin = next(line for line in server.log if line.startswith("admin port: https://127.0.0.1:"))
                admin_port = int(admin.rsplit(":", 1)[1])

                def client(port):
                    trusted = ssl.create_default_context(cafile=f"{folder}/cert.pem")
                    return http.client.HTTPSConnection("127.0.0.1", port, timeout=60, context=trusted)

                for port, path in ((server.port, "/health"), (admin_port, "/metrics")):
                    connection = client(port)
                    connection.request("GET", path)
                    answer = connection.getresponse()
                    self.assertEqual(answer.status, 200)
                    answer.read()
                    connection.request("POST", CHAT, BODY)  # over the same connection
                    answer = connection.getresponse()
                    self.assertEqual(answer.status, 200 if port == server.port else 404)
                    if port == server.port:
                        self.assertTrue(answer.read().decode().endswith("data: [DONE]\n\n"))
                    connection.close()
                for protocol, taken in (("-tls1", False), ("-tls1_1", False), ("-tls1_2", True), ("-tls1_3", True)):
                    result = subprocess.run(
                        ["openssl", "s_client", protocol, "-cipher", "ALL@SECLEVEL=0", "-CAfile", f"{folder}/cert.pem",
                         "-connect", f"127.0.0.1:{server.port}"],
                        input=b"", capture_output=True, timeout=60, check=False)
                    self.assertEqual(b"Verify return code: 0 (ok)" in result.stdout and result.returncode == 0, taken,
                                     (protocol, result))
                old = ssl.get_server_certificate(("127.0.0.1", server.port))
                os.rename(f"{folder}/key.pem", f"{folder}/first.pem")
                server.signal(signal.SIGHUP)
                self.assertTrue(server.wait_log(r"SIGHUP: the old certificates stay in use: --ssl-keyfile"), server.log)
                certificate(folder, "second")
                server.signal(signal.SIGHUP)
                self.assertTrue(server.wait_log(r"SIGHUP: certificates were read again"), server.log)
                end = time.monotonic() + 10
                while ssl.get_server_certificate(("127.0.0.1", server.port)) == old and time.monotonic() < end:
                    time.sleep(0.02)
                connection = client(server.port)
                connection.request("GET", "/health")
                self.assertEqual(connection.getresponse().status, 200)
                connection.close()
                self.assertEqual(server.stop(), 0)

    def test_mistakes(self):
        missing = run("serve", model_path(), "--port", "0", "--ssl-certfile", "/nonexistent", "--ssl-keyfile", "/nonexistent")
        self.assertEqual(missing.returncode, 1)
        self.assertIn("--ssl-certfile /nonexistent: cannot be read", missing.stderr)


class AdminPort(unittest.TestCase):
    def test_drains_and_is_there_to_the_end(self):
        with Server("--admin-port", "0", "--cors-origins", "https://a.example") as server:
            public = server.port
            admin = int(next(line for line in server.log if line.startswith("admin port: ")).rsplit(":", 1)[1])
            self.assertEqual(server.ask("GET", "/metrics")[0], 404)
            headers = server.ask("GET", "/health", headers={"Origin": "https://a.example"})[1]
            self.assertEqual(headers["access-control-allow-origin"], "https://a.example")
            server.port = admin
            self.assertEqual(server.ask("GET", "/metrics")[0], 200)
            self.assertEqual(json.loads(server.ask("POST", "/admin/drain")[2])["running_requests"], 0)
            self.assertEqual(server.ask("GET", "/health")[0], 503)
            server.port = public
            self.assertEqual(server.ask("POST", CHAT, BODY)[0], 503)
            self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
