#include "cluster/transport/peer_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "base/check.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

enum PeerArgument {
  kKind = 2,
  kSelf,
  kSelfEpoch,
  kListen,
  kTester,
  kTesterEpoch,
  kTesterAddress,
  kArguments
};

}  // namespace

int run_peer(int argc, char** argv) {
  KV_CHECK(argc == kArguments, "argc={}", argc);
  for (const TransportKind& kind : transport_kinds()) {
    if (kind.name != argv[kKind]) continue;
    TransportOptions options = options_of(kind, {argv[kSelf], std::stoull(argv[kSelfEpoch])});
    options.listen = argv[kListen];
    const auto transport = take(kind.make(options));
    const PeerId tester{argv[kTester], std::stoull(argv[kTesterEpoch])};
    transport->introduce(tester, argv[kTesterAddress]);
    std::printf("%s\n", transport->address().c_str());
    std::fflush(stdout);
    while (transport->lost().empty()) {
      transport->wait(kNanosPerSecond);
      for (PeerMessage& message : transport->receive()) {
        if (!transport->send(tester, std::move(message.bytes)).ok()) return 0;
      }
    }
    return 0;
  }
  return 1;
}

PeerProcess::PeerProcess(const TransportKind& kind, PeerId self, const PeerId& tester,
                         const std::string& tester_address, const std::string& listen)
    : id_(std::move(self)) {
  const std::string self_epoch = std::to_string(id_.epoch);
  const std::string tester_epoch = std::to_string(tester.epoch);
  std::array<const char*, kArguments + 1> arguments{"peer",
                                                    kPeerFlag,
                                                    kind.name.c_str(),
                                                    id_.instance.c_str(),
                                                    self_epoch.c_str(),
                                                    listen.c_str(),
                                                    tester.instance.c_str(),
                                                    tester_epoch.c_str(),
                                                    tester_address.c_str(),
                                                    nullptr};
  std::array<int, 2> pipe_ends{};
  KV_CHECK(pipe2(pipe_ends.data(), O_CLOEXEC) == 0, "{}", std::strerror(errno));
  pid_ = fork();
  KV_CHECK(pid_ >= 0, "{}", std::strerror(errno));
  if (pid_ == 0) {  // only what is safe between fork and exec
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    dup2(pipe_ends[1], STDOUT_FILENO);
    execv("/proc/self/exe", const_cast<char**>(arguments.data()));
    _exit(127);
  }
  close(pipe_ends[1]);
  char one = 0;
  while (read(pipe_ends[0], &one, 1) == 1 && one != '\n') address_ += one;
  close(pipe_ends[0]);
  KV_CHECK(one == '\n', "the peer did not start");
}

PeerProcess::~PeerProcess() {
  kill_now();
}

void PeerProcess::kill_now() {
  if (pid_ < 0) return;
  signal(SIGKILL);
  waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

void PeerProcess::signal(int number) const {
  KV_CHECK(kill(pid_, number) == 0, "{}", std::strerror(errno));
}

}  // namespace kvasir::test
