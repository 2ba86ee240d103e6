#!/usr/bin/env python3
"""What eLLM's own cost model allows: Equations 2 to 5 as published and as corrected, for its models on A100s.

    ellm_arithmetic.py [--kvasir build/release/kvasir]

Prints Markdown tables. Times are at the peak of the device (its FLOPS and memory bandwidth, as the paper has it); with
--kvasir also those of the simulated device, from `kvasir simulate --price`. docs/reproduction.md says what follows.

Symbols: b requests decode, s is their mean length, r the share of it that is not kept. M: the tokens whose K and V
the device has room for. c: seconds for a token that is recomputed. w: seconds of a step that do not grow with b.
"""

import argparse
import csv
import dataclasses
import io
import subprocess
import sys
import tempfile

FLOPS = 312e12  # of an A100, bf16
BANDWIDTH = 1.935e12  # bytes/s of an A100-80G PCIe
LINK = 25.6e9  # bytes/s of PCIe 4.0 x16, at 0.8
DEVICE = "a100-80g-pcie"
RATIOS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.36, 0.5)


@dataclasses.dataclass(frozen=True)
class Model:
    """A model on its cards; a number of the hardware below is that of all of them together."""

    name: str
    hidden: int
    layers: int
    feed_forward: int
    kv_hidden: int
    vocabulary: int
    cards: int
    kv_tokens: int  # M, as the simulator has it at 90 % of the memory

    @property
    def layer_weights(self):
        attention = 2 * self.hidden * self.hidden + 2 * self.hidden * self.kv_hidden
        return attention + 3 * self.hidden * self.feed_forward

    @property
    def weight_bytes(self):
        return 2 * (self.layers * self.layer_weights + self.hidden * self.vocabulary)

    @property
    def kv_bytes(self):
        """Of a token."""
        return 2 * 2 * self.layers * self.kv_hidden

    @property
    def flops(self):
        return self.cards * FLOPS

    @property
    def bandwidth(self):
        return self.cards * BANDWIDTH

    @property
    def link(self):
        return self.cards * LINK


LLAMA_13B = Model("Llama-2-13B", 5120, 40, 13824, 5120, 32000, 1, 59612)
LLAMA_70B = Model("Llama-2-70B", 8192, 80, 28672, 1024, 32000, 4, 494432)


@dataclasses.dataclass(frozen=True)
class Load:
    """As many requests as memory holds at r = 0, but not more than the paper's bound on a batch."""

    model: Model
    workload: str
    prompt: float
    output: float
    slo: float  # seconds

    @property
    def length(self):
        """s: half of the output is written."""
        return self.prompt + self.output / 2

    @property
    def requests(self):
        return min(512, int(self.model.kv_tokens / self.length))


# ShareGPT: the stated lengths. L-Eval: the public data's tokens; the stated 35,956 and 5,189 are characters.
LOADS = (
    Load(LLAMA_13B, "ShareGPT", 222, 1346, 0.050),
    Load(LLAMA_13B, "L-Eval", 10745, 404, 0.060),
    Load(LLAMA_70B, "ShareGPT", 222, 1346, 0.500),
    Load(LLAMA_70B, "L-Eval", 10745, 404, 0.200),
)


def letter_again(m, tokens):
    """Equation 2 for one request, seconds: `tokens` = s r of it are recomputed."""
    per_token = 24 * m.hidden**2 * m.layers + 2 * m.hidden * m.vocabulary
    return (per_token * tokens + 4 * m.hidden * m.layers * tokens**2) / m.flops


def again(m, tokens):
    """The same, corrected: the layers' real products, causal attention, and no output layer."""
    return (2 * m.layer_weights * m.layers * tokens + 2 * m.hidden * m.layers * tokens**2) / m.flops


def letter_decode(m, length):
    """Equation 3 for one request, seconds."""
    operations = 24 * m.hidden**2 * m.layers + 4 * m.hidden * m.layers * (length + 1)
    return (operations + 2 * m.hidden * m.vocabulary * length) / m.flops


