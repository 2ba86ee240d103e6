"""Reads and writes GGUF files with numpy: blocks of the weight types, metadata, tensors as float arrays.

    from gguf_io import GgufReader
    model = GgufReader("model.gguf")
    model.metadata["llama.block_count"]
    model.tensor("blk.0.attn_q.weight")   # float32, [rows, columns]
"""

import mmap
import struct

import numpy as np

ALIGNMENT = 32
BLOCK = 32

# name: (number in the file, values per block, bytes per block)
TENSOR_TYPES = {
    "f32": (0, 1, 4),
    "f16": (1, 1, 2),
    "q4_0": (2, BLOCK, 18),
    "q4_1": (3, BLOCK, 20),
    "q8_0": (8, BLOCK, 34),
    "bf16": (30, 1, 2),
}
TENSOR_TYPE_NAMES = {number: name for name, (number, _, _) in TENSOR_TYPES.items()}

# Struct formats of the metadata types of fixed size, by their number in the file.
VALUE_FORMATS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
STRING, ARRAY = 8, 9
U32, I32, F32, BOOL, U64 = 4, 5, 6, 7, 10


def tensor_bytes(kind, count):
    """Bytes of `count` values, a multiple of the block, in the layout of `kind`."""
    _, values, size = TENSOR_TYPES[kind]
    if count % values:
        raise ValueError(f"{count} values are not whole blocks of {values} ({kind})")
    return count // values * size


# Encoding. Each function takes float32 and gives bytes in the file's layout.


def _halves(values):
    """Rounds to f16 and returns both the bits and the exact float32 of what was stored."""
    with np.errstate(over="ignore"):
        half = values.astype("<f2")
    return half.view(np.uint8).reshape(-1, 2), half.astype(np.float32)[:, None]


def _divide(values, scale):
    return np.divide(values, scale, out=np.zeros_like(values), where=scale != 0)


