"""How far the room that RLP and S3 keep for an output is off its length: CacheOpt's Fig. 5, from the outputs of a workload.

Outputs are those that `kvasir simulate` draws; predictions are off by Laplace(0, 58) tokens. RLP keeps 100 tokens more than
predicted, S3 the end of the bucket of 50 tokens that the prediction is in. Prints a table in Markdown.
"""

import argparse
import json
import pathlib
import random
import statistics
import subprocess
import tempfile

MEAN_ERROR = 58
PADDING = 100
BUCKET = 50
# Name, flags, requests.
WORKLOADS = [("ShareGPT", ["--workload", "sharegpt"], 6000), ("BookCorpus, half", ["--workload", "bookcorpus", "--length-scale", "0.5"], 2000),
             ("Alpaca", ["--workload", "alpaca"], 6000)]


def lengths(kvasir, flags, requests):
    """[(prompt, output)] in tokens."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([kvasir, "simulate", "--model", "opt-13b", "--device", "a100-80g", "--scheduling-policy", "vllm", "--request-rate", "1x",
                        "--max-num-queued-reqs", "100000", "--num-prompts", str(requests), *flags, "--save-result", "--save-detailed", "--result-dir", folder],
                       capture_output=True, check=True)
        result = json.loads(next(pathlib.Path(folder).iterdir()).read_text())
    return list(zip(result["input_lens"], result["output_lens"]))


def laplace(drawn):
    return drawn.choice((-1, 1)) * drawn.expovariate(1 / MEAN_ERROR)


def described(sizes, of):
    """The share of the outputs that these are, their mean and their 90th percentile."""
    return f"{100 * len(sizes) / of:.2g} %, {statistics.mean(sizes):.0f}, P90 {statistics.quantiles(sizes, n=10)[-1]:.0f}"


def row(name, outputs, predicted):
    errors = [abs(p - o) for p, o in zip(predicted, outputs)]
    within = [100 * sum(e <= most for e in errors) / len(errors) for most in (50, 100)]
    cells = [f"{name} ({len(outputs):,} requests)", f"{statistics.mean(errors):.0f} tokens, {within[0]:.0f} %, {within[1]:.0f} %"]
    kept = []
    for rooms in ([p + PADDING for p in predicted], [-(-p // BUCKET) * BUCKET for p in predicted]):
        differences = [room - output for room, output in zip(rooms, outputs)]
        cells += [described([d for d in differences if d > 0], len(outputs)), described([-d for d in differences if d < 0], len(outputs))]
        kept.append(f"{sum(rooms) / sum(outputs):.2f}")
    return "| " + " | ".join([*cells, ", ".join(kept)]) + " |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--kvasir", default="build/release/kvasir")
    options = parser.parse_args()
    print("| | mean absolute error, within 50, within 100 | `rlp`: too much | too little | `s3`: too much | too little | room over output, `rlp`, `s3` |\n|" + "---|" * 7)
    drawn = random.Random(0)
    halves = []
    for name, flags, requests in WORKLOADS:
        both = lengths(options.kvasir, flags, requests)
        outputs = [output for _, output in both]
        predicted = [max(1, round(output + laplace(drawn))) for output in outputs]
        print(row(name, outputs, predicted))
        by_prompt = [abs(p - o) for p, (_, o) in sorted(zip(predicted, both), key=lambda pair: pair[1][0])]
        middle = len(by_prompt) // 2
        halves.append(f"{name} {statistics.mean(by_prompt[middle:]):.0f} and {statistics.mean(by_prompt[:middle]):.0f}")
    print("\nMean absolute error of the longer and the shorter half of the prompts, in tokens: " + "; ".join(halves) + ".")


if __name__ == "__main__":
    main()
