"""llama.cpp through ctypes: the C functions that the Python package xllamacpp carries in its extension module.

    with Peer("model.gguf", context=1024, threads=2, kv_f32=True) as peer:
        tokens = peer.tokenize("Hello")
        logits = peer.decode(tokens, 0)     # float32 [tokens, vocabulary]

Parameters travel in structs whose layout is no promise of llama.cpp's. Their fields are found at the offsets
below, and every one is checked to hold its known default first, so that a version with another layout is refused.
"""

import ctypes
import glob
from importlib.metadata import version

import numpy as np

STRUCT_BYTES = 512  # more than any of the structs; what lies beyond the end of one is never read

# llama_context_params: offset, format, default
CONTEXT_FIELDS = {
    "n_ctx": (0, ctypes.c_uint32, 512),
    "n_batch": (4, ctypes.c_uint32, 2048),
    "n_ubatch": (8, ctypes.c_uint32, 512),
    "n_seq_max": (12, ctypes.c_uint32, 1),
    "n_outputs_max": (20, ctypes.c_uint32, 0),
    "n_threads": (28, ctypes.c_int32, 4),
    "n_threads_batch": (32, ctypes.c_int32, 4),
    "rope_scaling_type": (40, ctypes.c_int32, -1),
    "flash_attn_type": (52, ctypes.c_int32, -1),
    "type_k": (104, ctypes.c_int32, 1),
    "type_v": (108, ctypes.c_int32, 1),
}
GGML_TYPE_F32, GGML_TYPE_F16 = 0, 1
FLASH_ATTENTION = {"auto": -1, "off": 0, "on": 1}


class Struct(ctypes.Structure):
    """Room for a struct that is passed and returned by value, in memory."""

    _fields_ = [("bytes", ctypes.c_uint8 * STRUCT_BYTES)]

    def field(self, offset, kind):
        return kind.from_buffer(self, offset)


