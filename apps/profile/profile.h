// `kvasir profile`: measures the costs of steps and transfers on this machine, and keeps them for `kvasir
// serve`.
#pragma once

#include <string>

#include "runtime/runtime.h"

namespace CLI {
class App;
}

namespace kvasir {

struct ProfileOptions {
  RuntimeOptions runtime;
  // Time to measure for, without loading the model; 0: 25, or 120 for a full profile.
  double seconds = 0;
  std::string output;  // a second file for the result; empty: none
  bool full = false;   // measure a device for the simulator instead
  std::string truth;   // the file for that device
};

void add_profile_flags(CLI::App& app, ProfileOptions& options);

// 0, or 1 after one line on standard error.
int run_profile(const ProfileOptions& options);

}  // namespace kvasir
