// `kvasir replay`: whether a policy, given what it saw, still plans what the log says.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace kvasir {

struct ReplayOptions {
  std::string log;       // a file that serve --log-plans wrote
  bool reasons = false;  // print them
};

void add_replay_flags(CLI::App& app, ReplayOptions& options);

// 0: every plan is the same. 1: one differs, and both are printed; or the log cannot be read.
int run_replay(const ReplayOptions& options);

}  // namespace kvasir
