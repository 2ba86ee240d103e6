// The request line, header lines, Host, and the framing of the body.
#include "server/request_head.h"

#include <algorithm>

#include "base/check.h"
#include "server/http_syntax.h"

namespace kvasir {
namespace {

constexpr std::string_view kLineEnd = "\r\n";

ApiError refuse(std::string message, int status = 400) {
  ApiError e;
  e.status = status;
  e.message = std::move(message);
  return e;
}

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

bool is_host_char(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         std::string_view("-._~").find(c) != std::string_view::npos;
}

// RFC 9110, section 7.2, and RFC 3986, section 3.2.2. Of the characters of a registered name only those that
// names of machines have: a comma or an '@' may be taken for something else on the way.
bool is_authority(std::string_view text) {
  const std::string_view host = host_of(text);
  std::string_view port = text.substr(host.size());
  if (host.starts_with('[')) {
    const std::string_view address = host.substr(1, host.size() - 2);
    if (!host.ends_with(']') || address.empty()) return false;
    const auto fits = [](char c) { return hex_value(c) >= 0 || c == ':' || c == '.'; };
    if (!std::all_of(address.begin(), address.end(), fits)) return false;
  } else if (host.empty() || !std::all_of(host.begin(), host.end(), is_host_char)) {
    return false;
  }
  if (port.empty()) return true;
  port.remove_prefix(1);  // the colon
  return port.size() <= 5 && std::all_of(port.begin(), port.end(), is_digit);
}

// One that fits 64 bits (RFC 9110, section 8.6): no sign, no list.
std::optional<uint64_t> read_length(std::string_view text) {
  if (text.empty() || text.size() > 19 || !std::all_of(text.begin(), text.end(), is_digit)) {
    return std::nullopt;
  }
  uint64_t length = 0;
  for (const char c : text) length = length * 10 + static_cast<uint64_t>(c - '0');
  return length;
}

// Calls `f` with each element of a list that is separated by commas.
template <typename F>
void for_each_element(std::string_view list, F f) {
  for (;;) {
    const size_t comma = list.find(',');
    f(trimmed(list.substr(0, comma)));
    if (comma == std::string_view::npos) return;
    list.remove_prefix(comma + 1);
  }
}

std::optional<ApiError> read_version(std::string_view text, RequestHead& head) {
  constexpr std::string_view kName = "HTTP/";
  if (text.size() != kName.size() + 3 || !text.starts_with(kName) || !is_digit(text[5]) || text[6] != '.' ||
      !is_digit(text[7])) {
    return refuse("the request line must be METHOD TARGET HTTP/1.1");
  }
  if (text[5] != '1' || text[7] > '1') return refuse("use HTTP/1.1", 505);
  head.minor_version = text[7] - '0';
  return std::nullopt;
}

// RFC 9112, section 3.2. Of an absolute target its authority counts, and not that of Host.
std::optional<ApiError> read_target(std::string_view text, RequestHead& head) {
  const auto visible = [](char c) { return c > ' ' && c < 0x7f && c != '#'; };
  if (text.empty() || !std::all_of(text.begin(), text.end(), visible)) {
    return refuse("the target of the request has a character that must be percent-encoded");
  }
  if (text.starts_with('/') || (text == "*" && head.method == "OPTIONS")) {
    head.target = text;
    return std::nullopt;
  }
  const size_t scheme = text.find("://");
  const std::string_view name = text.substr(0, scheme);
  if (scheme == std::string_view::npos ||
      (!equal_ignoring_case(name, "http") && !equal_ignoring_case(name, "https"))) {
    return refuse("the target of the request must begin with '/'");
  }
  const std::string_view rest = text.substr(scheme + 3);
  const size_t path = std::min(rest.find_first_of("/?"), rest.size());
  head.authority = rest.substr(0, path);
  if (!is_authority(head.authority)) return refuse("the target of the request has no valid host");
  head.target = rest.substr(path);
  if (!head.target.starts_with('/')) head.target.insert(0, "/");
  return std::nullopt;
}

std::optional<ApiError> read_request_line(std::string_view line, RequestHead& head) {
  const size_t method = line.find(' ');
  const size_t target = method == std::string_view::npos ? method : line.find(' ', method + 1);
  if (target == std::string_view::npos) return refuse("the request line must be METHOD TARGET HTTP/1.1");
  head.method = line.substr(0, method);
  if (head.method.empty() || !std::all_of(head.method.begin(), head.method.end(), is_token_char)) {
    return refuse("the method of the request is no token");
  }
  if (auto wrong = read_version(line.substr(target + 1), head)) return wrong;
  return read_target(line.substr(method + 1, target - method - 1), head);
}

// A line that continues the one before, and a space before the colon, are no tokens either (section 5).
std::optional<ApiError> read_header_line(std::string_view line, RequestHead& head) {
  const size_t colon = line.find(':');
  const std::string_view name = line.substr(0, colon);
  if (colon == std::string_view::npos || name.empty() ||
      !std::all_of(name.begin(), name.end(), is_token_char)) {
    return refuse("a header line must be NAME: VALUE, without a space before the colon");
  }
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (!std::all_of(value.begin(), value.end(), is_field_char)) {
    return refuse("a header has a control character");
  }
  head.headers.emplace_back(name, value);
  return std::nullopt;
}

// Section 6.1: of the transfer codings only "chunked" is known, and it must be the last one.
std::optional<ApiError> refusal_of_coding(std::string_view value) {
  if (equal_ignoring_case(value, "chunked")) return std::nullopt;
  bool tokens = true, chunked_before = false, chunked = false;
  for_each_element(value, [&](std::string_view coding) {
    tokens = tokens && !coding.empty() && std::all_of(coding.begin(), coding.end(), is_token_char);
    chunked_before = chunked_before || chunked;
    chunked = equal_ignoring_case(coding, "chunked");
  });
  if (tokens && chunked && !chunked_before) {
    return refuse("the only transfer coding that this server knows is 'chunked'", 501);
  }
  return refuse("Transfer-Encoding must be 'chunked'");
}

// Section 6.3.
std::optional<ApiError> read_framing(RequestHead& head) {
  size_t codings = 0, lengths = 0;
  std::string_view coding, length;
  for (const auto& [name, value] : head.headers) {
    if (equal_ignoring_case(name, "Transfer-Encoding")) {
      ++codings;
      coding = value;
    } else if (equal_ignoring_case(name, "Content-Length")) {
      ++lengths;
      length = value;
    }
  }
  if (codings > 0) {
    if (head.minor_version == 0) return refuse("HTTP/1.0 has no Transfer-Encoding");
    if (lengths > 0) return refuse("send either Transfer-Encoding or Content-Length");
    if (codings > 1) return refuse("send one Transfer-Encoding");
    if (auto wrong = refusal_of_coding(coding)) return wrong;
    head.chunked = true;
  }
  if (lengths > 1) return refuse("send one Content-Length");
  if (lengths == 1) {
    head.content_length = read_length(length);
    if (!head.content_length) return refuse("Content-Length must be a number of bytes");
  }
  return std::nullopt;
}

// Section 3.2.
std::optional<ApiError> read_host(RequestHead& head) {
  size_t hosts = 0;
  std::string_view host;
  for (const auto& [name, value] : head.headers) {
    if (!equal_ignoring_case(name, "Host")) continue;
    ++hosts;
    host = value;
  }
  if (hosts > 1) return refuse("send one Host");
  if (hosts == 0) {
    if (head.minor_version > 0) return refuse("the header Host is missing");
    return std::nullopt;
  }
  if (!is_authority(host)) return refuse("Host must be a name or an address, and perhaps a port");
  if (head.authority.empty()) head.authority = host;
  return std::nullopt;
}

// Section 9.3.
bool keeps_alive(const RequestHead& head) {
  bool close = false, keep_alive = false;
  for (const auto& [name, value] : head.headers) {
    if (!equal_ignoring_case(name, "Connection")) continue;
    for_each_element(value, [&](std::string_view option) {
      close = close || equal_ignoring_case(option, "close");
      keep_alive = keep_alive || equal_ignoring_case(option, "keep-alive");
    });
  }
  return !close && (head.minor_version > 0 || keep_alive);
}

}  // namespace

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](char x, char y) { return lower(x) == lower(y); });
}

