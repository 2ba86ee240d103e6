// Micro-benchmarks of the link between memories. Its transfers are measured beside plain memcpy of the same
// segments by the same number of threads, in turns, each at its best (of_memcpy); then what a transfer costs
// beside its bytes, and how well an emulated link keeps its rate.
//
//   link_bench [--benchmark_filter=...]
#include <benchmark/benchmark.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "cache/tiers/memory_link.h"
#include "shares.h"

namespace kvasir {
namespace {

constexpr uint64_t kBytes = 96 * kMiB;  // per tier: larger than the caches
constexpr Nanos kLong = 100 * kNanosPerSecond;

// Both tiers' memory; written once, so that every page is there.
struct Memories {
  std::vector<std::byte> device = std::vector<std::byte>(kBytes, std::byte{1});
  std::vector<std::byte> host = std::vector<std::byte>(kBytes, std::byte{2});

  MemoryLinkOptions options(int threads) {
    MemoryLinkOptions o;
    o.memory = {std::span(device), std::span(host), {}};
    o.threads = threads;
    return o;
  }
};

// All of the device's memory to the host, in segments of this size: in place, or each from anywhere to
// anywhere.
std::vector<Segment> segments_of(uint64_t bytes, bool scattered) {
  std::vector<uint64_t> from(kBytes / bytes);
  std::iota(from.begin(), from.end(), 0);
  std::vector<uint64_t> to = from;
  Random random(3);
  for (uint64_t i = from.size(); scattered && i > 1; --i) {
    std::swap(from[i - 1], from[random.below(i)]);
    std::swap(to[i - 1], to[random.below(i)]);
  }
  std::vector<Segment> segments;
  for (size_t i = 0; i < from.size(); ++i) {
    segments.push_back({{from[i] * bytes, Tier::kDevice}, {to[i] * bytes, Tier::kHost}, bytes});
  }
  return segments;
}

Nanos copy_plainly(Memories& memories, const std::vector<Segment>& segments, int threads,
                   const MonotonicClock& clock) {
  std::atomic<int> here{0};
  std::atomic<bool> go{false};
  std::vector<std::thread> others;
  const auto copy_share = [&](size_t thread) {
    const size_t n = segments.size();
    const auto share = static_cast<size_t>(threads);
    for (size_t i = n * thread / share; i < n * (thread + 1) / share; ++i) {
      const Segment& s = segments[i];
      std::memcpy(memories.host.data() + s.to.offset, memories.device.data() + s.from.offset, s.bytes);
    }
  };
  for (int i = 1; i < threads; ++i) {
    others.emplace_back([&, i] {
      ++here;
      go.wait(false);
      copy_share(static_cast<size_t>(i));
    });
  }
  while (here.load() < threads - 1) std::this_thread::yield();
  const Nanos begin = clock.now();
  go = true;
  go.notify_all();
  copy_share(0);
  for (std::thread& t : others) t.join();
  return clock.now() - begin;
}

void throughput(benchmark::State& state, Memories* memories, uint64_t segment_bytes, bool scattered,
                int threads) {
  const MonotonicClock clock;
  MemoryLink link(memories->options(threads), clock);
  const std::vector<Segment> segments = segments_of(segment_bytes, scattered);
  uint64_t n = 0;
  Nanos best = std::numeric_limits<Nanos>::max();
  Nanos best_plain = best;
  for (auto _ : state) {
    best_plain = std::min(best_plain, copy_plainly(*memories, segments, threads, clock));
    Transfer transfer{TransferId{++n}, TransferPriority::kOffload, {}, segments};
    const Nanos begin = clock.now();
    link.start(std::move(transfer));
    link.wait(TransferId{n}, kLong);
    const Nanos took = clock.now() - begin;
    best = std::min(best, took);
    state.SetIterationTime(to_seconds(took));
  }
  state.counters["best_GB/s"] = static_cast<double>(kBytes) / static_cast<double>(best);
  state.counters["memcpy_GB/s"] = static_cast<double>(kBytes) / static_cast<double>(best_plain);
  state.counters["of_memcpy"] = static_cast<double>(best_plain) / static_cast<double>(best);
}

// Transfers of a cache line, `depth` of them started and then waited for: 1 is a lone transfer, which wakes
// the link's thread and then the caller.
void overhead(benchmark::State& state, Memories* memories) {
  const MonotonicClock clock;
  MemoryLink link(memories->options(1), clock);
  const auto depth = static_cast<uint64_t>(state.range(0));
  uint64_t n = 0;
  for (auto _ : state) {
    for (uint64_t i = 0; i < depth; ++i) {
      link.start({TransferId{++n},
                  TransferPriority::kNeededNow,
                  {},
                  {{{64 * i, Tier::kHost}, {64 * i, Tier::kDevice}, 64}}});
    }
    link.wait(TransferId{n}, kLong);
    benchmark::DoNotOptimize(link.completed());
  }
  state.SetItemsProcessed(static_cast<int64_t>(n));
  state.counters["latency_ns"] = 1e9 * link.stats().latency_s;
}

// Half a second's worth of transfers, queued before the first of them moves.
void emulated(benchmark::State& state, Memories* memories) {
  const double rate = 1e6 * static_cast<double>(state.range(0));
  const MonotonicClock clock;
  MemoryLinkOptions options = memories->options(1);
  options.emulated_bytes_per_s = rate;
  MemoryLink link(options, clock);
  const auto bytes = static_cast<uint64_t>(state.range(1)) * kKiB;
  const auto count = static_cast<uint64_t>(0.5 * rate / static_cast<double>(bytes));
  uint64_t n = 0;
  double seconds = 0;
  for (auto _ : state) {
    link.stand_still(true);
    for (uint64_t i = 0; i < count; ++i) {
      const uint64_t offset = i * bytes % (kBytes - bytes);
      link.start({TransferId{++n},
                  TransferPriority::kPrefetch,
                  {},
                  {{{offset, Tier::kHost}, {offset, Tier::kDevice}, bytes}}});
    }
    const Nanos begin = clock.now();
    link.stand_still(false);
    link.wait(TransferId{n}, kLong);
    const Nanos took = clock.now() - begin;
    state.SetIterationTime(to_seconds(took));
    seconds += to_seconds(took);
  }
  const double seen = static_cast<double>(n * bytes) / seconds;
  state.counters["rate_error_%"] = 100 * (seen / rate - 1);
  state.counters["cpu_%"] = 100 * link.stats().cpu_s / seconds;
}

void register_all(Memories* memories) {
  for (int threads : {1, 2}) {
    for (uint64_t bytes : {4 * kKiB, 24 * kKiB, 256 * kKiB, 4 * kMiB}) {
      for (bool scattered : {false, true}) {
        const std::string name = "throughput/" + std::to_string(bytes / kKiB) + "KiB/" +
                                 (scattered ? "scattered" : "contiguous") + "/threads" +
                                 std::to_string(threads);
        benchmark::RegisterBenchmark(name.c_str(), throughput, memories, bytes, scattered, threads)
            ->UseManualTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  benchmark::RegisterBenchmark("overhead/depth", overhead, memories)
      ->Arg(1)
      ->Arg(64)
      ->Arg(1024)
      ->UseRealTime()
      ->Unit(benchmark::kMicrosecond);
  benchmark::RegisterBenchmark("emulated/MB_per_s/KiB", emulated, memories)
      ->ArgsProduct({{100, 1000, 4000}, {24, 2048}})
      ->UseManualTime()
      ->Unit(benchmark::kMillisecond);
}

}  // namespace
}  // namespace kvasir

int main(int argc, char** argv) {
  kvasir::Memories memories;
  kvasir::register_all(&memories);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  kvasir::bench::ShareReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  return 0;
}
