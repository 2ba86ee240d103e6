#include "apps/health.h"

#include <CLI/CLI.hpp>

#include "apps/bench/http_loop.h"
#include "apps/flags/command_line.h"
#include "apps/flags/runtime_flags.h"
#include "base/clock.h"

namespace kvasir {
namespace {

constexpr size_t kMaxAnswerBytes = 4096;

// Where a server that listens on `host` can be reached from its own machine.
std::string reachable(const std::string& host) {
  return host == "0.0.0.0" ? "127.0.0.1" : host == "::" ? "::1" : host;
}

Status ask(const HealthOptions& options) {
  const HttpTarget target{reachable(options.host), std::to_string(options.port), ""};
  const Result<HttpReply> reply =
      http_get(target, "/health", "", from_seconds(options.timeout_s), kMaxAnswerBytes);
  if (!reply.ok()) {
    return error(reply.status().code(), "{}: {}", target.authority(), reply.status().message());
  }
  if (reply->status == 200) return {};
  return error(ErrorCode::kUnavailable, "{}: it answered {} {}", target.authority(), reply->status,
               reply->body);
}

}  // namespace

void add_health_flags(CLI::App& app, HealthOptions& options) {
  app.add_option("--host", options.host, "Address that the server listens on")->capture_default_str();
  app.add_option("--port", options.port, "Its port, or its admin port")
      ->capture_default_str()
      ->check(between(1, 65535));
  app.add_option("--timeout", options.timeout_s, "Seconds that the answer may take")
      ->capture_default_str()
      ->check(between(0.1, 3600.0));
}

int run_health(const HealthOptions& options) {
  const Status status = ask(options);
  return status.ok() ? 0 : report_failure("health", status.message());
}

}  // namespace kvasir
