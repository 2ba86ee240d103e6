// Jobs of the pool: each item is done once, whichever thread does it and whichever is late.
#include "exec/cpu/thread_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <numeric>

#include "base/affinity.h"
#include "base/mutant.h"
#include "base/random.h"

namespace kvasir {
namespace {

using namespace std::chrono_literals;

bool flushes() {
  const volatile float tiny = 1e-30f;
  return tiny * 1e-10f == 0.0f;
}

void await(const std::atomic<bool>& flag) {
  while (!flag) std::this_thread::yield();
}

// Calls once(thread) on every thread of the pool, none of which returns before all have come.
void on_all_threads(ThreadPool& pool, const std::function<void(int)>& once) {
  std::atomic<int> come{0};
  pool.for_each(pool.size(), [&](Share items, int thread) {
    for (int64_t i = items.begin; i < items.end; ++i) {
      once(thread);
      ++come;
      while (come < pool.size()) std::this_thread::yield();
    }
  });
}

// ---------------------------------------------------------------- ordinary jobs

TEST(ThreadPool, EachItemIsDoneOnce) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    std::vector<std::atomic<int>> inside(static_cast<size_t>(threads));
    Random random(static_cast<uint64_t>(threads));
    for (int job = 0; job < 300; ++job) {
      const int64_t items = random.between(0, job % 10 == 0 ? 3000 : 40);
      std::vector<std::atomic<int>> times(static_cast<size_t>(items));
      std::atomic<bool> shared{false};
      const auto body = [&](Share mine, int thread) {
        ASSERT_TRUE(0 <= thread && thread < threads);
        if (inside[static_cast<size_t>(thread)].exchange(1) != 0) shared = true;
        ASSERT_LT(mine.begin, mine.end);
        for (int64_t i = mine.begin; i < mine.end; ++i) ++times[static_cast<size_t>(i)];
        inside[static_cast<size_t>(thread)] = 0;
      };
      pool.for_each(items, body, {random.between(1, 5), random.between(1, 50)});
      for (const std::atomic<int>& t : times) ASSERT_EQ(t, 1) << threads << " threads, job " << job;
      ASSERT_FALSE(shared) << "two calls at once for the scratch of one thread";
    }
  }
}

// The caller keeps its first item until all others are done: a helper takes them out of the caller's run.
int64_t calls_for_items_of_a_busy_caller() {
  constexpr int64_t kItems = 40;
  std::vector<std::atomic<int>> times(kItems);
  std::atomic<int64_t> calls{0}, distinct{0};
  ThreadPool pool(2);
  pool.for_each(kItems,
                [&](Share mine, int thread) {
                  for (int64_t i = mine.begin; i < mine.end; ++i) {
                    ++calls;
                    if (times[static_cast<size_t>(i)]++ == 0) ++distinct;
                  }
                  while (thread == 0 && distinct < kItems) std::this_thread::yield();
                },
                {1, 1});
  return calls;
}
TEST(ThreadPool, AHelperTakesWhatTheCallerHasNotBegun) {
  EXPECT_EQ(calls_for_items_of_a_busy_caller(), 40);
}

// Each job reads what the others wrote in the job before.
TEST(ThreadPool, AJobSeesWhatTheJobBeforeWrote) {
  for (int threads : {1, 2, 3, 5}) {
    ThreadPool pool(threads);
    std::vector<int64_t> now(23, 1), next = now;
    int64_t want = 1;
    for (int job = 0; job < 300; ++job) {
      pool.for_each(23, [&](Share mine, int) {
        const int64_t sum = std::accumulate(now.begin(), now.end(), int64_t{0});
        for (int64_t i = mine.begin; i < mine.end; ++i) next[static_cast<size_t>(i)] = sum % 1000003;
      });
      std::swap(now, next);
      want = want * 23 % 1000003;
      for (int64_t v : now) ASSERT_EQ(v, want) << threads << " threads, job " << job;
    }
  }
}

