"""Fits the simulator's devices to published kernel profiles and writes a catalogue file for each.

    python3 tools/fit_devices.py FOLDER [--out apps/simulate/catalog]

FOLDER holds the profiles named below. Only profiles of kernels are read; measurements of whole steps are for
tools/check_published.py, which tests what this program fitted. docs/simulator-truth.md has the formulas. The
same input gives the same files.
"""

import argparse
import csv
import gzip
import json
import pathlib

import numpy as np

from rate_fit import Branch, Curve, KernelFit, SHARPNESS, summary

AIC = "ai-dynamo/aiconfigurator@095f58a51c4ca8e61b66ec108d86f223f8d559ce (Apache-2.0)"
VIDUR = "microsoft/vidur@7d47513363ec447a741ac5e47241580b47724fbf (MIT)"
VIDUR_ATTENTION = "microsoft/vidur@e2d00e9afba96cec9f0e7ea560bbfc4a539fae6a (MIT)"
VIDUR_CPU = "microsoft/vidur@6d98aa8f71696520acc603d87439e77cc78160a7 (MIT)"
HEAD = 128  # of all attention profiles
BYTES = 2  # of a bf16 element


def read(folder, name):
    """The rows of a CSV file; numbers are numbers."""
    path = folder / name
    with (gzip.open(path, "rt") if name.endswith(".gz") else open(path)) as file:
        rows = list(csv.DictReader(file))
    out = {}
    for key in rows[0]:
        values = [row[key] for row in rows]
        try:
            out[key] = np.array([float(v) if v else np.nan for v in values])
        except ValueError:
            out[key] = np.array(values)
    return out


def where(table, chosen):
    return {key: values[chosen] for key, values in table.items()}


def every_fifth(*keys):
    """Holds out every fifth group of points that agree in all the keys."""
    groups = np.unique(np.stack(keys, axis=1), axis=0, return_inverse=True)[1].ravel()
    return groups * 7 % 5 == 0


def solve(seconds, held_out, branches, launch, weights=None, units=None):
    """Fits without the points held out, with their predictions."""
    weights = np.ones(len(seconds)) if weights is None else weights
    return KernelFit(seconds, np.where(held_out, 0.0, weights), branches, launch, units)


def points(fit, held_out, shape, count=6):
    """Some points that the fit did not see, from fast to slow: shape, measured and fitted seconds."""
    order = np.flatnonzero(held_out)
    order = order[np.argsort(fit.seconds[order], kind="stable")]
    chosen = order[np.linspace(0, len(order) - 1, count + 2).astype(int)[1:-1]]
    return [{**{key: float(values[i]) for key, values in shape.items()},
             "measured_s": float(f"{fit.seconds[i]:.6g}"), "fitted_s": float(f"{fit.predicted[i]:.6g}")}
            for i in chosen]


def kernel_data(fit, names):
    """The coefficients of a kernel as the catalogue holds them."""
    out = {"launch_s": float(f"{fit.launch:.5g}"), "unit_s": float(f"{fit.unit:.5g}"), "sharpness": SHARPNESS}
    for name, branch in zip(names, fit.branches):
        out[name] = {curve.name: curve.data() for curve in branch.curves}
    return out


def gemm_curves(m, n, k):
    log = np.log2
    return (
        [
            Curve("rows", log(m), np.arange(0, 16)),
            Curve("outputs", log(m * n), [12, 16, 18, 20, 21, 22, 23, 24, 26, 28, 30]),
            Curve("depth", log(k), [8, 9, 10, 11, 12, 13, 14, 16]),
        ],
        [
            Curve("weights", log(n * k), [16, 18, 20, 21, 22, 23, 24, 25, 26, 28, 30, 32]),
            Curve("rows", log(m), [0, 3, 4, 5, 6, 7, 8, 10], steepest=0.2),
        ],
    )


