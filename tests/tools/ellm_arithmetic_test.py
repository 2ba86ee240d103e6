"""tools/ellm_arithmetic.py: the equations by hand, and what its tables say without a program to ask."""

import contextlib
import io
import pathlib
import sys
import unittest

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

import ellm_arithmetic as arithmetic  # noqa: E402
from ellm_arithmetic import LLAMA_13B, LLAMA_70B, Load, Model  # noqa: E402

# 1 layer: 2 x 4 x 4 + 2 x 4 x 2 + 3 x 4 x 8 weights; K and V are half as wide as X.
SMALL = Model("small", hidden=4, layers=1, feed_forward=8, kv_hidden=2, vocabulary=10, cards=2, kv_tokens=1000)


def printed(function, *arguments):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        function(*arguments)
    return out.getvalue()


class EllmArithmetic(unittest.TestCase):
    def test_a_model_by_hand(self):
        self.assertEqual(SMALL.layer_weights, 32 + 16 + 96)
        self.assertEqual(SMALL.weight_bytes, 2 * (144 + 40))
        self.assertEqual(SMALL.kv_bytes, 2 * 2 * 2)
        self.assertEqual(SMALL.flops, 2 * 312e12)
        # The real ones: 13 and 69 billion parameters, but for the embedding.
        self.assertAlmostEqual(LLAMA_13B.weight_bytes / 2e9, 12.85, delta=0.02)
        self.assertAlmostEqual(LLAMA_70B.weight_bytes / 2e9, 68.7, delta=0.1)
        self.assertEqual(LLAMA_13B.kv_bytes, 819200)

    def test_equations_by_hand(self):
        flops = SMALL.flops
        self.assertAlmostEqual(arithmetic.letter_again(SMALL, 3) * flops, (24 * 16 + 80) * 3 + 16 * 9)
        self.assertAlmostEqual(arithmetic.again(SMALL, 3) * flops, 2 * 144 * 3 + 8 * 9)
        self.assertAlmostEqual(arithmetic.letter_decode(SMALL, 7) * flops, 24 * 16 + 16 * 8 + 80 * 7)
        self.assertAlmostEqual(arithmetic.decode_compute(SMALL, 5, 7) * flops, 5 * (2 * (144 + 40) + 16 * 7))
        self.assertAlmostEqual(arithmetic.decode_memory(SMALL, 5, 7) * SMALL.bandwidth, 368 + 5 * 7 * 8)

    def test_a_batch_is_what_memory_holds_and_the_bound_allows(self):
        self.assertEqual(Load(SMALL, "", 60, 80, 1).length, 100)
        self.assertEqual(Load(SMALL, "", 60, 80, 1).requests, 10)
        self.assertEqual(Load(LLAMA_70B, "", 10, 10, 1).requests, 512)

    def test_a_ratio_pays_by_the_link_alone_and_hardly(self):
        rows = [line for line in printed(arithmetic.forced_ratios).splitlines() if line.startswith("| 0.")]
        self.assertEqual(len(rows), len(arithmetic.RATIOS))
        cells = [[cell.strip() for cell in row.strip("| ").split("|")] for row in rows]
        again = {float(c[0]): float(c[4]) for c in cells}
        staged = {float(c[0]): float(c[8]) for c in cells}
        self.assertLess(max(again.values()), 1.01)
        self.assertEqual(max(staged.values()), staged[0.02])
        self.assertLess(staged[0.02], 1.01)
        self.assertLess(staged[0.36], 0.1)

    def test_equation_5_prefers_no_batch(self):
        said = printed(arithmetic.objective)
        for row in [line for line in said.splitlines() if line.startswith(("| 1 ", "| 8 ", "| 64 ", "| 256 "))]:
            self.assertIn("| 1.02 ms | 0.481 ms |", row)
        self.assertIn("the least is at b = 1.", said)

    def test_all_tables_without_a_program(self):
        for function in (arithmetic.token_costs, arithmetic.decode_steps, arithmetic.runtime_figure,
                         arithmetic.break_even, arithmetic.room_bounds):
            said = printed(function, None)
            self.assertNotIn("simulated", said)
            self.assertIn("Llama-2-70B", said)


if __name__ == "__main__":
    unittest.main()