// Longer than a helper looks for a job: the helpers sleep, and wake again.
TEST(ThreadPool, SleepingHelpersWake) {
  ThreadPool pool(3, {}, ThreadPool::Trust::kNever);
  for (int i = 0; i < 5; ++i) {
    std::this_thread::sleep_for(5ms);
    std::atomic<int> threads{0};
    on_all_threads(pool, [&](int thread) { threads |= 1 << thread; });
    EXPECT_EQ(threads, 7);
  }
}

TEST(ThreadPool, TheCallerIsThreadZero) {
  ThreadPool pool(2, {}, ThreadPool::Trust::kNever);
  std::vector<std::thread::id> ids(2);
  on_all_threads(pool, [&](int thread) { ids[static_cast<size_t>(thread)] = std::this_thread::get_id(); });
  EXPECT_EQ(ids[0], std::this_thread::get_id());
  EXPECT_NE(ids[1], ids[0]);
}

TEST(ThreadPool, SubnormalsAreFlushedInsideAJobOnly) {
  ASSERT_FALSE(flushes()) << "the test's own thread does it already";
  for (int threads : {1, 3}) {
    ThreadPool pool(threads, {}, ThreadPool::Trust::kNever);
    std::vector<int> flushed(static_cast<size_t>(threads));
    on_all_threads(pool, [&](int thread) { flushed[static_cast<size_t>(thread)] = flushes() ? 1 : 0; });
    EXPECT_EQ(flushed, std::vector<int>(static_cast<size_t>(threads), 1));
    EXPECT_FALSE(flushes());
  }
}

TEST(ThreadPool, AJobWithinAJobIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  for (int threads : {1, 2}) {
    for (int64_t inner : {1, 9}) {
      const auto nest = [&] {
        ThreadPool pool(threads, {}, ThreadPool::Trust::kNever);
        pool.for_each(7, [&](Share, int) { pool.for_each(inner, [](Share, int) {}); });
      };
      EXPECT_DEATH(nest(), "a job within a job");
    }
  }
}

// ---------------------------------------------------------------- replaceable jobs

// Numbers that are doubled. A helper tells when it computes, and waits for the gate first if there is one.
struct Doubling {
  struct Shared {
    std::vector<int64_t> input[ThreadPool::kInputs];
    std::vector<std::vector<int64_t>> aside;  // by thread
    std::vector<std::atomic<int>> done;       // by item: how often
    std::vector<int64_t> out;
    std::atomic<bool> helper_here{false};  // it runs items or computes them
    std::atomic<bool> helper_came{false};  // it computes
    std::atomic<bool> helper_ran{false};
    std::atomic<bool> slow{false};        // a helper that runs items
    std::atomic<bool> slow_aside{false};  // one that computes them, for a moment
    std::atomic<bool> gate{true};
    std::atomic<int64_t> seen_late{0};  // the first number that a helper read behind the gate
    std::atomic<int> stores{0};

    Shared(int threads, int64_t items)
        : aside(static_cast<size_t>(threads)),
          done(static_cast<size_t>(items)),
          out(static_cast<size_t>(items)) {
      for (auto& in : input) in.resize(static_cast<size_t>(items));
      for (auto& a : aside) a.resize(static_cast<size_t>(items));
    }
  };
  Shared* shared;
  int input;
  bool waits_for_helper = false;

