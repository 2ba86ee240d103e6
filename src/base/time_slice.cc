// sched_setattr(2), for which the C library has no function.
#include "base/time_slice.h"

#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace kvasir {
namespace {

// As the kernel lays it out. For an ordinary thread `runtime_ns` is its slice.
struct SchedulingOfThread {
  uint32_t size = sizeof(SchedulingOfThread);
  uint32_t policy = 0;
  uint64_t flags = 0;
  int32_t nice = 0;
  uint32_t priority = 0;
  uint64_t runtime_ns = 0;
  uint64_t deadline_ns = 0;
  uint64_t period_ns = 0;
};

constexpr uint64_t kShortestSlice = 100'000;  // that the kernel gives
constexpr uint64_t kNotForItsThreads = 1;     // SCHED_FLAG_RESET_ON_FORK

bool get(SchedulingOfThread* s) {
  return syscall(SYS_sched_getattr, 0, s, sizeof(*s), 0) == 0;
}

}  // namespace

bool ask_for_short_slices() {
  SchedulingOfThread wanted;
  if (!get(&wanted)) return false;
  wanted.runtime_ns = kShortestSlice;
  wanted.flags |= kNotForItsThreads;
  if (syscall(SYS_sched_setattr, 0, &wanted, 0) != 0) return false;
  // Older kernels do not look at the number.
  SchedulingOfThread now;
  return get(&now) && now.runtime_ns == kShortestSlice;
}

}  // namespace kvasir
