// The checks of Host and Origin, and CORS (https://fetch.spec.whatwg.org, section 3.3).
#include "server/browser_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "server/http_syntax.h"

namespace kvasir {
namespace {

constexpr std::string_view kAny = "*";

bool contains(const std::vector<std::string>& list, std::string_view value) {
  return std::any_of(list.begin(), list.end(),
                     [&](const std::string& one) { return equal_ignoring_case(one, value); });
}

// "host:port" of an origin or a Host, without a port that is the scheme's own. Empty: it has none.
std::string_view without_usual_port(std::string_view authority, std::string_view port) {
  if (authority.ends_with(port)) authority.remove_suffix(port.size());
  return authority;
}

// A page that this server itself has given, whatever the scheme: TLS may end at a proxy.
bool is_same_origin(std::string_view origin, std::string_view authority) {
  const size_t scheme = origin.find("://");
  if (scheme == std::string_view::npos || authority.empty()) return false;
  const std::string_view port = origin.starts_with("https:") ? ":443" : ":80";
  return equal_ignoring_case(without_usual_port(origin.substr(scheme + 3), port),
                             without_usual_port(authority, port));
}

// REQUIRES: it is a host of a head that was read, so that only an address is in brackets.
bool is_address(std::string_view host) {
  return host.starts_with('[') || host.find_first_not_of("0123456789.") == std::string_view::npos;
}

ApiError forbidden(std::string message, std::string code) {
  ApiError e;
  e.status = 403;
  e.message = std::move(message);
  e.code = std::move(code);
  return e;
}

}  // namespace

Status check_browser_options(const BrowserOptions& options) {
  for (const std::string& origin : options.cors_origins) {
    const size_t scheme = origin.find("://");
    const bool whole = scheme != std::string::npos && scheme > 0 && origin.size() > scheme + 3 &&
                       origin.find_first_of("/?# ", scheme + 3) == std::string::npos;
    if (whole || origin == kAny || origin == "null") continue;
    return error(ErrorCode::kInvalidArgument,
                 "--cors-origins: '{}' is no origin; write it as https://chat.example, without a path",
                 origin);
  }
  for (const std::string& host : options.allowed_hosts) {
    if (host == kAny || (!host.empty() && host_of(host) == host)) continue;
    return error(ErrorCode::kInvalidArgument,
                 "--allowed-hosts: '{}' is no name; write it as chat.example, without a port", host);
  }
  return {};
}

BrowserRules::BrowserRules(const BrowserOptions& options, bool needs_key, std::vector<std::string> names)
    : any_origin_(contains(options.cors_origins, kAny)),
      checks_origins_(!needs_key),
      checks_hosts_(!contains(options.allowed_hosts, kAny) && (!options.allowed_hosts.empty() || !needs_key)),
      origins_(options.cors_origins),
      hosts_(std::move(names)) {
  hosts_.emplace_back("localhost");
  hosts_.insert(hosts_.end(), options.allowed_hosts.begin(), options.allowed_hosts.end());
}

bool BrowserRules::allows_host(std::string_view authority) const {
  const std::string_view host = host_of(authority);
  return is_address(host) || contains(hosts_, host);
}

bool BrowserRules::allows_origin(std::string_view origin) const {
  return any_origin_ || contains(origins_, origin);
}

std::optional<ApiError> BrowserRules::refusal(const RequestHead& head) const {
  // Browsers speak no HTTP/1.0, and always name the host.
  if (checks_hosts_ && !head.authority.empty() && !allows_host(head.authority)) {
    return forbidden(fmt::format("this server is not called '{}'; if it is, start it with --allowed-hosts {}",
                                 clipped(head.authority), clipped(host_of(head.authority))),
                     "host_not_allowed");
  }
  const bool safe = head.method == "GET" || head.method == "HEAD" || head.method == "OPTIONS";
  if (!checks_origins_ || safe) return std::nullopt;
  const std::string_view origin = head.header("Origin");
  if (origin.empty() || allows_origin(origin) || is_same_origin(origin, head.authority)) return std::nullopt;
  return forbidden(
      fmt::format("pages of '{}' may not use this server; if they may, start it with --cors-origins {}",
                  clipped(origin), clipped(origin)),
      "origin_not_allowed");
}

std::string BrowserRules::answer_headers(const RequestHead& head) const {
  if (origins_.empty()) return {};
  const std::string_view origin = head.header("Origin");
  // A cache must not give one origin's answer to another.
  std::string lines = any_origin_ ? "" : "Vary: Origin\r\n";
  if (origin.empty() || !allows_origin(origin)) return lines;
  lines += fmt::format("Access-Control-Allow-Origin: {}\r\n", any_origin_ ? kAny : origin);
  lines +=
      "Access-Control-Expose-Headers: X-Request-Id, Retry-After, x-ratelimit-limit-requests, "
      "x-ratelimit-remaining-requests, x-ratelimit-reset-requests, x-ratelimit-limit-tokens, "
      "x-ratelimit-remaining-tokens, x-ratelimit-reset-tokens\r\n";
  return lines;
}

std::optional<std::string> BrowserRules::preflight(const RequestHead& head) const {
  const std::string_view origin = head.header("Origin");
  if (head.method != "OPTIONS" || origin.empty() || !allows_origin(origin) ||
      head.header("Access-Control-Request-Method").empty()) {
    return std::nullopt;
  }
  std::string lines = "Access-Control-Allow-Methods: GET, POST, DELETE\r\nAccess-Control-Max-Age: 600\r\n";
  const std::string_view wanted = head.header("Access-Control-Request-Headers");
  const auto harmless = [](char c) { return is_token_char(c) || c == ',' || c == ' '; };
  if (!wanted.empty() && std::all_of(wanted.begin(), wanted.end(), harmless)) {
    // Which ones SDKs send is theirs to choose, and none has a meaning that a page must not use.
    lines +=
        fmt::format("Access-Control-Allow-Headers: {}\r\nVary: Access-Control-Request-Headers\r\n", wanted);
  }
  return lines;
}

}  // namespace kvasir
