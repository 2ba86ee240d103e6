#include "apps/serve/systemd.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "base/log.h"

namespace kvasir {
namespace {

constexpr int kFirstSocket = 3;  // by the protocol

// A variable that is a number; nothing if it is not there, or is none.
std::optional<int64_t> number_of(const char* variable) {
  const char* text = std::getenv(variable);
  if (text == nullptr) return std::nullopt;
  int64_t number = 0;
  const char* end = text + std::strlen(text);
  const auto [stop, failed] = std::from_chars(text, end, number);
  if (failed != std::errc() || stop != end) return std::nullopt;
  return number;
}

// Whether what was inherited is for this process, not for one that had started it.
bool is_ours(const char* variable) {
  return number_of(variable) == getpid();
}

std::optional<OpenSocket> listening_socket(int fd) {
  int listens = 0;
  socklen_t size = sizeof(listens);
  if (getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0) return std::nullopt;
  sockaddr_storage bound{};
  size = sizeof(bound);
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) return std::nullopt;
  char text[INET6_ADDRSTRLEN] = {};
  if (bound.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(bound);
    inet_ntop(AF_INET, &v4.sin_addr, text, sizeof(text));
    return OpenSocket{fd, text, ntohs(v4.sin_port)};
  }
  if (bound.ss_family == AF_INET6) {
    const auto& v6 = reinterpret_cast<const sockaddr_in6&>(bound);
    inet_ntop(AF_INET6, &v6.sin6_addr, text, sizeof(text));
    return OpenSocket{fd, text, ntohs(v6.sin6_port)};
  }
  return std::nullopt;
}

// An error number, or 0.
int send_to(const char* path, std::string_view state) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t length = std::strlen(path);
  if (length > sizeof(address.sun_path)) return ENAMETOOLONG;
  std::memcpy(address.sun_path, path, length);
  if (path[0] == '@') address.sun_path[0] = '\0';  // a name that no file has
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return errno;
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + length);
  const ssize_t sent = sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                              reinterpret_cast<const sockaddr*>(&address), bytes);
  const int failed = sent < 0 ? errno : 0;
  close(fd);
  return failed;
}

}  // namespace

Result<std::optional<OpenSocket>> inherited_socket() {
  const int64_t sockets = is_ours("LISTEN_PID") ? number_of("LISTEN_FDS").value_or(0) : 0;
  if (sockets <= 0) return std::optional<OpenSocket>();
  if (sockets > 1) {
    return error(
        ErrorCode::kInvalidArgument,
        "{} sockets were inherited (LISTEN_FDS), and only one can be used; leave one ListenStream= in "
        "kvasir.socket",
        sockets);
  }
  const std::optional<OpenSocket> socket = listening_socket(kFirstSocket);
  if (!socket) {
    return error(
        ErrorCode::kInvalidArgument,
        "the inherited socket (LISTEN_FDS) is no TCP socket that listens; write ListenStream= with an "
        "address and a port in kvasir.socket");
  }
  fcntl(socket->fd, F_SETFD, FD_CLOEXEC);
  return socket;
}

void notify_supervisor(std::string_view state) {
  const char* path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr || *path == '\0') return;
  if (const int failed = send_to(path, state); failed != 0) {
    log_warning("the supervisor at NOTIFY_SOCKET {} cannot be told: {}", path, std::strerror(failed));
  }
}

void ServiceState::ready() {
  const std::lock_guard lock(mutex_);
  state_ = State::kReady;
  notify_supervisor("READY=1");
}

void ServiceState::stopping() {
  const std::lock_guard lock(mutex_);
  state_ = State::kStopping;
  notify_supervisor("STOPPING=1");
}

void ServiceState::reload(const std::function<void()>& read_again) {
  bool told = false;
  {
    const std::lock_guard lock(mutex_);
    told = state_ == State::kReady;
    if (told) {
      notify_supervisor(
          fmt::format("RELOADING=1\nMONOTONIC_USEC={}", MonotonicClock().now() / kNanosPerMicro));
    }
  }
  read_again();
  const std::lock_guard lock(mutex_);
  if (told && state_ == State::kReady) notify_supervisor("READY=1");
}

Watchdog::Watchdog() {
  const std::optional<int64_t> microseconds = number_of("WATCHDOG_USEC");
  if (!microseconds || *microseconds <= 0) return;
  if (std::getenv("WATCHDOG_PID") != nullptr && !is_ours("WATCHDOG_PID")) return;
  period_ = *microseconds * kNanosPerMicro / 2;
}

void Watchdog::beat() {
  if (!period_ || clock_.now() < next_) return;
  next_ = clock_.now() + *period_ / 2;
  notify_supervisor("WATCHDOG=1");
}

}  // namespace kvasir
