#!/usr/bin/env python3
"""llama.cpp as lm-eval's `local-completions` needs it: log-probabilities of the tokens of a prompt, which llama-server does not give.

    python3 tests/golden/llama_cpp_server.py M.gguf [--port 8001] [--f32]

Needs numpy and the package xllamacpp. It answers POST /v1/completions with `echo`, `logprobs` and `max_tokens` 1, POST /tokenize and
GET /tokenizer_info, one request after the other, on the loopback address. With --f32 it runs a copy of the model whose weights are the
float32 values that the blocks stand for, with K and V in f32 and without flash attention, so that nothing is rounded on the way.
"""

import argparse
import http.server
import json
import pathlib
import tempfile

import numpy as np

from llama_cpp_peer import Peer
from make_llama_cpp_goldens import write_as_f32

CONTEXT = 2048


def score(peer, tokens):
    """The choice of one prompt: its tokens, and behind them the most likely one."""
    peer.clear()
    logits = peer.decode(tokens, 0).astype(np.float64)
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    ids = [*tokens, int(logits[-1].argmax())]
    values = [None, *(float(row[i]) for row, i in zip(logits, ids[1:]))]
    tops = [None, *({str(row.argmax()): float(row.max()), str(i): float(row[i])} for row, i in zip(logits, ids[1:]))]
    return {"text": "", "finish_reason": "length",
            "logprobs": {"tokens": [str(i) for i in ids], "token_logprobs": values, "top_logprobs": tops}}


def answer(peer, path, body):
    if path == "/tokenizer_info":
        return {"eos_token": None}
    if path == "/tokenize":
        return {"tokens": peer.tokenize(body["prompt"])}
    if path != "/v1/completions" or not body.get("echo") or body["max_tokens"] != 1:
        return None
    prompts = body["prompt"]
    if isinstance(prompts, str) or isinstance(prompts[0], int):
        prompts = [prompts]
    choices = [score(peer, peer.tokenize(p) if isinstance(p, str) else p) for p in prompts]
    return {"object": "text_completion", "model": body.get("model"),
            "choices": [{"index": i, **choice} for i, choice in enumerate(choices)]}


def serve(peer, port):
    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            length = int(self.headers.get("Content-Length", 0))
            found = answer(peer, self.path, json.loads(self.rfile.read(length) or "{}"))
            data = json.dumps(found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, *_):
            pass

    print(f"{peer.describe()}\nlistening on http://127.0.0.1:{port}", flush=True)
    http.server.HTTPServer(("127.0.0.1", port), Handler).serve_forever()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--port", type=int, default=8001)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--f32", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        model, exact = options.model, {}
        if options.f32:
            model, exact = pathlib.Path(folder) / "f32.gguf", {"kv_f32": True, "flash_attention": "off"}
            write_as_f32(options.model, model)
        with Peer(model, CONTEXT, options.threads, **exact) as peer:
            serve(peer, options.port)


if __name__ == "__main__":
    main()
