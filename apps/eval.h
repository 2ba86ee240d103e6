// `kvasir eval`: how far a configuration is from f32 arithmetic on real text, and how fast it runs alone.
#pragma once

#include <string>
#include <vector>

#include "runtime/runtime.h"

namespace CLI {
class App;
}

namespace kvasir {

struct EvalOptions {
  RuntimeOptions runtime;
  std::vector<std::string> texts;  // files
  uint32_t chunk_tokens = 512;     // a text is run in pieces of this length, each from an empty history
  bool speed = false;
  uint32_t prefill_tokens = 512;
  uint32_t decode_tokens = 128;
  uint32_t context_tokens = 16;  // before the decoded ones
  int repetitions = 3;
};

void add_eval_flags(CLI::App& app, EvalOptions& options);

// Prints to standard output; 0, or 1 after one line on standard error.
int run_eval(const EvalOptions& options);

}  // namespace kvasir
