"""`kvasir generate`, `inspect`, `--version`, `--help`."""

import json
import re
import unittest

from support import Server, model_path, run

MEMORY = ("--kv-cache-memory-bytes", "64MiB")


class Cli(unittest.TestCase):
    def test_version_and_help(self):
        self.assertRegex(run("--version").stdout, r"^kvasir \d+\.\d+\.\d+\n$")
        self.assertEqual(run("--help").returncode, 0)
        for subcommand in ("serve", "generate", "bench", "inspect"):
            result = run(subcommand, "--help")
            self.assertEqual(result.returncode, 0)
            self.assertIn("Usage:", result.stdout)
        self.assertEqual(run().returncode, 2)

    def test_mistakes_on_the_command_line(self):
        for arguments, line in (
                (("no-such-thing",), "kvasir: no command 'no-such-thing': there are serve, gmanager, "),
                (("serve", "m", "--prot", "9202"), "kvasir serve: unknown flag --prot; did you mean --port?"),
                (("serve", "m", "--port", "80000"),
                 "kvasir serve: --port: '80000' is not a whole number from 0 to 65535"),
                (("serve", "m", "--max-num-seqs", "many"),
                 "kvasir serve: --max-num-seqs: 'many' is not a whole number of 0 or more")):
            result = run(*arguments)
            self.assertEqual(result.returncode, 2)
            self.assertTrue(result.stderr.startswith(line), result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1)
            self.assertEqual(result.stdout, "")

    def test_the_flags_of_a_command_come_before_those_of_serving(self):
        for subcommand, own in (("serve", "--port"), ("profile", "--seconds"), ("generate", "--prompt"),
                                ("train-predictor", "--trace")):
            text = run(subcommand, "--help").stdout
            self.assertLess(text.index(own + " "), text.index("--kv-cache-memory-bytes "), subcommand)

    def test_a_server_open_to_all_without_a_key_warns(self):
        for flags, warned in ((("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--api-key", "k"), False),
                              (("--host", "localhost"), False), ((), False)):
            with Server(*flags, "--threads", "1") as server:
                lines = [line for line in server.log if "anyone who reaches port" in line]
                self.assertEqual(len(lines), warned, server.log)
                self.assertTrue(all("--api-key-file" in line for line in lines))
                self.assertTrue(server.wait_log(r", 1 thread[ ,]"), server.log)

    def test_inspect(self):
        result = run("inspect", model_path())
        self.assertEqual(result.returncode, 0)
        self.assertIn("llama", result.stdout)
        lines = dict(re.findall(r"(?m)^([^:]+): +(.*)$", result.stdout))
        # 30 layers of 576 int8 with 18 scales, against 2 x 3 heads of 64.
        self.assertEqual(lines["X per token"], "17.93 KiB (int8: 0.40 of f32, 0.80 of bf16, 1.55 of q8_0)")
        self.assertEqual(lines["KV per token, bf16"], "22.50 KiB")
        self.assertEqual(lines["hidden cache"], "X pays: with K and V in f32 or bf16; "
                         "X does not pay, and is never chosen: it takes no less than K and V in q8_0")
        bad = run("inspect", __file__)
        self.assertEqual(bad.returncode, 1)
        self.assertEqual(len(bad.stderr.splitlines()), 1)
        self.assertIn("cli_test.py", bad.stderr)

    def test_generate_is_the_servers_answer(self):
        question = "What is a raven?"
        result = run("generate", model_path(), *MEMORY, "--chat", "--prompt", question, "--max-tokens", "16",
                     "--temperature", "0")
        self.assertEqual(result.returncode, 0, result.stderr)
        with Server() as server:
            answer = json.loads(server.ask("POST", "/v1/chat/completions", {
                "messages": [{"role": "user", "content": question}], "max_tokens": 16, "temperature": 0})[2])
        self.assertEqual(result.stdout, answer["choices"][0]["message"]["content"] + "\n")

    def test_the_start_says_what_a_hidden_cache_takes(self):
        for flags, said in (((), "X (int8) takes 0.80 of what K and V take,"),
                            (("--kv-cache-dtype", "q8_0"), "X (int8) takes 1.55 of what K and V take, so it is never chosen,")):
            with Server("--scheduling-policy", "apt-serve", *flags) as server:
                report = next(line for line in server.log if line.startswith("memory: "))
                self.assertIn(f"hidden cache: {said}", report)
                self.assertEqual("stage ring" in report, not flags)
        with Server("--scheduling-policy", "apt-serve:hidden=off") as server:
            self.assertNotIn("hidden cache", next(line for line in server.log if line.startswith("memory: ")))

    def test_generate_with_seed_stop_and_logprobs(self):
        common = ("generate", model_path(), *MEMORY, "--prompt", "One, two, three,", "--max-tokens", "8")
        drawn = [run(*common, "--temperature", "1.5", "--seed", seed).stdout for seed in ("1", "1", "2")]
        self.assertEqual(drawn[0], drawn[1])
        self.assertNotEqual(drawn[0], drawn[2])
        plain = run(*common, "--temperature", "0").stdout
        stopped = run(*common, "--temperature", "0", "--stop", plain[4:7]).stdout
        self.assertEqual(stopped, plain[:plain.index(plain[4:7])] + "\n")
        lines = run(*common, "--temperature", "0", "--logprobs", "2").stdout.splitlines()
        self.assertEqual(len(lines), 8)
        for line in lines:
            self.assertEqual(len(line.split("\t")), 5)
            self.assertLessEqual(float(line.split("\t")[0]), 0)

    def test_eval_speed(self):
        common = ("eval", model_path(), "--speed", "--repetitions", "1", "--prefill-tokens", "8",
                  "--decode-tokens", "2")
        short = run(*common)
        self.assertEqual(short.returncode, 0, short.stderr)
        found = re.search(r"^prefill_tok_s=([0-9.]+) decode_tok_s=([0-9.]+)$", short.stdout, re.MULTILINE)
        self.assertTrue(found, short.stdout)
        self.assertGreater(min(map(float, found.groups())), 0)
        deep = run(*common, "--context-tokens", "600")
        self.assertRegex(deep.stdout, r"(?m)^prefill_tok_s=[0-9.]+ decode_tok_s=[0-9.]+$")

    def test_eval_speed_counts_the_context_against_the_models(self):
        # 8192 tokens is the model's context; two are to be decoded, and one more is sampled before them.
        result = run("eval", model_path(), "--speed", "--repetitions", "1", "--prefill-tokens", "8",
                     "--decode-tokens", "2", "--context-tokens", "8190")
        self.assertEqual(result.returncode, 1)
        self.assertRegex(result.stderr.splitlines()[-1], r"^kvasir eval: .*8190.*8192")

    def test_generate_refuses_what_does_not_fit(self):
        result = run("generate", model_path(), *MEMORY, "--prompt", "a", "--max-tokens", "100000")
        self.assertEqual(result.returncode, 1)
        self.assertIn("--max-tokens", result.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
