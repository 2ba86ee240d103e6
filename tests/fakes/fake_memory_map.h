// The addresses of a fake GPU's memory and where their bytes really lie.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <type_traits>

namespace kvasir::test {

// What a kernel does with an address that it must not use.
class BadAddress : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Device memory has addresses at which the host faults. By one thread at a time.
class FakeMemoryMap {
 public:
  explicit FakeMemoryMap(uint64_t device_bytes);
  ~FakeMemoryMap();
  FakeMemoryMap(const FakeMemoryMap&) = delete;
  FakeMemoryMap& operator=(const FakeMemoryMap&) = delete;

  // What is allocated begins as 0xFF: as bf16 and f32 it is not a number. Null: there is no room.
  std::byte* allocate(uint64_t bytes);
  std::byte* allocate_pinned(uint64_t bytes);
  void release(std::byte* memory);
  uint64_t device_bytes() const { return size_; }
  uint64_t free_bytes() const { return size_ - used_; }
  // Where the bytes of device memory really lie: what a link's copy reads and writes.
  std::byte* shadow(const std::byte* device) const { return const_cast<std::byte*>(device) + shift_; }

  // The real place of `count` values that a kernel may use. Throws BadAddress.
  template <typename T>
  T* at(T* address, uint64_t count) const {
    return reinterpret_cast<T*>(
        real(reinterpret_cast<std::byte*>(const_cast<std::remove_const_t<T>*>(address)), count * sizeof(T)));
  }
  template <typename T>
  T* at_or_null(T* address, uint64_t count) const {
    return address == nullptr ? nullptr : at(address, count);
  }

 private:
  std::byte* real(std::byte* address, uint64_t bytes) const;

  std::byte* device_ = nullptr;  // reserved, never readable
  std::byte* bytes_ = nullptr;   // what it stands for
  ptrdiff_t shift_ = 0;
  const uint64_t size_;
  uint64_t used_ = 0;
  struct Piece {
    uint64_t bytes;
    bool on_device;
  };
  std::map<std::byte*, Piece> pieces_;  // that are allocated
};

}  // namespace kvasir::test
