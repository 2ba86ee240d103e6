// Makes what products take, and runs them on a pool.
#pragma once

#include <cstdint>
#include <vector>

#include "base/mutant.h"
#include "exec/cpu/expert_product.h"
#include "exec/cpu/operand.h"
#include "exec/cpu/packed_model.h"
#include "exec/cpu/product.h"
#include "exec/cpu/thread_pool.h"
#include "ops/cpu/kernels.h"

namespace kvasir {

// Used by the thread that gives the pool its jobs.
class ProductRunner {
 public:
  // The kernels and the pool outlive it.
  ProductRunner(const ops::Kernels& kernels, ops::ActivationMode mode, ThreadPool& pool);

  // Makes room for operands of these sizes. Waits until no helper reads the present ones. As
  // OperandBuffers::grow().
  Status grow(std::initializer_list<OperandBuffers::Extent> extents, bool takes_bf16);

  // Calls body(Share rows, int thread) until each row has been in a call.
  template <typename Body>
  void for_rows(int64_t rows, const Body& body) {
    pool_.for_each(rows, body, {.least = kSoloRows});
  }
  // The input of `next`: rows of f32, made one by one by make_row(row, out [k]). Valid until the next call of
  // these two.
  template <typename MakeRow>
  Operand make_rows(const Projection& next, int64_t rows, const MakeRow& make_row) {
    const int input = pool_.free_input();
    const OperandBuffers& buffers = inputs_[static_cast<size_t>(input)];
    auto* x = reinterpret_cast<float*>(buffers.rows.data());
    const int64_t stride = row_stride(next.k);
    Operand made = operand_over(next, mode_, x, stride, buffers, rows);
    made.input = input;
    const auto make = [&](Share mine, int) {
      for (int64_t r = mine.begin; r < mine.end; ++r) make_row(r, x + r * stride);
      if (!mutant(Mutant::kBatchScale)) fill_operand(kernels_, next, mode_, made, mine);
    };
    for_rows(rows, make);
    // Under its mutant each row reads the first one.
    if (mutant(Mutant::kBatchScale)) fill_operand(kernels_, next, mode_, made, {0, rows});
    return made;
  }
  // The same of the rows x, which are as far apart as row_stride() says.
  Operand take_rows(const Projection& next, const float* x, int64_t rows);

  // out[row] (+)= input[row] x p, for `rows` rows.
  void multiply(const Projection& p, const Operand& input, int64_t rows, float* out, int64_t ldo,
                bool accumulate);
  // out[row] = input[row] x p, where p takes the f32 rows whatever its weights are.
  void multiply_f32(const Projection& p, const Operand& input, int64_t rows, float* out, int64_t ldo);
  // Makes room for so many buckets. Throws std::bad_alloc.
  void grow_buckets(size_t count);
  // out[row] = input[row] x the projection of its expert, whose columns out rows have. Rows of expert e are
  // those from first_row[e] to first_row[e + 1]. The operand is one of make_rows().
  void multiply(const Operand& input, const std::vector<Projection>& experts,
                const std::vector<int64_t>& first_row, float* out);

  uint64_t bytes() const;

 private:
  // For up to so many rows the calling thread prepares all of a projection's input: a job for them would take
  // longer.
  static constexpr int64_t kSoloRows = 4;

  const ops::Kernels& kernels_;
  const ops::ActivationMode mode_;
  ThreadPool& pool_;
  std::vector<OperandBuffers> inputs_;              // as ThreadPool::inputs() says
  std::vector<std::vector<ExpertBucket>> buckets_;  // by input: a late helper reads them, too
  std::vector<float> aside_;                        // Product::kAsideFloats for each thread
  std::vector<float*> aside_by_thread_;
};

}  // namespace kvasir
