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
constexpr auto kHangupPatience = std::chrono::seconds(1);

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

// What the thread that calls on_hangup shares with the others.
struct Signals::Hangups {
  explicit Hangups(std::function<void()> on_hangup) : call(std::move(on_hangup)) {}

  void run() {
    std::unique_lock lock(mutex);
    for (;;) {
      changed.wait(lock, [this] { return came || stopping; });
      if (stopping) break;
      came = false;
      lock.unlock();
      try {
        call();
      } catch (const std::exception& e) {
        log_error("SIGHUP: {}", e.what());
      }
      lock.lock();
    }
    ended = true;
    changed.notify_all();
  }

  const std::function<void()> call;
  std::mutex mutex;
  std::condition_variable changed;
  bool came = false;      // guarded by mutex: since the last call began
  bool stopping = false;  // guarded by mutex
  bool ended = false;     // guarded by mutex
};

Signals::Signals(std::function<void()> on_hangup)
    : hangups_(on_hangup ? std::make_shared<Hangups>(std::move(on_hangup)) : nullptr) {
  const sigset_t set = watched(hangups_ != nullptr);
  pthread_sigmask(SIG_BLOCK, &set, nullptr);
  if (hangups_) hangup_thread_ = std::thread([hangups = hangups_] { hangups->run(); });
  thread_ = std::thread([this] { run(); });
}

Signals::~Signals() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  pthread_kill(thread_.native_handle(), SIGUSR1);
  thread_.join();
  if (!hangups_) return;
  std::unique_lock lock(hangups_->mutex);
  hangups_->stopping = true;
  hangups_->changed.notify_all();
  const bool ended = hangups_->changed.wait_for(lock, kHangupPatience, [this] { return hangups_->ended; });
  lock.unlock();
  if (ended) {
    hangup_thread_.join();
  } else {
    log_warning("the reload that SIGHUP began has not ended; the process ends without it");
    hangup_thread_.detach();
  }
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
  const sigset_t set = watched(hangups_ != nullptr);
  for (;;) {
    int signal = 0;
    if (sigwait(&set, &signal) != 0) continue;
    if (signal == SIGHUP) {
      const std::lock_guard lock(hangups_->mutex);
      hangups_->came = true;
      hangups_->changed.notify_all();
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
