"""tools/make_prompt_set.py: the same set for the same seed, of every kind, and another mixture at its end."""

import json
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOL = pathlib.Path(__file__).resolve().parents[2] / "tools" / "make_prompt_set.py"


def prompts(*arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "prompts.jsonl")
        subprocess.run([sys.executable, TOOL, path, *arguments], check=True)
        return path.read_text()


class PromptSet(unittest.TestCase):
    def test_depends_on_count_and_seed_alone(self):
        self.assertEqual(prompts("--count", "50"), prompts("--count", "50"))
        self.assertNotEqual(prompts("--count", "50"), prompts("--count", "50", "--seed", "2"))

    def test_asks_questions_of_every_kind(self):
        lines = [json.loads(line) for line in prompts().splitlines()]
        self.assertEqual(len(lines), 3200)
        self.assertEqual(len({line["kind"] for line in lines}), 11)
        for line in lines:
            (message,) = line["messages"]
            self.assertEqual(message["role"], "user")
            self.assertNotIn("{", message["content"], "a place that nothing was put into")
            self.assertIn(line["temperature"], (0.3, 0.7))

    def test_the_mixture_moves(self):
        kinds = [json.loads(line)["kind"] for line in prompts().splitlines()]
        third = len(kinds) // 3
        self.assertGreater(kinds[:third].count("sum"), kinds[-third:].count("sum"))
        self.assertLess(kinds[:third].count("story"), kinds[-third:].count("story"))


if __name__ == "__main__":
    unittest.main()
