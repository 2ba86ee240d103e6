// Threads that share out the items of jobs, one job after the other. Work is claimed, not dealt: no job waits
// for a thread that has not begun.
//
// The caller gives a job and works in it; the others, its helpers, come if they have a core. Each thread has
// a run of the items, at first an equal part, and claims from its front. A thread whose run is empty takes
// from the back of another's; it takes all of a run whose thread has not come.
//
//     run of a thread   | done or taken | held | free |        as one atomic word, begin <= hold <= end
//                                     begin   hold   end
//
// A helper may lose its core with items in its hands, for a time slice or more. In a replaceable job the
// caller does those items itself: a helper computes into memory of its own, and stores only if it still holds
// what it has computed. Then it is late, and may read what the job reads after the job has ended, until it
// sees that. Hence inputs() and settle(). In an ordinary job the caller has to wait for it. So a helper that
// was late gets nothing of ordinary jobs for a while: it has its core only some of the time.
//
// All that costs time, which is saved while helpers are trusted: then a replaceable job is done as an
// ordinary one, and a thread claims its part at once. After helpers were late twice in a short time, nothing
// is done so for a while. A helper is late if it is not back after more than an interrupt takes; that the
// caller was quicker is no sign of it.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/clock.h"

namespace kvasir {

// A half-open range of rows, panels or items.
struct Share {
  int64_t begin;
  int64_t end;
  int64_t size() const { return end - begin; }
};

// How many items a thread claims at once: half of those left in its run, but no fewer and no more. In an
// ordinary job also no more than a sixteenth of an equal part. While helpers are trusted: `most`.
struct Grain {
  int64_t least = 1;
  int64_t most = INT64_MAX;
};

class ThreadPool {
 public:
  // Items of a job at most.
  static constexpr int64_t kMostItems = (int64_t{1} << 21) - 1;

  // When helpers are expected to be late: for a while after two were. For tests: once two were, for good;
  // always.
  enum class Trust : uint8_t { kUntilLate, kUntilLateForGood, kNever };

  // Starts the helpers. `cpus`: one for each thread, to which it is pinned (the caller when it first gives a
  // job); empty: the system places them, but not on the caller's CPU.
  // REQUIRES: threads > 0
  explicit ThreadPool(int threads, std::vector<int> cpus = {}, Trust trust = Trust::kUntilLate);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int size() const { return threads_; }

  // Calls body(Share items, int thread) until each of the items has been in exactly one call. Returns when
  // all calls have. `thread` is 0 for the caller and below size(); it serves to find scratch, of which each
  // thread has its own. Calls run with subnormals flushed to zero; one that throws ends the program. What
  // they write is seen by the caller, and by later calls. REQUIRES: by one thread at a time, not from within
  // a job; items <= kMostItems
  template <typename Body>
  void for_each(int64_t items, const Body& body, Grain grain = {}) {
    if (solo(items, grain) || all_barred()) {
      run_alone(items, &call<Body>, &body);
      return;
    }
    Job& job = next_job(items, grain);
    job.run = &call<Body>;
    job.work = &body;
    carry_out(job);
  }

  // A replaceable job. Work has
  //   void run(Share items, int thread) const       does them
  //   void compute(Share items, int thread) const   the same by a helper, except that the results go to
  //                                                 scratch of the thread. It may be called for items that
  //                                                 others do, too, and long after the job has ended
  //   void store(Share items, int thread) const     moves them to where run() puts them; items as in the
  //                                                 thread's last compute()
  // Each item is in one call of run() or of store(). compute() reads immutable memory, the copy of `work`
  // that the job keeps, and what the caller has put into inputs(`input`); nothing else that changes.
  // REQUIRES: as for_each(); input >= 0
  template <typename Work>
  void for_each_replaceable(int64_t items, const Work& work, int input, Grain grain = {}) {
    static_assert(std::is_trivially_copyable_v<Work> && sizeof(Work) <= kWorkBytes);
    if (solo(items, grain)) {
      run_alone(items, &run_work<Work>, &work);
      return;
    }
    Job& job = next_job(items, grain);
    std::memcpy(job.copy.data(), &work, sizeof(work));
    job.run = &run_work<Work>;
    job.work = job.copy.data();
    if (suspects()) {
      job.compute = &compute_work<Work>;
      job.store = &store_work<Work>;
      job.input = input;
    }
    carry_out(job);
  }

  // Sets of inputs that a user of the pool needs so that it seldom waits for a late helper.
  static constexpr int kInputs = 3;
  int inputs() const { return threads_ < kInputs ? threads_ : kInputs; }
  // The number of a set, below inputs(), that no helper reads any more: the caller may overwrite it. Waits
  // until there is one. Threads: as for_each().
  int free_input();
  // Waits until no helper reads that input, or anything, of jobs that have ended. Threads: as for_each().
  void settle(int input);
  void settle();

