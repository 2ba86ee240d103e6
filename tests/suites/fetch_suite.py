"""Puts the JSON Schema Test Suite under build/suites; it travels in the source package of jsonschema."""

import pathlib
import subprocess
import sys
import tarfile
import tempfile

VERSION = "4.26.0"
SHA256 = "0c26707e2efad8aa1bfc5b7ce170f3fccc2e4918ff85989ba9ffa9facb2be326"
# pip asks a source package for its metadata, and would install a build system to get them. This stands in for that build system.
METADATA = f"""import pathlib
def prepare_metadata_for_build_wheel(folder, settings=None):
    info = pathlib.Path(folder) / "jsonschema-{VERSION}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\\nName: jsonschema\\nVersion: {VERSION}\\n")
    return info.name
"""


def download(scratch):
    (scratch / "hatchling").mkdir()
    (scratch / "hatchling" / "__init__.py").write_text("")
    (scratch / "hatchling" / "build.py").write_text(METADATA)
    wanted = scratch / "wanted.txt"
    wanted.write_text(f"jsonschema=={VERSION} --hash=sha256:{SHA256}\n")
    subprocess.run(["env", f"PYTHONPATH={scratch}", sys.executable, "-m", "pip", "download", "--no-deps",
                    "--no-build-isolation", "--no-binary=:all:", "--require-hashes", "--no-cache-dir", "--no-input",
                    "--disable-pip-version-check", "--quiet", "--dest", str(scratch), "--requirement", str(wanted)],
                   stdin=subprocess.DEVNULL, stdout=sys.stderr, check=True)
    return scratch / f"jsonschema-{VERSION}.tar.gz"


def suite():
    """The folder of the suite's tests, fetched once."""
    folder = pathlib.Path(__file__).resolve().parents[2] / "build" / "suites" / f"json-schema-{VERSION}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as name:
            scratch = pathlib.Path(name)
            fresh = scratch / "fresh"
            with tarfile.open(download(scratch)) as archive:
                for member in archive:
                    place = member.name.partition("/json/tests/")[2]
                    if not member.isfile() or not place.endswith(".json") or ".." in place:
                        continue
                    path = fresh / place
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_bytes(archive.extractfile(member).read())
            fresh.rename(folder)
    return folder
