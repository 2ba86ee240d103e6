// Servers on the loopback that misbehave: a proxy that can be cut, and one that talks nonsense.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

namespace kvasir::test {

// Passes connections on to a port of the loopback. Thread-safe.
class FaultyProxy {
 public:
  explicit FaultyProxy(uint16_t to);
  ~FaultyProxy();

  uint16_t port() const { return port_; }
  // From now on nothing passes, and no end is told: connections hang, new ones too.
  void cut() { cut_ = true; }
  // Every connection of before is closed; new ones pass again.
  void heal();

 private:
  void run();

  const uint16_t to_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> cut_{false};
  std::atomic<bool> reset_{false};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// What RudeServer does with a request.
enum class Manners {
  kAnswerAndClose,
  kAnswerAndStay,
  kDribble,  // the answer, over and over, a byte every few milliseconds
};

// Answers every request with the same bytes. Thread-safe.
class RudeServer {
 public:
  RudeServer(std::string answer, Manners manners);
  ~RudeServer();

  uint16_t port() const { return port_; }

 private:
  void run();

  const std::string answer_;
  const Manners manners_;
  int listener_ = -1;
  uint16_t port_ = 0;
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// A port of the loopback without a listener.
uint16_t dead_port();

}  // namespace kvasir::test