def fit_gemm(table, device, flops, bandwidth):
    """bf16 products of (m, k) and (k, n)."""
    t = where(table, table["device"] == device)
    m, n, k = t["m"], t["n"], t["k"]
    rates, reads = gemm_curves(m, n, k)
    held_out = every_fifth(n, k)
    fit = solve(
        t["latency_ms"] * 1e-3, held_out,
        [Branch(2 * m * n * k, 0.6 * flops, rates), Branch(BYTES * (m * n + n * k + m * k), 0.8 * bandwidth, reads)],
        2e-6, np.where(n * k >= 2**20, 1.0, 0.3))
    return fit, {**summary(fit, held_out), "examples": points(fit, held_out, {"m": m, "n": n, "k": k})}


def gemm_seconds(fit, m, n, k):
    """The fitted time of other shapes."""
    parts = []
    work = (2 * m * n * k, BYTES * (m * n + n * k + m * k))
    for amount, branch, curves in zip(work, fit.branches, gemm_curves(m, n, k)):
        for curve, known in zip(curves, branch.curves):
            curve.values = known.values
        parts.append(amount / 2 ** sum(c.basis() @ c.values for c in curves))
    return (parts[0] ** SHARPNESS + parts[1] ** SHARPNESS) ** (1 / SHARPNESS) + fit.launch


def layer_factor(mlp, device, fit):
    """How much longer the products of a layer take among its other kernels than each alone, at many rows."""
    t = where(mlp, (mlp["device"] == device) & (mlp["num_tokens"] > 2048))
    m, tp, hidden, ffn = t["num_tokens"], t["tp"], t["n_embd"], t["n_ffn"]
    q, kv = t["n_head"] * HEAD, t["n_kv_head"] * HEAD
    alone = (gemm_seconds(fit, m, (q + 2 * kv) / tp, hidden) + gemm_seconds(fit, m, hidden, q / tp) +
             gemm_seconds(fit, m, 2 * ffn / tp, hidden) + gemm_seconds(fit, m, hidden, ffn / tp))
    among = sum(t[c] for c in ("attn_pre_proj_ms", "attn_post_proj_ms", "mlp_up_proj_ms", "mlp_down_proj_ms"))
    return float(np.nanmedian(among * 1e-3 / alone))


def fit_prefix(folder):
    """How the rate of attention changes with the history before a chunk, from the one profile that has any.

    Its kernel computes the whole rectangle of rows and positions, so that is the work here.
    """
    t = read(folder, "vidur_attention_a100_llama2-70b_tp2_ms.csv.gz")
    t = where(t, t["is_prefill"] == 1)
    rows, history = t["prefill_chunk_tokens"], t["kv_cache_tokens"]
    held_out = every_fifth(rows, history)
    fit = solve(
        t["attn_ms"] * 1e-3, held_out,
        [Branch(4 * HEAD * 32 * rows * (history + rows), 5e13,
                [Curve("rows", np.log2(rows), np.arange(6, 13), 0.8),
                 Curve("prefix", np.log2(1 + history / rows), [0, 0.5, 1, 2, 3, 4, 5, 6], 0.8, -0.15)])],
        1e-5)
    prefix = fit.branches[0].curves[1]
    prefix.values -= prefix.values[0]  # 0 where there is no history
    return prefix.data(), summary(fit, held_out)


def fit_prefill(table, device, flops):
    t = where(table, (table["device"] == device) & (table["prompt_len"] >= 16))
    rows, heads = t["prompt_len"], t["batch"] * t["q_heads"]
    held_out = every_fifth(t["q_heads"], t["kv_heads"], t["batch"])
    fit = solve(
        t["latency_ms"] * 1e-3, held_out,
        [Branch(4 * HEAD * heads * rows * (rows + 1) / 2, 0.5 * flops,
                [Curve("rows", np.log2(rows), np.arange(4, 15), 0.7, -1),
                 Curve("elements", np.log2(heads * rows), np.arange(4, 22), 0.25, -1)])],
        1e-5, units=heads)
    shape = {key: t[key] for key in ("q_heads", "kv_heads", "batch", "prompt_len")}
    return fit, {**summary(fit, held_out), "examples": points(fit, held_out, shape)}


def attention_ceiling(fit):
    """The best rate that was measured without a history, as log2: none brings a chunk beyond it."""
    large = fit.seconds > 1e-4
    return round(float(np.log2(np.percentile((fit.branches[0].work / fit.seconds)[large], 99))), 4)