class Batch(ctypes.Structure):
    _fields_ = [
        ("n_tokens", ctypes.c_int32),
        ("token", ctypes.POINTER(ctypes.c_int32)),
        ("embd", ctypes.POINTER(ctypes.c_float)),
        ("pos", ctypes.POINTER(ctypes.c_int32)),
        ("n_seq_id", ctypes.POINTER(ctypes.c_int32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(ctypes.c_int32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
    ]


def load_library():
    import xllamacpp

    (path,) = glob.glob(xllamacpp.__path__[0] + "/xllamacpp*.so")
    lib = ctypes.CDLL(path)
    pointer = ctypes.c_void_p
    signatures = {
        "llama_backend_init": (None, []),
        "llama_model_default_params": (Struct, []),
        "llama_context_default_params": (Struct, []),
        "llama_model_load_from_file": (pointer, [ctypes.c_char_p, Struct]),
        "llama_init_from_model": (pointer, [pointer, Struct]),
        "llama_model_get_vocab": (pointer, [pointer]),
        "llama_vocab_n_tokens": (ctypes.c_int32, [pointer]),
        "llama_tokenize": (ctypes.c_int32, [pointer, ctypes.c_char_p, ctypes.c_int32,
                                            ctypes.POINTER(ctypes.c_int32), ctypes.c_int32,
                                            ctypes.c_bool, ctypes.c_bool]),
        "llama_batch_init": (Batch, [ctypes.c_int32, ctypes.c_int32, ctypes.c_int32]),
        "llama_batch_free": (None, [Batch]),
        "llama_decode": (ctypes.c_int32, [pointer, Batch]),
        "llama_get_logits_ith": (ctypes.POINTER(ctypes.c_float), [pointer, ctypes.c_int32]),
        "llama_get_memory": (pointer, [pointer]),
        "llama_memory_clear": (None, [pointer, ctypes.c_bool]),
        "llama_synchronize": (None, [pointer]),
        "llama_print_system_info": (ctypes.c_char_p, []),
        "llama_free": (None, [pointer]),
        "llama_model_free": (None, [pointer]),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


class Peer:
    """A model and one context with one sequence. Not thread-safe."""

    def __init__(self, path, context, threads, kv_f32=False, flash_attention="auto", outputs=None, quiet=True):
        """`context` and `outputs` in tokens: all of a sequence, and those whose logits one call may return."""
        self.lib = load_library()
        if quiet:
            self._log = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, ctypes.c_void_p)(lambda *_: None)
            self.lib.llama_log_set.argtypes = [type(self._log), ctypes.c_void_p]
            self.lib.llama_log_set(self._log, None)
        self.lib.llama_backend_init()
        self.model = self.lib.llama_model_load_from_file(str(path).encode(), self.lib.llama_model_default_params())
        if not self.model:
            raise RuntimeError(f"llama.cpp cannot load {path}")
        params = self._context_params(
            n_ctx=context, n_batch=context, n_ubatch=min(context, 512), n_outputs_max=outputs or context, n_threads=threads,
            n_threads_batch=threads, flash_attn_type=FLASH_ATTENTION[flash_attention],
            **(dict(type_k=GGML_TYPE_F32, type_v=GGML_TYPE_F32) if kv_f32 else {}))
        self.context = self.lib.llama_init_from_model(self.model, params)
        if not self.context:
            raise RuntimeError("llama.cpp cannot make a context")
        self.vocab = self.lib.llama_model_get_vocab(self.model)
        self.vocab_size = self.lib.llama_vocab_n_tokens(self.vocab)

    def _context_params(self, **settings):
        params = self.lib.llama_context_default_params()
        for name, (offset, kind, default) in CONTEXT_FIELDS.items():
            found = params.field(offset, kind).value
            if found != default:
                raise RuntimeError(f"this llama.cpp lays its parameters out otherwise: {name} is {found}, "
                                   f"not {default}; use the xllamacpp version that the goldens name")
        for name, value in settings.items():
            offset, kind, _ = CONTEXT_FIELDS[name]
            params.field(offset, kind).value = value
        return params

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.lib.llama_free(self.context)
        self.lib.llama_model_free(self.model)

    def describe(self):
        """Version and CPU features, on one line."""
        info = " ".join(self.lib.llama_print_system_info().decode().split())
        return f"llama.cpp as in xllamacpp {version('xllamacpp')}; {info.rstrip('| ')}"

    def tokenize(self, text):
        """No beginning-of-sequence token, and no special tokens."""
        raw = text.encode()
        ids = (ctypes.c_int32 * (len(raw) + 8))()
        count = self.lib.llama_tokenize(self.vocab, raw, len(raw), ids, len(ids), False, False)
        if count < 0:
            raise RuntimeError(f"llama.cpp cannot tokenize {text[:40]!r}")
        return list(ids[:count])

    def clear(self):
        self.lib.llama_memory_clear(self.lib.llama_get_memory(self.context), True)

    def decode(self, tokens, first_position, logits="all"):
        """Runs tokens at the given position. `logits`: "all" or "last"; returns [rows, vocabulary]."""
        batch = self.lib.llama_batch_init(len(tokens), 0, 1)
        try:
            batch.n_tokens = len(tokens)
            rows = range(len(tokens)) if logits == "all" else [len(tokens) - 1]
            for i, token in enumerate(tokens):
                batch.token[i] = token
                batch.pos[i] = first_position + i
                batch.n_seq_id[i] = 1
                batch.seq_id[i][0] = 0
                batch.logits[i] = logits == "all"
            batch.logits[len(tokens) - 1] = 1
            if self.lib.llama_decode(self.context, batch) != 0:
                raise RuntimeError("llama.cpp's decode failed")
            self.lib.llama_synchronize(self.context)
            out = np.empty((len(rows), self.vocab_size), dtype=np.float32)
            for row, i in enumerate(rows):
                address = self.lib.llama_get_logits_ith(self.context, i)
                out[row] = np.ctypeslib.as_array(address, shape=(self.vocab_size,))
            return out
        finally:
            self.lib.llama_batch_free(batch)
