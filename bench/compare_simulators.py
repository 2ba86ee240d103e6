#!/usr/bin/env python3
"""How fast `kvasir simulate` is beside vidur (a Python package), on one workload, in one run. Prints a Markdown table.

    compare_simulators.py --kvasir BUILD/apps/kvasir --vidur-python VENV/bin/python --profiles FOLDER [--requests 1000]

The workload: Llama-2-7B on one A100-80G, policy vllm, requests with lengths like ShareGPT's first turns, Poisson arrivals at
--load of the capacity. Kvasir draws lengths and arrivals once; then both get the same requests as a trace file, and the same
bounds on a batch. All processes share one core, --core, and take turns.

vidur's wheel has no profiles of any device; it looks for them among the data sets of a hub. This script makes what it needs
out of FOLDER (vidur_mlp_median_ms.csv.gz, vidur_attention_a100_llama2-70b_tp2_ms.csv.gz and
aic_attention_decode_bf16_hd128_ms.csv.gz, as `tools/fit_devices.py` takes them) in a temporary folder, laid out as that
hub's cache, so that vidur runs as it was installed, with flags only. Attention over a prompt is that of a 70B's half, which
has as many query heads; the writing of K and V has no data and takes no time there.

What is counted: of Kvasir the whole command, with the start of the process, the results, and the measurement of the
capacity, which simulates the same requests once more. Of vidur three times: its event loop alone; the whole command with its
models trained and their predictions on disk; and the first command, which trains them (of one candidate each, not the 27
of its default). Its metrics, plots and traces are off. Above 1 Kvasir is the faster. Another row is Kvasir with OPT-13B,
which vidur does not know.
"""

import argparse
import csv
import gzip
import json
import lzma
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time

MODEL, DEVICE, VIDUR_MODEL = "llama-2-7b", "a100-80g", "meta-llama/Llama-2-7b-hf"
MAX_SEQS, MAX_BATCHED_TOKENS, MAX_TOTAL = 128, 4096, 4096  # of both; the last is the model's positions
COMPUTE, NETWORK = "profiles/compute", "profiles/network"  # names of data sets that are only ever local
COMMIT = "0" * 40
DAY = "2023-01-01"  # vidur's traces have a date; of the rest of it nothing depends
LAYER = ("input_layernorm", "attn_pre_proj", "attn_rope", "attn_post_proj", "post_attention_layernorm", "mlp_up_proj",
         "mlp_act", "mlp_down_proj", "add")
SHAPE = {"n_embd": 4096, "n_kv_head": 32, "num_tensor_parallel_workers": 1}
PREDICTOR = "random_forrest_execution_time_predictor_config"  # as vidur spells it

# What VENV's Python runs: vidur's own main, with the clock read between its parts.
DRIVER = r"""
import importlib.metadata, json, time
begin = time.perf_counter()
from vidur.config import SimulationConfig
from vidur.simulator import Simulator
from vidur.utils.random import set_seeds
from vidur.entities import Batch
imported = time.perf_counter()
config = SimulationConfig.create_from_cli_args()
set_seeds(config.seed)
simulator = Simulator(config)
requests = [event._request for _, event in simulator._event_queue]
ready, ready_cpu = time.perf_counter(), time.process_time()
simulator.run()
done, done_cpu = time.perf_counter(), time.process_time()
print("TIMES " + json.dumps({
    "version": importlib.metadata.version("vidur"), "import_s": imported - begin, "prepare_s": ready - imported,
    "loop_s": [done - ready, done_cpu - ready_cpu], "completed": sum(bool(r.completed) for r in requests),
    "batches": Batch.generate_id(), "duration_s": simulator._time}))
"""


# --- The workload ---------------------------------------------------------------------------------------------------


def requests_of(result):
    """(arrival in seconds, prompt, output) of each request of a detailed result of kvasir."""
    rows = list(zip(result["start_times"], result["input_lens"], result["output_lens"]))
    if result["completed"] != len(rows) or any(prompt < 1 or output < 1 for _, prompt, output in rows):
        sys.exit(f"only {result['completed']} of {len(rows)} requests ended: lower --load")
    return sorted(rows)


def write_csv(file, columns, rows):
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)


