#include "fakes/fake_memory_map.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

#include "base/check.h"

namespace kvasir::test {
namespace {

constexpr uint64_t kAlignment = 256;

std::byte* reserve(uint64_t bytes, int protection) {
  void* memory = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  KV_CHECK(memory != MAP_FAILED, "mmap of {} bytes", bytes);
  return static_cast<std::byte*>(memory);
}

}  // namespace

FakeMemoryMap::FakeMemoryMap(uint64_t device_bytes)
    : device_(reserve(device_bytes, PROT_NONE)),
      bytes_(reserve(device_bytes, PROT_READ | PROT_WRITE)),
      shift_(bytes_ - device_),
      size_(device_bytes) {}

FakeMemoryMap::~FakeMemoryMap() {
  for (const auto& [memory, piece] : pieces_) {
    if (!piece.on_device) std::free(memory);
  }
  munmap(device_, size_);
  munmap(bytes_, size_);
}

// Addresses are not used twice, so that an old one is always a bad one.
std::byte* FakeMemoryMap::allocate(uint64_t bytes) {
  const uint64_t room = (bytes + 2 * kAlignment - 1) / kAlignment * kAlignment;  // with a gap
  if (used_ + room > size_) return nullptr;
  std::byte* const memory = device_ + used_;
  used_ += room;
  std::memset(shadow(memory), 0xFF, bytes);
  pieces_[memory] = {bytes, true};
  return memory;
}

std::byte* FakeMemoryMap::allocate_pinned(uint64_t bytes) {
  void* memory = std::aligned_alloc(kAlignment, (bytes + kAlignment - 1) / kAlignment * kAlignment);
  if (memory == nullptr) return nullptr;
  std::memset(memory, 0xFF, bytes);
  pieces_[static_cast<std::byte*>(memory)] = {bytes, false};
  return static_cast<std::byte*>(memory);
}

void FakeMemoryMap::release(std::byte* memory) {
  const auto found = pieces_.find(memory);
  KV_CHECK(found != pieces_.end(), "nothing is allocated here");
  if (found->second.on_device) {
    std::memset(shadow(memory), 0xFF, found->second.bytes);
  } else {
    std::free(memory);
  }
  pieces_.erase(found);
}

std::byte* FakeMemoryMap::real(std::byte* address, uint64_t bytes) const {
  auto after = pieces_.upper_bound(address);
  if (after != pieces_.begin()) {
    const auto& [begin, piece] = *--after;
    if (address >= begin && static_cast<uint64_t>(address - begin) + bytes <= piece.bytes) {
      return piece.on_device ? shadow(address) : address;
    }
  }
  throw BadAddress("a kernel used an address that is not allocated");
}

}  // namespace kvasir::test
