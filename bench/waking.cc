// How late a thread wakes that sleeps 5 ms and then works for 0.1 ms, beside threads of the same program that
// compute all the time, and whatever else the machine does.
//
// waking [SECONDS=10] [COMPUTING=2]
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::duration<double, std::milli>;

constexpr auto kSleep = std::chrono::milliseconds(5);
constexpr auto kWork = std::chrono::microseconds(100);

std::vector<double> latenesses(const std::atomic<bool>& stop) {
  std::vector<double> late_ms;
  Clock::time_point at = Clock::now();
  while (!stop) {
    at = std::max(at, Clock::now()) + kSleep;
    std::this_thread::sleep_until(at);
    const Clock::time_point woken = Clock::now();
    late_ms.push_back(Milliseconds(woken - at).count());
    while (Clock::now() < woken + kWork) {
    }
  }
  std::sort(late_ms.begin(), late_ms.end());
  return late_ms;
}

}  // namespace

int main(int argc, char** argv) {
  const int seconds = argc > 1 ? std::atoi(argv[1]) : 10;
  const int computing = argc > 2 ? std::atoi(argv[2]) : 2;
  if (seconds < 1 || computing < 0) {
    fmt::print(stderr, "usage: waking [SECONDS=10] [COMPUTING=2]\n");
    return 2;
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int i = 0; i < computing; ++i) {
    threads.emplace_back([&] {
      while (!stop) {
      }
    });
  }
  std::vector<double> late_ms;
  threads.emplace_back([&] { late_ms = latenesses(stop); });
  std::this_thread::sleep_for(std::chrono::seconds(seconds));
  stop = true;
  for (std::thread& thread : threads) thread.join();
  const auto quantile = [&](double q) {
    return late_ms[static_cast<size_t>(q * static_cast<double>(late_ms.size() - 1))];
  };
  fmt::print("woken {} times, late by p50 {:.3f}, p90 {:.3f}, p99 {:.3f}, at most {:.3f} ms\n",
             late_ms.size(), quantile(0.5), quantile(0.9), quantile(0.99), late_ms.back());
  return 0;
}
