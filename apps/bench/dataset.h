// The requests of a run, of whichever dataset or workload the flags name.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "apps/bench/bench.h"
#include "apps/bench/lengths.h"
#include "apps/bench/prompts.h"
#include "apps/bench/slo_classes.h"
#include "apps/bench/trace_file.h"
#include "apps/bench/workloads.h"
#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

// One run of a command that makes several.
struct RunKey {
  double rate = 0;    // requests per second; infinite: all at once, or a trace's own arrivals
  uint64_t seed = 0;  // of lengths, arrivals, classes and words
  int64_t point = 0;  // which of the rates. Runs of a seed have the same lengths at every rate, and words of
                      // their own, so that a server's prefix cache does not know them from the rate before.
};

// A request without its text.
struct RequestSpec {
  Nanos arrival = 0;       // offset from the start of the run
  Lengths lengths;         // of a file's texts: words and max_tokens
  int64_t prefix_len = 0;  // of the prompt, the tokens at its start that are those of
  uint64_t prefix = 0;     // this prefix, which other requests have, too
  uint32_t slo_class = 0;  // index into BenchConfig::classes; 0 where there are none
  std::vector<Goal> own;   // its own bounds; none: the run's
  int32_t priority = 0;    // its class's
};

// Reads the dataset's file once. Not thread-safe; concurrent const calls are.
class Dataset {
 public:
  enum class Use { kTexts, kLengths };

  // The options have passed check_options or check_load_options. kInvalidArgument names the file's line or
  // entry, or the flag. For kTexts the prompts' words together are bounded, for they are all drawn ahead.
  static Result<Dataset> open(const BenchOptions& options, Use use = Use::kTexts);

  int64_t num_prompts() const { return num_prompts_; }
  // In the order of arrival. Draws no words, and reads none but a file's. Depends on the key's rate and seed
  // (lengths, classes and bounds on its seed alone).
  std::vector<RequestSpec> requests(const RunKey& run) const;
  // The same requests with their texts. Texts of a file repeat from run to run; random ones never do.
  std::vector<Prompt> prompts(const RunKey& run) const;
  // Offsets from the start of the run, one for each prompt.
  std::vector<Nanos> arrivals(const RunKey& run) const;
  // options.num_warmups prompts: of their own where they are random, a file's first ones else.
  std::vector<Prompt> warmups() const;

  // From now on requests have bounds relative to this, where --relative-slo asks for such; before, none of
  // their own. It replaces what --slo-reference said.
  void use_reference(const SloReference& reference) { reference_ = reference; }

 private:
  explicit Dataset(const BenchOptions& options) : options_(options) {}
  Status read_file();
  Status read_slos();
  Status match_classes();
  Status check_size() const;
  bool has_texts() const { return !texts_.empty(); }
  bool has_trace() const { return !trace_.rows.empty(); }
  size_t in_file() const { return texts_.size() + trace_.rows.size(); }
  std::vector<size_t> order(uint64_t seed) const;
  Lengths drawn_lengths(uint64_t seed, int64_t number) const;

  BenchOptions options_;
  int64_t num_prompts_ = 0;
  std::vector<Prompt> texts_;         // of a custom file or a ShareGPT file
  Trace trace_;                       // its classes are indices into classes_
  std::optional<Workload> workload_;  // where lengths come from neither a file nor the flags for random ones
  std::vector<SloClass> classes_;
  std::optional<RelativeSlo> relative_;
  std::optional<SloReference> reference_;
};

}  // namespace kvasir
