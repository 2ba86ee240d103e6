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
  // That it measures, the model's loading aside; 0: 25, or 120 for a full profile.
  double seconds = 0;
  std::string output;  // a second file for the result; empty: none
  bool full = false;   // the simulator's truth in place of belief
  std::string truth;   // the file of that
};

void add_profile_flags(CLI::App& app, ProfileOptions& options);

// 0, or 1 after one line on standard error.
int run_profile(const ProfileOptions& options);

}  // namespace kvasir
