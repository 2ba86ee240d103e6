// `kvasir serve`: the HTTP server over one model.
#pragma once

#include <string>

#include "apps/serve/key_flags.h"
#include "apps/serve/watch_flags.h"
#include "runtime/runtime.h"
#include "server/server.h"

namespace CLI {
class App;
}

namespace kvasir {

struct ServeOptions {
  RuntimeOptions runtime;
  ServerOptions server;
  KeyOptions keys;
  WatchOptions watch;
  std::string default_slo;  // as on the command line
  std::string tightest_slo;
  double drain_delay_s = 0;
  double shutdown_timeout_s = 30;
  bool parse_special = false;
  std::string override_generation_config;  // a JSON object; empty: none
  std::string pooling = "auto";
  std::string tool_call_parser = "auto";
  std::string reasoning_parser = "auto";
  std::string kv_events_config;    // a JSON object; empty: no events, but for
  std::string kv_events_endpoint;  // the address to publish them at
  bool check_config = false;       // only check_config() (check_config.h), and serve nothing
};

void add_serve_flags(CLI::App& app, ServeOptions& options);

// Reads the files of keys and what flags of text say, and fills in what follows from other options. An error
// names the flag.
Status complete_options(ServeOptions& options);

// Serves until SIGTERM or SIGINT. 0, or 1 after one line on standard error. REQUIRES: no other thread runs
// yet, so that Signals gets the signals.
int run_serve(ServeOptions options);

}  // namespace kvasir
