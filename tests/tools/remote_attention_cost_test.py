"""bench/remote_attention_cost.py: bytes of a query against counting, and the tables of a device that is made up."""

import contextlib
import io
import pathlib
import sys
import types
import unittest
from unittest import mock

BENCH = pathlib.Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import remote_attention_cost as cost  # noqa: E402


def most_subtrees(leaves):
    """Maximal aligned subtrees of a run of leaves, where it lies worst."""

    def subtrees(first, end):
        count = 0
        while first < end:
            size = 1
            while first % (2 * size) == 0 and first + 2 * size <= end:
                size *= 2
            first += size
            count += 1
        return count

    return max(subtrees(first, first + leaves) for first in range(2 * leaves))


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


class Bytes(unittest.TestCase):
    def test_no_run_has_more_partial_results(self):
        for leaves in list(range(1, 40)) + [100, 391]:
            heads, dim = 2, 8
            bound = cost.shipped_bytes(heads, dim, leaves * cost.LEAF_TOKENS)
            real = heads * 4 * (dim + most_subtrees(leaves) * (dim + 2))
            self.assertGreaterEqual(bound, real)
            self.assertLessEqual(bound, 3 * real)


class Tables(unittest.TestCase):
    def printed(self, table, *arguments):
        options = types.SimpleNamespace(kvasir="none", model="none", device="none")
        out = io.StringIO()
        # Attention at one token a nanosecond and card, networks of 10 us and 1 GB/s.
        attend = lambda kvasir, model, device, lengths, layers, cards=1: [n / 1000 / cards for n in lengths]  # noqa: E731
        with mock.patch.object(cost, "attention_us", attend), mock.patch.object(cost, "network", lambda _: (10, 1e-3)):
            with contextlib.redirect_stdout(out):
                table(options, *arguments)
        return rows(out.getvalue())

    def test_a_query_that_goes_there_beside_what_comes_here(self):
        table = self.printed(cost.table_of_costs, [1_000_000], 1, 1, 1, 10)
        self.assertEqual(len(table), 3)
        shipped = cost.shipped_bytes(1, 10, 1_000_000)
        self.assertEqual(table[0][5], f"{20 + shipped / 1000 + 1000:.0f} us")
        self.assertEqual(table[0][6], f"{20 + 2 * 10 * 2 * 1000 + 1000:.0f} us")

    def test_two_halves_beside_the_whole(self):
        (row,) = self.printed(cost.table_of_splits, [800_000], 4, 1, 10)
        self.assertEqual(row[1], "100 us")
        self.assertEqual(row[2], "100 us")  # half the tokens on half the cards
        moved = 20 + cost.shipped_bytes(1, 10, 400_000) / 1000
        self.assertEqual(row[3], f"{moved:.1f} us")
        self.assertEqual(row[6], f"{(100 + moved) / 100:.2f}")


if __name__ == "__main__":
    unittest.main()
