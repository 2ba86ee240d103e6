"""--config, --check-config, completion in real shells, and the manual page."""

import os
import pathlib
import pty
import re
import select
import shutil
import subprocess
import tempfile
import time
import unittest

from support import Server, binary, clean_environment, model_path, run

EXAMPLE = pathlib.Path(__file__).parents[2] / "deploy" / "kvasir.yaml"


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, text, name="kvasir.yaml"):
        path = self.folder / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def certificate(self, name):
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                        "-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", self.folder / f"{name}.key",
                        "-out", self.folder / f"{name}.pem"], check=True, capture_output=True)


class Config(Folder):
    def test_a_server_runs_as_its_file_says(self):
        path = self.write("served_model_name: [raven, crow]\napi-key: hush\nmax-model-len: 512\n"
                          "override-generation-config:\n  temperature: 0.25\n")
        with Server(environment={"KVASIR_CONFIG": path}) as server:
            self.assertEqual(server.ask("GET", "/v1/models")[0], 401)
            status, _, body = server.ask("GET", "/v1/models", headers={"Authorization": "Bearer hush"})
            self.assertEqual(status, 200)
            self.assertIn(b'"crow"', body)
            self.assertIn(b'"max_model_len":512', body.replace(b" ", b""))
            self.assertIn("(model 'raven')", "".join(server.log))
            self.assertTrue(server.wait_log(r"sampling: temperature 0\.25"), server.log)

    def test_a_mistake_is_one_line_with_its_place(self):
        path = self.write("model: m\nmax-num-seq: 64\n")
        for flags in ((), ("--check-config",)):
            result = run("serve", "--config", path, *flags)
            self.assertEqual(result.returncode, 1)
            self.assertEqual(result.stderr, f"kvasir serve: {path}:2:1: unknown key 'max-num-seq'; "
                                            "did you mean max-num-seqs? (see --help)\n")

    def test_other_commands_share_the_file_and_help_needs_none(self):
        path = self.write(f"model: {model_path()}\nport: 1\nkv-cache-memory-bytes: 64MiB\n")
        result = run("generate", "--prompt", "A raven", "--max-tokens", "1", KVASIR_CONFIG=path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(run("serve", "--help", KVASIR_CONFIG="/nonexistent").returncode, 0)
        self.assertEqual(run("--version", KVASIR_CONFIG="/nonexistent").returncode, 0)


class CheckConfig(Folder):
    def check(self, *flags, **environment):
        return run("serve", "--check-config", *flags, **environment)

    def test_the_settings_and_their_sources(self):
        path = self.write(f"model: {model_path()}\nmax-num-seqs: 64\napi-key: [hush-a, hush-b]\n"
                          "cluster-name: c\nenable-prefix-caching: false\n")
        result = self.check("--config", path, "--port", "9000", KVASIR_MAX_NUM_SEQS="65", KVASIR_HOST="::1")
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        for name, source, value in (("model", f"{path}:1", model_path()), ("port", "flag", "9000"),
                                    ("max-num-seqs", "environment, KVASIR_MAX_NUM_SEQS", "65"),
                                    ("enable-prefix-caching", f"{path}:5", "off"), ("block-size", "default", "64"),
                                    ("api-key", f"{path}:3", "(not shown)"),
                                    ("cluster-name", f"{path}:4", "c"),
                                    ("shutdown-timeout", "default", "30")):
            self.assertRegex(result.stdout,
                             rf"(?m)^{name} +{re.escape(source)} +{re.escape(value)}$")
        self.assertNotIn("hush", result.stdout)
        self.assertTrue(result.stdout.endswith("\nthe configuration is valid\n"))

    def test_a_variable_that_is_no_flags(self):
        result = self.check("m", KVASIR_MAX_NUM_SEQ="3", KVASIR_SERVICE_ACCOUNT="x", KVASIR_PORT="1")
        self.assertEqual(result.returncode, 0)
        said = [line for line in result.stdout.splitlines() if "is not read" in line and line.startswith("KVASIR_")]
        self.assertEqual(said, ["KVASIR_MAX_NUM_SEQ is not read: it is no flag's variable; --max-num-seqs is the nearest flag"])

    def test_each_fault_is_told_without_loading_a_model(self):
        self.certificate("one")
        self.certificate("two")
        keys = self.write("keys:\n  - name: a\n    sha256: 12\n", "keys.yaml")
        template = self.write("{% if %}", "template.jinja")
        self.write("", "empty")
        one, two = f"{self.folder}/one", f"{self.folder}/two"
        tls = ("--ssl-certfile", f"{one}.pem", "--ssl-keyfile")
        self.assertEqual(self.check("m", *tls, f"{one}.key").returncode, 0)
        for flags, part in (((*tls, f"{two}.key"), "--ssl-keyfile"),
                            ((*tls, "/nonexistent"), "--ssl-keyfile /nonexistent: cannot be read"),
                            (("--api-keys", keys), f"--api-keys {keys}:3:13: key 'a' 'sha256' must be"),
                            (("--api-key-file", f"{self.folder}/empty"), "no key in it"),
                            (("--scheduling-policy", "best"), "best"),
                            (("--scheduling-policy", "layerkv:x=1"), "x"),
                            (("--length-predictor", "best"), "best"),
                            (("--device", "tpu"), "--device tpu: there are cpu and cuda"),
                            (("--device", "cuda"), "--device cuda: this kvasir was built without CUDA"),
                            (("--default-slo", "ttft"), "--default-slo"),
                            (("--kv-cache-dtype", "f8"), "f8"),
                            (("--activation-type", "f8"), "f8"),
                            (("--block-size", "17"), "17"),
                            (("--host", "no such host"), "--host"),
                            (("--admin-port", "0", "--admin-host", "a b"), "--admin-host"),
                            (("--chat-template", template), f"--chat-template {template}: "),
                            (("--chat-template", "/nonexistent"), "--chat-template /nonexistent"),
                            (("--cost-profile", "/nonexistent"), "/nonexistent"),
                            (("--kv-events-config", "{}}"), "--kv-events-config"),
                            (("--kv-events-endpoint", "5557"), "--kv-events-endpoint: must be tcp://"),
                            (("--override-generation-config", '{"temperature": 9}'), "temperature"),
                            (("--tool-call-parser", "best"), "best"),
                            (("--cors-origins", "chat.example"), "--cors-origins: 'chat.example' is no origin"),
                            (("--access-log", "/nonexistent/a.log"), "--access-log /nonexistent/a.log: cannot be written"),
                            (("--otlp-endpoint", "127.0.0.1:4318"), "--otlp-endpoint: it must begin with http://"),
                            (("--otlp-endpoint", "http://me:hush@h"), "--otlp-endpoint: it may have only")):
            result = self.check(model_path(), *flags)
            self.assertEqual(result.returncode, 1, flags)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            self.assertIn(part, result.stderr)
            self.assertNotIn("hush", result.stdout + result.stderr)
            self.assertNotIn("is valid", result.stdout)
        self.assertRegex(self.check("m", "--otlp-endpoint", "http://me:hush@h").stdout, r"(?m)^otlp-endpoint +flag +\(not shown\)$")
        self.assertRegex(self.check("m", "--otlp-endpoint", "http://h").stdout, r"(?m)^otlp-endpoint +flag +http://h$")
        log = self.folder / "access.log"
        self.assertEqual(self.check("m", "--access-log", str(log)).returncode, 0)
        self.assertFalse(log.exists(), "a check makes no file")
        both = self.check(model_path(), "--scheduling-policy", "best", "--chat-template", "/nonexistent")
        self.assertEqual(len(both.stderr.splitlines()), 2, "all faults are told at once")
        on_gpu = self.check("m", "--device", "cuda", "--kv-cache-dtype", "q8_0")
        self.assertEqual(on_gpu.returncode, 1)
        self.assertRegex(on_gpu.stderr, r"\Akvasir serve: --kv-cache-dtype q8_0: .*\nkvasir serve: --device cuda: .*\n\Z")

    def test_the_models_header_if_it_is_there(self):
        absent = self.check("/nonexistent/m.gguf")
        self.assertEqual(absent.returncode, 0)
        self.assertIn("model /nonexistent/m.gguf is not there: its header was not read\n", absent.stdout)
        damaged = self.write("GGUF, but no more", "m.gguf")
        result = self.check(damaged)
        self.assertEqual(result.returncode, 1)
        self.assertIn(damaged, result.stderr)

    def test_the_example_file(self):
        result = self.check("--config", str(EXAMPLE))
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        self.assertRegex(result.stdout, rf"(?m)^port +{re.escape(str(EXAMPLE))}:\d+ +8000$")
        # With every setting that it has in a comment, too: files are then missing, but no name is wrong.
        text = re.sub(r"(?m)^#(?=[a-z-]+:)", "", EXAMPLE.read_text(encoding="utf-8"))
        self.assertGreater(text.count("\n"), 0)
        path = self.write(text)
        result = self.check("--config", path)
        self.assertEqual(result.returncode, 1)
        self.assertNotIn(f"{path}:", result.stderr)
        self.assertRegex(result.stdout, rf"(?m)^override-generation-config +{re.escape(path)}:\d+ +"
                                        r'{"temperature":0.7,"top_p":0.95}$')


class Completion(Folder):
    def setUp(self):
        super().setUp()
        for shell in ("bash", "zsh", "fish"):
            result = run("completion", shell)
            self.assertEqual((result.returncode, result.stderr), (0, ""))
            self.write(result.stdout, shell)

    def bash(self, *words):
        """What bash offers for the last word."""
        script = 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _kvasir; printf "%s\\n" "${COMPREPLY[@]}"'
        result = subprocess.run(["bash", "--norc", "--noprofile", "-c", script, "bash", self.folder / "bash", "kvasir", *words],
                                capture_output=True, text=True, check=True, cwd=self.folder, timeout=60)
        self.assertEqual(result.stderr, "")
        return result.stdout.split()

    def test_bash_offers_commands_flags_and_values(self):
        self.assertEqual(self.bash("ser"), ["serve"])
        self.assertIn("cluster", self.bash(""))
        self.assertNotIn("--help", self.bash(""))
        self.assertEqual(self.bash("--vers"), ["--version"])
        self.assertEqual(self.bash("cluster", ""), ["status"])
        self.assertIn("--json", self.bash("cluster", "status", "--"))
        self.assertEqual(self.bash("serve", "--max-num-s"), ["--max-num-seqs"])
        self.assertEqual(self.bash("serve", "m", "--scheduling-policy", "apt"), ["apt-serve", "apt-serve-s"])
        self.assertEqual(self.bash("serve", "--scheduling-policy", "=", "sara"), ["sarathi"])
        self.assertIn("q8_0", self.bash("serve", "--kv-cache-dtype", "="))
        self.assertEqual(self.bash("serve", "--port", ""), [], "a port has no list of values")
        self.assertEqual(self.bash("serve", "--pin-threads", "o"), ["on", "off"])
        self.assertEqual(self.bash("completion", "f"), ["fish"])
        self.assertEqual(self.bash("bench", "--scheduling"), [], "a flag of another command")
        self.assertEqual(self.bash("serve", "--length-predictor", "on"), ["online"])

    def test_bash_offers_files_where_a_flag_takes_one(self):
        (self.folder / "sub").mkdir()
        self.assertEqual(sorted(self.bash("serve", "--config", "")), ["bash", "fish", "sub", "zsh"])
        self.assertEqual(self.bash("serve", "--kv-offloading-dir", ""), ["sub"])
        self.assertEqual(self.bash("serve", "-m", "fi"), ["fish"])
        self.assertEqual(self.bash("serve", "zs"), ["zsh"], "the model")

    def test_every_flag_of_the_help_is_offered(self):
        for words in (("serve",), ("bench",), ("simulate",), ("cluster", "status")):
            shown = set(re.findall(r"(?m)^  (?:-\w,)?(--[\w-]+)", run(*words, "--help").stdout))
            self.assertGreater(len(shown), 4)
            self.assertEqual(shown - set(self.bash(*words, "--")), set())

    def test_a_user_at_a_terminal(self):
        for shell, setup in ((("bash", "--norc", "--noprofile", "-i"), ""),
                             (("zsh", "-f", "-i"), "autoload -Uz compinit; compinit -u -D; ")):
            pid, terminal = pty.fork()
            if pid == 0:
                os.execvpe(shell[0], shell, clean_environment(PS1="", TERM="dumb", HOME=str(self.folder)))
            try:
                shown = ""

                def wait(text):
                    nonlocal shown
                    end = time.monotonic() + 30
                    while text not in shown:
                        self.assertTrue(select.select([terminal], [], [], max(0, end - time.monotonic()))[0], shown)
                        shown += os.read(terminal, 4096).decode(errors="replace")

                os.write(terminal, f"{setup}source {self.folder}/{shell[0]}; kvasir() {{ printf '<%s>' \"$@\" end; }}; "
                                   "echo re''ady\n".encode())
                wait("ready")
                os.write(terminal, b"kvasir ser\t--scheduling-policy sara\t\n")
                wait("<serve><--scheduling-policy><sarathi><end>")
            finally:
                os.close(terminal)
                os.waitpid(pid, 0)

    def test_zsh_and_fish_take_their_scripts(self):
        for shell in ("zsh", "fish"):
            if not shutil.which(shell):
                self.fail(f"{shell} is missing: ./dev test installs it")
            result = subprocess.run([shell, "-n", self.folder / shell], capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual((result.returncode, result.stdout, result.stderr), (0, "", ""))
        bad = self.write("if [[ x ]]; then\n", "bad")
        self.assertNotEqual(subprocess.run(["zsh", "-n", bad], capture_output=True, timeout=60, check=False).returncode, 0)

    def test_fish_offers_commands_flags_and_values(self):
        def fish(line):
            result = subprocess.run(["fish", "--no-config", "-c", f"source {self.folder}/fish; complete -C '{line}'"],
                                    capture_output=True, text=True, timeout=60, check=True,
                                    env=clean_environment(HOME=str(self.folder)))
            self.assertEqual(result.stderr, "")
            return [row.split("\t")[0] for row in result.stdout.splitlines()]

        self.assertEqual(fish("kvasir ser"), ["serve"])
        self.assertEqual(fish("kvasir cluster st"), ["status"])
        self.assertEqual(fish("kvasir serve --max-num-s"), ["--max-num-seqs"])
        self.assertEqual(fish("kvasir serve --scheduling-policy sara"), ["sarathi"])

    def test_an_unknown_shell(self):
        result = run("completion", "tcsh")
        self.assertEqual(result.returncode, 2)
        self.assertIn("{bash,fish,zsh}", result.stderr)


class ManualPage(Folder):
    def test_groff_and_mandoc_have_nothing_to_say(self):
        page = run("man")
        self.assertEqual((page.returncode, page.stderr), (0, ""))
        path = self.write(page.stdout, "kvasir.1")
        groff = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-z", path], capture_output=True, text=True, check=True)
        self.assertEqual(groff.stdout + groff.stderr, "")
        mandoc = subprocess.run(["mandoc", "-Tlint", "-Wwarning", path], capture_output=True, text=True, check=False)
        said = [line for line in mandoc.stdout.splitlines() if "missing date" not in line]  # a build has none
        self.assertEqual(said, [])

    def test_it_has_every_flag_as_people_type_it(self):
        path = self.write(run("man").stdout, "kvasir.1")
        text = subprocess.run(["mandoc", "-Tutf8", "-O", "width=400", path], capture_output=True, text=True, check=True).stdout
        text = re.sub(r".\x08", "", text)
        for words in (("serve",), ("bench",), ("cluster", "status"), ("key",)):
            self.assertIn("kvasir " + " ".join(words), text)
            for flag in re.findall(r"(?m)^  (?:-\w,)?(--[\w-]+)", run(*words, "--help").stdout):
                self.assertRegex(text, rf"(?<![\w-]){flag}(?![\w-])")


if __name__ == "__main__":
    unittest.main()
