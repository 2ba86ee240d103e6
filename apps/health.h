// `kvasir health`: the probe of an image or a script that has no HTTP client.
#pragma once

#include <cstdint>
#include <string>

namespace CLI {
class App;
}

namespace kvasir {

// As those of `kvasir serve`, also in the environment, so that the two agree where both read it.
struct HealthOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;
  double timeout_s = 5;
};

void add_health_flags(CLI::App& app, HealthOptions& options);

// 0 if the server can serve; else 1 after one line on standard error.
int run_health(const HealthOptions& options);

}  // namespace kvasir
