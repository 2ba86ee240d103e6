// An etcd of a test's own: on the loopback, its data in a temporary folder that is gone when the test ends.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "cluster/tls/cluster_tls.h"

namespace kvasir::test {

// Starting, stopping and the like end the test program if they fail, with etcd's log. Not thread-safe; the
// thread that makes it outlives it, for etcd dies with that thread.
class EtcdProcess {
 public:
  // Whether there is an etcd to start (Debian: etcd-server). Cases skip where there is none.
  static bool installed();

  // Starts it, and waits until it answers. With files, port() speaks TLS and asks for certificates.
  explicit EtcdProcess(ClusterTlsFiles tls = {});
  ~EtcdProcess();
  EtcdProcess(const EtcdProcess&) = delete;
  EtcdProcess& operator=(const EtcdProcess&) = delete;

  // Ends it at once, without its knowledge.
  void kill();
  // Starts it again on its data and port, and waits until it answers. REQUIRES: killed
  void restart();
  // Lets it hang, and go on.
  void freeze();
  void thaw();

  // POSTs to its JSON gateway; the whole answer with its headers, empty if none comes within 2 s.
  std::string post(const std::string& path, const std::string& body) const;

  uint16_t port() const { return port_; }
  // "etcd://127.0.0.1:port"
  std::string address() const;

 private:
  bool start();
  bool answers() const;

  const ClusterTlsFiles tls_;
  std::string folder_;
  uint16_t port_ = 0;
  uint16_t peer_port_ = 0;
  uint16_t plain_port_ = 0;  // without TLS: the same as port_, or one for the test alone
  pid_t pid_ = -1;
};

}  // namespace kvasir::test
