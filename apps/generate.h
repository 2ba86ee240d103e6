// `kvasir generate`: one prompt, in this process, to standard output.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/runtime.h"

namespace CLI {
class App;
}

namespace kvasir {

struct GenerateOptions {
  RuntimeOptions runtime;
  std::string prompt;
  std::string system;  // with --chat
  bool chat = false;
  uint32_t max_tokens = 256;
  // None: as the model is meant to be sampled.
  std::optional<float> temperature;
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  int32_t logprobs = -1;
  std::optional<uint64_t> seed;
  std::vector<std::string> stop;
  bool ignore_eos = false;
};

void add_generate_flags(CLI::App& app, GenerateOptions& options);

// 0, or 1 after one line on standard error.
int run_generate(const GenerateOptions& options);

}  // namespace kvasir