def _nibbles(q):
    """Element i in the low half of byte i, element i + 16 in the high half."""
    return q[:, : BLOCK // 2] | (q[:, BLOCK // 2 :] << 4)


def _encode_bf16(x):
    bits = x.view(np.uint32)
    rounded = bits + 0x7FFF + ((bits >> 16) & 1)  # to nearest, ties to even
    return (rounded >> 16).astype("<u2").tobytes()


def _encode_q8_0(x):
    x = x.reshape(-1, BLOCK)
    bits, d = _halves(np.abs(x).max(axis=1) / np.float32(127))
    q = np.clip(np.rint(_divide(x, d)), -127, 127).astype(np.int8)
    return np.hstack([bits, q.view(np.uint8)]).tobytes()


def _encode_q4_0(x):
    x = x.reshape(-1, BLOCK)
    extreme = np.take_along_axis(x, np.abs(x).argmax(axis=1)[:, None], axis=1)[:, 0]
    bits, d = _halves(extreme / np.float32(-8))
    q = np.clip(np.rint(_divide(x, d) + 8), 0, 15).astype(np.uint8)
    return np.hstack([bits, _nibbles(q)]).tobytes()


def _encode_q4_1(x):
    x = x.reshape(-1, BLOCK)
    low = x.min(axis=1)
    d_bits, d = _halves((x.max(axis=1) - low) / np.float32(15))
    m_bits, m = _halves(low)
    q = np.clip(np.rint(_divide(x - m, d)), 0, 15).astype(np.uint8)
    return np.hstack([d_bits, m_bits, _nibbles(q)]).tobytes()


_ENCODERS = {
    "f32": lambda x: x.astype("<f4").tobytes(),
    "f16": lambda x: x.astype("<f2").tobytes(),
    "bf16": _encode_bf16,
    "q8_0": _encode_q8_0,
    "q4_0": _encode_q4_0,
    "q4_1": _encode_q4_1,
}


def encode(values, kind):
    """float32 values (any shape, whole blocks) to bytes."""
    flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
    tensor_bytes(kind, flat.size)
    return _ENCODERS[kind](flat)


# Decoding: the exact float32 values that the engine multiplies with.


def _unpack_nibbles(packed):
    return np.hstack([packed & 15, packed >> 4]).astype(np.float32)


def _half_at(blocks, byte):
    return blocks[:, byte : byte + 2].copy().view("<f2").astype(np.float32)


def decode(raw, kind):
    """Bytes (uint8 array) to a flat float32 array."""
    if kind == "f32":
        return raw.view("<f4").astype(np.float32)
    if kind == "f16":
        return raw.view("<f2").astype(np.float32)
    if kind == "bf16":
        return (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
    blocks = raw.reshape(-1, TENSOR_TYPES[kind][2])
    d = _half_at(blocks, 0)
    if kind == "q8_0":
        return (d * blocks[:, 2:].view(np.int8).astype(np.float32)).reshape(-1)
    if kind == "q4_0":
        return (d * (_unpack_nibbles(blocks[:, 2:]) - 8)).reshape(-1)
    # d q is exact in float64 and so, for all but extreme scales, is the sum: one rounding, as fma(d, q, m) has.
    q = _unpack_nibbles(blocks[:, 4:]).astype(np.float64)
    return (d.astype(np.float64) * q + _half_at(blocks, 2)).astype(np.float32).reshape(-1)


class GgufWriter:
    """Writes one file: metadata first, then every tensor's shape, then its data in the same order, in chunks.

    with GgufWriter(path) as out:
        out.add_u32("llama.block_count", 2)
        out.add_tensor("token_embd.weight", rows, columns, "q8_0", chunks)   # chunks: -> iterable of arrays
    """

    def __init__(self, path):
        self._path = path
        self._metadata = []
        self._tensors = []

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None:
            self._write()

    @staticmethod
    def _string(text):
        raw = text.encode() if isinstance(text, str) else text
        return struct.pack("<Q", len(raw)) + raw

    def _add(self, key, number, payload):
        self._metadata.append(self._string(key) + struct.pack("<I", number) + payload)

    def add_encoded(self, key, number, payload):
        """An entry as GgufReader.encoded_metadata has it."""
        self._add(key, number, payload)

    def add_u32(self, key, value):
        self._add(key, U32, struct.pack("<I", value))

    def add_f32(self, key, value):
        self._add(key, F32, struct.pack("<f", value))

    def add_bool(self, key, value):
        self._add(key, BOOL, struct.pack("<?", value))

    def add_string(self, key, value):
        self._add(key, STRING, self._string(value))

    def add_strings(self, key, values):
        body = b"".join(self._string(value) for value in values)
        self._add(key, ARRAY, struct.pack("<IQ", STRING, len(values)) + body)

    def add_i32s(self, key, values):
        body = np.asarray(values, dtype="<i4").tobytes()
        self._add(key, ARRAY, struct.pack("<IQ", I32, len(values)) + body)

    def add_tensor(self, name, shape, kind, chunks):
        """`shape` as numpy has it, rows first; `chunks()` yields float32 arrays of whole rows, in order."""
        self._tensors.append((name, tuple(shape), kind, lambda: (encode(chunk, kind) for chunk in chunks())))

    def add_encoded_tensor(self, name, shape, kind, raw):
        """The same with the tensor's bytes in the layout of `kind`, which `raw()` returns."""
        self._tensors.append((name, tuple(shape), kind, lambda: (raw(),)))

    def _header(self):
        out = [b"GGUF", struct.pack("<IQQ", 3, len(self._tensors), len(self._metadata)), *self._metadata]
        offset = 0
        for name, shape, kind, _ in self._tensors:
            sizes = shape[::-1]  # the file counts the contiguous dimension first
            out.append(self._string(name) + struct.pack(f"<I{len(sizes)}Q", len(sizes), *sizes))
            out.append(struct.pack("<IQ", TENSOR_TYPES[kind][0], offset))
            offset += -(-tensor_bytes(kind, int(np.prod(shape, dtype=np.int64))) // ALIGNMENT) * ALIGNMENT
        return b"".join(out)

    def _write(self):
        with open(self._path, "wb") as file:
            file.write(self._header())
            for name, shape, kind, chunks in self._tensors:
                file.write(bytes(-file.tell() % ALIGNMENT))
                begin = file.tell()
                for chunk in chunks():
                    file.write(chunk)
                written = file.tell() - begin
                if written != tensor_bytes(kind, int(np.prod(shape, dtype=np.int64))):
                    raise ValueError(f"{name}: {written} bytes do not make {shape} of {kind}")


class GgufReader:
    """Maps a file and reads its tensors as float32. It trusts the file: the engine is what checks files."""

    def __init__(self, path):
        with open(path, "rb") as file:
            self._bytes = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._position = 0
        magic, version, tensors, keys = self._take("<4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise ValueError(f"{path}: not a GGUF file of version 2 or 3")
        self.encoded_metadata = {}  # key: (type number, the value's bytes)
        self.metadata = dict(self._take_entry() for _ in range(keys))
        self.tensors = dict(self._take_info() for _ in range(tensors))  # name: (shape, kind, offset)
        alignment = self.metadata.get("general.alignment", ALIGNMENT)
        self._data = -(-self._position // alignment) * alignment

    def _take(self, layout):
        values = struct.unpack_from(layout, self._bytes, self._position)
        self._position += struct.calcsize(layout)
        return values

    def _take_string(self):
        (length,) = self._take("<Q")
        self._position += length
        return self._bytes[self._position - length : self._position].decode("utf-8", "surrogateescape")

    def _take_value(self, number):
        if number == STRING:
            return self._take_string()
        if number == ARRAY:
            element, count = self._take("<IQ")
            if element == STRING:
                return [self._take_string() for _ in range(count)]
            return list(self._take(f"<{count}{VALUE_FORMATS[element]}"))
        return self._take("<" + VALUE_FORMATS[number])[0]

    def _take_entry(self):
        key = self._take_string()
        (number,) = self._take("<I")
        begin = self._position
        value = self._take_value(number)
        self.encoded_metadata[key] = (number, self._bytes[begin : self._position])
        return key, value

    def _take_info(self):
        name = self._take_string()
        (dimensions,) = self._take("<I")
        sizes = self._take(f"<{dimensions}Q")
        number, offset = self._take("<IQ")
        if number not in TENSOR_TYPE_NAMES:
            raise ValueError(f"tensor {name} is of type number {number}, which is not read here")
        return name, (sizes[::-1], TENSOR_TYPE_NAMES[number], offset)

    def raw(self, name):
        """The bytes of a tensor as they lie in the file, and its type."""
        shape, kind, offset = self.tensors[name]
        size = tensor_bytes(kind, int(np.prod(shape, dtype=np.int64)))
        return np.frombuffer(self._bytes, dtype=np.uint8, count=size, offset=self._data + offset), kind

    def rows(self, name, begin, end):
        """float32 [end - begin, columns] of a matrix, without decoding the rest of it."""
        raw, kind = self.raw(name)
        rows, columns = self.tensors[name][0]
        size = raw.size // rows
        return decode(raw[begin * size : end * size], kind).reshape(end - begin, columns)

    def tensor(self, name):
        """float32, rows first: [rows, columns] for a matrix."""
        raw, kind = self.raw(name)
        return decode(raw, kind).reshape(self.tensors[name][0])
