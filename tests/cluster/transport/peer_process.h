// A peer in a process of its own, which a test can kill, stop and start again. It sends back what it is sent.
#pragma once

#include <sys/types.h>

#include <string>

#include "cluster/transport/transport_fixture.h"

namespace kvasir::test {

constexpr const char* kPeerFlag = "--peer";

// The program of the peer: what main() runs where its first argument is kPeerFlag.
int run_peer(int argc, char** argv);

class PeerProcess {
 public:
  // Starts a peer that knows `tester`, and waits until it listens. It dies with the tester's process.
  PeerProcess(const TransportKind& kind, PeerId self, const PeerId& tester, const std::string& tester_address,
              const std::string& listen = "127.0.0.1:0");
  ~PeerProcess();
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;

  const PeerId& id() const { return id_; }
  const std::string& address() const { return address_; }
  // kill -9; waits until it is gone.
  void kill_now();
  void signal(int number) const;

 private:
  const PeerId id_;
  pid_t pid_ = -1;
  std::string address_;
};

}  // namespace kvasir::test
