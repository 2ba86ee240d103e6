// Has operator new give memory that the device sees, too, so that tests of kernels run on it as they are.
//
// Pieces have sizes of powers of two, and go back to a list of their size. For a program with one thread.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <new>

namespace {

constexpr size_t kArenaBytes = size_t{4} << 30;
constexpr size_t kHeader = 64;  // before each piece: the number of its list
constexpr int kLists = 34;      // for what is as large as the arena, with its header, too

struct Piece {
  Piece* next;
};

Piece* lists[kLists];
char* arena = nullptr;
size_t used = 0;

void* allocate(size_t bytes) {
  if (bytes > kArenaBytes) throw std::bad_alloc();
  const int list = std::bit_width(bytes + kHeader - 1);
  if (Piece* piece = lists[list]; piece != nullptr) {
    lists[list] = piece->next;
    return piece;
  }
  void* managed = nullptr;
  if (arena == nullptr) {
    if (const cudaError_t error = cudaMallocManaged(&managed, kArenaBytes); error != cudaSuccess) {
      std::fprintf(stderr, "no memory of the device: %s\n", cudaGetErrorString(error));
      std::abort();
    }
    arena = static_cast<char*>(managed);
  }
  const size_t size = std::max(size_t{1} << list, 2 * kHeader);
  if (size > kArenaBytes - used) throw std::bad_alloc();
  char* piece = arena + used + kHeader;
  used += size;
  *reinterpret_cast<int*>(piece - kHeader) = list;
  return piece;
}

void release(void* p) {
  if (p == nullptr) return;
  const int list = *reinterpret_cast<int*>(static_cast<char*>(p) - kHeader);
  lists[list] = new (p) Piece{lists[list]};
}

}  // namespace

namespace kvasir::simt {

const char* wait_for_device();

const char* wait_for_device() {
  const cudaError_t error = cudaDeviceSynchronize();
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace kvasir::simt

void* operator new(size_t bytes) {
  return allocate(bytes);
}
void* operator new[](size_t bytes) {
  return allocate(bytes);
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
