"""bench/soak.py for a quarter of a minute: what no other program on the machine can disturb must hold; and large bodies."""

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

from support import Server, binary, clean_environment, model_path

SOAK = pathlib.Path(__file__).resolve().parents[2] / "bench" / "soak.py"


class Memory(unittest.TestCase):
    def test_that_of_large_bodies_is_given_back(self):
        def anonymous_mib(server):
            status = pathlib.Path(f"/proc/{server.process.pid}/status").read_text(encoding="ascii")
            return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) / 1024

        def send_large(server):
            # Words without meaning, which are refused once all of them have come.
            self.assertEqual(server.ask("POST", "/v1/completions", b"x" * (15 << 20))[0], 400)

        with Server() as server:
            server.ask("POST", "/v1/completions", b"x" * (1 << 20))  # starts the thread of long bodies
            before = anonymous_mib(server)
            held = []
            for _ in range(4):
                send_large(server)
                held.append(server.socket())  # takes a little memory behind what the body had
            self.assertLess(anonymous_mib(server) - before, 8)
            for s in held:
                s.close()
            self.assertEqual(server.stop(), 0)


class Soak(unittest.TestCase):
    def test_answers_are_right_and_nothing_is_left_behind(self):
        with tempfile.TemporaryDirectory() as folder:
            result = os.path.join(folder, "soak.json")
            done = subprocess.run(
                [sys.executable, SOAK, "--minutes", "0.25", "--capacity-seconds", "3", "--prompts", "16", "--idle", "1000",
                 "--kvasir", binary(), "--model", model_path(), "--json", result, "--serve-flag=--timeout-keep-alive=10"],
                capture_output=True, text=True, timeout=500, env=clean_environment(), check=False)
            self.assertTrue(os.path.exists(result), done.stdout + done.stderr)
            with open(result, encoding="utf-8") as file:
                measured = json.load(file)
        for criterion in measured["criteria"]:
            if not criterion["disturbed"]:
                self.assertTrue(criterion["holds"], (criterion, measured["log"]))
        # It was what it says: an overload, with each kind of fault.
        self.assertGreater(measured["overload"]["right"], 0)
        self.assertGreater(measured["overload"]["statuses"].get("503", 0), 0)
        self.assertGreater(measured["most_connections"], 500)
        self.assertGreater(measured["faults"]["seen"]["bad requests"], 0)
        self.assertTrue({"half-open: head", "half-open: body", "half-open: end", "half-open: vanish"} <=
                        measured["faults"]["seen"].keys(), measured["faults"])


if __name__ == "__main__":
    unittest.main(verbosity=2)
