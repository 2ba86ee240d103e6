#include "exec/cpu/thread_pool.h"

#include <algorithm>
#include <chrono>
#include <climits>
#include <span>
#include <utility>

#include "base/affinity.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/futex.h"
#include "base/mutant.h"
#include "base/units.h"
#include "ops/cpu/isa.h"

namespace kvasir {
namespace {

// A helper looks so many times for the next job before it sleeps, some 50 to 200 us: longer than most waits
// between two jobs of a step, and about as long as the engine takes between two steps.
constexpr int kLooks = 4000;
// A caller looks so many times for the end of what a helper holds before it sleeps between looks.
constexpr int kPatientLooks = 8000;
constexpr auto kNap = std::chrono::microseconds(50);
// A helper that just leaves a job does so within fewer looks.
constexpr int kLeavingLooks = 40;

// By so much longer than it should take a helper is late, where it cannot be replaced: more than an interrupt
// takes, and less than a slice of another thread.
constexpr Nanos kSlack = 200'000;

// In an ordinary job a thread claims about so many times what is its part at first.
constexpr int kClaimsOfPart = 16;

constexpr int kIndexBits = 6;
constexpr int kMostJobs = 1 << kIndexBits;

inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

// Between two looks at something that another thread will change.
class Looks {
 public:
  int count() const { return count_; }
  void rest() {
    if (++count_ < kPatientLooks) {
      pause();
    } else {
      std::this_thread::sleep_for(kNap);  // that thread may need this core
    }
  }

 private:
  int count_ = 0;
};

// [begin, end) of `items` for one of `count` threads: equal parts, the first ones larger by one.
Share equal_share(int64_t items, int index, int count) {
  const int64_t base = items / count, rest = items % count;
  const int64_t begin = index * base + std::min<int64_t>(index, rest);
  return {begin, begin + base + (index < rest ? 1 : 0)};
}

int64_t claim_of(int64_t left, const Grain& grain) {
  return std::min(left, std::clamp(left / 2, grain.least, std::max(grain.least, grain.most)));
}

}  // namespace

// What the word of a run says.
struct ThreadPool::Run {
  int64_t begin;
  int64_t hold;
  int64_t end;
  bool come;  // its thread has claimed some of it

  static constexpr int kBits = 21;
  static constexpr uint64_t kMask = (uint64_t{1} << kBits) - 1;

  static Run of(uint64_t word) {
    const auto field = [&](int i) { return static_cast<int64_t>(word >> (i * kBits) & kMask); };
    return {field(0), field(1), field(2), (word >> (3 * kBits)) != 0};
  }
  uint64_t word() const {
    return static_cast<uint64_t>(begin) | static_cast<uint64_t>(hold) << kBits |
           static_cast<uint64_t>(end) << (2 * kBits) | uint64_t{come} << (3 * kBits);
  }

  // The thread of the run claims the front, to do it or, with `revocable`, to hold it meanwhile. False: the
  // run is empty.
  static bool claim(std::atomic<uint64_t>& run, const Grain& grain, bool revocable, Share& claimed) {
    uint64_t old = run.load(std::memory_order_acquire);
    for (;;) {
      const Run r = of(old);
      if (r.begin == r.end) return false;
      const int64_t next = r.begin + claim_of(r.end - r.begin, grain);
      const Run now = {revocable ? r.begin : next, next, r.end, true};
      if (run.compare_exchange_weak(old, now.word(), std::memory_order_acq_rel, std::memory_order_acquire)) {
        claimed = {r.begin, next};
        return true;
      }
    }
  }

  // What is held is done. False: it was taken away.
  static bool settle(std::atomic<uint64_t>& run, const Share& held) {
    uint64_t old = run.load(std::memory_order_acquire);
    for (;;) {
      const Run r = of(old);
      if (r.begin != held.begin || r.hold != held.end) return mutant(Mutant::kStoresWhatWasTaken);
      const Run now = {held.end, held.end, r.end, true};
      if (run.compare_exchange_weak(old, now.word(), std::memory_order_acq_rel, std::memory_order_acquire)) {
        return true;
      }
    }
  }

