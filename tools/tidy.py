"""Runs clang-tidy over src/ and apps/, in parallel, skipping what passed before. Where the build compiles several
sources together, they are checked together: most of the time goes into the headers that they share.

A file that passed is remembered by the hash of all that its result depends on: itself, the project's headers
that it reaches, its compile command and the settings. Every other file is checked, or with --changed-since those
that differ from a commit.
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
    if str(file).endswith((".pb.cc", "/web_assets.cc")):
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


def changed_files(base):
    """What differs from a commit, the work tree's own changes and new files included."""
    if not git("rev-parse", "--verify", base + "^{tree}"):
        sys.exit(f"tidy: git knows no commit {base}")
    names = git("diff", "--name-only", base).splitlines()
    names += git("ls-files", "--others", "--exclude-standard").splitlines()
    return {ROOT / name for name in names}


def entries_of(changed, entries):
    """Those that compile a changed source; and for each changed header that they do not reach one that does."""
    if any(file.name == ".clang-tidy" for file in changed):
        return entries
    chosen, left = [], {file for file in changed if file.suffix == ".h" and is_checked(file) and file.is_file()}
    reached = {entry["file"]: set(reached_files(pathlib.Path(entry["file"]))) for entry in entries}
    for entry in entries:
        sources = {file for file in reached[entry["file"]] if file.suffix == ".cc"}
        if sources & changed:
            chosen.append(entry)
            left -= reached[entry["file"]]
    for entry in sorted(entries, key=lambda entry: len(reached[entry["file"]])):
        if left & reached[entry["file"]]:
            chosen.append(entry)
            left -= reached[entry["file"]]
    return chosen


def check(build, entry, passed):
    """Whether the file is clean."""
    # The compile commands are g++'s, whose warning flags clang need not know. Seeded faults are read, too.
    command = ["clang-tidy-14", "-p", str(build), "--quiet", "--extra-arg=-Wno-unknown-warning-option",
               "--extra-arg=-DKVASIR_MUTANTS=1",
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
    parser.add_argument("--changed-since", metavar="COMMIT",
                        help="check only what differs from this commit (default: everything)")
    options = parser.parse_args()

    memory = ROOT / "build" / "tidy"
    memory.mkdir(parents=True, exist_ok=True)
    entries = entries_to_check(options.build)
    if not entries:
        sys.exit(f"tidy: {options.build}/compile_commands.json names no file of src/ or apps/")
    if options.changed_since:
        entries = entries_of(changed_files(options.changed_since), entries)
    todo = [(entry, memory / fingerprint(entry)) for entry in entries]
    todo = [(entry, passed) for entry, passed in todo if not passed.exists()]

    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        results = list(pool.map(lambda item: check(options.build, *item), todo))
    failed = results.count(False)
    print(f"tidy: {len(entries)} files: {len(entries) - len(todo)} unchanged since they passed, "
          f"{results.count(True)} clean, {failed} with findings")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
