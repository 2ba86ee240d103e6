// mallopt(3).
#include "base/heap.h"

#include <malloc.h>

#include <utility>

namespace kvasir {
namespace {

thread_local bool waits_for_memory = false;

}  // namespace

void give_back_large_blocks() {
  // A value that is set does not change by itself any more.
  constexpr int kOwnMappingBytes = 4 << 20;
  // At the end of a heap, so that it does not shrink and grow all the time.
  constexpr int kSpareBytes = 4 << 20;
  mallopt(M_MMAP_THRESHOLD, kOwnMappingBytes);
  mallopt(M_TRIM_THRESHOLD, kSpareBytes);
}

WaitsForMemory::WaitsForMemory() noexcept : before_(std::exchange(waits_for_memory, true)) {}
WaitsForMemory::~WaitsForMemory() {
  waits_for_memory = before_;
}
bool WaitsForMemory::on() noexcept {
  return waits_for_memory;
}

}  // namespace kvasir
