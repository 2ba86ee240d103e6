"""`kvasir generate`, `inspect`, `convert`, `--version`, `--help`."""

import json
import os
import random
import re
import signal
import struct
import subprocess
import tempfile
import time
import unittest
from pathlib import Path

from support import Server, binary, clean_environment, model_path, run

MEMORY = ("--kv-cache-memory-bytes", "64MiB")


def has_ended(pid):
    """Within 5 s; its parent may not have waited for it yet."""
    end = time.monotonic() + 5
    while time.monotonic() < end:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.02)
    return False


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

    def test_view_ends_while_the_browser_stays_open(self):
        with tempfile.TemporaryDirectory() as folder:
            record = f"{folder}/run.jsonl"
            made = run("simulate", "--model", "llama-2-7b", "--device", "l20", "--workload", "random", "--random-input-len", "50",
                       "--random-output-len", "5", "--num-prompts", "3", "--request-rate", "5", "--record", record)
            self.assertEqual(made.returncode, 0, made.stderr)
            opener, seen = Path(folder, "xdg-open"), Path(folder, "seen")
            for script, warns in ((f'echo "$$ $1" > {seen}; exec sleep 60', False), ("exit 3", True)):
                opener.write_text(f"#!/bin/sh\n{script}\n")
                opener.chmod(0o755)
                view = subprocess.Popen([binary(), "view", record, "--port", "0", "--open"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env=clean_environment(PATH=f"{folder}:/usr/bin:/bin"))
                url = view.stdout.readline().strip()
                end = time.monotonic() + 10
                while not warns and not (seen.exists() and seen.read_text().strip()) and time.monotonic() < end:
                    time.sleep(0.02)
                time.sleep(0.5)  # for the warning: it looks every 100 ms
                view.terminate()
                self.assertEqual(view.wait(timeout=10), 0)
                if warns:
                    self.assertIn("there is no program here that opens links", view.stderr.read())
                else:
                    stays, opened = seen.read_text().split()
                    self.assertEqual(opened, url)
                    os.kill(int(stays), signal.SIGTERM)
                    ended = has_ended(int(stays))
                    if not ended:
                        os.kill(int(stays), signal.SIGKILL)
                    self.assertTrue(ended, "the signals that the view waits for are blocked in the opener")
                view.stdout.close()
                view.stderr.close()

    def test_what_a_gpu_cannot_do_is_one_line(self):
        generate = ("generate", "no-such.gguf", "--prompt", "x", "--device")
        for arguments, line in (
                ((*generate, "tpu"), "kvasir generate: --device tpu: there are cpu and cuda"),
                ((*generate, "cuda"), "kvasir generate: --device cuda: "),
                ((*generate, "cpu", "--gpu-memory-utilization", "0.5"),
                 "kvasir generate: --gpu-memory-utilization 0.5: it is a share of a GPU's memory; leave it out"),
                ((*generate, "cpu", "--no-enforce-eager"), "kvasir generate: --no-enforce-eager: CUDA graphs are a GPU's"),
                ((*generate, "cuda", "--kv-cache-dtype", "q8_0"), "kvasir generate: --kv-cache-dtype q8_0: "),
                (("serve", "no-such.gguf", "--port", "0", "--device", "cuda", "--cluster", "etcd://127.0.0.1:1"),
                 "kvasir serve: --cluster: "),
                (("profile", "no-such.gguf", "--device", "cuda"), "kvasir profile: --device cuda: "),
                (("profile", "no-such.gguf", "--device", "cuda", "--full", "--truth", "t.json"), "kvasir profile: --full: "),
                (("eval", "no-such.gguf", "--device", "cuda", "--text", "no-such.txt"), "kvasir eval: --text: ")):
            result = run(*arguments, CUDA_VISIBLE_DEVICES="")
            self.assertEqual(result.returncode, 1)
            self.assertTrue(result.stderr.startswith(line), result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1)

    def test_the_flags_of_a_command_come_before_those_of_serving(self):
        for subcommand, own in (("serve", "--port"), ("profile", "--seconds"), ("generate", "--prompt"),
                                ("train-predictor", "--trace")):
            text = run(subcommand, "--help").stdout
            self.assertLess(text.index(own + " "), text.index("--kv-cache-memory-bytes "), subcommand)

    def test_a_server_open_to_all_without_a_key_warns(self):
        for flags, warned in ((("--host", "0.0.0.0"), True), (("--host", "0.0.0.0", "--api-key", "k"), False),
                              (("--host", "localhost"), False), ((), False)):
            with Server(*flags, "--threads", "1") as server:
                self.assertTrue(server.wait_log(r", 1 thread[ ,]"), server.log)
                if warned:
                    self.assertTrue(server.wait_log("anyone who reaches port"), server.log)
                lines = [line for line in list(server.log) if "anyone who reaches port" in line]
                self.assertEqual(len(lines), warned, server.log)
                self.assertTrue(all("--api-key-file" in line for line in lines))

    def test_plan_answers_in_words(self):
        with tempfile.TemporaryDirectory() as folder:
            page, prices = Path(folder, "plan.html"), Path(folder, "prices.yaml")
            prices.write_text("l20: 1.5\nh100: 4\n")
            result = run("plan", "--model", "llama-2-7b", "--device", "l20", "--workload", "random", "--random-input-len",
                         "200", "--random-output-len", "20", "--slo", "ttft:2000", "--scheduling-policy",
                         "sarathi,vllm", "--request-rate", "50", "--prices", prices, "--no-what-if", "--effort", "0.1",
                         "--html", page)
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertIn("planning: the capacity", result.stderr)
            self.assertRegex(result.stdout, r"Highest rate: \d+\.?\d* requests/s under (sarathi|vllm), with 90 % of")
            self.assertRegex(result.stdout, r"For 50\.0 requests/s: \d+ devices of l20, \d+\.\d\d an hour")
            self.assertRegex(result.stdout, r"(?m)^h100 +\d")
            self.assertIn("<svg", page.read_text())
        self.assertIn("--slo: say which bounds", run("plan", "--model", "llama-2-7b", "--device", "l20").stderr)

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


def write_folder(folder, width=64, rows=288):
    """A tiny Mistral of random weights with a window of 32, as a folder of Hugging Face. Returns its path."""
    folder.mkdir()
    heads, ffn = width // 32, 96
    shapes = {"embed_tokens": (rows, width), "norm": (width,)}
    for layer in ("layers.0", "layers.1"):
        for name, shape in (("self_attn.q_proj", (width, width)), ("self_attn.k_proj", (32, width)),
                            ("self_attn.v_proj", (32, width)), ("self_attn.o_proj", (width, width)),
                            ("mlp.gate_proj", (ffn, width)), ("mlp.up_proj", (ffn, width)),
                            ("mlp.down_proj", (width, ffn)), ("input_layernorm", (width,)),
                            ("post_attention_layernorm", (width,))):
            shapes[f"{layer}.{name}"] = shape
    draw = random.Random(1)
    some = [draw.gauss(0, 1) for _ in range(9973)]  # repeated, so that a large model takes no time
    header, data = {}, bytearray()
    for name, shape in shapes.items():
        values = shape[0] * (shape[1] if len(shape) == 2 else 1)
        scale = shape[-1]**-0.5 if len(shape) == 2 else 1
        raw = struct.pack(f"<{len(some)}f", *(1 + 0.1 * v if len(shape) == 1 else v * scale for v in some))
        begin = len(data)
        data += (raw * (values // len(some) + 1))[:4 * values]
        header[f"model.{name}.weight"] = {"dtype": "F32", "shape": shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps({
        "model_type": "mistral", "architectures": ["MistralForCausalLM"], "hidden_size": width,
        "intermediate_size": ffn, "num_hidden_layers": 2, "num_attention_heads": heads, "num_key_value_heads": 1, "head_dim": 32,
        "max_position_embeddings": 512, "vocab_size": rows, "rms_norm_eps": 1e-5, "sliding_window": 32,
        "tie_word_embeddings": True}))
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    (folder / "tokenizer.json").write_text(json.dumps({
        "added_tokens": [{"id": 256, "content": "<|end|>", "special": True}],
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "use_regex": True},
        "model": {"type": "BPE", "vocab": {letter: byte for byte, letter in letters.items()}, "merges": []}}))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|end|>"}))
    return str(folder)


class FolderServer(Server):
    def __init__(self, folder):
        self.start([binary(), "serve", folder, "--port", "0", *MEMORY], env=clean_environment())
        self.wait_ready()


class Folders(unittest.TestCase):
    def setUp(self):
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        self.out = str(self.place / "out.gguf")

    def test_convert_writes_the_model_that_quantisation_at_load_serves(self):
        folder = write_folder(self.place / "tiny")
        result = run("convert", folder, self.out, "--type", "q8_0")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertRegex(result.stdout, r"^.*/out\.gguf: [0-9.]+ KiB, from [0-9.]+ KiB, in [0-9.]+ s\n$")
        answers = []
        for model in ((self.out,), (folder, "--quantization", "q8_0")):
            answer = run("generate", *model, *MEMORY, "--prompt", "A raven is", "--max-tokens", "40", "--temperature",
                         "0", "--logprobs", "3")
            self.assertEqual(answer.returncode, 0, answer.stderr)
            answers.append(answer.stdout)
        self.assertEqual(*answers)
        self.assertEqual(len(answers[0].splitlines()), 40)
        text = run("inspect", self.out).stdout
        self.assertRegex(text, r"(?m)^name: +'tiny'$")
        self.assertRegex(text, r"(?m)^  Q8_0: +15 tensors")

    def test_convert_names_a_folder_that_is_a_dot(self):
        folder = write_folder(self.place / "tiny")
        subprocess.run([binary(), "convert", ".", self.out, "--type", "f32"], cwd=folder, check=True,
                       env=clean_environment(), stdout=subprocess.DEVNULL)
        self.assertRegex(run("inspect", self.out).stdout, r"(?m)^name: +'tiny'$")

    def test_convert_never_writes_over_the_model(self):
        folder = write_folder(self.place / "tiny")
        for name, reason in (("model.safetensors", "a file of the model itself"),
                             ("config.json", "a file of the model itself"), ("", "this is a directory")):
            path = Path(folder) / name
            before = path.read_bytes() if name else None
            result = run("convert", folder, str(path), "--type", "q8_0")
            self.assertEqual(result.returncode, 1)
            self.assertIn(reason, result.stderr)
            self.assertEqual(len(result.stderr.splitlines()), 1, result.stderr)
            if name:
                self.assertEqual(path.read_bytes(), before)

    def test_convert_that_is_interrupted_leaves_nothing(self):
        folder = write_folder(self.place / "large", width=256, rows=60000)
        process = subprocess.Popen([binary(), "convert", folder, self.out, "--type", "q2_k", "-t", "1"],
                                   stderr=subprocess.PIPE, text=True, env=clean_environment())
        while not list(self.place.glob("out.gguf*")) and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(signal.SIGINT)
        message = process.communicate(timeout=60)[1]
        self.assertEqual(process.returncode, 1, message)
        self.assertIn("stopped before the file was complete", message)
        self.assertEqual([path.name for path in self.place.iterdir()], ["large"])

    def test_the_start_says_what_windows_leave_unread(self):
        with FolderServer(write_folder(self.place / "tiny")) as server:
            report = next(line for line in server.log if line.startswith("memory: "))
            self.assertIn("longest request 512 tokens (2 of 2 layers attend to the last 32 tokens only; of K and V of 512 "
                          "tokens 6 % are read and kept, in whole blocks; a GPU keeps all)", report)


if __name__ == "__main__":
    unittest.main(verbosity=2)
