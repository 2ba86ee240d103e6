// Short time slices: of the thread that asks, and of no other.
#include "base/time_slice.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <thread>

namespace kvasir {
namespace {

// Nanoseconds, as the system has it for the calling thread; 0: it has none.
uint64_t slice() {
  std::array<uint64_t, 6> attributes{};  // struct sched_attr, 48 bytes; the slice is the fourth eight
  return syscall(SYS_sched_getattr, 0, attributes.data(), sizeof(attributes), 0) == 0 ? attributes[3] : 0;
}

TEST(TimeSlice, IsShortForTheThreadThatAsks) {
  const uint64_t before = slice();
  bool granted = false;
  uint64_t own = 0, of_started = 0;
  std::thread([&] {
    granted = ask_for_short_slices();
    own = slice();
    std::thread([&] { of_started = slice(); }).join();
  }).join();
  EXPECT_EQ(slice(), before);
  EXPECT_EQ(of_started, before);
  if (before == 0) {
    EXPECT_FALSE(granted) << "this system has no slices that a thread may ask for";
  } else {
    EXPECT_TRUE(granted);
    EXPECT_LT(own, before);
  }
}

}  // namespace
}  // namespace kvasir
