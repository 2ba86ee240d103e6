// What this machine can do at most: products per second in registers, bytes per second from memory. A
// kernel's speed says little alone; beside these it says how much is left.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

#include "peak_loops.h"

namespace kvasir::bench {

// 10^9 operations per second of `threads` threads together: the best of many short runs, because the machine
// may have other work; of one thread, per second of its own CPU time. Takes about 0.4 s. REQUIRES:
// loop.supported, threads >= 1
double measure_peak(const PeakLoop& loop, int threads);

enum class Pages : uint8_t { kSmall, kHuge };

struct Bandwidth {
  double gbytes_per_s = 0;  // of all threads together, reading in sequence: the best pass
  int streams = 0;          // places of a thread's share that are read in turn, in that pass
  double huge_share = 0;    // of the buffer, in huge pages, as the operating system tells
};

// The size of buffer to measure with: eight times the last cache, at least 256 MiB and at most 1 GiB, and no
// more than a quarter of the memory that is free.
size_t bandwidth_buffer_bytes();

// Reads a buffer of `bytes` again and again, each thread its own share, for about a second. Zeroes where the
// buffer cannot be had. REQUIRES: threads >= 1, bytes >= 1 MiB per thread
Bandwidth measure_bandwidth(Pages pages, int threads, size_t bytes);

// The limits of one thread, each measured when it is first asked for. Not thread-safe.
class ThreadLimits {
 public:
  // 10^9 operations per second in vectors of this many bits, by the fastest loop that the CPU has; 0: it has
  // none.
  double peak(Product product, int vector_bits);
  // GB/s, with the kind of pages that is faster.
  double bandwidth();

 private:
  std::map<std::pair<Product, int>, double> peaks_;
  double bandwidth_ = -1;  // negative: not measured
};

}  // namespace kvasir::bench
