#include "cluster/membership/faulty_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <array>
#include <utility>
#include <vector>

#include "base/check.h"

namespace kvasir::test {
namespace {

constexpr int kTickMs = 5;

sockaddr_in on_loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

std::pair<int, uint16_t> listen_on_loopback() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = on_loopback(0);
  socklen_t size = sizeof(address);
  KV_CHECK(::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 && ::listen(fd, 64) == 0,
           "cannot listen");
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return {fd, ntohs(address.sin_port)};
}

bool readable(int fd, int timeout_ms) {
  pollfd p{fd, POLLIN, 0};
  return ::poll(&p, 1, timeout_ms) > 0;
}

// False at the end of the connection.
bool pass(int from, int to) {
  std::array<char, 65536> bytes{};
  const ssize_t n = ::recv(from, bytes.data(), bytes.size(), 0);
  return n > 0 && ::send(to, bytes.data(), static_cast<size_t>(n), MSG_NOSIGNAL) == n;
}

}  // namespace

FaultyProxy::FaultyProxy(uint16_t to) : to_(to) {
  std::tie(listener_, port_) = listen_on_loopback();
  thread_ = std::thread([this] { run(); });
}

FaultyProxy::~FaultyProxy() {
  stop_ = true;
  thread_.join();
  ::close(listener_);
}

void FaultyProxy::heal() {
  reset_ = true;
  cut_ = false;
}

void FaultyProxy::run() {
  std::vector<std::pair<int, int>> pairs;
  const auto drop = [&](size_t i) {
    ::close(pairs[i].first);
    ::close(pairs[i].second);
    pairs.erase(pairs.begin() + static_cast<ptrdiff_t>(i));
  };
  while (!stop_) {
    if (reset_.exchange(false)) {
      while (!pairs.empty()) drop(0);
    }
    if (cut_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(kTickMs));
      continue;
    }
    std::vector<pollfd> polled{{listener_, POLLIN, 0}};
    for (const auto& [a, b] : pairs) {
      polled.push_back({a, POLLIN, 0});
      polled.push_back({b, POLLIN, 0});
    }
    ::poll(polled.data(), polled.size(), kTickMs);
    if (cut_) continue;
    for (size_t i = pairs.size(); i-- > 0;) {
      const auto [a, b] = pairs[i];
      if ((polled[1 + 2 * i].revents && !pass(a, b)) || (polled[2 + 2 * i].revents && !pass(b, a))) drop(i);
    }
    if (polled[0].revents) {
      const int a = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      const int b = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
      const sockaddr_in address = on_loopback(to_);
      pairs.emplace_back(a, b);
      if (::connect(b, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
        drop(pairs.size() - 1);
      }
    }
  }
  while (!pairs.empty()) drop(0);
}

RudeServer::RudeServer(std::string answer, Manners manners) : answer_(std::move(answer)), manners_(manners) {
  std::tie(listener_, port_) = listen_on_loopback();
  thread_ = std::thread([this] { run(); });
}

RudeServer::~RudeServer() {
  stop_ = true;
  thread_.join();
  ::close(listener_);
}

void RudeServer::run() {
  struct Open {
    int fd;
    bool asked;
    size_t sent;
  };
  std::vector<Open> open;
  while (!stop_) {
    if (readable(listener_, kTickMs)) {
      open.push_back({::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC), false, 0});
      const timeval bound{1, 0};  // a client that does not read is not waited for
      ::setsockopt(open.back().fd, SOL_SOCKET, SO_SNDTIMEO, &bound, sizeof(bound));
    }
    for (size_t i = open.size(); i-- > 0;) {
      Open& o = open[i];
      bool close = false;
      if (readable(o.fd, 0)) {
        std::array<char, 65536> bytes{};
        close = ::recv(o.fd, bytes.data(), bytes.size(), 0) <= 0;
        if (!close && manners_ != Manners::kDribble) {
          ::send(o.fd, answer_.data(), answer_.size(), MSG_NOSIGNAL);
          close = manners_ == Manners::kAnswerAndClose;
        }
        o.asked = true;
      }
      if (o.asked && manners_ == Manners::kDribble) {
        close = close || ::send(o.fd, &answer_[o.sent++ % answer_.size()], 1, MSG_NOSIGNAL) != 1;
      }
      if (close) {
        ::close(o.fd);
        open.erase(open.begin() + static_cast<ptrdiff_t>(i));
      }
    }
  }
  for (const Open& o : open) ::close(o.fd);
}

uint16_t dead_port() {
  const auto [fd, port] = listen_on_loopback();
  ::close(fd);
  return port;
}

}  // namespace kvasir::test