def fit_decode(table, device, bandwidth, grouped):
    """Several query heads to a KV head: vLLM's kernels; one: TensorRT-LLM's, the only ones measured.

    What was read faster than the memory can came from a cache, where the KV of a real step's layer is not.
    """
    same = table["q_heads"] == table["kv_heads"]
    vllm = np.char.startswith(table["engine"].astype(str), "vllm")
    work = 2 * BYTES * HEAD * table["batch"] * table["kv_heads"] * table["kv_len"]
    uncached = work / (table["latency_ms"] * 1e-3) < bandwidth
    t = where(table, (table["device"] == device) & (vllm & ~same if grouped else same) & uncached)
    heads, length = t["batch"] * t["kv_heads"], t["kv_len"]
    curves = [Curve("length", np.log2(length), np.arange(1, 18), 0.6, -1),
              Curve("heads", np.log2(heads), np.arange(0, 16), 0.6, -1)]
    if grouped:
        curves.append(Curve("group", np.log2(t["q_heads"] / t["kv_heads"]), [1, 2, 3, 4, 5, 6]))
    held_out = every_fifth(t["q_heads"], t["kv_heads"], t["batch"])
    fit = solve(t["latency_ms"] * 1e-3, held_out,
                [Branch(2 * BYTES * HEAD * heads * length, 0.8 * bandwidth, curves)], 1e-5, units=heads)
    shape = {key: t[key] for key in ("q_heads", "kv_heads", "batch", "kv_len")}
    return fit, {**summary(fit, held_out), "examples": points(fit, held_out, shape)}


def fit_elementwise(mlp, device, bandwidth):
    """Norms, rotation, activation and additions of a layer together, over the bytes that they move."""
    t = where(mlp, mlp["device"] == device)
    m, tp, hidden = t["num_tokens"], t["tp"], t["n_embd"]
    qkv = (t["n_head"] + t["n_kv_head"]) * HEAD / tp
    work = BYTES * m * (10 * hidden + 2 * qkv + 3 * t["n_ffn"] / tp)
    ms = (t["input_layernorm_ms"] + t["post_attention_layernorm_ms"] + t["attn_rope_ms"] + t["mlp_act_ms"] +
          2 * t["add_ms"])
    known = np.isfinite(ms)
    work, ms, m, tp, hidden = work[known], ms[known], m[known], tp[known], hidden[known]
    held_out = every_fifth(m)
    fit = solve(ms * 1e-3, held_out,
                [Branch(work, 0.7 * bandwidth, [Curve("bytes", np.log2(work), np.arange(16, 33, 2))])], 2e-5)
    return fit, summary(fit, held_out)


def table_of(sizes, seconds):
    """log2 of seconds over log2 of bytes: medians by octave, never falling."""
    octave = np.round(np.log2(sizes)).astype(int)
    at = np.unique(octave)
    values = np.array([np.median(np.log2(seconds[octave == o])) for o in at])
    return {"x": [float(a) for a in at], "log2": [round(float(v), 4) for v in np.maximum.accumulate(values)]}


def all_reduce_tables(collectives, device):
    """Within a CUDA graph below 1 MB, as NCCL does it above."""
    t = where(collectives, (collectives["device"] == device) & (collectives["op"] == "all_reduce"))
    size = t["elements_2B"] * BYTES
    graph = t["library"] == "vllm_graph"
    nccl = np.char.startswith(t["library"].astype(str), "nccl")
    out = {}
    for cards in (2, 4, 8):
        chosen = (t["num_gpus"] == cards) & ((graph & (size < 2**20)) | (nccl & (size >= 2**20)))
        out[str(cards)] = table_of(size[chosen], t["latency_ms"][chosen] * 1e-3)
    return out


def eager_all_reduce(collectives, device):
    """What a small all-reduce takes that the host launches itself, without a graph."""
    t = where(collectives, (collectives["device"] == device) & (collectives["library"] == "vllm_eager"))
    return float(f"{np.median(t['latency_ms'][t['elements_2B'] * BYTES <= 2**16]) * 1e-3:.4g}")


