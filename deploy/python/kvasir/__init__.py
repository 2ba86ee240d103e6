"""The command kvasir, which is a binary that this package carries."""

import os
import sys


def main():
    binary = os.path.join(os.path.dirname(__file__), "kvasir")
    os.execv(binary, ["kvasir", *sys.argv[1:]])