  // Another thread takes the back half of what is free; all of it if the run's thread has not come; with
  // `held` what is held, too. False: there was nothing.
  static bool take(std::atomic<uint64_t>& run, bool held, Share& taken) {
    uint64_t old = run.load(std::memory_order_acquire);
    for (;;) {
      const Run r = of(old);
      const int64_t free = r.end - r.hold;
      const int64_t from = held || !r.come ? r.begin : r.end - (free + 1) / 2;
      if (from == r.end) return false;
      // Begin and hold differ from what a holder expects if it loses its items.
      const Run now = from == r.begin ? Run{r.end, r.end, r.end, r.come} : Run{r.begin, r.hold, from, r.come};
      if (run.compare_exchange_weak(old, now.word(), std::memory_order_acq_rel, std::memory_order_acquire)) {
        taken = {from - (mutant(Mutant::kTakenTwice) && from > r.begin ? 1 : 0), r.end};
        return true;
      }
    }
  }
};

ThreadPool::ThreadPool(int threads, std::vector<int> cpus, Trust trust)
    : threads_(threads),
      cpus_(std::move(cpus)),
      trust_(trust),
      allowed_(allowed_cpus()),
      // One that is published, and one for each helper that is late.
      jobs_(static_cast<size_t>(std::min(threads + 1, kMostJobs))),
      helpers_(static_cast<size_t>(std::max(threads - 1, 0))),
      suspects_(trust == Trust::kNever) {
  KV_CHECK(threads > 0, "threads={}", threads);
  KV_CHECK(cpus_.empty() || cpus_.size() == static_cast<size_t>(threads), "cpus={} threads={}", cpus_.size(),
           threads);
  for (Job& job : jobs_) job.parts = std::make_unique<Part[]>(static_cast<size_t>(threads));
  for (int i = 1; i < threads; ++i) {
    helpers_[static_cast<size_t>(i - 1)].thread = std::thread([this, i] { help(i); });
  }
}

ThreadPool::~ThreadPool() {
  published_.store(-1);
  wake_sleepers(published_, INT_MAX);
  for (Helper& helper : helpers_) helper.thread.join();
}

// ---------------------------------------------------------------- the caller

void ThreadPool::run_alone(int64_t items, Call run, const void* work) {
  KV_CHECK(!working_, "a job within a job of {} threads", threads_);
  if (items == 0) return;
  pin(0);
  const ops::FlushToZero mode;
  working_ = true;
  run(work, {0, items}, 0);
  working_ = false;
}

bool ThreadPool::is_free(const Job& job) const {
  const int inside = static_cast<int>(&job - jobs_.data()) + 1;
  return std::none_of(helpers_.begin(), helpers_.end(),
                      [&](const Helper& h) { return h.inside.load() == inside; });
}

ThreadPool::Job& ThreadPool::next_job(int64_t items, const Grain& grain) {
  KV_CHECK(!working_, "a job within a job of {} threads", threads_);
  KV_CHECK(items >= 0 && items <= kMostItems && grain.least > 0, "items={} at least {} at once", items,
           grain.least);
  int index = -1;
  for (Looks looks; index < 0; looks.rest()) {
    for (int i = 0; i < static_cast<int>(jobs_.size()) && index < 0; ++i) {
      if (i != current_ && is_free(jobs_[static_cast<size_t>(i)])) index = i;
    }
  }
  for (Helper& helper : helpers_) {
    if (helper.taken_from == index) helper.taken_from = -1;  // it has left that job
  }
  Job& job = jobs_[static_cast<size_t>(index)];
  job.items = items;
  job.grain = grain;
  job.compute = nullptr;
  job.store = nullptr;
  job.input = -1;
  return job;
}

void ThreadPool::deal(Job& job) const {
  const auto barred = [&](int t) {
    return t > 0 && suspects_ && !job.compute && helpers_[static_cast<size_t>(t - 1)].barred;
  };
  int count = 0;
  for (int t = 0; t < threads_; ++t) count += barred(t) ? 0 : 1;
  for (int t = 0, next = 0; t < threads_; ++t) {
    Part& part = job.parts[static_cast<size_t>(t)];
    part.barred = barred(t);
    const Share share = part.barred ? Share{0, 0} : equal_share(job.items, next++, count);
    const bool come = t == 0;  // the caller will, so no helper takes all it has
    part.run.store(Run{share.begin, share.begin, share.end, come}.word(), std::memory_order_relaxed);
    part.done.store(0, std::memory_order_relaxed);
  }
}

bool ThreadPool::all_barred() {
  if (!some_barred_) return false;
  const Nanos now = MonotonicClock().now();
  some_barred_ = false;
  bool all = true;
  for (Helper& helper : helpers_) {
    helper.barred = helper.late_again && now - helper.late_at < kBarred;
    some_barred_ = some_barred_ || helper.barred;
    all = all && helper.barred;
  }
  return all;
}

bool ThreadPool::suspects() {
  if (!suspects_) return false;
  const Nanos now = MonotonicClock().now();
  for (Helper& helper : helpers_) {
    if (helper.taken_from >= 0 && now - helper.taken_at > kSlack) {
      if (helper.inside.load() == helper.taken_from + 1) note_late(helper, now);
      helper.taken_from = -1;
    }
  }
  if (trust_ == Trust::kUntilLate) suspects_ = now - late_at_ < kSuspicion;
  return suspects_;
}

void ThreadPool::carry_out(Job& job) {
  pin(0);
  make_way();
  if (!suspects_) {
    job.grain.most =
        std::max(job.grain.least, std::min(job.grain.most, ceil_div<int64_t>(job.items, threads_)));
    job.grain.least = job.grain.most;
  } else if (!job.compute) {  // a helper that loses its core is waited for, and for what it has claimed
    job.grain.most = std::min(job.grain.most, job.items / (kClaimsOfPart * threads_));
  }
  deal(job);
  const ops::FlushToZero mode;
  working_ = true;
  publish(job);
  work_off(job);
  working_ = false;
}

void ThreadPool::publish(Job& job) {
  current_ = static_cast<int>(&job - jobs_.data());
  number_ = number_ == INT_MAX >> kIndexBits ? 1 : number_ + 1;
  published_.store(number_ << kIndexBits | current_);
  const auto wanted = static_cast<int>(std::min<int64_t>(job.items, threads_)) - 1;
  if (parked_.load() > 0) wake_sleepers(published_, wanted);
}

void ThreadPool::work_off(Job& job) {
  const Part& own = job.parts[0];
  const auto done = [&] {
    int64_t sum = 0;
    for (int t = 0; t < threads_; ++t)
      sum += job.parts[static_cast<size_t>(t)].done.load(std::memory_order_acquire);
    return sum >= job.items;
  };
  const MonotonicClock clock;
  const Nanos start = clock.now();
  bool noted = false;
  for (;;) {
    do run_own(job, 0);
    while (steal(job, 0, false) >= 0);
    if (done()) return;
    // Helpers hold the rest. If they are as fast as this thread, it takes them less than `patience`.
    const Nanos now = clock.now();
    const int64_t held = claim_of(ceil_div<int64_t>(job.items, threads_), job.grain);
    const int64_t mine = std::max<int64_t>(1, own.done.load(std::memory_order_relaxed));
    const Nanos patience = 2 * held * (now - start) / mine;
    for (Looks looks;; looks.rest()) {
      if (done()) return;
      const bool late = looks.count() >= kLeavingLooks && clock.now() - now > patience;
      if (late && !noted && !job.compute && clock.now() - now > patience + kSlack) {
        suspect(clock.now());
        noted = true;
      }
      const int from = steal(job, 0, late && job.compute);
      if (from < 0) continue;
      if (late && job.compute) note_taken(helpers_[static_cast<size_t>(from - 1)], clock.now());
      break;
    }
  }
}

void ThreadPool::suspect(Nanos now) {
  suspects_ = suspects_ || now - late_at_ < kSuspicion;
  late_at_ = now;
}

void ThreadPool::note_taken(Helper& helper, Nanos now) {
  helper.taken_from = current_;
  helper.taken_at = now;
}

void ThreadPool::note_late(Helper& helper, Nanos now) {
  suspect(now);
  helper.late_again = now - helper.late_at < kBarred;
  helper.late_at = now;
  some_barred_ = some_barred_ || helper.late_again;
}

int ThreadPool::input_of(const Helper& helper) const {
  const int index = helper.inside.load() - 1;
  return index < 0 ? -1 : jobs_[static_cast<size_t>(index)].input;
}

int ThreadPool::free_input() {
  if (mutant(Mutant::kInputReusedEarly)) return 0;
  for (Looks looks;; looks.rest()) {
    uint64_t taken = 0;
    bool leaving = false;
    for (const Helper& helper : helpers_) {
      const int input = input_of(helper);
      if (input < 0) continue;
      taken |= uint64_t{1} << input;
      leaving = leaving || helper.inside.load() == current_ + 1;
    }
    // The first one is in the caches: a helper that is about to leave it is waited for.
    const bool hopes = leaving && looks.count() < kLeavingLooks;
    for (int i = 0; i < (hopes ? 1 : inputs()); ++i) {
      if ((taken >> i & 1) == 0) return i;
    }
  }
}

void ThreadPool::settle(int input) {
  for (const Helper& helper : helpers_) {
    for (Looks looks; input_of(helper) == input;) looks.rest();
  }
}

void ThreadPool::settle() {
  for (const Helper& helper : helpers_) {
    for (Looks looks; helper.inside.load() != 0;) looks.rest();
  }
}

void ThreadPool::make_way() {
  if (helpers_.empty() || !cpus_.empty() || allowed_.size() < 2) return;
  const int cpu = current_cpu();
  if (cpu == caller_cpu_) return;
  std::vector<int> others = allowed_;
  std::erase(others, cpu);
  bool all = true;
  for (const Helper& helper : helpers_) {
    const int thread = helper.thread_id.load(std::memory_order_relaxed);
    all = all && thread != 0;
    if (thread != 0) keep_on_cpus(others, thread);
  }
  if (all) caller_cpu_ = cpu;
}

// ---------------------------------------------------------------- all threads

void ThreadPool::run_own(Job& job, int thread) {
  Part& part = job.parts[static_cast<size_t>(thread)];
  for (Share claimed; Run::claim(part.run, job.grain, /*revocable=*/false, claimed);) {
    job.run(job.work, claimed, thread);
    part.done.store(part.done.load(std::memory_order_relaxed) + claimed.size(), std::memory_order_release);
  }
}

void ThreadPool::compute_own(Job& job, int thread) {
  Part& part = job.parts[static_cast<size_t>(thread)];
  for (Share held; Run::claim(part.run, job.grain, /*revocable=*/true, held);) {
    job.compute(job.work, held, thread);
    if (!Run::settle(part.run, held)) continue;
    job.store(job.work, held, thread);
    part.done.store(part.done.load(std::memory_order_relaxed) + held.size(), std::memory_order_release);
  }
}

int ThreadPool::steal(Job& job, int thief, bool held) {
  for (int i = 1; i < threads_; ++i) {
    const int victim = (thief + i) % threads_;
    Share taken;
    if (!Run::take(job.parts[static_cast<size_t>(victim)].run, held, taken)) continue;
    const Run run = {taken.begin, taken.begin, taken.end, true};
    job.parts[static_cast<size_t>(thief)].run.store(run.word(), std::memory_order_release);
    return victim;
  }
  return -1;
}

// ---------------------------------------------------------------- a helper

void ThreadPool::wait_for_job(int seen) {
  for (int i = 0; i < kLooks; ++i) {
    if (published_.load(std::memory_order_acquire) != seen) return;
    pause();
  }
  parked_.fetch_add(1);
  while (published_.load() == seen) sleep_while(published_, seen);
  parked_.fetch_sub(1);
}

// All that the caller has written comes from its core's cache: at once, not one after the other.
void ThreadPool::fetch(const Job& job, int index) const {
  __builtin_prefetch(&helpers_[static_cast<size_t>(index - 1)].inside, 1);
  __builtin_prefetch(&job.parts[static_cast<size_t>(index)], 1);
  const auto* bytes = reinterpret_cast<const std::byte*>(&job);
  for (size_t i = 0; i < sizeof(Job); i += kLine) __builtin_prefetch(bytes + i);
}

void ThreadPool::help(int index) {
  Helper& self = helpers_[static_cast<size_t>(index - 1)];
  self.thread_id.store(current_thread(), std::memory_order_relaxed);
  if (!cpus_.empty()) keep_on_cpus(std::span(&cpus_[static_cast<size_t>(index)], 1));
  const ops::FlushToZero mode;
  for (int seen = 0;;) {
    wait_for_job(seen);
    seen = published_.load(std::memory_order_acquire);
    if (seen < 0) return;
    const int job = seen & (kMostJobs - 1);
    fetch(jobs_[static_cast<size_t>(job)], index);
    // The caller publishes another job before it looks which helpers are inside this one. So either it sees
    // this thread there, or this thread sees that job.
    self.inside.store(job + 1);
    if (published_.load() == seen) take_part(jobs_[static_cast<size_t>(job)], index);
    self.inside.store(0, std::memory_order_release);
  }
}

void ThreadPool::take_part(Job& job, int index) {
  if (job.parts[static_cast<size_t>(index)].barred) return;
  do {
    if (job.compute) {
      compute_own(job, index);
    } else {
      run_own(job, index);
    }
  } while (steal(job, index, false) >= 0);
}

void ThreadPool::pin(int index) {
  if (cpus_.empty() || pinned_caller_ == std::this_thread::get_id()) return;
  keep_on_cpus(std::span(&cpus_[static_cast<size_t>(index)], 1));
  pinned_caller_ = std::this_thread::get_id();
}

}  // namespace kvasir
