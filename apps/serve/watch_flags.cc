#include "apps/serve/watch_flags.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/flags/command_line.h"
#include "server/access_log.h"
#include "server/traces/span_exporter.h"

namespace kvasir {
namespace {

// One of the names, which becomes its value.
template <typename T>
void add_choice(CLI::App& app, const char* flag, T& value, const std::map<std::string, T>& values,
                const char* help) {
  std::string otherwise;
  std::vector<std::string> names;
  for (const auto& [name, one] : values) {
    names.push_back(name);
    if (one == value) otherwise = name;
  }
  app.add_option_function<std::string>(
         flag, [&value, values](const std::string& name) { value = values.at(name); }, help)
      ->default_str(otherwise)
      ->check(CLI::IsMember(names));
}

Result<std::unique_ptr<SpanExporter>> start_exporter(const std::string& endpoint,
                                                     const std::string& version) {
  SpanExporterOptions options;
  options.endpoint = endpoint;
  options.version = version;
  // OpenTelemetry's own variable.
  if (const char* name = std::getenv("OTEL_SERVICE_NAME"); name != nullptr && *name != '\0') {
    options.service_name = name;
  }
  auto exporter = SpanExporter::start(std::move(options));
  if (exporter.ok()) return exporter;
  // Without the URL, which may have a password.
  return error(exporter.status().code(), "--otlp-endpoint: {}", exporter.status().message());
}

}  // namespace

void add_watch_flags(CLI::App& app, WatchOptions& options, ServerOptions& server) {
  add_choice(app, "--log-level", options.log_level,
             {{"info", LogLevel::kInfo}, {"warning", LogLevel::kWarning}, {"error", LogLevel::kError}},
             "Lowest level that is written to standard error");
  add_choice(app, "--log-format", options.log_format,
             {{"text", LogFormat::kText}, {"json", LogFormat::kJson}},
             "Format of the log and the access log; json: one JSON object per line");
  app.add_option("--access-log", options.access_log,
                 "Where a line for each request goes when it ends: a file, which SIGHUP opens again, - for "
                 "standard error, where it is of the level info, or none")
      ->capture_default_str()
      ->type_name("FILE");
  app.add_option("--otlp-endpoint", options.otlp_endpoint,
                 "URL of a collector of OpenTelemetry traces, as http://127.0.0.1:4318, to which spans go by "
                 "OTLP over HTTP in JSON; /v1/traces is added (default: none)")
      ->type_name(kUrlType);
  add_choice(app, "--metrics-prefix", server.metrics_prefix,
             {{"kvasir", MetricsPrefix::kKvasir}, {"vllm", MetricsPrefix::kVllm}},
             "Before the names in /metrics that vLLM has, too; vllm: what reads vLLM's metrics reads these");
}

Status start_watching(const WatchOptions& options, ServerOptions& server, Reloads& reloads) {
  if (options.access_log != "none") {
    KV_ASSIGN_OR_RETURN(server.access_log, AccessLog::open(options.access_log, options.log_format));
    if (options.access_log != "-") {
      reloads.add(
          "log files", [log = server.access_log] { return log->reopen(); }, "were opened again");
    }
  }
  if (options.otlp_endpoint.empty()) return {};
  KV_ASSIGN_OR_RETURN(server.spans, start_exporter(options.otlp_endpoint, server.version));
  return {};
}

Status check_access_log(const WatchOptions& options) {
  const std::string& path = options.access_log;
  if (path == "none" || path == "-") return {};
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  const bool there = access(path.c_str(), F_OK) == 0;
  if (access(there ? path.c_str() : folder.c_str(), there ? W_OK : W_OK | X_OK) == 0) return {};
  return error(ErrorCode::kIo, "--access-log {}: cannot be written: {}", path, std::strerror(errno));
}

Status check_otlp_endpoint(const WatchOptions& options) {
  return options.otlp_endpoint.empty() ? Status() : start_exporter(options.otlp_endpoint, "").status();
}

}  // namespace kvasir
