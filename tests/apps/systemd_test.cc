// The test is the supervisor: it opens the sockets, and reads what it is told.
#include "apps/serve/systemd.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <thread>

namespace kvasir {
namespace {

using ::testing::HasSubstr;

constexpr int kFirst = 3;

class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) { setenv(name, value.c_str(), 1); }
  ~Variable() { unsetenv(name_); }

 private:
  const char* name_;
};

// A socket of `family` on a free port of the loopback interface.
int loopback_socket(int family, bool listens) {
  const int fd = socket(family, SOCK_STREAM, 0);
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  v6.sin6_addr = in6addr_loopback;
  const bool is_v4 = family == AF_INET;
  const int bound = bind(fd, is_v4 ? reinterpret_cast<sockaddr*>(&v4) : reinterpret_cast<sockaddr*>(&v6),
                         is_v4 ? sizeof(v4) : sizeof(v6));
  EXPECT_EQ(bound, 0);
  if (listens) {
    EXPECT_EQ(listen(fd, 1), 0);
  }
  return fd;
}

// Puts a descriptor where the protocol wants the first one, and what was there back.
class Inherited {
 public:
  explicit Inherited(int fd) : before_(fcntl(kFirst, F_DUPFD_CLOEXEC, 10)) {
    dup2(fd, kFirst);
    if (fd != kFirst) close(fd);
  }
  ~Inherited() {
    close(kFirst);
    if (before_ < 0) return;
    dup2(before_, kFirst);
    close(before_);
  }

 private:
  const int before_;  // -1: nothing was there
};

std::string own_pid() {
  return std::to_string(getpid());
}

TEST(InheritedSocket, IsFoundWithItsAddress) {
  for (const int family : {AF_INET, AF_INET6}) {
    const Inherited held(loopback_socket(family, /*listens=*/true));
    const Variable pid("LISTEN_PID", own_pid()), count("LISTEN_FDS", "1");
    const auto found = inherited_socket();
    ASSERT_TRUE(found.ok()) << found.status().message();
    ASSERT_TRUE(found->has_value());
    EXPECT_EQ((*found)->fd, kFirst);
    EXPECT_EQ((*found)->host, family == AF_INET ? "127.0.0.1" : "::1");
    EXPECT_NE((*found)->port, 0);
    EXPECT_EQ(fcntl(kFirst, F_GETFD), FD_CLOEXEC);
  }
}

TEST(InheritedSocket, IsNoneWithoutTheVariablesOrForAnotherProcess) {
  const Inherited held(loopback_socket(AF_INET, /*listens=*/true));
  EXPECT_FALSE(inherited_socket().value().has_value());
  {
    const Variable count("LISTEN_FDS", "1");
    EXPECT_FALSE(inherited_socket().value().has_value());
  }
  const Variable pid("LISTEN_PID", std::to_string(getpid() + 1)), count("LISTEN_FDS", "1");
  EXPECT_FALSE(inherited_socket().value().has_value());
}

TEST(InheritedSocket, MustBeOneThatListens) {
  const Variable pid("LISTEN_PID", own_pid());
  {
    const Inherited held(loopback_socket(AF_INET, /*listens=*/false));
    const Variable count("LISTEN_FDS", "1");
    EXPECT_THAT(inherited_socket().status().message(), HasSubstr("no TCP socket that listens"));
  }
  {
    const Inherited held(loopback_socket(AF_INET, /*listens=*/true));
    const Variable count("LISTEN_FDS", "2");
    EXPECT_THAT(inherited_socket().status().message(), HasSubstr("2 sockets"));
  }
}

// Where the supervisor listens; the name is the process's own, and no file has it.
class Supervisor {
 public:
  Supervisor() : fd_(socket(AF_UNIX, SOCK_DGRAM, 0)) {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    name_.copy(address.sun_path, name_.size());
    address.sun_path[0] = '\0';
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address),
                   static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name_.size())),
              0);
  }
  ~Supervisor() { close(fd_); }
  const std::string& name() const { return name_; }
  // The next message; empty if there is none.
  std::string next() const {
    char text[256];
    const ssize_t size = recv(fd_, text, sizeof(text), MSG_DONTWAIT);
    return size < 0 ? "" : std::string(text, static_cast<size_t>(size));
  }

 private:
  const std::string name_ = "@kvasir-test-" + own_pid();
  const int fd_;
};

