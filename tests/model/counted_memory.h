// Counts what a test program allocates: it replaces the program's operators new and delete.
#pragma once

#include <cstdint>

namespace kvasir::test {

// The most that has been allocated at a time since it was made, beyond what there was then. One at a time;
// not for programs with threads that allocate beside the test.
class PeakMemory {
 public:
  PeakMemory();
  uint64_t bytes() const;

 private:
  uint64_t before_ = 0;
};

}  // namespace kvasir::test