 private:
  static constexpr size_t kWorkBytes = 256;
  static constexpr size_t kLine = 64;
  // A helper that was late twice within so long does nothing of ordinary jobs for so long.
  static constexpr Nanos kBarred = 50 * kNanosPerMilli;
  // If helpers were late twice within so long, they are expected to be again for so long after the last time.
  static constexpr Nanos kSuspicion = 50 * kNanosPerMilli;
  using Call = void (*)(const void* work, Share items, int thread);

  // The run of a thread, and how many items the thread has done.
  struct alignas(kLine) Part {
    std::atomic<uint64_t> run{0};
    std::atomic<int64_t> done{0};
    bool barred = false;  // its thread does nothing of the job
  };
  // Written by the caller while no helper is inside.
  struct Job {
    Call run = nullptr;
    Call compute = nullptr;  // null: an ordinary job
    Call store = nullptr;
    const void* work = nullptr;
    int64_t items = 0;
    Grain grain;
    int input = -1;
    alignas(kLine) std::array<std::byte, kWorkBytes> copy;
    std::unique_ptr<Part[]> parts;  // by thread
  };
  struct alignas(kLine) Helper {
    std::atomic<int> inside{0};  // 1 + the index of the job that it reads; 0: none
    std::atomic<int> thread_id{0};
    std::thread thread;
    // The caller's: the job in which it last lost what it held, until it has left that or is late; and when.
    int taken_from = -1;
    Nanos taken_at = 0;
    // When it was late, and whether that bars it from ordinary jobs.
    Nanos late_at = -kBarred;
    bool late_again = false;
    bool barred = false;
  };
  struct Run;

  template <typename Body>
  static void call(const void* work, Share items, int thread) noexcept {
    (*static_cast<const Body*>(work))(items, thread);
  }
  template <typename Work>
  static void run_work(const void* work, Share items, int thread) noexcept {
    static_cast<const Work*>(work)->run(items, thread);
  }
  template <typename Work>
  static void compute_work(const void* work, Share items, int thread) noexcept {
    static_cast<const Work*>(work)->compute(items, thread);
  }
  template <typename Work>
  static void store_work(const void* work, Share items, int thread) noexcept {
    static_cast<const Work*>(work)->store(items, thread);
  }

  // Whether helpers are expected to be late.
  bool suspects();
  bool solo(int64_t items, const Grain& grain) const { return threads_ == 1 || items <= grain.least; }
  // Looks which helpers are barred from ordinary jobs now. True: all.
  bool all_barred();
  void run_alone(int64_t items, Call run, const void* work);
  // A job that no helper reads, with nothing but items and grain set.
  Job& next_job(int64_t items, const Grain& grain);
  void deal(Job& job) const;
  void carry_out(Job& job);
  void publish(Job& job);
  // A helper is late.
  void suspect(Nanos now);
  // The caller does what the helper held. If it is still there after kSlack, it is late.
  void note_taken(Helper& helper, Nanos now);
  void note_late(Helper& helper, Nanos now);
  // The caller's part.
  void work_off(Job& job);
  // Do what is in the run of a thread; they return when that is empty.
  void run_own(Job& job, int thread);
  void compute_own(Job& job, int thread);
  // Moves items of another's run to the empty one of `thief`. held: what the other holds, too. Returns the
  // other; -1: no run has items.
  int steal(Job& job, int thief, bool held);
  void help(int index);
  void fetch(const Job& job, int index) const;
  void take_part(Job& job, int index);
  void wait_for_job(int seen);
  // Keeps the helpers off the CPU that the caller is on.
  void make_way();
  void pin(int index);
  bool is_free(const Job& job) const;
  // The input that a helper may read; -1: none.
  int input_of(const Helper& helper) const;

  const int threads_;
  const std::vector<int> cpus_;
  const Trust trust_;
  std::vector<int> allowed_;  // where helpers may run, if they are not pinned
  std::vector<Job> jobs_;
  std::vector<Helper> helpers_;
  int number_ = 0;
  int current_ = -1;  // the job that was published last
  bool working_ = false;
  bool some_barred_ = false;
  bool suspects_;
  Nanos late_at_ = -kSuspicion;  // when a helper was late last
  int caller_cpu_ = -1;
  std::thread::id pinned_caller_;
  // The number of the last job, and its index in jobs_ in the lower bits; -1: the helpers shall end.
  alignas(kLine) std::atomic<int> published_{0};
  std::atomic<int> parked_{0};  // helpers that sleep, or are about to
};

}  // namespace kvasir