TEST(NotifySupervisor, SaysItOnlyWhereOneListens) {
  const Supervisor supervisor;
  notify_supervisor("READY=1");
  EXPECT_EQ(supervisor.next(), "");
  const Variable at("NOTIFY_SOCKET", supervisor.name());
  notify_supervisor("READY=1");
  notify_supervisor("STOPPING=1");
  EXPECT_EQ(supervisor.next(), "READY=1");
  EXPECT_EQ(supervisor.next(), "STOPPING=1");
  EXPECT_EQ(supervisor.next(), "");
}

TEST(NotifySupervisor, WarnsWhereItCannotBeSaid) {
  for (const std::string& path : {std::string("/nonexistent/notify"), "/" + std::string(200, 'n')}) {
    const Variable at("NOTIFY_SOCKET", path);
    testing::internal::CaptureStderr();
    notify_supervisor("READY=1");
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("NOTIFY_SOCKET " + path));
  }
}

std::string word_of(const std::string& message) {
  return message.substr(0, message.find('='));
}

TEST(ServiceState, AReloadIsSaidWhileItServes) {
  const Supervisor supervisor;
  const Variable at("NOTIFY_SOCKET", supervisor.name());
  ServiceState state;
  state.ready();
  EXPECT_EQ(supervisor.next(), "READY=1");
  state.reload([&] { EXPECT_THAT(supervisor.next(), HasSubstr("RELOADING=1\nMONOTONIC_USEC=")); });
  EXPECT_EQ(supervisor.next(), "READY=1");
  EXPECT_EQ(supervisor.next(), "");
}

// READY=1 behind STOPPING=1 would tell the supervisor that the service goes on.
TEST(ServiceState, AReloadThatMeetsTheEndOrTheBeginningSaysNothingWrong) {
  const Supervisor supervisor;
  const Variable at("NOTIFY_SOCKET", supervisor.name());
  ServiceState state;
  state.reload([&] { state.ready(); });
  EXPECT_EQ(supervisor.next(), "READY=1") << "by ready(), not by the reload";
  EXPECT_EQ(supervisor.next(), "");
  state.reload([&] { state.stopping(); });
  EXPECT_EQ(word_of(supervisor.next()), "RELOADING");
  EXPECT_EQ(supervisor.next(), "STOPPING=1");
  EXPECT_EQ(supervisor.next(), "");
  state.reload([] {});
  EXPECT_EQ(supervisor.next(), "");
}

TEST(WatchdogBeats, AtMostOnceInHalfThePeriod) {
  const Supervisor supervisor;
  const Variable at("NOTIFY_SOCKET", supervisor.name());
  const Variable usec("WATCHDOG_USEC", "7200000000"), pid("WATCHDOG_PID", own_pid());
  Watchdog watchdog;
  EXPECT_EQ(watchdog.period(), 3600 * kNanosPerSecond);
  watchdog.beat();
  watchdog.beat();
  EXPECT_EQ(supervisor.next(), "WATCHDOG=1");
  EXPECT_EQ(supervisor.next(), "");

  const Variable short_usec("WATCHDOG_USEC", "4");
  Watchdog often;
  EXPECT_EQ(often.period(), 2 * kNanosPerMicro);
  often.beat();
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  often.beat();
  EXPECT_EQ(supervisor.next(), "WATCHDOG=1");
  EXPECT_EQ(supervisor.next(), "WATCHDOG=1");
}

TEST(WatchdogBeats, NotWhereSystemdDoesNotWatchThisProcess) {
  const Supervisor supervisor;
  const Variable at("NOTIFY_SOCKET", supervisor.name());
  const auto is_quiet = [&] {
    Watchdog watchdog;
    watchdog.beat();
    return !watchdog.period().has_value() && supervisor.next().empty();
  };
  EXPECT_TRUE(is_quiet());
  for (const char* wrong : {"", "0", "-5", "1s"}) {
    const Variable usec("WATCHDOG_USEC", wrong);
    EXPECT_TRUE(is_quiet()) << wrong;
  }
  const Variable usec("WATCHDOG_USEC", "1000000"), pid("WATCHDOG_PID", std::to_string(getpid() + 1));
  EXPECT_TRUE(is_quiet());
}

}  // namespace
}  // namespace kvasir
