// The team of threads: all of them run, meet, and end, whichever is late.
#include "exec/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>

#include "base/affinity.h"

namespace kvasir {
namespace {

using namespace std::chrono_literals;

bool flushes() {
  const volatile float tiny = 1e-30f;
  return tiny * 1e-10f == 0.0f;
}

// Each phase reads what the others wrote in the phase before; the sum is right only if no thread runs ahead.
TEST(ThreadPool, NoThreadPassesABarrierAlone) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    std::vector<int64_t> now(static_cast<size_t>(threads), 1), next = now;
    for (int job = 0; job < 20; ++job) {
      std::fill(now.begin(), now.end(), 1);
      pool.start([&](const ThreadPool::Worker& worker) {
        for (int phase = 0; phase < 30; ++phase) {
          int64_t sum = 0;
          for (int64_t v : now) sum += v;
          next[static_cast<size_t>(worker.index)] = sum % 1000003;
          worker.barrier.wait();
          now[static_cast<size_t>(worker.index)] = next[static_cast<size_t>(worker.index)];
          worker.barrier.wait();
        }
      });
      pool.join();
      int64_t want = 1;
      for (int phase = 0; phase < 30; ++phase) want = want * threads % 1000003;
      for (int64_t v : now) ASSERT_EQ(v, want) << threads << " threads, job " << job;
    }
  }
}

// Longer than anyone spins: the others park, at a barrier and between jobs, and wake again.
TEST(ThreadPool, ParkedThreadsWake) {
  ThreadPool pool(3);
  std::atomic<int> ended{0};
  for (int late = 0; late < 3; ++late) {
    std::this_thread::sleep_for(3ms);
    pool.start([&](const ThreadPool::Worker& worker) {
      if (worker.index == late) std::this_thread::sleep_for(3ms);
      worker.barrier.wait();
      ++ended;
    });
    pool.join();
  }
  EXPECT_EQ(ended, 9);
}

TEST(ThreadPool, TheCallerIsTheFirstOfTheTeam) {
  ThreadPool pool(2);
  std::mutex mutex;
  std::vector<std::thread::id> ids(2);
  pool.start([&](const ThreadPool::Worker& worker) {
    std::lock_guard lock(mutex);
    ids[static_cast<size_t>(worker.index)] = std::this_thread::get_id();
  });
  pool.join();
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_NE(ids[1], ids[0]);
  pool.join();  // nothing to wait for
}

// Every thread of the team computes with subnormals flushed, the caller too, and gets its own mode back.
TEST(ThreadPool, SubnormalsAreFlushedInsideAJobOnly) {
  ASSERT_FALSE(flushes()) << "the test's own thread does it already";
  ThreadPool pool(3);
  std::vector<int> flushed(3);
  pool.start([&](const ThreadPool::Worker& worker) {
    flushed[static_cast<size_t>(worker.index)] = flushes() ? 1 : 0;
  });
  pool.join();
  EXPECT_EQ(flushed, std::vector<int>(3, 1));
  EXPECT_FALSE(flushes());
}

TEST(ThreadPool, AJobThatWasNotJoinedEndsWithThePool) {
  std::atomic<int> runs{0};
  {
    ThreadPool pool(2);
    pool.start([&](const ThreadPool::Worker& worker) {
      worker.barrier.wait();
      ++runs;
    });
  }
  EXPECT_EQ(runs, 2);
}

TEST(ThreadPool, ThreadsArePinnedOneToACpu) {
  std::thread([] {  // the pool pins its caller
    const std::vector<int> all = allowed_cpus();
    const std::vector<int> cpus = {all.front(), all.back()};
    ThreadPool pool(2, cpus);
    std::vector<std::vector<int>> seen(2);
    pool.start(
        [&](const ThreadPool::Worker& worker) { seen[static_cast<size_t>(worker.index)] = allowed_cpus(); });
    pool.join();
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(seen[i], std::vector<int>{cpus[i]});
  })
      .join();
}

}  // namespace
}  // namespace kvasir