def write_traces(rows, ours, theirs):
    with open(ours, "w", encoding="utf-8") as file:
        write_csv(file, ("arrival_s", "prompt_tokens", "output_tokens"), [(f"{a:.9f}", p, o) for a, p, o in rows])
    with open(theirs, "w", encoding="utf-8") as file:
        write_csv(file, ("Date", "Time", "PromptTokenCount", "CompletionTokenCount"),
                  [(DAY, f"{a:.9f}", p, o) for a, p, o in rows])


# --- vidur's profiles -----------------------------------------------------------------------------------------------


def rows_of(path, wanted):
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            rows = [row for row in csv.DictReader(file) if all(row.get(key) == value for key, value in wanted.items())]
    except OSError as problem:
        sys.exit(f"{path}: {problem.strerror or problem}")
    if not rows:
        sys.exit(f"{path}: no row with {wanted}")
    return rows


def layer_table(folder):
    """vidur's mlp.csv: columns and rows, one row for each number of tokens."""
    rows = rows_of(folder / "vidur_mlp_median_ms.csv.gz", {"device": "a100", "model": "Llama-2-7b-hf", "tp": "1"})
    columns = [*SHAPE, "n_head", "n_expanded_embd", "use_gated_mlp", "vocab_size", "num_tokens",
               *(f"time_stats.{name}.median" for name in LAYER)]
    return columns, [[*SHAPE.values(), r["n_head"], r["n_ffn"], True, r["vocab"], r["num_tokens"],
                      *(r[f"{name}_ms"] for name in LAYER)] for r in rows]


def attention_table(folder):
    """vidur's attention.csv: a prompt's chunks (prefill_chunk_size > 0), then decodes."""
    columns = [*SHAPE, "n_q_head", "block_size", "batch_size", "prefill_chunk_size", "kv_cache_size",
               "time_stats.attn_prefill.median", "time_stats.attn_decode.median"]
    fixed = [*SHAPE.values(), 32, 16]
    prefills = rows_of(folder / "vidur_attention_a100_llama2-70b_tp2_ms.csv.gz", {"is_prefill": "1", "batch_size": "1"})
    decodes = rows_of(folder / "aic_attention_decode_bf16_hd128_ms.csv.gz",
                      {"device": "a100_sxm", "q_heads": "32", "kv_heads": "32"})
    table = [[*fixed, 1, r["prefill_chunk_tokens"], r["kv_cache_tokens"], r["attn_ms"], ""] for r in prefills]
    table += [[*fixed, r["batch"], 0, r["kv_len"], "", r["latency_ms"]] for r in decodes
              if int(r["batch"]) <= MAX_SEQS and int(r["kv_len"]) <= 2 * MAX_TOTAL]
    return columns, table


def data_set(cache, name, config):
    """The folder of a data set in a hub's cache that is complete without the hub."""
    root = cache / ("datasets--" + name.replace("/", "--"))
    (root / "refs").mkdir(parents=True)
    (root / "refs" / "main").write_text(COMMIT)
    files = root / "snapshots" / COMMIT
    files.mkdir(parents=True)
    (files / "config.json").write_text(json.dumps(config))
    return files


def write_profiles(folder, cache):
    compute = data_set(cache / "profiling_data" / "compute", COMPUTE, {"model": VIDUR_MODEL, "device_sku": "a100"})
    for name, table in (("mlp", layer_table), ("attention", attention_table)):
        with lzma.open(compute / f"{name}.csv.xz", "wt", encoding="utf-8", preset=0) as file:
            write_csv(file, *table(folder))
    data_set(cache / "profiling_data" / "network", NETWORK, {"sku": "a100_dgx"})  # one device sends nothing


# --- Running them ---------------------------------------------------------------------------------------------------


def children_cpu():
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def timed(command, **more):
    """(wall seconds, CPU seconds) and standard output of a process."""
    begin, begin_cpu = time.perf_counter(), children_cpu()
    try:
        done = subprocess.run(command, capture_output=True, text=True, **more)
    except OSError as problem:
        sys.exit(f"{command[0]} cannot be run: {problem.strerror}")
    seconds = (time.perf_counter() - begin, children_cpu() - begin_cpu)
    if done.returncode != 0:
        tail = (done.stderr or done.stdout).strip().splitlines() or ["no message"]
        sys.exit(f"{command[0]} ended with {done.returncode}: {tail[-1]}")
    return seconds, done.stdout


def kvasir_command(o, model, device, *flags):
    return [o.kvasir, "simulate", "--model", model, "--device", device, "--scheduling-policy", "vllm", "-j", "1",
            "--no-progress", "--num-prompts", str(o.requests), "--seed", str(o.seed), *flags]


