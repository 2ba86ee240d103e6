#!/bin/sh
# The public suites that ./dev test --full runs against the release binary, in an environment of their own: the
# JSON Schema Test Suite on structured outputs, and Schemathesis on /openapi.json.
set -eu
cd "$(dirname -- "$0")/../.."
here=tests/suites
environment=build/suites/venv
if ! cmp -s $here/requirements.txt $environment/installed.txt; then
  rm -rf $environment
  /usr/bin/python3 -m venv $environment
  $environment/bin/python -m pip --disable-pip-version-check --no-input install -q --only-binary=:all: \
    -r $here/requirements.txt
  cp $here/requirements.txt $environment/installed.txt
fi
export KVASIR_BINARY="$PWD/build/release/kvasir" PYTHONDONTWRITEBYTECODE=1
result=0
for suite in json_schema openapi; do
  $environment/bin/python $here/${suite}_suite.py "$@" || result=1
done
exit $result
