#include "cluster/transport/connection_gate.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <unordered_map>
#include <utility>

#include "base/file.h"
#include "base/heap.h"

namespace kvasir {
namespace {

constexpr int kPeriodMs = 100;

GateLimits possible(GateLimits limits) {
  rlimit files{};
  if (getrlimit(RLIMIT_NOFILE, &files) == 0)
    limits.connections = std::min<size_t>(limits.connections, files.rlim_cur / 4);
  limits.strangers = std::min(limits.strangers, limits.connections / 2);
  return limits;
}

// An IPv4 address in IPv6's form in its own.
SocketAddress plain(SocketAddress address) {
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
  return address;
}

// A host with an IPv6 address usually has the 2^64 of its network.
std::string source_of(const SocketAddress& address) {
  if (address.storage.ss_family != AF_INET6) return address.host();
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  return {reinterpret_cast<const char*>(v6.sin6_addr.s6_addr), 8};
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
    : limits_(possible(limits)), take_(std::move(take)), refused_(std::move(refused)) {}

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

// The gate's thread sees the end of what is shut down here, and removes it.
void ConnectionGate::known(const std::string& from, const std::string& instance) {
  const std::string address = without_escapes(from);
  const std::lock_guard lock(mutex_);
  size_t of_it = 0;
  for (auto c = connections_.rbegin(); c != connections_.rend(); ++c) {
    if (c->from == address) c->instance = instance;
    if (c->instance != instance || c->cut_off || ++of_it <= limits_.of_one) continue;
    c->cut_off = true;
    shutdown(c->fd, SHUT_RDWR);
  }
}

void ConnectionGate::cut_off(const std::string& from) {
  const std::string address = without_escapes(from);
  const std::lock_guard lock(mutex_);
  for (Connection& c : connections_) {
    if (c.from != address || c.cut_off) continue;
    c.cut_off = true;
    shutdown(c.fd, SHUT_RDWR);
  }
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
    const bool late = connection->is_stranger() && now - connection->accepted > limits_.patience;
    if (connection->cut_off || (late && next->revents == 0)) {
      refuse(connection);
    } else if (next->revents != 0) {
      close(connection->fd);
      connections_.erase(connection);
    }
  }
}

void ConnectionGate::refuse(Connections::iterator connection) {
  shutdown(connection->fd, SHUT_RDWR);
  close(connection->fd);
  connections_.erase(connection);
  refused_();
}

bool ConnectionGate::make_room(const std::string& source) {
  std::unordered_map<std::string, size_t> strangers;
  size_t all = 0, most = 0;
  for (const Connection& c : connections_) {
    if (!c.is_stranger()) continue;
    ++all;
    most = std::max(most, ++strangers[c.source]);
  }
  if (all < limits_.strangers && connections_.size() < limits_.connections) return true;
  if (strangers[source] == most) return false;
  refuse(std::find_if(connections_.begin(), connections_.end(),
                      [&](const Connection& c) { return c.is_stranger() && strangers[c.source] == most; }));
  return true;
}

void ConnectionGate::accept_one() {
  SocketAddress from;
  from.length = sizeof(from.storage);
  const int fd = accept4(listener_, reinterpret_cast<sockaddr*>(&from.storage), &from.length,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    listens_ = errno == EAGAIN || errno == EINTR || errno == ECONNABORTED;
    return;
  }
  from = plain(from);
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  {
    const std::lock_guard lock(mutex_);
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    std::string source = source_of(from);
    if (own < 0 || !make_room(source)) {
      if (own >= 0) close(own);
      close(fd);
      return refused_();
    }
    connections_.push_back({.fd = own,
                            .from = join_address(from.host(), from.port()),
                            .source = std::move(source),
                            .accepted = clock_.now()});
  }
  take_(fd);
}

}  // namespace kvasir
