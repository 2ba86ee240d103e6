#include "exec/cpu/thread_pool.h"

#include <utility>

#include "base/check.h"
#include "ops/cpu/isa.h"

namespace kvasir {
namespace {

// First a few microseconds of pauses, for threads that run side by side. Then the core is offered to others,
// again and again: when there are fewer cores than runnable threads, the one that is waited for may need this
// very core, and spinning would burn the time slice that it waits for. Sleeping comes last, since waking
// costs tens of microseconds.
constexpr int kSpins = 100;
constexpr int kYields = 200;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

void Barrier::wait() {
  const uint32_t round = round_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1, std::memory_order_release);
    round_.notify_all();
    return;
  }
  for (int i = 0; i < kSpins; ++i) {
    if (round_.load(std::memory_order_acquire) != round) return;
    pause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (round_.load(std::memory_order_acquire) != round) return;
    std::this_thread::yield();
  }
  while (round_.load(std::memory_order_acquire) == round) round_.wait(round, std::memory_order_acquire);
}

ThreadPool::ThreadPool(int threads) : barrier_(threads) {
  KV_CHECK(threads > 0, "threads={}", threads);
  for (int i = 0; i < threads; ++i) threads_.emplace_back([this, i] { run(i); });
}

ThreadPool::~ThreadPool() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  start_.notify_all();
  for (std::thread& t : threads_) t.join();
}

void ThreadPool::start(Job job) {
  std::lock_guard lock(mutex_);
  KV_CHECK(running_ == 0, "a job runs on {} threads", running_);
  job_ = std::move(job);
  running_ = size();
  ++number_;
  start_.notify_all();
}

void ThreadPool::join() {
  std::unique_lock lock(mutex_);
  done_.wait(lock, [&] { return running_ == 0; });
}

void ThreadPool::run(int index) {
  ops::set_flush_to_zero();
  uint64_t seen = 0;
  for (;;) {
    Job* job = nullptr;
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stopping_ || number_ != seen; });
      if (stopping_) return;
      seen = number_;
      job = &job_;
    }
    (*job)({index, size(), barrier_});
    std::lock_guard lock(mutex_);
    if (--running_ == 0) done_.notify_all();
  }
}

}  // namespace kvasir
