// Connections that say nothing, and many of them.
#include "cluster/transport/connection_gate.h"

#include <sys/socket.h>
#include <unistd.h>

#include "cluster/transport/grpc_transport.h"
#include "cluster/transport/transport_fixture.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

class Caller {
 public:
  explicit Caller(const std::string& address) {
    const SocketAddress at = take(parse_address(address, Names::kNumeric));
    fd_ = socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connected_ = connect(fd_, at.get(), at.length) == 0;
  }
  Caller(Caller&& other) noexcept : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  Caller& operator=(Caller&&) = delete;
  ~Caller() {
    if (fd_ >= 0) close(fd_);
  }
  bool connected() const { return connected_; }
  bool is_cut_off() const {
    char byte = 0;
    while (recv(fd_, &byte, 1, MSG_DONTWAIT) > 0) {
    }
    return recv(fd_, &byte, 1, MSG_DONTWAIT) == 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
  }

 private:
  int fd_ = -1;
  bool connected_ = false;
};

size_t cut_off(const std::vector<Caller>& callers) {
  return static_cast<size_t>(
      std::count_if(callers.begin(), callers.end(), [](const Caller& c) { return c.is_cut_off(); }));
}

std::string gate_kind_name(const testing::TestParamInfo<TransportKind>& info) {
  return info.param.name;
}

class Gate : public TransportTest {};
INSTANTIATE_TEST_SUITE_P(All, Gate, testing::ValuesIn(transport_kinds()), gate_kind_name);

// They were 1,024 of those that lock all peers out.
TEST_P(Gate, SilentConnectionsKeepNoPeerOut) {
  const PeerId left_id{"left", 1}, right_id{"right", 2};
  TransportOptions options = options_of(GetParam(), right_id);
  options.gate.patience = kNanosPerSecond;
  const auto right = make_with(options);
  std::vector<Caller> silent;
  for (int i = 0; i < 300; ++i) {
    silent.emplace_back(right->address());
    ASSERT_TRUE(silent.back().connected());
  }
  // All but the newest are cut off at once; the rest when they have had their time.
  EXPECT_TRUE(eventually([&] { return cut_off(silent) >= silent.size() - options.gate.strangers; }));
  const auto left = make(left_id);
  left->introduce(right_id, right->address());
  right->introduce(left_id, left->address());
  ASSERT_TRUE(left->send(right_id, numbered(1, 1000)).ok());
  EXPECT_EQ(take_messages(*right, 1).size(), 1u);
  EXPECT_TRUE(eventually([&] { return cut_off(silent) == silent.size(); }));
  EXPECT_EQ(right->stats().refused_links, silent.size());
  // The peer's connection is known, and stays.
  EXPECT_TRUE(take_lost(*left, 1500 * kNanosPerMilli).empty());
  ASSERT_TRUE(left->send(right_id, numbered(2, 1000)).ok());
  EXPECT_EQ(take_messages(*right, 1).size(), 1u);
}

// Known connections are never put out for strangers.
TEST(ConnectionGate, PutsTheOldestStrangerOut) {
  std::vector<int> taken;
  std::mutex mutex;
  size_t refused = 0;
  ConnectionGate gate(
      {.connections = 4, .strangers = 2, .patience = kNanosPerSecond * 60},
      [&](int fd) {
        const std::lock_guard lock(mutex);
        taken.push_back(fd);
      },
      [&] {
        const std::lock_guard lock(mutex);
        ++refused;
      });
  ASSERT_TRUE(gate.listen(take(parse_address("127.0.0.1:0", Names::kNumeric))).ok());
  const std::string address = "127.0.0.1:" + std::to_string(gate.port());
  const auto count = [&] {
    const std::lock_guard lock(mutex);
    return taken.size();
  };
  std::vector<Caller> callers;
  const auto call = [&] {
    const size_t before = count();
    callers.emplace_back(address);
    ASSERT_TRUE(eventually([&] { return count() == before + 1; }));
  };
  const auto make_known = [&](size_t which) {
    SocketAddress from;
    from.length = sizeof(from.storage);
    ASSERT_EQ(getpeername(taken[which], reinterpret_cast<sockaddr*>(&from.storage), &from.length), 0);
    gate.known("ipv4:" + join_address(from.host(), from.port()));
  };
  call();
  make_known(0);
  call();
  call();
  EXPECT_EQ(cut_off(callers), 0u);
  call();
  EXPECT_FALSE(callers[0].is_cut_off());
  EXPECT_TRUE(eventually([&] { return callers[1].is_cut_off(); }));
  make_known(2);
  make_known(3);
  call();  // four in all
  EXPECT_EQ(cut_off(callers), 1u);
  make_known(4);
  callers.emplace_back(address);
  EXPECT_TRUE(eventually([&] { return callers.back().is_cut_off(); }));
  EXPECT_EQ(cut_off(callers), 2u);
  const std::lock_guard lock(mutex);
  EXPECT_EQ(refused, 2u);
  for (const int fd : taken) close(fd);
}

}  // namespace
}  // namespace kvasir::test
