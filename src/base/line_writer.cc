#include "base/line_writer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <new>
#include <utility>

namespace kvasir {
namespace {

constexpr int kPollMs = 100;
constexpr Nanos kFlushTimeout = kNanosPerSecond;

// Signals are for other threads, and a reader that has left is an error of write(), not a SIGPIPE.
template <typename F>
std::thread thread_without_signals(F run) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread(std::move(run));
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return thread;
}

}  // namespace

LineWriter::LineWriter(int fd) : fd_(fd), thread_(thread_without_signals([this] { run(); })) {}

LineWriter::~LineWriter() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    give_up_at_ = MonotonicClock().now() + kFlushTimeout;
  }
  wake_.notify_all();
  thread_.join();
}

void LineWriter::add(std::string line) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const size_t bytes = line.size();
    try {
      if (waiting_bytes_ + bytes > kMostWaitingBytes) return count_dropped();
      waiting_.push_back(std::move(line));
    } catch (const std::bad_alloc&) {
      return count_dropped();
    }
    waiting_bytes_ += bytes;
    ++added_;
  }
  wake_.notify_all();
}

void LineWriter::flush(Nanos timeout) {
  std::unique_lock lock(mutex_);
  idle_.wait_for(lock, std::chrono::nanoseconds(timeout), [this, last = added_] { return done_ >= last; });
}

void LineWriter::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait(lock, [this] { return stopping_ || !waiting_.empty(); });
    if (waiting_.empty()) return;
    const std::string line = std::move(waiting_.front());
    waiting_.pop_front();
    waiting_bytes_ -= line.size();
    lock.unlock();
    write_line(line);
    lock.lock();
    ++done_;
    idle_.notify_all();
  }
}

// A pipe that polls as writable takes PIPE_BUF bytes at once, so that no write here waits for a reader.
void LineWriter::write_line(std::string_view line) {
  bool begun = false;
  while (!line.empty()) {
    const Nanos give_up_at = give_up_at_;
    if (give_up_at != 0 && MonotonicClock().now() >= give_up_at) break;
    pollfd writable{fd_, POLLOUT, 0};
    if (poll(&writable, 1, kPollMs) <= 0) continue;
    if (torn_ && !begun) {
      torn_ = write(fd_, "\n", 1) != 1;
      if (torn_) break;
      begun = true;
      continue;
    }
    const size_t most = std::min<size_t>(line.size(), PIPE_BUF);
    const ssize_t written = write(fd_, line.data(), most);
    if (written <= 0) break;
    begun = true;
    line.remove_prefix(static_cast<size_t>(written));
    torn_ = !line.empty();
    if (static_cast<size_t>(written) < most) break;  // the disk is full
  }
  if (!line.empty()) count_dropped();
}

}  // namespace kvasir