def vidur_command(o, work, trace):
    flags = {
        "log_level": "error",
        "cluster_config_num_replicas": 1,
        "replica_config_model_name": VIDUR_MODEL,
        "replica_config_num_pipeline_stages": 1,
        "replica_config_tensor_parallel_size": 1,
        "replica_config_device": "a100",
        "replica_config_network_device": "a100_dgx",
        "cache_config_block_size": 16,
        "replica_scheduler_config_type": "vllm",
        "vllm_scheduler_config_batch_size_cap": MAX_SEQS,
        "vllm_scheduler_config_max_tokens_in_batch": MAX_BATCHED_TOKENS,
        "request_generator_config_type": "trace_replay",
        "trace_request_generator_config_trace_file": trace,
        "trace_request_generator_config_date": DAY,
        "trace_request_generator_config_prefill_scale_factor": 1,
        "trace_request_generator_config_decode_scale_factor": 1,
        "trace_request_generator_config_time_scale_factor": 1,
        "trace_request_generator_config_max_tokens": MAX_TOTAL,
        "execution_time_predictor_config_type": "random_forrest",
        f"{PREDICTOR}_model_profiling_dataset": COMPUTE,
        f"{PREDICTOR}_network_profiling_dataset": NETWORK,
        f"{PREDICTOR}_cache_dir": work / "cache",
        f"{PREDICTOR}_k_fold_cv_splits": 2,
        f"{PREDICTOR}_num_training_job_threads": 1,
        f"{PREDICTOR}_num_estimators": 100,
        f"{PREDICTOR}_max_depth": 16,
        f"{PREDICTOR}_min_samples_split": 2,
        f"{PREDICTOR}_prediction_max_tokens_per_request": MAX_TOTAL,
        f"{PREDICTOR}_prediction_max_prefill_chunk_size": MAX_BATCHED_TOKENS,
        f"{PREDICTOR}_prediction_max_batch_size": MAX_SEQS,
        "metrics_config_output_dir": work / "output",
    }
    command = [o.vidur_python, "-c", DRIVER]
    for name, value in flags.items():
        command += [f"--{name}", str(value)]
    off = ("write_metrics", "write_json_trace", "enable_chrome_trace", "store_plots", "store_request_metrics",
           "store_batch_metrics", "store_utilization_metrics")
    command += [f"--no-metrics_config_{name}" for name in off]
    return command + ([f"--{PREDICTOR}_use_native_execution_time_predictor"] if o.native else [])


def vidur_environment():
    threads = {name: "1" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "LOKY_MAX_CPU_COUNT")}
    return {**os.environ, **threads, "HF_HUB_OFFLINE": "1", "WANDB_MODE": "disabled"}


def times_in(text, requests):
    """The driver's figures. They are of no use when a request is missing."""
    found = re.search(r"^TIMES (\{.*\})$", text, re.MULTILINE)
    if not found:
        sys.exit("vidur printed no times")
    times = json.loads(found[1])
    if times["completed"] != requests:
        sys.exit(f"vidur ended {times['completed']} of {requests} requests")
    return times


def figures_in(text, requests):
    """Simulated seconds, steps and capacity of what kvasir printed."""
    names = {"completed": "Successful requests", "duration_s": r"Benchmark duration \(s\)", "steps": "Steps",
             "capacity": "capacity for this workload"}
    found = {key: re.search(rf"^{name}: +([0-9.]+)", text, re.MULTILINE) for key, name in names.items()}
    missing = [key for key, match in found.items() if not match]
    if missing:
        sys.exit(f"kvasir simulate printed no {missing[0]}")
    figures = {key: float(match[1]) for key, match in found.items()}
    if figures["completed"] != requests:
        sys.exit(f"kvasir ended {figures['completed']:g} of {requests} requests")
    return figures


# --- The table ------------------------------------------------------------------------------------------------------


def row(name, runs, requests, ours):
    """`runs`: (wall, CPU) of each; `ours`: Kvasir's in the same order, or None. The ratio is the median over the pairs."""
    wall = [run[0] for run in runs]
    ratio = f"{statistics.median(w / o[0] for w, o in zip(wall, ours)):.2f}" if ours else "–"
    return (f"| {name} | {min(wall):.2f} | {statistics.median(wall):.2f} | {min(run[1] for run in runs):.2f} | "
            f"{requests / min(wall):,.0f} | {ratio} |")


