// Addresses as text and as socket addresses.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "base/status.h"

namespace kvasir {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  uint16_t port() const;
  // The numeric host, without brackets.
  std::string host() const;
  // True for 0.0.0.0 and [::], which cannot be a destination.
  bool is_any() const;
  // True for 127.0.0.0/8 and [::1], which only this machine can reach.
  bool is_loopback() const;
};

enum class Names { kNumeric, kLookUp };  // looking up a name may take seconds

// "host:port" or "[IPv6]:port". `family`: AF_INET where IPv6 is of no use. kInvalidArgument: not of that
// form, or the host is unknown.
Result<SocketAddress> parse_address(const std::string& text, Names names, int family = AF_UNSPEC);

// The reverse, with brackets around an IPv6 host.
std::string join_address(const std::string& host, uint16_t port);

}  // namespace kvasir