def decode_compute(m, requests, length):
    """Of a step, seconds: the output layer once for each request, attention to all that is there."""
    products = 2 * (m.layer_weights * m.layers + m.hidden * m.vocabulary)
    return requests * (products + 4 * m.hidden * m.layers * length) / m.flops


def decode_memory(m, requests, length):
    """Of a step, seconds: weights, and K and V of all, read once."""
    return (m.weight_bytes + requests * length * m.kv_bytes) / m.bandwidth


class Simulated:
    """Steps of the simulated device, in an engine without overheads of its own."""

    def __init__(self, binary):
        self.binary = binary

    def price(self, m, steps):
        """Seconds of each of (decode rows, their length, chunks, rows of a chunk)."""
        with tempfile.NamedTemporaryFile("w", suffix=".csv") as table:
            table.write("decode_rows,decode_context,chunks,prefill_rows,sampled\n")
            for rows, length, chunks, chunk in steps:
                table.write(f"{rows},{rows * length},{chunks},{chunk},{rows}\n")
            table.flush()
            done = subprocess.run(
                [self.binary, "simulate", "--model", m.name.lower(), "--device", DEVICE, "--tensor-parallel-size",
                 str(m.cards), "--engine-overhead", "none", "--price", table.name],
                capture_output=True, text=True, check=False)
        if done.returncode != 0:
            sys.exit(f"{self.binary}: {done.stderr or done.stdout}")
        return [float(row["total_ms"]) / 1000 for row in csv.DictReader(io.StringIO(done.stdout))]

    def step(self, load):
        return self.price(load.model, [(load.requests, load.length, 0, 0)])[0]

    def least_step(self, m):
        """w: one request of one token."""
        return self.price(m, [(1, 1, 0, 0)])[0]

    def token(self, load, tokens):
        """c, beside a decode step, where each request has so many recomputed."""
        chunks = max(1, min(load.requests, int(8192 / tokens)))
        plain, both = self.price(load.model, [(load.requests, load.length, 0, 0),
                                              (load.requests, load.length, chunks, tokens)])
        return (both - plain) / (chunks * tokens)


def print_table(title, header, rows):
    print(f"\n{title}\n\n| " + " | ".join(header) + " |\n|" + "---|" * len(header))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |")


def ms(seconds):
    return f"{1e3 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def percent(share):
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"


def token_costs(simulated):
    rows = []
    for load in LOADS:
        m, tokens = load.model, 0.36 * load.length
        row = [m.name, f"{load.workload}, {tokens:,.0f}", ms(letter_again(m, tokens) / tokens),
               ms(again(m, tokens) / tokens)]
        if simulated:
            row.append(ms(simulated.token(load, tokens)))
        rows.append(row)
    print_table("Cost of a token that is recomputed (r = 0.36)",
                ["model", "tokens of a request", "Equation 2", "corrected"] + ["simulated"] * bool(simulated), rows)


def decode_steps(simulated):
    rows = []
    for load in LOADS:
        m, b, s = load.model, load.requests, load.length
        c = again(m, 0.1 * s) / (0.1 * s)
        compute, memory = decode_compute(m, b, s), decode_memory(m, b, s)
        fit = max(0, load.slo - max(compute, memory)) / c
        hidden = max(0, memory - compute) / c
        row = [f"{m.name}, {load.workload}", f"{m.kv_tokens:,}", f"{s:,.0f}", b, ms(b * letter_decode(m, s)),
               int(load.slo / letter_decode(m, s)), f"{ms(compute)} / {ms(memory)}", ms(load.slo),
               f"{hidden:,.0f} ({percent(hidden / (b * s))})", f"{fit:,.0f} ({percent(fit / (b * s))})"]
        if simulated:
            step, token = simulated.step(load), simulated.token(load, 0.1 * s)
            left = max(0, load.slo - step) / token
            row += [ms(step), f"{left:,.0f} ({percent(left / (b * s))})"]
        rows.append(row)
    print_table(
        "Decode steps at r = 0, and how many tokens could be recomputed beside them (share of all that attends)",
        ["", "M", "s", "b", "Equation 3", "most b in the SLO by it", "corrected, compute / memory", "SLO",
         "behind the memory's time", "in the SLO"] + ["simulated", "in the SLO"] * bool(simulated), rows)


