// A fixed team of threads that runs one job at a time, all of them inside it together.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace kvasir {

// Threads meet here between the phases of a job. Spins shortly, then yields, then sleeps: cores may be shared
// with the HTTP thread, or with strangers.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait();

 private:
  const int threads_;
  std::atomic<int> arrived_{0};
  std::atomic<uint32_t> round_{0};
};

class ThreadPool {
 public:
  // What a thread of the team needs to know.
  struct Worker {
    int index;
    int count;
    Barrier& barrier;
  };
  using Job = std::function<void(const Worker&)>;

  // Starts the threads; each flushes subnormals to zero before its first job. REQUIRES: threads > 0
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return static_cast<int>(threads_.size()); }

  // Starts a job on every thread and returns. REQUIRES: no job runs.
  void start(Job job);
  // Waits until every thread has left the job.
  void join();

 private:
  void run(int index);

  Barrier barrier_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  Job job_;                // guarded by mutex_
  uint64_t number_ = 0;    // of the job; guarded by mutex_
  int running_ = 0;        // threads inside the job; guarded by mutex_
  bool stopping_ = false;  // guarded by mutex_
  std::vector<std::thread> threads_;
};

// [begin, end) of `items` for one thread of the team: equal parts, the first ones larger by one.
struct Share {
  int64_t begin;
  int64_t end;
};
inline Share share_of(int64_t items, const ThreadPool::Worker& worker) {
  const int64_t base = items / worker.count, rest = items % worker.count;
  const int64_t begin = worker.index * base + (worker.index < rest ? worker.index : rest);
  return {begin, begin + base + (worker.index < rest ? 1 : 0)};
}

}  // namespace kvasir
