"""The machine code of the kernels: which instructions there must be, and that no register spills to memory.

sass_test.py CUOBJDUMP OBJECT=INSTRUCTION[,INSTRUCTION...]...
"""

import re
import subprocess
import sys


def main():
    tool, wanted = sys.argv[1], [argument.split("=") for argument in sys.argv[2:]]
    wrong = []
    for path, names in wanted:
        text = subprocess.run([tool, "--dump-sass", path], check=True, capture_output=True, text=True).stdout
        found = set(re.findall(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+ )?([A-Z0-9]+)", text, re.MULTILINE))
        if not found:
            wrong.append(f"{path}: no machine code")
        wrong += [f"{path}: no {name}" for name in names.split(",") if name not in found]
        wrong += [f"{path}: {name}, memory of a thread" for name in ("LDL", "STL") if name in found]
    print("\n".join(wrong) or "as wanted")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
