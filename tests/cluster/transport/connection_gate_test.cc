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
  Caller(const std::string& address, const std::string& source) {
    const SocketAddress at = take(parse_address(address, Names::kNumeric));
    const SocketAddress from = take(parse_address(source + ":0", Names::kNumeric));
    fd_ = socket(at.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    connected_ = bind(fd_, from.get(), from.length) == 0 && connect(fd_, at.get(), at.length) == 0;
  }
  Caller(Caller&& other) noexcept : fd_(std::exchange(other.fd_, -1)), connected_(other.connected_) {}
  Caller& operator=(Caller&&) = delete;
  ~Caller() {
    if (fd_ >= 0) close(fd_);
  }
  bool connected() const { return connected_; }
  int fd() const { return fd_; }
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
    silent.emplace_back(right->address(), "127.0.0.2");
    ASSERT_TRUE(silent.back().connected());
  }
  // All that are too many are cut off at once; the rest when they have had their time.
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

// A gate, and those that call it from several addresses of this machine.
class CalledGate {
 public:
  explicit CalledGate(GateLimits limits)
      : gate_(
            limits,
            [this](int fd) {
              const std::lock_guard lock(mutex_);
              taken_.push_back(fd);
            },
            [this] {
              const std::lock_guard lock(mutex_);
              ++refused_;
            }) {
    const Status listens = gate_.listen(take(parse_address("127.0.0.1:0", Names::kNumeric)));
    KV_CHECK(listens.ok(), "{}", listens.message());
  }
  ~CalledGate() {
    gate_.stop();
    for (const int fd : taken_) close(fd);
  }
  // A call that is taken; the number of the call.
  size_t call(const std::string& source) {
    callers_.push_back(try_call(source));
    EXPECT_TRUE(eventually([&] {
      const std::lock_guard lock(mutex_);
      return taken_.size() == callers_.size();
    }));
    return callers_.size() - 1;
  }
  Caller try_call(const std::string& source) const {
    return Caller("127.0.0.1:" + std::to_string(gate_.port()), source);
  }
  void make_known(size_t which, const std::string& instance) { gate_.known(address_of(which), instance); }
  void cut_off(size_t which) { gate_.cut_off(address_of(which)); }
  // The calls that are cut off.
  std::vector<size_t> gone() const {
    std::vector<size_t> out;
    for (size_t i = 0; i < callers_.size(); ++i) {
      if (callers_[i].is_cut_off()) out.push_back(i);
    }
    return out;
  }
  bool comes_to(const std::vector<size_t>& those) {
    return eventually([&] {
      const std::lock_guard lock(mutex_);
      return gone() == those && refused_ == those.size() + refused_calls;
    });
  }
  size_t refused_calls = 0;

 private:
  std::string address_of(size_t which) const {
    SocketAddress from;
    from.length = sizeof(from.storage);
    KV_CHECK(getsockname(callers_[which].fd(), reinterpret_cast<sockaddr*>(&from.storage), &from.length) == 0,
             "{}", which);
    return "ipv4:" + join_address(from.host(), from.port());
  }

  std::mutex mutex_;
  std::vector<int> taken_;
  size_t refused_ = 0;
  std::vector<Caller> callers_;
  ConnectionGate gate_;
};

constexpr GateLimits kFew{.connections = 4, .strangers = 2, .patience = kNanosPerSecond * 60};
constexpr GateLimits kMore{.connections = 8, .strangers = 4, .patience = kNanosPerSecond * 60};

TEST(ConnectionGate, NeverPutsKnownOnesOutForStrangers) {
  CalledGate gate(kFew);
  gate.make_known(gate.call("127.0.0.2"), "a");
  gate.call("127.0.0.3");
  gate.call("127.0.0.4");
  EXPECT_TRUE(gate.comes_to({}));
  gate.call("127.0.0.5");  // of three strangers with one each the oldest
  EXPECT_TRUE(gate.comes_to({1}));
  gate.make_known(2, "b");
  gate.make_known(3, "c");
  gate.make_known(gate.call("127.0.0.6"), "d");  // four in all
  const Caller late = gate.try_call("127.0.0.7");
  EXPECT_TRUE(eventually([&] { return late.is_cut_off(); }));
  gate.refused_calls = 1;
  EXPECT_TRUE(gate.comes_to({1}));
}

TEST(ConnectionGate, WhoHasTheMostStrangersGivesUpItsOldest) {
  CalledGate gate(kMore);
  gate.call("127.0.0.2");
  gate.call("127.0.0.3");
  gate.call("127.0.0.2");
  gate.call("127.0.0.2");
  const Caller more = gate.try_call("127.0.0.2");
  EXPECT_TRUE(eventually([&] { return more.is_cut_off(); })) << "its address has the most";
  gate.refused_calls = 1;
  gate.call("127.0.0.3");
  EXPECT_TRUE(gate.comes_to({0}));  // two of each
  gate.call("127.0.0.4");
  EXPECT_TRUE(gate.comes_to({0, 1}));  // 2: two, 3: one, 4: one
  gate.call("127.0.0.5");
  EXPECT_TRUE(gate.comes_to({0, 1, 2}));
}

TEST(ConnectionGate, AnInstanceHasTheNewestTwo) {
  CalledGate gate(kMore);
  for (const char* instance : {"a", "b", "a", "a"}) gate.make_known(gate.call("127.0.0.2"), instance);
  EXPECT_TRUE(gate.comes_to({0}));
  gate.make_known(2, "a");
  gate.make_known(gate.call("127.0.0.3"), "a");
  EXPECT_TRUE(gate.comes_to({0, 2}));
  gate.cut_off(1);
  EXPECT_TRUE(gate.comes_to({0, 1, 2}));
}

}  // namespace
}  // namespace kvasir::test
