// A thread that takes the signals.
#include "apps/serve/signals.h"

#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <exception>
#include <utility>

#include "base/log.h"

namespace kvasir {
namespace {

// What a shell reports for a process that a signal ended.
constexpr int kExitSignalled = 128;

const char* name_of(int signal) {
  return signal == SIGTERM ? "SIGTERM" : "SIGINT";
}

// SIGUSR1 is how the thread itself is ended.
sigset_t watched(bool hangup) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  if (hangup) sigaddset(&set, SIGHUP);
  sigaddset(&set, SIGUSR1);
  return set;
}

}  // namespace

Signals::Signals(std::function<void()> on_hangup) : on_hangup_(std::move(on_hangup)) {
  const sigset_t set = watched(on_hangup_ != nullptr);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  thread_ = std::thread([this] { run(); });
}

Signals::~Signals() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
}

void Signals::ready() {
  const std::lock_guard lock(mutex_);
  ready_ = true;
}

bool Signals::wait_for(std::optional<Nanos> period) {
  std::unique_lock lock(mutex_);
  const auto came = [this] { return count_ > 0; };
  if (period) return changed_.wait_for(lock, std::chrono::nanoseconds(*period), came);
  changed_.wait(lock, came);
  return true;
}

int Signals::count() const {
  const std::lock_guard lock(mutex_);
  return count_;
}

void Signals::run() {
  const sigset_t set = watched(on_hangup_ != nullptr);
  for (;;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    if (signal == SIGHUP) {
      try {
        on_hangup_();
      } catch (const std::exception& e) {
        log_error("SIGHUP: {}", e.what());
      }
      continue;
    }
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    if (signal == SIGUSR1) continue;
    ++count_;
    // Nothing to tidy up while the model loads, and the third signal means it.
    if (!ready_ || count_ >= 3) {
      log_warning("{}{}: ending at once", name_of(signal),
                  ready_ ? ", the third signal" : " before the model was loaded");
      flush_log();
      _exit(kExitSignalled + signal);
    }
    changed_.notify_all();
  }
}

}  // namespace kvasir
