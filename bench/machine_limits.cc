#include "machine_limits.h"

#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvasir::bench {
namespace {

using Clock = std::chrono::steady_clock;

// Short runs find the moments in which the cores are idle otherwise.
constexpr double kPeakRunSeconds = 2e-3;
constexpr double kPeakSeconds = 0.4;
constexpr double kBandwidthSeconds = 0.25;  // for each number of streams
constexpr int kMinRuns = 5;
constexpr size_t kMiB = size_t{1} << 20;
constexpr size_t kHugePage = 2 * kMiB;

double seconds(Clock::duration d) {
  return std::chrono::duration<double>(d).count();
}

double thread_cpu_seconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<double>(t.tv_sec) + 1e-9 * static_cast<double>(t.tv_nsec);
}

// Repeats one run until `budget_s` is over, at least kMinRuns times. `run` returns its seconds; so does this,
// of the fastest.
double fastest(double budget_s, const std::function<double()>& run) {
  const Clock::time_point start = Clock::now();
  double best = run();
  for (int runs = 1; runs < kMinRuns || seconds(Clock::now() - start) < budget_s; ++runs)
    best = std::min(best, run());
  return best;
}

// Seconds of the fastest run of work(thread) on all threads. One thread counts its own CPU time, as the
// benchmarks do, so that another process on the core does not matter; several count from when all are ready
// until the last has finished, because what they share they must share at the same time.
double fastest_run(int threads, double budget_s, const std::function<void(int)>& work) {
  if (threads == 1) {
    return fastest(budget_s, [&] {
      const double begin = thread_cpu_seconds();
      work(0);
      return thread_cpu_seconds() - begin;
    });
  }
  std::barrier gate(threads);
  std::vector<Clock::time_point> begin(static_cast<size_t>(threads)), end(begin.size());
  std::atomic<bool> over = false;
  auto take_part = [&](int thread) {
    const auto self = static_cast<size_t>(thread);
    gate.arrive_and_wait();
    begin[self] = Clock::now();
    work(thread);
    end[self] = Clock::now();
    gate.arrive_and_wait();
  };
  std::vector<std::thread> others;
  for (int i = 1; i < threads; ++i) {
    others.emplace_back([&, i] {
      for (gate.arrive_and_wait(); !over.load(); gate.arrive_and_wait()) take_part(i);
    });
  }
  const double best = fastest(budget_s, [&] {
    gate.arrive_and_wait();  // the others see that it goes on
    take_part(0);
    return seconds(*std::max_element(end.begin(), end.end()) - *std::min_element(begin.begin(), begin.end()));
  });
  over.store(true);
  gate.arrive_and_wait();
  for (std::thread& t : others) t.join();
  return best;
}

// An anonymous mapping that begins at a huge page's boundary; null where there is no memory for it.
class Buffer {
 public:
  Buffer(size_t bytes, Pages pages) : mapped_bytes_(bytes + kHugePage) {
    mapping_ = mmap(nullptr, mapped_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapping_ == MAP_FAILED) return;
    const auto address = reinterpret_cast<uintptr_t>(mapping_);
    data_ = reinterpret_cast<std::byte*>((address + kHugePage - 1) / kHugePage * kHugePage);
    // Where the advice is not taken, huge_share shows it.
    (void)madvise(data_, bytes, pages == Pages::kHuge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    std::memset(data_, 1, bytes);  // an unwritten page is the one page of zeros
  }
  ~Buffer() {
    if (mapping_ != MAP_FAILED) munmap(mapping_, mapped_bytes_);
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  const std::byte* data() const { return data_; }

 private:
  size_t mapped_bytes_;
  void* mapping_;
  std::byte* data_ = nullptr;
};

// A field of a file of /proc in kB, as bytes; 0 where it is not there.
size_t proc_bytes(const char* file, const std::string& field) {
  std::ifstream in(file);
  std::string word;
  while (in >> word) {
    size_t kb = 0;
    if (word == field && in >> kb) return kb * 1024;
  }
  return 0;
}

size_t huge_bytes() {
  return proc_bytes("/proc/self/smaps_rollup", "AnonHugePages:");
}

constexpr size_t kLine = 64;

// Reads a cache line of each stream in turn. REQUIRES: `stream_bytes` is a multiple of kLine.
uint64_t read_lines_portable(const std::byte* data, size_t stream_bytes, int streams) {
  uint64_t any = 0;
  for (size_t at = 0; at < stream_bytes; at += kLine) {
    for (int s = 0; s < streams; ++s) {
      uint64_t words[kLine / sizeof(uint64_t)];
      std::memcpy(words, data + static_cast<size_t>(s) * stream_bytes + at, kLine);
      for (uint64_t w : words) any |= w;
    }
  }
  return any;
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) uint64_t read_lines_avx2(const std::byte* data, size_t stream_bytes,
                                                         int streams) {
  __m256i any = _mm256_setzero_si256();
  for (size_t at = 0; at < stream_bytes; at += kLine) {
    for (int s = 0; s < streams; ++s) {
      const auto* line = reinterpret_cast<const __m256i*>(data + static_cast<size_t>(s) * stream_bytes + at);
      any = _mm256_or_si256(any, _mm256_or_si256(_mm256_load_si256(line), _mm256_load_si256(line + 1)));
    }
  }
  return static_cast<uint64_t>(_mm256_extract_epi64(any, 0));
}
#endif

uint64_t read_lines(const std::byte* data, size_t stream_bytes, int streams) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return read_lines_avx2(data, stream_bytes, streams);
#endif
  return read_lines_portable(data, stream_bytes, streams);
}

}  // namespace

