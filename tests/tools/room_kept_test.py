"""bench/room_kept.py: shares and sizes by hand, and what it asks of kvasir."""

import json
import pathlib
import random
import statistics
import sys
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import room_kept as study  # noqa: E402


class RoomKept(unittest.TestCase):
    # Of outputs of 300 and predictions of 310, 340, 150 and 190 RLP keeps 410, 440, 250 and 290, S3 350, 350, 150 and 200.
    def test_row(self):
        cells = [cell.strip() for cell in study.row("W", [300] * 4, [310, 340, 150, 190]).strip("| ").split("|")]
        self.assertEqual(cells[0], "W (4 requests)")
        self.assertEqual(cells[1], "78 tokens, 50 %, 50 %", "(10 + 40 + 150 + 110) / 4")
        for cell, expected in zip(cells[2:6], ("50 %, 125, P90", "50 %, 30, P90", "50 %, 50, P90", "50 %, 125, P90")):
            self.assertTrue(cell.startswith(expected), cell)
        self.assertEqual(cells[-1], "1.16, 0.88", "1,390 / 1,200 and 1,050 / 1,200")

    def test_errors(self):
        drawn = random.Random(1)
        errors = [study.laplace(drawn) for _ in range(20_000)]
        self.assertLess(abs(statistics.mean(errors)), 2)
        self.assertLess(abs(statistics.mean(map(abs, errors)) - 58), 2)

    def test_lengths(self):
        def run(command, **_):
            self.assertEqual(command[0], "K")
            folder = pathlib.Path(command[command.index("--result-dir") + 1])
            (folder / "r.json").write_text(json.dumps({"input_lens": [1, 2], "output_lens": [3, 4]}))
        with mock.patch.object(study.subprocess, "run", side_effect=run):
            self.assertEqual(study.lengths("K", ["--workload", "w"], 2), [(1, 3), (2, 4)])


if __name__ == "__main__":
    unittest.main()