def runtime_figure(simulated):
    """Figure 11: 254.64 requests run in the mean, with a cached ratio of 0.64."""
    load = LOADS[2]
    m, b, r = load.model, 254.64, 0.36
    tokens = b * r * load.length
    seconds = [b * letter_again(m, r * load.length), b * again(m, r * load.length)]
    if simulated:
        seconds.append(tokens * simulated.token(load, r * load.length))
    room = m.kv_tokens * m.kv_bytes
    needed = b * load.length * m.kv_bytes
    print(f"\nFigure 11, {m.name} on four cards: {b} requests x {r} x {load.length:.0f} = {tokens:,.0f} tokens a "
          f"step take {', '.join(ms(s) for s in seconds)} (Equation 2, corrected"
          f"{', simulated' * bool(simulated)}), against an SLO of {ms(load.slo)}. All their K and V "
          f"take {needed / 1e9:.0f} of {room / 1e9:.0f} GB.")


def objective():
    """Equation 5 at r = 0."""
    rows = []
    for b in (1, 8, 64, 256):
        rows.append([b, *(ms(letter_decode(m, 895)) for m in (LLAMA_13B, LLAMA_70B))])
    print_table("Equation 5 at r = 0 for b requests of 895 tokens: mean seconds a request",
                ["b", LLAMA_13B.name, LLAMA_70B.name], rows)
    lengths = (400, 1200, 900, 700, 300, 1500)
    values = [sum(letter_decode(LLAMA_13B, s) for s in lengths[:b]) / b for b in range(1, len(lengths) + 1)]
    best = 1 + values.index(min(values))
    print(f"\nOf a queue of {', '.join(map(str, lengths))} tokens: {', '.join(ms(v) for v in values)} for b = 1 to "
          f"{len(lengths)}; the least is at b = {best}.")


def break_even(simulated):
    rows = []
    for load in LOADS:
        m, b, s = load.model, load.requests, load.length
        c, w = again(m, 0.1 * s) / (0.1 * s), m.weight_bytes / m.bandwidth
        step = max(decode_memory(m, b, s), decode_compute(m, b, s))
        staged = step * m.link / m.kv_bytes
        row = [f"{m.name}, {load.workload}", f"{m.kv_tokens:,}", ms(m.kv_tokens * c), ms(w), ms(step),
               f"{w / c:,.0f}", ms(m.kv_tokens * m.kv_bytes / m.link), f"{staged:,.0f}",
               percent(staged / m.kv_tokens)]
        if simulated:
            token = simulated.token(load, 0.1 * s)
            row[3:3] = [ms(m.kv_tokens * token), ms(simulated.least_step(m)), ms(simulated.step(load))]
        rows.append(row)
    print_table(
        "Break-even: r > 0 pays only if M c < w; and what the link brings within a step",
        ["", "M", "M c"] + ["M c, simulated", "w, simulated", "step, simulated"] * bool(simulated)
        + ["w", "step", "w / c, tokens", "M over the link", "staged in a step, tokens", "of M"], rows)


def room_bounds(simulated):
    """What a memory without end would bring, if it cost nothing: T / b falls to what a request adds to a step."""
    rows = []
    for load in LOADS:
        m, b, s = load.model, load.requests, load.length
        # T(b) = max(w + k b, least b)
        prefill, w, least = again(m, load.prompt), m.weight_bytes / m.bandwidth, decode_compute(m, 1, s)
        k = (decode_memory(m, b, s) - w) / b
        if simulated:
            prefill = load.prompt * simulated.token(load, load.prompt)
            w, least = simulated.least_step(m), 0
            k = (simulated.step(load) - w) / b
        in_slo = min(512, (load.slo - w) / k)
        decoding, within, without_end = (max(k + w / n, least) for n in (b, in_slo, float("inf")))
        rates = [1 / (prefill + load.output * t) for t in (decoding, without_end)]
        rows.append([f"{m.name}, {load.workload}", b, ms(b * decoding), ms(w), f"{1 / decoding:,.0f}",
                     f"{1 / without_end:,.0f}", f"{decoding / without_end:.2f}", f"{in_slo:.0f}",
                     f"{decoding / within:.2f}",
                     f"{rates[0]:.2f}", f"{rates[1] / rates[0]:.2f}"])
    which = "simulated" if simulated else "at the peak"
    print_table(
        f"Memory without end, at no cost ({which}): the most that any cache could bring",
        ["", "b at M", "step", "w", "tokens/s", "without end", "times", "b in the SLO, at most 512", "times",
         "requests/s with prefill", "without end, times"], rows)


