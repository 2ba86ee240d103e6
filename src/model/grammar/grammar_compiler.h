// From what a request says of its output to constraints of its choices: compiled once, kept, and bounded.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "base/status.h"
#include "contract/token_constraint.h"
#include "model/grammar/grammar_limits.h"
#include "model/grammar/grammar_matcher.h"
#include "model/grammar/output_grammar.h"
#include "model/tokenizers/tokenizer.h"

namespace kvasir {

// Thread-safe.
class GrammarCompiler {
 public:
  struct Options {
    GrammarLimits limits{};
    Nanos patience = 10 * kNanosPerSecond;   // with one grammar
    Nanos mask_time = 100 * kNanosPerMilli;  // the most that the first mask may take
    uint32_t threads = 4;                    // that compile, those included that were given up
    size_t cache_bytes = size_t{128} << 20;
  };
  struct Stats {
    uint64_t compiled = 0;       // grammars that were not in the cache
    double compile_seconds = 0;  // of those
    uint64_t cache_bytes = 0;    // now
    uint64_t masks = 0;          // that were made
    double mask_seconds = 0;     // of those
    uint64_t masks_asked = 0;    // by steps
    uint64_t masks_awaited = 0;  // of these, not there when the row was to be sampled
    uint64_t masks_late = 0;     // and not soon enough: the row left its step
  };

  // REQUIRES: the tokenizer outlives it.
  explicit GrammarCompiler(const Tokenizer& tokenizer) : GrammarCompiler(tokenizer, Options()) {}
  GrammarCompiler(const Tokenizer& tokenizer, const Options& options);
  // Waits a moment for grammars that are being compiled. Constraints live on, without masks.
  ~GrammarCompiler();
  GrammarCompiler(const GrammarCompiler&) = delete;
  GrammarCompiler& operator=(const GrammarCompiler&) = delete;

  // Whether compile() of it will return at once.
  bool is_cached(const OutputGrammar& grammar) const;

  // Compiles on another thread, and waits for it. Once `abandoned` (may be null) is true it ends soon, with
  // an error. kInvalidArgument, in one line without the name of the request's field: no grammar of its kind,
  // beyond a limit, slow to be masked, or not compiled within `patience`; then the thread goes on with the
  // least priority, and what it makes is kept. kExhausted: as many threads are at work as may be.
  // kUnsupported: the model has no token that ends an output.
  Result<CompiledGrammar> compile(const OutputGrammar& grammar, const std::atomic<bool>* abandoned = nullptr);

  // For one output. on_fault is called at most once, on another thread, when something goes wrong in the
  // library while a mask is made. It throws nothing.
  std::shared_ptr<TokenConstraint> constrain(const CompiledGrammar& grammar,
                                             OnGrammarFault on_fault = nullptr) const;

  Stats stats() const;

 private:
  struct Shared;
  struct Job;
  static void run(Shared& shared, const std::shared_ptr<Job>& job);

  const Options options_;
  const std::shared_ptr<Shared> shared_;  // which threads that were given up share
};

}  // namespace kvasir
