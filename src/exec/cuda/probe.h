// Small kernels that measure or question the device itself.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace kvasir::cuda {

// Reads `bytes`, a multiple of 1 MiB, by loads of 16 bytes. sink: one word, written only for one unlikely
// sum.
cudaError_t read_by_loads(const void* from, size_t bytes, uint32_t* sink, int multiprocessors,
                          cudaStream_t stream);
// Reads them `times` times by bulk copies into shared memory, with `in_flight` copies of 8 KiB under way in
// each multiprocessor.
cudaError_t read_by_bulk(const void* from, size_t bytes, int times, int in_flight, int multiprocessors,
                         cudaStream_t stream);
cudaError_t write_by_stores(void* to, size_t bytes, uint32_t value, int multiprocessors, cudaStream_t stream);
cudaError_t copy_by_loads(void* to, const void* from, size_t bytes, int multiprocessors, cudaStream_t stream);

cudaError_t do_nothing(cudaStream_t stream);

// A thread writes *mark = value, then waits until *gate >= value, for at most `limit_ns`. Both words are
// pinned.
cudaError_t mark_and_wait(uint32_t* mark, const uint32_t* gate, uint32_t value, uint64_t limit_ns,
                          cudaStream_t stream);

// A scalar operation that the numerics rely on.
enum class ScalarOperation { kFma, kDivide, kSquareRoot, kAdd, kMultiply, kToBf16, kRint, kToInt };
// out[i] = the bits of operation(x[i], y[i], z[i]).
cudaError_t run_scalar(ScalarOperation operation, const float* x, const float* y, const float* z,
                       uint32_t* out, int64_t count, cudaStream_t stream);

// A form of the tensor cores' instruction.
struct InstructionForm {
  const char* name;
  int rows, columns;  // of its outputs
};
constexpr int kInstructionForms = 14;
constexpr int kMmaForm = 0;
// Eight products a step instead of 16: known to give other bits.
constexpr int kShortMmaForm = 13;
InstructionForm instruction_form(int form);

// Problems of one form. A problem is `steps` instructions, each adding 16 of k to what the one before it
// left.
struct FormProblems {
  const uint16_t* a;  // [problem][row][16 steps]
  const uint16_t* b;  // [problem][column][16 steps]
  const float* c;     // [problem][row][column]: accumulators at the start
  float* d;           // as c
  int problems;
  int steps;       // 1 to 4
  bool from_zero;  // c is not read: the first instruction overwrites (wgmma's scale-d), or begins from +0
};
cudaError_t run_form(int form, const FormProblems& problems, cudaStream_t stream);

}  // namespace kvasir::cuda
