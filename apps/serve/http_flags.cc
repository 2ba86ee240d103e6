// Limits and timeouts, and what the process may open.
#include "apps/serve/http_flags.h"

#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <string>
#include <utility>

#include "apps/flags/command_line.h"
#include "base/log.h"
#include "base/units.h"

namespace kvasir {
namespace {

CLI::Option* add_seconds(CLI::App& app, const char* flag, Nanos& value, const char* help) {
  return app
      .add_option_function<double>(
          flag, [&value](double seconds) { value = from_seconds(seconds); }, help)
      ->default_str(fmt::format("{:g}", to_seconds(value)))
      ->type_name("SECONDS")
      ->check(between(0.1, 86400.0));
}

template <typename T>
void add_size(CLI::App& app, const char* flag, T& value, uint64_t least, uint64_t most, const char* help) {
  app.add_option_function<std::string>(
         flag,
         [&value, flag, least, most](const std::string& text) {
           const Result<uint64_t> parsed = parse_bytes(text);
           if (!parsed.ok()) throw CLI::ValidationError(flag, parsed.status().message());
           if (*parsed < least || *parsed > most) {
             throw CLI::ValidationError(flag, fmt::format("'{}' is not from {} to {}", text,
                                                          format_bytes(least), format_bytes(most)));
           }
           value = static_cast<T>(*parsed);
         },
         help)
      ->default_str(format_bytes(value))
      ->type_name("BYTES");
}

void add_connection_flags(CLI::App& app, HttpLimits& limits) {
  app.add_option(
         "--max-connections", limits.max_connections,
         "Most open connections; beyond them the one that has waited longest for its client is closed; if "
         "none waits, further ones get a 503")
      ->capture_default_str()
      ->check(between(1u, 1'000'000u));
  app.add_option("--max-connections-per-address", limits.max_connections_per_address,
                 "Most of these from one IPv4 address or one IPv6 /64 network, likewise; further ones get a "
                 "429. Behind a "
                 "proxy, which is one address, set it to --max-connections (default: 0, three quarters of "
                 "--max-connections)");
  add_seconds(app, "--timeout-keep-alive", limits.idle_timeout,
              "Seconds after which a connection without a request is closed");
  add_seconds(app, "--client-header-timeout", limits.header_timeout,
              "Seconds from the first byte of a request to the end of its header, and for a TLS handshake");
  add_seconds(app, "--client-body-timeout", limits.body_timeout,
              "Seconds from the end of the header to that of the body");
  add_seconds(app, "--send-timeout", limits.write_timeout,
              "Seconds in which a client must take a part of its answer");
  app.add_option("--min-send-rate", limits.min_send_bytes_per_s,
                 "Least bytes per second that a client must take while bytes wait for it, averaged over each "
                 "--send-timeout, or its connection is closed; 0: no least rate")
      ->capture_default_str();
  app.add_option("--min-body-rate", limits.min_body_bytes_per_s,
                 "Least bytes per second at which a request's body must arrive in each --body-grace-period, "
                 "or the request gets a 408; 0: any")
      ->capture_default_str();
  add_seconds(app, "--body-grace-period", limits.body_grace, "Seconds over which --min-body-rate is measured")
      ->check(between(0.1, 120.0));
  add_size(app, "--max-http-header-size", limits.max_header_bytes, 1024, kMiB,
           "Largest header of a request, as 16KiB; a larger one gets a 431");
  add_size(app, "--client-max-body-size", limits.max_body_bytes, 1024, 256 * kMiB,
           "Largest body of a request, as 64MiB; a larger one gets a 413");
}

void add_admin_flags(CLI::App& app, ServerOptions& o) {
  auto* const port =
      app.add_option("--admin-port", o.admin_port,
                     "Second port for operators, with its own thread and no keys: /livez, /readyz, "
                     "/health, /metrics, /cluster/status, POST /admin/drain; 0: any free one (default: none)")
          ->check(between(0, 65535));
  app.add_option("--admin-host", o.admin_host, "Address of the admin port")
      ->capture_default_str()
      ->needs(port);
  app.add_flag(
      "--admin-client-certs,!--no-admin-client-certs", o.admin_client_certs,
      "The admin port, too, asks for the certificates of --ssl-ca-certs; probes of Kubernetes have none "
      "(default: on)");
  add_seconds(app, "--liveness-timeout", o.liveness_timeout,
              "Seconds without a sign of life of the engine after which /livez gets a 503; a long step gives "
              "one in each layer, and an engine that has nothing to do is alive");
  app.add_flag_function(
      "--public-metrics,!--no-public-metrics", [&o](int64_t count) { o.public_metrics = count > 0; },
      "GET /metrics and /cluster/status on --port, too (default: on, and off with --admin-port)");
  app.add_flag("--web,!--no-web", o.web,
               "The pages for browsers on --port: the chat at /, the cache map at /cache (default: on)");
}

void add_tls_flags(CLI::App& app, TlsOptions& o) {
  app.add_option(
         "--ssl-certfile", o.certfile,
         "PEM file with the certificate and those between it and the root: both ports then speak TLS; "
         "SIGHUP reads the files again (default: no TLS)")
      ->type_name(kFileType);
  app.add_option("--ssl-keyfile", o.keyfile,
                 "PEM file with its private key, without a passphrase (default: none)")
      ->type_name(kFileType);
  app.add_option(
         "--ssl-ca-certs", o.ca_certs,
         "PEM file: clients need a certificate that one of these has signed (default: they need none)")
      ->type_name(kFileType);
}

void add_browser_flags(CLI::App& app, BrowserOptions& o) {
  app.add_option(
         "--cors-origins", o.cors_origins,
         "Origins whose pages may use the server, as https://chat.example,http://localhost:3000, or * "
         "(default: none)")
      ->delimiter(',');
  app.add_option(
         "--allowed-hosts", o.allowed_hosts,
         "Names by which clients may call the server, without ports, or *; IP addresses are always allowed "
         "(default: any name if keys are needed, else those of this machine)")
      ->delimiter(',');
}

}  // namespace

void add_http_flags(CLI::App& app, ServerOptions& options) {
  add_connection_flags(app, options.limits);
  add_admin_flags(app, options);
  add_tls_flags(app, options.tls);
  add_browser_flags(app, options.browsers);
}

void fit_descriptors(uint32_t& max_connections) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t soft = std::exchange(limit.rlim_cur, limit.rlim_max);
  if (soft != limit.rlim_max && setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    log_warning("the limit on open files could not be raised");
    limit.rlim_cur = soft;
  }
  // Files, peers, and connections that are being refused need descriptors, too.
  const rlim_t others = std::min<rlim_t>(256, limit.rlim_cur / 2);
  if (max_connections <= limit.rlim_cur - others) return;
  log_warning("--max-connections is {}, not {}: the limit on open files is {}", limit.rlim_cur - others,
              max_connections, limit.rlim_cur);
  max_connections = static_cast<uint32_t>(limit.rlim_cur - others);
}

}  // namespace kvasir
