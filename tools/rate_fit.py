"""Fits what a kernel takes: launch + units * unit + (flops / rate, bytes / rate) combined smoothly.

The logarithm of each rate is a sum of piecewise-linear curves over logarithms of the shape. The deviation that
is made least is that of the logarithm of the time, so that a small step counts as much as a large one.
"""

import dataclasses

import numpy as np

SHARPNESS = 6.0  # of the smooth maximum of computing and reading
SLOPE_LIMIT = 0.95  # a rate that grows faster than the work would make more work take less time


@dataclasses.dataclass
class Curve:
    """log2 of a factor of a rate over x; constant beyond the first and the last knot."""

    name: str
    x: np.ndarray  # of the points that are fitted
    knots: np.ndarray
    steepest: float = SLOPE_LIMIT
    shallowest: float = -SLOPE_LIMIT
    values: np.ndarray | None = None

    def basis(self):
        """A row for each point: the weights of the knots around it."""
        knots = np.asarray(self.knots, float)
        x = np.clip(self.x, knots[0], knots[-1])
        i = np.clip(np.searchsorted(knots, x, side="right") - 1, 0, len(knots) - 2)
        share = (x - knots[i]) / (knots[i + 1] - knots[i])
        out = np.zeros((len(x), len(knots)))
        at = np.arange(len(x))
        out[at, i] = 1 - share
        out[at, i + 1] += share
        return out

    def data(self):
        return {"x": [float(k) for k in self.knots], "log2": [round(float(v), 5) for v in self.values]}


@dataclasses.dataclass
class Branch:
    """Work over a rate: all curves are added; the first carries the level, the others are around 0."""

    work: np.ndarray
    peak: float  # a guess of the rate, from which the fit starts
    curves: list


def _penalties(curves, offset, size):
    """Rows that keep curves smooth, and all but the first around 0."""
    rows = []
    for number, curve in enumerate(curves):
        n = len(curve.knots)
        for i in range(1, n - 1):
            row = np.zeros(size)
            left, right = curve.knots[i] - curve.knots[i - 1], curve.knots[i + 1] - curve.knots[i]
            row[offset + i - 1] = 2 / left
            row[offset + i] = -2 / left - 2 / right
            row[offset + i + 1] = 2 / right
            rows.append(row)
        if number:
            row = np.zeros(size)
            row[offset:offset + n] = 3
            rows.append(row)
        offset += n
    return rows, offset


def _limits(curves, offset, theta):
    """Penalty rows and targets where a slope is beyond its limits now."""
    rows, targets = [], []
    for curve in curves:
        for i in range(1, len(curve.knots)):
            width = curve.knots[i] - curve.knots[i - 1]
            slope = (theta[offset + i] - theta[offset + i - 1]) / width
            limit = min(max(slope, curve.shallowest), curve.steepest)
            if limit != slope:
                row = np.zeros(len(theta))
                row[offset + i], row[offset + i - 1] = 1 / width, -1 / width
                rows.append(row * 300)
                targets.append(limit * 300)
        offset += len(curve.knots)
    return rows, targets


def _clip_slopes(curve):
    """What the penalty leaves over: every slope within its limits, from the last knot down."""
    for i in range(len(curve.knots) - 2, -1, -1):
        width = curve.knots[i + 1] - curve.knots[i]
        slope = (curve.values[i + 1] - curve.values[i]) / width
        curve.values[i] = curve.values[i + 1] - width * min(max(slope, curve.shallowest), curve.steepest)


class KernelFit:
    """The result: seconds of the launch and of a unit, and the curves of each branch with their values."""

    def __init__(self, seconds, weights, branches, launch, units=None):
        self.branches = branches
        self.units = np.zeros(len(seconds)) if units is None else units
        self.bases = [np.hstack([c.basis() for c in b.curves]) for b in branches]
        self.seconds = seconds
        size = sum(b.shape[1] for b in self.bases) + 2
        theta = np.zeros(size)
        offset = 0
        smooth = []
        for branch in branches:
            theta[offset:offset + len(branch.curves[0].knots)] = np.log2(branch.peak)
            rows, offset = _penalties(branch.curves, offset, size)
            smooth += rows
        theta[-2:] = np.log2(launch / 1000), np.log2(launch)
        self._solve(theta, weights, np.array(smooth))

    def _evaluate(self, theta):
        parts, offset = [], 0
        for branch, basis in zip(self.branches, self.bases):
            parts.append(np.log2(branch.work) - basis @ theta[offset:offset + basis.shape[1]])
            offset += basis.shape[1]
        top = np.max(parts, axis=0)
        body = top + np.log2(sum(2 ** (SHARPNESS * (p - top)) for p in parts)) / SHARPNESS
        total = 2**body + 2**theta[-1] + self.units * 2**theta[-2]
        jacobian, offset = np.empty((len(total), len(theta))), 0
        for part, basis in zip(parts, self.bases):
            share = 2 ** (SHARPNESS * (part - body)) * 2**body / total
            jacobian[:, offset:offset + basis.shape[1]] = -basis * share[:, None]
            offset += basis.shape[1]
        jacobian[:, -1] = 2**theta[-1] / total
        jacobian[:, -2] = self.units * 2**theta[-2] / total
        return np.log2(total), jacobian

    def _solve(self, theta, weights, smooth):
        target = np.log2(self.seconds)
        for _ in range(80):
            now, jacobian = self._evaluate(theta)
            error = target - now
            weight = weights / np.maximum(1, np.abs(error) / 0.2)  # outliers pull linearly
            rows, limits, offset = [], [], 0
            for branch in self.branches:
                more, at = _limits(branch.curves, offset, theta)
                rows, limits = rows + more, limits + at
                offset += sum(len(c.knots) for c in branch.curves)
            normal = (jacobian * weight[:, None]).T @ jacobian + smooth.T @ smooth
            gradient = jacobian.T @ (weight * error) - smooth.T @ (smooth @ theta)
            if rows:
                tight = np.array(rows)
                normal += tight.T @ tight
                gradient += tight.T @ (np.array(limits) - tight @ theta)
            step = np.linalg.solve(normal + 1e-2 * np.diag(np.diag(normal) + 1e-9), gradient)
            theta = theta + np.clip(step, -0.5, 0.5)
        offset = 0
        for branch in self.branches:
            for curve in branch.curves:
                curve.values = theta[offset:offset + len(curve.knots)].copy()
                _clip_slopes(curve)
                theta[offset:offset + len(curve.knots)] = curve.values
                offset += len(curve.knots)
        self.launch = float(2 ** theta[-1])
        self.unit = float(2 ** theta[-2]) if self.units.any() else 0.0
        self.predicted = 2 ** self._evaluate(theta)[0]

    def errors(self, chosen=None):
        """Absolute relative errors of the points, or of the chosen ones."""
        error = np.abs(self.predicted / self.seconds - 1)
        return error if chosen is None else error[chosen]


def summary(fit, held_out):
    """What a catalogue file says about a fit; held_out: the points that it did not see."""
    seen = fit.errors(~held_out)
    unseen = fit.errors(held_out)
    return {
        "points": int(len(seen)),
        "mean_percent": round(100 * float(seen.mean()), 2),
        "p95_percent": round(100 * float(np.percentile(seen, 95)), 2),
        "held_out_points": int(len(unseen)),
        "held_out_mean_percent": round(100 * float(unseen.mean()), 2),
        "held_out_p95_percent": round(100 * float(np.percentile(unseen, 95)), 2),
    }
