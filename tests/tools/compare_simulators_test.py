"""bench/compare_simulators.py: its arithmetic by hand, and a whole run with programs that say fixed figures."""

import csv
import gzip
import importlib.util
import json
import lzma
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "bench" / "compare_simulators.py"
spec = importlib.util.spec_from_file_location("compare_simulators", SCRIPT)
compare = importlib.util.module_from_spec(spec)
spec.loader.exec_module(compare)

LAYER = ",".join(f"{name}_ms" for name in compare.LAYER)
PROFILES = {
    "vidur_mlp_median_ms.csv.gz":
        f"device,model,n_embd,n_head,n_kv_head,n_ffn,vocab,tp,num_tokens,emb_ms,{LAYER}\n"
        "a100,Llama-2-7b-hf,4096,32,32,11008,32768,1,8,0.1,1,2,3,4,5,6,7,8,9\n"
        "a100,Llama-2-7b-hf,4096,32,32,11008,32768,2,8,0.1,1,1,1,1,1,1,1,1,1\n"
        "h100,Llama-2-7b-hf,4096,32,32,11008,32768,1,8,0.1,1,1,1,1,1,1,1,1,1\n",
    "vidur_attention_a100_llama2-70b_tp2_ms.csv.gz":
        "is_prefill,batch_size,prefill_chunk_tokens,kv_cache_tokens,attn_ms,input_reshape_ms,output_reshape_ms\n"
        "1,1,64,128,0.5,0,0\n0,4,0,32,0.7,0,0\n",
    "aic_attention_decode_bf16_hd128_ms.csv.gz":
        "device,engine,q_heads,kv_heads,batch,kv_len,latency_ms\n"
        "a100_sxm,t,32,32,4,1024,0.25\na100_sxm,t,32,8,4,1024,9\na100_sxm,t,32,32,256,1024,9\n"
        "a100_sxm,t,32,32,1,16384,9\nh200_sxm,t,32,32,4,1024,9\n",
}
BLOCK = "capacity for this workload: 4.5 requests/s (vllm)\nSuccessful requests:    {n}   \nBenchmark duration (s):    12.5 \n" \
        "Steps:       40   \n"

# Stands in for kvasir: prints a block, and where results are saved two requests, of which the later one comes first.
KVASIR = r"""#!{python}
import json, pathlib, sys
words = sys.argv[1:]
after = lambda flag: words[words.index(flag) + 1]
if "--save-result" in words:
    result = dict(completed=2, start_times=[0.5, 0.25], input_lens=[7, 8], output_lens=[3, 4])
    pathlib.Path(after("--result-dir"), after("--result-filename")).write_text(json.dumps(result))
elif after("--workload") == "trace":
    assert pathlib.Path(after("--dataset-path")).read_text().splitlines()[1] == "0.250000000,8,4"
print({block!r}.replace("4.5", "4.5" if "--save-result" in words else "9"))
"""
# Stands in for vidur: replays nothing, but reads its flags and demands what vidur would open.
VIDUR = {
    "__init__.py": "",
    "utils/__init__.py": "",
    "utils/random.py": "def set_seeds(seed):\n    pass\n",
    "entities.py": "class Batch:\n    @staticmethod\n    def generate_id():\n        return 41\n",
    "config.py": """import pathlib, sys, types
class SimulationConfig:
    @staticmethod
    def create_from_cli_args():
        after = lambda flag: sys.argv[sys.argv.index("--" + flag) + 1]
        cache = pathlib.Path(after("random_forrest_execution_time_predictor_config_cache_dir"))
        for table in "mlp", "attention":
            assert list(cache.glob("profiling_data/compute/datasets--*/snapshots/*/" + table + ".csv.xz")), table
        trace = after("trace_request_generator_config_trace_file")
        return types.SimpleNamespace(seed=1, requests=pathlib.Path(trace).read_text().splitlines()[1:])
""",
    "simulator.py": """import os, types
class Simulator:
    def __init__(self, config):
        self._event_queue = [(0, types.SimpleNamespace(_request=types.SimpleNamespace(completed=False)))
                             for _ in config.requests]
        self._time = 13.0
    def run(self):
        for _, event in self._event_queue[int(os.environ.get("LOSE", "0")):]:
            event._request.completed = True
""",
}


def write_profiles(folder):
    for name, text in PROFILES.items():
        with gzip.open(folder / name, "wt") as file:
            file.write(text)


