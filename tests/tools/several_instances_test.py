"""bench/several_instances.py: which instances it asks for, and its tables of answers that are made up."""

import contextlib
import io
import pathlib
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import several_instances as study  # noqa: E402


def said(run, *flags):
    with mock.patch.object(study.subprocess, "run", side_effect=run), contextlib.redirect_stdout(io.StringIO()) as out:
        with mock.patch.object(sys, "argv", ["several_instances", *flags]):
            study.main()
    return out.getvalue().splitlines()


class SeveralInstances(unittest.TestCase):
    def test_cards(self):
        self.assertEqual(study.cards(4), ["--tensor-parallel-size", "4"])
        self.assertEqual(study.cards(32), ["--tensor-parallel-size", "8", "--pipeline-parallel-size", "4"])

    def test_contexts(self):
        def run(command, **_):
            instances = int(command[command.index("--instances") + 1]) if "--instances" in command else 1
            cards = int(command[command.index("--tensor-parallel-size") + 1])
            return types.SimpleNamespace(stderr=f"kvasir simulate: hold requests of {1000 * instances + cards} tokens together; give more\n")
        self.assertEqual(said(run)[2], "| 7B, 2 | 1,001 | 2,001 | 1,002 | 2 |")

    # The large instance takes 3 ms for each prompt and 4 ms for a step of its sequences, the small one 2 ms for each.
    def test_prices(self):
        asked = []

        def run(command, **_):
            cards = int(command[command.index("--tensor-parallel-size") + 1])
            asked.append((cards, pathlib.Path(command[command.index("--price") + 1]).read_text().splitlines()[-1]))
            times = [2, 2, 2, 2] if len(asked) % 2 == 0 else [3, 3, 3, 4]
            return types.SimpleNamespace(stdout="total_ms\n" + "".join(f"{t}\n" for t in times))
        table = said(run, "--prices")
        self.assertEqual(asked[:2] + asked[-2:], [(2, "0,2,100000"), (1, "0,1,50000"), (8, "0,4,200000"), (2, "0,1,50000")])
        self.assertEqual(table[2], "| a prompt of 2,000 tokens | 3.00 | 3.00 | 3.00 | 6.00 |", "twice, twice, twice and four times as many cards")
        self.assertTrue(table[-1].endswith("| 2.00 | 2.00 | 2.00 | 2.00 |"), "as many sequences for a card")


if __name__ == "__main__":
    unittest.main()
