"""Puts the C++ sources of xgrammar under build/xgrammar, where cmake/xgrammar.cmake builds them.

They travel in xgrammar's source package, which the package installer fetches; nothing of it is run. The folder of a version
appears only when the package's checksum is right: an interrupted download or a wrong file leaves nothing behind but one line
that says what happened.
"""

import pathlib
import subprocess
import sys
import tarfile
import tempfile

VERSION = "0.2.8"
SHA256 = "8305646fd2b319d6c3003f51a1665e54cbbe9cba1fb636bc41d0b46434ccbb80"
# What is kept of the package.
FOLDERS = ("cpp/", "include/", "3rdparty/dlpack/include/", "3rdparty/picojson/")
FILES = ("LICENSE", "NOTICE")
# The installer asks a source package for its metadata before it stores it. The package's own way to give them would install
# a build system of Python's first; this answers instead.
METADATA = f"""import pathlib
def prepare_metadata_for_build_wheel(folder, settings=None):
    info = pathlib.Path(folder) / "xgrammar-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: xgrammar\\nVersion: {VERSION}\\n")
    return info.name
"""


class Failure(Exception):
    """Something that can happen; its text is the line for the user."""


def download(scratch):
    """Fetches the package into the scratch folder, checked by the installer, and returns its path."""
    backend = scratch / "backend" / "scikit_build_core"
    backend.mkdir(parents=True)
    (backend / "__init__.py").write_text("")
    (backend / "build.py").write_text(METADATA)
    wanted = scratch / "wanted.txt"
    wanted.write_text(f"xgrammar=={VERSION} --hash=sha256:{SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--no-build-isolation", "--no-binary=:all:",
               "--require-hashes", "--no-cache-dir", "--no-input", "--disable-pip-version-check", "--retries=2", "--quiet",
               "--dest", str(scratch), "--requirement", str(wanted)]
    done = subprocess.run(["env", f"PYTHONPATH={backend.parent}", f"TMPDIR={scratch}", *command], stdin=subprocess.DEVNULL,
                          stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False)
    packages = list(scratch.glob("xgrammar-*.tar.gz"))
    if done.returncode == 0 and packages:
        return packages[0]
    lines = done.stderr.strip().splitlines()
    said = [line for line in lines if line.startswith("ERROR")] or lines or ["no word"]
    raise Failure(f"the sources of xgrammar {VERSION} could not be downloaded; check the network and run this again "
                  f"({said[-1].removeprefix('ERROR: ')})")


def unpack(package, target):
    with tarfile.open(package) as archive:
        for member in archive:
            inside = member.name.partition("/")[2]
            if not member.isfile() or not (inside.startswith(FOLDERS) or inside in FILES) or ".." in inside:
                continue
            path = target / inside
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(archive.extractfile(member).read())


def fetch(folder):
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".download-") as name:
        scratch = pathlib.Path(name)
        print(f"Fetching the sources of xgrammar {VERSION}", file=sys.stderr)
        fresh = scratch / "fresh"
        unpack(download(scratch), fresh)
        try:
            fresh.rename(folder)
        except OSError:
            if not folder.exists():  # else another run was quicker
                raise


def main():
    folder = pathlib.Path(__file__).resolve().parent.parent / "build" / "xgrammar" / VERSION
    try:
        if not folder.exists():
            fetch(folder)
        print(folder)
    except Failure as failure:
        sys.exit(f"dev: {failure}")
    except (OSError, tarfile.TarError) as error:
        sys.exit(f"dev: the sources of xgrammar could not be stored: {error}")


if __name__ == "__main__":
    main()
