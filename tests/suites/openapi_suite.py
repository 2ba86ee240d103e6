"""Schemathesis on /openapi.json of a server with the default model: requests made of the description, valid and not.

No answer may be a 5xx or differ from what the description says of it, and no request that the description excludes may be
accepted. That requests which it allows are accepted is not asked: which fields exclude each other it does not say. Lengths of
outputs are bounded, so that ten thousand cases take minutes. The figures are in docs/api.md.

  tests/suites/run.sh --cases 20000        as many cases at least (default 10,000)
"""

import argparse
import json
import os
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "e2e"))
from support import Server  # noqa: E402

CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
          "response_schema_conformance", "negative_data_rejection", "unsupported_method")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, default=10000)
    parser.add_argument("--outputs", type=int, default=0, help="of the other suite")
    wanted = parser.parse_args().cases
    scratch = HERE.parents[1] / "build" / "suites"  # where Schemathesis keeps what it remembers
    scratch.mkdir(parents=True, exist_ok=True)
    with Server("--max-model-len", "512", "--pooling", "last", memory="512MiB") as server:
        paths = json.loads(server.ask("GET", "/openapi.json")[2])["paths"]
        operations = sum(len(methods) for methods in paths.values())
        command = [str(pathlib.Path(sys.executable).parent / "st"), "--no-color", "run", server.url + "/openapi.json",
                   "--checks", ",".join(CHECKS), "--phases", "examples,coverage,fuzzing", "--seed", "1", "--workers", "4",
                   "--max-examples", str(5 * wanted // (4 * operations) + 1), "--request-timeout", "120", "--continue-on-failure"]
        done = subprocess.run(command, capture_output=True, text=True, cwd=scratch, check=False,
                              env={**os.environ, "SCHEMATHESIS_HOOKS": "openapi_hooks", "PYTHONPATH": str(HERE)})
        alive = server.ask("GET", "/health")[0] == 200
        code = server.stop()
    cases = sum(map(int, re.findall(r"(\d+) generated", done.stdout)))
    print(done.stdout[-12000:] if done.returncode else "", done.stderr[-2000:], end="")
    print(f"Schemathesis: {cases} cases of {operations} operations, {'none' if done.returncode == 0 else 'some'} failed")
    sys.exit(1 if done.returncode or cases < wanted or not alive or code else 0)


if __name__ == "__main__":
    main()
