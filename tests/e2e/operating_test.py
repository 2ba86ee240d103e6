"""The commands of docs/operating.md, as they are printed, each section in one shell and from an empty directory. Where the
comment behind a command is what it prints, it must print that."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from support import binary, clean_environment, model_path

PAGE = pathlib.Path(__file__).resolve().parents[2] / "docs" / "operating.md"
MODEL = "MODEL=~/.cache/kvasir/models/SmolLM2-135M-Instruct.Q4_1.gguf\n"
# What a comment promises: a number or a status, a line of HTTP, a suite of TLS, an address.
PROMISE = re.compile(r"(?:after \d+ s: )?(HTTP/1\.1 \d+ [\w ]+|New, .*|\d+\.\d+\.\d+\.\d+:\d+|\d+)(?![\w.])")
# Ports 8000 and 9000 are free in a network of its own. Jobs that are left end with it.
ALONE = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--kill-child", "bash", "-c",
         'ip link set lo up && exec bash "$1"', "bash"]


def commands(title):
    """Those of a section."""
    text = PAGE.read_text(encoding="utf-8")
    section = re.search(rf"(?ms)^## {title}\n(.*?)(?=^## |\Z)", text).group(1)
    return "".join(re.findall(r"(?ms)^```sh\n(.*?)^```", section))


def checked(script):
    """The script, in which each line with a promise says what it saw: a line with the promise, then what came, then a mark."""
    lines = []
    for line in script.splitlines():
        found = re.match(r"(.*\S)\s+# (.*)", line)
        promise = found and PROMISE.match(found.group(2))
        if promise:
            lines.append(f"echo {repr('PROMISE ' + promise.group(1))}; {{ {found.group(1)}\n}} 2>&1; echo; echo END")
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


class Commands(unittest.TestCase):
    def run_section(self, title, at_least):
        functions = commands("Secure").split("kvasir key")[0]
        script = commands(title)
        script = (functions if title != "Secure" else "") + script
        self.assertIn(MODEL, script)
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder, "script")
            path.write_text(checked(script.replace(MODEL, f"MODEL={model_path()}\n")), encoding="utf-8")
            work = pathlib.Path(folder, "work")
            work.mkdir()
            os.symlink(binary(), pathlib.Path(folder, "kvasir"))
            environment = clean_environment(KVASIR_KV_CACHE_MEMORY_BYTES="256MiB", PATH=f"{folder}:{os.environ['PATH']}")
            done = subprocess.run([*ALONE, path], cwd=work, env=environment, capture_output=True, text=True,
                                  stdin=subprocess.DEVNULL, timeout=400, check=False)
            log = work / "serve.log"
            said = log.read_text(encoding="utf-8", errors="replace")[-2000:] if log.exists() else ""
        seen = re.findall(r"(?ms)^PROMISE (.*?)\n(.*?)^END$", done.stdout)
        self.assertGreaterEqual(len(seen), at_least, done.stdout + done.stderr + said)
        for promise, came in seen:
            self.assertRegex(came, rf"(?<![\w.]){re.escape(promise)}(?!\w)", done.stdout + done.stderr + said)
        return done.stdout

    def test_secure(self):
        self.run_section("Secure", 25)

    def test_life_cycle(self):
        out = self.run_section("Life cycle", 5)
        self.assertIn("about to shut down", out)

    def test_watch(self):
        out = self.run_section("Watch", 2)
        for expected in ('"request_id": "\\"},{\\""', "traceresponse: 00-4bf92f3577b34da6a3ce929d0e0e4736-",
                         "access_log_lines_dropped_total", "vllm:num_requests_running{"):
            self.assertIn(expected, out)


if __name__ == "__main__":
    unittest.main(verbosity=2)
