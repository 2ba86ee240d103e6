"""What tools/suite.py runs again, in a small build whose programs are shell scripts."""

import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import suite  # noqa: E402


class SuiteTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        self.build = self.root / "build" / "asan"
        self.build.mkdir(parents=True)
        (self.root / ".gitignore").write_text("build\n")
        (self.root / "data.json").write_text("{}")
        (self.root / "source.cc").write_text("int a;")
        subprocess.run(["git", "init", "-q"], cwd=self.root, check=True)
        self.addCleanup(setattr, suite, "ROOT", suite.ROOT)
        suite.ROOT = self.root
        self.addCleanup(os.environ.pop, "KVASIR_SUITE_TEST", None)
        self.entries = ""
        self.program("gtest", "echo '[==========] 12 tests from 3 test suites ran. (5 ms total)'")
        self.program("python", "echo; echo Ran 4 tests in 0.1s")
        self.program("rules", "true", label="lint")

    def program(self, name, line, label="unit"):
        path = self.build / name
        path.write_text(f"#!/bin/sh\necho {name} >> {self.build}/ran\n{line}\n")
        path.chmod(0o755)
        if f"add_test({name} " not in self.entries:
            self.entries += f'add_test({name} "{path}")\nset_tests_properties({name} PROPERTIES LABELS "{label}")\n'
        (self.build / "CTestTestfile.cmake").write_text(self.entries)

    def run_suite(self, *flags, again=False):
        """The exit code, and the names of what ran."""
        (self.build / "ran").write_text("")
        with contextlib.redirect_stdout(io.StringIO()):
            done = suite.run(self.build, ["-j", "1", "--quiet", *flags], again)
        return done, (self.build / "ran").read_text().split()

    def test_what_passed_runs_again_only_when_an_input_has_changed(self):
        everything = (0, ["gtest", "python", "rules"])
        self.assertEqual(self.run_suite(), everything)
        self.assertEqual(self.run_suite(), (0, ["rules"]))
        self.assertEqual(self.run_suite(again=True), everything)
        (self.root / "source.cc").write_text("int b;")
        self.assertEqual(self.run_suite(), (0, ["rules"]))
        self.program("gtest", "true")
        self.assertEqual(self.run_suite(), (0, ["gtest", "rules"]))
        (self.root / "data.json").write_text("[]")
        self.assertEqual(self.run_suite(), everything)
        (self.root / "new.json").write_text("[]")
        self.assertEqual(self.run_suite(), everything)
        os.environ["KVASIR_SUITE_TEST"] = "1"
        self.assertEqual(self.run_suite(), everything)
        self.assertEqual(self.run_suite("-L", "^unit$"), (0, []))

    def test_what_failed_runs_again(self):
        self.program("gtest", "exit 1")
        for _ in range(2):
            result, ran = self.run_suite("-L", "^unit$")
            self.assertNotEqual(result, 0)
            self.assertIn("gtest", ran)
        self.program("gtest", "exit 0")
        self.assertEqual(self.run_suite("-L", "^unit$"), (0, ["gtest"]))
        # A failure forgets that it passed.
        self.program("gtest", "exit 1")
        self.assertNotEqual(self.run_suite("-L", "^unit$")[0], 0)
        self.assertNotEqual(self.run_suite("-L", "^unit$")[0], 0)

    def test_what_waits_for_a_clock_and_failed_runs_once_more(self):
        def fails(times, name, say="", label="unit;real-time"):
            (self.build / f"left-{name}").write_text("x" * times)
            (self.build / "passed" / name).unlink(missing_ok=True)
            self.program(name, f'echo "{say}"; left=$(cat {self.build}/left-{name}); [ -n "$left" ] || exit 0; '
                         f'printf %s "${{left#x}}" > {self.build}/left-{name}; exit 1', label)

        fails(1, "server")
        result, ran = self.run_suite("-L", "^unit$")
        self.assertEqual((result, sorted(ran)), (0, ["gtest", "python", "server", "server"]))
        self.assertEqual(self.run_suite("-L", "^unit$"), (0, []), "it has passed")
        fails(2, "server")
        result, ran = self.run_suite("-L", "^unit$")
        self.assertEqual((result != 0, ran), (True, ["server", "server"]), "twice is a failure")
        fails(0, "server")
        fails(1, "race", say="WARNING: ThreadSanitizer: data race")
        self.assertNotEqual(self.run_suite("-L", "^unit$")[0], 0)
        self.assertEqual(self.run_suite("-L", "^unit$"), (0, ["race"]))
        # Beside a test that does not wait for a clock.
        fails(1, "server")
        fails(1, "bits", label="unit")
        result, ran = self.run_suite("-L", "^unit$")
        self.assertEqual((result != 0, sorted(ran)), (True, ["bits", "server"]))
        # Beside one whose program is missing.
        fails(1, "server")
        (self.build / "python").rename(self.build / "python-away")
        result, ran = self.run_suite("-L", "^unit$")
        self.assertEqual((result != 0, sorted(ran)), (True, ["bits", "server"]), "no second try")
        (self.build / "python-away").rename(self.build / "python")
        # Many at once are no accident.
        fails(0, "bits")
        for i in range(4):
            fails(1, f"e2e{i}")
        result, ran = self.run_suite("-L", "^unit$")
        self.assertEqual((result != 0, sorted(ran)), (True, ["bits", "e2e0", "e2e1", "e2e2", "e2e3", "python", "server"]))

    def test_a_program_that_is_missing_is_no_success(self):
        (self.build / "gtest").unlink()
        self.assertNotEqual(self.run_suite()[0], 0)
        self.assertNotEqual(self.run_suite()[0], 0)

    def test_no_test_at_all_is_no_success(self):
        self.assertNotEqual(self.run_suite("-L", "^none$")[0], 0)

    def test_without_git_everything_runs(self):
        subprocess.run(["rm", "-r", self.root / ".git"], check=True)
        os.environ["GIT_CEILING_DIRECTORIES"] = str(self.root.parent)
        self.addCleanup(os.environ.pop, "GIT_CEILING_DIRECTORIES")
        for _ in range(2):
            self.assertEqual(self.run_suite(), (0, ["gtest", "python", "rules"]))

    def test_a_filter_that_leaves_no_case_is_no_success(self):
        self.program("gtest", "echo '[==========] 0 tests from 0 test suites ran. (0 ms total)'")
        for _ in range(2):
            self.assertNotEqual(self.run_suite("-R", "gtest")[0], 0)

    def test_what_it_ran_on_counts(self):
        self.assertEqual(self.run_suite("-R", "gtest"), (0, ["gtest"]))
        self.assertEqual(self.run_suite("-R", "gtest"), (0, []))
        with unittest.mock.patch.object(os, "getuid", return_value=4321):
            self.assertEqual(self.run_suite("-R", "gtest"), (0, ["gtest"]))

    def test_cases_that_were_skipped_are_not_counted(self):
        self.program("gtest", "echo '[==========] 12 tests from 3 test suites ran. (5 ms total)'; "
                     "echo '[  SKIPPED ] 2 tests, listed below:'")
        self.program("python", "echo; echo Ran 4 tests in 0.1s; echo; echo 'OK (skipped=1)'")
        self.assertIn("== test cases that ran: 13\n", self.said("gtest|python"))

    def test_what_passed_at_the_second_try_is_named(self):
        self.program("server", f'[ -e {self.build}/once ] && echo "Ran 7 tests in 0.1s" && exit 0; touch {self.build}/once; exit 1',
                     "unit;real-time")
        said = self.said("gtest|server")
        self.assertIn("\n== passed at the second try only: server\n", said)
        self.assertIn("== test cases that ran: 19\n", said)

    def said(self, names):
        script = pathlib.Path(suite.__file__)
        return subprocess.run([sys.executable, script, "--build", self.build, "-R", names], capture_output=True, text=True,
                              check=True).stdout

    def test_cases_are_counted(self):
        self.assertIn("== test cases that ran: 16\n", self.said("gtest|python"))


if __name__ == "__main__":
    unittest.main()
