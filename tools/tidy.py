"""Runs clang-tidy over src/ and apps/, in parallel, skipping what passed before. Where the build compiles several
sources together, they are checked together: most of the time goes into the headers that they share.

A file that passed is remembered by the hash of all that its result depends on: itself, the project's headers
that it reaches, its compile command and the settings. Every other file is checked, those of the last commit
first. A file that the time of --seconds did not suffice for counts as a failure; those that passed until then
are remembered, so that the next run goes on from there.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.MULTILINE)
FILE_LIMIT_SECONDS = 600


def git(*arguments):
    """The output of git, or nothing where there is no repository."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""


def is_checked(file):
    """Whether a compiled file is a source of src/ or apps/, or several of them together, and no tool has made it."""
    if str(file).endswith(".pb.cc"):
        return False
    return re.match(r"(build/[^/]+/)?(src|apps)/", str(pathlib.Path(file).relative_to(ROOT))) is not None


def reached_files(source):
    """The source and every header of the project that it includes, however far."""
    seen, todo = set(), [source]
    while todo:
        file = todo.pop()
        if file in seen or not file.is_file():
            continue
        seen.add(file)
        for name in INCLUDE.findall(file.read_text(errors="replace")):
            todo += [(base / name).resolve() for base in (file.parent, ROOT / "src", ROOT / "apps", ROOT)]
    return sorted(seen)


def fingerprint(entry):
    digest = hashlib.sha256()
    for folder in pathlib.Path(entry["file"]).parents:  # a folder's .clang-tidy adds to the root's
        if folder.is_relative_to(ROOT) and (folder / ".clang-tidy").is_file():
            digest.update((folder / ".clang-tidy").read_bytes())
    digest.update(entry.get("command", "").encode())
    for file in reached_files(pathlib.Path(entry["file"])):
        digest.update(str(file.relative_to(ROOT) if file.is_relative_to(ROOT) else file).encode())
        digest.update(file.read_bytes())
    return digest.hexdigest()


def entries_to_check(build):
    commands = json.loads((build / "compile_commands.json").read_text())
    return [entry for entry in commands if is_checked(entry["file"])]


def in_order(entries):
    recent = {ROOT / name for name in git("diff", "--name-only", "HEAD~1").split()}

    def is_old(entry):
        file = pathlib.Path(entry["file"])
        together = map(pathlib.Path, INCLUDE.findall(file.read_text(errors="replace")))
        return recent.isdisjoint([file, *together])

    return sorted(entries, key=lambda entry: (is_old(entry), entry["file"]))


def check(build, entry, deadline, passed):
    """None when the time was up, else whether the file is clean."""
    if time.monotonic() > deadline:
        return None
    # The compile commands are g++'s, whose warning flags clang need not know.
    command = ["clang-tidy-14", "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option",
               "--extra-arg=-Wno-ignored-optimization-argument", entry["file"]]
    if pathlib.Path(entry["file"]).is_relative_to(build.resolve()):  # it includes sources, as it is meant to
        command.insert(1, "--checks=-bugprone-suspicious-include")
    try:
        done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True,
                              timeout=FILE_LIMIT_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        print(f"{entry['file']}: clang-tidy took more than {FILE_LIMIT_SECONDS} s", flush=True)
        return False
    if done.returncode == 0:
        passed.touch()
        return True
    report(done.stdout if "error:" in done.stdout else done.stdout + done.stderr)
    return False


def report(text, said=set()):
    """Prints the findings of one file; one in a header is found from every file that includes it, said once."""
    for finding in re.split(r"^(?=/\S+:\d+:\d+: (?:error|warning))", text, flags=re.MULTILINE):
        if finding.strip() and finding not in said:
            said.add(finding)
            print(finding, end="", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, required=True, help="a configured build folder")
    parser.add_argument("--seconds", type=float, default=float("inf"),
                        help="start no file after this, and fail if one is left (default: no limit)")
    options = parser.parse_args()
    deadline = time.monotonic() + options.seconds

    memory = ROOT / "build" / "tidy"
    memory.mkdir(parents=True, exist_ok=True)
    entries = entries_to_check(options.build)
    if not entries:
        sys.exit(f"tidy: {options.build}/compile_commands.json names no file of src/ or apps/")
    todo = [(entry, memory / fingerprint(entry)) for entry in in_order(entries)]
    todo = [(entry, passed) for entry, passed in todo if not passed.exists()]

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda item: check(options.build, item[0], deadline, item[1]), todo))
    failed, late = results.count(False), results.count(None)
    print(f"tidy: {len(entries)} files: {len(entries) - len(todo)} unchanged since they passed, "
          f"{results.count(True)} clean, {failed} with findings")
    if late:
        print(f"tidy: {late} files were not checked in {options.seconds:.0f} s: ./dev lint checks all that are left")
    sys.exit(1 if failed or late else 0)


if __name__ == "__main__":
    main()
