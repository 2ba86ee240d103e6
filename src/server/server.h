// The HTTP server: OpenAI's interface, health and metrics (endpoints.def has the endpoints).
//
// Threads: one I/O thread owns every connection to the public port and its requests, and another one those of
// the admin port, which so answers whatever happens at the other. Workers parse bodies, apply the chat
// template and tokenise, one for short bodies and one for long ones, so that a long prompt delays neither
// streams nor short requests. The engine's thread only posts events to the I/O thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "server/browser_rules.h"
#include "server/generation.h"
#include "server/keys/api_key.h"
#include "server/map_record.h"
#include "server/prompt.h"
#include "server/slo_fields.h"
#include "server/tls_context.h"

namespace kvasir {

class AccessLog;
class SpanExporter;

struct HttpLimits {
  uint32_t max_connections = 2000;
  // From one IPv4 address or one IPv6 network of 64 bits; 0: three quarters of max_connections, so that one
  // client cannot keep all others out.
  uint32_t max_connections_per_address = 0;
  uint32_t max_header_bytes = 32 * 1024;
  uint64_t max_body_bytes = 16ull * 1024 * 1024;
  // Of all requests that are being received or prepared. Bytes count when they arrive.
  uint64_t max_bodies_bytes = 256ull * 1024 * 1024;
  uint64_t small_body_bytes = 64 * 1024;        // up to this size a body does not count there
  uint64_t long_body_bytes = 64 * 1024;         // from this size on a body goes to the worker for long ones
  Nanos idle_timeout = 75 * kNanosPerSecond;    // between two requests of a connection
  Nanos header_timeout = 10 * kNanosPerSecond;  // from the first byte to the end of the header
  Nanos body_timeout = 120 * kNanosPerSecond;   // from the end of the header to that of the body
  // The least rate of a body in each period of body_grace; a slower request ends with 408. 0: no least rate.
  uint64_t min_body_bytes_per_s = 1024;
  Nanos body_grace = 10 * kNanosPerSecond;
  Nanos write_timeout = 30 * kNanosPerSecond;  // in which the client takes no byte
  // The least rate at which a client takes what waits for it, over each write_timeout. 0: no least rate.
  uint64_t min_send_bytes_per_s = 1024;
  // Of complete answers that clients have not taken yet; above it those that have not got on for stall_time
  // are closed.
  uint64_t max_answers_bytes = 256ull * 1024 * 1024;
  // A body or a complete answer that has not got on for so long makes way for a new connection.
  Nanos stall_time = kNanosPerSecond;
  Nanos linger_timeout = 2 * kNanosPerSecond;  // for reading what a refused client still sends
  Nanos ping_interval = 15 * kNanosPerSecond;  // after so long a silence a stream has a comment
  StreamLimits stream;
  // Of the answers of /v1/responses that are kept in memory; 0 bytes: none is.
  uint64_t responses_store_bytes = 64ull * 1024 * 1024;
  uint32_t responses_store_entries = 10'000;
};

struct ServerOptions {
  std::string host = "127.0.0.1";
  uint16_t port = 8000;   // 0: any free one
  int listening_fd = -1;  // a socket that listens on host and port already; -1: there is none
  // A second port for operators: the endpoints that need no key, and /admin/drain. Nothing: there is none.
  std::string admin_host = "127.0.0.1";
  std::optional<uint16_t> admin_port;  // 0: any free one
  // Whether the admin port, too, asks for certificates of clients, where tls.ca_certs has the public one do
  // so.
  bool admin_client_certs = true;
  // How long the engine may show no sign of life before /livez gets 503.
  Nanos liveness_timeout = 60 * kNanosPerSecond;
  // Whether the public port has /metrics and /cluster/status. Nothing: only where there is no admin port.
  std::optional<bool> public_metrics;
  bool web = true;                 // whether the public port has pages for browsers: / and what it loads
  bool operators_only = false;     // no model is served: the port has what needs no key, and no pages
  std::vector<MapRecord> records;  // if there are some, the port has their page and nothing else
  std::vector<std::string> model_names;  // at least one; answers name the first
  TlsOptions tls;                        // of both ports
  BrowserOptions browsers;               // the admin port has no pages, and takes allowed_hosts alone
  // Keys without bounds, and others. None of either: no key is needed.
  std::vector<std::string> api_keys;
  std::vector<ApiKey> named_keys;
  bool share_prefixes = false;  // between keys; otherwise each key finds those of its own requests only
  std::string version;
  SloPolicy slo;
  bool reads_priority = false;  // of the scheduling policy; if not, a request with a priority is refused
  HttpLimits limits;
  std::shared_ptr<AccessLog> access_log;  // of both ports; null: none
  std::shared_ptr<SpanExporter> spans;    // of requests that need the model; null: none are sent
  MetricsPrefix metrics_prefix = MetricsPrefix::kKvasir;
};

// All keys of the options: those without a name are called api-key-1 and so on.
std::vector<ApiKey> all_keys(const ServerOptions& options);

inline bool needs_key(const ServerOptions& options) {
  return !options.api_keys.empty() || !options.named_keys.empty();
}

// Thread-safe.
class Server {
 public:
  // Listens, and answers 503 until serve(). kInvalidArgument, kIo: one line that names host and port.
  static Result<std::unique_ptr<Server>> start(ServerOptions options);
  // As stop(0).
  ~Server();

  // Serves requests from now on. The service's objects outlive stop() and every sink.
  // REQUIRES: called once.
  void serve(ModelService service);

  uint16_t port() const;
  std::string url() const;  // http://host:port, or https
  bool has_public_metrics() const;
  // Of the admin port; 0 and empty if there is none.
  uint16_t admin_port() const;
  std::string admin_url() const;

  // Reads again what may change while the server runs: the files of TLS, for connections that come from now
  // on. If one is wrong, all stays as it is.
  Status reload();

  // Other keys from now on; requests that run go on. REQUIRES: there are some, and their names differ
  void set_keys(std::vector<ApiKey> keys);

  // From now on /readyz gets 503, and answers close their connections, so that balancers and clients turn to
  // another server. Requests are served as before.
  void announce_end();
  // From now on /health, /readyz and new requests get 503. Requests that run go on.
  void drain();
  // Waits for at most `timeout` until every request that generates has ended and its answer is sent. False:
  // it timed out.
  bool wait_idle(Nanos timeout);
  // Waits for answers that are on their way, at most for `flush_timeout`, closes every connection and ends
  // the threads. Requests that still run are cancelled.
  void stop(Nanos flush_timeout);

 private:
  class Impl;
  explicit Server(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
