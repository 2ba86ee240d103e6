#!/usr/bin/env python3
"""What others reach on the same GPU at the same shapes: a line of JSON for each measurement.

gpu_peers.py [--json FILE] [--limit SECONDS] [--rows 1 8 ...]

torch's matrix product (cuBLAS) and scaled_dot_product_attention, whole forward passes made of them, and a matrix product in Triton with one fixed tile,
which gives a row the same bits whatever the number of rows. Times are medians of CUDA graphs of several calls;
weights rotate through more memory than the L2 holds.
"""

import argparse
import json
import statistics
import sys
import time

import torch

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None

PRODUCTS = {"qkv": (6144, 4096), "o": (4096, 4096), "gate_up": (28672, 4096), "down": (4096, 14336),
            "lm_head": (128256, 4096)}
HEADS, KV_HEADS, HEAD_DIM = 32, 8, 128
ROTATED_BYTES = 256 << 20


class Output:
    def __init__(self, path):
        self.file = open(path, "a", encoding="utf-8") if path else None

    def add(self, **fact):
        line = json.dumps(fact)
        print(line, flush=True)
        if self.file:
            print(line, file=self.file, flush=True)


def graph_us(call, at_least_us=3000.0, least=1, most=200):
    """Microseconds of one call(i), by the median of seven replays of a graph of several."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call(0)
        stream.synchronize()
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record(stream)
        call(0)
        end.record(stream)
        stream.synchronize()
        once = max(begin.elapsed_time(end) * 1e3, 1.0)
    calls = max(least, min(most, round(at_least_us / once) + 1))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    times = []
    for i in range(8):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        if i:
            times.append(begin.elapsed_time(end) * 1e3 / calls)
    return statistics.median(times)


if triton:
    @triton.jit
    def triton_kernel(x, w, y, rows, features, k, TILE_R: tl.constexpr, TILE_F: tl.constexpr, TILE_K: tl.constexpr):
        across = tl.cdiv(features, TILE_F)
        r = tl.program_id(0) // across * TILE_R + tl.arange(0, TILE_R)
        f = tl.program_id(0) % across * TILE_F + tl.arange(0, TILE_F)
        depth = tl.arange(0, TILE_K)
        x_at = x + r[:, None] * k + depth[None, :]
        w_at = w + f[None, :] * k + depth[:, None]
        inside = r[:, None] < rows
        total = tl.zeros((TILE_R, TILE_F), dtype=tl.float32)
        for _ in range(0, k, TILE_K):
            total = tl.dot(tl.load(x_at, mask=inside, other=0.0), tl.load(w_at), total)
            x_at += TILE_K
            w_at += TILE_K
        tl.store(y + r[:, None] * features + f[None, :], total.to(tl.bfloat16), mask=inside)


def triton_product(x, w, y):
    """y = x w^T with one tile, 128 x 128 x 64, whatever the shapes."""
    rows, k = x.shape
    features = w.shape[0]
    grid = (triton.cdiv(rows, 128) * (features // 128),)
    triton_kernel[grid](x, w, y, rows, features, k, TILE_R=128, TILE_F=128, TILE_K=64, num_warps=8, num_stages=4)


def products(out, rows_list, left):
    for name, (features, k) in PRODUCTS.items():
        copies = max(2, -(-ROTATED_BYTES // (features * k * 2)))
        weights = [torch.randn(features, k, device="cuda", dtype=torch.bfloat16) / k**0.5 for _ in range(copies)]
        for rows in rows_list:
            if left() < 5:
                return out.add(part="peers", skipped="products", reason="out of time")
            x = torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)
            y = torch.empty(rows, features, device="cuda", dtype=torch.bfloat16)
            calls = {"torch": lambda i: torch.matmul(x, weights[i % copies].t(), out=y)}
            if triton:
                calls["triton fixed tile"] = lambda i: triton_product(x, weights[i % copies], y)
            for kernel, call in calls.items():
                try:
                    us = graph_us(call, least=copies)
                except Exception as error:  # what a peer cannot do is a result, too
                    out.add(part="peers", matrix=name, rows=rows, kernel=kernel, error=str(error)[:300])
                    continue
                out.add(part="peers", matrix=name, features=features, k=k, rows=rows, kernel=kernel, us=us,
                        tflops=2e-6 * features * k * rows / us,
                        gb_s=2e-3 * (features * k + rows * k + rows * features) / us)
        del weights


def row_bits(out):
    """Whether one row's product has the same bits alone and among others, for each kernel."""
    features, k = PRODUCTS["o"]
    torch.manual_seed(1)
    w = torch.randn(features, k, device="cuda", dtype=torch.bfloat16) / k**0.5
    x = torch.randn(1024, k, device="cuda", dtype=torch.bfloat16)
    kernels = {"torch": lambda x, w, y: torch.matmul(x, w.t(), out=y)}
    if triton:
        kernels["triton fixed tile"] = triton_product
    for kernel, call in kernels.items():
        seen = {}
        for rows in (1, 2, 8, 16, 32, 64, 128, 256, 1024):
            y = torch.empty(rows, features, device="cuda", dtype=torch.bfloat16)
            call(x[:rows].contiguous(), w, y)
            seen.setdefault(y[0].cpu().view(torch.int16).numpy().tobytes(), []).append(rows)
        out.add(part="peers", what="bits of a row by number of rows", kernel=kernel, different=len(seen),
                groups=list(seen.values()))


