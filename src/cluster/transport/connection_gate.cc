#include "cluster/transport/connection_gate.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/file.h"
#include "base/heap.h"

namespace kvasir {
namespace {

constexpr int kPeriodMs = 100;

// "10.0.0.1:7", "[fe80::1]:7"
std::string text_of(SocketAddress address) {
  if (address.storage.ss_family == AF_INET6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address.storage);
    if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
      sockaddr_in v4{};
      v4.sin_family = AF_INET;
      v4.sin_port = v6.sin6_port;
      std::copy_n(&v6.sin6_addr.s6_addr[12], sizeof(v4.sin_addr), reinterpret_cast<uint8_t*>(&v4.sin_addr));
      reinterpret_cast<sockaddr_in&>(address.storage) = v4;
      address.length = sizeof(v4);
    }
  }
  return join_address(address.host(), address.port());
}

// The same from gRPC's form, which has a scheme, and brackets and '%' as in a URI.
std::string without_escapes(const std::string& uri) {
  std::string out;
  for (size_t i = uri.find(':') + 1; i < uri.size(); ++i) {
    const std::string escape = uri.substr(i, 3);
    const char plain = escape == "%5B" ? '[' : escape == "%5D" ? ']' : escape == "%25" ? '%' : '\0';
    out += plain != '\0' ? plain : uri[i];
    if (plain != '\0') i += 2;
  }
  return out;
}

}  // namespace

ConnectionGate::ConnectionGate(GateLimits limits, std::function<void(int)> take,
                               std::function<void()> refused)
    : limits_(limits), take_(std::move(take)), refused_(std::move(refused)) {}

void ConnectionGate::stop() {
  stop_ = true;
  if (wake_ >= 0) eventfd_write(wake_, 1);
  if (thread_.joinable()) thread_.join();
}

ConnectionGate::~ConnectionGate() {
  stop();
  for (const Connection& c : connections_) close(c.fd);
  if (listener_ >= 0) close(listener_);
  if (wake_ >= 0) close(wake_);
}

Status ConnectionGate::listen(const SocketAddress& at) {
  listener_ = socket(at.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  wake_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  const int on = 1;
  SocketAddress bound;
  bound.length = sizeof(bound.storage);
  if (listener_ < 0 || wake_ < 0 ||
      // Else the port of a process that was killed is taken for a minute.
      setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
      bind(listener_, at.get(), at.length) != 0 || ::listen(listener_, SOMAXCONN) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&bound.storage), &bound.length) != 0) {
    return error(ErrorCode::kIo, "{}", system_reason(errno));
  }
  port_ = bound.port();
  thread_ = std::thread([this] { run(); });
  return {};
}

void ConnectionGate::known(const std::string& from) {
  const std::string address = without_escapes(from);
  const std::lock_guard lock(mutex_);
  for (Connection& c : connections_) c.known = c.known || c.from == address;
}

void ConnectionGate::run() {
  const WaitsForMemory patient;
  std::vector<pollfd> polled;
  while (!stop_) {
    wait(polled);
    if (stop_) return;
    look_after(polled);
    listens_ = true;
    if ((polled[0].revents & POLLIN) != 0) accept_one();
  }
}

void ConnectionGate::wait(std::vector<pollfd>& polled) {
  polled = {{listens_ ? listener_ : -1, POLLIN, 0}, {wake_, POLLIN, 0}};
  {
    const std::lock_guard lock(mutex_);
    for (const Connection& c : connections_) polled.push_back({c.fd, POLLRDHUP, 0});
  }
  poll(polled.data(), polled.size(), kPeriodMs);
}

// Only this thread adds and removes connections, so that they are still those that were polled.
void ConnectionGate::look_after(const std::vector<pollfd>& polled) {
  const std::lock_guard lock(mutex_);
  const Nanos now = clock_.now();
  auto next = polled.begin() + 2;
  for (auto it = connections_.begin(); it != connections_.end() && next != polled.end(); ++next) {
    const auto connection = it++;
    if (next->revents != 0) {
      close(connection->fd);
      connections_.erase(connection);
    } else if (!connection->known && now - connection->accepted > limits_.patience) {
      refuse(connection);
    }
  }
}

void ConnectionGate::refuse(Connections::iterator connection) {
  shutdown(connection->fd, SHUT_RDWR);
  close(connection->fd);
  connections_.erase(connection);
  refused_();
}

// Whether there is room for one more.
bool ConnectionGate::make_room() {
  const auto is_stranger = [](const Connection& c) { return !c.known; };
  const auto strangers =
      static_cast<size_t>(std::count_if(connections_.begin(), connections_.end(), is_stranger));
  if (strangers < limits_.strangers && connections_.size() < limits_.connections) return true;
  const auto oldest = std::find_if(connections_.begin(), connections_.end(), is_stranger);
  if (oldest == connections_.end()) return false;
  refuse(oldest);
  return true;
}

void ConnectionGate::accept_one() {
  SocketAddress from;
  from.length = sizeof(from.storage);
  const int fd = accept4(listener_, reinterpret_cast<sockaddr*>(&from.storage), &from.length,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    listens_ = errno != EMFILE && errno != ENFILE;
    return;
  }
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  {
    const std::lock_guard lock(mutex_);
    const int own = make_room() ? fcntl(fd, F_DUPFD_CLOEXEC, 0) : -1;
    if (own < 0) {
      close(fd);
      return refused_();
    }
    connections_.push_back({own, text_of(from), clock_.now()});
  }
  take_(fd);
}

}  // namespace kvasir