def forced_ratios():
    """b / T at a forced r, with a batch that fills the memory, over that at r = 0."""
    rows = []
    load = LOADS[0]
    m, s = load.model, load.length
    base = m.kv_tokens / s
    rate = base / max(decode_memory(m, base, s), decode_compute(m, base, s))
    for r in RATIOS:
        b = base / (1 - r)
        compute, memory = decode_compute(m, b, s), decode_memory(m, b, s)
        computed = b * again(m, r * s)
        row = [r, f"{b:.0f}", f"{b * r * s:,.0f}"]
        for step in (max(compute + computed, memory), max(compute, memory) + computed,
                     max(compute, memory, b * r * s * m.kv_bytes / m.link)):
            row += [ms(step), f"{b / step / rate:.3f}"]
        rows.append(row)
    print_table(f"{m.name}, {load.workload}, memory full, r forced: step, and tokens/s over those at r = 0",
                ["r", "b", "tokens not kept", "recomputed, wholly overlapped", "tokens/s",
                 "recomputed, one after the other", "tokens/s", "over the link, wholly overlapped", "tokens/s"],
                rows)


def own_figures():
    """Throughput is requests that run over their TPOT (Little's law)."""
    running = {"vllm": 223.16, "vllm-swap": 220.94, "hcache": 240.71, "ellm": 254.64}
    tpot = {"vllm": 0.68082, "vllm-swap": 0.66701, "hcache": 0.5222, "ellm": 0.50174}
    stated = {"vllm": 2.0, "vllm-swap": 2.0, "hcache": 1.6}
    rates = {p: running[p] / tpot[p] for p in running}
    print_table("The paper's own figures for Llama-2-70B: running requests over mean TPOT",
                ["policy", "running", "TPOT", "tokens/s that follow", "eLLM's over it", "stated"],
                [[p, running[p], ms(tpot[p]), f"{rates[p]:.0f}", f"{rates['ellm'] / rates[p]:.2f}",
                  stated.get(p, "")] for p in running])
    rows = []
    for workload, hours, prompt, output in (
            ("ShareGPT, as stated", 1.25, 222, 1346), ("ShareGPT, first turns", 1.25, 161, 338),
            ("L-Eval, as stated", 2.92, 35956, 5189), ("L-Eval, the public data's tokens", 2.92, 10745, 404),
            ("the same, cut to 4,096 positions", 2.92, 4096 - 404, 404)):
        rate = 3000 / ((hours * 3600 - 120) / 5)
        rows.append([workload, f"{prompt:,} / {output:,}", f"{rate:.2f}", f"{rate * prompt:,.0f}",
                     f"{rate * again(LLAMA_13B, prompt) * LLAMA_13B.flops / 1e12:.0f}", f"{rate * output:,.0f}"])
    print_table("3,000 requests in a fifth of an experiment's time, less its warm-up",
                ["lengths", "prompt / output", "requests/s", "prompt tokens/s",
                 f"TFLOP/s of {LLAMA_13B.name}'s prompts (peak: 312)", "output tokens/s"], rows)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kvasir", help="the program, for times of the simulated device as well")
    arguments = parser.parse_args()
    simulated = Simulated(arguments.kvasir) if arguments.kvasir else None
    token_costs(simulated)
    decode_steps(simulated)
    runtime_figure(simulated)
    objective()
    break_even(simulated)
    room_bounds(simulated)
    forced_ratios()
    own_figures()


if __name__ == "__main__":
    main()
