#!/bin/bash
# Everything about a GPU within a time limit: checks, tests, benchmarks, peers, tables.
# run_gpu.sh FOLDER [SECONDS=1500] [PROGRAM=build/release/kvasir-gpu] [OTHER_PROGRAM...]
# Other programs are tests, which run after those of PROGRAM and without arguments.
# FOLDER gets results.jsonl, a log of each step and tables.md. What fails or is out of time does not stop the rest, but
# then the exit status is 1. cuBLASLt is $KVASIR_CUBLASLT, or what the packages of python3 have.
set -u
if [ $# -lt 1 ]; then
  echo "usage: run_gpu.sh FOLDER [SECONDS=1500] [PROGRAM=build/release/kvasir-gpu] [OTHER_PROGRAM...]" >&2
  exit 2
fi
here=$(cd "$(dirname "$0")/.." && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)
end=$(($(date +%s) + ${2:-1500}))
program=${3:-$here/build/release/kvasir-gpu}
json=$folder/results.jsonl
python=$(command -v python3)
chmod +x "$program" 2>/dev/null
failed=''
if [ -z "${KVASIR_CUBLASLT:-}" ]; then
  KVASIR_CUBLASLT=$("$python" -c 'import glob, sys
print(next((f for p in sys.path if p for f in glob.glob(p + "/nvidia/*/lib/libcublasLt.so.13")), ""))')
  if [ -n "$KVASIR_CUBLASLT" ]; then export KVASIR_CUBLASLT; else unset KVASIR_CUBLASLT; fi
fi

# step NAME MOST_SECONDS COMMAND...
step() {
  local name=$1 most=$2 left=$((end - $(date +%s) - 5)) begin status
  shift 2
  [ "$left" -lt "$most" ] && most=$left
  if [ "$most" -lt 5 ]; then
    echo "$name: no time left"
    failed="$failed $name"
    echo "{\"part\": \"step\", \"step\": \"$name\", \"result\": \"no time left\"}" >>"$json"
    return
  fi
  begin=$(date +%s)
  echo "== $name"
  timeout -k 5 "$most" "$@" >"$folder/$name.log" 2>&1
  status=$?
  [ "$status" -eq 0 ] || failed="$failed $name"
  tail -n 400 "$folder/$name.log"
  echo "{\"part\": \"step\", \"step\": \"$name\", \"exit\": $status, \"seconds\": $(($(date +%s) - begin))}" >>"$json"
}

step card 20 nvidia-smi
nvidia-smi --query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv -lms 500 \
  >"$folder/clocks.csv" 2>&1 &
clocks=$!
step check 150 "$program" --json "$json" --part-limit 60 check
step test 60 "$program" --json "$json" --part-limit 50 test
[ $# -gt 3 ] && for other in "${@:4}"; do
  step "$(basename "$other")" 60 "$other"
done
step floor 40 "$program" --json "$json" --part-limit 35 bench floor
step gemm 120 "$program" --json "$json" --part-limit 45 bench gemm --shape llama-3-8b --random-weights
step decode 150 "$program" --json "$json" --part-limit 50 bench decode --shape llama-3-8b --random-weights
step leaf 100 "$program" --json "$json" --part-limit 45 bench leaf prefill --shape llama-3-8b --random-weights
step link 60 "$program" --json "$json" --part-limit 40 bench link
peers_s=$((end - $(date +%s) - 15))
[ "$peers_s" -gt 300 ] && peers_s=300
step peers 330 "$python" "$here/bench/gpu_peers.py" --json "$json" --limit "$((peers_s - 10))"
kill "$clocks" 2>/dev/null
"$python" "$here/tools/gpu_tables.py" "$json" >"$folder/tables.md" 2>"$folder/tables.log"
cat "$folder/tables.md"
if [ -n "$failed" ]; then
  echo "run_gpu.sh: failed or not run:$failed" >&2
  exit 1
fi
