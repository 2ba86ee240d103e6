// Allocations that fail when a test says so. A program that links this has its own operator new.
#pragma once

#include <cstdint>

#include "support/levels.h"

namespace kvasir::test {

// Of the allocations from now on that count, the `first`th (1: the next) fails, and those behind it up to
// `count` in all. Which count: those of every thread, or only of threads within an Enlisted; never those
// within a Spared. Of the two, the inner one counts. Ends what was begun before.
//
// A destructor of the JSON library allocates, and the library does not survive a failure there. These
// allocations are passed over; in the binary they wait for memory (apps/patient_new.cc).
enum class Counted : uint8_t { kEnlistedThreads, kEveryThread };
void fail_allocations(uint64_t first, uint64_t count, Counted counted);
// None fails from now on. How many have come to failing: have failed, or were passed over.
struct Failures {
  uint64_t failed = 0;
  uint64_t passed_over = 0;
  bool any() const { return failed + passed_over > 0; }
};
Failures fail_no_more();

// From one allocation that fails to the next: all at the full level, else every third.
inline uint64_t next_failing(uint64_t k) {
  return k + (at_full_level() ? 1 : 3);
}

// Of this thread, until the end of its scope.
class Enlisted {
 public:
  Enlisted();
  ~Enlisted();
  Enlisted(const Enlisted&) = delete;
  Enlisted& operator=(const Enlisted&) = delete;

 private:
  const int before_;
};
class Spared {
 public:
  Spared();
  ~Spared();
  Spared(const Spared&) = delete;
  Spared& operator=(const Spared&) = delete;

 private:
  const int before_;
};

}  // namespace kvasir::test
