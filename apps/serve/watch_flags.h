// The flags of `kvasir serve` by which it is seen from outside: its log, the access log, traces, names of
// metrics.
#pragma once

#include <string>

#include "apps/serve/reloads.h"
#include "base/log.h"
#include "base/status.h"
#include "server/server.h"

namespace CLI {
class App;
}

namespace kvasir {

struct WatchOptions {
  LogLevel log_level = LogLevel::kInfo;
  LogFormat log_format = LogFormat::kText;
  std::string access_log = "-";  // a file, "-": standard error, or "none"
  std::string otlp_endpoint;     // empty: no traces
};

void add_watch_flags(CLI::App& app, WatchOptions& options, ServerOptions& server);

// Opens the access log and starts the exporter of traces, and puts them into the server's options. SIGHUP
// will open the log's file again. An error names the flag.
Status start_watching(const WatchOptions& options, ServerOptions& server, Reloads& reloads);

// Whether it could, as far as can be seen without making or sending anything. An error names the flag.
Status check_access_log(const WatchOptions& options);
Status check_otlp_endpoint(const WatchOptions& options);

}  // namespace kvasir
