// What the conformance tests of transports are made of.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cluster/transport/cluster_transport.h"
#include "support/cluster_certificates.h"

namespace kvasir::test {

struct TransportKind {
  std::string name;
  Result<std::unique_ptr<ClusterTransport>> (*make)(TransportOptions);
  bool tls = false;
};
void PrintTo(const TransportKind& kind, std::ostream* out);

// Those that the program tests; each program has its own.
std::vector<TransportKind> transport_kinds();

// Waits bounded by this end a test that would hang.
constexpr Nanos kPatience = 20 * kNanosPerSecond;

// The authority of this program, and of the peers that it starts.
const ClusterAuthority& authority();

TransportOptions options_of(const TransportKind& kind, const PeerId& self);

// Waits for so many messages, at most kPatience; fewer where that passes.
std::vector<PeerMessage> take_messages(PeerTransport& from, size_t count);
// Waits for a loss; none where `patience` passes.
std::vector<PeerId> take_lost(PeerTransport& from, Nanos patience = kPatience);
// Looks until `done`, or kPatience; what `done` says then.
bool eventually(const std::function<bool()>& done);

// Bytes that tell their number and size, and whether one of them is wrong.
std::vector<std::byte> numbered(uint32_t number, size_t bytes);
bool is_numbered(const std::vector<std::byte>& message, uint32_t number, size_t bytes);

class TransportTest : public testing::TestWithParam<TransportKind> {
 protected:
  std::unique_ptr<ClusterTransport> make_with(const TransportOptions& options) const;
  std::unique_ptr<ClusterTransport> make(const PeerId& self) const {
    return make_with(options_of(GetParam(), self));
  }
};

// Two endpoints that know each other.
class TransportPairTest : public TransportTest {
 protected:
  void SetUp() override;

  const PeerId left_id_{"left", 11};
  const PeerId right_id_{"right", 22};
  std::unique_ptr<ClusterTransport> left_, right_;
};

}  // namespace kvasir::test
