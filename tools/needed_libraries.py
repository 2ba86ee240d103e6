#!/usr/bin/env python3
"""Whether a program is small, and needs no shared library but some.

needed_libraries.py READELF PROGRAM MOST_MIB LIBRARY...   the loader, which is libc's, may be needed, too
"""

import os
import re
import subprocess
import sys


def main():
    readelf, program, most_mib, allowed = sys.argv[1], sys.argv[2], float(sys.argv[3]), set(sys.argv[4:])
    text = subprocess.run([readelf, "--dynamic", program], check=True, capture_output=True, text=True).stdout
    needed = re.findall(r"\(NEEDED\).*\[(.*)\]", text)
    wrong = [f"{program} needs {name}" for name in needed if name not in allowed and not name.startswith("ld-linux")]
    if not needed:
        wrong.append(f"{program} has no list of libraries")
    mib = os.path.getsize(program) / 2**20
    if mib > most_mib:
        wrong.append(f"{program} has {mib:.1f} MiB, and may have {most_mib:.0f}")
    print("\n".join(wrong), end="\n" if wrong else "")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
