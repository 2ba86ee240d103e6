// A fixed team of threads that runs one job at a time, all of them inside it together.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace kvasir {

// Threads meet here between the phases of a job. A waiting thread spins for a few microseconds, then yields
// its core repeatedly (for about 50 us if no other thread wants it), then parks: cores may be shared with the
// HTTP thread, or with other processes.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}
  void wait();

 private:
  const int threads_;
  std::atomic<int> arrived_{0};
  std::atomic<int> round_{0};
};

// The thread that calls start() and join() is the first of the team: it works in join().
class ThreadPool {
 public:
  // What a thread of the team needs to know.
  struct Worker {
    int index;
    int count;
    Barrier& barrier;
  };
  using Job = std::function<void(const Worker&)>;

  // Starts the other threads. `cpus`: one for each thread of the team, to which it is pinned (the caller when
  // it first joins); empty: the system places them. Jobs run with subnormals flushed to zero.
  // REQUIRES: threads > 0
  explicit ThreadPool(int threads, std::vector<int> cpus = {});
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  // Starts a job on the other threads and returns. REQUIRES: no job runs.
  void start(Job job);
  // Does the caller's part and waits until every thread has left the job. Nothing if no job was started.
  void join();

 private:
  void run(int index);
  // A job that throws ends the program: the others would wait for it at a barrier for ever.
  void work(int index) noexcept { job_({index, threads_, barrier_}); }
  void pin(int index) const;

  const int threads_;
  const std::vector<int> cpus_;
  Barrier barrier_;
  Job job_;  // written while no thread is in a job
  bool started_ = false;
  std::thread::id pinned_caller_;
  std::atomic<int> number_{0};   // of the job; -1: the threads shall end
  std::atomic<int> running_{0};  // threads inside the job, the caller not counted
  std::vector<std::thread> others_;
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
