// A client over a raw socket.
#include "server/http_client.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace kvasir::test {

HttpClient::HttpClient(uint16_t port, int receive_buffer_bytes, const char* from) {
  fd_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  KV_CHECK(fd_ >= 0, "no socket");
  if (receive_buffer_bytes > 0) {
    ::setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer_bytes, sizeof(receive_buffer_bytes));
  }
  if (from != nullptr) {
    sockaddr_in local{};
    local.sin_family = AF_INET;
    KV_CHECK(::inet_pton(AF_INET, from, &local.sin_addr) == 1, "{} is no address", from);
    KV_CHECK(::bind(fd_, reinterpret_cast<sockaddr*>(&local), sizeof(local)) == 0, "cannot bind {}", from);
  }
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  KV_CHECK(::connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0,
           "cannot connect to port {}", port);
}

HttpClient::~HttpClient() {
  close();
}

void HttpClient::close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void HttpClient::shutdown_send() {
  ::shutdown(fd_, SHUT_WR);
}

bool HttpClient::send(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return true;
}

bool HttpClient::fill(int timeout_ms) {
  pollfd p{fd_, POLLIN, 0};
  if (::poll(&p, 1, timeout_ms) <= 0) return false;
  char bytes[65536];
  const ssize_t n = ::recv(fd_, bytes, sizeof(bytes), 0);
  if (n < 0 && errno == ECONNRESET) was_reset_ = true;
  if (n <= 0) return false;
  has_received_ = true;
  buffer_.append(bytes, static_cast<size_t>(n));
  return true;
}

bool HttpClient::need(size_t bytes) {
  while (buffer_.size() < bytes) {
    if (!fill()) return false;
  }
  return true;
}

std::optional<std::string> HttpClient::line() {
  size_t end;
  while ((end = buffer_.find("\r\n")) == std::string::npos) {
    if (!fill()) return std::nullopt;
  }
  std::string out = buffer_.substr(0, end);
  buffer_.erase(0, end + 2);
  return out;
}

std::optional<HttpAnswer> HttpClient::receive(bool head_only) {
  HttpAnswer answer;
  const auto first = line();
  if (!first || first->size() < 12) return std::nullopt;
  answer.status = std::atoi(first->c_str() + 9);
  for (;;) {
    const auto header = line();
    if (!header) return std::nullopt;
    if (header->empty()) break;
    const size_t colon = header->find(": ");
    if (colon == std::string::npos) return std::nullopt;
    std::string name = header->substr(0, colon);
    std::transform(name.begin(), name.end(), name.begin(),
                   [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
    answer.headers[name] = header->substr(colon + 2);
  }
  if (answer.status == 100 || answer.status == 204 || answer.status == 304 || head_only) return answer;
  if (const auto coding = answer.headers.find("transfer-encoding");
      coding != answer.headers.end() && coding->second == "chunked") {
    for (;;) {
      const auto size_line = line();
      if (!size_line) return std::nullopt;
      const size_t size = std::strtoul(size_line->c_str(), nullptr, 16);
      if (!need(size + 2)) return std::nullopt;
      answer.body += buffer_.substr(0, size);
      buffer_.erase(0, size + 2);
      if (size == 0) return answer;
    }
  }
  if (answer.headers.count("content-length") == 0) {
    answer.body = receive_all();
    return answer;
  }
  const size_t length = std::strtoul(answer.headers["content-length"].c_str(), nullptr, 10);
  if (!need(length)) return std::nullopt;
  answer.body = buffer_.substr(0, length);
  buffer_.erase(0, length);
  return answer;
}

bool HttpClient::receive_until(std::string_view text, int times) {
  size_t from = 0;
  for (;;) {
    const size_t at = buffer_.find(text, from);
    if (at != std::string::npos) {
      if (--times == 0) return true;
      from = at + text.size();
      continue;
    }
    // What has no match yet may hold its beginning.
    from = std::max(from, buffer_.size() - std::min(buffer_.size(), text.size() - 1));
    if (!fill()) return false;
  }
}

std::string HttpClient::receive_all() {
  while (fill()) {
  }
  return std::exchange(buffer_, {});
}

bool HttpClient::closed_within(int ms) {
  pollfd p{fd_, POLLIN, 0};
  if (::poll(&p, 1, ms) <= 0) return false;
  char byte;
  return ::recv(fd_, &byte, 1, MSG_PEEK) <= 0;
}

std::string get(std::string_view path, std::string_view extra_headers) {
  return fmt::format("GET {} HTTP/1.1\r\nHost: localhost\r\n{}\r\n", path, extra_headers);
}

std::string post(std::string_view path, std::string_view body, std::string_view extra_headers) {
  return fmt::format(
      "POST {} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n"
      "{}\r\n{}",
      path, body.size(), extra_headers, body);
}

std::vector<std::string> events(std::string_view stream) {
  std::vector<std::string> out;
  size_t begin = 0;
  while (begin < stream.size()) {
    size_t end = stream.find("\n\n", begin);
    if (end == std::string_view::npos) end = stream.size();
    std::string_view event = stream.substr(begin, end - begin);
    if (event.starts_with("event: ")) event.remove_prefix(std::min(event.find('\n') + 1, event.size()));
    if (event.starts_with("data: ")) out.emplace_back(event.substr(6));
    begin = end + 2;
  }
  return out;
}

}  // namespace kvasir::test
