// Time that is spent, and not time that passes: what others do on a shared machine adds nothing to it.
#pragma once

#include <ctime>

#include "base/clock.h"

namespace kvasir::bench {

// CPU time of the calling thread, or of all threads of the process. What waits in a loop counts, too: of a
// team of several threads it says little.
class CpuClock final : public Clock {
 public:
  enum class Of { kThread, kProcess };
  explicit CpuClock(Of of) : id_(of == Of::kThread ? CLOCK_THREAD_CPUTIME_ID : CLOCK_PROCESS_CPUTIME_ID) {}
  Nanos now() const override {
    timespec t{};
    clock_gettime(id_, &t);
    return t.tv_sec * kNanosPerSecond + t.tv_nsec;
  }

 private:
  const clockid_t id_;
};

}  // namespace kvasir::bench
