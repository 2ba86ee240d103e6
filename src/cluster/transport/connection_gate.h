// Accepts the connections of peers, and bounds those that have not shown whose they are.
#pragma once

#include <poll.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/transport/socket_address.h"

namespace kvasir {

// Each connection takes two descriptors: they use half of those of the process at most.
struct GateLimits {
  size_t connections = 1024;
  // Of these, so many may be strangers' at one time, and half of all at most. Where there are more, the
  // address that has the most of them gives its oldest up, or is the newcomer's, which is refused.
  size_t strangers = 256;
  // Known ones of one instance: a newer one puts the oldest out.
  size_t of_one = 2;
  // So long a connection may take until known().
  Nanos patience = 3 * kNanosPerSecond;
};

// Thread-safe; has a thread of its own.
class ConnectionGate {
 public:
  // `take` gets each connection's descriptor, and owns it; `refused` is told of each that is cut off here.
  // Both are called on the gate's thread.
  ConnectionGate(GateLimits limits, std::function<void(int fd)> take, std::function<void()> refused);
  ~ConnectionGate();

  // Accepts nothing from now on, and calls neither. Connections that were taken go on. A second call does
  // nothing.
  void stop();

  // Call once. kIo: the address cannot be listened on.
  Status listen(const SocketAddress& at);
  uint16_t port() const { return port_; }

  // The connection from this address ("ipv4:10.0.0.1:7", as gRPC writes it) has shown that it is this
  // instance's.
  void known(const std::string& from, const std::string& instance);
  // Ends it. Does nothing where it has ended.
  void cut_off(const std::string& from);

 private:
  struct Connection {
    int fd;  // a duplicate
    std::string from;
    std::string source;  // the host, or the network of an IPv6 host
    Nanos accepted;
    std::string instance = {};  // whose it is; empty: a stranger's
    bool cut_off = false;
    bool is_stranger() const { return instance.empty(); }
  };
  using Connections = std::list<Connection>;

  void run();
  void wait(std::vector<pollfd>& polled);
  void accept_one();
  void look_after(const std::vector<pollfd>& polled);
  // Whether there is room for one more of this source.
  bool make_room(const std::string& source);
  // Cuts it off.
  void refuse(Connections::iterator connection);

  const GateLimits limits_;
  const std::function<void(int)> take_;
  const std::function<void()> refused_;
  const MonotonicClock clock_;
  int listener_ = -1;
  int wake_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  bool listens_ = true;  // false: nothing can be accepted, for a moment

  std::mutex mutex_;         // guards what follows
  Connections connections_;  // in the order in which they came

  std::thread thread_;
};

}  // namespace kvasir