def paired_all_reduce_tables(folder, pair_below):
    """A100 PCIe with NVLink between pairs; small ones of a pair as in a graph. Eight: four scaled."""
    t = read(folder, "vidur_all_reduce_ms.csv.gz")
    t = where(t, t["node"] == "a100_pairwise_nvlink")
    out = {}
    for cards in (2, 4):
        chosen = t["num_workers"] == cards
        out[str(cards)] = table_of(t["size_bytes"][chosen], np.maximum(t["min_ms"][chosen], 1e-3) * 1e-3)
    small = [(x, y) for x, y in zip(pair_below["x"], pair_below["log2"]) if x < 20]
    large = [(x, y) for x, y in zip(out["2"]["x"], out["2"]["log2"]) if x >= 20]
    out["2"] = {"x": [x for x, _ in small + large],
                "log2": [float(v) for v in np.maximum.accumulate([y for _, y in small + large])]}
    ring = np.log2((7 / 8) / (3 / 4))  # bytes that a card sends in a ring
    out["8"] = {"x": out["4"]["x"], "log2": [round(v + ring, 4) for v in out["4"]["log2"]]}
    return out


def eight_as_ring(tables, from_log2=19):
    """L40S's eight cards take 2 to 4.2 times as long as four from 512 KiB on. In the other profiles, with NVLink, they take
    1.0 to 1.4 times as long, and in a ring a card sends 7/6 of the bytes: so larger ones are four cards' by 7/6."""
    ring = float(np.log2((7 / 8) / (3 / 4)))
    four = dict(zip(tables["4"]["x"], tables["4"]["log2"]))
    values = [min(y, four[x] + ring) if x >= from_log2 and x in four else y for x, y in zip(tables["8"]["x"], tables["8"]["log2"])]
    return {**tables, "8": {"x": tables["8"]["x"], "log2": [round(float(v), 4) for v in np.maximum.accumulate(values)]}}


def send_table(folder, node):
    t = read(folder, "vidur_send_recv_ms.csv.gz")
    t = where(t, (t["node"] == node) & (t["devices_per_node"] == 2))
    return table_of(t["size_bytes"], np.maximum(t["min_ms"], 1e-3) * 1e-3)


def assumed_send(bytes_per_s, latency_s):
    """A table of latency + bytes / rate, where nothing was measured."""
    x = np.arange(11, 31)
    return {"x": [float(v) for v in x], "log2": [round(float(np.log2(latency_s + 2.0**v / bytes_per_s)), 4) for v in x]}


def scaled(data, factors):
    """Coefficients of a device whose rates differ by factors: {kernel: {rate: factor}}."""
    out = json.loads(json.dumps(data))
    for kernel in factors:  # the examples are of the device that was measured
        out["fit"].get(kernel, {}).pop("examples", None)
    for kernel, rates in factors.items():
        for rate, factor in rates.items():
            level = next(iter(out[kernel][rate].values()))  # the first curve carries the level
            level["log2"] = [round(v + float(np.log2(factor)), 5) for v in level["log2"]]
            if rate == "flop_rate" and "ceiling_log2" in out[kernel]:
                out[kernel]["ceiling_log2"] = round(out[kernel]["ceiling_log2"] + float(np.log2(factor)), 4)
    return out


def bytes_factor(f):
    kernels = ("gemm", "decode_attention_grouped", "decode_attention_single", "elementwise")
    return {kernel: {"byte_rate": f} for kernel in kernels}


