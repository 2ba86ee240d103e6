// The parts of the program. Each runs in a process of its own, so that a device error in one leaves the
// others whole.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/gpu/report.h"

namespace kvasir::gpu_program {

struct Options {
  int64_t cases = 10'000'000;        // outputs for each form of an instruction
  std::string shape = "llama-3-8b";  // of bench
  std::vector<int64_t> rows;         // of bench gemm; empty: the usual ones
};

// A matrix of weights of a model.
struct Product {
  const char* name;
  int64_t features;
  int64_t k;
};
// Those of one layer, and the head, last.
std::vector<Product> products_of(const std::string& shape);

using Part = void (*)(const Options&, Report&);

// Instructions against their models: mma.sync; wgmma with A in shared memory, in registers; scalar
// operations.
void check_mma(const Options&, Report&);
void check_wgmma_shared(const Options&, Report&);
void check_wgmma_registers(const Options&, Report&);
void check_scalar(const Options&, Report&);
// Kernels against the reference, all outputs.
void test_gemm(const Options&, Report&);
// Times.
void bench_device(const Options&, Report&);  // what the card is
void bench_floor(const Options&, Report&);
void bench_link(const Options&, Report&);
void bench_gates(const Options&, Report&);
void bench_gemm_stream(const Options&, Report&);
void bench_gemm_wide(const Options&, Report&);
void bench_gemm_cublaslt(const Options&, Report&);
void bench_decode(const Options&, Report&);
void bench_leaf(const Options&, Report&);
void bench_forward_decode(const Options&, Report&);
void bench_steps(const Options&, Report&);
void bench_forward_prefill(const Options&, Report&);
void bench_prefill(const Options&, Report&);

}  // namespace kvasir::gpu_program
