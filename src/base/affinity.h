// On which CPUs a thread runs.
#pragma once

#include <span>
#include <vector>

namespace kvasir {

// The CPUs that the calling thread may use now, ascending; at least one.
std::vector<int> allowed_cpus();

// Keeps the calling thread, and those that it starts later, on these CPUs. False, and nothing changes, if the
// system refuses; for threads that compute that costs speed only.
bool keep_on_cpus(std::span<const int> cpus);

// Whether threads that compute are pinned, one to a CPU. kAuto: where there are more than two CPUs and the
// team takes all of them or all but one. With two, or with a smaller team, others are expected on the same
// CPUs, and a thread that cannot move waits for them.
enum class Pinning { kAuto, kOn, kOff };

// Who runs where, for a team of `threads` that compute. A pinned team takes the last CPUs, and `others` are
// left for everything else (empty: all are shared). A team of more threads than CPUs is never pinned.
struct CpuShares {
  std::vector<int> team;  // empty: not pinned
  std::vector<int> others;
};
CpuShares share_cpus(std::span<const int> cpus, int threads, Pinning pinning);

}  // namespace kvasir
