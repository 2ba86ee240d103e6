"""tools/choices.py: the questions, and how two runs are compared."""

import json
import pathlib
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import choices  # noqa: E402


class Choices(unittest.TestCase):
    def test_questions(self):
        asked = list(choices.questions())
        self.assertEqual(asked, list(choices.questions()))
        self.assertEqual(len({q["question"] for q in asked}), len(asked))
        self.assertEqual(len(asked), 156)
        for q in asked:
            self.assertEqual(len(set(q["choices"])), 4, q)
        paris = next(q for q in asked if q["question"] == "The capital of France is")
        self.assertEqual(paris["choices"][paris["answer"]], "Paris")
        # No place is favoured.
        for place in range(4):
            self.assertGreater(sum(q["answer"] == place for q in asked), 25)

    def test_comparison(self):
        def run(*values):
            lines = [{"doc": {"question": str(i), "answer": 0}, "filtered_resps": [[v, False] for v in four]}
                     for i, four in enumerate(values)]
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "samples.jsonl"
                path.write_text("\n".join(map(json.dumps, lines)))
                return choices.read_samples(path)

        a = run([-1.0, -2, -3, -4], [-1.0, -2, -3, -4])
        b = run([-1.5, -2, -3, -4], [-2.25, -2, -3, -4])
        table = dict(choices.compare(a, b))
        self.assertEqual(table["questions"], "2")
        self.assertEqual(table["same choice"], "1 (50.0%)")
        self.assertEqual(table["largest gap, in either run, between two choices that differ"], "1.000")
        self.assertEqual(table["right in A, in B"], "2, 1")
        self.assertEqual(table["mean log-likelihood of a choice in A, in B"], "-2.5000, -2.7188")
        self.assertEqual(table["difference of log-likelihoods: mean, median, largest"], "0.2188, 0.0000, 1.2500")
        with self.assertRaises(SystemExit):
            choices.compare(a, run([-1, -2, -3, -4]))


if __name__ == "__main__":
    unittest.main(verbosity=2)
