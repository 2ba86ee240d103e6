// The runs of a paper's figure, described in a file: what to run, and the paper's own results.
//
// JSON: {"title": "...", "source": "...", "note": "...",
//        "runs": [{"name": "...", "args": ["--model", "opt-13b", ...],
//                  "paper": [{"policy": "vllm", "rate": 2.6, "key": "attainment_joint", "value": 90},
//                            {"policy": "ellm", "over": "vllm", "key": "output_throughput", "value": 2.6},
//                            ...]}]}
// `args` are flags of `kvasir simulate`. A figure of the paper is compared with that of the run with the same
// policy and rate (left out where there is one), under a key of the JSON result, or
// "effective_throughput" where the run asks for that. With `over` it is the policy's over that policy's; with
// "over_runs": ["..."] beside it over the sum of that policy's in those runs, which come before in the file.
// With "less" in place of "over" it is the difference of the two.
// With "most": true ("up to 69 times") it is that of the rate at which ours is greatest. With "to" the paper
// states a range, from `value` on.
#pragma once

#include <string>
#include <vector>

#include "apps/simulate/answer.h"
#include "apps/simulate/simulate.h"
#include "base/status.h"

namespace kvasir {

struct PaperFigure {
  std::string policy;
  std::string over;  // the policy whose figure it is a multiple of; empty: none, it is the figure itself
  std::vector<std::string> over_runs;  // those whose figures of `over` are added up; empty: its own
  std::string less;                    // the policy whose figure is taken off it; empty: none
  double rate = 0;                     // requests per second; 0: the only one
  bool most = false;                   // the greatest over all rates
  std::string key;
  double value = 0;
  double to = 0;  // the end of the range that `value` begins; 0: there is none
};

struct ExperimentRun {
  std::string name;
  std::vector<std::string> args;
  std::vector<PaperFigure> paper;
};

struct Experiment {
  std::string title, source, note;
  std::vector<ExperimentRun> runs;
};

// kInvalidArgument names the file and the entry.
Result<Experiment> parse_experiment(const std::string& text, const std::string& name);

// Runs options.experiment, or options.experiment_runs of it. Of the other options it takes those about how to
// run: jobs, files, progress; and, for a quick look, --num-prompts. Prints every run, and then a table of the
// paper's figures beside ours. With --save-result each run also gets RUN.figures.json: {"title", "source",
// "note", "run", "args", "capacity", "effective": [{"policy", "rate", "more", "attained"}],
// "paper": [the file's entries, each with "ours", a number or null]}. An entry over runs that
// are not chosen has null.
Status run_experiment(const SimulateOptions& options, const Console& console);

}  // namespace kvasir