std::string_view host_of(std::string_view authority) {
  if (!authority.starts_with('[')) return authority.substr(0, authority.find(':'));
  const size_t end = authority.find(']');
  if (end == std::string_view::npos) return authority;
  // What follows the bracket is a port or nothing; anything else makes the whole of it no host.
  const std::string_view rest = authority.substr(end + 1);
  return rest.empty() || rest.starts_with(':') ? authority.substr(0, end + 1) : authority;
}

HeadScanner::Verdict HeadScanner::scan(std::string_view all) {
  for (; seen_ < all.size(); ++seen_) {
    const char c = all[seen_];
    const bool after_cr = seen_ > 0 && all[seen_ - 1] == '\r';
    if ((c == '\n') != after_cr) return Verdict::kBadByte;
    if (c != '\n') {
      if (c != '\r' && !is_field_char(c)) return Verdict::kBadByte;
      continue;
    }
    const bool empty = seen_ + 1 - line_ == kLineEnd.size();
    const bool first = line_ == begin_;
    line_ = seen_ + 1;
    if (!empty) continue;
    if (first && begin_ > 0) return Verdict::kBadByte;
    if (first) {
      begin_ = line_;
      continue;
    }
    end_ = ++seen_;
    return Verdict::kComplete;
  }
  return Verdict::kMore;
}

std::string_view find_header(const HeaderList& headers, std::string_view name) {
  for (const auto& [key, value] : headers) {
    if (equal_ignoring_case(key, name)) return value;
  }
  return {};
}

std::variant<RequestHead, ApiError> read_head(std::string_view text) {
  KV_CHECK(text.ends_with("\r\n\r\n"), "a head of {} bytes without its end", text.size());
  RequestHead head;
  bool first = true;
  for (text.remove_suffix(kLineEnd.size()); !text.empty(); first = false) {
    const size_t end = text.find(kLineEnd);
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end + kLineEnd.size());
    auto wrong = first ? read_request_line(line, head) : read_header_line(line, head);
    if (wrong) return std::move(*wrong);
  }
  if (auto wrong = read_host(head)) return std::move(*wrong);
  if (auto wrong = read_framing(head)) return std::move(*wrong);
  head.keep_alive = keeps_alive(head);
  return head;
}

}  // namespace kvasir
