"""The table of docs/http.md: what the RFCs say of a request, and what it gets here.

http_table_test.py check ROOT   whether the page has the table that the corpus makes; exit code 1 if not
http_table_test.py write ROOT   writes it there
http_table_test.py self-test    plants a fault of each kind and sees that it is found

tests/golden/http_rules.json has the rows, tests/golden/request_framing.json the cases of each; request_framing_test.cc sends
every case to a server and sees that it gets the answers that the corpus says.
"""

import json
import pathlib
import shutil
import sys
import tempfile
import unittest

BEGIN = "| a request with | the RFC says | gets | cases |\n|---|---|---|---|\n"


def answer_of(case):
    """What the first request of a case gets in the end: a status, and the headers that the case asks for."""
    statuses = [s for s in case["answers"] if s != 100]
    headers = [name for name, value in case.get("headers", {}).items() if value and name in ("Allow", "WWW-Authenticate")]
    before = "100, " if 100 in case["answers"] else ""
    return f"{before}{statuses[0]}" + "".join(f" with `{name}`" for name in headers)


def table(rules, cases):
    """The table, and what is wrong with the corpus: lines for a user."""
    by_rule = {rule["id"]: [] for rule in rules}
    wrong = []
    for case in cases:
        if case.get("rule") in by_rule:
            by_rule[case["rule"]].append(case)
        else:
            wrong.append(f"{case['family']}: {case['name']}: no row of http_rules.json has its rule, {case.get('rule')}")
    rows = []
    for rule in rules:
        its = by_rule[rule["id"]]
        if not its:
            wrong.append(f"{rule['id']}: no case of request_framing.json has this rule")
        answers = " or ".join(sorted(set(map(answer_of, its))))
        rows.append(f"| {rule['request']} | {rule['section']}: {rule['says']} | {answers} | {len(its)} |")
    return BEGIN + "\n".join(rows) + "\n", wrong


def main(command, root):
    golden, page = root / "tests" / "golden", root / "docs" / "http.md"
    rules, cases = (json.loads((golden / name).read_text(encoding="utf-8")) for name in ("http_rules.json", "request_framing.json"))
    made, wrong = table(rules, cases)
    text = page.read_text(encoding="utf-8")
    before, found, after = text.partition(BEGIN)
    if not found:
        wrong.append("docs/http.md has no table that begins with:\n" + BEGIN)
    after = after[after.find("\n\n") + 1:]
    if command == "write" and not wrong:
        page.write_text(before + made + after, encoding="utf-8")
    elif before + made + after != text:
        wrong.append("docs/http.md is stale: run python3 tests/http_table_test.py write .")
    print("\n".join(wrong) or f"{len(rules)} rows of {len(cases)} cases")
    return 1 if wrong else 0


class SelfTest(unittest.TestCase):
    ROOT = pathlib.Path(__file__).resolve().parent.parent
    FILES = ("tests/golden/http_rules.json", "tests/golden/request_framing.json", "docs/http.md")

    def check_with(self, file, old, new):
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            for name in self.FILES:
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(self.ROOT / name, root / name)
            text = (root / file).read_text(encoding="utf-8")
            self.assertIn(old, text)
            (root / file).write_text(text.replace(old, new, 1), encoding="utf-8")
            return main("check", root)

    def test_each_fault_is_found(self):
        rules, cases, page = self.FILES
        self.assertEqual(self.check_with(page, BEGIN, BEGIN), 0)
        self.assertEqual(self.check_with(page, "| 505 |", "| 200 |"), 1)
        self.assertEqual(self.check_with(page, BEGIN, ""), 1)
        self.assertEqual(self.check_with(cases, '"answers":[505]', '"answers":[400]'), 1)
        self.assertEqual(self.check_with(cases, '"rule":"version"', '"rule":"nothing"'), 1)
        self.assertEqual(self.check_with(rules, '"id":"head"', '"id":"tail"'), 1)


if __name__ == "__main__":
    if sys.argv[1:] == ["self-test"]:
        unittest.main(argv=sys.argv[:1], verbosity=2)
    sys.exit(main(sys.argv[1], pathlib.Path(sys.argv[2])))