class Devices:
    """All fits; device() puts a catalogue entry together."""

    def __init__(self, folder):
        self.folder = folder
        self.specs = read(folder, "aic_device_specs.csv")
        self.gemm = read(folder, "aic_gemm_bf16_ms.csv.gz")
        self.prefill = read(folder, "aic_attention_prefill_bf16_hd128_ms.csv.gz")
        self.decode = read(folder, "aic_attention_decode_bf16_hd128_ms.csv.gz")
        self.mlp = read(folder, "vidur_mlp_median_ms.csv.gz")
        self.collectives = read(folder, "aic_collectives_fp16_ms.csv.gz")
        self.prefix, self.prefix_error = fit_prefix(folder)
        self.kept = {}

    def spec(self, device, column):
        return float(self.specs[column][self.specs["device"] == device][0])

    def device(self, profile, ops_of):
        """ops_of: the card of which elementwise kernels were measured, scaled by bandwidth if another."""
        flops, bandwidth = self.spec(profile, "bfloat16_tc_flops"), self.spec(profile, "mem_bw_Bps")
        gemm, gemm_error = fit_gemm(self.gemm, profile, flops, bandwidth)
        prefill, prefill_error = fit_prefill(self.prefill, profile, flops)
        decode, decode_error = fit_decode(self.decode, profile, bandwidth, True)
        single, single_error = fit_decode(self.decode, profile, bandwidth, False)
        card = ops_of.split("_")[0]
        measured = self.spec(ops_of, "mem_bw_Bps")
        elementwise, elementwise_error = fit_elementwise(self.mlp, card, measured)
        if profile == ops_of:
            self.kept[card] = layer_factor(self.mlp, card, gemm)
        factor = self.kept[card]
        prefill_data = kernel_data(prefill, ["flop_rate"])
        prefill_data["flop_rate"]["prefix"] = self.prefix
        prefill_data["ceiling_log2"] = attention_ceiling(prefill)
        out = {
            "memory_bytes": int(self.spec(profile, "mem_capacity_B")),
            "memory_bytes_per_s": bandwidth,
            "flops": flops,
            "pcie": {"bytes_per_s": self.spec(profile, "pcie_bw_Bps_per_dir"), "efficiency": 0.8, "link_share": 1.0},
            "layer_factor": round(factor, 4),
            "gemm": kernel_data(gemm, ["flop_rate", "byte_rate"]),
            "prefill_attention": prefill_data,
            "decode_attention_grouped": kernel_data(decode, ["byte_rate"]),
            "decode_attention_single": kernel_data(single, ["byte_rate"]),
            "elementwise": kernel_data(elementwise, ["byte_rate"]),
            "all_reduce": all_reduce_tables(self.collectives, profile),
            "eager_all_reduce_s": eager_all_reduce(self.collectives, profile),
            "fit": {"gemm": gemm_error, "prefill_attention": prefill_error, "prefix": self.prefix_error,
                    "decode_attention_grouped": decode_error, "decode_attention_single": single_error,
                    "elementwise": elementwise_error},
        }
        if profile != ops_of:
            ratio = bandwidth / measured
            out = scaled(out, {"elementwise": {"byte_rate": ratio}})
        out["source"] = [
            f"GEMM, attention, all-reduce: {AIC}, {profile}",
            f"elementwise, layer_factor: {VIDUR}, {card}" + ("" if profile == ops_of else ", by memory bandwidth"),
            f"effect of a cached prefix: {VIDUR_ATTENTION}, A100",
            f"memory, bandwidth, PCIe: {AIC}, systems/*.yaml; PCIe efficiency 0.8 is assumed",
        ]
        return out


def overheads(folder):
    """A Python engine's time on the CPU in each step: constant and per sequence, by tensor parallelism."""
    t = read(folder, "vidur_cpu_overheads_ms.csv")
    ms = sum(t[c + "_mean"] for c in ("schedule", "prepare_inputs", "sampler", "process_outputs"))
    python = {}
    for tp, device in ((1, "a100"), (2, "a100"), (4, "a100"), (8, "a40")):
        chosen = (t["tp"] == tp) & (t["device"] == device)
        total = ms[chosen] + t["ray_comm_mean"][chosen]
        per_sequence, step = np.polyfit(t["batch_size"][chosen], total * 1e-3, 1)
        found = step + per_sequence * t["batch_size"][chosen]
        python[str(tp)] = {"step_s": float(f"{step:.4g}"), "sequence_s": float(f"{per_sequence:.4g}"),
                           "fit_mean_percent": round(100 * float(np.abs(found / (total * 1e-3) - 1).mean()), 1)}
    return {
        "python": {"by_tensor": python, "eager": True, "source": "schedule, inputs, sampler, outputs and Ray of a Python engine: "
                   f"{VIDUR_CPU}, cpu_overheads; A100, tensor 8 from A40"},
        "kvasir": {"by_tensor": {"1": {"step_s": 60e-6, "sequence_s": 0.3e-6}},
                   "source": "bench/engine_steps, docs/performance.md"},
        "eager": {"by_tensor": {"1": {"step_s": 0.0, "sequence_s": 0.0}}, "eager": True,
                  "source": "kernels alone, launched by the host without graphs"},
        "none": {"by_tensor": {"1": {"step_s": 0.0, "sequence_s": 0.0}}, "source": "kernels alone"},
    }