class Arithmetic(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)

    def test_requests(self):
        result = {"completed": 2, "start_times": [2.0, 1.0], "input_lens": [3, 4], "output_lens": [5, 6]}
        self.assertEqual(compare.requests_of(result), [(1.0, 4, 6), (2.0, 3, 5)])
        with self.assertRaisesRegex(SystemExit, "only 1 of 2"):
            compare.requests_of(result | {"completed": 1})

    def test_both_get_the_same_requests(self):
        compare.write_traces([(0.5, 7, 3), (1.25, 9, 2)], self.root / "a", self.root / "b")
        ours = list(csv.DictReader((self.root / "a").read_text().splitlines()))
        theirs = list(csv.DictReader((self.root / "b").read_text().splitlines()))
        self.assertEqual([(float(r["arrival_s"]), r["prompt_tokens"], r["output_tokens"]) for r in ours],
                         [(float(r["Time"]), r["PromptTokenCount"], r["CompletionTokenCount"]) for r in theirs])
        self.assertEqual(ours[1]["arrival_s"], "1.250000000")
        self.assertEqual({r["Date"] for r in theirs}, {compare.DAY})

    def test_profiles(self):
        write_profiles(self.root)
        columns, rows = compare.layer_table(self.root)
        self.assertEqual(len(rows), 1)  # neither two devices nor another card
        one = dict(zip(columns, rows[0]))
        self.assertEqual((one["num_tokens"], one["n_expanded_embd"], one["time_stats.add.median"]), ("8", "11008", "9"))
        self.assertEqual(one["time_stats.input_layernorm.median"], "1")
        columns, rows = compare.attention_table(self.root)
        prefill, decode = (dict(zip(columns, r)) for r in rows)  # no other heads, batch, length or card
        self.assertEqual((prefill["prefill_chunk_size"], prefill["kv_cache_size"]), ("64", "128"))
        self.assertEqual((prefill["time_stats.attn_prefill.median"], prefill["time_stats.attn_decode.median"]), ("0.5", ""))
        self.assertEqual((decode["batch_size"], decode["prefill_chunk_size"], decode["kv_cache_size"]), ("4", 0, "1024"))
        self.assertEqual(decode["time_stats.attn_decode.median"], "0.25")
        with self.assertRaisesRegex(SystemExit, "no row with"):
            compare.rows_of(self.root / "vidur_mlp_median_ms.csv.gz", {"device": "none"})

    def test_data_sets_are_whole_without_a_hub(self):
        write_profiles(self.root)
        compare.write_profiles(self.root, self.root / "cache")
        root = self.root / "cache" / "profiling_data" / "compute" / "datasets--profiles--compute"
        files = root / "snapshots" / (root / "refs" / "main").read_text()
        self.assertEqual(json.loads((files / "config.json").read_text())["device_sku"], "a100")
        with lzma.open(files / "mlp.csv.xz", "rt") as file:
            self.assertEqual(len(file.readlines()), 2)

    def test_what_they_printed(self):
        figures = compare.figures_in(BLOCK.format(n=2), 2)
        self.assertEqual(figures, {"completed": 2, "duration_s": 12.5, "steps": 40, "capacity": 4.5})
        with self.assertRaisesRegex(SystemExit, "kvasir ended 2 of 3"):
            compare.figures_in(BLOCK.format(n=2), 3)
        with self.assertRaisesRegex(SystemExit, "no steps"):
            compare.figures_in(BLOCK.format(n=2).replace("Steps", "Stops"), 2)
        with self.assertRaisesRegex(SystemExit, "vidur ended 1 of 2"):
            compare.times_in('x\nTIMES {"completed": 1}\n', 2)
        with self.assertRaisesRegex(SystemExit, "no times"):
            compare.times_in("nothing", 2)

    def test_row(self):
        # Pair by pair 2, 5 and 4 times: the median is 4, which is not the ratio of the bests or of the medians.
        ours, theirs = [(1.0, 1.0), (2.0, 1.5), (1.0, 1.25)], [(2.0, 2.0), (10.0, 3.0), (4.0, 1.75)]
        self.assertEqual(compare.row("v", theirs, 1000, ours), "| v | 2.00 | 4.00 | 1.75 | 500 | 4.00 |")
        self.assertEqual(compare.row("k", ours, 1000, None), "| k | 1.00 | 1.00 | 1.00 | 1,000 | – |")

    def test_table(self):
        runs = {"kvasir": [(1, 1), (2, 2)], "loop": [(3, 3), (6, 6)], "warm": [(5, 5), (10, 10)], "cold": [(20, 20)],
                "opt": [(4, 4), (4, 4)]}
        ratios = [line.split("|")[-2].strip() for line in compare.table(runs, 10).splitlines()[2:]]
        self.assertEqual(ratios, ["–", "3.00", "5.00", "20.00", "–"])


class WholeRun(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        write_profiles(self.root)
        self.program = self.root / "kvasir"
        self.program.write_text(KVASIR.format(python=sys.executable, block=BLOCK.format(n=2)))
        self.program.chmod(0o755)
        for name, text in VIDUR.items():
            path = self.root / "site" / "vidur" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        about = self.root / "site" / "vidur-1.2.dist-info" / "METADATA"
        about.parent.mkdir()
        about.write_text("Metadata-Version: 2.1\nName: vidur\nVersion: 1.2\n")

    def run_it(self, *flags, **environment):
        environment = {**os.environ, "PYTHONPATH": str(self.root / "site"), **environment}
        return subprocess.run([sys.executable, str(SCRIPT), "--kvasir", str(self.program), "--vidur-python",
                               sys.executable, "--profiles", str(self.root), "--runs", "2", "--requests", "2", *flags],
                              capture_output=True, text=True, timeout=100, env=environment)

    def test_it_says_what_both_did(self):
        done = self.run_it()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("at 0.8 of the capacity, 4.5 requests/s; one core, 2 runs", done.stdout)
        self.assertIn("Simulated by Kvasir: 12.5 s in 40 steps; by vidur 1.2: 13.0 s in 41 batches", done.stdout)
        self.assertEqual(sum(line.startswith("| vidur") for line in done.stdout.splitlines()), 3)

    def test_lost_requests_are_no_comparison(self):
        done = self.run_it(LOSE="1")
        self.assertNotEqual(done.returncode, 0)
        self.assertEqual(done.stderr.strip(), "vidur ended 1 of 2 requests")

    def test_one_line_for_what_is_wrong(self):
        (self.root / "aic_attention_decode_bf16_hd128_ms.csv.gz").unlink()
        for flags, said in ((("--profiles", str(self.root / "none")), "no such folder"),
                            (("--core", "99999"), "--core 99999: this process may use"),
                            (("--vidur-python", "/nonesuch"), "decode_bf16_hd128_ms.csv.gz: No such file")):
            done = self.run_it(*flags)
            self.assertNotEqual(done.returncode, 0)
            self.assertIn(said, done.stderr.splitlines()[-1])
            self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
