// The prompts of a run, of whichever dataset the flags name.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "bench/bench.h"
#include "bench/lengths.h"
#include "bench/prompts.h"

namespace kvasir {

// One run of a command that makes several.
struct RunKey {
  double rate = 0;    // requests per second; infinite: all at once, or a trace's own arrivals
  uint64_t seed = 0;  // of lengths, arrivals and words
  int64_t point = 0;  // which of the rates. Runs of a seed have the same lengths at every rate, and words of
                      // their own, so that a server's prefix cache does not know them from the rate before.
};

// Reads the dataset's file once. Not thread-safe.
class Dataset {
 public:
  // The options have passed check_options. kInvalidArgument names the file's line or entry, or the flag.
  static Result<Dataset> open(const BenchOptions& options);

  int64_t num_prompts() const { return num_prompts_; }
  // Texts of a file repeat from run to run; random ones never do.
  std::vector<Prompt> prompts(const RunKey& run) const;
  // Offsets from the start of the run, one for each prompt.
  std::vector<Nanos> arrivals(const RunKey& run) const;
  // options.num_warmups prompts: of their own where they are random, a file's first ones else.
  std::vector<Prompt> warmups() const;

 private:
  explicit Dataset(const BenchOptions& options) : options_(options) {}
  Status read_file();
  Status check_size() const;
  bool has_texts() const { return !texts_.empty(); }
  Lengths lengths_of(uint64_t seed, int64_t number) const;

  BenchOptions options_;
  int64_t num_prompts_ = 0;
  std::vector<Prompt> texts_;  // of a custom file or a ShareGPT file
  std::vector<TraceRow> trace_;
};

}  // namespace kvasir
