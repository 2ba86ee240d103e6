// Single requests to other servers: traces to a collector, and what operators ask instances.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

struct HttpUrl {
  bool tls = false;
  std::string host;  // an IPv6 address without its brackets
  std::string port;
  std::string path;  // begins with a slash

  std::string authority() const;
};

// "http://host:4318/path" or https. kInvalidArgument: one line that says what is wrong, without the URL.
Result<HttpUrl> parse_http_url(std::string_view text);

struct HttpCallerReply {
  int status = 0;
  int retry_after_s = 0;  // 0: the server said nothing, or a date
  std::string body;       // of a POST: empty if it has more than 64 KiB, or did not come whole
};

// PEM files for https. Empty: none.
struct HttpCallerTls {
  std::string ca_certs;  // that are trusted beside those that this machine trusts
  std::string certfile;  // shown to a server that asks for a certificate, with its key
  std::string keyfile;
};

// Used by one thread at a time.
class HttpCaller {
 public:
  // `gives_up` is asked some ten times a second while a request is under way: true ends it.
  // kInvalidArgument: TLS cannot be set up.
  static Result<std::unique_ptr<HttpCaller>> create(HttpUrl url, std::function<bool()> gives_up,
                                                    const HttpCallerTls& tls = {});
  ~HttpCaller();

  // Over a connection of its own. With https the server's certificate must be for its host, and signed by one
  // that this machine trusts (SSL_CERT_FILE names others). kUnavailable: why there is no answer; `timeout`
  // bounds all of it.
  Result<HttpCallerReply> post(const std::string& body, Nanos timeout);
  // A longer body is an error here.
  Result<HttpCallerReply> get(Nanos timeout, uint64_t most_bytes);

 private:
  struct Impl;
  explicit HttpCaller(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