  void run(Share items, int thread) const {
    if (waits_for_helper && thread == 0) await(shared->helper_here);
    if (thread != 0) {
      shared->helper_ran = shared->helper_here = true;
      if (shared->slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    for (auto i = static_cast<size_t>(items.begin); i < static_cast<size_t>(items.end); ++i) {
      shared->out[i] = 2 * shared->input[input][i];
      ++shared->done[i];
    }
  }
  void compute(Share items, int thread) const {
    shared->helper_came = shared->helper_here = true;
    if (shared->slow_aside) std::this_thread::sleep_for(std::chrono::microseconds(20));
    if (!shared->gate) {
      await(shared->gate);
      shared->seen_late = shared->input[input][static_cast<size_t>(items.begin)];
    }
    for (auto i = static_cast<size_t>(items.begin); i < static_cast<size_t>(items.end); ++i) {
      shared->aside[static_cast<size_t>(thread)][i] = 2 * shared->input[input][i];
    }
  }
  void store(Share items, int thread) const {
    ++shared->stores;
    for (auto i = static_cast<size_t>(items.begin); i < static_cast<size_t>(items.end); ++i) {
      shared->out[i] = shared->aside[static_cast<size_t>(thread)][i];
      ++shared->done[i];
    }
  }
};

void double_all(ThreadPool& pool, Doubling::Shared& shared, int64_t first, Grain grain = {},
                bool waits_for_helper = false) {
  const int input = pool.free_input();
  const auto items = static_cast<int64_t>(shared.out.size());
  for (int64_t i = 0; i < items; ++i) shared.input[input][static_cast<size_t>(i)] = first + i;
  for (std::atomic<int>& d : shared.done) d = 0;
  pool.for_each_replaceable(items, Doubling{&shared, input, waits_for_helper}, input, grain);
}

// One helper holds items of the first job until all of these have ended. What the test compares: a job's
// results, how often its items were done, the number that the late helper reads, and what it stores.
struct LateHelper {
  std::vector<int64_t> wrong_jobs;
  int64_t seen_late = 0;
  int stores_of_late = 0;
};
LateHelper jobs_beside_a_late_helper() {
  constexpr int kThreads = 2;
  constexpr int64_t kItems = 50;
  LateHelper result;
  ThreadPool pool(kThreads, {}, ThreadPool::Trust::kNever);
  Doubling::Shared shared(kThreads, kItems);
  shared.gate = false;
  for (int64_t job = 1; job <= 20; ++job) {
    double_all(pool, shared, 1000 * job, {}, /*waits_for_helper=*/job == 1);
    for (int64_t i = 0; i < kItems; ++i) {
      const auto at = static_cast<size_t>(i);
      if (shared.out[at] == 2 * (1000 * job + i) && shared.done[at] == 1) continue;
      result.wrong_jobs.push_back(job);
    }
    // The caller does not wait for it in an ordinary job either.
    pool.for_each(kItems, [&](Share mine, int thread) {
      if (thread != 0) result.wrong_jobs.push_back(mine.begin);
    });
  }
  shared.gate = true;
  pool.settle();
  result.seen_late = shared.seen_late;
  result.stores_of_late = shared.stores;
  return result;
}

TEST(ThreadPool, AJobDoesNotWaitForALateHelper) {
  const LateHelper got = jobs_beside_a_late_helper();
  EXPECT_EQ(got.wrong_jobs, std::vector<int64_t>());
  EXPECT_EQ(got.stores_of_late, 0);
  EXPECT_GE(got.seen_late, 1000);  // of the first job
  EXPECT_LT(got.seen_late, 2000);
}

TEST(ThreadPool, ALateHelperComesBack) {
  ThreadPool pool(2, {}, ThreadPool::Trust::kNever);
  Doubling::Shared shared(2, 50);
  shared.gate = false;
  double_all(pool, shared, 1, {}, /*waits_for_helper=*/true);
  EXPECT_NE(pool.free_input(), 0);
  shared.gate = true;
  pool.settle();
  EXPECT_EQ(pool.free_input(), 0);
  const auto threads_of_an_ordinary_job = [&] {
    std::atomic<int> threads{0};
    pool.for_each(1000,
                  [&](Share, int thread) {
                    threads |= 1 << thread;
                    std::this_thread::sleep_for(1us);
                  },
                  {1, 1});
    return threads.load();
  };
  // For a while it might be late again.
  const auto end = std::chrono::steady_clock::now() + 20s;
  int threads = 0;
  while (threads != 3 && std::chrono::steady_clock::now() < end) threads = threads_of_an_ordinary_job();
  EXPECT_EQ(threads, 3);
}

// A job in which the helper has some of the items. What it does: stores at once, or computes aside.
struct HelperDid {
  bool run = false, compute = false;
};
HelperDid job_with_helper(ThreadPool& pool, Doubling::Shared& shared, int64_t job) {
  shared.helper_here = shared.helper_ran = shared.helper_came = false;
  double_all(pool, shared, 1000 * job, {}, /*waits_for_helper=*/true);
  for (size_t i = 0; i < shared.out.size(); ++i) {
    EXPECT_EQ(shared.out[i], 2 * (1000 * job + static_cast<int64_t>(i)));
    EXPECT_EQ(shared.done[i], 1);
  }
  pool.settle();
  return {shared.helper_ran, shared.helper_came};
}

// The helper takes 20 ms for its items until it has been late, which it is unless the caller has lost its
// core for as long.
void make_late(ThreadPool& pool, Doubling::Shared& shared) {
  shared.slow = true;
  int64_t job = 1;
  EXPECT_TRUE(job_with_helper(pool, shared, job).run) << "no helper has been late yet";
  while (job < 100 && !job_with_helper(pool, shared, ++job).compute) {
  }
  EXPECT_LT(job, 100);
  shared.slow = false;
}

TEST(ThreadPool, AHelperThatWasLateComputesAside) {
  ThreadPool pool(2, {}, ThreadPool::Trust::kUntilLateForGood);
  Doubling::Shared shared(2, 50);
  make_late(pool, shared);
  for (int64_t job = 200; job < 210; ++job) {
    const HelperDid did = job_with_helper(pool, shared, job);
    EXPECT_FALSE(did.run);
    EXPECT_TRUE(did.compute);
  }
}

TEST(ThreadPool, AHelperThatWasLateIsTrustedAgainAfterAWhile) {
  ThreadPool pool(2);
  Doubling::Shared shared(2, 50);
  make_late(pool, shared);
  std::this_thread::sleep_for(250ms);
  const HelperDid did = job_with_helper(pool, shared, 200);
  EXPECT_TRUE(did.run);
  EXPECT_FALSE(did.compute);
}

// Where others use the cores, the helper may be late again by itself: hence several tries.
TEST(ThreadPool, AHelperThatWasLateOnceIsTrusted) {
  ThreadPool pool(2);
  Doubling::Shared shared(2, 50);
  bool trusted = false;
  for (int64_t job = 1; job < 100 && !trusted; job += 2) {
    std::this_thread::sleep_for(60ms);  // what was before is forgotten
    shared.slow = true;
    if (!job_with_helper(pool, shared, job).run) continue;
    shared.slow = false;
    trusted = job_with_helper(pool, shared, job + 1).run;
  }
  EXPECT_TRUE(trusted);
}

// The caller does not wait for items that it can do itself. That is no reason to expect the helper to be
// late.
TEST(ThreadPool, AHelperThatIsReplacedForAMomentIsNotLate) {
  ThreadPool pool(2);
  Doubling::Shared shared(2, 50);
  make_late(pool, shared);
  shared.slow_aside = true;
  const auto end = std::chrono::steady_clock::now() + 20s;
  bool trusted = false;
  for (int64_t job = 200; !trusted && std::chrono::steady_clock::now() < end; ++job) {
    trusted = job_with_helper(pool, shared, job).run;
  }
  EXPECT_TRUE(trusted);
}

TEST(ThreadPool, ReplaceableItemsAreDoneOnceWhicheverThreadIsLate) {
  for (int threads : {1, 2, 3, 4}) {
    ThreadPool pool(threads, {}, ThreadPool::Trust::kNever);
    Random random(static_cast<uint64_t>(threads));
    for (int round = 0; round < 8; ++round) {
      Doubling::Shared shared(threads, random.between(1, 500));
      const auto items = static_cast<int64_t>(shared.out.size());
      for (int64_t job = 0; job < 60; ++job) {
        // Every few jobs the gate is closed; a thread that comes then is late until it opens. In the three
        // jobs until then three helpers read an input each at the most. One that was still inside an earlier
        // job would read a fourth, and there would be no free input.
        if (job % 5 == 0) {
          pool.settle();
          shared.gate = false;
        }
        if (job % 5 == 3) {
          shared.gate = true;
          pool.settle();
        }
        double_all(pool, shared, 7 * job, {random.between(1, 9), random.between(1, 60)});
        for (int64_t i = 0; i < items; ++i) {
          ASSERT_EQ(shared.out[static_cast<size_t>(i)], 2 * (7 * job + i))
              << threads << " threads, job " << job;
          ASSERT_EQ(shared.done[static_cast<size_t>(i)], 1) << threads << " threads, job " << job;
        }
        pool.for_each(items, [&](Share mine, int) {
          for (int64_t i = mine.begin; i < mine.end; ++i) ++shared.out[static_cast<size_t>(i)];
        });
        for (int64_t i = 0; i < items; ++i)
          ASSERT_EQ(shared.out[static_cast<size_t>(i)], 2 * (7 * job + i) + 1);
      }
      shared.gate = true;
      pool.settle();
    }
  }
}

#if defined(KVASIR_MUTANTS)
TEST(ThreadPoolMutants, AnItemTakenTwiceIsSeen) {
  const ScopedMutant fault(Mutant::kTakenTwice);
  EXPECT_GT(calls_for_items_of_a_busy_caller(), 40);
}
TEST(ThreadPoolMutants, AStoreOfWhatWasTakenIsSeen) {
  const ScopedMutant fault(Mutant::kStoresWhatWasTaken);
  EXPECT_EQ(jobs_beside_a_late_helper().stores_of_late, 1);
}
TEST(ThreadPoolMutants, AnInputReusedEarlyIsSeen) {
  const ScopedMutant fault(Mutant::kInputReusedEarly);
  EXPECT_GE(jobs_beside_a_late_helper().seen_late, 2000);
}
#endif

// ---------------------------------------------------------------- where threads run

TEST(ThreadPool, ThreadsArePinnedOneToACpu) {
  std::thread([] {  // the pool pins its caller
    const std::vector<int> all = allowed_cpus();
    const std::vector<int> cpus = {all.front(), all.back()};
    ThreadPool pool(2, cpus);
    std::vector<std::vector<int>> seen(2);
    on_all_threads(pool, [&](int thread) { seen[static_cast<size_t>(thread)] = allowed_cpus(); });
    for (size_t i = 0; i < 2; ++i) EXPECT_EQ(seen[i], std::vector<int>{cpus[i]});
  })
      .join();
}

TEST(ThreadPool, HelpersMakeWayForTheCaller) {
  const std::vector<int> all = allowed_cpus();
  if (all.size() < 2) GTEST_SKIP() << "one CPU";
  std::thread([&] {
    ThreadPool pool(2);
    on_all_threads(pool, [](int) {});  // both have begun
    for (int cpu : {all.front(), all.back()}) {
      ASSERT_TRUE(keep_on_cpus(std::span(&cpu, 1)));
      std::vector<std::vector<int>> seen(2);
      on_all_threads(pool, [&](int thread) { seen[static_cast<size_t>(thread)] = allowed_cpus(); });
      EXPECT_EQ(seen[0], std::vector<int>{cpu});
      EXPECT_EQ(std::count(seen[1].begin(), seen[1].end(), cpu), 0);
      EXPECT_EQ(seen[1].size(), all.size() - 1);
    }
  }).join();
}

}  // namespace
}  // namespace kvasir
