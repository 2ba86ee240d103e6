#include "cluster/transport/socket_address.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <charconv>
#include <memory>

namespace kvasir {
namespace {

const sockaddr_in& as_v4(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in&>(storage);
}
const sockaddr_in6& as_v6(const sockaddr_storage& storage) {
  return reinterpret_cast<const sockaddr_in6&>(storage);
}

}  // namespace

uint16_t SocketAddress::port() const {
  return ntohs(storage.ss_family == AF_INET6 ? as_v6(storage).sin6_port : as_v4(storage).sin_port);
}

std::string SocketAddress::host() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool v6 = storage.ss_family == AF_INET6;
  const void* from = v6 ? static_cast<const void*>(&as_v6(storage).sin6_addr)
                        : static_cast<const void*>(&as_v4(storage).sin_addr);
  if (!inet_ntop(v6 ? AF_INET6 : AF_INET, from, text.data(), text.size())) return "";
  return text.data();
}

bool SocketAddress::is_any() const {
  if (storage.ss_family == AF_INET6) return IN6_IS_ADDR_UNSPECIFIED(&as_v6(storage).sin6_addr) != 0;
  return as_v4(storage).sin_addr.s_addr == htonl(INADDR_ANY);
}

bool SocketAddress::is_loopback() const {
  if (storage.ss_family == AF_INET6) return IN6_IS_ADDR_LOOPBACK(&as_v6(storage).sin6_addr) != 0;
  return ntohl(as_v4(storage).sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

Result<SocketAddress> parse_address(const std::string& text, Names names, int family) {
  const Status bad = error(ErrorCode::kInvalidArgument, "'{}' is no address: write host:port", text);
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon == 0) return bad;
  std::string host = text.substr(0, colon);
  const std::string port = text.substr(colon + 1);
  if (host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string::npos) {
    return bad;
  }
  uint16_t number = 0;
  const auto [end, code] = std::from_chars(port.data(), port.data() + port.size(), number);
  if (host.empty() || code != std::errc() || end != port.data() + port.size()) return bad;
  addrinfo hints{};
  hints.ai_family = family;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE | (names == Names::kNumeric ? AI_NUMERICHOST : 0);
  addrinfo* found = nullptr;
  if (const int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); failed != 0) {
    return error(ErrorCode::kInvalidArgument, "'{}' is no address: {}", text, gai_strerror(failed));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> holder(found, &freeaddrinfo);
  SocketAddress address;
  if (found->ai_addrlen > sizeof(address.storage)) return bad;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  return address;
}

std::string join_address(const std::string& host, uint16_t port) {
  return host.find(':') == std::string::npos ? fmt::format("{}:{}", host, port)
                                             : fmt::format("[{}]:{}", host, port);
}

}  // namespace kvasir
