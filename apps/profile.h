// `kvasir profile`: measures what steps and transfers cost here, and keeps it for `kvasir serve`.
#pragma once

#include <string>

#include "apps/runtime.h"

namespace CLI {
class App;
}

namespace kvasir {

struct ProfileOptions {
  RuntimeOptions runtime;
  double seconds = 25;  // that it measures, the model's loading aside
  std::string output;   // a second file for the result; empty: none
};

void add_profile_flags(CLI::App& app, ProfileOptions& options);

// 0, or 1 after one line on standard error.
int run_profile(const ProfileOptions& options);

}  // namespace kvasir
