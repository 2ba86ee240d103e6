// A thread that runs jobs in order.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>

namespace kvasir {

// Thread-safe. Jobs must not throw. The thread starts with the first job.
class Worker {
 public:
  Worker() = default;
  ~Worker() { stop(); }
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // After stop() the job is dropped.
  void post(std::function<void()> job);
  // Waits for the job that runs, and drops the others.
  void stop();

 private:
  void run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> jobs_;  // guarded by mutex_
  bool stopping_ = false;                   // guarded by mutex_
  std::thread thread_;                      // set under mutex_, and never behind stopping_
};

}  // namespace kvasir
