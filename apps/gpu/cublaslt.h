// cuBLASLt as a peer, found at run time: the program does not link it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace kvasir::gpu_program {

class CublasLt {
 public:
  // Looks at $KVASIR_CUBLASLT (a file), in the loader's path and the usual folders of CUDA. Throws
  // std::runtime_error that says where it looked.
  CublasLt();
  ~CublasLt();
  CublasLt(const CublasLt&) = delete;
  CublasLt& operator=(const CublasLt&) = delete;

  // y[rows][features] = x[rows][k] w[features][k], all row-major; x and w in bf16, y in f32.
  class Plan;
  // `wanted` algorithms that its heuristics name, best first; it may know fewer.
  std::unique_ptr<Plan> plan(int64_t features, int64_t k, int64_t rows, int wanted) const;

  std::string path() const;
  size_t version() const;

 private:
  struct Library;
  std::unique_ptr<Library> library_;
};

class CublasLt::Plan {
 public:
  Plan(const Library& library, int64_t features, int64_t k, int64_t rows, int wanted);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  int algorithms() const;
  // Of an algorithm, for people: "id 66 tile 20 stages 10 split 1".
  std::string describe(int algorithm) const;
  // How many sums over parts of k it makes (its split-K); 1: one.
  int splits(int algorithm) const;
  // Throws std::runtime_error.
  void run(int algorithm, const uint16_t* w, const uint16_t* x, float* y, void* workspace,
           cudaStream_t stream) const;

  static constexpr size_t kWorkspaceBytes = size_t{64} << 20;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kvasir::gpu_program
