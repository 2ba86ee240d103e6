"""bench/soak.py: its arithmetic by hand, and that each of its criteria can fail."""

import collections
import math
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
import soak  # noqa: E402
import soak_clients as clients  # noqa: E402

REST = {"descriptors": 20, "threads": 7, "connections": 1, "running": 0, "waiting": 0, "KV blocks in use": 0, "bytes of bodies": 0}


def seen(**more):
    return {"statuses": collections.Counter({200: 100, 503: 900}), "right": 100, "wrong": [], "broken": [], **more}


def measured(**more):
    """A run in which every criterion holds."""
    return {"before": seen(), "overload": seen(), "after": seen(), "faults": {"seen": {"bad requests": 9}, "wrong_statuses": {}},
            "watched": {"admin_ms": [1.0, 2.0, 99.0], "failed": []}, "before_goodput": 20.0, "after_goodput": 19.0,
            "overload_goodput": 18.0,
            "growth_per_hour": (0.009, 0.001), "own_mib": [300, 301, 302], "exit_code": 0,
            "rest_before": REST, "rest_after": dict(REST), **more}


class Arithmetic(unittest.TestCase):
    def test_quantiles(self):
        self.assertEqual(soak.quantile(range(1, 101), 0.99), 99)
        self.assertEqual(soak.quantile([3, 1, 2], 0.5), 2)
        self.assertEqual(soak.quantile([5], 0.99), 5)
        self.assertTrue(math.isnan(soak.quantile([], 0.5)))

    def test_line(self):
        self.assertEqual(soak.line_through([(0, 1), (1, 3), (2, 5)]), (2, 0))
        slope, error = soak.line_through([(0, 0), (1, 1), (2, 0), (3, 1)])
        self.assertAlmostEqual(slope, 0.2)
        self.assertAlmostEqual(error, math.sqrt(0.8 / 2 / 5))

    def test_growth(self):
        # 1 byte per second of 7,200 in the mean.
        growth, error = soak.growth_per_hour([(t, 6960 + t) for t in range(480)], 20)
        self.assertAlmostEqual(growth, 3600 / 7199.5, 6)
        self.assertAlmostEqual(error, 0, 6)
        noise = random.Random(1)
        growth, error = soak.growth_per_hour([(t, 1e6 + noise.gauss(0, 100)) for t in range(480)], 20)
        self.assertLess(abs(growth), 4 * error)
        self.assertTrue(math.isnan(soak.growth_per_hour([(0, 1), (1, 1)], 20)[0]))

    def test_goodput_leaves_out_the_beginning_and_the_last_second_if_it_is_not_whole(self):
        load = {"seconds": 4.5, "good_by_second": {0: 100, 1: 10, 2: 20, 3: 30, 4: 7}}
        self.assertEqual(soak.goodput(load, 1), 20)

    def test_bounds(self):
        self.assertEqual(soak.bounds_of({"ttft_ms": [100] * 20, "tpot_ms": [30.2] * 20}), {"ttft_ms": 1000, "tpot_ms": 61})
        self.assertEqual(soak.bounds_of({"ttft_ms": [600] * 20, "tpot_ms": [1] * 20})["ttft_ms"], 1200)


class Criteria(unittest.TestCase):
    def failing(self, **more):
        return [i for i, (_, holds, _, _) in enumerate(soak.criteria(measured(**more))) if not holds]

    def test_each_can_fail(self):
        self.assertEqual(self.failing(), [])
        self.assertEqual(self.failing(exit_code=-11), [0])
        self.assertEqual(self.failing(overload=seen(wrong=[["a", "b"]])), [1])
        self.assertEqual(self.failing(after=seen(broken=["half"])), [1])
        self.assertEqual(self.failing(overload=seen(right=0)), [1])
        self.assertEqual(self.failing(overload=seen(statuses=collections.Counter({500: 1}))), [2])
        self.assertEqual(self.failing(faults={"seen": {}, "wrong_statuses": {"no JSON: 500, not 400": 1}}), [3])
        for key in REST:
            self.assertEqual(self.failing(rest_after={**REST, key: REST[key] + 1}), [4], key)
        self.assertEqual(self.failing(watched={"admin_ms": [1, 101], "failed": []}), [5])
        self.assertEqual(self.failing(watched={"admin_ms": [1], "failed": ["timed out"]}), [5])
        self.assertEqual(self.failing(overload_goodput=17.9), [6])
        self.assertEqual(self.failing(after_goodput=20.1), [6])
        self.assertEqual(self.failing(before_goodput=0.0, after_goodput=0.0, overload_goodput=0.0), [6])
        self.assertEqual(self.failing(growth_per_hour=(0.01, 0)), [7])
        self.assertEqual(self.failing(growth_per_hour=(math.nan, math.nan)), [7])

    def test_the_prompts_are_the_same_for_a_seed(self):
        one, other = clients.prompts(8), clients.prompts(8)
        self.assertEqual([p.request(True) for p in one], [p.request(True) for p in other])
        self.assertIn(b'"cache_salt": "ab"', one[0].request(False, {"ttft_ms": 1, "tpot_ms": 2}, "ab"))


class Answers(unittest.TestCase):
    def chunked(self, *events):
        return b"".join(b"%x\r\n%b\r\n" % (len(e), e) for e in events) + b"0\r\n\r\n"

    def test_streams(self):
        said = [b'data: {"choices":[{"text":"ra"}]}\n\n', b'data: {"choices":[{"delta":{"content":"ven"}}]}\n\n',
                b'data: {"choices":[],"usage":{"completion_tokens":2}}\n\n', b"data: [DONE]\n\n"]
        self.assertEqual(clients.read_answer(self.chunked(*said), True), ("raven", 2, True))
        self.assertEqual(clients.read_answer(self.chunked(*said[:3]), True), ("raven", 2, False))
        failed = b'data: {"error":{"message":"no"}}\n\n'
        self.assertEqual(clients.read_answer(self.chunked(said[0], failed, said[3]), True), ("ra", 0, False))

    def test_whole(self):
        body = b'{"choices":[{"message":{"content":"raven"}}],"usage":{"completion_tokens":3}}'
        self.assertEqual(clients.read_answer(body, False), ("raven", 3, True))


if __name__ == "__main__":
    unittest.main(verbosity=2)
