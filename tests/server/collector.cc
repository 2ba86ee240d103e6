#include "server/collector.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include "base/check.h"

namespace kvasir::test {
Collector::Collector(Answer answer) : answer_(std::move(answer)) {
  listening_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  auto* any = reinterpret_cast<sockaddr*>(&address);
  KV_CHECK(bind(listening_, any, size) == 0 && listen(listening_, 16) == 0 &&
               getsockname(listening_, any, &size) == 0 && pipe(stop_) == 0,
           "no socket for the collector");
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { run(); });
}

Collector::~Collector() {
  KV_CHECK(write(stop_[1], "x", 1) == 1, "the pipe is broken");
  thread_.join();
  for (const int fd : hanging_) close(fd);
  for (const int fd : {listening_, stop_[0], stop_[1]}) close(fd);
}

std::string Collector::url() const {
  return fmt::format("http://127.0.0.1:{}", port_);
}

void Collector::run() {
  for (;;) {
    pollfd events[2] = {{listening_, POLLIN, 0}, {stop_[0], POLLIN, 0}};
    poll(events, 2, -1);
    if (events[1].revents != 0) return;
    const int connection = accept(listening_, nullptr, nullptr);
    if (connection >= 0) serve(connection);
  }
}

void Collector::serve(int connection) {
  std::string text;
  size_t head = std::string::npos, length = 0;
  char bytes[64 * 1024];
  while (head == std::string::npos || text.size() < head + length) {
    const ssize_t n = recv(connection, bytes, sizeof(bytes), 0);
    if (n <= 0) {
      close(connection);
      return;
    }
    text.append(bytes, static_cast<size_t>(n));
    const size_t end = text.find("\r\n\r\n");
    if (head != std::string::npos || end == std::string::npos) continue;
    head = end + 4;
    const size_t at = text.find("Content-Length: ");
    if (at < head) length = std::strtoull(text.c_str() + at + 16, nullptr, 10);
  }
  size_t index = 0;
  {
    const std::lock_guard lock(mutex_);
    index = heads_.size();
    heads_.push_back(text.substr(0, head));
    bodies_.push_back(text.substr(head));
  }
  const std::string answer = answer_ ? answer_(index) : http_answer("200 OK");
  if (answer.empty()) {
    hanging_.push_back(connection);
    return;
  }
  if (send(connection, answer.data(), answer.size(), MSG_NOSIGNAL) < 0) index = 0;
  close(connection);
}

std::vector<std::string> Collector::heads() const {
  const std::lock_guard lock(mutex_);
  return heads_;
}

std::vector<nlohmann::json> Collector::bodies() const {
  const std::lock_guard lock(mutex_);
  std::vector<nlohmann::json> parsed;
  for (const std::string& body : bodies_) parsed.push_back(nlohmann::json::parse(body));
  return parsed;
}

std::vector<nlohmann::json> Collector::spans() const {
  std::vector<nlohmann::json> all;
  for (const nlohmann::json& body : bodies()) {
    for (const nlohmann::json& span : body["resourceSpans"][0]["scopeSpans"][0]["spans"]) all.push_back(span);
  }
  return all;
}

bool Collector::wait_posts(size_t count) const {
  return eventually([&] { return heads().size() >= count; });
}

bool Collector::wait_spans(size_t count) const {
  return eventually([&] { return spans().size() >= count; });
}

bool eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return condition();
}

std::string http_answer(const std::string& status, const std::string& body, const std::string& headers) {
  return fmt::format("HTTP/1.1 {}\r\n{}Content-Length: {}\r\nConnection: close\r\n\r\n{}", status, headers,
                     body.size(), body);
}

nlohmann::json attribute(const nlohmann::json& of, const std::string& name) {
  for (const nlohmann::json& a : of["attributes"]) {
    if (a["key"] == name) return a["value"].begin().value();
  }
  return nullptr;
}

}  // namespace kvasir::test
