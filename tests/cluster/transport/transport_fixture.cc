#include "cluster/transport/transport_fixture.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <thread>

#include "cluster/transport/link_state.h"
#include "cluster/transport/peer_process.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

// Waits end by the time that this process ran: a machine that pauses for a minute loses no message.
class Deadline {
 public:
  explicit Deadline(Nanos patience) : began_(time_.at(clock_.now())), patience_(patience) {}
  Nanos left() { return patience_ - (time_.at(clock_.now()) - began_); }

 private:
  const MonotonicClock clock_;
  RunTime time_{kNanosPerSecond};
  const Nanos began_;
  const Nanos patience_;
};

}  // namespace

void PrintTo(const TransportKind& kind, std::ostream* out) {
  *out << kind.name;
}

const ClusterAuthority& authority() {
  static const ClusterAuthority the_one = [] {
    constexpr const char* kFolder = "KVASIR_TEST_AUTHORITY";
    if (const char* folder = std::getenv(kFolder)) return ClusterAuthority(folder);
    ClusterAuthority made;
    setenv(kFolder, made.path().c_str(), 1);
    return made;
  }();
  return the_one;
}

TransportOptions options_of(const TransportKind& kind, const PeerId& self) {
  TransportOptions options;
  options.self = self;
  if (kind.tls) options.tls = authority().tls(self.instance);
  return options;
}

std::vector<PeerMessage> take_messages(PeerTransport& from, size_t count) {
  std::vector<PeerMessage> all;
  Deadline deadline(kPatience);
  while (all.size() < count && deadline.left() > 0) {
    from.wait(100 * kNanosPerMilli);
    for (PeerMessage& message : from.receive()) all.push_back(std::move(message));
  }
  return all;
}

std::vector<PeerId> take_lost(PeerTransport& from, Nanos patience) {
  Deadline deadline(patience);
  for (;;) {
    std::vector<PeerId> lost = from.lost();
    const Nanos left = deadline.left();
    if (!lost.empty() || left <= 0) return lost;
    from.wait(std::min(left, 10 * kNanosPerMilli));
  }
}

bool eventually(const std::function<bool()>& done) {
  Deadline deadline(kPatience);
  while (!done()) {
    if (deadline.left() <= 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

std::vector<std::byte> numbered(uint32_t number, size_t bytes) {
  std::vector<std::byte> message(bytes);
  uint32_t state = number * 2'654'435'761u + static_cast<uint32_t>(bytes);
  for (size_t i = 0; i < bytes; ++i) {
    if (i % 64 == 0) state = state * 1'664'525u + 1'013'904'223u;
    message[i] = static_cast<std::byte>((state >> 24) + i);
  }
  if (bytes >= sizeof(number)) std::memcpy(message.data(), &number, sizeof(number));
  return message;
}

bool is_numbered(const std::vector<std::byte>& message, uint32_t number, size_t bytes) {
  return message == numbered(number, bytes);
}

std::unique_ptr<ClusterTransport> TransportTest::make_with(const TransportOptions& options) const {
  return take(GetParam().make(options));
}

void TransportPairTest::SetUp() {
  left_ = make(left_id_);
  right_ = make(right_id_);
  left_->introduce(right_id_, right_->address());
  right_->introduce(left_id_, left_->address());
}

}  // namespace kvasir::test

// Before gtest_main's: a program of this suite is also the peers that its tests start.
int main(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[1], kvasir::test::kPeerFlag) == 0)
    return kvasir::test::run_peer(argc, argv);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
