// What systemd and a service tell each other, by their documented protocols (sd_listen_fds(3), sd_notify(3),
// sd_watchdog_enabled(3)), without systemd's library. Another supervisor may speak them, too.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

struct OpenSocket {
  int fd;            // it listens
  std::string host;  // the address that it listens on
  uint16_t port;
};

// The socket that the supervisor has opened for this process; nothing: there is none. kInvalidArgument:
// there are several, or it is no TCP socket that listens. The descriptor is the caller's, and the second call
// returns the same one.
Result<std::optional<OpenSocket>> inherited_socket();

// Tells the supervisor lines such as "READY=1". Does nothing where none listens.
void notify_supervisor(std::string_view state);

// The life of the service as the supervisor is told it. Thread-safe: whatever reload() meets, what is said
// last is what holds.
class ServiceState {
 public:
  void ready();     // READY=1
  void stopping();  // STOPPING=1
  // Runs `read_again`, within RELOADING=1 and READY=1. Before ready() and after stopping() it says nothing: a
  // READY=1 would be wrong.
  void reload(const std::function<void()>& read_again);

 private:
  enum class State : uint8_t { kStarting, kReady, kStopping };

  std::mutex mutex_;  // also of the order in which things are said
  State state_ = State::kStarting;
};

// Tells the supervisor that the process still works, as often as it wants to hear that.
class Watchdog {
 public:
  Watchdog();
  // How often beat() is to be called; nothing: the supervisor does not watch this process.
  std::optional<Nanos> period() const { return period_; }
  // Tells it, if it watches. Calls that come sooner than after half a period say nothing.
  void beat();

 private:
  const MonotonicClock clock_;
  std::optional<Nanos> period_;  // half of the time after which the supervisor ends the process
  Nanos next_ = 0;
};

}  // namespace kvasir
