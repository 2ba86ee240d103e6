// Status lines, headers, chunks.
#include "server/http_message.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "base/check.h"

namespace kvasir {
namespace {

std::string http_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  return fmt::format("{}, {:02} {} {} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday,
                     kMonths[utc.tm_mon], utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

std::string common_head(int status, std::string_view content_type, const ExchangeInfo& info) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\nDate: {}\r\nServer: kvasir\r\nContent-Type: {}\r\nX-Request-Id: {}\r\n"
      "Connection: {}\r\n{}",
      status, reason_phrase(status), http_date(), content_type, info.request_id,
      info.keep_alive ? "keep-alive" : "close", info.more_headers);
}

}  // namespace

const char* reason_phrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 204:
      return "No Content";
    case 304:
      return "Not Modified";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 414:
      return "URI Too Long";
    case 417:
      return "Expectation Failed";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 500:
      return "Internal Server Error";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Error";
  }
}

HttpResponse json_response(std::string body) {
  HttpResponse response;
  response.body = std::move(body);
  return response;
}

HttpResponse error_response(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.retry_after_s = error.retry_after_s;
  response.body = error_json(error);
  response.error = error;
  return response;
}

std::string format_response(const HttpResponse& response, const ExchangeInfo& info) {
  std::string out = common_head(response.status, response.content_type, info);
  // An answer without content has no length (RFC 9110, section 8.6).
  if (response.status != 204 && response.status != 304)
    out += fmt::format("Content-Length: {}\r\n", response.body.size() + response.static_body.size());
  if (!response.allow.empty()) out += fmt::format("Allow: {}\r\n", response.allow);
  if (response.retry_after_s > 0) out += fmt::format("Retry-After: {}\r\n", response.retry_after_s);
  if (!response.content_security_policy.empty()) {
    out += fmt::format("Content-Security-Policy: {}\r\nX-Content-Type-Options: nosniff\r\n",
                       response.content_security_policy);
  }
  out += response.more_headers;
  if (response.status == 401) out += "WWW-Authenticate: Bearer\r\n";
  out += "\r\n";
  if (!info.head_only) out += response.body;
  return out;
}

std::string format_stream_head(const ExchangeInfo& info) {
  std::string out = common_head(200, "text/event-stream; charset=utf-8", info);
  // X-Accel-Buffering asks a proxy not to collect the events.
  out += "Cache-Control: no-cache\r\nX-Accel-Buffering: no\r\n";
  out += info.chunked ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
  return out;
}

std::string format_chunk(std::string_view data) {
  KV_CHECK(!data.empty(), "an empty chunk would end the body");
  return fmt::format("{:x}\r\n{}\r\n", data.size(), data);
}

std::string server_sent_event(std::string_view data) {
  return fmt::format("data: {}\n\n", data);
}

std::string server_sent_event(std::string_view name, std::string_view data) {
  return fmt::format("event: {}\ndata: {}\n\n", name, data);
}

std::string request_id_or_new(std::string_view given) {
  const bool usable = !given.empty() && given.size() <= 128 &&
                      std::all_of(given.begin(), given.end(), [](char c) { return c > ' ' && c < 0x7f; });
  return usable ? std::string(given) : "req-" + random_hex_id();
}

std::string random_hex_id() {
  thread_local std::mt19937_64 generator{[] {
    std::random_device device;
    return (static_cast<uint64_t>(device()) << 32) | device();
  }()};
  return fmt::format("{:016x}{:08x}", generator(), generator() & 0xffffffffu);
}

std::string secret_hex_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

}  // namespace kvasir
