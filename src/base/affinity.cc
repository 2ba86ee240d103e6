#include "base/affinity.h"

#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <thread>

namespace kvasir {

std::vector<int> allowed_cpus() {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof(set), &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
    }
  }
  // More CPUs than the set holds: then at least their number is known.
  const int count = static_cast<int>(std::thread::hardware_concurrency());
  if (cpus.empty()) {
    for (int cpu = 0; cpu < count || cpu == 0; ++cpu) cpus.push_back(cpu);
  }
  return cpus;
}

bool keep_on_cpus(std::span<const int> cpus) {
  return keep_on_cpus(cpus, 0);  // to the system the caller is 0
}

bool keep_on_cpus(std::span<const int> cpus, int thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int cpu : cpus) {
    if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
    CPU_SET(cpu, &set);
  }
  return sched_setaffinity(thread, sizeof(set), &set) == 0;
}

int current_thread() {
  return static_cast<int>(syscall(SYS_gettid));
}

int current_cpu() {
  return sched_getcpu();
}

CpuShares share_cpus(std::span<const int> cpus, int threads, Pinning pinning) {
  const auto count = static_cast<int>(cpus.size());
  const bool worthwhile = count > 2 && threads >= count - 1;
  if (threads > count || pinning == Pinning::kOff || (pinning == Pinning::kAuto && !worthwhile)) return {};
  const auto first = cpus.begin() + (count - threads);
  return {{first, cpus.end()}, {cpus.begin(), first}};
}

}  // namespace kvasir
