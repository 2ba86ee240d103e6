"""Runs those tests of a build that have not passed as they are now, and says how many cases ran.

suite.py --build build/asan [--again] [flags of ctest...]

A test that passed is remembered by a digest of what its result depends on: its program and other files that its command or
its environment names, the variables that programs read (VARIABLES), all files of the project that are no C++ source and no
documentation, and the machine: its processor, its packages, and whether we are root, since some tests skip what they cannot
do. Tests with the label lint read the sources themselves and run always.

Tests with the label real-time wait for a clock that goes on while other programs have the cores. Up to MOST_ONCE_MORE of them that
failed, if no other test did, run once more, one at a time; a test that then passes has passed, and is named. A sanitizer's report
is final.
"""

import argparse
import hashlib
import json
import os
import pathlib
import platform
import re
import subprocess
import sys
import xml.etree.ElementTree

ROOT = pathlib.Path(__file__).resolve().parent.parent
NOT_READ_BY_TESTS = {".cc", ".h", ".cu", ".cuh", ".md"}
VARIABLES = ("KVASIR_", "GTEST_", "ASAN_", "LSAN_", "TSAN_", "UBSAN_", "PATH")
# What GoogleTest and unittest print at their end.
CASES = re.compile(r"(\d+) tests? from \d+ test suites? ran|^Ran (\d+) tests? in", re.MULTILINE)
MOST_ONCE_MORE = 3
SANITIZER = re.compile(r"Sanitizer:|: runtime error: ")
SKIPPED = re.compile(r"^\[  SKIPPED \] (\d+) tests?[,.]|\bskipped=(\d+)", re.MULTILINE)


def digest_of(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def digest_of_project(root):
    """Of the files that tests may read while they run; None where git does not know them."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], cwd=root,
                            capture_output=True, check=False)
    if listed.returncode != 0:
        return None
    digest = hashlib.sha256()
    for name in sorted(listed.stdout.decode().split("\0")):
        if name and pathlib.Path(name).suffix not in NOT_READ_BY_TESTS and (root / name).is_file():
            digest.update(name.encode() + b"\0" + digest_of(root / name))
    for installed in sorted(root.glob(".venv*/installed.txt")):
        digest.update(digest_of(installed))
    return digest.digest()


def digest_of_machine():
    digest = hashlib.sha256(f"{os.getuid()} {platform.release()}".encode())
    status = pathlib.Path("/var/lib/dpkg/status")
    if status.is_file():
        digest.update(digest_of(status))
    with open("/proc/cpuinfo", encoding="utf-8") as file:
        digest.update(next((line for line in file if line.startswith("flags")), "").encode())
    return digest.digest()


def tests_of(build, flags):
    listed = subprocess.run(["ctest", "--test-dir", build, "--show-only=json-v1", *flags], capture_output=True, text=True,
                            check=True)
    return json.loads(listed.stdout)["tests"]


def property_of(test, name):
    return next((p["value"] for p in test["properties"] if p["name"] == name), [])


def digest_of_test(test, surroundings):
    digest = hashlib.sha256(surroundings)
    variables = [f"{name}={value}" for name, value in os.environ.items() if name.startswith(VARIABLES)]
    words = [*test["command"], *sorted(variables), *property_of(test, "ENVIRONMENT")]
    for word in words:
        digest.update(word.encode() + b"\0")
        file = pathlib.Path(word.split("=", 1)[-1])
        if file.is_absolute() and file.is_file():
            digest.update(digest_of(file))
    return digest.hexdigest()


def is_remembered(test):
    # A test whose program is not built has no command.
    return bool(test.get("command")) and "lint" not in property_of(test, "LABELS")


def run_ctest(build, flags):
    """(ctest's exit code, the entries of its report)."""
    report = build / "suite.xml"
    report.unlink(missing_ok=True)
    # Whole outputs, since their ends have the counts.
    done = subprocess.run(["ctest", "--test-dir", build, "--output-on-failure", "--no-tests=error", "--output-junit",
                           report.absolute(), "--test-output-size-passed", "10000000",
                           "--test-output-size-failed", "10000000", *flags], check=False)
    return done.returncode, {case.get("name"): case for case in xml.etree.ElementTree.parse(report).getroot().iter("testcase")}


def once_more(build, tests, cases):
    """The entries of those that failed and now pass; none unless that makes everything pass."""
    real_time = {t["name"] for t in tests if "real-time" in property_of(t, "LABELS")}
    failed = [name for name, case in cases.items() if case.get("status") == "fail"]
    # Such as those whose program is missing.
    did_not_run = [name for name, case in cases.items() if case.get("status") == "notrun" and not any(
        skipped.get("message", "").startswith("SKIP_") for skipped in case.iter("skipped"))]
    if did_not_run or not 0 < len(failed) <= MOST_ONCE_MORE or not real_time.issuperset(failed) or any(
            SANITIZER.search(cases[name].findtext("system-out") or "") for name in failed):
        return {}
    print(f"== once more, one at a time: {' '.join(failed)}", flush=True)
    result, again = run_ctest(build, ["-j", "1", "-R", "^(" + "|".join(map(re.escape, failed)) + ")$"])
    if result != 0:
        return {}
    print(f"== passed at the second try only: {' '.join(failed)}")
    return again


def run(build, flags, again):
    memory = build / "passed"
    memory.mkdir(exist_ok=True)
    tests = tests_of(build, flags)
    project = digest_of_project(ROOT)
    surroundings = project and project + digest_of_machine()
    digests = {t["name"]: digest_of_test(t, surroundings) for t in tests if project and is_remembered(t)}
    passed = [name for name, digest in digests.items()
              if not again and (memory / name).is_file() and (memory / name).read_text() == digest]
    if passed:
        print(f"{len(passed)} of {len(tests)} passed before as they are now: {' '.join(passed)}", flush=True)
    result, cases = 0, 0
    if len(passed) < len(tests) or not tests:
        left_out = ["-E", "^(" + "|".join(map(re.escape, passed)) + ")$"] if passed else []
        result, ran = run_ctest(build, [*flags, *left_out])
        second = once_more(build, tests, ran) if result else {}
        if second:
            result = 0
        for name, case in {**ran, **second}.items():
            output = case.findtext("system-out") or ""
            there = CASES.findall(output)
            cases += sum(int(a or b) for a, b in there) - sum(int(a or b) for a, b in SKIPPED.findall(output))
            if there and not any(int(a or b) for a, b in there):
                print(f"{name}: FAILED: its filter leaves no case")
                result = result or 1
            elif case.get("status") == "run" and name in digests:
                (memory / name).write_text(digests[name])
                continue
            (memory / name).unlink(missing_ok=True)
    print(f"== test cases that ran: {cases}")
    return result


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a build folder with tests")
    parser.add_argument("--again", action="store_true", help="run those that have passed, too")
    options, flags = parser.parse_known_args()
    sys.exit(run(options.build, flags, options.again))


if __name__ == "__main__":
    main()
