#include "memory/failing_new.h"

#include <dlfcn.h>
#include <execinfo.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <new>
#include <string_view>
#include <utility>

namespace kvasir::test {
namespace {

std::atomic<bool> armed{false};
std::atomic<bool> every_thread{false};
std::atomic<uint64_t> first_failing{0};
std::atomic<uint64_t> end_failing{0};
std::atomic<uint64_t> allocations{0};
std::atomic<uint64_t> failed{0};
std::atomic<uint64_t> passed_over{0};
enum Mode : int { kNeutral, kEnlisted, kSpared };
thread_local int mode = kNeutral;

// Without memory of its own, but for the first call.
bool in_json_destructor() {
  std::array<void*, 48> frames;
  const int depth = backtrace(frames.data(), static_cast<int>(frames.size()));
  for (int i = 0; i < depth; ++i) {
    Dl_info info;
    if (dladdr(frames[static_cast<size_t>(i)], &info) == 0 || info.dli_sname == nullptr) continue;
    const std::string_view name(info.dli_sname);
    if (name.find("nlohmann") != std::string_view::npos && name.find("destroy") != std::string_view::npos) {
      return true;
    }
  }
  return false;
}

bool fails() {
  if (!armed || mode == kSpared || (mode == kNeutral && !every_thread)) return false;
  const uint64_t number = allocations.fetch_add(1) + 1;
  if (number < first_failing || number >= end_failing) return false;
  const Spared spared;
  if (in_json_destructor()) {
    ++passed_over;
    return false;
  }
  ++failed;
  return true;
}

void* take(size_t bytes) {
  void* memory = fails() ? nullptr : std::malloc(std::max<size_t>(bytes, 1));
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void* take_aligned(size_t bytes, std::align_val_t alignment) {
  void* memory = nullptr;
  const auto align = std::max(static_cast<size_t>(alignment), sizeof(void*));
  if (fails() || posix_memalign(&memory, align, std::max<size_t>(bytes, 1)) != 0) throw std::bad_alloc();
  return memory;
}

}  // namespace

void fail_allocations(uint64_t first, uint64_t count, Counted counted) {
  armed = false;
  every_thread = counted == Counted::kEveryThread;
  first_failing = first;
  end_failing = first + count;
  allocations = 0;
  failed = 0;
  passed_over = 0;
  in_json_destructor();
  armed = true;
}

Failures fail_no_more() {
  armed = false;
  return {failed, passed_over};
}

Enlisted::Enlisted() : before_(std::exchange(mode, kEnlisted)) {}
Enlisted::~Enlisted() {
  mode = before_;
}
Spared::Spared() : before_(std::exchange(mode, kSpared)) {}
Spared::~Spared() {
  mode = before_;
}

}  // namespace kvasir::test

void* operator new(size_t bytes) {
  return kvasir::test::take(bytes);
}
void* operator new[](size_t bytes) {
  return kvasir::test::take(bytes);
}
void* operator new(size_t bytes, std::align_val_t alignment) {
  return kvasir::test::take_aligned(bytes, alignment);
}
void* operator new[](size_t bytes, std::align_val_t alignment) {
  return kvasir::test::take_aligned(bytes, alignment);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

#if defined(KVASIR_SANITIZED)
// The JSON library's constructor from a list loses what it has begun where a later part finds no memory.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() {
  return "leak:nlohmann::json_abi";
}
#endif
