// The binary's operator new where the system has no memory to give.
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <new>
#include <stdexcept>
#include <thread>

#include "base/heap.h"

namespace kvasir::test {
namespace {

constexpr size_t kLarge = 64 << 20;

// The process gets no more address space than it has.
class NoMemory {
 public:
  NoMemory() {
    getrlimit(RLIMIT_AS, &before_);
    uint64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    rlimit tight = before_;
    tight.rlim_cur = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    setrlimit(RLIMIT_AS, &tight);
  }
  ~NoMemory() { setrlimit(RLIMIT_AS, &before_); }

 private:
  rlimit before_{};
};

// On a thread that is there before memory is missing. Whether the allocation was had; it is freed.
template <typename F>
bool had_once_there_is_memory(const F& allocate) {
  std::atomic<bool> go{false}, had{false};
  std::thread thread([&] {
    go.wait(false);
    try {
      allocate();
      had = true;
    } catch (const std::bad_alloc&) {
      had = false;
    }
  });
  {
    const NoMemory none;
    go = true;
    go.notify_all();
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  thread.join();
  return had;
}

void allocate_large() {
  ::operator delete(::operator new(kLarge));
}

class PatientNew : public testing::Test {
 protected:
  void SetUp() override {
#if defined(KVASIR_SANITIZED)
    GTEST_SKIP() << "a sanitizer has an operator new of its own";
#endif
  }
};

TEST_F(PatientNew, ALargeAllocationFailsAtOnce) {
  EXPECT_FALSE(had_once_there_is_memory(allocate_large));
}

TEST_F(PatientNew, WhatCannotFailWaits) {
  EXPECT_TRUE(had_once_there_is_memory([] {
    const WaitsForMemory patient;
    allocate_large();
  }));
  EXPECT_FALSE(WaitsForMemory::on());
}

struct AllocatesAtItsEnd {
  ~AllocatesAtItsEnd() { allocate_large(); }
};

TEST_F(PatientNew, SoDoDestructorsThatAnExceptionRuns) {
  EXPECT_TRUE(had_once_there_is_memory([] {
    try {
      const AllocatesAtItsEnd last;
      throw std::runtime_error("a fault");
    } catch (const std::runtime_error&) {
      return;
    }
  }));
}

}  // namespace
}  // namespace kvasir::test
