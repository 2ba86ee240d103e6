// Which CPUs a thread runs on.
#pragma once

#include <span>
#include <vector>

namespace kvasir {

// The CPUs that the calling thread may use now, ascending; at least one.
std::vector<int> allowed_cpus();

// Keeps the calling thread, and those that it starts later, on these CPUs. False if the system refuses; then
// nothing changes, which costs speed only.
bool keep_on_cpus(std::span<const int> cpus);
// The same for another thread of the process, by its current_thread().
bool keep_on_cpus(std::span<const int> cpus, int thread);

// The system's number of the calling thread.
int current_thread();
// The CPU on which the calling thread runs; a moment later it may be another. -1: unknown.
int current_cpu();

// Whether compute threads are pinned, one to a CPU. kAuto: if there are more than two CPUs and the team takes
// all of them or all but one. Otherwise other threads are expected on the same CPUs, and a pinned thread
// would have to wait for them.
enum class Pinning { kAuto, kOn, kOff };

// The CPUs for a team of `threads` compute threads. A pinned team takes the last CPUs, and `others` are left
// for everything else (empty: all are shared). A team of more threads than CPUs is never pinned.
struct CpuShares {
  std::vector<int> team;  // empty: not pinned
  std::vector<int> others;
};
CpuShares share_cpus(std::span<const int> cpus, int threads, Pinning pinning);

}  // namespace kvasir