double measure_peak(const PeakLoop& loop, int threads) {
  // Enough rounds for one run, found by doubling; the first runs also wake the wide units.
  int64_t rounds = 1000;
  for (;; rounds *= 2) {
    const Clock::time_point start = Clock::now();
    loop.run(rounds);
    if (seconds(Clock::now() - start) >= kPeakRunSeconds) break;
  }
  const double best = fastest_run(threads, kPeakSeconds, [&](int) { loop.run(rounds); });
  return 1e-9 * loop.operations * static_cast<double>(rounds) * threads / best;
}

size_t bandwidth_buffer_bytes() {
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const size_t wanted = std::clamp(8 * static_cast<size_t>(std::max(cache, 0L)), 256 * kMiB, 1024 * kMiB);
  const size_t free = proc_bytes("/proc/meminfo", "MemAvailable:");
  return std::max(std::min(wanted, free / 4), 16 * kMiB) / kHugePage * kHugePage;
}

Bandwidth measure_bandwidth(Pages pages, int threads, size_t bytes) {
  const size_t huge_before = huge_bytes();
  const Buffer buffer(bytes, pages);
  if (buffer.data() == nullptr) return {};
  Bandwidth result;
  const size_t huge_now = huge_bytes();
  result.huge_share =
      static_cast<double>(huge_now - std::min(huge_before, huge_now)) / static_cast<double>(bytes);
  std::atomic<uint64_t> seen = 0;
  for (int streams : {1, 2, 4, 8, 16}) {
    const size_t stream_bytes =
        bytes / static_cast<size_t>(threads) / static_cast<size_t>(streams) / kLine * kLine;
    const size_t thread_bytes = stream_bytes * static_cast<size_t>(streams);
    const double best = fastest_run(threads, kBandwidthSeconds, [&](int thread) {
      seen |= read_lines(buffer.data() + static_cast<size_t>(thread) * thread_bytes, stream_bytes, streams);
    });
    const double rate = 1e-9 * static_cast<double>(thread_bytes) * threads / best;
    if (rate > result.gbytes_per_s) {
      result.gbytes_per_s = rate;
      result.streams = streams;
    }
  }
  return result;
}

double ThreadLimits::peak(Product product, int vector_bits) {
  const auto [found, fresh] = peaks_.try_emplace({product, vector_bits}, 0.0);
  if (fresh) {
    for (const PeakLoop& loop : peak_loops()) {
      if (loop.product != product || loop.vector_bits != vector_bits || !loop.supported) continue;
      found->second = std::max(found->second, measure_peak(loop, 1));
    }
  }
  return found->second;
}

double ThreadLimits::bandwidth() {
  if (bandwidth_ < 0) {
    const size_t bytes = bandwidth_buffer_bytes();
    bandwidth_ = std::max(measure_bandwidth(Pages::kSmall, 1, bytes).gbytes_per_s,
                          measure_bandwidth(Pages::kHuge, 1, bytes).gbytes_per_s);
  }
  return bandwidth_;
}

}  // namespace kvasir::bench
