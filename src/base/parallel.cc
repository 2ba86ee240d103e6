#include "base/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace kvasir {

void run_parallel(size_t count, int threads, const std::function<void(size_t)>& work) {
  const size_t cores =
      threads > 0 ? static_cast<size_t>(threads) : std::max<size_t>(1, std::thread::hardware_concurrency());
  std::atomic<size_t> next{0};
  std::mutex mutex;
  std::exception_ptr thrown;  // guarded by mutex; out of memory, most likely
  const auto take = [&] {
    try {
      for (size_t i = next++; i < count; i = next++) work(i);
    } catch (...) {
      const std::lock_guard lock(mutex);
      thrown = std::current_exception();
      next = count;
    }
  };
  std::vector<std::thread> others;
  for (size_t i = 1; i < std::min(cores, count); ++i) others.emplace_back(take);
  take();
  for (std::thread& t : others) t.join();
  if (thrown) std::rethrow_exception(thrown);
}

}  // namespace kvasir