def table(runs, requests):
    ours = runs["kvasir"]
    return "\n".join([
        "| | best, s | median, s | least CPU, s | requests/s at best | times Kvasir's time |", "|---|---|---|---|---|---|",
        row("`kvasir simulate`, the whole command", ours, requests, None),
        row("vidur, its event loop alone", runs["loop"], requests, ours),
        row("vidur, the whole command, trained before", runs["warm"], requests, ours),
        row("vidur, the first command, which trains", runs["cold"], requests, [min(ours)]),
        row("`kvasir simulate`, OPT-13B on an A100-40G, lengths and load drawn likewise", runs["opt"], requests, None)])


def compare(o, work):
    bounds = ("--max-num-seqs", str(MAX_SEQS), "--max-num-batched-tokens", str(MAX_BATCHED_TOKENS))
    drawn = ("--workload", "sharegpt", "--request-rate", f"{o.load}x")
    _, text = timed(kvasir_command(o, MODEL, DEVICE, *bounds, *drawn, "--save-result", "--save-detailed", "--result-dir",
                                   str(work), "--result-filename", "drawn.json"))
    capacity = figures_in(text, o.requests)["capacity"]
    rows = requests_of(json.loads((work / "drawn.json").read_text()))
    write_traces(rows, work / "ours.csv", work / "theirs.csv")
    write_profiles(o.profiles, work / "cache")
    ours = kvasir_command(o, MODEL, DEVICE, *bounds, "--workload", "trace", "--dataset-path", str(work / "ours.csv"))
    opt = kvasir_command(o, "opt-13b", "a100-40g", *drawn)
    theirs, environment = vidur_command(o, work, work / "theirs.csv"), vidur_environment()
    seconds, text = timed(theirs, env=environment)
    times_in(text, o.requests)
    runs = {"kvasir": [], "loop": [], "warm": [], "cold": [seconds], "opt": []}
    for turn in range(o.runs):
        for who in ("kvasir", "vidur", "opt")[::-1 if turn % 2 else 1]:
            if who == "vidur":
                seconds, text = timed(theirs, env=environment)
                vidur = times_in(text, o.requests)
                runs["warm"].append(seconds)
                runs["loop"].append(vidur["loop_s"])
                continue
            seconds, text = timed(ours if who == "kvasir" else opt)
            said = figures_in(text, o.requests)
            figures = said if who == "kvasir" else figures
            runs[who].append(seconds)
    print(f"{o.requests} requests of ShareGPT's lengths, {MODEL} on {DEVICE}, Poisson arrivals at {o.load:g} of the "
          f"capacity, {capacity:g} requests/s; one core, {o.runs} runs in turn.\n")
    print(table(runs, o.requests))
    print(f"\nSimulated by Kvasir: {figures['duration_s']:.1f} s in {figures['steps']:.0f} steps; by vidur "
          f"{vidur['version']}: {vidur['duration_s']:.1f} s in {vidur['batches']} batches. Of vidur's last command, "
          f"imports took {vidur['import_s']:.2f} s, and its preparations {vidur['prepare_s']:.2f} s.")


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--kvasir", required=True, help="the binary; of a release build")
    parser.add_argument("--vidur-python", required=True, help="a Python in which vidur is installed")
    parser.add_argument("--profiles", required=True, type=pathlib.Path, help="the folder of profiles")
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--load", type=float, default=0.8, help="of the capacity (0.8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, default=3, help="of each, in turn (3)")
    parser.add_argument("--core", type=int, help="that all processes share (the last one allowed)")
    parser.add_argument("--native", action="store_true", help="vidur's lookups in C++, which it offers as an option")
    o = parser.parse_args(argv)
    if o.requests < 1 or o.runs < 1 or not 0 < o.load:
        parser.error("--requests, --runs and --load must be above 0")
    if not o.profiles.is_dir():
        parser.error(f"--profiles {o.profiles}: no such folder")
    return o


def main():
    o = parse(sys.argv[1:])
    allowed = os.sched_getaffinity(0)
    core = max(allowed) if o.core is None else o.core
    if core not in allowed:
        sys.exit(f"--core {core}: this process may use {sorted(allowed)}")
    os.sched_setaffinity(0, {core})
    with tempfile.TemporaryDirectory() as work:
        compare(o, pathlib.Path(work))


if __name__ == "__main__":
    main()
