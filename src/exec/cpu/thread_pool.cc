#include "exec/cpu/thread_pool.h"

#include <climits>
#include <span>
#include <utility>

#include "base/affinity.h"
#include "base/check.h"
#include "ops/cpu/isa.h"

namespace kvasir {
namespace {

// Most waits between two phases are shorter than these pauses, a few microseconds.
constexpr int kPauses = 64;
// About 50 us on an idle core. On a busy core each yield may cost a time slice of other threads. Parking at
// once would cost more there: a thread that sleeps has to wait for a slice again when it is woken.
constexpr int kYields = 150;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Returns when `value` is no longer `old`. The change must be sequentially consistent: the notifying thread
// looks for parked threads, and must not do so before the change. After some pauses this thread yields its
// core repeatedly: with more runnable threads than cores, the awaited thread may need it.
void wait_while(const std::atomic<int>& value, int old) {
  for (int i = 0; i < kPauses; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    pause();
  }
  for (int i = 0; i < kYields; ++i) {
    if (value.load(std::memory_order_acquire) != old) return;
    std::this_thread::yield();
  }
  value.wait(old, std::memory_order_acquire);
}

}  // namespace

void Barrier::wait() {
  const int round = round_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 < threads_) {
    wait_while(round_, round);
    return;
  }
  arrived_.store(0, std::memory_order_relaxed);
  round_.store(round == INT_MAX ? 0 : round + 1);
  round_.notify_all();
}

ThreadPool::ThreadPool(int threads, std::vector<int> cpus)
    : threads_(threads), cpus_(std::move(cpus)), barrier_(threads) {
  KV_CHECK(threads > 0, "threads={}", threads);
  KV_CHECK(cpus_.empty() || cpus_.size() == static_cast<size_t>(threads), "cpus={} threads={}", cpus_.size(),
           threads);
  for (int i = 1; i < threads; ++i) others_.emplace_back([this, i] { run(i); });
}

ThreadPool::~ThreadPool() {
  join();
  number_.store(-1);
  number_.notify_all();
  for (std::thread& t : others_) t.join();
}

void ThreadPool::start(Job job) {
  KV_CHECK(!started_, "a job runs on {} threads", threads_);
  job_ = std::move(job);
  started_ = true;
  running_.store(threads_ - 1, std::memory_order_relaxed);
  const int number = number_.load(std::memory_order_relaxed);
  number_.store(number == INT_MAX ? 0 : number + 1);
  number_.notify_all();
}

void ThreadPool::join() {
  if (!started_) return;
  if (!cpus_.empty() && pinned_caller_ != std::this_thread::get_id()) {
    pin(0);
    pinned_caller_ = std::this_thread::get_id();
  }
  {
    const ops::FlushToZero mode;
    work(0);
  }
  for (int running; (running = running_.load(std::memory_order_acquire)) != 0;) wait_while(running_, running);
  started_ = false;
}

void ThreadPool::run(int index) {
  pin(index);
  const ops::FlushToZero mode;
  for (int seen = 0;;) {
    wait_while(number_, seen);
    seen = number_.load(std::memory_order_acquire);
    if (seen < 0) return;
    work(index);
    if (running_.fetch_sub(1) == 1) running_.notify_all();
  }
}

void ThreadPool::pin(int index) const {
  if (!cpus_.empty()) keep_on_cpus(std::span(&cpus_[static_cast<size_t>(index)], 1));
}

}  // namespace kvasir
