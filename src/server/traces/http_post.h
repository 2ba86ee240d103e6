// A POST to someone else's server, such as a collector of traces. Internal to src/server.
#pragma once

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

struct PostAnswer {
  int status = 0;
  int retry_after_s = 0;  // 0: the server said nothing, or a date
  std::string body;       // empty if it has more than 64 KiB, or did not come whole
};

// Used by one thread at a time.
class HttpPoster {
 public:
  // `gives_up` is asked some ten times a second while a POST is under way: true ends it. kInvalidArgument:
  // TLS cannot be set up.
  static Result<std::unique_ptr<HttpPoster>> create(HttpUrl url, std::function<bool()> gives_up);
  ~HttpPoster();

  // Over a connection of its own. With https the server's certificate must be for its host, and signed by one
  // that this machine trusts (SSL_CERT_FILE names others). kUnavailable: why there is no answer; `timeout`
  // bounds all of it.
  Result<PostAnswer> post(const std::string& json, Nanos timeout);

 private:
  struct Impl;
  explicit HttpPoster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
