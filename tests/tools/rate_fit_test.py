"""tools/rate_fit.py: coefficients that are known are found again, and slopes keep their limits."""

import pathlib
import sys
import unittest

import numpy as np

TOOLS = pathlib.Path(__file__).resolve().parents[2] / "tools"
sys.path.insert(0, str(TOOLS))

from rate_fit import Branch, Curve, KernelFit, SHARPNESS, summary  # noqa: E402


def kernel(rate_of, read_of, launch, unit):
    """A grid of products with known rates: rows, bytes of weights, seconds."""
    rows, weights = np.meshgrid(2.0 ** np.arange(0, 13), 2.0 ** np.arange(16, 27, 0.5))
    rows, weights = rows.ravel(), weights.ravel()
    compute = rows * weights / 2 ** rate_of(np.log2(rows))
    read = weights / 2 ** read_of(np.log2(weights))
    seconds = (compute**SHARPNESS + read**SHARPNESS) ** (1 / SHARPNESS) + launch + unit * rows
    return rows, weights, seconds


def fit(rows, weights, seconds, kept, steepest=0.95):
    return KernelFit(
        seconds, kept.astype(float),
        [Branch(rows * weights, 2.0**40, [Curve("rows", np.log2(rows), np.arange(0, 13, 2), steepest)]),
         Branch(weights, 2.0**35, [Curve("weights", np.log2(weights), np.arange(16, 28, 2))])],
        1e-5, units=rows)


class RateFit(unittest.TestCase):
    def setUp(self):
        self.data = kernel(lambda x: 36 + 0.5 * np.minimum(x, 8), lambda x: 34 + 0.1 * (x - 16), 2e-6, 1e-8)
        self.kept = np.arange(len(self.data[0])) % 5 != 0

    def test_finds_what_made_the_times(self):
        found = fit(*self.data, self.kept)
        self.assertLess(found.errors(~self.kept).mean(), 0.02)
        self.assertAlmostEqual(found.branches[0].curves[0].values[-1], 40, delta=0.1)
        self.assertAlmostEqual(found.launch / 2e-6, 1, delta=0.1)
        self.assertAlmostEqual(found.unit / 1e-8, 1, delta=0.2)
        report = summary(found, ~self.kept)
        self.assertEqual(report["points"] + report["held_out_points"], len(self.data[0]))

    def test_outliers_do_not_pull_it_away(self):
        rows, weights, seconds = self.data
        seconds = seconds.copy()
        seconds[::17] *= 3
        clean = np.arange(len(seconds)) % 17 != 0
        self.assertLess(fit(rows, weights, seconds, self.kept).errors(clean).mean(), 0.06)

    def test_slopes_keep_their_limits(self):
        curve = fit(*self.data, self.kept, steepest=0.3).branches[0].curves[0]
        self.assertLessEqual(np.max(np.diff(curve.values) / np.diff(curve.knots)), 0.3 + 1e-9)


if __name__ == "__main__":
    unittest.main()
