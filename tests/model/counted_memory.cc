#include "model/counted_memory.h"

#include <malloc.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace kvasir::test {
namespace {

std::atomic<uint64_t> live_bytes{0}, peak_bytes{0};

void* counted(void* memory) {
  if (memory == nullptr) return nullptr;
  const uint64_t now = live_bytes += malloc_usable_size(memory);
  uint64_t peak = peak_bytes.load();
  while (peak < now && !peak_bytes.compare_exchange_weak(peak, now)) {
  }
  return memory;
}

void* allocate(size_t bytes) {
  return counted(std::malloc(bytes == 0 ? 1 : bytes));
}

void* allocate(size_t bytes, std::align_val_t alignment) {
  void* memory = nullptr;
  const int failed = posix_memalign(&memory, static_cast<size_t>(alignment), bytes);
  return failed != 0 ? nullptr : counted(memory);
}

void* or_throw(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void release(void* memory) {
  live_bytes -= malloc_usable_size(memory);
  std::free(memory);
}

}  // namespace

PeakMemory::PeakMemory() : before_(live_bytes) {
  peak_bytes = before_;
}

uint64_t PeakMemory::bytes() const {
  return peak_bytes - before_;
}

}  // namespace kvasir::test

using kvasir::test::allocate;
using kvasir::test::or_throw;
using kvasir::test::release;

void* operator new(size_t n) {
  return or_throw(allocate(n));
}
void* operator new[](size_t n) {
  return or_throw(allocate(n));
}
void* operator new(size_t n, const std::nothrow_t&) noexcept {
  return allocate(n);
}
void* operator new[](size_t n, const std::nothrow_t&) noexcept {
  return allocate(n);
}
void* operator new(size_t n, std::align_val_t a) {
  return or_throw(allocate(n, a));
}
void* operator new[](size_t n, std::align_val_t a) {
  return or_throw(allocate(n, a));
}
void* operator new(size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, a);
}
void* operator new[](size_t n, std::align_val_t a, const std::nothrow_t&) noexcept {
  return allocate(n, a);
}
void operator delete(void* p) noexcept {
  release(p);
}
void operator delete[](void* p) noexcept {
  release(p);
}
void operator delete(void* p, size_t) noexcept {
  release(p);
}
void operator delete[](void* p, size_t) noexcept {
  release(p);
}
void operator delete(void* p, std::align_val_t) noexcept {
  release(p);
}
void operator delete[](void* p, std::align_val_t) noexcept {
  release(p);
}
void operator delete(void* p, size_t, std::align_val_t) noexcept {
  release(p);
}
void operator delete[](void* p, size_t, std::align_val_t) noexcept {
  release(p);
}
