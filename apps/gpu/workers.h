// Loops over all cores of the host.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace kvasir::gpu_program {

// body(i) for each i in [0, count), on all cores, in any order.
template <typename Body>
void on_all_cores(int64_t count, const Body& body) {
  std::atomic<int64_t> next{0};
  const auto work = [&] {
    for (int64_t i = next++; i < count; i = next++) body(i);
  };
  std::vector<std::jthread> threads;
  for (unsigned i = 1; i < std::thread::hardware_concurrency(); ++i) threads.emplace_back(work);
  work();
}

}  // namespace kvasir::gpu_program
