"""bench/swap_or_recompute.py: bytes and times against equations, and the table of prices that are made up."""

import contextlib
import io
import pathlib
import sys
import types
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import swap_or_recompute as study  # noqa: E402


class SwapOrRecompute(unittest.TestCase):
    def test_equations(self):
        # OPT-13B: K and V of 5,120 numbers of two bytes in 40 layers.
        opt = {"num_hidden_layers": 40, "hidden_size": 5120, "num_attention_heads": 40, "num_key_value_heads": 40}
        self.assertEqual(study.token_bytes(opt), 819_200)
        self.assertEqual(study.token_bytes({**opt, "num_key_value_heads": 8}), 819_200 // 5)
        # 1,000 tokens of 1,000 bytes at 1 GB/s: 1 ms and 10 us each way.
        self.assertAlmostEqual(study.swap_ms(1000, 1000, 1e9), 2.02)

    def test_table(self):
        steps = types.SimpleNamespace(stdout="prefill_rows,total_ms\n64,20.5\n4000,512\n")
        with mock.patch.object(study.subprocess, "run", return_value=steps) as run, contextlib.redirect_stdout(io.StringIO()) as said:
            with mock.patch.object(sys, "argv", ["swap_or_recompute", "--kvasir", "K", "--lengths", "64,4000"]):
                study.main()
        self.assertEqual(run.call_args[0][0][0], "K")
        self.assertIn("8000", run.call_args[0][0], "room for the longest")
        # An A100's link has 25.6 GB/s: 64 tokens take 2 x 2.048 ms, 4,000 take 2 x 128 ms.
        self.assertEqual(said.getvalue().splitlines()[2:], ["| 64 | 20.5 ms | 4.1 ms | 5.0 | 5.1 GB/s |", "| 4,000 | 512.0 ms | 256.0 ms | 2.0 | 12.8 GB/s |"])


if __name__ == "__main__":
    unittest.main()