def attention(out, left):
    sdpa = torch.nn.functional.scaled_dot_product_attention
    for what, batch, queries, keys in [("prefill", 1, 1024, 1024), ("prefill", 1, 4096, 4096), ("prefill", 1, 16384, 16384),
                                       ("decode", 1, 1, 8192), ("decode", 8, 1, 8192), ("decode", 32, 1, 8192),
                                       ("decode", 64, 1, 2048)]:
        if left() < 5:
            return out.add(part="peers", skipped="attention", reason="out of time")
        q = torch.randn(batch, HEADS, queries, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
        pair_bytes = 4 * batch * KV_HEADS * keys * HEAD_DIM
        copies = max(1, -(-ROTATED_BYTES // pair_bytes)) if what == "decode" else 1
        kv = [[torch.randn(batch, KV_HEADS, keys, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(2)]
              for _ in range(copies)]
        call = lambda i: sdpa(q, *kv[i % copies], is_causal=what == "prefill", enable_gqa=True)
        try:
            us = graph_us(call, least=copies)
        except Exception as error:
            out.add(part="peers", what=what, batch=batch, keys=keys, kernel="sdpa", error=str(error)[:300])
            continue
        pairs = batch * HEADS * (queries * keys / 2 if what == "prefill" else keys)
        out.add(part="peers", what=what, batch=batch, queries=queries, keys=keys, kernel="sdpa", us=us,
                tflops=4e-6 * pairs * HEAD_DIM / us, gb_s=1e-3 * pair_bytes / us)


class TorchModel:
    """llama-3-8b's shape with random weights, in torch's own operations."""

    LAYERS, DIM, FFN, VOCABULARY = 32, 4096, 14336, 128256

    def __init__(self):
        def matrix(rows, columns):
            return torch.randn(rows, columns, device="cuda", dtype=torch.bfloat16) / columns**0.5

        self.embedding, self.head = matrix(self.VOCABULARY, self.DIM), matrix(self.VOCABULARY, self.DIM)
        self.layers = [(matrix((HEADS + 2 * KV_HEADS) * HEAD_DIM, self.DIM), matrix(self.DIM, HEADS * HEAD_DIM),
                        matrix(2 * self.FFN, self.DIM), matrix(self.DIM, self.FFN)) for _ in range(self.LAYERS)]
        self.norm = torch.ones(self.DIM, device="cuda", dtype=torch.bfloat16)
        angles = torch.arange(32768, device="cuda")[:, None] * 500000.0 ** (-torch.arange(64, device="cuda") / 64)
        self.turns = torch.stack([angles.cos(), angles.sin()]).to(torch.bfloat16)

    def rope(self, x, first):
        cos, sin = self.turns[:, first:first + x.shape[-2]]
        a, b = x[..., :64], x[..., 64:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def run(self, tokens, caches, first):
        """tokens: [sequences][rows], at positions from `first` on. Logits of the last row of each."""
        linear, sdpa = torch.nn.functional.linear, torch.nn.functional.scaled_dot_product_attention
        normed = lambda x: torch.nn.functional.rms_norm(x, (self.DIM,), self.norm, 1e-5)
        batch, rows = tokens.shape
        x = self.embedding[tokens]
        for (qkv, o, gate_up, down), cache in zip(self.layers, caches):
            heads = linear(normed(x), qkv).view(batch, rows, -1, HEAD_DIM).transpose(1, 2)
            q, k, v = heads.split([HEADS, KV_HEADS, KV_HEADS], 1)
            cache[0][:, :, first:first + rows] = self.rope(k, first)
            cache[1][:, :, first:first + rows] = v
            keys, values = (plane[:, :, :first + rows] for plane in cache)
            y = sdpa(self.rope(q, first), keys, values, is_causal=rows > 1, enable_gqa=True)
            x = x + linear(y.transpose(1, 2).reshape(batch, rows, -1), o)
            gate, up = linear(normed(x), gate_up).chunk(2, -1)
            x = x + linear(torch.nn.functional.silu(gate) * up, down)
        return linear(normed(x[:, -1]), self.head)


def whole_model(out, left):
    """Whole steps and prompts as CUDA graphs of torch's operations."""
    model = TorchModel()
    for what, batch, rows, context in [("decode", 1, 1, 1024), ("decode", 8, 1, 1024), ("decode", 32, 1, 1024),
                                       ("decode", 64, 1, 1024), ("decode", 1, 1, 8192), ("decode", 32, 1, 8192),
                                       ("prefill", 1, 1024, 1024), ("prefill", 1, 4096, 4096), ("prefill", 1, 8192, 8192)]:
        if left() < 10:
            return out.add(part="peers", skipped="whole model", reason="out of time")
        try:
            caches = [[torch.randn(batch, KV_HEADS, context, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
                       for _ in range(2)] for _ in range(model.LAYERS)]
            tokens = torch.randint(0, model.VOCABULARY, (batch, rows), device="cuda")
            us = graph_us(lambda i: model.run(tokens, caches, context - rows), at_least_us=1, least=1, most=1)
            out.add(part="peers", whole=what, batch=batch, context=context, rows=rows, us=us, tokens_s=1e6 * batch * rows / us)
        except Exception as error:
            out.add(part="peers", whole=what, batch=batch, context=context, error=str(error)[:300])
        caches = None
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--json", help="append each line to this file")
    parser.add_argument("--limit", type=float, default=300, help="seconds after which nothing new begins (300)")
    parser.add_argument("--rows", type=int, nargs="+", default=[1, 8, 16, 32, 64, 128, 256, 512, 1024, 4096])
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_peers.py: torch sees no GPU")
    begin = time.monotonic()
    left = lambda: options.limit - (time.monotonic() - begin)
    out = Output(options.json)
    out.add(part="peers", torch=torch.__version__, device=torch.cuda.get_device_name())
    for part in (lambda: row_bits(out), lambda: attention(out, left), lambda: whole_model(out, left),
                 lambda: products(out, options.rows, left)):
        try:
            part()
        except Exception as error:
            out.add(part="peers", error=str(error)[:500])


if __name__ == "__main__":
    main()
