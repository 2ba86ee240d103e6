// The counters that put a benchmark's speed beside what the machine can do. Included by micro-benchmarks
// only.
#pragma once

#include <benchmark/benchmark.h>

#include <string>
#include <vector>

#include "machine_limits.h"

namespace kvasir::bench {

// GOP/s of `operations` per iteration, and as of_int8_peak (or of_fp32_peak, of_bf16_peak) their share of
// what one thread can do in registers with vectors of this many bits; no share where the CPU has no such
// instruction.
inline void count_operations(benchmark::State& state, ThreadLimits& limits, Product product, int vector_bits,
                             double operations) {
  const double giga = 1e-9 * operations * static_cast<double>(state.iterations());
  state.counters["GOP/s"] = benchmark::Counter(giga, benchmark::Counter::kIsRate);
  const double peak = limits.peak(product, vector_bits);
  if (peak == 0) return;
  state.counters[std::string("of_") + product_name(product) + "_peak"] =
      benchmark::Counter(giga / peak, benchmark::Counter::kIsRate);
}

// GB/s of `bytes` per iteration and, where they come from memory and not from a cache, their share of what
// one thread can read as of_bandwidth.
inline void count_bytes(benchmark::State& state, ThreadLimits& limits, double bytes, bool from_memory) {
  const double giga = 1e-9 * bytes * static_cast<double>(state.iterations());
  state.counters["GB/s"] = benchmark::Counter(giga, benchmark::Counter::kIsRate);
  if (!from_memory) return;
  state.counters["of_bandwidth"] = benchmark::Counter(giga / limits.bandwidth(), benchmark::Counter::kIsRate);
}

// The console's table, in which the shares are plain numbers: they are rates only in how they are computed.
class ShareReporter final : public benchmark::ConsoleReporter {
 public:
  ShareReporter() : ConsoleReporter(OO_Tabular) {}

  void ReportRuns(const std::vector<Run>& runs) override {
    std::vector<Run> shown = runs;
    for (Run& run : shown) {
      for (auto& [name, counter] : run.counters) {
        if (name.rfind("of_", 0) == 0) counter.flags = benchmark::Counter::kDefaults;
      }
    }
    ConsoleReporter::ReportRuns(shown);
  }
};

}  // namespace kvasir::bench
