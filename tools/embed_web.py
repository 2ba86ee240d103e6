"""embed_web.py OUT.cc PATH=FILE…: writes a C++ source that holds these files, as they are and compressed by gzip.

It defines web_assets() of src/server/web_assets.h, sorted by path. The compressed form is left out where it saves little.
"""

import gzip
import hashlib
import pathlib
import sys

TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
         ".svg": "image/svg+xml", ".png": "image/png", ".json": "application/json", ".webmanifest": "application/manifest+json"}
LITERAL_BYTES = 16384  # compilers take longer literals, but other tools read the source, too


def literal(data):
    """C++ string literals of these bytes. Three octal digits each, so that no digit behind one belongs to it."""
    plain = {byte: chr(byte) for byte in range(32, 127) if chr(byte) not in "\"\\?"}
    parts = [data[begin:begin + LITERAL_BYTES] for begin in range(0, len(data), LITERAL_BYTES)] or [b""]
    return "\n".join('"' + "".join(plain.get(byte, f"\\{byte:03o}") for byte in part) + '"' for part in parts)


def entry(path, file):
    kind = TYPES.get(pathlib.PurePosixPath(path).suffix)
    if kind is None:
        sys.exit(f"embed_web.py: {file}: no content type is known for this suffix; add it to TYPES")
    data = pathlib.Path(file).read_bytes()
    packed = gzip.compress(data, 9, mtime=0)
    if len(packed) > 0.9 * len(data):
        packed = b""
    tag = hashlib.sha256(data).hexdigest()[:20]
    return (f'{{"{path}", "{kind}", "{tag}",\nstd::string_view(\n{literal(data)}, {len(data)}),\n'
            f'std::string_view(\n{literal(packed)}, {len(packed)})}},\n')


def main(output, assets):
    pairs = sorted(asset.split("=", 1) for asset in assets)
    text = ('// Made by tools/embed_web.py.\n#include "server/web_assets.h"\n\nnamespace kvasir {\n\n'
            "std::span<const WebAsset> web_assets() {\nstatic constexpr WebAsset kAssets[] = {\n"
            + "".join(entry(path, file) for path, file in pairs)
            + "};\nreturn kAssets;\n}\n\n}  // namespace kvasir\n")
    pathlib.Path(output).write_text(text, encoding="ascii")


main(sys.argv[1], sys.argv[2:])