def catalogue(folder):
    all_of = Devices(folder)
    a100 = all_of.device("a100_sxm", "a100_sxm")
    a100["send_recv"] = send_table(folder, "a100_dgx")
    h100 = all_of.device("h100_sxm", "h100_sxm")
    h100["send_recv"] = send_table(folder, "h100_dgx")
    h200 = all_of.device("h200_sxm", "h100_sxm")
    h200["send_recv"] = h100["send_recv"]
    l40s = all_of.device("l40s", "a100_sxm")
    l40s["send_recv"] = assumed_send(0.8 * l40s["pcie"]["bytes_per_s"], 1e-5)
    l40s["source"].append("send and receive: assumed, 10 us and 0.8 of PCIe")
    h200["source"].append("send and receive: H100's")

    small = scaled(a100, bytes_factor(1.555 / 2.039))
    small.update(memory_bytes=40 * 2**30, memory_bytes_per_s=1.555e12)
    small["source"] = a100["source"] + ["derived from A100 80 GB: rates of bytes by 1.555 / 2.039 TB/s"]
    pcie = scaled(a100, bytes_factor(1.935 / 2.039))
    pcie.update(memory_bytes_per_s=1.935e12, all_reduce=paired_all_reduce_tables(folder, a100["all_reduce"]["2"]),
                send_recv=send_table(folder, "a100_pairwise_nvlink"))
    pcie["source"] = a100["source"] + [
        "derived from A100 SXM: rates of bytes by 1.935 / 2.039 TB/s",
        f"all-reduce, send and receive: {VIDUR}, a100_pairwise_nvlink; eight cards: four by 7/6"]
    slower = 119.5 / 362.05
    l20 = scaled(l40s, {"gemm": {"flop_rate": slower}, "prefill_attention": {"flop_rate": slower}})
    l20.update(memory_bytes=48 * 2**30, flops=119.5e12)
    l20["source"] = l40s["source"] + [
        "derived from L40S, not measured: the same 864 GB/s, rates of computing by 119.5 / 362 TFLOP/s"]
    l20["all_reduce"] = eight_as_ring(l20["all_reduce"])
    l20["source"].append("all-reduce of eight cards from 512 KiB on: L40S's four by 7/6, as in a ring; L40S's eight are out of line")
    pair = json.loads(json.dumps(l20))
    pair["pcie"]["link_share"] = 0.5
    pair["source"] = l20["source"] + ["two cards share a PCIe link: half of it each"]
    ring = json.loads(json.dumps(pair))
    ring["all_reduce"] = paired_all_reduce_tables(folder, pair["all_reduce"]["2"])
    ring["all_reduce"]["2"] = pair["all_reduce"]["2"]
    ring["source"] = l20["source"][:-1] + [
        "two cards share a PCIe link: half of it each",
        f"all-reduce of four cards: {VIDUR}, a100_pairwise_nvlink, whose ring crosses PCIe; eight cards: four by 7/6"]
    return {"a100-80g": a100, "a100-40g": small, "a100-80g-pcie": pcie, "h100": h100, "h200": h200, "l40s": l40s,
            "l20": l20, "l20-pcie-pair": pair,
            "l20-pcie-ring": ring}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=pathlib.Path, help="the folder of the profiles")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("apps/simulate/catalog"))
    arguments = parser.parse_args()
    devices = arguments.out / "devices"
    devices.mkdir(parents=True, exist_ok=True)
    for name, data in catalogue(arguments.folder).items():
        (devices / f"{name}.json").write_text(json.dumps({"name": name, **data}, indent=1) + "\n")
        print(name, "layer_factor", data["layer_factor"])
        for kernel, error in data["fit"].items():
            print("  ", kernel, error)
    (arguments.out / "overheads.json").write_text(json.dumps(overheads(arguments.folder), indent=1) + "\n")


if __name__ == "__main__":
    main()
